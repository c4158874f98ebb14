// SPDX-License-Identifier: Apache-2.0
/*
 * Put: the name into the directory and the object, side by side, as one after the other a
 * put would take a round trip more. The name is sent first. Remove: the object, then the
 * name. librados copies what is written when it is told to write, and reads into the
 * caller's memory until the operation has ended.
 *
 * A bundle is joined and copied on a worker: 16 MiB into fresh memory, twice, take longer
 * than the loop may stand still. Few at a time, so that loads find workers too.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "storage/rados_pool.h"

/* On a full pool librados waits for room unless it is told to try. */
#define WRITE_FLAGS LIBRADOS_OPERATION_FULL_TRY

#define LAY_OUT_BYTES (64u << 10) /* from here on by a worker */
#define LAY_OUT_MAX   2u          /* at a time */

/* Is the request over with what @op brought? Then it is ended. */
static bool ends(struct rados_request *request, int result)
{
        if (result >= 0 && request->is_late)
                result = -ECANCELED;
        if (result < 0)
                rados_request_end(request, result);
        return result < 0;
}

static void start_write(struct rados_op *op, rados_write_op_t write, const char *object,
                        void (*on_done)(struct rados_op *op))
{
        struct rados_pool *pool = op->pool;
        int r = write ? rados_op_prepare(op, pool, on_done) : -ENOMEM;

        if (r < 0)
                rados_op_fail(op, pool, r, on_done);
        else
                rados_op_started(op,
                                 rados_aio_write_op_operate(write, pool->link.io, op->completion,
                                                            object, NULL, WRITE_FLAGS));
        if (write)
                rados_release_write_op(write);
}

static void on_ended(struct rados_op *op)
{
        rados_request_end((struct rados_request *)op, op->result);
}

/* ---- put ---- */

static uint64_t length_of(const struct pool_put *put)
{
        uint64_t length = 0;

        for (uint32_t i = 0; i < put->n_buffers; i++)
                length += put->buffers[i].length;
        return length;
}

static char *join_buffers(const struct pool_put *put, uint64_t length)
{
        char *bytes = malloc(length);

        for (uint64_t i = 0, at = 0; bytes && i < put->n_buffers; i++) {
                memcpy(bytes + at, put->buffers[i].bytes, put->buffers[i].length);
                at += put->buffers[i].length;
        }
        return bytes;
}

/* The name's failure is the put's too: what is not listed would never be reclaimed. */
static void end_put(struct rados_request *request)
{
        int r = request->op.result < 0 ? request->op.result : request->name_op.result;

        if (--request->n_waiting)
                return;
        if (r >= 0)
                request->op.pool->usage.written_bytes_total += length_of(request->put);
        rados_request_end(request, r < 0 ? r : 0);
}

static void on_put(struct rados_op *op)
{
        end_put((struct rados_request *)op);
}

static void on_name_entered(struct rados_op *op)
{
        end_put((struct rados_request *)((char *)op - offsetof(struct rados_request, name_op)));
}

/* NULL: no memory. */
static rados_write_op_t lay_out(const struct pool_put *put)
{
        uint64_t length = length_of(put);
        /* Unaligned pieces would each cost the OSD a read, modify and write. */
        _cleanup_free_ char *joined =
                put->n_buffers > 1 && length ? join_buffers(put, length) : NULL;
        const char *bytes = joined ? joined : put->n_buffers ? put->buffers[0].bytes : "";
        rados_write_op_t write =
                put->n_buffers > 1 && length && !joined ? NULL : rados_create_write_op();

        if (write) {
                if (put->flags & POOL_EXCLUSIVE)
                        rados_write_op_create(write, LIBRADOS_CREATE_EXCLUSIVE, NULL);
                rados_write_op_write_full(write, bytes, length);
        }
        return write;
}

static void start_layouts(struct rados_pool *pool);

static struct rados_request *laid_out_by(struct down_work *work)
{
        return (struct rados_request *)((char *)work - offsetof(struct rados_request, work));
}

static void on_worker(struct down_work *work)
{
        struct rados_request *request = laid_out_by(work);

        request->laid_out = lay_out(request->put);
}

static void on_laid_out(struct down_work *work, int status)
{
        struct rados_request *request = laid_out_by(work);
        struct rados_pool *pool = request->op.pool;

        pool->n_laying_out--;
        if (status < 0 || request->is_late) {
                if (request->laid_out)
                        rados_release_write_op(request->laid_out);
                rados_op_fail(&request->op, pool, status < 0 ? status : -ECANCELED, on_put);
        } else {
                start_write(&request->op, request->laid_out, request->put->name, on_put);
        }
        start_layouts(pool);
}

