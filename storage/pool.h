// SPDX-License-Identifier: Apache-2.0
/*
 * The pool contract: a store of named objects that several nodes share, as the remote tier
 * needs it. Ceph RADOS (pool_rados.h) and S3 (pool_s3.h) stand behind it; nobody above
 * knows which.
 *
 * Names are short, of [a-z0-9./-], and chosen by the remote tier (storage/bundle.h and
 * journal.h): "bundle/NODE/NUMBER", "journal/NODE/NUMBER", "node/NODE", "lease/NAME/EPOCH".
 * What stands before the first '/' is the kind. A backend may keep each kind where it suits
 * it, as long as list() finds it in order.
 *
 * Threads: every function is called on the loop thread and every callback runs there,
 * never from inside the call that submitted it. Functions do not block.
 *
 * Ownership: a request belongs to the pool from submit until its callback, with the memory
 * it points to; afterwards the pool never touches either, also when a late reply arrives.
 *
 * Time: each request has its own deadline, of at most POOL_DEADLINE_MAX_MS, and ends by then
 * with -ETIMEDOUT; the outcome of a put or remove that timed out is unknown. A pool that is out of
 * reach is never a failure of open(): requests fail instead, and succeed when it is back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define POOL_NAME_MAX        128u
#define POOL_OBJECT_MAX      (64u << 20) /* bytes of one object: an OSD takes 90 MiB at once */
#define POOL_BUFFERS_MAX     512u        /* of one put */
#define POOL_LIST_MAX        1000u       /* names of one list */
#define POOL_DEADLINE_MAX_MS 600000u

/*
 * Results of requests beside 0: -ENOENT (no such object), -ENODEV (no such pool or bucket: of
 * objects that says nothing), -EEXIST (POOL_EXCLUSIVE), -EACCES (credentials, or a clock that is
 * wrong), -ENOSPC (pool or quota full), -ETIMEDOUT, -EAGAIN (the pool asks to come back
 * later), -EINVAL (a request that no pool could serve), -EIO and other negative errno: the
 * backend's failure. A pool tries nothing again by itself.
 */

struct pool_buffer {
        void *bytes;
        uint64_t length;
};

enum pool_put_flags {
        POOL_EXCLUSIVE = 1u << 0, /* -EEXIST when the object is there already */
};

/* The object is there whole, under its name, for all nodes, or not at all. */
struct pool_put {
        const char *name;
        const struct pool_buffer *buffers;
        uint32_t n_buffers;
        uint32_t flags;
        uint32_t deadline_ms;
        void (*on_done)(struct pool_put *put, int result);
        void *user;
        void *pool_private[8];
};

/* Bytes [offset, offset + length) of an object into @bytes; at least one is asked for. */
struct pool_get {
        const char *name;
        uint64_t offset;
        uint64_t length;
        void *bytes;
        uint32_t deadline_ms;
        /* @n_bytes: how many came, fewer than asked for when the object ends before. */
        void (*on_done)(struct pool_get *get, int result, uint64_t n_bytes);
        void *user;
        void *pool_private[8];
};

/* 0 as well when there was none. */
struct pool_remove {
        const char *name;
        uint32_t deadline_ms;
        void (*on_done)(struct pool_remove *remove, int result);
        void *user;
        void *pool_private[8];
};

/* Names that begin with @prefix (up to a '/'), in order, those greater than @after alone. */
struct pool_list {
        const char *prefix;
        const char *after; /* NULL: from the first */
        uint32_t max;      /* names at most: 1 to POOL_LIST_MAX */
        uint32_t deadline_ms;
        /* For each; valid during the call. */
        void (*on_name)(struct pool_list *list, const char *name, uint64_t bytes);
        /* After them. @more: there may be more behind the last; then there was one at least. */
        void (*on_done)(struct pool_list *list, int result, bool more);
        void *user;
        void *pool_private[8];
};

struct pool;

struct pool_usage {
        uint64_t n_requests; /* in flight */
        uint64_t read_bytes_total;
        uint64_t written_bytes_total;
        uint64_t requests_total[4]; /* put, get, remove, list */
        uint64_t failures_total;    /* -ENOENT and -EEXIST are none */
};

struct pool_ops {
        const char *name; /* "rados", "s3" */

        /* Start a request. 0 or -ENOMEM; unless 0, on_done is not called. */
        int (*put)(struct pool *pool, struct pool_put *put);
        int (*get)(struct pool *pool, struct pool_get *get);
        int (*remove)(struct pool *pool, struct pool_remove *remove);
        int (*list)(struct pool *pool, struct pool_list *list);

        /*
         * Tells the other nodes that journals have grown: their on_hint is called, soon or
         * never. A backend that cannot tell leaves it NULL: the others poll.
         */
        void (*hint)(struct pool *pool);

        /* Text of the last failure, for people, without credentials; "" when there was none. */
        const char *(*last_failure)(const struct pool *pool);

        void (*usage)(const struct pool *pool, struct pool_usage *ret_usage);

        /*
         * Ends: requests in flight end first, at their deadlines at the latest. Frees the
         * pool in or before @on_closed.
         */
        void (*close)(struct pool *pool, void (*on_closed)(void *user), void *user);
};

/* Is it a name as above? */
bool pool_name_is_valid(const char *name);
/* What goes before all names: of [A-Za-z0-9._/-], at most POOL_NAME_MAX; "" is one too. */
bool pool_prefix_is_valid(const char *prefix);

/* Embedded first in each backend. */
struct pool {
        struct pool_ops ops;
        void (*on_hint)(void *user); /* of another node's hint(); set by the tier; may be NULL */
        void *on_hint_user;
};
