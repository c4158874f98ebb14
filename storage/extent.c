// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/tree.h"
#include "storage/extent.h"

/* Large enough for malloc to map it apart, so that nodes never used are never resident. */
#define SLAB_NODES 4096u

struct free_run {
        struct extent_run run;
        RB_ENTRY(free_run) by_position;
        RB_ENTRY(free_run) by_size; /* when in no tree, its left child is the next spare */
};

struct slab {
        struct slab *next;
        struct free_run nodes[SLAB_NODES];
};

RB_HEAD(position_tree, free_run);
RB_HEAD(size_tree, free_run);

struct extent_map {
        struct position_tree by_position;
        struct size_tree by_size;
        uint64_t n_units;
        uint64_t n_free_units;
        uint64_t n_free_runs;
        uint64_t n_releases;  /* owed: at most n_nodes - n_free_runs */
        uint64_t n_nodes;     /* in all slabs */
        uint64_t n_untouched; /* of the newest slab, at its end */
        struct slab *slabs;
        struct free_run *spares;
};

static int compare_u64(uint64_t a, uint64_t b)
{
        return (a > b) - (a < b);
}

static int compare_positions(struct free_run *a, struct free_run *b)
{
        return compare_u64(a->run.first, b->run.first);
}

static int compare_sizes(struct free_run *a, struct free_run *b)
{
        int r = compare_u64(a->run.count, b->run.count);

        return r ? r : compare_positions(a, b);
}

TREE_GENERATE(position_tree, free_run, by_position, compare_positions)
TREE_GENERATE(size_tree, free_run, by_size, compare_sizes)

/* Nodes and the releases owed. */

static uint64_t n_spares(const struct extent_map *map)
{
        return map->n_nodes - map->n_free_runs;
}

static void give_spare(struct extent_map *map, struct free_run *node)
{
        RB_LEFT(node, by_size) = map->spares;
        map->spares = node;
}

static struct free_run *take_spare(struct extent_map *map)
{
        struct free_run *node = map->spares;

        if (node) {
                map->spares = RB_LEFT(node, by_size);
                return node;
        }
        assert(map->n_untouched > 0);
        return &map->slabs->nodes[SLAB_NODES - map->n_untouched--];
}

static int add_slab(struct extent_map *map)
{
        struct slab *slab = malloc(sizeof(*slab));

        if (!slab)
                return err_raise(-ENOMEM);
        for (; map->n_untouched > 0; map->n_untouched--)
                give_spare(map, &map->slabs->nodes[SLAB_NODES - map->n_untouched]);
        slab->next = map->slabs;
        map->slabs = slab;
        map->n_untouched = SLAB_NODES;
        map->n_nodes += SLAB_NODES;
        return 0;
}

