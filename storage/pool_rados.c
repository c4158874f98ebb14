// SPDX-License-Identifier: Apache-2.0
/*
 * A request waits for the connection, then runs, then ends: `waiting`, `running`, freed. A
 * connection is made when the pool opens and, after a failure, when a request comes that
 * finds none; but not more often than once in RETRY_MS.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/rados_pool.h"

#define RETRY_MS 1000u

static struct rados_pool *pool_of(struct pool *pool)
{
        return (struct rados_pool *)pool;
}

void rados_pool_set_failure(struct rados_pool *pool, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(pool->failure, sizeof(pool->failure), format, arguments);
        va_end(arguments);
}

/* ---- operations ---- */

/* Under the lock to its end: the loop may free the pool as soon as it finds the operation. */
static void post(struct rados_op *op)
{
        struct rados_pool *pool = op->pool;

        pthread_mutex_lock(&pool->lock);
        TAILQ_INSERT_TAIL(&pool->done, op, done);
        uv_async_send(&pool->async);
        pthread_mutex_unlock(&pool->lock);
}

static void on_complete(rados_completion_t completion, void *argument)
{
        struct rados_op *op = argument;

        op->result = rados_aio_get_return_value(completion);
        post(op);
}

int rados_op_prepare(struct rados_op *op, struct rados_pool *pool,
                     void (*on_done)(struct rados_op *op))
{
        op->pool = pool;
        op->on_done = on_done;
        if (rados_aio_create_completion2(op, on_complete, &op->completion) < 0)
                return err_raise(-ENOMEM);
        return 0;
}

void rados_op_started(struct rados_op *op, int result)
{
        if (result >= 0)
                return;
        op->result = result;
        post(op);
}

void rados_op_fail(struct rados_op *op, struct rados_pool *pool, int result,
                   void (*on_done)(struct rados_op *op))
{
        op->pool = pool;
        op->on_done = on_done;
        op->result = result;
        post(op);
}

void rados_op_cancel(struct rados_op *op)
{
        if (op->completion)
                rados_aio_cancel(op->pool->link.io, op->completion);
}

static struct rados_op *take_done(struct rados_pool *pool)
{
        struct rados_op *op;

        pthread_mutex_lock(&pool->lock);
        op = TAILQ_FIRST(&pool->done);
        if (op)
                TAILQ_REMOVE(&pool->done, op, done);
        pthread_mutex_unlock(&pool->lock);
        return op;
}

static void release_completion(struct rados_op *op)
{
        if (op->completion)
                rados_aio_release(op->completion);
        op->completion = NULL;
}

/* ---- deadlines ---- */

static void arm(struct rados_pool *pool);

static void cancel_request(struct rados_request *request)
{
        request->is_late = true;
        if (request->kind == RADOS_LIST)
                rados_list_cancel(request);
        else
                rados_request_cancel(request);
        rados_op_cancel(&request->name_op);
        rados_op_cancel(&request->op);
}

static void on_deadline(uv_timer_t *timer)
{
        struct rados_pool *pool = timer->data;
        uint64_t now = uv_now(pool->loop);
        struct rados_request *request, *next;

        for (request = TAILQ_FIRST(&pool->waiting); request; request = next) {
                next = TAILQ_NEXT(request, link);
                if (request->deadline > now)
                        continue;
                TAILQ_REMOVE(&pool->waiting, request, link);
                TAILQ_INSERT_TAIL(&pool->running, request, link);
                request->is_late = true;
                rados_request_end(request, -ETIMEDOUT);
        }
        TAILQ_FOREACH(request, &pool->running, link)
                if (request->deadline <= now && !request->is_late)
                        cancel_request(request);
        arm(pool);
}

static void arm(struct rados_pool *pool)
{
        uint64_t now = uv_now(pool->loop), earliest = UINT64_MAX;
        struct rados_request *request;

        TAILQ_FOREACH(request, &pool->waiting, link)
                if (request->deadline < earliest)
                        earliest = request->deadline;
        TAILQ_FOREACH(request, &pool->running, link)
                if (!request->is_late && request->deadline < earliest)
                        earliest = request->deadline;
        if (earliest == UINT64_MAX)
                uv_timer_stop(&pool->timer);
        else
                uv_timer_start(&pool->timer, on_deadline, earliest > now ? earliest - now : 0, 0);
}

/* ---- requests ---- */

static const char *const kind_names[] = {"put", "get", "remove", "list"};

int rados_absent(const struct rados_op *op)
{
        return op->result == -ENOENT && !op->pool->is_gone ? 0 : op->result;
}

/*
 * librados' errno is ours, but for some that the pool's contract has another word for. A put
 * makes its object: it misses nothing but the pool, and from then on everything does.
 */
