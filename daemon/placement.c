// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "daemon/pin_table.h"
#include "daemon/placement.h"
#include "daemon/record_pool.h"

static const uint16_t in_tier[INDEX_N_TIERS] = {INDEX_IN_HOST, INDEX_IN_NVME, INDEX_IN_REMOTE};
static const uint16_t bytes_in[INDEX_N_TIERS] = {INDEX_BYTES_HOST, INDEX_BYTES_NVME,
                                                 INDEX_BYTES_REMOTE};

int placement_order_init(struct placement_order *order, uint64_t boundaries_max,
                         uint64_t remembered_max)
{
        int r;

        *order = (struct placement_order){.boundaries_max = boundaries_max};
        for (int tier = 0; tier < INDEX_N_TIERS; tier++) {
                void *links;

                r = record_array_new(&links, boundaries_max + 1, sizeof(struct placement_link));
                if (r < 0) {
                        placement_order_deinit(order);
                        return r;
                }
                order->links[tier] = links;
        }
        r = placement_hybrid_init(&order->hybrid, boundaries_max, remembered_max);
        if (r < 0)
                placement_order_deinit(order);
        return r;
}

void placement_order_deinit(struct placement_order *order)
{
        placement_hybrid_deinit(&order->hybrid);
        for (int tier = 0; tier < INDEX_N_TIERS; tier++)
                record_array_free(order->links[tier], order->boundaries_max + 1,
                                  sizeof(struct placement_link));
        *order = (struct placement_order){0};
}

static void take_out(struct placement_order *order, enum index_tier tier, uint32_t id)
{
        placement_queue_out(order->links[tier], &order->lru[tier], id);
}

static void put_behind(struct placement_order *order, enum index_tier tier, uint32_t id,
                       uint32_t anchor)
{
        placement_queue_in(order->links[tier], &order->lru[tier], id, anchor);
}

void placement_prefetch_touch(struct index *index, const struct index_boundary *boundary)
{
        const struct placement_order *order = index_order(index);
        uint32_t id = index_boundary_id(index, boundary);

        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++) {
                const struct placement_link *links = order->links[tier];

                if (!(boundary->flags & in_tier[tier]))
                        continue;
                __builtin_prefetch(&links[links[id].newer]);
                __builtin_prefetch(&links[links[id].older]);
        }
}

static struct index_boundary *parent_of(struct index *index, const struct index_boundary *boundary)
{
        return boundary->parent ? index_boundary_at(index, boundary->parent) : NULL;
}

/*
 * Puts @boundary and its ancestors up to the first that is on the order already right
 * behind that one: it is newer than all its descendants, so they are newer than theirs.
 */
static void enter_lru(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        struct placement_order *order = index_order(index);
        uint32_t anchor = INDEX_NONE;

        assert(boundary->flags & bytes_in[tier]);
        if (boundary->flags & in_tier[tier])
                return;
        for (struct index_boundary *above = parent_of(index, boundary); above && !anchor;
             above = parent_of(index, above))
                if (above->flags & in_tier[tier])
                        anchor = index_boundary_id(index, above);
        for (struct index_boundary *each = boundary; each && !(each->flags & in_tier[tier]);
             each = parent_of(index, each)) {
                put_behind(order, tier, index_boundary_id(index, each), anchor);
                each->flags |= in_tier[tier];
                if (each->parent)
                        order->links[tier][each->parent].children++;
        }
}

static void leave_lru(struct index *index, struct index_boundary *boundary, enum index_tier tier)
{
        struct placement_order *order = index_order(index);

        /* Ancestors that only held the place for it go with it. */
        while (boundary && !(boundary->flags & bytes_in[tier])) {
                uint32_t id = index_boundary_id(index, boundary);

                assert(boundary->flags & in_tier[tier]);
                if (order->links[tier][id].children > 0)
                        return;
                take_out(order, tier, id);
                boundary->flags &= (uint16_t)~in_tier[tier];
                if (boundary->parent)
                        order->links[tier][boundary->parent].children--;
                boundary = parent_of(index, boundary);
        }
}

void placement_begin(struct index *index, struct index_boundary *boundary)
{
        if (placement_is_hybrid(index_order(index), boundary))
                placement_hybrid_begin(index, boundary);
}

void placement_end(struct index *index, struct index_boundary *boundary)
{
        if (placement_is_hybrid(index_order(index), boundary))
                placement_hybrid_end(index, boundary);
}

void placement_enter(struct index *index, const struct index_object *object, enum index_tier tier,
                     bool first)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);

        if (placement_is_hybrid(index_order(index), boundary))
                placement_hybrid_enter(index, object, tier);
        else if (first)
                enter_lru(index, boundary, tier);
}

