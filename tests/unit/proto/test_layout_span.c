// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "proto/layout_span.h"

/* Of 8 ranks: one shard each, one for two neighbours, scratch, one for all, and one that is odd. */
static struct layout layout;

static void setup(void)
{
        static const struct {
                uint8_t kind;
                uint16_t n_shards;
        } groups[] = {{LAYOUT_ATTENTION, 8},
                      {LAYOUT_ATTENTION, 4},
                      {LAYOUT_SCRATCH, 8},
                      {LAYOUT_STATE, 1},
                      {LAYOUT_STATE, 3}};

        layout = (struct layout){.n_groups = 5};
        for (uint16_t i = 0; i < 5; i++) {
                layout.groups[i].kind = groups[i].kind;
                layout.groups[i].n_shards = groups[i].n_shards;
        }
}

static struct layout_span span_of(const uint16_t *shards, uint32_t n)
{
        struct layout_span span;

        layout_span_init(&span, &layout, shards, n);
        return span;
}

START_TEST(no_shards_named_are_all)
{
        struct layout_span span = span_of(NULL, 0);

        ck_assert_uint_eq(span.n_shards, 8);
        ck_assert_uint_eq(layout_span_count(&span), 8);
        ck_assert(layout_span_is_whole(&span));
}
END_TEST

START_TEST(all_shards_named_are_all)
{
        const uint16_t shards[] = {7, 6, 5, 4, 3, 2, 1, 0, 0};
        struct layout_span named = span_of(shards, 9), all = span_of(NULL, 0);

        ck_assert(layout_spans_equal(&named, &all));
}
END_TEST

START_TEST(shards_that_the_layout_has_not_do_not_count)
{
        const uint16_t shards[] = {2, 8, 1023};
        struct layout_span span = span_of(shards, 3);

        ck_assert_uint_eq(layout_span_count(&span), 1);
        ck_assert(!layout_span_is_whole(&span));
        span = span_of(shards + 1, 2);
        ck_assert_uint_eq(layout_span_count(&span), 0);
}
END_TEST

START_TEST(a_group_of_fewer_shards_has_them_on_neighbours)
{
        const uint16_t shards[] = {4, 5, 6};
        struct layout_span span = span_of(shards, 3);

        ck_assert(layout_span_has(&span, &layout, 0, 4) && layout_span_has(&span, &layout, 0, 6));
        ck_assert(!layout_span_has(&span, &layout, 0, 7));
        ck_assert(layout_span_has(&span, &layout, 1, 2) && layout_span_has(&span, &layout, 1, 3));
        ck_assert(!layout_span_has(&span, &layout, 1, 1));
        ck_assert(layout_span_has(&span, &layout, 3, 0));
        ck_assert(!layout_span_has(&span, &layout, 4, 0));
        ck_assert(layout_span_has(&span, &layout, 4, 1) && layout_span_has(&span, &layout, 4, 2));
}
END_TEST

/* Scratch has no cells: 8 of group 0, 4 of group 1, then 1 and 3. */
START_TEST(cells_are_those_of_the_shards)
{
        const uint16_t shards[] = {4, 5, 6};
        struct layout_span span = span_of(shards, 3);
        uint64_t cells[LAYOUT_CELL_WORDS];

        layout_span_cells(&span, &layout, cells);
        ck_assert_uint_eq(cells[0], 0x70u | 0xc00u | 0x1000u | 0xc000u);
        ck_assert_uint_eq(cells[1], 0);
}
END_TEST

/* What a span has and its cells are the same, for any shard of any group. */
START_TEST(each_cell_is_a_shard_that_it_has)
{
        for (uint16_t s = 0; s < 8; s++) {
                struct layout_span span = span_of(&s, 1);
                uint64_t cells[LAYOUT_CELL_WORDS];

                layout_span_cells(&span, &layout, cells);
                for (uint16_t g = 0; g < layout.n_groups; g++)
                        for (uint16_t i = 0; i < layout.groups[g].n_shards; i++) {
                                int cell = layout_cell(&layout, g, i);

                                if (cell >= 0)
                                        ck_assert_int_eq(cells[cell / 64] >> cell % 64 & 1,
                                                         layout_span_has(&span, &layout, g, i));
                        }
        }
}
END_TEST

START_TEST(the_last_of_many_shards_is_in_the_last_word)
{
        const uint16_t last = LAYOUT_SHARDS_MAX - 1;
        struct layout_span span;
        uint64_t cells[LAYOUT_CELL_WORDS];

        layout = (struct layout){.n_groups = 1};
        layout.groups[0].kind = LAYOUT_ATTENTION;
        layout.groups[0].n_shards = LAYOUT_SHARDS_MAX;
        span = span_of(&last, 1);
        layout_span_cells(&span, &layout, cells);
        ck_assert_uint_eq(cells[LAYOUT_CELL_WORDS - 1], UINT64_C(1) << 63);
        ck_assert(layout_span_has(&span, &layout, 0, last));
        ck_assert(!layout_span_has(&span, &layout, 0, last - 1));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/layout_span");
        TCase *tcase = tcase_create("spans");
        SRunner *runner;
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, no_shards_named_are_all);
        tcase_add_test(tcase, all_shards_named_are_all);
        tcase_add_test(tcase, shards_that_the_layout_has_not_do_not_count);
        tcase_add_test(tcase, a_group_of_fewer_shards_has_them_on_neighbours);
        tcase_add_test(tcase, cells_are_those_of_the_shards);
        tcase_add_test(tcase, each_cell_is_a_shard_that_it_has);
        tcase_add_test(tcase, the_last_of_many_shards_is_in_the_last_word);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