static int errno_of(const struct rados_request *request, int result)
{
        struct rados_pool *pool = request->op.pool;

        if (request->is_late && result == -ECANCELED)
                return -ETIMEDOUT;
        if (result >= 0)
                pool->is_gone = false;
        else if (result == -ENOENT && request->kind == RADOS_PUT)
                pool->is_gone = true;
        if (result == -ENOENT && (pool->is_gone || pool->state != RADOS_UP))
                return -ENODEV;
        if (result == -EPERM)
                return -EACCES;
        if (result == -EDQUOT)
                return -ENOSPC;
        return result;
}

/* The reason is not in the number. */
static const char *explain(int result)
{
        if (result == -EOPNOTSUPP)
                return " (a pool that is not replicated has no omap)";
        return result == -ENODEV ? " (the RADOS pool is gone)" : "";
}

static void note_failure(struct rados_pool *pool, const struct rados_request *request, int result)
{
        bool is_up = pool->state == RADOS_UP;

        if (is_up && (result == -EEXIST || result == -ENOENT))
                return;
        pool->usage.failures_total++;
        /* Without a connection the reason was told by the attempt to make one. */
        if (!is_up && *pool->failure)
                return;
        rados_pool_set_failure(pool, "%s of %s in RADOS pool %s: %s%s", kind_names[request->kind],
                               request->name, pool->pool_name, strerror(-result), explain(result));
}

static void call_back(struct rados_request *request, int result, uint64_t n_bytes)
{
        switch (request->kind) {
        case RADOS_PUT:
                request->put->on_done(request->put, result);
                break;
        case RADOS_GET:
                request->get->on_done(request->get, result, n_bytes);
                break;
        case RADOS_REMOVE:
                request->remove->on_done(request->remove, result);
                break;
        case RADOS_LIST:
                request->list->on_done(request->list, result, n_bytes != 0);
                break;
        }
}

static void close_when_idle(struct rados_pool *pool);

/* @result: negative, or what the request's kind counts: bytes, or for a list "more". */
void rados_request_end(struct rados_request *request, int result)
{
        struct rados_pool *pool = request->op.pool;

        result = errno_of(request, result);
        if (result < 0)
                note_failure(pool, request, result);
        TAILQ_REMOVE(&pool->running, request, link);
        pool->usage.n_requests--;
        call_back(request, result < 0 ? result : 0, result > 0 ? (uint64_t)result : 0);
        rados_list_deinit(request);
        free(request);
        if (pool->is_closing)
                close_when_idle(pool);
}

static void on_refused(struct rados_op *op)
{
        rados_request_end((struct rados_request *)op, op->result);
}

static void run_request(struct rados_request *request)
{
        TAILQ_INSERT_TAIL(&request->op.pool->running, request, link);
        if (request->kind == RADOS_LIST)
                rados_list_start(request);
        else
                rados_request_start(request);
}

static void refuse_request(struct rados_request *request, int result)
{
        TAILQ_INSERT_TAIL(&request->op.pool->running, request, link);
        rados_op_fail(&request->op, request->op.pool, result, on_refused);
}

static void connect_pool(struct rados_pool *pool)
{
        int r;

        pool->retry_at = uv_now(pool->loop) + RETRY_MS;
        r = rados_connect_start(pool);
        if (r < 0) {
                pool->link.result = r;
                rados_pool_set_failure(pool, "no thread to connect in: %s", strerror(-r));
                return;
        }
        pool->has_thread = true;
        pool->state = RADOS_CONNECTING;
}

static int submit(struct pool *pool, struct rados_request template)
{
        struct rados_pool *self = pool_of(pool);
        uint32_t deadline_ms = (uint32_t) template.deadline;
        struct rados_request *request = malloc(sizeof(*request));

        if (!request)
                return err_raise(-ENOMEM);
        if (deadline_ms > POOL_DEADLINE_MAX_MS)
                deadline_ms = POOL_DEADLINE_MAX_MS;
        *request = template;
        request->op.pool = self;
        request->deadline = uv_now(self->loop) + deadline_ms;
        self->usage.n_requests++;
        self->usage.requests_total[request->kind]++;
        if (self->state == RADOS_DOWN && uv_now(self->loop) >= self->retry_at)
                connect_pool(self);
        if (self->state == RADOS_UP)
                run_request(request);
        else if (self->state == RADOS_CONNECTING)
                TAILQ_INSERT_TAIL(&self->waiting, request, link);
        else
                refuse_request(request, self->link.result);
        arm(self);
        return 0;
}

