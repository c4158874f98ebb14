// SPDX-License-Identifier: Apache-2.0
/*
 * A client of kvtierd that is nothing but the wire: a socket, the arenas, the structs of
 * proto/wire.h. It has no threads and no manners: a test may fork it, kill it, leave its
 * socket open, or have it lie about who it is. Requests carry what @welcome holds, so that
 * changing it is how to speak for another session or an earlier run.
 *
 * Functions fail the test on anything that the protocol does not allow; a status is never
 * such a failure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/wire.h"

#define WIRE_CLIENT_ARENAS_MAX 16
#define WIRE_CLIENT_OBJECTS    512 /* of one request: they fit one message */

/* The layout that test clients attach: a chunk of fixed size, a state of any size. */
#define TEST_CHUNK_TOKENS 16u
#define TEST_CHUNK_BYTES  65536u
#define TEST_GROUP_CHUNK  0
#define TEST_GROUP_STATE  1

struct wire_client_arena {
        uint32_t id;
        int fd;
        uint8_t *base;
        uint64_t bytes;
};

struct wire_client {
        int fd;       /* -1: hung up */
        int table_fd; /* -1: none was sent */
        struct wire_welcome welcome;
        struct wire_bye bye; /* zeros: none has come */
        struct wire_client_arena arenas[WIRE_CLIENT_ARENAS_MAX];
        unsigned n_arenas;
        uint32_t layout;
        uint8_t engine_id[16]; /* sent by attach, */
        uint32_t attach_flags; /* and these: WIRE_ATTACH_* */
        uint64_t last_request;
        _Alignas(8) uint8_t in[WIRE_MESSAGE_MAX];
        _Alignas(8) uint8_t out[WIRE_MESSAGE_MAX];
};

/* One object of a request. The members from @status on are the answer. */
struct wire_object {
        uint64_t number;     /* names it: content_digest() */
        uint64_t generation; /* of its content */
        uint64_t bytes;
        uint16_t group;
        uint16_t shard;
        uint32_t flags; /* WIRE_RESERVE_* */
        const struct wire_page_run *runs; /* acquire: these pages alone */
        uint32_t n_runs;
        uint32_t status;
        uint64_t lease;
        uint32_t n_extents;
        struct wire_extent extents[WIRE_EXTENTS_MAX];
};

/* A state object with the bytes of generation 0. */
struct wire_object wire_object(uint64_t number, uint64_t bytes);

/* False when nobody listens. */
bool wire_client_connect(struct wire_client *client, const char *socket_path);
/* Sends HELLO; returns the status of WELCOME and takes in the arenas. */
uint32_t wire_client_hello(struct wire_client *client, uint32_t flags);
uint32_t wire_client_attach(struct wire_client *client);
/* All three, which have to succeed. */
void wire_client_open(struct wire_client *client, const char *socket_path);

/* Closes the socket and the table; the arenas stay mapped. */
void wire_client_hang_up(struct wire_client *client);
/* Hangs up and unmaps. */
void wire_client_close(struct wire_client *client);

/* ---- messages ---- */

/* False when the daemon has hung up. */
bool wire_client_send(struct wire_client *client, const void *packet, size_t length);
/* The next message (arenas are taken in on the way), or NULL: the daemon has hung up. */
const struct wire_header *wire_client_receive(struct wire_client *client);
/* Reads until the daemon hangs up. */
void wire_client_wait_hang_up(struct wire_client *client);
/* A header for @kind, as the session that @welcome names, with a new request id. */
struct wire_header wire_client_header(struct wire_client *client, uint16_t kind);

void wire_client_send_admin(struct wire_client *client, const char *text);
/* All parts of the answer; the caller frees it. NULL: the daemon has hung up. */
char *wire_client_read_admin(struct wire_client *client);

/* ---- requests ---- */

/* Each sends one request for @n objects, and returns its id. */
uint64_t wire_client_send_reserve(struct wire_client *client, uint64_t set,
                                  const struct wire_object *objects, unsigned n);
uint64_t wire_client_send_acquire(struct wire_client *client, uint32_t flags, uint64_t timeout_ns,
                                  const struct wire_object *objects, unsigned n);
/* COMMIT, ABORT or RELEASE of the objects' leases. */
uint64_t wire_client_send_leases(struct wire_client *client, uint16_t kind, uint64_t set,
                                 const struct wire_object *objects, unsigned n);

/*
 * Receives the answer to a request into @objects. Returns the status of GRANTED, which
 * goes to @ret_granted (may be NULL); OK for requests that have none. GONE when the
 * daemon hangs up in the middle.
 */
uint32_t wire_client_finish(struct wire_client *client, uint64_t request,
                            struct wire_granted *ret_granted, struct wire_object *objects,
                            unsigned n);

/* Send and finish. */
void wire_client_reserve(struct wire_client *client, uint64_t set, struct wire_object *objects,
                         unsigned n);
void wire_client_end(struct wire_client *client, uint16_t kind, uint64_t set,
                     struct wire_object *objects, unsigned n);
uint32_t wire_client_acquire(struct wire_client *client, uint32_t flags,
                             struct wire_granted *ret_granted, struct wire_object *objects,
                             unsigned n);
uint32_t wire_client_adopt(struct wire_client *client, const uint8_t token[16],
                           struct wire_object *objects, unsigned n);

/* ---- bytes ---- */

/* Writes or checks the object's content in its extents. */
void wire_client_write(struct wire_client *client, const struct wire_object *object);
bool wire_client_holds(struct wire_client *client, const struct wire_object *object);

/* Reserve, write and commit of one object; the status of the step that failed, or OK. */
uint32_t wire_client_put(struct wire_client *client, struct wire_object *object);
/*
 * Acquire, check and release of one object. OK with the content of @object->generation;
 * any other content fails the test.
 */
uint32_t wire_client_get(struct wire_client *client, struct wire_object *object);
