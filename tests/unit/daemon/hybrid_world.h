// SPDX-License-Identifier: Apache-2.0
/*
 * An index with a layout of KV and states, HYBRID, and one without states, DENSE, whose
 * boundaries are named by numbers. Boundary 203 ends after 3 tokens: chains begin at hundreds.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "daemon/placement.h"

enum { KV, STATE, HYBRID = 1, DENSE = 2, LONG_AGO_S = 1000 };

extern const struct digest hybrid_id;

DEFINE_CLEANUP(struct index *, index_free)

struct where {
        uint16_t layout;
        uint32_t number, parent, tokens, now_s;
};

struct index *world_make(void);
/* As long as it is not known that HYBRID has states. */
struct index *world_make_unknown(void);

struct digest world_digest(uint32_t number);
uint32_t world_number(const struct index_boundary *boundary);
/* Of HYBRID. */
struct index_object *world_find(struct index *index, uint32_t number, uint16_t group);
enum placement_list world_list(struct index *index, uint32_t number, enum index_tier tier);

struct index_object *world_store_in(struct index *index, const struct where *where, uint16_t group,
                                    struct index_origin origin);
/* KV of boundaries first .. last of a chain that hangs on boundary first - 1. */
void world_store_kv(struct index *index, uint32_t first, uint32_t last, uint32_t now_s);
/* The state of a boundary, by a prefill that began at boundary @began. */
void world_store_state(struct index *index, uint32_t number, uint32_t began, uint32_t now_s);
void world_use(struct index *index, uint32_t number, uint32_t now_s);
void world_drop(struct index *index, struct index_object *object);

/* For placement_victim(): nothing is spared. */
bool world_anything(void *user, const struct placement_victim *victim);
struct placement_victim world_next_victim(struct index *index);
/* As the cache does it; expects that it is this part of this boundary's. */
void world_evict_expecting(struct index *index, uint32_t number, enum placement_part part);