static int submit_put(struct pool *pool, struct pool_put *put)
{
        return submit(pool, (struct rados_request){.kind = RADOS_PUT,
                                                   .put = put,
                                                   .name = put->name,
                                                   .deadline = put->deadline_ms});
}

static int submit_get(struct pool *pool, struct pool_get *get)
{
        return submit(pool, (struct rados_request){.kind = RADOS_GET,
                                                   .get = get,
                                                   .name = get->name,
                                                   .deadline = get->deadline_ms});
}

static int submit_remove(struct pool *pool, struct pool_remove *remove)
{
        return submit(pool, (struct rados_request){.kind = RADOS_REMOVE,
                                                   .remove = remove,
                                                   .name = remove->name,
                                                   .deadline = remove->deadline_ms});
}

static int submit_list(struct pool *pool, struct pool_list *list)
{
        return submit(pool, (struct rados_request){.kind = RADOS_LIST,
                                                   .list = list,
                                                   .name = list->prefix,
                                                   .deadline = list->deadline_ms});
}

static const char *last_failure(const struct pool *pool)
{
        return ((const struct rados_pool *)pool)->failure;
}

static void get_usage(const struct pool *pool, struct pool_usage *ret_usage)
{
        *ret_usage = ((const struct rados_pool *)pool)->usage;
}

/* ---- the loop's side of other threads ---- */

static void start_waiting(struct rados_pool *pool)
{
        struct rados_request *request;

        while ((request = TAILQ_FIRST(&pool->waiting))) {
                TAILQ_REMOVE(&pool->waiting, request, link);
                if (pool->state == RADOS_UP)
                        run_request(request);
                else
                        refuse_request(request, pool->link.result);
        }
}

static void on_connected(struct rados_pool *pool)
{
        pool->retry_at = uv_now(pool->loop) + RETRY_MS;
        if (pool->link.cluster) {
                pool->state = RADOS_UP;
                if (!pool->is_closing)
                        rados_watch_start(pool);
        } else {
                pool->state = RADOS_DOWN;
                rados_pool_set_failure(pool, "%s", pool->link.failure);
        }
        start_waiting(pool);
        if (pool->is_closing)
                close_when_idle(pool);
}

static void close_handles(struct rados_pool *pool);

static void on_thread_ended(struct rados_pool *pool)
{
        pthread_join(pool->thread, NULL);
        pool->has_thread = false;
        if (pool->state == RADOS_CLOSING)
                close_handles(pool);
        else
                on_connected(pool);
}

void rados_thread_ended(struct rados_pool *pool)
{
        pthread_mutex_lock(&pool->lock);
        pool->thread_ended = true;
        uv_async_send(&pool->async);
        pthread_mutex_unlock(&pool->lock);
}

static void on_async(uv_async_t *async)
{
        struct rados_pool *pool = async->data;
        bool thread_ended, was_hinted, watch_broke;
        struct rados_op *op;

        pthread_mutex_lock(&pool->lock);
        thread_ended = pool->thread_ended;
        was_hinted = pool->was_hinted;
        watch_broke = pool->watch_broke;
        pool->thread_ended = pool->was_hinted = pool->watch_broke = false;
        pthread_mutex_unlock(&pool->lock);
        while ((op = take_done(pool))) {
                release_completion(op);
                op->on_done(op);
        }
        rados_watch_step(pool, was_hinted, watch_broke);
        arm(pool);
        if (thread_ended)
                on_thread_ended(pool); /* the last thing: it may lead to the pool's end */
}

/* ---- open and close ---- */

struct rados_pool *rados_pool_free(struct rados_pool *pool)
{
        if (!pool)
                return NULL;
        /* Of calls that librados never answered: it is shut down by now. */
        release_completion(&pool->watch_op);
        release_completion(&pool->hint_op);
        rados_buffer_free(pool->hint_reply);
        pthread_mutex_destroy(&pool->lock);
        free(pool->config_path);
        free(pool->user);
        free(pool->keyring_path);
        free(pool->pool_name);
        free(pool->prefix);
        free(pool);
        return NULL;
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct rados_pool *pool = handle->data;
        void (*on_closed)(void *user) = pool->on_closed;
        void *user = pool->on_closed_user;

        if (--pool->n_handles)
                return;
        rados_pool_free(pool);
        if (on_closed)
                on_closed(user);
}

static void close_handles(struct rados_pool *pool)
{
        uv_close((uv_handle_t *)&pool->async, on_handle_closed);
        uv_close((uv_handle_t *)&pool->timer, on_handle_closed);
        uv_close((uv_handle_t *)&pool->watch_timer, on_handle_closed);
}

