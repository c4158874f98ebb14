// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "storage/space.h"

/*
 * A place with one extent is packed into tier_place.where: no memory for the many small
 * objects. With several, it points to a list; addresses of user space leave bit 63 clear.
 */
#define WHERE_LIST         (1ull << 63)
#define WHERE_FIRST_BITS   36
#define WHERE_COUNT_BITS   21
#define WHERE_COUNT_SHIFT  WHERE_FIRST_BITS
#define WHERE_MEMBER_SHIFT (WHERE_FIRST_BITS + WHERE_COUNT_BITS)

#define RUNS_FEW 4u

_Static_assert(SEGMENT_MEMBERS_MAX <= 1u << (63 - WHERE_MEMBER_SHIFT), "a member fits a place");

struct space_list {
        LIST_ENTRY(space_list) link;
        struct space_extents extents;
};

void space_init(struct space *space, uint64_t stripe_units)
{
        memset(space, 0, sizeof(*space));
        space->stripe_units = stripe_units;
        LIST_INIT(&space->lists);
}

void space_deinit(struct space *space)
{
        struct space_list *list;

        while ((list = LIST_FIRST(&space->lists))) {
                LIST_REMOVE(list, link);
                free(list);
        }
        for (uint32_t i = 0; i < space->n_members; i++)
                extent_map_free(space->members[i].map);
}

int space_add_member(struct space *space, uint32_t index, uint64_t n_units, uint64_t n_reserved)
{
        struct extent_map *map;
        int r;

        assert(index < SEGMENT_MEMBERS_MAX && !space->members[index].map);
        r = extent_map_new(&map, n_units);
        if (r)
                return r;
        r = extent_map_take(map, (struct extent_run){.first = 0, .count = n_reserved});
        if (r) {
                extent_map_free(map);
                return r < 0 ? r : err_raise(-EINVAL);
        }
        space->members[index].map = map;
        if (index >= space->n_members)
                space->n_members = index + 1;
        space->total_units += n_units - n_reserved;
        return 0;
}

/* Members with a map, fewest bytes in flight first, then most free. */
static uint32_t rank_members(const struct space *space, uint32_t ret_order[SEGMENT_MEMBERS_MAX])
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < space->n_members; i++) {
                const struct space_member *member = &space->members[i];
                uint32_t at = n;

                if (!member->map)
                        continue;
                while (at) {
                        const struct space_member *other = &space->members[ret_order[at - 1]];

                        if (other->bytes_in_flight < member->bytes_in_flight ||
                            (other->bytes_in_flight == member->bytes_in_flight &&
                             extent_map_free_units(other->map) >=
                                     extent_map_free_units(member->map)))
                                break;
                        ret_order[at] = ret_order[at - 1];
                        at--;
                }
                ret_order[at] = i;
                n++;
        }
        return n;
}

/* Takes @n_units from one member in at most @max_runs. */
static int take_from(struct space *space, uint32_t index, uint64_t n_units, uint32_t max_runs,
                     struct space_extents *extents)
{
        struct extent_run runs[SEGMENT_EXTENTS_MAX];
        uint32_t n_runs;
        int r;

        if (n_units > UINT32_MAX)
                return SPACE_E_FULL;
        r = extent_map_alloc(space->members[index].map, n_units, max_runs, runs, &n_runs);
        if (r)
                return r < 0 ? r : SPACE_E_FULL;
        for (uint32_t i = 0; i < n_runs; i++)
                extents->at[extents->n++] = (struct segment_extent){
                        .first = runs[i].first,
                        .count = (uint32_t)runs[i].count,
                        .member = index,
                };
        space->used_units += n_units;
        return 0;
}

/* One share on each member; the shares are equal but for the last. */
static int alloc_striped(struct space *space, uint64_t n_units, const uint32_t *order, uint32_t n,
                         struct space_extents *extents)
{
        uint64_t share = (n_units + n - 1) / n;

        for (uint32_t i = 0; i < n && n_units; i++) {
                uint64_t want = share < n_units ? share : n_units;
                uint32_t left = n - i - 1;
                int r = take_from(space, order[i], want, SEGMENT_EXTENTS_MAX - extents->n - left,
                                  extents);

                if (r)
                        return r;
                n_units -= want;
        }
        return 0;
}

/* In few runs if any member can, then in many. */
static int alloc_on_one(struct space *space, uint64_t n_units, const uint32_t *order, uint32_t n,
                        struct space_extents *extents)
{
        static const uint32_t max_runs[] = {RUNS_FEW, SEGMENT_EXTENTS_MAX};

        space_release(space, extents);
        extents->n = 0;
        for (size_t pass = 0; pass < 2; pass++)
                for (uint32_t i = 0; i < n; i++) {
                        int r = take_from(space, order[i], n_units, max_runs[pass], extents);

                        if (r != SPACE_E_FULL)
                                return r;
                }
        return SPACE_E_FULL;
}

