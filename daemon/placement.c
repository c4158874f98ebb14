// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "daemon/placement.h"
#include "daemon/record_pool.h"

static const uint16_t in_tier[INDEX_N_TIERS] = {INDEX_IN_HOST, INDEX_IN_NVME};
static const uint16_t bytes_in[INDEX_N_TIERS] = {INDEX_BYTES_HOST, INDEX_BYTES_NVME};

int placement_order_init(struct placement_order *order, uint64_t boundaries_max)
{
        *order = (struct placement_order){.boundaries_max = boundaries_max};
        for (int tier = 0; tier < INDEX_N_TIERS; tier++) {
                void *links;
                int r = record_array_new(&links, boundaries_max + 1, sizeof(struct placement_link));

                if (r < 0) {
                        placement_order_deinit(order);
                        return r;
                }
                order->links[tier] = links;
        }
        return 0;
}

void placement_order_deinit(struct placement_order *order)
{
        for (int tier = 0; tier < INDEX_N_TIERS; tier++)
                record_array_free(order->links[tier], order->boundaries_max + 1,
                                  sizeof(struct placement_link));
        *order = (struct placement_order){0};
}

static void take_out(struct placement_order *order, enum index_tier tier, uint32_t id)
{
        struct placement_link *links = order->links[tier], *link = &links[id];

        if (link->newer)
                links[link->newer].older = link->older;
        else
                order->newest[tier] = link->older;
        if (link->older)
                links[link->older].newer = link->newer;
        else
                order->oldest[tier] = link->newer;
}

/* Next older than @anchor, or the newest of all when that is INDEX_NONE. */
static void put_behind(struct placement_order *order, enum index_tier tier, uint32_t id,
                       uint32_t anchor)
{
        struct placement_link *links = order->links[tier], *link = &links[id];

        link->newer = anchor;
        link->older = anchor ? links[anchor].older : order->newest[tier];
        if (anchor)
                links[anchor].older = id;
        else
                order->newest[tier] = id;
        if (link->older)
                links[link->older].newer = id;
        else
                order->oldest[tier] = id;
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
void placement_enter(struct index *index, struct index_boundary *boundary, enum index_tier tier)
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

void placement_leave(struct index *index, struct index_boundary *boundary, enum index_tier tier)
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
        for (enum index_tier tier = 0; tier < INDEX_N_TIERS; tier++)
                if (boundary->flags & in_tier[tier])
                        adopt_in_tier(index, boundary, tier);
        /* Its chain has not been touched as a whole. */
        boundary->touched_s = INDEX_NEVER;
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

struct index_boundary *placement_victim(struct index *index, enum index_tier tier,
                                        bool (*may_evict)(void *user,
                                                          const struct index_boundary *boundary),
                                        void *user, unsigned max_steps)
{
        struct index_boundary *boundary = placement_next(index, tier, NULL);

        for (unsigned step = 0; boundary && step < max_steps; step++) {
                if (may_evict(user, boundary))
                        return boundary;
                boundary = placement_next(index, tier, boundary);
        }
        return NULL;
}

struct index_boundary *placement_next(struct index *index, enum index_tier tier,
                                      const struct index_boundary *after)
{
        struct placement_order *order = index_order(index);
        uint32_t id = after ? order->links[tier][index_boundary_id(index, after)].newer
                            : order->oldest[tier];

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
