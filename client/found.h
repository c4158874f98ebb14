// SPDX-License-Identifier: Apache-2.0
/*
 * What FIND found, in a session whose engine has shards on other nodes too.
 *
 * The node's own presence table knows nothing of those. So match shows what all nodes of the engine
 * had between them when it was asked for, less what has gone from this node since: a boundary that
 * was not asked for is not there. What is not true any more (FORGET, another connection) is dropped
 * at once.
 *
 * The session's thread writes, under the session's lock; any thread reads, as it reads the
 * presence table.
 */
#pragma once

#include "proto/layout_span.h"
#include "proto/presence_table.h"
#include "proto/wire.h"

struct kvt__found {
        struct presence_table *table;     /* by the fingerprints of the node's own */
        uint64_t here[LAYOUT_CELL_WORDS]; /* cells of this node */
};

/* 0, or -ENOMEM. */
int kvt__found_new(struct kvt__found **ret_found, const struct layout *layout,
                   const struct layout_span *span);
/* NULL is fine. Returns NULL. */
struct kvt__found *kvt__found_free(struct kvt__found *found);

/* One boundary, in place of what was known of it; @seeds: of the node's own table. */
void kvt__found_set(struct kvt__found *found, const uint64_t *seeds, uint32_t n_banks,
                    const struct digest *boundary, const struct wire_found_bits *bits);
void kvt__found_forget(struct kvt__found *found);

/* Any thread: leaves of @block, which is a look-up in the node's own table, what was found. */
void kvt__found_narrow(const struct kvt__found *found, uint32_t bank, uint32_t n_banks, uint32_t n,
                       struct presence_block *block);
