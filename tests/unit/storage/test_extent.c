// SPDX-License-Identifier: Apache-2.0
/*
 * The allocator against a bitmap that does the same slowly, and its promises after ageing:
 * few extents, little space lost.
 */
#include <check.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/extent.h"

#define RUNS_MAX 64u

static uint64_t random_state = 88172645463325252u;

static uint64_t random_u64(void)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state * 2685821657736338717u;
}

static uint64_t random_below(uint64_t limit)
{
        return (random_u64() >> 11) % limit;
}

/* The reference: one byte a unit, everything found by looking at all of them. */
enum { REFERENCE_UNITS = 480, PARTS_MAX = REFERENCE_UNITS };

static char used[REFERENCE_UNITS];

static uint32_t reference_free_runs(struct extent_run *ret_runs)
{
        uint32_t n = 0;

        for (uint64_t i = 0; i < REFERENCE_UNITS; i++) {
                if (used[i])
                        continue;
                if (i == 0 || used[i - 1])
                        ret_runs[n++] = (struct extent_run){i, 0};
                ret_runs[n - 1].count++;
        }
        return n;
}

static int longer_first(const void *a, const void *b)
{
        const struct extent_run *left = a, *right = b;

        return (left->count < right->count) - (left->count > right->count);
}

/* How many runs the policy may answer with; 0: FULL. */
static uint32_t reference_n_runs(uint64_t count, uint32_t max_runs)
{
        struct extent_run runs[REFERENCE_UNITS];
        uint32_t n_runs = reference_free_runs(runs), n = 0;
        uint64_t sum = 0, n_free = 0;

        for (uint32_t i = 0; i < n_runs; i++)
                n_free += runs[i].count;
        qsort(runs, n_runs, sizeof(runs[0]), longer_first);
        while (n < n_runs && sum < count)
                sum += runs[n++].count;
        if (sum < count || n > max_runs)
                return 0;
        if (n > EXTENT_RUNS_GOOD && n_free - count < REFERENCE_UNITS / 32)
                return 0;
        return n;
}

static struct extent_run reference_best_fit(uint64_t count)
{
        struct extent_run runs[REFERENCE_UNITS], best = {0, UINT64_MAX};
        uint32_t n_runs = reference_free_runs(runs);

        for (uint32_t i = 0; i < n_runs; i++)
                if (runs[i].count >= count && runs[i].count < best.count)
                        best = runs[i];
        return best;
}

static void reference_mark(struct extent_run run, char value)
{
        for (uint64_t i = run.first; i < run.first + run.count; i++) {
                ck_assert_uint_lt(i, REFERENCE_UNITS);
                ck_assert_int_ne(used[i], value);
                used[i] = value;
        }
}

static void assert_same_as_reference(struct extent_map *map)
{
        struct extent_run runs[REFERENCE_UNITS];
        uint32_t n_runs = reference_free_runs(runs);
        uint64_t n_free = 0, largest = 0;

        for (uint32_t i = 0; i < n_runs; i++) {
                n_free += runs[i].count;
                if (runs[i].count > largest)
                        largest = runs[i].count;
        }
        ck_assert_uint_eq(extent_map_free_units(map), n_free);
        ck_assert_uint_eq(extent_map_free_runs(map), n_runs);
        ck_assert_uint_eq(extent_map_largest(map), largest);
}

/* What is allocated, in the parts it will be released in. */
static struct extent_run parts[PARTS_MAX];
static uint32_t n_parts;

static void alloc_like_reference(struct extent_map *map)
{
        uint64_t count = 1 + random_below(random_below(8) ? 24 : REFERENCE_UNITS / 2);
        uint32_t max_runs = 1 + (uint32_t)random_below(12), n_runs = 99;
        uint32_t expected = reference_n_runs(count, max_runs);
        struct extent_run runs[RUNS_MAX];
        uint64_t sum = 0;
        int r = extent_map_alloc(map, count, max_runs, runs, &n_runs);

        if (expected == 0) {
                ck_assert_int_eq(r, EXTENT_E_FULL);
                ck_assert_uint_eq(n_runs, 99);
                return;
        }
        ck_assert_int_eq(r, 0);
        ck_assert_uint_eq(n_runs, expected);
        if (n_runs == 1)
                ck_assert_uint_eq(runs[0].first, reference_best_fit(count).first);
        for (uint32_t i = 0; i < n_runs; i++) {
                reference_mark(runs[i], 1);
                sum += runs[i].count;
                parts[n_parts++] = runs[i];
        }
        ck_assert_uint_eq(sum, count);
}

static void take_like_reference(struct extent_map *map)
{
        struct extent_run run = {random_below(REFERENCE_UNITS + 4), 1 + random_below(12)};
        int expected = 0;

        for (uint64_t i = run.first; i < run.first + run.count; i++)
                if (i >= REFERENCE_UNITS || used[i])
                        expected = EXTENT_E_TAKEN;
        ck_assert_int_eq(extent_map_take(map, run), expected);
        if (expected != 0)
                return;
        reference_mark(run, 1);
        parts[n_parts++] = run;
}

