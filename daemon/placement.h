// SPDX-License-Identifier: Apache-2.0
/*
 * Placement: the pure decisions of what stays, goes down and goes away.
 *
 * No I/O, no clock of its own, no knowledge of leases: the caller passes time and asks
 * back through predicates. So tests and tests/bench replay whole traces over the daemon's
 * own code.
 *
 * Order today: least recently used, suffix before prefix. One list of boundaries a tier.
 * On it are the boundaries with bytes in the tier and all their ancestors (one without
 * bytes only holds the place); each is newer than all its descendants. So the old end is
 * always a leaf, and the first that may go, seen from there, has no descendant that may.
 *
 * How the order holds: a touch moves a boundary and its ancestors to the new end, the root
 * last. A touch stops at an ancestor whose chain was touched in the same second: what lies
 * below goes right behind it. So the stores of a long chain, one boundary after another,
 * do not each walk up to the root. What enters goes right behind its parent.
 *
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/index.h"

/* What the NVMe tier receives (config key nvme.write). */
enum placement_write {
        PLACEMENT_WRITE_OFF,
        PLACEMENT_WRITE_COLD,  /* the cold end of the host tier, ahead of its eviction */
        PLACEMENT_WRITE_STORE, /* everything, at once */
};

/* One for each boundary, by its id. */
struct placement_link {
        uint32_t newer;
        uint32_t older;
        uint32_t children; /* on the same order */
};

/* The orders of one index; embedded in struct index. */
struct placement_order {
        struct placement_link *links[INDEX_N_TIERS];
        uint32_t newest[INDEX_N_TIERS];
        uint32_t oldest[INDEX_N_TIERS];
        uint64_t boundaries_max;
};

/* 0 or -ENOMEM. */
int placement_order_init(struct placement_order *order, uint64_t boundaries_max);
void placement_order_deinit(struct placement_order *order);

/*
 * For index.c only: first or last bytes of a boundary in a tier (its flag is set already),
 * and a parent that became known.
 */
void placement_enter(struct index *index, struct index_boundary *boundary, enum index_tier tier);
void placement_leave(struct index *index, struct index_boundary *boundary, enum index_tier tier);
void placement_adopt(struct index *index, struct index_boundary *boundary);

/* Asks the cache for the neighbours that a touch of @boundary will change. */
void placement_prefetch_touch(struct index *index, const struct index_boundary *boundary);

/* The boundary was used (stored or acquired): it and its ancestors become newest. */
void placement_touch(struct index *index, struct index_boundary *boundary, uint32_t now_s);

/*
 * The boundary whose bytes in @tier should go first, or NULL. @may_evict says whether a
 * boundary has anything there that may go now (leased bytes may not); at most @max_steps
 * boundaries are asked. A boundary with descendants in the tier is the victim only when
 * none of those may go.
 */
struct index_boundary *placement_victim(struct index *index, enum index_tier tier,
                                        bool (*may_evict)(void *user,
                                                          const struct index_boundary *boundary),
                                        void *user, unsigned max_steps);

/*
 * Walks the boundaries with bytes in a tier from its old end: the one newer than @after
 * (which must have bytes there itself), NULL begins; NULL is the end. For writing the cold
 * end down and for draining.
 */
struct index_boundary *placement_next(struct index *index, enum index_tier tier,
                                      const struct index_boundary *after);

/*
 * How many bytes at the old end of the host tier should have a copy below, given its
 * capacity: a tenth, under PLACEMENT_WRITE_COLD; everything under STORE; 0 under OFF.
 */
uint64_t placement_cold_bytes(enum placement_write policy, uint64_t capacity_bytes);
