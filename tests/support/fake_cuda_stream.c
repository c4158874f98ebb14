// SPDX-License-Identifier: Apache-2.0
/*
 * The fake driver's streams, events and copies. A stream is a thread that takes its
 * operations in order; the one that runs stays at the head of the queue until it is done.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/fake_cuda_state.h"

#define SECOND_NS     UINT64_C(1000000000)
#define SLOW_HOST_NS  UINT64_C(20000000)
#define QUEUED_WAIT_S 10

static struct fake_stream *defaults[FAKE_DEVICES_MAX];
static pthread_key_t own_stream_key;

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void *need(void *memory)
{
        if (!memory)
                fake_misuse("no memory");
        return memory;
}

static void unref_event(struct fake_event *event)
{
        if (event && !--event->refs)
                free(event);
}

/* ---- operations ---- */

struct fake_operation *fake_operation_new(enum fake_kind kind, size_t n_copies)
{
        struct fake_operation *operation =
                need(calloc(1, sizeof(*operation) + n_copies * sizeof(operation->copies[0])));

        operation->kind = kind;
        operation->n_copies = n_copies;
        return operation;
}

void fake_submit(struct fake_stream *stream, struct fake_operation *operation)
{
        if (stream->is_destroyed)
                fake_misuse("a stream is used that has been destroyed");
        STAILQ_INSERT_TAIL(&stream->operations, operation, link);
}

/* Lock held; not while the bytes are copied. */
static void run_copy(const struct fake_copy *copy)
{
        bool to_device, from_device, to_pageable, from_pageable;
        uint8_t *to = fake_side(copy->to, copy->bytes, &to_device, &to_pageable);
        uint8_t *from = fake_side(copy->from, copy->bytes, &from_device, &from_pageable);

        fake.figures.n_copies++;
        fake.figures.n_pageable += to_pageable || from_pageable;
        if (from_device && !to_device)
                fake.figures.to_host_bytes += copy->bytes;
        if (to_device && !from_device)
                fake.figures.to_device_bytes += copy->bytes;
        pthread_mutex_unlock(&fake.lock);
        memcpy(to, from, copy->bytes);
        pthread_mutex_lock(&fake.lock);
}

static void run_set(const struct fake_operation *operation)
{
        const struct fake_copy *area = &operation->copies[0];
        bool is_device, is_pageable;

        memset(fake_side(area->to, area->bytes, &is_device, &is_pageable), operation->value,
               area->bytes);
}

static void run_host(const struct fake_operation *operation)
{
        uint64_t began = now_ns();

        pthread_mutex_unlock(&fake.lock);
        fake_is_in_host_function = true;
        operation->function(operation->user);
        fake_is_in_host_function = false;
        pthread_mutex_lock(&fake.lock);
        fake.figures.n_slow_hosts += now_ns() - began >= SLOW_HOST_NS;
}

static void lose_one_more(void)
{
        if (!fake.lose_result || fake.lose_after--)
                return;
        for (int i = 0; i < fake.n_devices; i++)
                fake.primary[i].lost = fake.lose_result;
        fake.lose_result = 0;
}

static bool is_work(const struct fake_operation *operation)
{
        return operation->kind <= FAKE_KERNEL;
}

static void run(struct fake_stream *stream, struct fake_operation *operation)
{
        if (is_work(operation))
                lose_one_more();
        if (stream->context->lost)
                return;
        switch (operation->kind) {
        case FAKE_COPY:
                for (size_t i = 0; i < operation->n_copies && !stream->context->lost; i++)
                        run_copy(&operation->copies[i]);
                return;
        case FAKE_SET:
                run_set(operation);
                return;
        case FAKE_KERNEL:
                fake.figures.n_kernels++;
                if (!operation->launch->kernel->run(operation->launch))
                        stream->context->lost = FAKE_CUDA_ILLEGAL_ADDRESS;
                return;
        case FAKE_RECORD:
                if (operation->event->reached < operation->ticket)
                        operation->event->reached = operation->ticket;
                operation->event->reached_ns = now_ns();
                return;
        case FAKE_HOST:
                run_host(operation);
                return;
        case FAKE_WAIT:
                return;
        }
}

