// SPDX-License-Identifier: Apache-2.0
/*
 * Which strategy for runs of which length: by what was measured on the GPU (cuda/measure.h),
 * and by a guess until then. Written by the thread that measures, read by any.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/page_copy.h"
#include "cuda/kvtier-cuda.h"

#define CHOICE_ROWS 6u

struct choice {
        uint32_t allowed; /* bits 1 << enum kvt_cuda_strategy: asked for, and possible */
        uint64_t run_bytes[CHOICE_ROWS]; /* ascending */
        _Atomic double bytes_per_second[CHOICE_ROWS][2][KVT_CUDA_STRATEGIES];
        _Atomic uint32_t chosen[CHOICE_ROWS][2];
        _Atomic uint32_t unstaged[CHOICE_ROWS][2]; /* the same without STAGED */
        atomic_bool is_measured;
};

/* With guesses. @allowed always gets PLAIN where nothing else is left. */
void choice_init(struct choice *ret_choice, uint32_t allowed);

/* Chooses anew, row by row, by the rates that are there. */
void choice_decide(struct choice *choice);

/* What a list is made of, on average. */
struct choice_shape {
        uint64_t run_bytes;  /* lie together on both sides */
        uint64_t span_bytes; /* lie together in the arena */
};

struct choice_shape choice_shape_of(const struct kvt__page_list *list);

/*
 * The best without staging, for copies on a stream of the caller's; PLAIN stands in where nothing
 * else can be used. Without @is_registered a kernel cannot reach the arena.
 */
enum kvt_cuda_strategy choice_find_unstaged(const struct choice *choice, bool is_store,
                                            const struct choice_shape *shape, bool is_registered);

/* As before, with staging. */
enum kvt_cuda_strategy choice_find(const struct choice *choice, bool is_store,
                                   const struct choice_shape *shape, bool is_registered);
