// SPDX-License-Identifier: Apache-2.0
/*
 * Numbers for layouts: a boundary names its (domain, layout id) in two bytes. Numbers
 * begin at 1, never change and are never reused. Each keeps the presence seeds of its
 * banks, so that a fingerprint costs one hash.
 *
 * Loop thread only.
 */
#pragma once

#include <stdint.h>

#include "proto/key.h"
#include "proto/layout.h"
#include "proto/presence.h"

#define LAYOUT_TABLE_MAX   65535u
#define LAYOUT_TABLE_BANKS (LAYOUT_CELLS_MAX / PRESENCE_CELLS_PER_BANK)

enum {
        LAYOUT_TABLE_E_FULL = 1,
};

struct layout_entry {
        struct digest id;
        uint32_t domain;
        uint32_t hash_next;
        uint64_t objects; /* kept by the index */
        uint64_t bytes;
        uint64_t seeds[LAYOUT_TABLE_BANKS];
};

struct layout_table {
        struct layout_entry *entries;
        uint32_t n;
        uint32_t *heads;
        uint64_t hash_seed;
};

/* @hash_seed: unknown to clients. 0 or -ENOMEM. */
int layout_table_init(struct layout_table *table, uint64_t hash_seed);
void layout_table_deinit(struct layout_table *table);

/*
 * The number of a layout, entered when it is new; @presence_key is the presence table's
 * hash key. 0 or LAYOUT_TABLE_E_FULL.
 */
int layout_table_number(struct layout_table *table, uint32_t domain, const struct digest *id,
                        uint64_t presence_key, uint16_t *ret_number);
/* @number must be in use. */
struct layout_entry *layout_table_at(const struct layout_table *table, uint16_t number);