static bool is_ready(const struct fake_stream *stream, const struct fake_operation *operation)
{
        if (!operation || stream->context->lost)
                return operation != NULL;
        if (is_work(operation) && (fake.is_held || stream->is_held))
                return false;
        return operation->kind != FAKE_WAIT || operation->event->reached >= operation->ticket ||
               operation->event->context->lost;
}

static void end(struct fake_stream *stream, struct fake_operation *operation)
{
        STAILQ_REMOVE_HEAD(&stream->operations, link);
        unref_event(operation->event);
        free(operation->launch);
        free(operation);
        pthread_cond_broadcast(&fake.changed);
}

static void *work(void *user)
{
        struct fake_stream *stream = user;
        struct fake_operation *operation;

        fake_lock();
        for (;;) {
                operation = STAILQ_FIRST(&stream->operations);
                if (is_ready(stream, operation)) {
                        operation->is_running = true;
                        run(stream, operation);
                        end(stream, operation);
                } else if (!operation && stream->is_destroyed) {
                        break;
                } else {
                        pthread_cond_wait(&fake.changed, &fake.lock);
                }
        }
        LIST_REMOVE(stream, link);
        fake_unlock();
        free(stream);
        return NULL;
}

bool fake_cuda_wait_queued(unsigned n)
{
        uint64_t deadline = now_ns() + QUEUED_WAIT_S * SECOND_NS;
        struct fake_operation *operation;
        struct fake_stream *stream;
        unsigned n_queued;

        fake_lock();
        do {
                struct timespec next;

                n_queued = 0;
                LIST_FOREACH(stream, &fake.streams, link)
                        STAILQ_FOREACH(operation, &stream->operations, link)
                                n_queued += is_work(operation) && !operation->is_running;
                clock_gettime(CLOCK_REALTIME, &next);
                next.tv_sec++;
                if (n_queued < n)
                        pthread_cond_timedwait(&fake.changed, &fake.lock, &next);
        } while (n_queued < n && now_ns() < deadline);
        fake_unlock();
        return n_queued >= n;
}

/* ---- streams ---- */

static struct fake_stream *start(struct fake_context *context)
{
        struct fake_stream *stream = need(calloc(1, sizeof(*stream)));
        pthread_t thread;

        stream->context = context;
        STAILQ_INIT(&stream->operations);
        LIST_INSERT_HEAD(&fake.streams, stream, link);
        if (pthread_create(&thread, NULL, work, stream))
                fake_misuse("no thread");
        pthread_detach(thread);
        return stream;
}

/* Threads' own default streams end with the process. */
static void make_key(void)
{
        pthread_key_create(&own_stream_key, NULL);
}

struct fake_stream *fake_stream_of(void *handle)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        struct fake_context *context = fake_current();
        struct fake_stream *own;

        pthread_once(&once, make_key);
        if ((uintptr_t)handle > 2)
                return handle;
        if ((uintptr_t)handle < 2) {
                if (!defaults[context->device])
                        defaults[context->device] = start(context);
                return defaults[context->device];
        }
        own = pthread_getspecific(own_stream_key);
        if (!own) {
                own = start(context);
                pthread_setspecific(own_stream_key, own);
        }
        return own;
}

int fake_drain(struct fake_stream *stream)
{
        while (!STAILQ_EMPTY(&stream->operations))
                pthread_cond_wait(&fake.changed, &fake.lock);
        return stream->context->lost;
}

CU(cuStreamCreate, (void **ret_stream, unsigned flags))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_stream = start(fake_current());
        fake.figures.n_streams++;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuStreamCreateWithPriority, (void **ret_stream, unsigned flags, int priority))
{
        return cuStreamCreate(ret_stream, flags);
}

