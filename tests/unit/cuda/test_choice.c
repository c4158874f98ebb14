// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>

#include "cuda/choice.h"

#define KIB   UINT64_C(1024)
#define MIB   (KIB * KIB)
#define ALL   0xfu
#define PLAIN (1u << KVT_CUDA_PLAIN)
#define BATCH (1u << KVT_CUDA_BATCH)

static struct choice choice;

/* Runs of one length, in one place of the arena. */
static enum kvt_cuda_strategy find(uint64_t run_bytes, bool is_store)
{
        struct choice_shape shape = {.run_bytes = run_bytes, .span_bytes = 8 * MIB};

        return choice_find(&choice, is_store, &shape, true);
}

static void rate(unsigned row, unsigned way, double plain, double batch, double kernel,
                 double staged)
{
        double rates[KVT_CUDA_STRATEGIES] = {plain, batch, kernel, staged};

        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++)
                atomic_store(&choice.bytes_per_second[row][way][i], rates[i]);
}

START_TEST(until_it_is_measured_small_runs_are_gathered_and_large_ones_copied)
{
        choice_init(&choice, ALL);
        ck_assert_int_eq(find(4 * KIB, true), KVT_CUDA_STAGED);
        ck_assert_int_eq(find(256 * KIB, false), KVT_CUDA_BATCH);
        choice_init(&choice, ALL & ~BATCH);
        ck_assert_int_eq(find(2 * MIB, false), KVT_CUDA_PLAIN);
        ck_assert(!atomic_load(&choice.is_measured));
}
END_TEST

START_TEST(what_is_not_allowed_is_not_chosen)
{
        choice_init(&choice, PLAIN);
        for (unsigned row = 0; row < CHOICE_ROWS; row++)
                rate(row, KVT_CUDA_STORE, 1, 9, 9, 9);
        choice_decide(&choice);
        for (uint64_t bytes = KIB; bytes <= 4 * MIB; bytes *= 2)
                ck_assert_int_eq(find(bytes, true), KVT_CUDA_PLAIN);
        choice_init(&choice, 0);
        ck_assert_int_eq(find(4 * KIB, true), KVT_CUDA_PLAIN);
}
END_TEST

START_TEST(the_fastest_that_was_measured_is_taken_in_each_direction)
{
        choice_init(&choice, ALL);
        rate(0, KVT_CUDA_STORE, 2, 9, 48, 40);
        rate(0, KVT_CUDA_LOAD, 2, 3, 40, 48);
        rate(2, KVT_CUDA_STORE, 20, 50, 30, 30);
        choice_decide(&choice);
        ck_assert(atomic_load(&choice.is_measured));
        ck_assert_int_eq(find(4 * KIB, true), KVT_CUDA_KERNEL);
        ck_assert_int_eq(find(4 * KIB, false), KVT_CUDA_STAGED);
        ck_assert_int_eq(find(64 * KIB, true), KVT_CUDA_BATCH);
}
END_TEST

START_TEST(multiprocessors_are_taken_only_for_what_they_are_worth)
{
        choice_init(&choice, ALL);
        rate(1, KVT_CUDA_STORE, 49, 50, 51, 51);
        rate(3, KVT_CUDA_STORE, 50, 49, 51, 51);
        rate(4, KVT_CUDA_STORE, 40, 50, 51, 53);
        choice_decide(&choice);
        ck_assert_int_eq(find(16 * KIB, true), KVT_CUDA_BATCH);
        ck_assert_int_eq(find(256 * KIB, true), KVT_CUDA_PLAIN);
        ck_assert_int_eq(find(MIB, true), KVT_CUDA_STAGED);
}
END_TEST

START_TEST(a_run_goes_by_the_row_that_is_nearest)
{
        choice_init(&choice, ALL);
        rate(0, KVT_CUDA_LOAD, 1, 9, 1, 1);
        rate(1, KVT_CUDA_LOAD, 1, 1, 9, 1);
        choice_decide(&choice);
        ck_assert_int_eq(find(100, false), KVT_CUDA_BATCH);
        ck_assert_int_eq(find(7 * KIB, false), KVT_CUDA_BATCH);
        ck_assert_int_eq(find(9 * KIB, false), KVT_CUDA_KERNEL);
}
END_TEST

