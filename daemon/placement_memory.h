// SPDX-License-Identifier: Apache-2.0
/*
 * What placement remembers of boundaries that are gone from the index: how many children
 * they were seen with, and which list of states their state was evicted from. That a
 * prompt branched here before, or that a state went too early, shows only when it comes
 * back, long after its bytes have left.
 *
 * Only boundaries of layouts with state groups are remembered, by a 64-bit fingerprint
 * (a clash costs a bad guess, nothing else), oldest forgotten first. The memory is bounded
 * by the caller and by the size it was made with; untouched, it takes no memory.
 *
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/index_record.h"
#include "daemon/record_pool.h"

/* What is to be known again when the boundary returns; part of its node meanwhile. */
struct placement_past {
        uint32_t children_seen;
        uint32_t evicted_at[INDEX_N_TIERS];  /* the tier's count of state evictions then */
        uint8_t evicted_from[INDEX_N_TIERS]; /* enum placement_list, or 0: not, or settled */
        bool is_counted;                     /* among its parent's children_seen */
};

struct placement_memory {
        struct record_pool pool;
        uint32_t *heads;
        uint64_t n_heads;
        uint32_t newest, oldest;
};

/* 0, -ENOMEM or -EINVAL. */
int placement_memory_init(struct placement_memory *memory, uint64_t n_max);
void placement_memory_deinit(struct placement_memory *memory);

/* Remembers @past, as the newest; there must be room (placement_memory_n() < n_max). */
void placement_memory_add(struct placement_memory *memory, uint64_t fingerprint,
                          const struct placement_past *past);

/* Takes a boundary out. False: it is not remembered, *@ret_past is untouched. */
bool placement_memory_take(struct placement_memory *memory, uint64_t fingerprint,
                           struct placement_past *ret_past);

/* NULL when it is not remembered; valid until the next change. */
const struct placement_past *placement_memory_find(const struct placement_memory *memory,
                                                   uint64_t fingerprint);

/* Forgets the oldest and returns its fingerprint. There must be one. */
uint64_t placement_memory_forget(struct placement_memory *memory);

static inline uint32_t placement_memory_n(const struct placement_memory *memory)
{
        return memory->pool.n_used;
}