CU(cuStreamDestroy_v2, (void *handle))
{
        struct fake_stream *stream = handle;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        stream->is_destroyed = true;
        fake.figures.n_streams--;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuStreamQuery, (void *handle))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        return fake_leave(STAILQ_EMPTY(&fake_stream_of(handle)->operations) ? FAKE_CUDA_OK
                                                                            : FAKE_CUDA_NOT_READY);
}

CU(cuStreamSynchronize, (void *handle))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        return result ? result : fake_leave(fake_drain(fake_stream_of(handle)));
}

CU(cuStreamGetCtx, (void *handle, void **ret_context))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_context = fake_stream_of(handle)->context;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuLaunchHostFunc, (void *handle, void (*function)(void *), void *user))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_operation *operation;

        if (result)
                return result;
        operation = fake_operation_new(FAKE_HOST, 0);
        operation->function = function;
        operation->user = user;
        fake_submit(fake_stream_of(handle), operation);
        return fake_leave(FAKE_CUDA_OK);
}

/* ---- events ---- */

CU(cuEventCreate, (void **ret_event, unsigned flags))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_event *event;

        if (result)
                return result;
        event = need(calloc(1, sizeof(*event)));
        event->context = fake_current();
        event->refs = 1;
        fake.figures.n_events++;
        *ret_event = event;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuEventDestroy_v2, (void *handle))
{
        struct fake_event *event = handle;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        if (event->is_destroyed)
                fake_misuse("an event is destroyed twice");
        event->is_destroyed = true;
        fake.figures.n_events--;
        unref_event(event);
        return fake_leave(FAKE_CUDA_OK);
}

static int submit_event(struct fake_stream *stream, struct fake_event *event, enum fake_kind kind)
{
        struct fake_operation *operation = fake_operation_new(kind, 0);

        event->refs++;
        operation->event = event;
        operation->ticket = event->recorded;
        fake_submit(stream, operation);
        return FAKE_CUDA_OK;
}

CU(cuEventRecord, (void *handle, void *stream_handle))
{
        struct fake_event *event = handle;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        if (event->context != fake_stream_of(stream_handle)->context)
                return fake_leave(FAKE_CUDA_INVALID_HANDLE);
        event->recorded++;
        return fake_leave(submit_event(fake_stream_of(stream_handle), event, FAKE_RECORD));
}

CU(cuEventRecordWithFlags, (void *handle, void *stream_handle, unsigned flags))
{
        return cuEventRecord(handle, stream_handle);
}

CU(cuStreamWaitEvent, (void *stream_handle, void *handle, unsigned flags))
{
        struct fake_event *event = handle;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        if (event->is_destroyed)
                fake_misuse("an event is waited for that has been destroyed");
        return fake_leave(submit_event(fake_stream_of(stream_handle), event, FAKE_WAIT));
}

CU(cuEventQuery, (void *handle))
{
        struct fake_event *event = handle;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        if (event->context->lost)
                return fake_leave(event->context->lost);
        return fake_leave(event->reached < event->recorded ? FAKE_CUDA_NOT_READY : FAKE_CUDA_OK);
}

CU(cuEventSynchronize, (void *handle))
{
        struct fake_event *event = handle;
        int result = fake_enter(__func__, FAKE_CONTEXT);
        uint64_t ticket;

        if (result)
                return result;
        ticket = event->recorded;
        while (event->reached < ticket && !event->context->lost)
                pthread_cond_wait(&fake.changed, &fake.lock);
        return fake_leave(event->context->lost);
}

CU(cuEventElapsedTime_v2, (float *ret_ms, void *first, void *second))
{
        const struct fake_event *from = first, *to = second;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_ms = (float)((double)(int64_t)(to->reached_ns - from->reached_ns) / 1e6);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuEventElapsedTime, (float *ret_ms, void *first, void *second))
{
        return cuEventElapsedTime_v2(ret_ms, first, second);
}

