// SPDX-License-Identifier: Apache-2.0
/* What a start makes of a catalog: after death at any moment, and of hand-made ones. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/catalog.h"
#include "storage/superblock.h"
#include "tests/unit/storage/nvme_fixture.h"

#define MIB        (1u << 20)
#define FIRST_UNIT (SUPERBLOCK_AREA_BYTES / SEGMENT_UNIT_BYTES)
#define N_STORED   24u

static struct nvme_fixture fixture;
static uint32_t n_waited;

static void set_up(void)
{
        fixture_init(&fixture);
}

static void tear_down(void)
{
        fixture_deinit(&fixture);
}

static void store_all(struct nvme_fixture *of, struct driver_object *objects)
{
        for (uint32_t i = 0; i < N_STORED; i++)
                ck_assert_int_eq(driver_write(&of->driver, &objects[i]), 0);
}

static void make_objects(struct driver_object objects[N_STORED])
{
        for (uint32_t i = 0; i < N_STORED; i++)
                objects[i] = driver_object(i, 1 + 40000 * i);
}

START_TEST(death_keeps_everything_that_was_acknowledged)
{
        struct driver_object objects[N_STORED];

        fixture_set_members(&fixture, 2);
        make_objects(objects);
        fixture_die_after(&fixture, store_all, objects, N_STORED);
        ck_assert_uint_eq(fixture_open(&fixture), N_STORED);
        for (uint32_t i = 0; i < N_STORED; i++) {
                fixture_adopt(&fixture, &objects[i]);
                ck_assert_int_eq(driver_read(&fixture.driver, &objects[i]), 0);
        }
        fixture_close(&fixture);
}
END_TEST

static void store_and_leave_writes(struct nvme_fixture *of, struct driver_object *objects)
{
        static struct driver_request requests[N_STORED];

        for (uint32_t i = 0; i < N_STORED; i++)
                ck_assert_int_eq(driver_submit_write(&of->driver, &requests[i], &objects[i],
                                                     (uint64_t)i * MIB),
                                 0);
        /* Some are through, the others anywhere between memory and catalog. */
        for (uint32_t i = 0; i < n_waited; i++)
                driver_wait(&requests[i]);
        for (uint32_t i = 0; i < N_STORED; i++)
                if (!requests[i].is_done)
                        objects[i].place.claim = 0;
}

/* Everything that came back is whole; what it takes is what is in use. */
static void check_survivors(const struct driver_object *objects, uint32_t n)
{
        struct driver *driver = &fixture.driver;
        uint64_t used = 0;

        for (uint32_t i = 0; i < driver->n_found; i++) {
                struct driver_object object = driver->found[i];

                for (uint32_t j = 0; j < n; j++)
                        if (object_key_equal(&objects[j].object.key, &object.object.key))
                                object.seed = objects[j].seed;
                ck_assert_int_eq(driver_read(driver, &object), 0);
                used += driver->tier->ops.footprint(driver->tier, object.object.raw_bytes, 0);
        }
        ck_assert_uint_eq(driver_usage(driver).used_bytes, used);
        ck_assert_uint_eq(driver_usage(driver).objects, driver->n_found);
}

START_TEST(death_in_mid_write_leaves_nothing_half_written)
{
        struct driver_object objects[N_STORED];

        for (uint32_t i = 0; i < N_STORED; i++)
                objects[i] = driver_object(100 * (uint32_t)_i + i, 1 + 40000 * i);
        n_waited = 3 * (uint32_t)_i;
        fixture_die_after(&fixture, store_and_leave_writes, objects, N_STORED);
        ck_assert_uint_ge(fixture_open(&fixture), n_waited);
        for (uint32_t i = 0; i < N_STORED; i++)
                if (objects[i].place.claim)
                        ck_assert_ptr_nonnull(driver_find(&fixture.driver, &objects[i]));
        check_survivors(objects, N_STORED);
        fixture_close(&fixture);
}
END_TEST

static void store_and_forget_half(struct nvme_fixture *of, struct driver_object *objects)
{
        store_all(of, objects);
        for (uint32_t i = 0; i < N_STORED; i += 2)
                ck_assert_int_eq(driver_forget(&of->driver, &objects[i], i & 2), 0);
}

START_TEST(death_does_not_bring_back_what_was_forgotten)
{
        struct driver_object objects[N_STORED];

        make_objects(objects);
        fixture_die_after(&fixture, store_and_forget_half, objects, N_STORED);
        ck_assert_uint_eq(fixture_open(&fixture), N_STORED / 2);
        for (uint32_t i = 0; i < N_STORED; i++)
                ck_assert_int_eq(!driver_find(&fixture.driver, &objects[i]), !(i & 1));
        fixture_close(&fixture);
}
END_TEST

