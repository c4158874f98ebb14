// SPDX-License-Identifier: Apache-2.0
/*
 * Pins: boundaries that are to stay, with all their ancestors, in whatever tier they are.
 *
 * A boundary counts what holds it: pins of its own and children that are held. So a pin
 * goes up only until something was held before, and the record of a held boundary stays
 * when its objects go (they may be replaced).
 *
 * Bytes are protected object by object and tier by tier (INDEX_PINNED_*): eviction asks
 * for the flag alone. All protected bytes of a tier together stay within its limit. A pin
 * that would need more is refused as a whole; what comes later to a boundary that is held
 * already (another shard, a promotion, a write-down) is protected while there is room, and
 * else an object like any other. The limit is hard either way.
 *
 * Pure bookkeeping, over arrays by boundary id that no one touches while nothing is
 * pinned. Who owns a pin is pin_set.h's business. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/index_record.h"

struct index;

enum {
        PIN_E_FULL = 1, /* the tier's share is used up */
};

struct pin_table {
        uint32_t *holds; /* by boundary id */
        uint64_t boundaries_max;
        uint32_t n_held; /* boundaries */
        uint64_t bytes[INDEX_N_TIERS];
        uint64_t bytes_max[INDEX_N_TIERS];
        uint64_t n_steps; /* boundaries and objects looked at so far: what pins have cost */
};

/* No limits yet: nothing can be protected. 0 or -ENOMEM. */
int pin_table_init(struct pin_table *pins, uint64_t boundaries_max);
void pin_table_deinit(struct pin_table *pins);

/* Room that an object counts for. */
uint64_t pin_space(uint32_t raw_bytes, enum index_tier tier);

bool pins_hold(const struct pin_table *pins, uint32_t boundary);

/* One hold more on the boundary: 0 or PIN_E_FULL, then nothing has changed. */
int pin_hold(struct index *index, struct index_boundary *boundary);
/* And one less; there must be one. index_unpin() frees what nothing needs then. */
void pin_let_go(struct index *index, struct index_boundary *boundary);

/* For index.c: an object came to a tier or left it, a boundary's parent became known. */
void pins_enter(struct index *index, struct index_object *object, enum index_tier tier);
void pins_leave(struct index *index, struct index_object *object, enum index_tier tier);
void pins_adopt(struct index *index, const struct index_boundary *boundary);
