// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>

#include "base/rdma_deadline.h"

static struct rdma_deadlines deadlines;
static struct rdma_deadline a, b, c;
static struct rdma_deadline *passed[8];
static int n_passed;

static void note(struct rdma_deadline *deadline)
{
        ck_assert(!deadline->is_set);
        passed[n_passed++] = deadline;
}

static void start(void)
{
        rdma_deadlines_init(&deadlines);
        a.on_passed = b.on_passed = c.on_passed = note;
}

START_TEST(the_earliest_comes_first_and_only_those_that_have_passed)
{
        start();
        ck_assert_uint_eq(rdma_deadlines_next_ns(&deadlines), RDMA_NEVER);
        rdma_deadline_set(&deadlines, &a, 30);
        rdma_deadline_set(&deadlines, &b, 10);
        rdma_deadline_set(&deadlines, &c, 20);
        ck_assert_uint_eq(rdma_deadlines_next_ns(&deadlines), 10);
        rdma_deadlines_run(&deadlines, 20);
        ck_assert_int_eq(n_passed, 2);
        ck_assert_ptr_eq(passed[0], &b);
        ck_assert_ptr_eq(passed[1], &c);
        ck_assert_uint_eq(rdma_deadlines_next_ns(&deadlines), 30);
}
END_TEST

START_TEST(equal_ones_are_kept_apart)
{
        start();
        rdma_deadline_set(&deadlines, &a, 10);
        rdma_deadline_set(&deadlines, &b, 10);
        rdma_deadline_set(&deadlines, &c, 10);
        rdma_deadline_clear(&deadlines, &b);
        rdma_deadlines_run(&deadlines, 10);
        ck_assert_int_eq(n_passed, 2);
        ck_assert(!b.is_set);
}
END_TEST

START_TEST(setting_again_moves_it_and_clearing_twice_is_once)
{
        start();
        rdma_deadline_set(&deadlines, &a, 10);
        rdma_deadline_set(&deadlines, &a, 40);
        rdma_deadlines_run(&deadlines, 39);
        ck_assert_int_eq(n_passed, 0);
        rdma_deadline_clear(&deadlines, &a);
        rdma_deadline_clear(&deadlines, &a);
        ck_assert_uint_eq(rdma_deadlines_next_ns(&deadlines), RDMA_NEVER);
}
END_TEST

/* As the end of a connection does with what is under way on it. */
static void clear_others(struct rdma_deadline *deadline)
{
        note(deadline);
        rdma_deadline_clear(&deadlines, &b);
        rdma_deadline_set(&deadlines, &c, 50);
}

START_TEST(one_that_passes_may_clear_and_set_others)
{
        start();
        a.on_passed = clear_others;
        rdma_deadline_set(&deadlines, &a, 10);
        rdma_deadline_set(&deadlines, &b, 11);
        rdma_deadline_set(&deadlines, &c, 12);
        rdma_deadlines_run(&deadlines, 20);
        ck_assert_int_eq(n_passed, 1);
        ck_assert_uint_eq(rdma_deadlines_next_ns(&deadlines), 50);
}
END_TEST

START_TEST(back_off_doubles_up_to_its_maximum_and_starts_anew)
{
        struct rdma_backoff backoff = {.min_ns = 100, .max_ns = 500};

        ck_assert_uint_eq(rdma_backoff_next(&backoff, 0), 100);
        ck_assert_uint_eq(rdma_backoff_next(&backoff, 0), 200);
        ck_assert_uint_eq(rdma_backoff_next(&backoff, 0), 400);
        ck_assert_uint_eq(rdma_backoff_next(&backoff, 0), 500);
        ck_assert_uint_eq(rdma_backoff_next(&backoff, 0), 500);
        rdma_backoff_reset(&backoff);
        ck_assert_uint_eq(rdma_backoff_next(&backoff, 0), 100);
}
END_TEST

START_TEST(chance_takes_less_than_a_quarter_of_it)
{
        for (uint32_t i = 0; i < 1000; i++) {
                struct rdma_backoff backoff = {.min_ns = 1000, .max_ns = 5000};
                uint64_t wait_ns = rdma_backoff_next(&backoff, i * 2654435761u);

                ck_assert_uint_gt(wait_ns, 750);
                ck_assert_uint_le(wait_ns, 1000);
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/rdma_deadline");
        TCase *all = tcase_create("rdma_deadline");
        SRunner *runner;
        int failed;

        tcase_add_test(all, the_earliest_comes_first_and_only_those_that_have_passed);
        tcase_add_test(all, equal_ones_are_kept_apart);
        tcase_add_test(all, setting_again_moves_it_and_clearing_twice_is_once);
        tcase_add_test(all, one_that_passes_may_clear_and_set_others);
        tcase_add_test(all, back_off_doubles_up_to_its_maximum_and_starts_anew);
        tcase_add_test(all, chance_takes_less_than_a_quarter_of_it);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
