// SPDX-License-Identifier: Apache-2.0
/*
 * Offers: which copies in host memory are to go to the pool, and in which order.
 *
 * Only what is worth the trip: what was seen twice (stored, and stored or read again), what
 * is pinned, or what lies deep in a long prompt. A chunk is of no use without those before
 * it, so with a boundary its whole chain is offered, from the root down, and stands in the
 * queue together: the pool then keeps a prompt in few bundles.
 *
 * When: with PLACEMENT_WRITE_STORE as soon as it is worth it, with COLD ahead of its eviction
 * from host memory. An offer holds nothing: a copy that is evicted before its turn leaves the
 * queue, and is counted. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/index.h"
#include "daemon/placement.h"

struct cache;

struct offer_policy {
        enum placement_write write;
        bool all;            /* whether seen twice or not */
        uint32_t tokens_min; /* from this depth on, likewise; 0: no depth */
};

/* Is a boundary's part in the pool worth the trip? */
bool offer_is_worth_it(struct cache *cache, const struct index_boundary *boundary);

/* An object was stored, was used, has come up from below, or its boundary was pinned. */
void offer_stored(struct cache *cache, const struct index_object *object);
void offer_seen(struct cache *cache, const struct index_object *object);
void offer_arrived(struct cache *cache, const struct index_object *object);
void offer_pinned(struct cache *cache, struct index_boundary *boundary);

/* The daemon stops, and what is in host memory alone would be lost: all that is worth it. */
void offer_all(struct cache *cache);

/* Part of the cold end of host memory; returns what it takes of that. */
uint64_t offer_part(struct cache *cache, const struct placement_victim *part);