/* The longest free runs wherever they are, until it is enough. */
static int alloc_anywhere(struct space *space, uint64_t n_units, const uint32_t *order, uint32_t n,
                          struct space_extents *extents)
{
        while (n_units && extents->n < SEGMENT_EXTENTS_MAX) {
                uint64_t longest = 0, want;
                uint32_t best = 0;
                int r;

                for (uint32_t i = 0; i < n; i++) {
                        uint64_t run = extent_map_largest(space->members[order[i]].map);

                        if (run > longest) {
                                longest = run;
                                best = order[i];
                        }
                }
                if (!longest)
                        return SPACE_E_FULL;
                want = longest < n_units ? longest : n_units;
                r = take_from(space, best, want, 1, extents);
                if (r)
                        return r;
                n_units -= want;
        }
        return n_units ? SPACE_E_FULL : 0;
}

int space_alloc(struct space *space, uint64_t n_units, struct space_extents *ret_extents)
{
        uint32_t order[SEGMENT_MEMBERS_MAX], n = rank_members(space, order);
        struct space_extents extents = {.n = 0};
        int r = SPACE_E_FULL;

        if (!n_units || space->total_units - space->used_units < n_units)
                return SPACE_E_FULL;
        if (n_units > space->stripe_units && n > 1 && n <= SEGMENT_EXTENTS_MAX)
                r = alloc_striped(space, n_units, order, n, &extents);
        if (r == SPACE_E_FULL)
                r = alloc_on_one(space, n_units, order, n, &extents);
        if (r == SPACE_E_FULL)
                r = alloc_anywhere(space, n_units, order, n, &extents);
        if (r) {
                space_release(space, &extents);
                return r;
        }
        *ret_extents = extents;
        return 0;
}

void space_release(struct space *space, const struct space_extents *extents)
{
        for (uint32_t i = 0; i < extents->n; i++) {
                const struct segment_extent *extent = &extents->at[i];

                extent_map_release(space->members[extent->member].map,
                                   (struct extent_run){extent->first, extent->count});
                space->used_units -= extent->count;
        }
}

int space_trim(struct space *space, struct space_extents *extents, uint64_t n_units)
{
        struct space_extents rest = {.n = 0};
        uint32_t i = 0;

        assert(n_units);
        while (i < extents->n && n_units >= extents->at[i].count)
                n_units -= extents->at[i++].count;
        if (n_units && i < extents->n) {
                struct segment_extent *cut = &extents->at[i++];
                int r = extent_map_allow_parts(space->members[cut->member].map, 1);

                if (r)
                        return r;
                rest.at[rest.n++] = (struct segment_extent){
                        .first = cut->first + n_units,
                        .count = cut->count - (uint32_t)n_units,
                        .member = cut->member,
                };
                cut->count = (uint32_t)n_units;
        }
        for (uint32_t j = i; j < extents->n; j++)
                rest.at[rest.n++] = extents->at[j];
        extents->n = i;
        space_release(space, &rest);
        return 0;
}

int space_take(struct space *space, const struct space_extents *extents)
{
        struct space_extents taken = {.n = 0};

        for (uint32_t i = 0; i < extents->n; i++) {
                const struct segment_extent *extent = &extents->at[i];
                int r = EXTENT_E_TAKEN;

                if (extent->member < space->n_members && space->members[extent->member].map)
                        r = extent_map_take(space->members[extent->member].map,
                                            (struct extent_run){extent->first, extent->count});
                if (r) {
                        space_release(space, &taken);
                        return r < 0 ? r : SPACE_E_TAKEN;
                }
                taken.at[taken.n++] = *extent;
                space->used_units += extent->count;
        }
        return 0;
}

static bool fits_packed(const struct space_extents *extents)
{
        return extents->n == 1 && extents->at[0].first < 1ull << WHERE_FIRST_BITS &&
               extents->at[0].count < 1u << WHERE_COUNT_BITS;
}

int space_make_place(struct space *space, uint64_t claim, const struct space_extents *extents,
                     struct tier_place *ret_place)
{
        struct space_list *list;

        if (fits_packed(extents)) {
                ret_place->claim = claim;
                ret_place->where = (uint64_t)extents->at[0].member << WHERE_MEMBER_SHIFT |
                                   (uint64_t)extents->at[0].count << WHERE_COUNT_SHIFT |
                                   extents->at[0].first;
                return 0;
        }
        list = malloc(sizeof(*list));
        if (!list)
                return err_raise(-ENOMEM);
        list->extents = *extents;
        LIST_INSERT_HEAD(&space->lists, list, link);
        ret_place->claim = claim;
        ret_place->where = WHERE_LIST | (uint64_t)(uintptr_t)list;
        return 0;
}

static struct space_list *list_of(struct tier_place place)
{
        return (struct space_list *)(uintptr_t)(place.where & ~WHERE_LIST);
}

void space_extents_of(struct tier_place place, struct space_extents *ret_extents)
{
        if (place.where & WHERE_LIST) {
                *ret_extents = list_of(place)->extents;
                return;
        }
        ret_extents->n = 1;
        ret_extents->at[0] = (struct segment_extent){
                .first = place.where & ((1ull << WHERE_FIRST_BITS) - 1),
                .count = place.where >> WHERE_COUNT_SHIFT & ((1u << WHERE_COUNT_BITS) - 1),
                .member = (uint32_t)(place.where >> WHERE_MEMBER_SHIFT),
        };
}

void space_forget_place(struct tier_place place)
{
        if (!(place.where & WHERE_LIST))
                return;
        LIST_REMOVE(list_of(place), link);
        free(list_of(place));
}