void placement_leave(struct index *index, const struct index_object *object, enum index_tier tier,
                     bool last)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);

        if (placement_is_hybrid(index_order(index), boundary))
                placement_hybrid_leave(index, object, tier);
        else if (last)
                leave_lru(index, boundary, tier);
}

void placement_elsewhere(struct index *index, const struct index_object *object)
{
        if (placement_is_hybrid(index_order(index), index_boundary_at(index, object->boundary)))
                placement_hybrid_elsewhere(index, object);
}

static void adopt_in_tier(struct index *index, struct index_boundary *boundary,
                          enum index_tier tier)
{
        struct placement_order *order = index_order(index);

        /*
         * Nobody knows which of child and parent was newer, so the parent and all above it
         * become newest.
         */
        order->links[tier][boundary->parent].children++;
        for (struct index_boundary *above = parent_of(index, boundary); above;
             above = parent_of(index, above)) {
                uint32_t id = index_boundary_id(index, above);

                if (above->flags & in_tier[tier]) {
                        take_out(order, tier, id);
                } else {
                        above->flags |= in_tier[tier];
                        if (above->parent)
                                order->links[tier][above->parent].children++;
                }
                put_behind(order, tier, id, INDEX_NONE);
        }
}

void placement_adopt(struct index *index, struct index_boundary *boundary)
{
        if (placement_is_hybrid(index_order(index), boundary)) {
                placement_hybrid_adopt(index, boundary);
                return;
        }
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                if (boundary->flags & in_tier[tier])
                        adopt_in_tier(index, boundary, tier);
        /* Its chain has not been touched as a whole. */
        boundary->touched_s = INDEX_NEVER;
}

static void take_off_order(struct index *index, struct index_boundary *boundary)
{
        struct placement_order *order = index_order(index);
        uint32_t id = index_boundary_id(index, boundary);

        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++) {
                if (boundary->flags & in_tier[tier])
                        take_out(order, tier, id);
                boundary->flags &= (uint16_t)~in_tier[tier];
                order->links[tier][id] = (struct placement_link){0};
        }
}

static void enter_objects(struct index *index, struct index_boundary *boundary)
{
        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(index, id);

                for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                        if (index_object_is_ours(object, tier))
                                placement_hybrid_enter(index, object, tier);
                placement_hybrid_elsewhere(index, object);
                id = object->next;
        }
}

/* Calls @change for each boundary of a layout. */
static void for_layout(struct index *index, uint16_t layout,
                       void (*change)(struct index *index, struct index_boundary *boundary))
{
        uint32_t position = INDEX_NONE, steps = UINT32_MAX;
        struct index_boundary *boundary;

        while ((boundary = index_scan_boundaries(index, &position, &steps)))
                if (boundary->layout == layout)
                        change(index, boundary);
}

void placement_learn_groups(struct index *index, uint16_t layout, uint32_t state_groups)
{
        struct placement_order *order = index_order(index);
        uint64_t objects, bytes;
        bool has_boundaries;

        if (order->hybrid.state_groups[layout] || !state_groups)
                return;
        index_layout_usage(index, layout, &objects, &bytes);
        /* Without objects only a pin keeps one. */
        has_boundaries = objects || index_pins(index)->n_held;
        if (has_boundaries)
                for_layout(index, layout, take_off_order);
        order->hybrid.state_groups[layout] = state_groups;
        if (has_boundaries) {
                for_layout(index, layout, placement_hybrid_begin);
                for_layout(index, layout, enter_objects);
        }
}

static void move_behind(struct index *index, const struct index_boundary *boundary, uint32_t anchor)
{
        struct placement_order *order = index_order(index);
        uint32_t id = index_boundary_id(index, boundary);

        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++) {
                if (!(boundary->flags & in_tier[tier]))
                        continue;
                take_out(order, tier, id);
                put_behind(order, tier, id, anchor);
        }
}

void placement_touch(struct index *index, struct index_boundary *boundary, uint32_t now_s)
{
        struct index_boundary *fresh = boundary;
        uint32_t anchor;

        while (fresh && fresh->touched_s != now_s)
                fresh = parent_of(index, fresh);
        anchor = fresh ? index_boundary_id(index, fresh) : INDEX_NONE;
        for (struct index_boundary *each = boundary; each != fresh; each = parent_of(index, each)) {
                move_behind(index, each, anchor);
                each->touched_s = now_s;
        }
}

void placement_use(struct index *index, const struct index_object *object, uint32_t now_s)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);

        if (placement_is_hybrid(index_order(index), boundary))
                placement_hybrid_use(index, object, now_s);
        else
                placement_touch(index, boundary, now_s);
}

void placement_stored(struct index *index, const struct index_object *object,
                      const struct index_origin *origin, uint32_t now_s)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);

        if (placement_is_hybrid(index_order(index), boundary))
                placement_hybrid_stored(index, object, origin, now_s);
        else
                placement_touch(index, boundary, now_s);
}

