// SPDX-License-Identifier: Apache-2.0
#include "daemon/placement_cold.h"

void placement_cold_begin(struct placement_cold *walk, struct index *index, enum index_tier tier)
{
        const struct placement_order *order = index_order(index);
        const struct placement_share *share = &order->hybrid.shares[tier];
        const struct index_boundary *first = placement_next(index, tier, NULL);

        walk->index = index;
        walk->tier = tier;
        walk->lru = first ? index_boundary_id(index, first) : INDEX_NONE;
        for (int list = PLACEMENT_UNPROVEN; list <= PLACEMENT_PROVEN; list++) {
                walk->states[list] = share->queues[list].oldest;
                walk->n_states[list] = share->queues[list].n;
        }
        walk->n_path = 0;
}

static struct index_boundary *at(struct placement_cold *walk, uint32_t id)
{
        return id ? index_boundary_at(walk->index, id) : NULL;
}

static bool kv_is_below(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        const struct placement_victim kv = {.boundary = boundary, .part = PLACEMENT_KV};

        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(index, id);

                id = object->next;
                if (index_object_is_in(object, tier) && placement_takes(index, &kv, object) &&
                    !(tier == INDEX_HOST
                              ? object->place.claim || object->flags & INDEX_WRITING
                              : object->flags & (INDEX_REMOTE_HERE | INDEX_WRITING_POOL)))
                        return false;
        }
        return true;
}

/* A state and the KV above it: what is its own, and what has no copy below. */
static void take_path(struct placement_cold *walk, uint32_t state)
{
        const struct placement_link *links = index_order(walk->index)->links[walk->tier];
        struct index_boundary *each = at(walk, state);

        walk->path[0] = state;
        walk->n_path = 1;
        while (each->parent && walk->n_path < PLACEMENT_COLD_PATH_MAX) {
                uint32_t id = each->parent;

                each = at(walk, id);
                if (links[id].children > 1 && kv_is_below(walk->index, each, walk->tier))
                        return;
                walk->path[walk->n_path++] = id;
        }
}

static uint32_t *next_state(struct placement_cold *walk)
{
        const struct placement_share *share = &index_order(walk->index)->hybrid.shares[walk->tier];
        enum placement_list list = placement_hybrid_giving_list(
                share, walk->n_states[PLACEMENT_UNPROVEN], walk->n_states[PLACEMENT_PROVEN]);

        return &walk->states[list];
}

static void take_next_state(struct placement_cold *walk, uint32_t *state)
{
        uint32_t id = *state;

        *state = index_order(walk->index)->links[walk->tier][id].newer;
        walk->n_states[state - walk->states]--;
        take_path(walk, id);
}

struct placement_victim placement_cold_next(struct placement_cold *walk)
{
        struct placement_victim next = {0}, lru = {.boundary = at(walk, walk->lru)};
        uint32_t *state = next_state(walk);

        next.boundary = at(walk, *state);
        if (!walk->n_path && next.boundary &&
            (!lru.boundary || placement_used_s(&next) < placement_used_s(&lru)))
                take_next_state(walk, state);
        if (walk->n_path) {
                next.boundary = at(walk, walk->path[--walk->n_path]);
                next.part = walk->n_path ? PLACEMENT_KV : PLACEMENT_ALL;
                return next;
        }
        if (lru.boundary) {
                const struct index_boundary *newer =
                        placement_next(walk->index, walk->tier, lru.boundary);

                walk->lru = newer ? index_boundary_id(walk->index, newer) : INDEX_NONE;
        }
        return lru;
}
