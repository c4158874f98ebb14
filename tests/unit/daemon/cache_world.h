// SPDX-License-Identifier: Apache-2.0
/*
 * The cache and its transfers over a tier that fails, waits and lies on demand
 * (tests/support/fake_tier.h), with 16 MiB of host memory and 64 MiB below. Objects are
 * named by numbers and full of one value. One world at a time; the test's thread runs the
 * loop.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include <uv.h>

#include "daemon/cache.h"

#define OBJECT (UINT64_C(1) << 20)

extern uv_loop_t loop;
extern struct cache cache;
extern struct metrics metrics;
extern unsigned n_forgotten; /* answers of world_on_forgotten() */

/* Runs the loop until @condition holds; fails the test after ten seconds. */
#define wait_until(condition)                                                                      \
        do {                                                                                       \
                uint64_t end = uv_hrtime() + UINT64_C(10000000000);                                \
                while (!(condition)) {                                                             \
                        uv_run(&loop, UV_RUN_NOWAIT);                                              \
                        ck_assert_msg(uv_hrtime() < end, "never: " #condition);                    \
                        usleep(100);                                                               \
                }                                                                                  \
        } while (0)

/* Adds a pool of 32 MiB that takes what is worth it at once. */
void world_add_remote(void);

/* Fixture: everything that is stored goes down; at the end nothing is left waiting. */
void world_begin(void);
void world_end(void);

/* Some turns of the loop, in which nothing should happen. */
void world_spin(unsigned turns);

struct object_key world_key(uint32_t n);
struct index_new_object world_entry(uint32_t n, uint64_t bytes);

/* Object @n as the index knows it, its copy in host memory, is it in the tier? */
struct index_object *world_find(uint32_t n);
struct host_copy *world_copy(uint32_t n);
bool world_is_below(uint32_t n);
bool world_is_in_pool(uint32_t n);
uint64_t world_tier_objects(void);

void world_fill(struct host_copy *copy, uint8_t value);
uint8_t world_first_byte(const struct host_copy *copy);

/* For cache_publish() and its kin: there was no error. */
void world_on_forgotten(void *user, int result);

/* Stores object @n full of @value; returns what cache_publish() said. */
int world_put(uint32_t n, uint8_t value, bool replace, bool *ret_forgetting);
/* Object 1, in the tier alone. */
void world_put_below(uint8_t value);

/* Stores @n, of @bytes, with a parent (0: a root) at @tokens. */
int world_put_child(uint32_t n, uint32_t parent, uint32_t tokens, uint64_t bytes);

/* Brings object @n up; the copy is returned with one use held. */
struct host_copy *world_promote(uint32_t n);
