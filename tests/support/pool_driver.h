// SPDX-License-Identifier: Apache-2.0
/*
 * Drives a pool as a test wants it: requests that are waited for, or left in flight. Checks
 * in passing that no callback comes from inside a call.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "storage/pool.h"

#define POOL_DRIVER_DEADLINE_MS 20000u

struct pool_driver_request {
        uv_loop_t *loop;
        union {
                struct pool_put put;
                struct pool_get get;
                struct pool_remove remove;
                struct pool_list list;
        };
        struct pool_buffer buffer;
        bool is_inside; /* the call that submits it */
        bool is_done;
        int result;
        uint64_t n_bytes;
        /* list */
        char names[32][POOL_NAME_MAX];
        uint64_t sizes[32];
        uint32_t n_names;
        bool more;
};

/* In flight afterwards. @deadline_ms 0: the driver's. */
void pool_driver_submit_put(uv_loop_t *loop, struct pool *pool, struct pool_driver_request *request,
                            const char *name, const void *bytes, uint64_t length, uint32_t flags,
                            uint32_t deadline_ms);
void pool_driver_submit_get(uv_loop_t *loop, struct pool *pool, struct pool_driver_request *request,
                            const char *name, uint64_t offset, void *bytes, uint64_t length,
                            uint32_t deadline_ms);
void pool_driver_submit_remove(uv_loop_t *loop, struct pool *pool,
                               struct pool_driver_request *request, const char *name,
                               uint32_t deadline_ms);
void pool_driver_submit_list(uv_loop_t *loop, struct pool *pool,
                             struct pool_driver_request *request, const char *prefix,
                             const char *after, uint32_t max, uint32_t deadline_ms);
int pool_driver_wait(struct pool_driver_request *request);

/* The result. */
int pool_driver_put(uv_loop_t *loop, struct pool *pool, const char *name, const void *bytes,
                    uint64_t length, uint32_t flags);
int pool_driver_get(uv_loop_t *loop, struct pool *pool, const char *name, uint64_t offset,
                    void *bytes, uint64_t length, uint64_t *ret_n_bytes);
int pool_driver_remove(uv_loop_t *loop, struct pool *pool, const char *name);
/* At most 32 names. */
int pool_driver_list(uv_loop_t *loop, struct pool *pool, struct pool_driver_request *ret_request,
                     const char *prefix, const char *after, uint32_t max);

void pool_driver_close(uv_loop_t *loop, struct pool *pool);
