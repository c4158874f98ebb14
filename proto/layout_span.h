// SPDX-License-Identifier: Apache-2.0
/*
 * A span: the shards of an engine that are on one node. They are numbered in the group with most
 * shards (M); of a group with n, shard s lies with s * n / M, so that each of a group of fewer
 * shards is on neighbours, and may be on several nodes.
 *
 * Pure functions, no allocation, any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout.h"

#define LAYOUT_SPAN_WORDS (LAYOUT_SHARDS_MAX / 64)
#define LAYOUT_CELL_WORDS (LAYOUT_CELLS_MAX / 64)

struct layout_span {
        uint16_t n_shards; /* M */
        uint64_t shards[LAYOUT_SPAN_WORDS];
};

/* Most shards of any group. */
uint16_t layout_most_shards(const struct layout *layout);

/* Which of a group's @n shards lies where shard @shard of the group with @most lies. */
static inline uint16_t layout_shard_of(uint16_t shard, uint16_t n, uint16_t most)
{
        return (uint16_t)((uint32_t)shard * n / most);
}

/* With @n 0: all. Shards that the layout has not are passed over. */
void layout_span_init(struct layout_span *ret_span, const struct layout *layout,
                      const uint16_t *shards, uint32_t n);

uint32_t layout_span_count(const struct layout_span *span);
bool layout_span_is_whole(const struct layout_span *span);
bool layout_spans_equal(const struct layout_span *a, const struct layout_span *b);

/* Is shard @shard of @group, which the layout has, on the node? */
bool layout_span_has(const struct layout_span *span, const struct layout *layout, uint16_t group,
                     uint16_t shard);

/* The node's cells, a bit each as in the presence table. */
void layout_span_cells(const struct layout_span *span, const struct layout *layout,
                       uint64_t ret_cells[LAYOUT_CELL_WORDS]);
