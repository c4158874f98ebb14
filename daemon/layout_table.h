// SPDX-License-Identifier: Apache-2.0
/*
 * Numbers for layouts: a boundary names its (domain, layout id) in two bytes. Numbers
 * begin at 1, never change and are never reused: whoever holds one (objects, sessions,
 * reservations, grants, notes on drops) need not be asked. They last for 65,535 layouts in
 * a run of the daemon, which no engine comes near, but a client that makes layouts up may:
 * then layouts that are new are refused until a restart, and known ones go on. Each number
 * keeps the presence seeds of its banks, so that a fingerprint costs one hash.
 *
 * What a layout means is known once its encoding was seen: from an engine, or from the
 * NVMe tier, which keeps it over restarts. Encodings take at most
 * LAYOUT_TABLE_ENCODINGS_MAX bytes; above that, layouts without objects lose theirs, and
 * keep what placement and write-down need (is_known, state_groups, kv_tokens, the groups).
 *
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"
#include "proto/layout.h"
#include "proto/presence.h"

#define LAYOUT_TABLE_MAX           65535u
#define LAYOUT_TABLE_BANKS         (LAYOUT_CELLS_MAX / PRESENCE_CELLS_PER_BANK)
#define LAYOUT_TABLE_ENCODINGS_MAX (UINT64_C(64) << 20) /* bytes */

enum {
        LAYOUT_TABLE_E_FULL = 1,
};

struct layout_use;

struct layout_entry {
        struct digest id;
        uint32_t domain;
        uint32_t hash_next;
        uint64_t objects; /* kept by the index */
        uint64_t bytes;
        uint8_t *encoding; /* proto/layout.h, valid; NULL: unknown */
        uint32_t encoding_bytes;
        uint32_t state_groups; /* bit g: group g is a state; from the encoding */
        uint32_t kv_tokens;    /* KV belongs at each multiple; 0: not everywhere, or unknown */
        bool is_known;         /* the encoding was seen, so the two above and below hold */
        uint8_t group_kinds[LAYOUT_GROUPS_MAX];  /* enum layout_kind; 0: no such group */
        uint8_t number_bytes[LAYOUT_GROUPS_MAX]; /* encoding_choice_number_bytes() */
        uint32_t kept_bytes;   /* in the NVMe tier (daemon/layout_keeper.h), or 0 */
        bool is_kept_remotely; /* in the pool, by this run of the daemon */
        struct layout_use *use; /* daemon/layout_use.h; NULL: not used in this run */
        uint32_t n_banks;      /* of presence that objects have had; kept by the index */
        uint64_t seeds[LAYOUT_TABLE_BANKS];
};

_Static_assert(LAYOUT_GROUPS_MAX <= 32, "state_groups has a bit a group");

struct layout_table {
        struct layout_entry *entries;
        uint32_t n;
        uint32_t *heads;
        uint64_t hash_seed;
        uint64_t encodings_bytes;
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
/* The same of one that is known already; 0: it is not. */
uint16_t layout_table_find(const struct layout_table *table, uint32_t domain,
                           const struct digest *id);
/* @number must be in use. */
struct layout_entry *layout_table_at(const struct layout_table *table, uint16_t number);

/*
 * Takes a copy of the encoding of layout @number, whose id it must give; nothing happens
 * when it is there. 0, -EINVAL (not valid), -ENOMEM, or LAYOUT_TABLE_E_FULL: the layout
 * is known, but its encoding found no room.
 */
int layout_table_describe(struct layout_table *table, uint16_t number, const uint8_t *encoding,
                          size_t length);
