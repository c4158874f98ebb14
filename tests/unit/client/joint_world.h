// SPDX-License-Identifier: Apache-2.0
/*
 * A layout and a presence table in plain memory, whose entries a test sets bit by bit, and a
 * joint match of it that is slow and obvious: it asks, for each boundary, each group, each
 * shard and each chunk that the group needs there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/joint.h"
#include "proto/layout.h"

#define WORLD_BOUNDARIES 700u
#define WORLD_USABLE     800u

struct world {
        struct layout layout;
        struct kvt__table table;
        void *memory;
        uint32_t n_boundaries;
        int first_cell[LAYOUT_GROUPS_MAX];
        uint64_t object_bytes[LAYOUT_CELLS_MAX];
        struct kvt_digest digests[WORLD_BOUNDARIES];
        /* entries of boundary b, bank k: [b - 1][k] */
        struct presence_entry *entries[WORLD_BOUNDARIES][KVT__BANKS_MAX];
};

/* Takes world->layout, of which chunk_tokens and groups are set, and empties the table. */
void world_init(struct world *world, uint32_t n_boundaries);
void world_deinit(struct world *world);

/* Boundaries count from 1. */
void world_put(struct world *world, uint32_t boundary, uint16_t group, uint16_t shard,
               bool resident);
void world_drop(struct world *world, uint32_t boundary, uint16_t group, uint16_t shard);
/* Everything of boundaries @first to @last. */
void world_put_all(struct world *world, uint32_t first, uint32_t last, bool resident);
void world_set_flags(struct world *world, uint32_t boundary, uint32_t flags);

/* The library's answer; @query gets digests and size. */
struct kvt_match world_match(const struct world *world, struct kvt_match_query *query);

/* The obvious answer to the same. */
struct kvt_match world_expect(const struct world *world, const struct kvt_match_query *query,
                              struct kvt_boundary *ret_usable);

/* That two answers agree in everything. */
void world_compare(const struct kvt_match *found, const struct kvt_boundary *usable,
                   const struct kvt_match *expected, const struct kvt_boundary *expected_usable);

/* Both answers, and that they agree. */
void world_check(const struct world *world, struct kvt_match_query query);
