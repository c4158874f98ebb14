// SPDX-License-Identifier: Apache-2.0
/*
 * Hints: every node watches one object and notifies its watchers. librados watches again by
 * itself when an OSD fails; when it gives up, or a notice may have been missed, it says so:
 * then the watch ends, begins anew, and the tier is told to look.
 */
#include "storage/rados_pool.h"

#define HINT_OBJECT    "_hint"
#define NOTIFY_MS      2000u /* how long a notify waits for watchers */
#define WATCH_SECONDS  30u   /* the cluster forgets a watcher that is gone this long */
#define WATCH_AGAIN_MS 1000u
#define STOP_MS        1000u

static void tell(struct rados_pool *pool)
{
        if (pool->pool.on_hint && !pool->is_closing)
                pool->pool.on_hint(pool->pool.on_hint_user);
}

/* ---- librados' threads ---- */

static void on_notify(void *user, uint64_t notify_id, uint64_t cookie, uint64_t notifier_id,
                      void *data, size_t length)
{
        struct rados_pool *pool = user;

        rados_notify_ack(pool->link.io, HINT_OBJECT, notify_id, cookie, NULL, 0);
        if (notifier_id == rados_get_instance_id(pool->link.cluster))
                return;
        pthread_mutex_lock(&pool->lock);
        pool->was_hinted = true;
        uv_async_send(&pool->async);
        pthread_mutex_unlock(&pool->lock);
}

static void on_watch_broke(void *user, uint64_t cookie, int error)
{
        struct rados_pool *pool = user;

        pthread_mutex_lock(&pool->lock);
        pool->watch_broke = true;
        uv_async_send(&pool->async);
        pthread_mutex_unlock(&pool->lock);
}

/* ---- the loop thread ---- */

static void on_again(uv_timer_t *timer)
{
        struct rados_pool *pool = timer->data;

        if (!pool->is_closing && pool->state == RADOS_UP)
                rados_watch_start(pool);
}

static void stop_when_quiet(struct rados_pool *pool);
static void on_stop(struct rados_op *op);
static int end_watch(struct rados_pool *pool, void (*on_done)(struct rados_op *op));

static void watch_later(struct rados_pool *pool)
{
        pool->watch_state = RADOS_WATCH_OFF;
        if (pool->is_closing)
                stop_when_quiet(pool);
        else
                uv_timer_start(&pool->watch_timer, on_again, WATCH_AGAIN_MS, 0);
}

static void on_watching(struct rados_op *op)
{
        struct rados_pool *pool = op->pool;

        if (op->result < 0) {
                watch_later(pool);
                return;
        }
        pool->watch_state = RADOS_WATCH_ON;
        if (pool->is_closing && end_watch(pool, on_stop) < 0)
                watch_later(pool);
        tell(pool); /* of what came before */
}

static void on_object_made(struct rados_op *op)
{
        struct rados_pool *pool = op->pool;

        if (op->result < 0 || pool->is_closing || rados_op_prepare(op, pool, on_watching) < 0) {
                watch_later(pool);
                return;
        }
        rados_op_started(op, rados_aio_watch2(pool->link.io, HINT_OBJECT, op->completion,
                                              &pool->watch_cookie, on_notify, on_watch_broke,
                                              WATCH_SECONDS, pool));
}

void rados_watch_start(struct rados_pool *pool)
{
        struct rados_op *op = &pool->watch_op;
        rados_write_op_t write;

        if (pool->watch_state != RADOS_WATCH_OFF)
                return;
        write = rados_create_write_op();
        if (!write || rados_op_prepare(op, pool, on_object_made) < 0) {
                watch_later(pool);
        } else {
                pool->watch_state = RADOS_WATCH_STARTING;
                rados_write_op_create(write, LIBRADOS_CREATE_IDEMPOTENT, NULL);
                rados_op_started(op, rados_aio_write_op_operate(write, pool->link.io,
                                                                op->completion, HINT_OBJECT, NULL,
                                                                LIBRADOS_OPERATION_FULL_TRY));
        }
        if (write)
                rados_release_write_op(write);
}

static void on_unwatched(struct rados_op *op)
{
        watch_later(op->pool);
}

static int end_watch(struct rados_pool *pool, void (*on_done)(struct rados_op *op))
{
        int r = rados_op_prepare(&pool->watch_op, pool, on_done);

        if (r < 0)
                return r;
        pool->watch_state = RADOS_WATCH_ENDING;
        rados_op_started(&pool->watch_op, rados_aio_unwatch(pool->link.io, pool->watch_cookie,
                                                            pool->watch_op.completion));
        return 0;
}

void rados_watch_step(struct rados_pool *pool, bool was_hinted, bool watch_broke)
{
        if (pool->is_closing)
                return;
        if (watch_broke && pool->watch_state == RADOS_WATCH_ON && end_watch(pool, on_unwatched) < 0)
                watch_later(pool);
        if (was_hinted || watch_broke)
                tell(pool);
}

static void on_notified(struct rados_op *op)
{
        struct rados_pool *pool = op->pool;
        bool again = pool->hint_again;

        rados_buffer_free(pool->hint_reply);
        pool->hint_reply = NULL;
        pool->hint_again = false;
        if (pool->is_closing)
                stop_when_quiet(pool);
        else if (again)
                rados_hint(&pool->pool);
}

void rados_hint(struct pool *pool)
{
        struct rados_pool *self = (struct rados_pool *)pool;
        struct rados_op *op = &self->hint_op;

        if (self->state != RADOS_UP)
                return;
        /* One at a time; what is hinted meanwhile is one hint more. */
        if (op->completion) {
                self->hint_again = true;
                return;
        }
        if (rados_op_prepare(op, self, on_notified) < 0)
                return;
        rados_op_started(op,
                         rados_aio_notify(self->link.io, HINT_OBJECT, op->completion, NULL, 0,
                                          NOTIFY_MS, &self->hint_reply, &self->hint_reply_bytes));
}

/* ---- close ---- */

static void stop_now(struct rados_pool *pool)
{
        void (*on_stopped)(struct rados_pool * pool) = pool->on_watch_stopped;

        uv_timer_stop(&pool->watch_timer);
        pool->on_watch_stopped = NULL;
        if (on_stopped)
                on_stopped(pool);
}

/* librados uses the io context of a notify until it has ended. */
static void stop_when_quiet(struct rados_pool *pool)
{
        if (!pool->watch_op.completion && !pool->hint_op.completion)
                stop_now(pool);
}

static void on_stop(struct rados_op *op)
{
        op->pool->watch_state = RADOS_WATCH_OFF;
        stop_when_quiet(op->pool);
}

static void on_stop_late(uv_timer_t *timer)
{
        stop_now(timer->data);
}

/*
 * Watchers that do not say goodbye make notifies of others wait. The connection may be gone
 * all the same: then the end of librados ends the watch for us.
 */
void rados_watch_stop(struct rados_pool *pool, void (*on_stopped)(struct rados_pool *pool))
{
        pool->on_watch_stopped = on_stopped;
        uv_timer_start(&pool->watch_timer, on_stop_late, STOP_MS, 0);
        if (pool->watch_state != RADOS_WATCH_ON || end_watch(pool, on_stop) < 0)
                stop_when_quiet(pool);
}
