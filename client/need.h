// SPDX-License-Identifier: Apache-2.0
/*
 * What a boundary needs, as the layout says it: cells whose chunks are needed over the same
 * stretch before the boundary form a part.
 *
 *   attention, index, compressed   every chunk from the first on: one part together
 *   window                         the trailing ceil(window_tokens / chunk_tokens) chunks, one
 *                                  part for each such number
 *   state                          the boundary's own: a part of one trailing "chunk"
 *   scratch                        nothing
 *
 * A boundary is usable when each part has no gap within its stretch. Pure functions, any
 * thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout.h"
#include "proto/presence.h"

#define KVT__BANKS_MAX   (LAYOUT_CELLS_MAX / PRESENCE_CELLS_PER_BANK)
#define KVT__ALL_CHUNKS  UINT32_MAX
#define KVT__HISTORY_MAX 4096u /* chunks of windows whose bytes a match remembers */
#define KVT__NO_HISTORY  UINT32_MAX

struct kvt__part {
        uint32_t n_chunks; /* trailing ones that are needed, or KVT__ALL_CHUNKS */
        uint32_t n_cells;
        uint64_t bytes; /* of all cells, at one boundary */
        bool is_state;
        bool is_variable;    /* has objects whose length the layout does not tell */
        uint16_t first_cost; /* of needs.costs */
        uint16_t n_costs;
        uint32_t history; /* place of n_chunks words, or KVT__NO_HISTORY */
        uint64_t cells[KVT__BANKS_MAX];
};

/* Cells of one part and bank whose objects have the same length. */
struct kvt__cost {
        uint64_t cells;
        uint64_t bytes; /* of one object */
        uint32_t bank;
};

struct kvt__group_need {
        int16_t first_cell; /* -1: the group is never stored */
        uint16_t n_shards;
        uint32_t part;
};

struct kvt__needs {
        uint32_t chunk_tokens;
        uint32_t n_cells;
        uint32_t n_banks;
        uint32_t n_parts;
        uint16_t n_groups;
        uint16_t most_shards; /* of any group */
        bool has_paged, has_state;
        uint64_t cells[KVT__BANKS_MAX]; /* of all parts */
        struct kvt__part parts[LAYOUT_GROUPS_MAX];
        struct kvt__group_need groups[LAYOUT_GROUPS_MAX];
        struct kvt__cost costs[LAYOUT_CELLS_MAX];
};

/* @layout is valid, with the chunk_tokens that hold. */
void kvt__needs_init(struct kvt__needs *ret_needs, const struct layout *layout);

/* The cell of (group, shard), or -1 when there is none. */
int kvt__needs_cell(const struct kvt__needs *needs, uint16_t group, uint16_t shard);

/* The first of the chunks that boundary @boundaries needs of @part, counted from 1. */
static inline uint32_t kvt__part_begin(const struct kvt__part *part, uint32_t boundaries)
{
        return part->n_chunks < boundaries ? boundaries - part->n_chunks + 1 : 1;
}