static void take_a_claim_and_die(struct nvme_fixture *of, struct driver_object *objects)
{
        ck_assert_int_eq(driver_write(&of->driver, &objects[0]), 0);
        ck_assert_int_eq(driver_forget(&of->driver, &objects[0], false), 0);
}

static void take_a_claim_and_close(struct nvme_fixture *of, struct driver_object *objects)
{
        take_a_claim_and_die(of, objects);
        fixture_close(of);
}

START_TEST(claims_are_never_repeated)
{
        uint64_t highest = 0;

        for (uint32_t round = 0; round < 4; round++) {
                struct driver_object object = driver_object(round, 4096);

                fixture_die_after(&fixture,
                                  round & 1 ? take_a_claim_and_die : take_a_claim_and_close,
                                  &object, 1);
                ck_assert_uint_gt(object.place.claim, highest);
                highest = object.place.claim;
        }
}
END_TEST

/* An entry of @n_units units from @first under a key of its own. */
static struct catalog_entry entry_at(uint32_t number, uint64_t claim, uint64_t first,
                                     uint32_t n_units)
{
        struct driver_object object = driver_object(number, (n_units - 1) * SEGMENT_UNIT_BYTES);
        struct catalog_entry entry = {
                .object = object.object,
                .claim = claim,
                .epoch = 1,
                .stored_bytes = object.object.raw_bytes,
                .n_extents = 1,
        };

        entry.extents[0] = (struct segment_extent){.first = first, .count = n_units, .member = 0};
        return entry;
}

/* Opens a pool whose catalog holds these entries as well; the number that survived. */
static uint32_t open_with(const struct catalog_entry *entries, uint32_t n)
{
        struct database *catalog = fixture_open_catalog(&fixture);

        for (uint32_t i = 0; i < n; i++)
                fixture_put_entry(&fixture, catalog, &entries[i]);
        fixture_close_catalog(&fixture, catalog);
        return fixture_open(&fixture);
}

static bool survived(uint32_t number, uint32_t n_units)
{
        struct driver_object object = driver_object(number, (n_units - 1) * SEGMENT_UNIT_BYTES);

        return driver_find(&fixture.driver, &object);
}

static void make_pool(void)
{
        fixture_open(&fixture);
        fixture_close(&fixture);
}

START_TEST(of_overlapping_entries_the_highest_claim_stays)
{
        struct catalog_entry entries[] = {
                entry_at(1, 10, FIRST_UNIT, 10),      entry_at(2, 12, FIRST_UNIT + 5, 10),
                entry_at(3, 11, FIRST_UNIT + 14, 10), entry_at(4, 13, FIRST_UNIT + 30, 10),
                entry_at(5, 14, FIRST_UNIT + 40, 10), entry_at(6, 7, FIRST_UNIT + 30, 20),
        };

        make_pool();
        ck_assert_uint_eq(open_with(entries, 6), 3);
        ck_assert(!survived(1, 10));
        ck_assert(survived(2, 10));
        ck_assert(!survived(3, 10));
        ck_assert(survived(4, 10));
        ck_assert(survived(5, 10));
        ck_assert(!survived(6, 20));
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, 30 * 4096);
        ck_assert(fixture_was_told(&fixture, "3 catalog entries"));
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_count_entries(&fixture), 3);
}
END_TEST

START_TEST(an_entry_under_a_dead_one_is_dead_too)
{
        /* 1 was overwritten by 2, 2 by 3: that 3 does not touch 1 does not revive it. */
        struct catalog_entry entries[] = {
                entry_at(1, 10, FIRST_UNIT, 10),
                entry_at(2, 11, FIRST_UNIT + 8, 10),
                entry_at(3, 12, FIRST_UNIT + 16, 10),
        };

        make_pool();
        ck_assert_uint_eq(open_with(entries, 3), 1);
        ck_assert(survived(3, 10));
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_dead_extent_kills_the_whole_entry)
{
        struct catalog_entry entries[] = {
                entry_at(1, 10, FIRST_UNIT, 20),
                entry_at(2, 11, FIRST_UNIT + 105, 2),
        };

        entries[0].n_extents = 2;
        entries[0].extents[0].count = 10;
        entries[0].extents[1] = (struct segment_extent){.first = FIRST_UNIT + 100, .count = 10};
        make_pool();
        ck_assert_uint_eq(open_with(entries, 2), 1);
        ck_assert(survived(2, 2));
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, 2 * 4096);
        fixture_close(&fixture);
}
END_TEST

