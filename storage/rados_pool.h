// SPDX-License-Identifier: Apache-2.0
/*
 * Inside of the pool on RADOS: what its files share.
 *
 *   pool_rados.c          options, requests in flight and their deadlines, open and close
 *   pool_rados_connect.c  the connection, made in a thread of its own as it blocks
 *   pool_rados_request.c  put, get and remove
 *   pool_rados_list.c     directories and list
 *   pool_rados_watch.c    hints
 *
 * librados completes on threads of its own: these only put the operation on the pool's
 * `done` list, under its lock, and wake the loop. Bytes of a put are laid out on uv's workers.
 * Everything else is the loop thread's.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <rados/librados.h>
#include <uv.h>

#include "base/error.h"
#include "storage/down_work.h"
#include "storage/pool.h"
#include "storage/pool_rados.h"

struct rados_pool;

/* One call of librados. It is librados' from start to on_done. */
struct rados_op {
        struct rados_pool *pool;
        rados_completion_t completion; /* NULL: not in flight */
        int result;
        void (*on_done)(struct rados_op *op);
        TAILQ_ENTRY(rados_op) done;
};
TAILQ_HEAD(rados_ops, rados_op);

/* 0: op->completion is there, to be handed to a rados_aio_ function. */
int rados_op_prepare(struct rados_op *op, struct rados_pool *pool,
                     void (*on_done)(struct rados_op *op));
/* @result: of that function. A failure ends the operation on a later turn of the loop. */
void rados_op_started(struct rados_op *op, int result);
/* Ends an operation that was never started. */
void rados_op_fail(struct rados_op *op, struct rados_pool *pool, int result,
                   void (*on_done)(struct rados_op *op));
/* Its on_done comes soon, with -ECANCELED unless it had ended. */
void rados_op_cancel(struct rados_op *op);

enum rados_kind { RADOS_PUT, RADOS_GET, RADOS_REMOVE, RADOS_LIST };

/* A name of a directory, and what was found under it. */
struct rados_found {
        struct rados_op op;
        struct rados_request *request;
        char name[POOL_NAME_MAX];
        uint64_t bytes;
        time_t changed;
};

struct rados_listing {
        rados_read_op_t read;
        rados_omap_iter_t names;
        unsigned char more;
        int read_result;
        struct rados_found *found;
        uint32_t n_found;
        char last[2 * POOL_NAME_MAX]; /* what stands last in the page, if it is a name or not */
        uint32_t n_waiting; /* of these, whose object was asked for and did not answer yet */
};

struct rados_request {
        struct rados_op op;
        TAILQ_ENTRY(rados_request) link;
        enum rados_kind kind;
        union {
                struct pool_put *put;
                struct pool_get *get;
                struct pool_remove *remove;
                struct pool_list *list;
        };
        const char *name;
        uint64_t deadline; /* in milliseconds of uv_now() */
        bool is_late;
        struct rados_op name_op; /* of a put */
        TAILQ_ENTRY(rados_request) to_lay_out;
        bool waits_to_be_laid_out;
        struct down_work work;
        rados_write_op_t laid_out; /* a put's operation; NULL: no memory */
        uint32_t n_waiting;        /* operations of a put */
        struct rados_listing listing;
};
TAILQ_HEAD(rados_requests, rados_request);

/* What a thread that connects brings home. */
struct rados_link {
        rados_t cluster; /* NULL: it failed */
        rados_ioctx_t io;
        bool is_quiet; /* at the end: no call is in flight */
        int result;
        char failure[384];
};

enum rados_state { RADOS_DOWN, RADOS_CONNECTING, RADOS_UP, RADOS_CLOSING };

enum rados_watch_state {
        RADOS_WATCH_OFF,
        RADOS_WATCH_STARTING,
        RADOS_WATCH_ON,
        RADOS_WATCH_ENDING,
};

struct rados_pool {
        struct pool pool;
        uv_loop_t *loop;
        uv_async_t async;
        uv_timer_t timer;       /* the earliest deadline */
        uv_timer_t watch_timer; /* when to watch again; during close, when to wait no longer */
        char *config_path, *user, *keyring_path, *pool_name, *prefix;

        enum rados_state state;
        struct rados_link link;
        pthread_t thread; /* connects, or ends the connection; one at a time */
        bool has_thread;
        bool is_gone;      /* while we use it: the pool in RADOS was deleted */
        uint64_t retry_at; /* RADOS_DOWN: requests before then fail without a new attempt */
        struct rados_requests waiting; /* for the connection */
        struct rados_requests running;
        struct rados_requests to_lay_out; /* puts whose bytes wait for a worker */
        uint32_t n_laying_out;

        enum rados_watch_state watch_state;
        uint64_t watch_cookie;
        struct rados_op watch_op;
        struct rados_op hint_op;
        void (*on_watch_stopped)(struct rados_pool *pool); /* during close */
        bool hint_again;
        char *hint_reply;
        size_t hint_reply_bytes;

        pthread_mutex_t lock;
        struct rados_ops done; /* guarded, as what follows */
        bool thread_ended, was_hinted, watch_broke;

        struct pool_usage usage;
        char failure[512];
        bool is_closing;
        void (*on_closed)(void *user);
        void *on_closed_user;
        uint32_t n_handles;
};

/* pool_rados.c */
void rados_request_end(struct rados_request *request, int result);
void rados_pool_set_failure(struct rados_pool *pool, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
struct rados_pool *rados_pool_free(struct rados_pool *pool);

/* pool_rados_connect.c: a thread that fills pool->link, or that ends it. 0 or negative. */
int rados_connect_start(struct rados_pool *pool);
int rados_disconnect_start(struct rados_pool *pool);
void rados_thread_ended(struct rados_pool *pool); /* on that thread, at its end */

/* Its result; 0 when all that it missed was never put. */
int rados_absent(const struct rados_op *op);

/* pool_rados_request.c, pool_rados_list.c */
void rados_request_start(struct rados_request *request);
/* It is late: what waits for a worker waits no longer. */
void rados_request_cancel(struct rados_request *request);
void rados_list_start(struct rados_request *request);
void rados_list_cancel(struct rados_request *request);
void rados_list_deinit(struct rados_request *request);
/* Name of the object that lists the names of the same kind as @name. */
void rados_directory(char ret_directory[POOL_NAME_MAX + 8], const char *name);

/* pool_rados_watch.c */
void rados_watch_start(struct rados_pool *pool);
/* What librados' threads said since: loop thread. */
void rados_watch_step(struct rados_pool *pool, bool was_hinted, bool watch_broke);
void rados_watch_stop(struct rados_pool *pool, void (*on_stopped)(struct rados_pool *pool));
void rados_hint(struct pool *pool);
