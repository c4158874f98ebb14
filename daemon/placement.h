// SPDX-License-Identifier: Apache-2.0
/*
 * Placement: the pure decisions of what stays, goes down and goes away.
 *
 * No I/O, no clock of its own, no knowledge of leases: the caller passes time and asks
 * back through predicates. So tests and tests/bench replay whole traces over the daemon's
 * own code.
 *
 * Order today: least recently used, suffix before prefix. One list of boundaries a tier;
 * invariant: a boundary is newer than each of its children in the list, so that the old
 * end is always a leaf. It holds because a touch runs from a boundary up to its root
 * (root last, so newest), and a new child enters right behind its parent. To keep that
 * cheap, a child whose chain was touched in the current second enters without a touch.
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

/* Eviction order of one index; embedded in struct index. */
struct placement_order {
        uint32_t newest[INDEX_N_TIERS];
        uint32_t oldest[INDEX_N_TIERS];
};

/* The order embedded in @index (index.c). */
struct placement_order *index_order(struct index *index);

/* First or last bytes of a boundary in a tier. Called by index_set_*() only. */
void placement_enter(struct index *index, struct index_boundary *boundary, enum index_tier tier);
void placement_leave(struct index *index, struct index_boundary *boundary, enum index_tier tier);

/* The boundary was used (stored or acquired): it and its ancestors become newest. */
void placement_touch(struct index *index, struct index_boundary *boundary, uint32_t now_s);

/*
 * The boundary whose bytes in @tier should go first, or NULL. @may_evict says whether a
 * boundary has anything there that may go now (leased bytes may not); at most @max_steps
 * boundaries are asked. Boundaries with children in the tier are passed over, as long as
 * one of those could go.
 */
struct index_boundary *placement_victim(struct index *index, enum index_tier tier,
                                        bool (*may_evict)(void *user,
                                                          const struct index_boundary *boundary),
                                        void *user, unsigned max_steps);

/*
 * Walks a tier from its old end: the boundary newer than @after, NULL for @after begins.
 * For writing the cold end down and for draining.
 */
struct index_boundary *placement_next(struct index *index, enum index_tier tier,
                                      const struct index_boundary *after);

/*
 * How many bytes at the old end of the host tier should have a copy below, given its
 * capacity: a tenth, under PLACEMENT_WRITE_COLD; everything under STORE; 0 under OFF.
 */
uint64_t placement_cold_bytes(enum placement_write policy, uint64_t capacity_bytes);