START_TEST(entries_that_cannot_be_true_are_dropped)
{
        const uint64_t end = 32 * MIB / SEGMENT_UNIT_BYTES;
        struct catalog_entry entries[] = {
                entry_at(1, 10, FIRST_UNIT, 10),      entry_at(2, 11, FIRST_UNIT - 1, 2),
                entry_at(3, 12, end - 5, 10),         entry_at(4, 13, FIRST_UNIT + 50, 10),
                entry_at(5, 14, FIRST_UNIT + 70, 10), entry_at(6, 15, FIRST_UNIT + 90, 10),
                entry_at(7, 16, end - 10, 10),
        };

        entries[3].extents[0].member = 1; /* there is none */
        entries[4].epoch = 7;
        entries[5].n_extents = 2; /* overlaps itself */
        entries[5].extents[0].count = 5;
        entries[5].extents[1] = (struct segment_extent){.first = FIRST_UNIT + 92, .count = 5};
        make_pool();
        ck_assert_uint_eq(open_with(entries, 7), 2);
        ck_assert(survived(1, 10));
        ck_assert(survived(7, 10));
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_count_entries(&fixture), 2);
}
END_TEST

START_TEST(of_two_generations_the_newer_stays)
{
        struct catalog_entry entries[] = {
                entry_at(1, 10, FIRST_UNIT, 10),
                entry_at(1, 11, FIRST_UNIT + 20, 10),
                entry_at(2, 12, FIRST_UNIT + 40, 10),
                entry_at(2, 13, FIRST_UNIT + 60, 10),
        };
        struct driver_object object = driver_object(2, 9 * SEGMENT_UNIT_BYTES);

        entries[0].object.generation = 5;
        entries[1].object.generation = 6;
        entries[2].object.generation = 6; /* the newer one was written first */
        entries[3].object.generation = 5;
        object.object.generation = 6;
        make_pool();
        ck_assert_uint_eq(open_with(entries, 4), 2);
        ck_assert_ptr_nonnull(driver_find(&fixture.driver, &object));
        ck_assert_uint_eq(driver_find(&fixture.driver, &object)->place.claim, 12);
        fixture_close(&fixture);
}
END_TEST

START_TEST(an_entry_whose_bytes_never_came_is_corrupt_not_returned)
{
        struct catalog_entry entry = entry_at(1, 10, FIRST_UNIT + 100, 10);
        struct driver_object object = driver_object(1, 9 * SEGMENT_UNIT_BYTES);

        make_pool();
        ck_assert_uint_eq(open_with(&entry, 1), 1);
        fixture_adopt(&fixture, &object);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
        ck_assert_int_eq(driver_forget(&fixture.driver, &object, false), 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(space_of_survivors_is_not_given_out)
{
        struct driver_object kept = driver_object(1, MIB);
        uint32_t n = 0;

        fixture_open(&fixture);
        ck_assert_int_eq(driver_write(&fixture.driver, &kept), 0);
        fixture_close(&fixture);
        fixture_open(&fixture);
        for (;; n++) {
                struct driver_object object = driver_object(100 + n, MIB);
                int r = driver_write(&fixture.driver, &object);

                if (r == TIER_E_FULL)
                        break;
                ck_assert_int_eq(r, 0);
        }
        ck_assert_uint_ge(n, 28);
        fixture_adopt(&fixture, &kept);
        ck_assert_int_eq(driver_read(&fixture.driver, &kept), 0);
        fixture_close(&fixture);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/nvme recover");
        TCase *tcase = tcase_create("recover");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, death_keeps_everything_that_was_acknowledged);
        tcase_add_loop_test(tcase, death_in_mid_write_leaves_nothing_half_written, 0, 5);
        tcase_add_test(tcase, death_does_not_bring_back_what_was_forgotten);
        tcase_add_test(tcase, claims_are_never_repeated);
        tcase_add_test(tcase, of_overlapping_entries_the_highest_claim_stays);
        tcase_add_test(tcase, an_entry_under_a_dead_one_is_dead_too);
        tcase_add_test(tcase, a_dead_extent_kills_the_whole_entry);
        tcase_add_test(tcase, entries_that_cannot_be_true_are_dropped);
        tcase_add_test(tcase, of_two_generations_the_newer_stays);
        tcase_add_test(tcase, an_entry_whose_bytes_never_came_is_corrupt_not_returned);
        tcase_add_test(tcase, space_of_survivors_is_not_given_out);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
