// SPDX-License-Identifier: Apache-2.0
/*
 * What the nodes of an engine have between them, when its ranks span nodes: the intersection.
 *
 * Each node says which shards the engine has there, and of each boundary which of their cells are
 * there; what it has of other shards does not count. A cell that several nodes have to have (of a
 * group with fewer shards) is present when it is so on each. While some shard is on no node that
 * has answered, nothing is present at all.
 *
 * Pure but for the allocation; one owner.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout_span.h"
#include "proto/peer_message.h"

struct span_join {
        const struct layout *layout;       /* lent */
        struct layout_span known;          /* shards whose nodes have answered */
        uint64_t cells[LAYOUT_CELL_WORDS]; /* theirs */
        uint32_t n;
        uint32_t n_banks;
        struct peer_found_bits *bits; /* n * n_banks, banks of a boundary side by side */
};

/* For @n boundaries, of which nothing is known yet. 0 or -ENOMEM. */
int span_join_init(struct span_join *join, const struct layout *layout, uint32_t n);
void span_join_deinit(struct span_join *join);

uint32_t span_join_n_banks(const struct layout *layout);

/* One node's answer. */
void span_join_add(struct span_join *join, const struct layout_span *span,
                   const struct peer_found_bits *bits);

/* Is there an answer for each shard? */
bool span_join_is_whole(const struct span_join *join);

/* Of boundary @i, below n: its banks, or NULL for nothing at all. */
const struct peer_found_bits *span_join_at(const struct span_join *join, uint32_t i);
