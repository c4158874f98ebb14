// SPDX-License-Identifier: Apache-2.0
/* Layouts that the NVMe tier keeps: over restarts, bounded, and never another's. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/catalog.h"
#include "tests/unit/storage/nvme_fixture.h"

/* The bounds of storage/nvme_layouts.c: 16 MiB of encodings, the longest of 32 KiB. */
#define N_LONGEST 512u

static struct nvme_fixture fixture;
static struct tier_layout found[N_LONGEST + 1];
static uint8_t found_bytes[N_LONGEST + 1];
static uint32_t n_found;
static uint8_t encoding[LAYOUT_BYTES_MAX];

static void set_up(void)
{
        fixture_init(&fixture);
}

static void tear_down(void)
{
        fixture_deinit(&fixture);
}

/* Bytes with their right id: the tier does not look into an encoding. */
static struct tier_layout layout_of(uint32_t number, uint32_t length)
{
        struct tier_layout layout = {.domain = 3, .length = length, .encoding = encoding};

        memset(encoding, 0x5a, length);
        memcpy(encoding, &number, sizeof(number));
        ck_assert_int_eq(layout_id(&layout.id, encoding, length), 0);
        return layout;
}

static void on_layout(void *user, const struct tier_layout *layout)
{
        struct digest id;

        (void)user;
        ck_assert_uint_eq(fixture.driver.n_found, 0); /* before any object */
        ck_assert_int_eq(layout_id(&id, layout->encoding, layout->length), 0);
        ck_assert(digest_equal(&id, &layout->id));
        found_bytes[n_found] = layout->encoding[0];
        found[n_found++] = *layout;
}

/* Opens and recovers; the layouts that were reported. */
static uint32_t open_and_count(void)
{
        n_found = 0;
        ck_assert_int_eq(fixture_try_open(&fixture), 0);
        fixture.driver.tier->on_layout = on_layout;
        driver_recover(&fixture.driver);
        return n_found;
}

static int keep(const struct tier_layout *layout)
{
        struct tier *tier = fixture.driver.tier;

        return tier->ops.keep_layout(tier, layout);
}

START_TEST(layouts_come_back_before_the_objects)
{
        struct driver_object object = driver_object(1, 5000);
        struct tier_layout layout = layout_of(7, 300);

        ck_assert_uint_eq(open_and_count(), 0);
        ck_assert_int_eq(keep(&layout), 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        fixture_close(&fixture);
        ck_assert_uint_eq(open_and_count(), 1);
        ck_assert_uint_eq(fixture.driver.n_found, 1);
        ck_assert(digest_equal(&found[0].id, &layout.id));
        ck_assert_uint_eq(found[0].domain, 3);
        ck_assert_uint_eq(found[0].length, 300);
        ck_assert_uint_eq(found_bytes[0], 7);
        fixture_close(&fixture);
}
END_TEST

static void keep_and_store(struct nvme_fixture *of, struct driver_object *objects)
{
        struct tier_layout layout = layout_of(9, 1000);

        ck_assert_int_eq(of->driver.tier->ops.keep_layout(of->driver.tier, &layout), 0);
        ck_assert_int_eq(driver_write(&of->driver, &objects[0]), 0);
}

START_TEST(an_object_never_survives_without_its_layout)
{
        struct driver_object object = driver_object(1, 5000);

        fixture_die_after(&fixture, keep_and_store, &object, 1);
        ck_assert_uint_eq(open_and_count(), 1);
        ck_assert_uint_eq(fixture.driver.n_found, 1);
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_forgotten_layout_stays_away)
{
        struct tier_layout one = layout_of(1, 100), other = layout_of(2, 100);

        open_and_count();
        ck_assert_int_eq(keep(&other), 0);
        one.encoding = (const uint8_t *)"\1\0\0\0";
        one.length = 4;
        ck_assert_int_eq(layout_id(&one.id, one.encoding, one.length), 0);
        ck_assert_int_eq(keep(&one), 0);
        fixture.driver.tier->ops.forget_layout(fixture.driver.tier, &one);
        fixture_close(&fixture);
        ck_assert_uint_eq(open_and_count(), 1);
        ck_assert(digest_equal(&found[0].id, &other.id));
        fixture_close(&fixture);
}
END_TEST

START_TEST(bytes_that_are_kept_are_bounded_over_restarts_too)
{
        struct tier_layout layout;

        open_and_count();
        for (uint32_t i = 0; i < N_LONGEST; i++) {
                layout = layout_of(i, LAYOUT_BYTES_MAX);
                ck_assert_int_eq(keep(&layout), 0);
        }
        layout = layout_of(N_LONGEST, LAYOUT_BYTES_MAX);
        ck_assert_int_eq(keep(&layout), TIER_E_FULL);
        fixture_close(&fixture);
        ck_assert_uint_eq(open_and_count(), N_LONGEST);
        ck_assert_int_eq(keep(&layout), TIER_E_FULL);
        fixture.driver.tier->ops.forget_layout(fixture.driver.tier, &found[0]);
        ck_assert_int_eq(keep(&layout), 0);
        fixture_close(&fixture);
}
END_TEST

static void on_put(struct database_op *op, int result)
{
        ck_assert_int_eq(result, 0);
        free(op);
}

/* Puts @layout into the catalog of a closed pool, with byte @flip of the value changed. */
static void put_damaged(const struct tier_layout *layout, size_t flip)
{
        struct database *catalog = fixture_open_catalog(&fixture);
        size_t bytes = sizeof(struct catalog_layout_head) + layout->length;
        struct database_op *op = calloc(1, sizeof(*op));
        uint8_t *value = malloc(bytes);

        catalog_layout_encode(value, layout);
        value[flip] ^= 4;
        op->on_done = on_put;
        catalog_put_layout(catalog, op, layout, value, bytes);
        fixture_close_catalog(&fixture, catalog);
}

START_TEST(a_damaged_layout_is_neither_reported_nor_kept)
{
        struct tier_layout layout = layout_of(1, 64), impostor;
        uint64_t bytes_each = sizeof(struct catalog_layout_head) + layout.length;

        open_and_count();
        fixture_close(&fixture);
        for (size_t i = 0; i < bytes_each; i += 5) {
                put_damaged(&layout, i);
                ck_assert_uint_eq(open_and_count(), 0);
                fixture_close(&fixture);
        }
        /* With a good checksum, but under an id that is not its own. */
        impostor = layout;
        impostor.id.bytes[0] ^= 1;
        open_and_count();
        ck_assert_int_eq(keep(&impostor), 0);
        fixture_close(&fixture);
        ck_assert_uint_eq(open_and_count(), 0);
        fixture_close(&fixture);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/nvme layouts");
        TCase *tcase = tcase_create("layouts");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, layouts_come_back_before_the_objects);
        tcase_add_test(tcase, an_object_never_survives_without_its_layout);
        tcase_add_test(tcase, a_forgotten_layout_stays_away);
        tcase_add_test(tcase, bytes_that_are_kept_are_bounded_over_restarts_too);
        tcase_add_test(tcase, a_damaged_layout_is_neither_reported_nor_kept);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