static void start_layouts(struct rados_pool *pool)
{
        struct rados_request *request;

        while (pool->n_laying_out < LAY_OUT_MAX && (request = TAILQ_FIRST(&pool->to_lay_out))) {
                int r;

                TAILQ_REMOVE(&pool->to_lay_out, request, to_lay_out);
                request->waits_to_be_laid_out = false;
                r = down_work_queue(pool->loop, &request->work, on_worker, on_laid_out);
                if (r < 0)
                        rados_op_fail(&request->op, pool, r, on_put);
                else
                        pool->n_laying_out++;
        }
}

void rados_request_cancel(struct rados_request *request)
{
        struct rados_pool *pool = request->op.pool;

        if (!request->waits_to_be_laid_out)
                return;
        TAILQ_REMOVE(&pool->to_lay_out, request, to_lay_out);
        request->waits_to_be_laid_out = false;
        rados_op_fail(&request->op, pool, -ECANCELED, on_put);
}

static void write_object(struct rados_request *request)
{
        struct rados_pool *pool = request->op.pool;

        if (length_of(request->put) < LAY_OUT_BYTES) {
                start_write(&request->op, lay_out(request->put), request->put->name, on_put);
                return;
        }
        TAILQ_INSERT_TAIL(&pool->to_lay_out, request, to_lay_out);
        request->waits_to_be_laid_out = true;
        start_layouts(pool);
}

static void enter_name(struct rados_request *request)
{
        rados_write_op_t write = rados_create_write_op();
        char directory[POOL_NAME_MAX + 8];
        char const *key = request->put->name, *value = "";
        size_t length = 0;

        if (write)
                rados_write_op_omap_set(write, &key, &value, &length, 1);
        rados_directory(directory, request->put->name);
        start_write(&request->name_op, write, directory, on_name_entered);
}

static void start_put(struct rados_request *request)
{
        request->n_waiting = 2;
        request->name_op.pool = request->op.pool;
        enter_name(request);
        write_object(request);
}

/* ---- remove ---- */

static void on_name_left(struct rados_op *op)
{
        rados_request_end((struct rados_request *)op, rados_absent(op));
}

static void leave_directory(struct rados_request *request)
{
        rados_write_op_t write = rados_create_write_op();
        char directory[POOL_NAME_MAX + 8];
        const char *key = request->remove->name;

        if (write)
                rados_write_op_omap_rm_keys(write, &key, 1);
        rados_directory(directory, request->remove->name);
        start_write(&request->op, write, directory, on_name_left);
}

static void on_removed(struct rados_op *op)
{
        struct rados_request *request = (struct rados_request *)op;

        op->result = rados_absent(op);
        if (!ends(request, op->result))
                leave_directory(request);
}

static void start_remove(struct rados_request *request)
{
        rados_write_op_t write = rados_create_write_op();

        if (write)
                rados_write_op_remove(write);
        start_write(&request->op, write, request->remove->name, on_removed);
}

/* ---- get ---- */

static void on_got(struct rados_op *op)
{
        struct rados_request *request = (struct rados_request *)op;

        if (op->result > 0)
                op->pool->usage.read_bytes_total += (uint64_t)op->result;
        rados_request_end(request, op->result);
}

static void start_get(struct rados_request *request)
{
        const struct pool_get *get = request->get;
        struct rados_pool *pool = request->op.pool;
        int r = rados_op_prepare(&request->op, pool, on_got);

        if (r < 0)
                rados_op_fail(&request->op, pool, r, on_got);
        else
                rados_op_started(&request->op,
                                 rados_aio_read(pool->link.io, get->name, request->op.completion,
                                                get->bytes, get->length, get->offset));
}

static bool is_sound(const struct rados_request *request)
{
        if (!pool_name_is_valid(request->name))
                return false;
        if (request->kind == RADOS_GET)
                return request->get->length > 0 && request->get->length <= POOL_OBJECT_MAX;
        return request->kind != RADOS_PUT || (length_of(request->put) <= POOL_OBJECT_MAX &&
                                              request->put->n_buffers <= POOL_BUFFERS_MAX);
}

void rados_request_start(struct rados_request *request)
{
        if (!is_sound(request))
                rados_op_fail(&request->op, request->op.pool, -EINVAL, on_ended);
        else if (request->kind == RADOS_PUT)
                start_put(request);
        else if (request->kind == RADOS_GET)
                start_get(request);
        else
                start_remove(request);
}
