// SPDX-License-Identifier: Apache-2.0
/*
 * A pool (storage/pool.h) in a folder: each object is a file, so that it outlives whoever
 * wrote it (a child that is killed) and several pools, in one process or in many, share it.
 *
 * A request is carried out when it is due (at once, on the next turn of the loop, unless a
 * delay is set) and completes then. Faults are switched by the functions below, on one pool
 * each, and act on what is submitted after them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "storage/pool.h"

enum fake_pool_kind { /* index of pool_usage.requests_total */
                      FAKE_POOL_PUT,
                      FAKE_POOL_GET,
                      FAKE_POOL_REMOVE,
                      FAKE_POOL_LIST,
                      FAKE_POOL_N_KINDS,
};

#define FAKE_POOL_ANY ((1u << FAKE_POOL_N_KINDS) - 1) /* bits 1 << kind */

/* @folder exists; its path is copied. */
int fake_pool_open(struct pool **ret_pool, uv_loop_t *loop, const char *folder);

/* ---- faults ---- */

/* Each request takes @ms; one whose deadline comes before ends then, and is never done. */
void fake_pool_delay(struct pool *pool, uint32_t ms);
/* Down: every request ends at its deadline, until it is switched off again. */
void fake_pool_stop(struct pool *pool, bool stopped);
/* The next @n requests of @kinds fail with @result, at once. */
void fake_pool_fail(struct pool *pool, uint32_t kinds, uint32_t n, int result);
/* The next @n requests of @kinds are carried out, and time out at once all the same. */
void fake_pool_lose_replies(struct pool *pool, uint32_t kinds, uint32_t n);
/* The next @n gets claim to have brought @extra bytes more than were asked for. */
void fake_pool_long_replies(struct pool *pool, uint32_t n, uint64_t extra);
/* Requests of @kinds wait until they are released (0: none does from now on). */
void fake_pool_hold(struct pool *pool, uint32_t kinds);
/* Of those that wait. */
uint32_t fake_pool_held(const struct pool *pool);
/* Called before a request is carried out; ends the process, for instance. NULL: nothing. */
void fake_pool_watch(struct pool *pool,
                     void (*on_request)(void *user, enum fake_pool_kind kind, const char *name),
                     void *user);

/* ---- what lies in the folder ---- */

bool fake_pool_has(const char *folder, const char *name);
/* Objects whose names begin with @prefix, and their bytes; @ret_bytes may be NULL. */
uint32_t fake_pool_count(const char *folder, const char *prefix, uint64_t *ret_bytes);
/* The name of the object number @n of these, in order; false: there are fewer. */
bool fake_pool_name(const char *folder, const char *prefix, uint32_t n,
                    char ret_name[POOL_NAME_MAX]);
/* Behind everybody's back. An object that is not there is a Check failure. */
void fake_pool_drop(const char *folder, const char *name);
void fake_pool_flip(const char *folder, const char *name, uint64_t offset);
/* Cuts it, or appends zeros. */
void fake_pool_resize(const char *folder, const char *name, uint64_t bytes);
/* Puts an object there as if somebody had written it: the bytes of another. */
void fake_pool_copy(const char *folder, const char *from, const char *name);
/* Every get of it fails from now on. */
void fake_pool_bar(const char *folder, const char *name);
uint64_t fake_pool_size(const char *folder, const char *name);