static void release_like_reference(struct extent_map *map)
{
        uint32_t index = (uint32_t)random_below(n_parts);
        struct extent_run *part = &parts[index], run = *part;

        if (run.count >= 2 && random_below(4) == 0) {
                ck_assert_int_eq(extent_map_allow_parts(map, 1), 0);
                run.count = 1 + random_below(run.count - 1);
                part->first += run.count;
                part->count -= run.count;
        } else {
                *part = parts[--n_parts];
        }
        extent_map_release(map, run);
        reference_mark(run, 0);
}

START_TEST(every_step_agrees_with_a_bitmap)
{
        _cleanup_(extent_map_freep) struct extent_map *map = NULL;

        ck_assert_int_eq(extent_map_new(&map, REFERENCE_UNITS), 0);
        for (int step = 0; step < 200000; step++) {
                /* Drifts between nearly full and nearly empty. */
                uint64_t release_weight = (step / 3000) % 2 ? 60 : 40;

                if (n_parts > 0 && random_below(100) < release_weight)
                        release_like_reference(map);
                else if (random_below(8) == 0)
                        take_like_reference(map);
                else
                        alloc_like_reference(map);
                assert_same_as_reference(map);
        }
        while (n_parts > 0)
                release_like_reference(map);
        ck_assert_uint_eq(extent_map_largest(map), REFERENCE_UNITS);
}
END_TEST

START_TEST(releases_need_no_memory)
{
        enum { UNITS = 40000 };
        _cleanup_(extent_map_freep) struct extent_map *map = NULL;
        struct extent_run run;
        struct mallinfo2 before, after;
        uint32_t n_runs;

        ck_assert_int_eq(extent_map_new(&map, UNITS), 0);
        for (int i = 0; i < UNITS; i++)
                ck_assert_int_eq(extent_map_alloc(map, 1, 1, &run, &n_runs), 0);
        ck_assert_uint_eq(extent_map_largest(map), 0);
        before = mallinfo2();
        for (uint64_t i = 0; i < UNITS; i += 2)
                extent_map_release(map, (struct extent_run){i, 1});
        after = mallinfo2();
        ck_assert_uint_eq(extent_map_free_runs(map), UNITS / 2);
        ck_assert_uint_eq(before.uordblks + before.hblkhd, after.uordblks + after.hblkhd);
        for (uint64_t i = 1; i < UNITS; i += 2)
                extent_map_release(map, (struct extent_run){i, 1});
        ck_assert_uint_eq(extent_map_largest(map), UNITS);
}
END_TEST

START_TEST(a_map_of_nothing_is_full)
{
        _cleanup_(extent_map_freep) struct extent_map *map = NULL;
        struct extent_run run;
        uint32_t n_runs;

        ck_assert_int_eq(extent_map_new(&map, 0), 0);
        ck_assert_int_eq(extent_map_alloc(map, 1, 1, &run, &n_runs), EXTENT_E_FULL);
        ck_assert_int_eq(extent_map_take(map, (struct extent_run){0, 1}), EXTENT_E_TAKEN);
        ck_assert_uint_eq(extent_map_largest(map), 0);
}
END_TEST

START_TEST(runs_at_the_end_of_the_numbers_are_refused)
{
        _cleanup_(extent_map_freep) struct extent_map *map = NULL;

        ck_assert_int_eq(extent_map_new(&map, 100), 0);
        ck_assert_int_eq(extent_map_take(map, (struct extent_run){UINT64_MAX, 2}), EXTENT_E_TAKEN);
        ck_assert_int_eq(extent_map_take(map, (struct extent_run){1, UINT64_MAX}), EXTENT_E_TAKEN);
        ck_assert_int_eq(extent_map_take(map, (struct extent_run){99, 2}), EXTENT_E_TAKEN);
        ck_assert_int_eq(extent_map_take(map, (struct extent_run){99, 1}), 0);
        ck_assert_int_eq(extent_map_take(map, (struct extent_run){0, 99}), 0);
        ck_assert_uint_eq(extent_map_free_units(map), 0);
}
END_TEST

START_TEST(a_release_of_free_units_is_our_own_mistake)
{
        struct extent_map *map = NULL;

        ck_assert_int_eq(extent_map_new(&map, 100), 0);
        ck_assert_int_eq(extent_map_take(map, (struct extent_run){10, 10}), 0);
        extent_map_release(map, (struct extent_run){15, 10});
}
END_TEST

/*
 * Ageing. Units are 4 KiB, the arena 1 GiB. Objects come without end; when there is no
 * room victims go, either any one or the longest unused of objects that are touched at
 * random, until there is. The second half is measured.
 */
enum { ARENA_UNITS = 262144, MIB_UNITS = 256, OBJECTS = 30000 };

enum mix { LOG_UNIFORM, CLASSES, CLASSES_BY_BYTES, BOTH, N_MIXES };

static const uint64_t class_units[] = {16, 384, 1536, 9984}; /* 64 KiB, 1.5, 6, 39 MiB */

