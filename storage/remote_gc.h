// SPDX-License-Identifier: Apache-2.0
/*
 * Takes over what a node that never comes back has left in the pool: under a lease
 * (pool_lease.h) its bundles are removed, page by page, each page journalled as deleted by
 * the taker before it goes; then its journal; then the leases; last its node object, so
 * that whatever broke off is found and gone on with by the next.
 *
 * A node is dead when it has not rewritten its node object for longer than the caller says,
 * and than twice its own heartbeat. Where there is no sound heartbeat though bundles or a
 * journal are there, or one from the future, a new one is put: a node that lives rewrites
 * it, and the next gc after the limit finds that nobody did. The heartbeat is looked at
 * again before each page: a node that comes back keeps the rest.
 *
 * Of the dead node's journal the replaced records outlive it: its removal must not bring
 * back what was replaced for nodes that have not read that yet. They are told again by the
 * taker, as "no bytes hold": what is dropped too much is a miss.
 *
 * The pool alone is spoken to, on the loop thread; nothing blocks: segments are taken apart on
 * a worker.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/error.h"
#include "storage/journal.h"
#include "storage/pool.h"

#define REMOTE_GC_LEASE_S_DEFAULT     60u
#define REMOTE_GC_OLDER_S_DEFAULT     86400u
#define REMOTE_GC_DEADLINE_MS_DEFAULT 10000u

struct remote_gc;

enum {
        REMOTE_GC_E_ALIVE = 1,    /* its heartbeat is younger than the limit, or came back */
        REMOTE_GC_E_BUSY,         /* another node holds the lease, or has taken it over */
        REMOTE_GC_E_UNKNOWN,      /* the pool has nothing of this node */
        REMOTE_GC_E_NO_HEARTBEAT, /* a new one was put: try again after the limit */
        REMOTE_GC_E_NEWER,        /* what it left is of a version this program does not know */
        REMOTE_GC_E_OWN,          /* remote_gc_start() alone: it is this node */
};

struct remote_gc_result {
        int outcome;       /* 0: nothing is left; REMOTE_GC_E_X; negative errno: go on later */
        struct why why;    /* unless 0, for people */
        uint64_t bundles;  /* that this run removed */
        uint64_t bytes;    /* of them */
        uint64_t segments; /* of the journal, removed */
        uint64_t damaged;  /* of these, not to be read */
        uint64_t limit_s;  /* older heartbeats are of dead nodes */
        uint64_t age_s;    /* of its heartbeat; 0: there was none */
        char host[POOL_HOST_MAX]; /* "": not known */
};

struct remote_gc_options {
        uv_loop_t *loop;
        struct pool *pool; /* outlives the collection */
        uint8_t own[16];   /* this node, and its host's name */
        const char *host;
        uint8_t node[16];         /* the dead one */
        uint32_t older_than_s;    /* 0: the default */
        uint32_t lease_s;         /* 0: the default */
        uint32_t deadline_ms;     /* of each request; 0: the default */
        uint64_t (*now_ns)(void); /* wall clock; NULL: the system's */
        /* Puts records into this node's journal: as remote_append(). */
        int (*append)(void *user, const struct journal_record *records, uint32_t n_records,
                      void (*on_done)(void *user, int result), void *on_done_user);
        /* The last thing of a collection; @result is valid during the call. */
        void (*on_end)(void *user, const struct remote_gc_result *result);
        void *user;
};

/*
 * 0, REMOTE_GC_E_OWN or a negative errno; unless 0, on_end is not called. @options is
 * copied, but for what it points to.
 */
int remote_gc_start(struct remote_gc **ret_gc, const struct remote_gc_options *options);

/* Ends, with -ECANCELED, when the requests in flight have. */
void remote_gc_cancel(struct remote_gc *gc);
