// SPDX-License-Identifier: Apache-2.0
/* The last minutes of the counters: evenly spaced, oldest first, bounded. */
#include <check.h>

#include "daemon/status_history.h"

static struct status_history history;
static struct metrics metrics;

static void take(double seconds)
{
        metrics.misses_total++;
        status_history_take(&history, &metrics, seconds);
}

START_TEST(the_first_sample_is_taken_at_once_and_others_in_their_time)
{
        ck_assert_uint_eq(status_history_count(&history), 0);
        take(0.5);
        take(1);
        take(2.4);
        ck_assert_uint_eq(status_history_count(&history), 1);
        take(2.5);
        ck_assert_uint_eq(status_history_count(&history), 2);
        ck_assert_double_eq(status_history_at(&history, 0)->seconds, 0.5);
        ck_assert_double_eq(status_history_at(&history, 1)->seconds, 2.5);
        ck_assert_uint_eq(status_history_at(&history, 1)->misses, 4);
}
END_TEST

START_TEST(hits_of_all_tiers_are_one_number)
{
        metrics.hits_total[METRICS_HOST] = 1;
        metrics.hits_total[METRICS_NVME] = 20;
        metrics.hits_total[METRICS_REMOTE] = 300;
        metrics.stored_bytes_total = 4;
        metrics.loaded_bytes_total = 5;
        take(1);
        ck_assert_uint_eq(status_history_at(&history, 0)->hits, 321);
        ck_assert_uint_eq(status_history_at(&history, 0)->stored_bytes, 4);
        ck_assert_uint_eq(status_history_at(&history, 0)->loaded_bytes, 5);
}
END_TEST

START_TEST(the_oldest_make_way)
{
        for (uint32_t i = 0; i < 2 * STATUS_HISTORY_SIZE + 7; i++)
                take(STATUS_HISTORY_SECONDS * i);
        ck_assert_uint_eq(status_history_count(&history), STATUS_HISTORY_SIZE);
        for (uint32_t i = 0; i < STATUS_HISTORY_SIZE; i++)
                ck_assert_double_eq(status_history_at(&history, i)->seconds,
                                    STATUS_HISTORY_SECONDS * (STATUS_HISTORY_SIZE + 7 + i));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/status_history");
        TCase *tcase = tcase_create("ring"); /* each test in a process of its own */
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, the_first_sample_is_taken_at_once_and_others_in_their_time);
        tcase_add_test(tcase, hits_of_all_tiers_are_one_number);
        tcase_add_test(tcase, the_oldest_make_way);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
