// SPDX-License-Identifier: Apache-2.0
/*
 * What the daemon counts. Plain numbers in one struct that the loop thread owns: everybody
 * in daemon/ writes them directly (metrics->hits_total[METRICS_HOST]++), nobody locks.
 *
 * METRICS_LIST (metrics_list.h) is the only description: it declares the fields, renders the
 * Prometheus text and is held against deploy/METRICS.md by a test. A field's name is the metric's
 * name behind "kvtier_". Base units: bytes, seconds, tokens. Counters only grow; gauges
 * are either kept up to date or set by the refresh callback of metrics_render().
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/rdma.h"
#include "daemon/metrics_list.h"
#include "proto/status.h"

/* Label values: constant, text. */
#define METRICS_TIERS(X)                                                                           \
        X(METRICS_HOST, "host")                                                                    \
        X(METRICS_NVME, "nvme")                                                                    \
        X(METRICS_REMOTE, "remote")

#define METRICS_OPERATIONS(X)                                                                      \
        X(METRICS_RESERVE, "reserve")                                                              \
        X(METRICS_COMMIT, "commit")                                                                \
        X(METRICS_ABORT, "abort")                                                                  \
        X(METRICS_ACQUIRE, "acquire")                                                              \
        X(METRICS_ADOPT, "adopt")                                                                  \
        X(METRICS_RELEASE, "release")                                                              \
        X(METRICS_PREFETCH, "prefetch")

#define METRICS_REMOVALS(X)                                                                        \
        X(METRICS_FOR_SPACE, "space")       /* made room */                                        \
        X(METRICS_REPLACED, "replaced")     /* a newer generation was committed */                 \
        X(METRICS_BY_ADMIN, "admin")        /* kvtierctl evict, clear */                           \
        X(METRICS_RECLAIMED, "reclaimed")   /* an engine or kvtierctl said that it is done */      \
        X(METRICS_UNREADABLE, "unreadable") /* corrupt, stale or an I/O error */                   \
        X(METRICS_VANISHED, "vanished")     /* from the pool, by another's doing */

#define METRICS_DISCONNECTS(X)                                                                     \
        X(METRICS_HANG_UP, "hang_up")         /* the client closed its socket */                   \
        X(METRICS_DEATH, "death")             /* the process ended first */                        \
        X(METRICS_GARBAGE, "garbage")         /* a message that breaks the protocol */             \
        X(METRICS_NOT_READING, "not_reading") /* its output reached the cap */                     \
        X(METRICS_SOCKET_ERROR, "socket_error")                                                    \
        X(METRICS_LOST, "lost") /* a remote one: its connection ended */                           \
        X(METRICS_DAEMON_STOP, "daemon_stop")

#define METRICS_REFUSALS(X)                                                                        \
        X(METRICS_TOO_MANY, "too_many")           /* sessions.max */                               \
        X(METRICS_NOT_PERMITTED, "not_permitted") /* uid or gid */                                 \
        X(METRICS_VERSION, "version")             /* protocol version or features */               \
        X(METRICS_PROCESS, "process")             /* no usable pidfd */                            \
        X(METRICS_LAYOUT, "layout")               /* contradicts or cannot be served */            \
        X(METRICS_MALFORMED, "malformed")                                                          \
        X(METRICS_STOPPING, "stopping") /* the daemon drains */

#define METRICS_ENUM(constant, text) constant,
enum metrics_tier { METRICS_TIERS(METRICS_ENUM) METRICS_N_TIERS };
enum metrics_operation { METRICS_OPERATIONS(METRICS_ENUM) METRICS_N_OPERATIONS };
enum metrics_removal { METRICS_REMOVALS(METRICS_ENUM) METRICS_N_REMOVALS };
enum metrics_disconnect { METRICS_DISCONNECTS(METRICS_ENUM) METRICS_N_DISCONNECTS };
enum metrics_refusal { METRICS_REFUSALS(METRICS_ENUM) METRICS_N_REFUSALS };
#undef METRICS_ENUM

/* Upper bounds 100 us ... 10 s, see metrics.c; the last bucket is +Inf. */
#define METRICS_N_BUCKETS 17

struct metrics_histogram {
        uint64_t buckets[METRICS_N_BUCKETS]; /* each for itself, not cumulative */
        double sum;
};

#define METRICS_TYPE_COUNTER         uint64_t
#define METRICS_TYPE_GAUGE           uint64_t
#define METRICS_TYPE_SECONDS_COUNTER double
#define METRICS_TYPE_SECONDS_GAUGE   double
#define METRICS_TYPE_HISTOGRAM       struct metrics_histogram

#define METRICS_SHAPE_NONE
#define METRICS_SHAPE_TIER             [METRICS_N_TIERS]
#define METRICS_SHAPE_OPERATION_STATUS [METRICS_N_OPERATIONS][KVT_WIRE_STATUS_COUNT]
#define METRICS_SHAPE_TIER_REMOVAL     [METRICS_N_TIERS][METRICS_N_REMOVALS]
#define METRICS_SHAPE_DISCONNECT       [METRICS_N_DISCONNECTS]
#define METRICS_SHAPE_REFUSAL          [METRICS_N_REFUSALS]
#define METRICS_SHAPE_RDMA_END         [RDMA_N_ENDS]

/* All zero is a valid start. */
struct metrics {
#define METRICS_FIELD(field, kind, labels, help) METRICS_TYPE_##kind field METRICS_SHAPE_##labels;
        METRICS_LIST(METRICS_FIELD)
#undef METRICS_FIELD
};

/* "host", "nvme", "remote". */
const char *metrics_tier_name(enum metrics_tier tier);

/* Adds one observation. */
void metrics_observe(struct metrics_histogram *histogram, double seconds);

/*
 * Calls @refresh (may be NULL), then renders everything as Prometheus text (exposition
 * format 0.0.4). The caller frees @ret_text. 0 or -ENOMEM.
 */
int metrics_render(struct metrics *metrics, void (*refresh)(void *user, struct metrics *metrics),
                   void *user, char **ret_text, size_t *ret_length);