START_TEST(what_no_kernel_can_reach_is_staged_or_copied_plainly)
{
        struct choice_shape small = {.run_bytes = 4 * KIB, .span_bytes = 8 * MIB};
        struct choice_shape large = {.run_bytes = 2 * MIB, .span_bytes = 8 * MIB};

        choice_init(&choice, ALL);
        rate(0, KVT_CUDA_STORE, 1, 1, 9, 2);
        rate(CHOICE_ROWS - 1, KVT_CUDA_STORE, 9, 9, 1, 1);
        choice_decide(&choice);
        ck_assert_int_eq(choice_find(&choice, true, &small, false), KVT_CUDA_STAGED);
        ck_assert_int_eq(choice_find(&choice, true, &large, false), KVT_CUDA_PLAIN);
        choice_init(&choice, ALL & ~(1u << KVT_CUDA_STAGED));
        ck_assert_int_eq(choice_find(&choice, true, &small, false), KVT_CUDA_PLAIN);
}
END_TEST

START_TEST(small_places_in_the_arena_are_not_worth_staging)
{
        struct choice_shape shape = {.run_bytes = 4 * KIB, .span_bytes = 16 * KIB};

        choice_init(&choice, ALL);
        ck_assert_int_eq(choice_find(&choice, true, &shape, true), KVT_CUDA_KERNEL);
        shape.span_bytes = 64 * KIB;
        ck_assert_int_eq(choice_find(&choice, true, &shape, true), KVT_CUDA_STAGED);
        shape.span_bytes = 16 * KIB;
        choice_init(&choice, ALL & ~(1u << KVT_CUDA_KERNEL));
        ck_assert_int_eq(choice_find(&choice, true, &shape, true), KVT_CUDA_STAGED);
}
END_TEST

START_TEST(on_a_stream_of_the_callers_the_best_of_the_others_stands_in_for_staging)
{
        struct choice_shape small = {.run_bytes = 4 * KIB, .span_bytes = 8 * MIB};
        struct choice_shape middle = {.run_bytes = 64 * KIB, .span_bytes = 8 * MIB};

        choice_init(&choice, ALL);
        ck_assert_int_eq(choice_find_unstaged(&choice, true, &small, true), KVT_CUDA_KERNEL);
        rate(2, KVT_CUDA_STORE, 20, 46, 45, 51);
        choice_decide(&choice);
        ck_assert_int_eq(choice_find(&choice, true, &middle, true), KVT_CUDA_STAGED);
        ck_assert_int_eq(choice_find_unstaged(&choice, true, &middle, true), KVT_CUDA_BATCH);
        ck_assert_int_eq(choice_find_unstaged(&choice, true, &middle, false), KVT_CUDA_PLAIN);
        choice_init(&choice, 1u << KVT_CUDA_STAGED);
        ck_assert_int_eq(choice_find_unstaged(&choice, true, &small, true), KVT_CUDA_PLAIN);
}
END_TEST

START_TEST(neighbours_without_a_gap_are_one_run)
{
        static uint8_t memory[1];
        struct kvt__page_view view = {
                .base = memory, .page_stride = 4096, .row_bytes = 4096, .n_rows = 1};
        struct kvt__page_group group = {.n_pages = 100,
                                        .page_bytes = 4096,
                                        .stored_bytes = 4096,
                                        .n_views = 1,
                                        .views = &view};
        uint32_t slots[] = {4, 5, 6, 20};
        struct kvt_segment segments[] = {{.bytes = 8192}, {.bytes = 8192}};
        struct kvt__page_list list = {
                .group = &group, .slots = slots, .n_slots = 4, .segments = segments};

        ck_assert_uint_eq(choice_shape_of(&list).run_bytes, 8192);
        ck_assert_uint_eq(choice_shape_of(&list).span_bytes, 8192);
        view.page_stride = 5000;
        ck_assert_uint_eq(choice_shape_of(&list).run_bytes, 4096);
        view.row_bytes = 1024;
        view.n_rows = 4;
        ck_assert_uint_eq(choice_shape_of(&list).run_bytes, 1024);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("cuda/choice");
        TCase *tcase = tcase_create("choice");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_test(tcase, until_it_is_measured_small_runs_are_gathered_and_large_ones_copied);
        tcase_add_test(tcase, what_is_not_allowed_is_not_chosen);
        tcase_add_test(tcase, the_fastest_that_was_measured_is_taken_in_each_direction);
        tcase_add_test(tcase, multiprocessors_are_taken_only_for_what_they_are_worth);
        tcase_add_test(tcase, a_run_goes_by_the_row_that_is_nearest);
        tcase_add_test(tcase, what_no_kernel_can_reach_is_staged_or_copied_plainly);
        tcase_add_test(tcase, small_places_in_the_arena_are_not_worth_staging);
        tcase_add_test(tcase,
                       on_a_stream_of_the_callers_the_best_of_the_others_stands_in_for_staging);
        tcase_add_test(tcase, neighbours_without_a_gap_are_one_run);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
