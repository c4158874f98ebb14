// SPDX-License-Identifier: Apache-2.0
/*
 * The bridge between a session of libkvtier and a daemon on another node (client/remote.h).
 * Messages pass through it both ways, by a socket pair and by a link over RDMA; it changes those
 * that speak of memory:
 *
 *   WELCOME    gets a presence table and one arena, the buffer of the session
 *   RESULT     of a RESERVE: each lease gets a room in the buffer
 *   COMMIT     waits until the daemon has read the bytes: the rooms are granted for reading,
 *              PUT names them, the grant is taken back
 *   RESULT     of an ACQUIRE or ADOPT: each lease gets a room, which is granted for writing;
 *              FETCH names it; the library is told when the bytes are there and the grant
 *              has been taken back: nobody but this process can reach them any more
 *   FOUND      goes into the presence table, so that match shows what was found; FORGET empties it
 *   COPIES_ENDED  frees the rooms of an earlier connection: the library has held them for its
 *              caller, and a daemon elsewhere has no quarantine
 *
 * No room in the buffer: BUSY for that object, and the daemon gets its lease back. A grant is
 * for the objects of one message, neighbours in the buffer by one window.
 *
 * A daemon that says what cannot be is hung up on. When the link ends, its grants end with it,
 * then the library's socket is closed. Everything but the orders of the library happens in one
 * thread, the owner of the port.
 */
#pragma once

#include <bsd/sys/tree.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/rdma_memory.h"
#include "base/rdma_secret.h"
#include "client/outbox.h"
#include "client/rdma/lookup.h"
#include "client/rdma/request.h"
#include "client/rdma/room.h"
#include "client/remote.h"
#include "proto/message.h"
#include "proto/presence_table.h"
#include "proto/remote_link.h"

#define BRIDGE_OWN_REQUEST (UINT64_C(1) << 63) /* in ids of the bridge's own requests */
#define BATCH_MAX          RDMA_PIECES_MAX     /* objects */

/* A connection's session with the daemon, and the name that the library has for it. */
struct bridge_era {
        LIST_ENTRY(bridge_era) link;
        uint64_t id;
        uint8_t secret[16];
};

/* One object of a batch. */
struct batch_member {
        struct room *room;
        uint64_t lease;
        uint32_t index; /* within the request */
        uint32_t status;
        struct wire_result_item item; /* FETCH: what the library is to be told */
        uint64_t *pieces;             /* owned */
};

/* Objects that move by one grant and one message. */
struct batch {
        LIST_ENTRY(batch) link;
        struct kvt__bridge *bridge;
        struct bridge_request *request;
        struct rdma_grant *grant; /* NULL: none */
        uint64_t id;              /* of the PUT or FETCH */
        bool is_put;
        bool is_told;   /* the daemon knows of it */
        uint32_t n;
        uint32_t n_extents;
        uint32_t extent_of[BATCH_MAX]; /* members */
        struct rdma_extent extents[BATCH_MAX];
        struct batch_member members[BATCH_MAX];
};

struct kvt__bridge {
        /* set at open */
        char *host, *service;
        struct rdma_secret_file secret;
        struct sockaddr_storage source; /* ss_family 0: as the routes say */
        uint8_t id[RDMA_ID_BYTES];
        uint8_t *base; /* as whoever copies calls it */
        uint64_t bytes;
        int arena_fd;
        bool is_dmabuf; /* the caller's, and nothing of it is touched here */
        uint64_t dmabuf_offset;
        bool whole_buffer; /* kvt__bridge_options */
        uint32_t arena_id;
        int wake_fd;
        pthread_t thread;

        pthread_mutex_t lock; /* orders, and how the opening of the port went */
        pthread_cond_t opened;
        int pending; /* a socket to be served next, or -1 */
        bool stopping;
        bool is_opened;
        int open_result;
        struct why open_why;

        /* the thread's */
        struct rdma_port *port;
        struct rdma_region *region;
        struct presence_table *table;
        struct rooms rooms;
        LIST_HEAD(, bridge_era) eras;
        uint64_t last_era;
        uint64_t beat_ns;

        /* the connection */
        int socket; /* -1: none, or the library has gone */
        struct lookup *lookup; /* NULL: none */
        struct lookup_result addresses;
        uint32_t next_address;
        struct remote_link *link; /* NULL: none */
        bool is_open;             /* the link */
        bool is_welcome;
        bool is_mid; /* more parts of what was sent last are to come */
        uint64_t era;
        uint64_t turn; /* of the last request that went to the daemon */
        uint64_t session;
        uint8_t boot_id[16];
        uint32_t domain;
        struct digest layout_id;
        uint64_t last_own; /* request of the bridge */
        struct kvt__outbox out;  /* to the library */
        struct kvt__outbox wait; /* to the daemon, once is_mid has ended */
        struct bridge_requests requests;
        LIST_HEAD(, batch) batches;

        struct message_builder builder; /* of a RESULT to the library */
        uint8_t *result; /* WIRE_MESSAGE_MAX bytes each, 8-byte aligned */
        uint8_t *own;
        uint8_t *packet_in;
};

/* bridge.c: to the library; what its socket does not take waits. */
void bridge_tell(struct kvt__bridge *bridge, const void *packet, size_t length, int fd);

/* To the daemon, as the library sends it; and what the bridge has to say between requests. */
void bridge_forward(struct kvt__bridge *bridge, const struct wire_header *header);
void bridge_say(struct kvt__bridge *bridge, const void *packet, size_t length);

/* The presence table is alive. */
void bridge_beat(struct kvt__bridge *bridge);

/* Hangs up on both; the reason is for the library. */
void bridge_fail(struct kvt__bridge *bridge, uint32_t status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* upstream.c, downstream.c: a message that passed message_check(); the library's: packet_in */
void bridge_from_library(struct kvt__bridge *bridge);
void bridge_from_daemon(struct kvt__bridge *bridge, const struct wire_header *header);

/* request.c: a RESULT of @request to the library, item by item, in messages as long as need be. */
void bridge_result_begin(struct kvt__bridge *bridge, uint64_t request);
void bridge_result_add(struct kvt__bridge *bridge, const struct wire_result_item *item,
                       const struct wire_extent *extents, const uint64_t *pieces);
void bridge_result_end(struct kvt__bridge *bridge, bool more);

/* batch.c: NULL: out of memory, the connection has failed. Counts as moving. */
struct batch *batch_new(struct kvt__bridge *bridge, struct bridge_request *request, bool is_put);
void batch_add(struct batch *batch, struct room *room, uint32_t index,
               const struct wire_result_item *item, const uint64_t *pieces);
/* May end it at once. */
void batch_start(struct batch *batch);
/* Those that were never begun. */
void batches_drop(struct kvt__bridge *bridge);
struct batch *batch_find(struct kvt__bridge *bridge, uint64_t id);
void batch_answered(struct batch *batch, const struct wire_header *header);

/* Gives leases back to the daemon; of a reservation: ABORT with its set, and WIRE_ABORT_*. */
void bridge_give_back(struct kvt__bridge *bridge, uint16_t kind, uint64_t set, uint32_t flags,
                      const uint64_t *leases, uint32_t n);

/* The bytes of a COMMIT are there, or will not be. */
void bridge_commit_go_on(struct kvt__bridge *bridge, struct bridge_request *request);
