// SPDX-License-Identifier: Apache-2.0
/*
 * A session with the daemon: one socket, one thread, one lock; and a second thread from the
 * first page map on, which does nothing but copy (client/copier.h).
 *
 * The thread alone connects, receives, watches deadlines and the heartbeat, and takes a
 * connection down. Callers encode and send under the lock without blocking; when that
 * fails they mark the connection broken and leave the rest to the thread. Everything in
 * the struct is under the lock but what is set at open and never again, and the table
 * that match reads (client/table.h).
 *
 *   DOWN -> GREETING: connected, HELLO sent     -> ANNOUNCING: WELCOME came, arenas follow
 *        -> ATTACHING: all arenas, ATTACH sent  -> UP: ATTACHED
 * While UP without a layout handle (rows are missing) the session is pending: nothing is
 * sent that needs one, and the table is not shown.
 * and from anywhere back to DOWN by kvt__session_break().
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/un.h>

#include "client/arena.h"
#include "client/call.h"
#include "client/copier.h"
#include "client/kvtier.h"
#include "client/layout.h"
#include "client/lease.h"
#include "client/outbox.h"
#include "client/rank.h"
#include "client/recent.h"
#include "client/remote.h"
#include "client/table.h"

#define KVT__BACKOFF_NS_MIN UINT64_C(10000000)
#define KVT__BACKOFF_NS_MAX UINT64_C(1000000000)

enum kvt__phase {
        KVT__DOWN,
        KVT__GREETING,
        KVT__ANNOUNCING,
        KVT__ATTACHING,
        KVT__UP,
};

struct kvt_session {
        /* set at open; the host first: a device's library looks there (client/page_device.h) */
        const struct kvt__page_host *host;
        LIST_ENTRY(kvt_session) forks; /* under the lock of client/fork.c */
        uint32_t fork_generation;
        uint64_t serial; /* of all sessions of this process, from 1 on */
        struct sockaddr_un address;
        const struct kvt__remote_ops *remote_ops; /* NULL: the daemon is on this node */
        struct kvt__bridge *bridge;
        char program[64];
        uint8_t engine_id[16];
        uint16_t *shards;
        uint16_t n_shards;
        bool spans_nodes; /* other shards of the engine are elsewhere */
        struct kvt__rank rank;
        uint32_t open_flags; /* KVT_OPEN_* */
        struct kvt__layout_encoding asked;
        bool asked_is_partial;
        pthread_t thread;
        int wake_fd;  /* wakes the thread */
        int ready_fd; /* readable while completions wait */

        pthread_mutex_t lock;
        pthread_cond_t changed; /* completions, phase, refusal */
        bool stopping;
        bool is_lost; /* with copies in flight: never connects again */

        /* connection */
        int socket; /* -1 while DOWN */
        enum kvt__phase phase;
        bool broken;
        uint64_t connect_at_ns;
        uint64_t backoff_ns;
        uint64_t handshake_until_ns;
        uint64_t sleeping_until_ns; /* the thread looks at deadlines no later than this */
        uint32_t n_arenas_due;
        enum kvt_status refusal; /* of the last attempt; KVT_OK: it was not refused */
        struct why last_error;
        struct kvt__outbox outbox;
        uint8_t *out_buffer; /* WIRE_MESSAGE_MAX bytes */
        uint8_t *in_buffer;  /* WIRE_MESSAGE_MAX bytes */

        /* what the daemon said */
        struct kvt__era *era; /* of the connection, NULL while DOWN or GREETING */
        struct kvt__era_list eras;
        uint32_t domain;
        uint32_t layout; /* handle; 0 while UP: rows of other processes are missing */
        uint32_t chunk_tokens;
        struct digest layout_id;
        uint8_t boot_id[16];
        uint64_t host_bytes;
        uint64_t n_attached;

        struct kvt__arena_list arenas;
        struct kvt__leases leases;
        struct kvt__tables tables;
        struct kvt__recent recent; /* of matches: any thread, no lock */
        struct kvt__calls calls;
        struct kvt__copier copier;
        const struct kvt__page_device *device; /* or NULL */
        struct kvt__pins pins;
        struct kvt_told told; /* not sent yet; batch_tokens stays */
        bool has_told;        /* ... something */
};

uint64_t kvt__now_ns(void);

/* Wakes the thread out of its poll. */
void kvt__session_wake(struct kvt_session *session);

/* Sends or queues; a failure breaks the connection. */
bool kvt__session_send(struct kvt_session *session, const void *packet, size_t length);

/* Marks the connection broken; the thread takes it down. */
void kvt__session_break(struct kvt_session *session, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/* Ends the connection for good: what is leased stays the process's. */
void kvt__session_lose(struct kvt_session *session, const char *reason);

/* client/page_device.c: takes the lock. NULL: it has none. */
const struct kvt__page_device *kvt__session_device(struct kvt_session *session);
/* ... and takes the device away. Without the lock. */
void kvt__session_drop_device(struct kvt_session *session);
extern const struct kvt__page_host kvt__page_host;

/* May the table be shown, so that match and its kin find something? */
bool kvt__session_may_look(struct kvt_session *session, uint64_t now);

/* Tells the daemon of dead eras whose last lease has ended. */
void kvt__session_settle(struct kvt_session *session);

/* Sends what kvt_tell() has left, when it can be. Under the lock. */
void kvt__tell_left(struct kvt_session *session);

/* A new session of the daemon's: what stays true is told once more. */
void kvt__tell_again(struct kvt_session *session);

/* client/handshake.c: the thread, under the lock. */
void kvt__handshake_start(struct kvt_session *session);
void kvt__handshake_step(struct kvt_session *session, const void *packet, int fd);

/* client/receive.c: the thread, without the lock: reads until the socket is empty. */
void kvt__receive(struct kvt_session *session);

/* client/answer.c: a RESULT or GRANTED that passed message_check(). Under the lock. */
void kvt__answer(struct kvt_session *session, const void *packet);

/* client/answer.c: FOUND and FORGET that passed message_check(). Under the lock. */
void kvt__answer_found(struct kvt_session *session, const struct wire_header *header);

/* client/recent.c's answer to RECENT that passed message_check(). Under the lock. */
void kvt__answer_recent(struct kvt_session *session, const struct wire_recent *recent);

/* client/fork.c: knows all sessions, so that a forked child can close its copies. */
int kvt__fork_register(struct kvt_session *session);
void kvt__fork_unregister(struct kvt_session *session);
bool kvt__is_forked(const struct kvt_session *session);