/* ---- copies ---- */

static void submit_copy(struct fake_stream *stream, uint64_t to, uint64_t from, size_t bytes)
{
        struct fake_operation *operation = fake_operation_new(FAKE_COPY, 1);

        operation->copies[0] = (struct fake_copy){to, from, bytes};
        fake_submit(stream, operation);
}

static int copy_async(const char *name, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
        int result = fake_enter(name, FAKE_CONTEXT);

        if (result)
                return result;
        if (bytes)
                submit_copy(fake_stream_of(stream), to, from, bytes);
        return fake_leave(FAKE_CUDA_OK);
}

static int copy_now(const char *name, uint64_t to, uint64_t from, size_t bytes)
{
        int result = fake_enter(name, FAKE_CONTEXT);

        if (result)
                return result;
        if (bytes)
                submit_copy(fake_stream_of(NULL), to, from, bytes);
        return fake_leave(fake_drain(fake_stream_of(NULL)));
}

CU(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, void *stream))
{
        return copy_async(__func__, to, from, bytes, stream);
}

CU(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream))
{
        return copy_async(__func__, to, (uintptr_t)from, bytes, stream);
}

CU(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))
{
        return copy_async(__func__, (uintptr_t)to, from, bytes, stream);
}

CU(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream))
{
        return copy_async(__func__, to, from, bytes, stream);
}

CU(cuMemcpy, (uint64_t to, uint64_t from, size_t bytes))
{
        return copy_now(__func__, to, from, bytes);
}

CU(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes))
{
        return copy_now(__func__, to, (uintptr_t)from, bytes);
}

CU(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes))
{
        return copy_now(__func__, (uintptr_t)to, from, bytes);
}

CU(cuMemcpyDtoD_v2, (uint64_t to, uint64_t from, size_t bytes))
{
        return copy_now(__func__, to, from, bytes);
}

CU(cuMemsetD8Async, (uint64_t to, uint8_t value, size_t bytes, void *stream))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_operation *operation;

        if (result)
                return result;
        operation = fake_operation_new(FAKE_SET, 1);
        operation->copies[0] = (struct fake_copy){to, to, bytes};
        operation->value = value;
        fake_submit(fake_stream_of(stream), operation);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuMemsetD8_v2, (uint64_t to, uint8_t value, size_t bytes))
{
        int result = cuMemsetD8Async(to, value, bytes, NULL);

        return result ? result : cuStreamSynchronize(NULL);
}

/* Attributes are hints, but there has to be a first set of them, for the first copy. */
CU(cuMemcpyBatchAsync_v2, (const uint64_t *to, const uint64_t *from, const size_t *bytes, size_t n,
                           const void *hints, const size_t *first_copies, size_t n_hints,
                           void *stream))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_operation *operation;

        if (result)
                return result;
        if ((uintptr_t)stream <= 1 || !n || !n_hints || n_hints > n || !hints || first_copies[0])
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        operation = fake_operation_new(FAKE_COPY, n);
        for (size_t i = 0; i < n; i++) {
                if (!bytes[i])
                        fake_misuse("a batch has an empty copy");
                operation->copies[i] = (struct fake_copy){to[i], from[i], bytes[i]};
        }
        fake.figures.n_batches++;
        fake_submit(fake_stream_of(stream), operation);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuMemcpyBatchAsync, (const uint64_t *to, const uint64_t *from, const size_t *bytes, size_t n,
                        const void *hints, const size_t *first_copies, size_t n_hints,
                        size_t *ret_failed, void *stream))
{
        if (ret_failed)
                *ret_failed = SIZE_MAX;
        return cuMemcpyBatchAsync_v2(to, from, bytes, n, hints, first_copies, n_hints, stream);
}
