// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/pool_driver.h"

static void begin(uv_loop_t *loop, struct pool_driver_request *request)
{
        memset(request, 0, sizeof(*request));
        request->loop = loop;
        request->is_inside = true;
}

static void submitted(struct pool_driver_request *request, int r)
{
        ck_assert_int_eq(r, 0);
        request->is_inside = false;
}

static void end(struct pool_driver_request *request, int result)
{
        ck_assert_msg(!request->is_inside, "a callback came from inside the call");
        ck_assert_msg(!request->is_done, "a request ended twice");
        request->is_done = true;
        request->result = result;
        /* Timers run before the loop sleeps: what waits in it must wake all the same. */
        uv_stop(request->loop);
}

static uint32_t deadline(uint32_t deadline_ms)
{
        return deadline_ms ? deadline_ms : POOL_DRIVER_DEADLINE_MS;
}

static void on_put(struct pool_put *put, int result)
{
        end(put->user, result);
}

void pool_driver_submit_put(uv_loop_t *loop, struct pool *pool, struct pool_driver_request *request,
                            const char *name, const void *bytes, uint64_t length, uint32_t flags,
                            uint32_t deadline_ms)
{
        begin(loop, request);
        request->buffer = (struct pool_buffer){(void *)(uintptr_t)bytes, length};
        request->put = (struct pool_put){
                .name = name,
                .buffers = &request->buffer,
                .n_buffers = 1,
                .flags = flags,
                .deadline_ms = deadline(deadline_ms),
                .on_done = on_put,
                .user = request,
        };
        submitted(request, pool->ops.put(pool, &request->put));
}

static void on_get(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct pool_driver_request *request = get->user;

        request->n_bytes = n_bytes;
        end(request, result);
}

void pool_driver_submit_get(uv_loop_t *loop, struct pool *pool, struct pool_driver_request *request,
                            const char *name, uint64_t offset, void *bytes, uint64_t length,
                            uint32_t deadline_ms)
{
        begin(loop, request);
        request->get = (struct pool_get){
                .name = name,
                .offset = offset,
                .length = length,
                .bytes = bytes,
                .deadline_ms = deadline(deadline_ms),
                .on_done = on_get,
                .user = request,
        };
        submitted(request, pool->ops.get(pool, &request->get));
}

static void on_remove(struct pool_remove *removal, int result)
{
        end(removal->user, result);
}

void pool_driver_submit_remove(uv_loop_t *loop, struct pool *pool,
                               struct pool_driver_request *request, const char *name,
                               uint32_t deadline_ms)
{
        begin(loop, request);
        request->remove = (struct pool_remove){
                .name = name,
                .deadline_ms = deadline(deadline_ms),
                .on_done = on_remove,
                .user = request,
        };
        submitted(request, pool->ops.remove(pool, &request->remove));
}

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        struct pool_driver_request *request = list->user;

        ck_assert_msg(!request->is_inside, "a callback came from inside the call");
        ck_assert_uint_lt(request->n_names, list->max);
        ck_assert_uint_lt(request->n_names, 32);
        snprintf(request->names[request->n_names], POOL_NAME_MAX, "%s", name);
        request->sizes[request->n_names++] = bytes;
}

static void on_list(struct pool_list *list, int result, bool more)
{
        struct pool_driver_request *request = list->user;

        request->more = more;
        end(request, result);
}

void pool_driver_submit_list(uv_loop_t *loop, struct pool *pool,
                             struct pool_driver_request *request, const char *prefix,
                             const char *after, uint32_t max, uint32_t deadline_ms)
{
        begin(loop, request);
        request->list = (struct pool_list){
                .prefix = prefix,
                .after = after,
                .max = max,
                .deadline_ms = deadline(deadline_ms),
                .on_name = on_name,
                .on_done = on_list,
                .user = request,
        };
        submitted(request, pool->ops.list(pool, &request->list));
}

int pool_driver_wait(struct pool_driver_request *request)
{
        while (!request->is_done)
                uv_run(request->loop, UV_RUN_ONCE);
        return request->result;
}

int pool_driver_put(uv_loop_t *loop, struct pool *pool, const char *name, const void *bytes,
                    uint64_t length, uint32_t flags)
{
        struct pool_driver_request request;

        pool_driver_submit_put(loop, pool, &request, name, bytes, length, flags, 0);
        return pool_driver_wait(&request);
}

int pool_driver_get(uv_loop_t *loop, struct pool *pool, const char *name, uint64_t offset,
                    void *bytes, uint64_t length, uint64_t *ret_n_bytes)
{
        struct pool_driver_request request;
        int r;

        pool_driver_submit_get(loop, pool, &request, name, offset, bytes, length, 0);
        r = pool_driver_wait(&request);
        *ret_n_bytes = request.n_bytes;
        return r;
}

int pool_driver_remove(uv_loop_t *loop, struct pool *pool, const char *name)
{
        struct pool_driver_request request;

        pool_driver_submit_remove(loop, pool, &request, name, 0);
        return pool_driver_wait(&request);
}

int pool_driver_list(uv_loop_t *loop, struct pool *pool, struct pool_driver_request *ret_request,
                     const char *prefix, const char *after, uint32_t max)
{
        pool_driver_submit_list(loop, pool, ret_request, prefix, after, max, 0);
        return pool_driver_wait(ret_request);
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

void pool_driver_close(uv_loop_t *loop, struct pool *pool)
{
        bool is_closed = false;

        pool->ops.close(pool, on_closed, &is_closed);
        while (!is_closed)
                uv_run(loop, UV_RUN_ONCE);
}