/* Makes sure that @n more releases can be owed, and @n_now nodes be used at once. */
static int reserve(struct extent_map *map, uint64_t n, uint64_t n_now)
{
        int r;

        while (n_spares(map) < map->n_releases + n + n_now) {
                r = add_slab(map);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Free runs. */

static void insert_run(struct extent_map *map, struct extent_run run)
{
        struct free_run *node = take_spare(map);

        node->run = run;
        RB_INSERT(position_tree, &map->by_position, node);
        RB_INSERT(size_tree, &map->by_size, node);
        map->n_free_runs++;
        map->n_free_units += run.count;
}

static void remove_run(struct extent_map *map, struct free_run *node)
{
        RB_REMOVE(position_tree, &map->by_position, node);
        RB_REMOVE(size_tree, &map->by_size, node);
        map->n_free_runs--;
        map->n_free_units -= node->run.count;
        give_spare(map, node);
}

/* Gives a free run new bounds that keep its place between its neighbours. */
static void change_run(struct extent_map *map, struct free_run *node, struct extent_run run)
{
        RB_REMOVE(size_tree, &map->by_size, node);
        map->n_free_units += run.count - node->run.count;
        node->run = run;
        RB_INSERT(size_tree, &map->by_size, node);
}

static struct extent_run cut_front(struct extent_map *map, struct free_run *node, uint64_t count)
{
        struct extent_run cut = {node->run.first, count};

        if (node->run.count == count)
                remove_run(map, node);
        else
                change_run(map, node,
                           (struct extent_run){cut.first + count, node->run.count - count});
        return cut;
}

static struct free_run *smallest_that_holds(struct extent_map *map, uint64_t count)
{
        struct free_run wanted = {.run = {.first = 0, .count = count}};

        return RB_NFIND(size_tree, &map->by_size, &wanted);
}

/* The free runs on both sides of a position: the last that begins before it, the next. */
static void find_neighbours(struct extent_map *map, uint64_t first, struct free_run **ret_before,
                            struct free_run **ret_after)
{
        struct free_run wanted = {.run = {.first = first}};
        struct free_run *after = RB_NFIND(position_tree, &map->by_position, &wanted);

        *ret_before = after ? RB_PREV(position_tree, &map->by_position, after)
                            : RB_MAX(position_tree, &map->by_position);
        *ret_after = after;
}

static uint64_t end_of(const struct free_run *node)
{
        return node->run.first + node->run.count;
}

int extent_map_new(struct extent_map **ret_map, uint64_t n_units)
{
        _cleanup_(extent_map_freep) struct extent_map *map = calloc(1, sizeof(*map));
        int r;

        if (!map)
                return err_raise(-ENOMEM);
        RB_INIT(&map->by_position);
        RB_INIT(&map->by_size);
        map->n_units = n_units;
        r = reserve(map, 0, 1);
        if (r < 0)
                return r;
        if (n_units > 0)
                insert_run(map, (struct extent_run){0, n_units});
        *ret_map = steal_ptr(map);
        return 0;
}

struct extent_map *extent_map_free(struct extent_map *map)
{
        struct slab *slab;

        if (!map)
                return NULL;
        while ((slab = map->slabs)) {
                map->slabs = slab->next;
                free(slab);
        }
        free(map);
        return NULL;
}

/*
 * Chooses the free runs for @count units without touching them: the largest ones whole,
 * until some run holds what is left. Returns how many, 0 when it takes more than
 * @max_runs. Those taken whole come after all others in the tree by size, so the run that
 * holds the rest is never one of them.
 */
static uint32_t choose_runs(struct extent_map *map, uint64_t count, uint32_t max_runs,
                            struct extent_run *ret_runs)
{
        struct free_run *largest = RB_MAX(size_tree, &map->by_size);
        uint32_t n = 0;

        while (largest && n < max_runs) {
                if (largest->run.count >= count) {
                        ret_runs[n].first = smallest_that_holds(map, count)->run.first;
                        ret_runs[n].count = count;
                        return n + 1;
                }
                ret_runs[n++] = largest->run;
                count -= largest->run.count;
                largest = RB_PREV(size_tree, &map->by_size, largest);
        }
        return 0;
}

int extent_map_alloc(struct extent_map *map, uint64_t count, uint32_t max_runs,
                     struct extent_run *ret_runs, uint32_t *ret_n_runs)
{
        struct free_run wanted;
        uint32_t n;
        int r;

        assert(count > 0);
        if (count > map->n_free_units)
                return EXTENT_E_FULL;
        n = choose_runs(map, count, max_runs, ret_runs);
        if (n == 0)
                return EXTENT_E_FULL;
        /*
         * Taking the last crumbs makes every later object of crumbs too. A little more
         * eviction, bounded by the slack, keeps runs long for good.
         */
        if (n > EXTENT_RUNS_GOOD && map->n_free_units - count < map->n_units / EXTENT_SLACK_DIVISOR)
                return EXTENT_E_FULL;
        r = reserve(map, n, 0);
        if (r < 0)
                return r;
        for (uint32_t i = 0; i < n; i++) {
                wanted.run = ret_runs[i];
                cut_front(map, RB_FIND(position_tree, &map->by_position, &wanted),
                          ret_runs[i].count);
        }
        map->n_releases += n;
        *ret_n_runs = n;
        return 0;
}

int extent_map_take(struct extent_map *map, struct extent_run run)
{
        struct free_run *before, *after, *holder;
        uint64_t end, run_end;
        int r;

        assert(run.count > 0);
        if (run.count > map->n_units || run.first > map->n_units - run.count)
                return EXTENT_E_TAKEN;
        run_end = run.first + run.count;
        find_neighbours(map, run.first, &before, &after);
        holder = after && after->run.first == run.first ? after : before;
        if (!holder || end_of(holder) < run_end)
                return EXTENT_E_TAKEN;
        r = reserve(map, 1, 1);
        if (r < 0)
                return r;
        end = end_of(holder);
        if (holder->run.first == run.first) {
                cut_front(map, holder, run.count);
        } else {
                change_run(map, holder,
                           (struct extent_run){holder->run.first, run.first - holder->run.first});
                if (run_end < end)
                        insert_run(map, (struct extent_run){run_end, end - run_end});
        }
        map->n_releases++;
        return 0;
}

void extent_map_release(struct extent_map *map, struct extent_run run)
{
        struct free_run *before, *after;
        uint64_t run_end = run.first + run.count;

        assert(run.count > 0 && run.count <= map->n_units);
        assert(run.first <= map->n_units - run.count);
        assert(map->n_releases > 0);
        find_neighbours(map, run.first, &before, &after);
        assert(!before || end_of(before) <= run.first);
        assert(!after || after->run.first >= run_end);

        if (after && after->run.first == run_end) {
                run.count += after->run.count;
                remove_run(map, after);
        }
        if (before && end_of(before) == run.first)
                change_run(map, before,
                           (struct extent_run){before->run.first, before->run.count + run.count});
        else
                insert_run(map, run);
        map->n_releases--;
}

int extent_map_allow_parts(struct extent_map *map, uint32_t n_releases)
{
        int r = reserve(map, n_releases, 0);

        if (r < 0)
                return r;
        map->n_releases += n_releases;
        return 0;
}

uint64_t extent_map_free_units(const struct extent_map *map)
{
        return map->n_free_units;
}

uint64_t extent_map_free_runs(const struct extent_map *map)
{
        return map->n_free_runs;
}

uint64_t extent_map_largest(const struct extent_map *map)
{
        struct extent_map *walked = (struct extent_map *)(uintptr_t)map; /* RB_MAX takes no const */
        struct free_run *largest = RB_MAX(size_tree, &walked->by_size);

        return largest ? largest->run.count : 0;
}
