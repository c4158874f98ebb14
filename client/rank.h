// SPDX-License-Identifier: Apache-2.0
/*
 * Which rank of this node stores what. The shards of the node are dealt to its ranks in
 * order, neighbours together; a group of fewer shards than the most has each of them on
 * neighbouring ranks (proto/layout_span.h). What several ranks hold, each of them could store:
 * they take turns, one boundary after the other. Set at open; any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout.h"

struct kvt__rank {
        uint32_t rank;
        uint32_t n_ranks; /* at least 1 */
        uint16_t most_shards;
        uint16_t n_groups;
        uint16_t group_shards[LAYOUT_GROUPS_MAX]; /* 0: never stored */
};

void kvt__rank_init(struct kvt__rank *ret_rank, const struct layout *layout, uint32_t rank,
                    uint32_t n_ranks);