static uint64_t pick_units(enum mix mix)
{
        /* 624 64-KiB objects to 26 of 1.5 MiB, 6.5 of 6 MiB and one state: as many bytes each. */
        static const uint64_t weights[] = {1248, 52, 13, 2};
        uint64_t n = random_below(1248 + 52 + 13 + 2);
        uint64_t exponent = random_below(15);
        size_t i = 0;

        switch (mix) {
        case LOG_UNIFORM: /* 4 KiB to 128 MiB */
                return (1u << exponent) + random_below(1u << exponent);
        case CLASSES:
                return class_units[random_below(4)];
        case CLASSES_BY_BYTES:
                while (n >= weights[i])
                        n -= weights[i++];
                return class_units[i];
        default:
                return pick_units(random_below(2) ? LOG_UNIFORM : CLASSES);
        }
}

struct aged_object {
        uint64_t used_at;
        uint32_t n_runs;
        struct extent_run runs[RUNS_MAX];
};

static struct aged_object *objects[ARENA_UNITS];
static uint32_t n_objects;

struct ageing {
        struct extent_map *map;
        enum mix mix;
        bool by_age;
        uint64_t n_large, n_large_runs, lost_units_max;
        double filled_sum;
};

/* Age matters roughly: the oldest of a few, as touches have shuffled the order anyway. */
static uint32_t pick_victim(bool by_age)
{
        uint32_t victim = (uint32_t)random_below(n_objects);

        for (int i = 0; by_age && i < 16; i++) {
                uint32_t other = (uint32_t)random_below(n_objects);

                if (objects[other]->used_at < objects[victim]->used_at)
                        victim = other;
        }
        return victim;
}

static void evict(struct ageing *ageing)
{
        uint32_t index = pick_victim(ageing->by_age);
        struct aged_object *victim = objects[index];

        for (uint32_t i = 0; i < victim->n_runs; i++)
                extent_map_release(ageing->map, victim->runs[i]);
        free(victim);
        objects[index] = objects[--n_objects];
}

/* Room that is there, is enough, and isn't given is lost to fragmentation. */
static uint64_t store_object(struct ageing *ageing, uint64_t units, uint64_t now)
{
        struct aged_object *object = calloc(1, sizeof(*object));
        uint64_t lost = 0;

        ck_assert_ptr_nonnull(object);
        while (extent_map_alloc(ageing->map, units, RUNS_MAX, object->runs, &object->n_runs) != 0) {
                uint64_t n_free = extent_map_free_units(ageing->map);

                if (n_free >= units && n_free - units > lost)
                        lost = n_free - units;
                evict(ageing);
        }
        object->used_at = now;
        objects[n_objects++] = object;
        objects[random_below(n_objects)]->used_at = now;
        return lost;
}

static void age(struct ageing *ageing)
{
        for (uint64_t i = 0; i < OBJECTS; i++) {
                uint64_t units = pick_units(ageing->mix);
                uint64_t lost = store_object(ageing, units, i);

                if (i < OBJECTS / 2)
                        continue;
                if (lost > ageing->lost_units_max)
                        ageing->lost_units_max = lost;
                ageing->filled_sum += ARENA_UNITS - extent_map_free_units(ageing->map);
                if (units >= MIB_UNITS) {
                        ageing->n_large++;
                        ageing->n_large_runs += objects[n_objects - 1]->n_runs;
                }
        }
}

START_TEST(an_aged_arena_has_few_extents_and_loses_little)
{
        struct ageing ageing = {.mix = (enum mix)(_i / 2), .by_age = _i % 2};
        double runs, lost, filled;

        ck_assert_int_eq(extent_map_new(&ageing.map, ARENA_UNITS), 0);
        age(&ageing);
        runs = (double)ageing.n_large_runs / (double)ageing.n_large;
        lost = (double)ageing.lost_units_max / ARENA_UNITS;
        filled = ageing.filled_sum / (OBJECTS / 2) / ARENA_UNITS;
        printf("mix %d, %s: %.2f extents, at most %.1f %% lost, %.1f %% filled\n", (int)ageing.mix,
               ageing.by_age ? "oldest first" : "any victim", runs, lost * 100, filled * 100);
        ck_assert_double_le(runs, 4.0);
        ck_assert_double_le(lost, 0.10);
        ck_assert_double_ge(filled, 0.945);
        while (n_objects > 0)
                evict(&ageing);
        ck_assert_uint_eq(extent_map_largest(ageing.map), ARENA_UNITS);
        extent_map_free(ageing.map);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/extent");
        TCase *tcase = tcase_create("extent");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, every_step_agrees_with_a_bitmap);
        tcase_add_test(tcase, releases_need_no_memory);
        tcase_add_test(tcase, a_map_of_nothing_is_full);
        tcase_add_test(tcase, runs_at_the_end_of_the_numbers_are_refused);
        tcase_add_test_raise_signal(tcase, a_release_of_free_units_is_our_own_mistake, SIGABRT);
        tcase_add_loop_test(tcase, an_aged_arena_has_few_extents_and_loses_little, 0, 2 * N_MIXES);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
