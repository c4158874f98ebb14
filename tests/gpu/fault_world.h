// SPDX-License-Identifier: Apache-2.0
/*
 * A daemon, and an engine on the fake driver's first GPU whose copies can go wrong. One world at
 * a time; the test's thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/gpu/gpu_engine.h"
#include "tests/support/daemon_fixture.h"

#define MIB   UINT64_C(0x100000)
#define SHAPE "Qwen3-0.6B"

extern struct daemon_fixture fixture;
extern struct gpu gpu;
extern struct gpu_engine engine;
extern struct kvt_object objects[ENGINE_N_MAX];
extern uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX];
extern unsigned n_objects;

/* @strategies 0: all. Without measuring. */
struct kvt_cuda_options world_options(uint32_t strategies);

/* The GPU, and an engine of the shape @name on it, with the daemon that is there. */
void world_open(const char *name, const struct kvt_cuda_options *options);
/* All of it, with objects 1 and 2 in their slots, and not stored; the second waits for the
   background registration. */
void world_begin_by(const struct daemon_options *daemon, enum kvt_cuda_strategy strategy);
void world_begin(enum kvt_cuda_strategy strategy);
/* Expects that nothing is left: as world_expect_clean(), and at the daemon. */
void world_end(void);
/* Everything that was taken from the driver has been given back. */
void world_expect_clean(void);

/* A call with objects[] between the events; its end, and with which status. */
uint64_t world_submit(bool is_store, void *after, void *done);
enum kvt_status world_finish(uint64_t id);

/* Leases objects[0] for the caller, who is to store it by this; and ends that, if it can be. */
struct kvt_cuda_copy world_reserve(void);
void world_abort(void);

/* Stores objects, named from @first on, and loads them again. */
void world_expect_round_trip(uint64_t first);

/* The pages, as the application's stream, which is held, will leave them; @after is recorded
   behind that. */
void world_write_behind(cu_event after, uint64_t first);
void world_destroy(cu_event event);