static void disconnect(struct rados_pool *pool)
{
        int r;

        pool->state = RADOS_CLOSING;
        pool->link.is_quiet = !pool->watch_op.completion && !pool->hint_op.completion;
        r = pool->link.cluster ? rados_disconnect_start(pool) : 0;
        pool->has_thread = pool->link.cluster && !r;
        /* Without a thread to end it in, the connection is left to the process' end. */
        if (!pool->has_thread)
                close_handles(pool);
}

static void close_when_idle(struct rados_pool *pool)
{
        if (!TAILQ_EMPTY(&pool->waiting) || !TAILQ_EMPTY(&pool->running) || pool->has_thread ||
            pool->state == RADOS_CLOSING)
                return;
        pool->state = RADOS_CLOSING;
        rados_watch_stop(pool, disconnect);
}

static void close_pool(struct pool *pool, void (*on_closed)(void *user), void *user)
{
        struct rados_pool *self = pool_of(pool);

        self->is_closing = true;
        self->on_closed = on_closed;
        self->on_closed_user = user;
        close_when_idle(self);
}

static int refuse(struct why *why, const char *what, const char *value, const char *right)
{
        why_set(why, "%s is \"%s\": %s", what, value, right);
        return err_raise(-EINVAL);
}

static int check_file(const char *what, const char *path, struct why *why)
{
        if (!path || access(path, R_OK) == 0)
                return 0;
        why_set(why, "%s %s: %s", what, path, strerror(errno));
        return err_raise(-errno);
}

int pool_rados_check(const struct pool_rados_options *options, struct why *why)
{
        const char *user = options->user ? options->user : "client.admin";
        int r;

        if (!options->pool || !*options->pool || strlen(options->pool) > 128)
                return refuse(why, "the RADOS pool's name", options->pool ? options->pool : "",
                              "it must be the name of a pool that exists");
        if (strncmp(user, "client.", 7) || !user[7] || strlen(user) > 128)
                return refuse(why, "the RADOS user", user, "it must begin with \"client.\"");
        if (!pool_prefix_is_valid(options->prefix ? options->prefix : ""))
                return refuse(why, "the pool's prefix", options->prefix,
                              "at most 128 of A-Z a-z 0-9 . _ / - are allowed, no / first");
        r = check_file("RADOS config file", options->config_path, why);
        return r ? r : check_file("RADOS keyring", options->keyring_path, why);
}

static int copy_options(struct rados_pool *pool, const struct pool_rados_options *options)
{
        pool->config_path = options->config_path ? strdup(options->config_path) : NULL;
        pool->keyring_path = options->keyring_path ? strdup(options->keyring_path) : NULL;
        pool->user = strdup(options->user ? options->user : "client.admin");
        pool->pool_name = strdup(options->pool);
        pool->prefix = strdup(options->prefix ? options->prefix : "");
        if (!pool->user || !pool->pool_name || !pool->prefix ||
            (options->config_path && !pool->config_path) ||
            (options->keyring_path && !pool->keyring_path))
                return err_raise(-ENOMEM);
        return 0;
}

static void init_pool(struct rados_pool *pool, uv_loop_t *loop)
{
        pool->pool.ops = (struct pool_ops){
                .name = "rados",
                .put = submit_put,
                .get = submit_get,
                .remove = submit_remove,
                .list = submit_list,
                .hint = rados_hint,
                .last_failure = last_failure,
                .usage = get_usage,
                .close = close_pool,
        };
        pool->loop = loop;
        TAILQ_INIT(&pool->waiting);
        TAILQ_INIT(&pool->running);
        TAILQ_INIT(&pool->to_lay_out);
        TAILQ_INIT(&pool->done);
        pthread_mutex_init(&pool->lock, NULL);
        pool->async.data = pool->timer.data = pool->watch_timer.data = pool;
        uv_timer_init(loop, &pool->timer);
        uv_timer_init(loop, &pool->watch_timer);
        pool->n_handles = 3;
}

int pool_rados_open(struct pool **ret_pool, uv_loop_t *loop,
                    const struct pool_rados_options *options, struct why *why)
{
        struct rados_pool *pool;
        int r = pool_rados_check(options, why);

        if (r < 0)
                return r;
        pool = calloc(1, sizeof(*pool));
        if (!pool)
                return err_raise(-ENOMEM);
        r = copy_options(pool, options);
        if (!r)
                r = uv_async_init(loop, &pool->async, on_async);
        if (r < 0) {
                why_set(why, "pool on RADOS: %s", strerror(-r));
                rados_pool_free(pool);
                return err_raise(r);
        }
        init_pool(pool, loop);
        connect_pool(pool);
        *ret_pool = &pool->pool;
        return 0;
}
