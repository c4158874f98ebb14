// SPDX-License-Identifier: Apache-2.0
/*
 * A session: one engine process, on the control socket or, from another node, on an RDMA
 * connection. What carries its messages is behind struct session_carrier.
 *
 *   GREETING -> WELCOMED -> ATTACHED -> CLOSING -> QUARANTINED -> gone
 *       any of the first three -> CLOSING (hang-up, garbage, output cap, kick, death)
 *       CLOSING -> gone at once, when no lease is held or the process has ended
 *
 * Hang-up is not death: a session that still holds leases stays in quarantine until its
 * process is gone (pidfd) or a later session states that its copies have ended, naming
 * the secret that this one was given. Death is not always a hang-up (a forked child may
 * hold the socket), so the pidfd is polled from the start, and death ends the session.
 * A remote session maps nothing of ours: its leases end with its connection, at once.
 *
 * Closing never happens inside a handler: session_close() only marks, and the loop reaps
 * after the callbacks of the turn, so that nobody's pointer dies under him.
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include <uv.h>

#include "base/error.h"
#include "daemon/layout_assembly.h"
#include "daemon/lease.h"
#include "daemon/metrics.h"
#include "daemon/pin_set.h"
#include "proto/layout_span.h"
#include "proto/message.h"
#include "proto/wire.h"

struct daemon;
struct session;
struct load;
struct waiting_acquire;
struct assembly;
struct deferred_commit;
struct lease_set;
RB_HEAD(set_tree, lease_set);

enum session_state {
        SESSION_GREETING, /* connected; HELLO is to come */
        SESSION_WELCOMED,
        SESSION_ATTACHED,
        SESSION_CLOSING,
        SESSION_QUARANTINED,
};

struct remote_link;
struct session_mover;

/* How messages come and go. */
struct session_carrier {
        /* Never blocks; a failure closes the session. @fd is borrowed, or -1. */
        void (*send)(struct session *session, const void *packet, uint32_t length, int fd);
        /* The session ends: no message comes or goes any more. */
        void (*close)(struct session *session);
        /* Its quarantine has ended. May be NULL. */
        void (*forget)(struct session *session);
        /* The client maps the presence table and the arenas. */
        bool shares_memory;
};

struct session_output {
        TAILQ_ENTRY(session_output) link;
        uint32_t length;
        int fd; /* borrowed, or -1 */
        uint8_t packet[];
};

/* An ADMIN command that is longer than a message, as far as it has come. */
struct session_command {
        uint64_t request;
        char *text;
        size_t length;
};

struct session {
        TAILQ_ENTRY(session) link;
        struct daemon *daemon;
        enum session_state state;
        uint64_t id;
        uint8_t secret[16];
        const struct session_carrier *carrier;
        int fd;                    /* control socket, -1 once closed, or when there is none */
        int pidfd;                 /* -1 when there is no process to watch */
        struct remote_link *remote; /* NULL once closed, or when there is none */
        struct session_mover *mover; /* of a remote session's bytes */
        char from[64];             /* where it comes from, for people */
        pid_t pid;
        uid_t uid;
        gid_t gid;
        bool is_admin;    /* may use ADMIN messages */
        bool wants_table; /* an engine, not kvtierctl */
        char program[64];
        uint64_t opened_ns;
        uint64_t closed_ns;
        const char *close_reason;
        char close_detail[256];

        uv_poll_t socket_poll;
        uv_poll_t pidfd_poll;
        unsigned n_handles; /* uv handles not closed yet */
        bool polls_writable;
        TAILQ_HEAD(, session_output) output;
        uint64_t output_bytes;
        unsigned n_refs; /* deferred answers that will look at the session */

        uint8_t engine_id[16];
        uint32_t rank, n_ranks; /* for people; n_ranks 0: not told */
        uint32_t domain;
        uint16_t layout; /* index_layout() number; 0 until attached with all rows */
        struct digest layout_id;
        struct layout_member part;        /* of the engine's layout */
        const struct layout *description; /* whole; NULL until attached with all rows */
        struct layout_span span;          /* the shards that the engine has on this node */
        bool spans_nodes;                 /* others are elsewhere (daemon/finding.h) */

        TAILQ_HEAD(, lease) leases; /* oldest first */
        struct set_tree sets;
        LIST_HEAD(, deferred_commit) deferred_commits;
        uint32_t n_leases;
        uint64_t leased_bytes;
        uint32_t n_reserved_covers; /* digests that its reservations list */
        TAILQ_HEAD(, load) loads;
        TAILQ_HEAD(, waiting_acquire) waiting;
        uint32_t n_waiting, n_waiting_keys;
        struct session_command command;
        struct assembly *assembly; /* a request whose last part has not come */
        struct pin_set pins;
        uint32_t n_mark_items;     /* of its marks that are not done */
        uint32_t n_prefetch_items; /* ... and of its prefetches */
        uint32_t n_find_items;     /* ... and of its finds, of engines that span nodes */
        uint32_t n_find_parts;
        bool no_loads, no_stores; /* as it said when it attached */
        uint32_t batch_tokens;    /* most that its engine computes in a step; 0: not told */

        uint64_t stored_objects, stored_bytes, loaded_objects, loaded_bytes;
};
TAILQ_HEAD(session_list, session);

/* In state GREETING, among the daemon's sessions. NULL: out of memory. */
struct session *session_new(struct daemon *daemon, const struct session_carrier *carrier);

/* A packet that has come, 8-byte aligned. */
void session_take(struct session *session, const void *packet, size_t length);

/* With its HELLO: false when sessions.max is reached, and it is not kvtierctl's. */
bool session_may_stay(const struct session *session);

/*
 * Marks a session for closing. @reason is a word for the log and the metrics, @detail (may
 * be NULL) what exactly was wrong. Safe in any handler; later calls change nothing.
 */
void session_close(struct session *session, enum metrics_disconnect disconnect, const char *reason,
                   const char *detail);

/* Closes what is marked; called by the daemon after each turn of the loop. */
void sessions_reap(struct daemon *daemon);

/* Closes connections that have not said HELLO in time: they count against sessions.max. */
void sessions_expire(struct daemon *daemon, uint64_t now_ns);

/* Ends every lease of a session, with the answers that wait for them. */
void session_end_leases(struct session *session);

/* Ends the quarantine of the earlier session that @secret names. False: there is none. */
bool sessions_end_quarantine(struct daemon *daemon, const uint8_t secret[16]);

/*
 * Sends a packet, with a descriptor unless @fd is -1. Never blocks: what cannot go at once
 * is queued, and beyond a cap the session is closed.
 */
void session_send(struct session *session, const void *packet, uint32_t length, int fd);

/* Sends one message of @builder. */
void session_send_message(struct session *session, const struct message_builder *builder);

/* Frees a session when its last reference, handle and lease are gone. */
void session_unref(struct session *session);
void session_free_when_gone(struct session *session);

struct session *session_by_id(struct daemon *daemon, uint64_t id);
