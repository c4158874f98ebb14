// SPDX-License-Identifier: Apache-2.0
/*
 * Placement: the pure decisions of what stays, goes down and goes away.
 *
 * No I/O, no clock of its own, no knowledge of leases: the caller passes time and asks
 * back through predicates. So tests and tests/bench replay whole traces over the daemon's
 * own code.
 *
 * Layouts without state groups: least recently used, suffix before prefix. One list of
 * boundaries a tier.
 * On it are the boundaries with bytes in the tier and all their ancestors (one without
 * bytes only holds the place); each is newer than all its descendants. So the old end is
 * always a leaf, and the first that may go, seen from there, has no descendant that may.
 *
 * How the order holds: a touch moves a boundary and its ancestors to the new end, the root
 * last. A touch stops at an ancestor whose chain was touched in the same second: what lies
 * below goes right behind it. So the stores of a long chain, one boundary after another,
 * do not each walk up to the root. What enters goes right behind its parent.
 *
 * Layouts with state groups: placement_hybrid.h.
 *
 * Both share a tier by need: what is dead goes first, then whichever candidate of the two
 * was used longer ago. There is no fixed split.
 *
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/index.h"
#include "daemon/placement_hybrid.h"

/* What the NVMe tier receives (config key nvme.write). */
enum placement_write {
        PLACEMENT_WRITE_OFF,
        PLACEMENT_WRITE_COLD,  /* the cold end of the host tier, ahead of its eviction */
        PLACEMENT_WRITE_STORE, /* everything, at once */
};

/* The orders of one index; embedded in struct index. */
struct placement_order {
        struct placement_link *links[INDEX_N_TIERS];
        struct placement_queue lru[INDEX_N_TIERS];
        uint64_t boundaries_max;
        struct placement_hybrid hybrid;
};

enum placement_part {
        PLACEMENT_ALL,
        PLACEMENT_STATES,
        PLACEMENT_KV, /* all but the states */
};

struct placement_victim {
        struct index_boundary *boundary; /* NULL: nothing may go */
        enum placement_part part;        /* of its objects in the tier */
        bool is_dead;                    /* of no use: not worth a copy below */
};

/* @remembered_max, at least 1: boundaries that are gone (placement_memory.h). 0 or -ENOMEM. */
int placement_order_init(struct placement_order *order, uint64_t boundaries_max,
                         uint64_t remembered_max);
void placement_order_deinit(struct placement_order *order);

/*
 * For index.c only. begin and end: a boundary is new, or goes. enter and leave: an object
 * that has come into a tier, or has left it, as its boundary's first or last. adopt: a
 * parent became known. learn_groups: bit g of @state_groups says that group g is a state;
 * what the layout has already changes over.
 */
void placement_begin(struct index *index, struct index_boundary *boundary);
void placement_end(struct index *index, struct index_boundary *boundary);
void placement_enter(struct index *index, const struct index_object *object, enum index_tier tier,
                     bool first);
void placement_leave(struct index *index, const struct index_object *object, enum index_tier tier,
                     bool last);
/* An object of another node's has come to the pool, or has left it. */
void placement_elsewhere(struct index *index, const struct index_object *object);
void placement_adopt(struct index *index, struct index_boundary *boundary);
void placement_learn_groups(struct index *index, uint16_t layout, uint32_t state_groups);

/* Asks the cache for the neighbours that a touch of @boundary will change. */
void placement_prefetch_touch(struct index *index, const struct index_boundary *boundary);

/* Its layout has state groups. */
static inline bool placement_is_hybrid(const struct placement_order *order,
                                       const struct index_boundary *boundary)
{
        return order->hybrid.state_groups[boundary->layout] != 0;
}

/* The boundary, of a layout without states, was used: it and its ancestors become newest. */
void placement_touch(struct index *index, struct index_boundary *boundary, uint32_t now_s);

/* An object was read, or was to be stored again. */
void placement_use(struct index *index, const struct index_object *object, uint32_t now_s);

/* An object was stored; it is in the host tier. @origin matters for states. */
void placement_stored(struct index *index, const struct index_object *object,
                      const struct index_origin *origin, uint32_t now_s);

/*
 * What in @tier should go first. @may_evict says whether anything of a candidate may go now
 * (leased bytes may not); of each kind at most @max_steps candidates are asked. Least
 * recently used: a boundary with descendants in the tier is the victim only when none of
 * those may go.
 */
struct placement_victim placement_victim(struct index *index, enum index_tier tier,
                                         placement_may_evict *may_evict, void *user,
                                         unsigned max_steps);

/*
 * The oldest on a list: of the least recently used with PLACEMENT_NO_LIST; and to the new end
 * of its list with it, in one tier, if it can't go for now.
 */
struct placement_victim placement_oldest(struct index *index, enum index_tier tier,
                                         enum placement_list list);
void placement_renew(struct index *index, enum index_tier tier, struct index_boundary *boundary,
                     uint32_t now_s);

/* When it was used last, in the seconds of placement_use(); 0: never. */
uint32_t placement_used_s(const struct placement_victim *victim);

/* Of no use in the host tier as things are: superseded, or KV that no state makes usable. */
bool placement_is_dead(struct index *index, const struct index_object *object);

/* Does the victim's part take in this object of its boundary? */
bool placement_takes(struct index *index, const struct placement_victim *victim,
                     const struct index_object *object);

/* The victim is about to be dropped from @tier to make room: what returns is learned from. */
void placement_evict(struct index *index, enum index_tier tier,
                     const struct placement_victim *victim);

/*
 * Was a boundary of a layout with states seen, as far as is remembered? *@ret_has_child:
 * and did a prompt go on behind it.
 */
bool placement_knows(struct index *index, uint16_t layout, const struct digest *digest,
                     bool *ret_has_child);

/*
 * Walks the boundaries of layouts without states that have bytes in a tier from its old
 * end: the one newer than @after (which must have bytes there itself), NULL begins; NULL
 * is the end.
 */
struct index_boundary *placement_next(struct index *index, enum index_tier tier,
                                      const struct index_boundary *after);

/*
 * How many bytes at the old end of the host tier should have a copy below, given its
 * capacity: a tenth, under PLACEMENT_WRITE_COLD; everything under STORE; 0 under OFF.
 */
uint64_t placement_cold_bytes(enum placement_write policy, uint64_t capacity_bytes);
