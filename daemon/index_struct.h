// SPDX-License-Identifier: Apache-2.0
/*
 * What an index consists of: for index*.c only.
 */
#pragma once

#include <stdint.h>

#include "daemon/cover_table.h"
#include "daemon/index.h"
#include "daemon/layout_table.h"
#include "daemon/pin_table.h"
#include "daemon/placement.h"
#include "daemon/record_pool.h"

struct index {
        struct record_pool boundaries;
        struct record_pool objects;
        uint32_t *heads; /* boundaries by digest */
        uint64_t n_heads;
        uint64_t hash_seed;
        struct placement_order order;
        struct pin_table pins;
        uint8_t *notes; /* index_set_notes() */
        struct tier_place *remote_places; /* by object id; touched only with a remote tier */
        uint64_t n_foreign;               /* objects for which index_object_is_foreign() */
        uint32_t foreign_position;        /* where the search for one went on */
        struct cover_table covers;
        struct layout_table layouts;
        struct presence_table *table;
        uint64_t bytes_in[INDEX_N_TIERS];
        uint64_t objects_in[INDEX_N_TIERS];
};

/* An object has come to a tier or left it: the bits of all boundaries that it serves. */
void index_publish(struct index *index, struct index_object *object);
