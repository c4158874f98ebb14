// SPDX-License-Identifier: Apache-2.0
/*
 * Placement of layouts with state groups. KV is worth its bytes only where a state makes
 * it usable, and a state costs as much as thousands of tokens of KV; so the states decide,
 * and the KV follows them.
 *
 * In each tier a boundary is on at most one list:
 *
 *   UNPROVEN  its state was stored and not used yet, by age
 *   PROVEN    its state was used, or is likely to be: it is where prompts branch, the end of
 *             a conversation that goes on, or came back after it had been evicted; by use
 *   YOUNG     KV that no state in the tier makes usable, but that is new: a prefill stores
 *             its chunks before its state
 *   DEAD      such KV that is no longer new, superseded states, and states whose chain has a
 *             gap: KV that left all tiers, or did not come in the time in which it is new;
 *             goes before all else
 *
 * KV that a state makes usable is on none: links.children counts a boundary's own state and
 * its children for which it is above 0. When it falls to 0 the KV is dead.
 *
 * Which list of states gives way is decided by what turns out to be missed: a state that
 * comes back soon after its eviction from one list makes the share of the other smaller.
 * Of a conversation two states are kept: with a third the oldest is superseded.
 *
 * A search up a chain takes at most PLACEMENT_WALK_MAX steps; what lies beyond is not looked
 * at. links.children is kept as far up as it changes, however far that is.
 * All is per tier and per index, for all layouts with states together. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/placement_memory.h"
#include "daemon/placement_queue.h"

struct index;
struct placement_order;
struct index_origin;
struct placement_victim;

#define PLACEMENT_WALK_MAX 4096u

enum placement_list {
        PLACEMENT_NO_LIST,
        PLACEMENT_UNPROVEN,
        PLACEMENT_PROVEN,
        PLACEMENT_YOUNG,
        PLACEMENT_DEAD,
        PLACEMENT_N_LISTS,
};

/* placement_node.flags; all but the last are of a state and end with it */
#define PLACEMENT_FRESH    (1u << 0) /* has just been published */
#define PLACEMENT_IS_USED  (1u << 1)
#define PLACEMENT_BRANCH   (1u << 2) /* where prompts branch */
#define PLACEMENT_WORTHY   (1u << 3) /* belongs to PROVEN in whatever tier it enters */
#define PLACEMENT_RETURNED (1u << 4) /* an earlier eviction was a mistake: its request told */
#define PLACEMENT_HAD_KV   (1u << 5) /* had a chunk once */

/* One for each boundary of a layout with states, by its id; else untouched. */
struct placement_node {
        struct placement_past past;
        uint8_t flags;
        uint8_t list[INDEX_N_TIERS]; /* enum placement_list */
        uint8_t has_state;           /* bit per tier */
        uint8_t has_kv;              /* and PLACEMENT_ELSEWHERE */
};

#define PLACEMENT_ELSEWHERE (1u << INDEX_N_TIERS) /* another node has it in the pool */

struct placement_share {
        struct placement_queue queues[PLACEMENT_N_LISTS];
        double unproven;                        /* part of the states that UNPROVEN may have */
        double unproven_before;                 /* what was last learned, */
        uint32_t learned_at;                    /* by the state of this boundary */
        uint32_t evicted[PLACEMENT_PROVEN + 1]; /* of the two lists of states, fading */
        uint32_t n_evicted;                     /* of both, ever */
        uint32_t n_kv;                          /* boundaries with KV in the tier */
};

struct placement_hybrid {
        struct placement_node *nodes;
        uint32_t *state_groups; /* by layout: bit a group; 0: none, or not known */
        struct placement_share shares[INDEX_N_TIERS];
        struct placement_memory memory;
        uint64_t boundaries_max;
        uint32_t n_nodes; /* boundaries of such layouts in the index */
        uint32_t now_s;   /* of the last use or store */
        bool has_broken;  /* there may be states without their KV: they are sought, */
        bool more_broken; /*   and once more behind this walk */
        uint32_t broken_position;
        uint32_t late_s; /* when KV that had not come before its state is missing; 0: none is */
};

int placement_hybrid_init(struct placement_hybrid *hybrid, uint64_t boundaries_max,
                          uint64_t remembered_max);
void placement_hybrid_deinit(struct placement_hybrid *hybrid);

/* As the functions of placement.h without _hybrid, for boundaries of layouts with states. */
/* Flags of its entry in the presence table: PRESENCE_SEEN, PRESENCE_HAS_CHILD. */
uint32_t placement_hybrid_presence(struct index *index, const struct index_boundary *boundary);
void placement_hybrid_begin(struct index *index, struct index_boundary *boundary);
void placement_hybrid_end(struct index *index, struct index_boundary *boundary);
void placement_hybrid_enter(struct index *index, const struct index_object *object,
                            enum index_tier tier);
void placement_hybrid_leave(struct index *index, const struct index_object *object,
                            enum index_tier tier);
void placement_hybrid_elsewhere(struct index *index, const struct index_object *object);
void placement_hybrid_adopt(struct index *index, struct index_boundary *boundary);
void placement_hybrid_use(struct index *index, const struct index_object *object, uint32_t now_s);
void placement_hybrid_stored(struct index *index, const struct index_object *object,
                             const struct index_origin *origin, uint32_t now_s);
void placement_hybrid_renew(struct index *index, struct index_boundary *boundary,
                            enum index_tier tier, uint32_t now_s);
void placement_hybrid_evict(struct index *index, enum index_tier tier,
                            const struct placement_victim *victim);

typedef bool placement_may_evict(void *user, const struct placement_victim *victim);

/* The first on @list, from its old end, that may go; @ret_victim->boundary NULL: none. */
void placement_hybrid_victim(struct index *index, enum index_tier tier, enum placement_list list,
                             placement_may_evict *may_evict, void *user, unsigned max_steps,
                             struct placement_victim *ret_victim);
/* The list of states from which the next one is to go, when they are as long as this. */
enum placement_list placement_hybrid_giving_list(const struct placement_share *share,
                                                 uint32_t n_unproven, uint32_t n_proven);
/* Moves what is no longer new from YOUNG to DEAD. */
void placement_hybrid_age(struct index *index, enum index_tier tier);