static struct placement_victim lru_victim(struct index *index, enum index_tier tier,
                                          placement_may_evict *may_evict, void *user,
                                          unsigned max_steps)
{
        struct placement_victim victim = {.boundary = placement_next(index, tier, NULL)};

        for (unsigned step = 0; victim.boundary && step < max_steps; step++) {
                if (may_evict(user, &victim))
                        return victim;
                victim.boundary = placement_next(index, tier, victim.boundary);
        }
        victim.boundary = NULL;
        return victim;
}

/* From the list whose turn it is, else from the other. */
static struct placement_victim state_victim(struct index *index, enum index_tier tier,
                                            placement_may_evict *may_evict, void *user,
                                            unsigned max_steps)
{
        const struct placement_share *share = &index_order(index)->hybrid.shares[tier];
        enum placement_list list = placement_hybrid_giving_list(
                share, share->queues[PLACEMENT_UNPROVEN].n, share->queues[PLACEMENT_PROVEN].n);
        struct placement_victim victim;

        placement_hybrid_victim(index, tier, list, may_evict, user, max_steps, &victim);
        if (!victim.boundary)
                placement_hybrid_victim(index, tier, PLACEMENT_UNPROVEN + PLACEMENT_PROVEN - list,
                                        may_evict, user, max_steps, &victim);
        return victim;
}

static bool any_victim(void *user, const struct placement_victim *victim)
{
        return true;
}

struct placement_victim placement_oldest(struct index *index, enum index_tier tier,
                                         enum placement_list list)
{
        struct placement_victim victim;

        if (!list)
                return lru_victim(index, tier, any_victim, NULL, 1);
        placement_hybrid_victim(index, tier, list, any_victim, NULL, 1, &victim);
        return victim;
}

void placement_renew(struct index *index, enum index_tier tier, struct index_boundary *boundary,
                     uint32_t now_s)
{
        if (placement_is_hybrid(index_order(index), boundary))
                placement_hybrid_renew(index, boundary, tier, now_s);
        else
                placement_touch(index, boundary, now_s);
}

uint32_t placement_used_s(const struct placement_victim *victim)
{
        uint32_t touched_s = victim->boundary->touched_s;

        return touched_s == INDEX_NEVER ? 0 : touched_s;
}

struct placement_victim placement_victim(struct index *index, enum index_tier tier,
                                         placement_may_evict *may_evict, void *user,
                                         unsigned max_steps)
{
        struct placement_victim lru, state, victim;

        if (!index_order(index)->hybrid.n_nodes)
                return lru_victim(index, tier, may_evict, user, max_steps);
        placement_hybrid_age(index, tier);
        placement_hybrid_victim(index, tier, PLACEMENT_DEAD, may_evict, user, max_steps, &victim);
        if (victim.boundary)
                return victim;
        lru = lru_victim(index, tier, may_evict, user, max_steps);
        state = state_victim(index, tier, may_evict, user, max_steps);
        if (lru.boundary && state.boundary)
                return placement_used_s(&state) < placement_used_s(&lru) ? state : lru;
        if (lru.boundary || state.boundary)
                return lru.boundary ? lru : state;
        placement_hybrid_victim(index, tier, PLACEMENT_YOUNG, may_evict, user, max_steps, &victim);
        return victim;
}

bool placement_takes(struct index *index, const struct placement_victim *victim,
                     const struct index_object *object)
{
        uint32_t states = index_order(index)->hybrid.state_groups[victim->boundary->layout];

        if (victim->part == PLACEMENT_ALL)
                return true;
        return (states >> object->group & 1) == (victim->part == PLACEMENT_STATES);
}

void placement_evict(struct index *index, enum index_tier tier,
                     const struct placement_victim *victim)
{
        if (placement_is_hybrid(index_order(index), victim->boundary))
                placement_hybrid_evict(index, tier, victim);
}

struct index_boundary *placement_next(struct index *index, enum index_tier tier,
                                      const struct index_boundary *after)
{
        struct placement_order *order = index_order(index);
        uint32_t id = after ? order->links[tier][index_boundary_id(index, after)].newer
                            : order->lru[tier].oldest;

        assert(!after || after->flags & in_tier[tier]);
        for (; id; id = order->links[tier][id].newer) {
                struct index_boundary *boundary = index_boundary_at(index, id);

                if (boundary->flags & bytes_in[tier])
                        return boundary;
        }
        return NULL;
}

uint64_t placement_cold_bytes(enum placement_write policy, uint64_t capacity_bytes)
{
        switch (policy) {
        case PLACEMENT_WRITE_COLD:
                return capacity_bytes / 10;
        case PLACEMENT_WRITE_STORE:
                return capacity_bytes;
        case PLACEMENT_WRITE_OFF:
                break;
        }
        return 0;
}
