// SPDX-License-Identifier: Apache-2.0
/* The tier in memory: a tier like any other, and one that fails when it is told to. */
#include <check.h>
#include <stdlib.h>

#include "tests/support/fake_tier.h"
#include "tests/support/tier_driver.h"
#include "tests/unit/storage/tier_conformance.h"

static void *make_store(const struct conformance_subject *subject)
{
        struct fake_store *store = NULL;

        return fake_store_new(&store, CONFORMANCE_BYTES) ? NULL : store;
}

static struct tier *open_fake(const struct conformance_subject *subject, void *made,
                              uv_loop_t *loop)
{
        struct tier *tier = NULL;

        return fake_tier_open(&tier, loop, made) ? NULL : tier;
}

static void remove_store(const struct conformance_subject *subject, void *made)
{
        fake_store_free(made);
}

static struct fake_store *store;
static struct driver driver;
static struct driver_object object;

/* An open tier that holds one object. */
static void set_up(void)
{
        struct tier *tier;

        ck_assert_int_eq(fake_store_new(&store, CONFORMANCE_BYTES), 0);
        driver_init(&driver, 4u << 20);
        ck_assert_int_eq(fake_tier_open(&tier, &driver.loop, store), 0);
        driver_attach(&driver, tier);
        object = driver_object(1, 65536);
        ck_assert_int_eq(driver_write(&driver, &object), 0);
}

static void tear_down(void)
{
        driver_close(&driver);
        driver_deinit(&driver);
        fake_store_free(store);
}

START_TEST(writes_and_reads_fail_as_often_as_told)
{
        struct driver_object other = driver_object(2, 65536);

        fake_tier_fail_writes(driver.tier, 1, -EIO);
        ck_assert_int_eq(driver_write(&driver, &other), -EIO);
        ck_assert_uint_eq(driver_usage(&driver).objects, 1);
        ck_assert_int_eq(driver_write(&driver, &other), 0);
        fake_tier_fail_reads(driver.tier, 1, TIER_E_STALE);
        ck_assert_int_eq(driver_read(&driver, &other), TIER_E_STALE);
        ck_assert_int_eq(driver_read(&driver, &other), 0);
        fake_tier_short_reads(driver.tier, 1);
        ck_assert_int_eq(driver_read(&driver, &other), -EIO);
        fake_tier_fail_forgets(driver.tier, 1, -EIO);
        ck_assert_int_eq(driver_forget(&driver, &other, false), -EIO);
        ck_assert_int_eq(driver_read(&driver, &other), 0);
}
END_TEST

START_TEST(a_corrupted_object_reads_as_corrupt)
{
        fake_tier_corrupt(driver.tier, object.place);
        ck_assert_int_eq(driver_read(&driver, &object), TIER_E_CORRUPT);
        ck_assert_uint_eq(driver_usage(&driver).corrupt_total, 1);
}
END_TEST

START_TEST(completions_are_held_and_released_one_by_one)
{
        struct driver_request reads[2];

        fake_tier_hold(driver.tier, true);
        for (uint32_t i = 0; i < 2; i++)
                ck_assert_int_eq(driver_submit_read(&driver, &reads[i], &object, i * 65536u), 0);
        for (int i = 0; i < 5; i++)
                uv_run(&driver.loop, UV_RUN_NOWAIT);
        ck_assert_uint_eq(fake_tier_held(driver.tier), 2);
        fake_tier_release(driver.tier, 1);
        ck_assert_int_eq(driver_wait(&reads[0]), 0);
        uv_run(&driver.loop, UV_RUN_NOWAIT);
        ck_assert(!reads[1].is_done);
        fake_tier_hold(driver.tier, false);
        ck_assert_int_eq(driver_wait(&reads[1]), 0);
}
END_TEST

static void on_ready(void *user)
{
        ++*(int *)user;
}

START_TEST(full_and_paused_are_answered_until_switched_off)
{
        struct driver_object other = driver_object(2, 65536);
        int n_ready = 0;

        driver.tier->on_ready = on_ready;
        driver.tier->on_ready_user = &n_ready;
        fake_tier_set_full(driver.tier, true);
        ck_assert_int_eq(driver_write(&driver, &other), TIER_E_FULL);
        fake_tier_set_full(driver.tier, false);
        fake_tier_set_paused(driver.tier, true);
        ck_assert_int_eq(driver_write(&driver, &other), TIER_E_PAUSED);
        ck_assert_int_eq(n_ready, 0);
        fake_tier_set_paused(driver.tier, false);
        ck_assert_int_eq(n_ready, 1);
        ck_assert_int_eq(driver_write(&driver, &other), 0);
}
END_TEST

static int run_faults(void)
{
        Suite *suite = suite_create("support/fake_tier faults");
        TCase *tcase = tcase_create("faults");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, writes_and_reads_fail_as_often_as_told);
        tcase_add_test(tcase, a_corrupted_object_reads_as_corrupt);
        tcase_add_test(tcase, completions_are_held_and_released_one_by_one);
        tcase_add_test(tcase, full_and_paused_are_answered_until_switched_off);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}

int main(void)
{
        static const struct conformance_subject subject = {
                .name = "fake",
                .make = make_store,
                .open = open_fake,
                .remove = remove_store,
        };

        return conformance_run("support/fake_tier", &subject, 1) | run_faults();
}
