// SPDX-License-Identifier: Apache-2.0
/*
 * Objects that are replaced, with writes and reads of the older ones in flight: what is old
 * never comes back.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cache_world.h"
#include "tests/support/fake_tier.h"

/* The first generation's write is at the tier, and stays there. */
static void put_first_in_flight(void)
{
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(fake_tier_held(cache.nvme) == 1);
}

/* What was there before has to be forgotten before the answer. */
static void replace_by(uint8_t value)
{
        bool forgetting = false;

        ck_assert_int_eq(world_put(1, value, true, &forgetting), 0);
        ck_assert_msg(forgetting, "generation %u does not wait for the older ones", value);
}

static void expect_no_answer(void)
{
        world_spin(20);
        ck_assert_uint_eq(n_forgotten, 0);
}

static void expect_answers(unsigned n)
{
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == n && world_is_below(1));
        ck_assert_uint_eq(world_tier_objects(), 1);
}

START_TEST(a_replaced_generation_in_flight_never_enters_the_catalog)
{
        put_first_in_flight();
        replace_by(2);
        ck_assert_uint_eq(n_forgotten, 0);
        expect_answers(1);
        ck_assert_uint_eq(world_first_byte(world_copy(1)), 2);
}
END_TEST

START_TEST(a_replaced_generation_that_got_in_is_forgotten_before_the_answer)
{
        fake_tier_ask_early(cache.nvme, true);
        put_first_in_flight();
        replace_by(2);
        fake_tier_release(cache.nvme, 1); /* the write; the forget is held */
        expect_no_answer();
        expect_answers(1);
}
END_TEST

START_TEST(every_replacement_waits_for_the_write_of_the_first_generation)
{
        fake_tier_ask_early(cache.nvme, true);
        put_first_in_flight();
        replace_by(2);
        replace_by(3);
        expect_no_answer();
        expect_answers(2);
        ck_assert_uint_eq(world_first_byte(world_copy(1)), 3);
}
END_TEST

START_TEST(a_generation_that_was_dropped_in_flight_is_gone_before_the_answer)
{
        fake_tier_ask_early(cache.nvme, true);
        put_first_in_flight();
        cache_drop(&cache, world_find(1), METRICS_RECLAIMED);
        replace_by(2);
        fake_tier_release(cache.nvme, 1); /* the write; the forget is held */
        expect_no_answer();
        expect_answers(1);
}
END_TEST

START_TEST(a_write_that_is_cancelled_leaves_older_deletes_to_be_waited_for)
{
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1) && transfers_are_idle(&cache.transfers));
        cache_drop(&cache, world_find(1), METRICS_FOR_SPACE);
        wait_until(!cache.n_forgetting);
        fake_tier_hold(cache.nvme, true);
        ck_assert_int_eq(world_put(1, 2, false, NULL), 0);
        wait_until(fake_tier_held(cache.nvme) == 1);
        replace_by(3);
        fake_tier_release(cache.nvme, 1); /* the write of the second generation */
        wait_until(cache.n_syncing || n_forgotten);
        ck_assert_uint_eq(n_forgotten, 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1 && world_is_below(1));
}
END_TEST

START_TEST(after_a_write_that_failed_a_sync_tells_whether_its_entry_can_come_back)
{
        fake_tier_fail_writes(cache.nvme, 1, -EIO);
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(metrics.tier_io_errors_total[METRICS_NVME] == 1);
        fake_tier_hold(cache.nvme, true);
        replace_by(2);
        expect_no_answer();
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1 && world_is_below(1));
}
END_TEST

START_TEST(a_stored_generation_is_durably_gone_before_the_answer)
{
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        fake_tier_hold(cache.nvme, true);
        replace_by(2);
        expect_no_answer();
        fake_tier_hold(cache.nvme, false);
        wait_until(n_forgotten == 1);
}
END_TEST

START_TEST(a_generation_that_was_dropped_before_is_durably_gone_before_the_answer)
{
        bool forgetting = false;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        wait_until(transfers_are_idle(&cache.transfers));
        cache_drop(&cache, world_find(1), METRICS_FOR_SPACE);
        wait_until(!cache.n_forgetting);
        replace_by(2);
        ck_assert_uint_eq(n_forgotten, 0);
        wait_until(n_forgotten == 1 && !cache.n_syncing);
        /* Nothing has been dropped since: nothing to wait for. */
        ck_assert_int_eq(world_put(2, 3, true, &forgetting), 0);
        ck_assert(!forgetting);
}
END_TEST

START_TEST(a_promotion_of_an_older_generation_is_not_published)
{
        struct host_copy *copy;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
        fake_tier_hold(cache.nvme, true);
        copy = world_promote(1);
        ck_assert_int_eq(world_put(1, 2, true, NULL), 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_uint_eq(copy->object, INDEX_NONE);
        ck_assert_uint_eq(world_first_byte(world_copy(1)), 2);
        host_copy_unuse(&cache.copies, copy);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache_generations");
        TCase *tcase = tcase_create("generations");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, world_begin, world_end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_replaced_generation_in_flight_never_enters_the_catalog);
        tcase_add_test(tcase, a_replaced_generation_that_got_in_is_forgotten_before_the_answer);
        tcase_add_test(tcase, every_replacement_waits_for_the_write_of_the_first_generation);
        tcase_add_test(tcase, a_generation_that_was_dropped_in_flight_is_gone_before_the_answer);
        tcase_add_test(tcase, a_write_that_is_cancelled_leaves_older_deletes_to_be_waited_for);
        tcase_add_test(tcase,
                       after_a_write_that_failed_a_sync_tells_whether_its_entry_can_come_back);
        tcase_add_test(tcase, a_stored_generation_is_durably_gone_before_the_answer);
        tcase_add_test(tcase,
                       a_generation_that_was_dropped_before_is_durably_gone_before_the_answer);
        tcase_add_test(tcase, a_promotion_of_an_older_generation_is_not_published);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
