// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon: owns every part and the order in which they start and stop.
 *
 *   start: presence table, index -> NVMe, pool -> host pool -> recovery -> socket, metrics
 *   serving: the presence table says so once recovery has ended and one arena is up
 *   drain (SIGTERM): no new reservations; write-down of what the policy keeps, up to
 *   drain.seconds; then sessions, tiers, host pool, table are closed
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/error.h"
#include "daemon/arguments.h"
#include "daemon/attach.h"
#include "daemon/cache.h"
#include "daemon/config.h"
#include "daemon/http.h"
#include "daemon/lease.h"
#include "daemon/mark.h"
#include "daemon/metrics.h"
#include "daemon/prefetch.h"
#include "proto/presence_table.h"
#include "daemon/session.h"
#include "daemon/status_history.h"
#include "proto/wire.h"

struct daemon_port;
struct peers;
struct pool_question;
struct recent_question;
TAILQ_HEAD(recent_question_list, recent_question);

enum daemon_phase {
        DAEMON_STARTING, /* recovery runs */
        DAEMON_RUNNING,
        DAEMON_DRAINING,
        DAEMON_STOPPING,
};

struct daemon {
        uv_loop_t loop;
        struct config config;
        struct metrics metrics;
        struct cache cache;
        struct pool *pool; /* while the remote tier that it belongs to is not open */
        void (*on_tiers_closed)(void *user); /* tiers_close() */
        void *on_tiers_closed_user;
        struct leases leases;
        struct session_list sessions;
        struct layout_assembly_list layouts; /* of the engines that are attached */
        uint32_t n_sessions;                 /* with a socket */
        uint32_t n_quarantined;              /* without one */
        uint64_t next_session;
        uint32_t n_waiting;            /* acquires that wait for reservations */
        uint64_t n_reservations_ended; /* so far */
        uint8_t boot_id[16];
        enum daemon_phase phase;
        struct attach_refusal refusal; /* the last engine that was turned away */
        bool recovered;
        bool failed; /* stopped by a failure: exit status 1 */
        uint64_t started_ns;
        uint64_t started_wall_ns;

        struct http *http;
        struct status_history history;
        struct daemon_port *port; /* RDMA; NULL: not configured */
        int listen_fd;
        int statm_fd; /* of this process, for its memory; -1: the kernel does not tell */
        uv_poll_t listen_poll;
        uv_signal_t sigterm, sigint, sighup;
        uv_timer_t heartbeat; /* presence table, watchdog, loop lag, STATUS */
        uv_timer_t drain_timer;
        uv_check_t reaper; /* sessions_reap() at the end of each turn */
        uv_async_t wake;   /* makes the loop turn once more */
        uint64_t heartbeat_due_ns;
        uint64_t watchdog_due_ns;
        bool accepting;          /* the listening socket is polled */
        bool is_closing;         /* parts are being closed */
        struct verify *verify;   /* kvtierctl verify: one at a time */
        struct removal *removal; /* kvtierctl evict, clear: one at a time */
        struct pool_question *pool_questions[2]; /* kvtierctl pool, pool gc: one each */
        struct marks marks;
        struct prefetches prefetches;
        struct peers *peers; /* NULL: no port */
        struct recent_question_list questions; /* of kvtierctl why, to sessions */
        uint32_t n_questions;
        uint64_t last_ticket; /* of a question */
        const struct arguments *arguments;

        _Alignas(8) uint8_t packet_in[WIRE_MESSAGE_MAX];
};

/*
 * Runs a daemon from start to stop; @arguments are read anew on SIGHUP. Returns the exit
 * status; a failure to start is logged.
 */
int daemon_main(const struct arguments *arguments, const struct config *config);

/* Begins to drain, as SIGTERM does. */
void daemon_drain(struct daemon *daemon, const char *reason);

/* Bytes of host memory that may be leased now, as far as arenas are up. */
uint64_t daemon_lease_limit(const struct daemon *daemon);
/* The same once all arenas are up: what is above it never fits. */
uint64_t daemon_lease_limit_final(const struct daemon *daemon);

/* Sets the gauges of daemon->metrics. */
void daemon_refresh_metrics(struct daemon *daemon);

/* Non-zero when requests are served; else @why says what is missing. */
int daemon_is_ready(const struct daemon *daemon, struct why *why);

/* Makes the loop turn, so that sessions_reap() runs soon. */
void daemon_wake(struct daemon *daemon);
