// SPDX-License-Identifier: Apache-2.0
/* Pages become bytes, bytes pieces, and both extents that hold exactly these pages. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/pages.h"
#include "proto/status.h"

#define PIECE (uint64_t) CHECKSUM_PIECE_BYTES

static struct layout layout;

/* Shards of the paged group hold pages of 1,000 and of 3,000 bytes; then state and scratch. */
static void setup(void)
{
        const struct layout_row rows[] = {
                {.n_shards = 2, .page_bytes = 1000, .padded_bytes = 4096},
                {.first_shard = 2, .n_shards = 1, .page_bytes = 3000, .padded_bytes = 4096},
        };

        memset(&layout, 0, sizeof(layout));
        layout.chunk_tokens = 256;
        layout.n_groups = 3;
        layout.groups[0] =
                (struct layout_group){.kind = LAYOUT_ATTENTION, .n_shards = 4, .page_tokens = 16};
        layout.groups[1] = (struct layout_group){.kind = LAYOUT_STATE, .n_shards = 1};
        layout.groups[2] =
                (struct layout_group){.kind = LAYOUT_SCRATCH, .n_shards = 1, .page_tokens = 16};
        for (uint32_t i = 0; i < 2; i++)
                ck_assert_int_eq(layout_add_row(&layout, 0, &rows[i]), 0);
}

static uint32_t check(uint16_t group, uint16_t shard, uint32_t first, uint32_t n)
{
        const struct wire_key_item item = {.group = group, .shard = shard, .n_runs = 1};
        const struct wire_page_run run = {first, n};

        return pages_check(&layout, &item, &run);
}

START_TEST(only_pages_that_the_layout_knows_may_be_asked_for)
{
        ck_assert_uint_eq(check(0, 0, 0, 16), KVT_WIRE_OK);
        ck_assert_uint_eq(check(0, 2, 15, 1), KVT_WIRE_OK);
        ck_assert_uint_eq(check(0, 0, 0, 17), KVT_WIRE_INVALID);
        ck_assert_uint_eq(check(0, 0, 16, 1), KVT_WIRE_INVALID);
        ck_assert_uint_eq(check(0, 0, UINT32_MAX - 1, 1), KVT_WIRE_INVALID);
        ck_assert_uint_eq(check(0, 3, 0, 1), KVT_WIRE_INVALID); /* its row is not known */
        ck_assert_uint_eq(check(0, 4, 0, 1), KVT_WIRE_INVALID);
        ck_assert_uint_eq(check(1, 0, 0, 1), KVT_WIRE_INVALID);
        ck_assert_uint_eq(check(2, 0, 0, 1), KVT_WIRE_INVALID);
        ck_assert_uint_eq(check(3, 0, 0, 1), KVT_WIRE_INVALID);
}
END_TEST

START_TEST(bytes_of_a_page_are_those_of_its_shard)
{
        const struct wire_page_run runs[] = {{0, 2}, {5, 1}};
        struct page_range ranges[2];
        struct pages pages = {ranges, 2};

        for (uint16_t shard = 0; shard < 3; shard++) {
                const struct wire_key_item item = {.shard = shard, .n_runs = 2};
                uint64_t bytes = shard < 2 ? 1000 : 3000;

                pages_fill(&layout, &item, runs, ranges);
                ck_assert_uint_eq(ranges[0].offset, 0);
                ck_assert_uint_eq(ranges[0].length, 2 * bytes);
                ck_assert_uint_eq(ranges[1].offset, 5 * bytes);
                ck_assert_uint_eq(pages_bytes(&pages), 3 * bytes);
                ck_assert(pages_fit(&pages, 6 * bytes));
                ck_assert(!pages_fit(&pages, 6 * bytes - 1));
        }
        ck_assert(pages_fit(&(struct pages){0}, 0));
}
END_TEST

START_TEST(bytes_of_a_page_with_a_codec_are_those_that_are_stored)
{
        const struct wire_key_item item = {.n_runs = 1};
        const struct wire_page_run run = {3, 2};
        struct page_range range;

        layout.groups[0].codec = CODEC_FP8_TILE128;
        layout.rows[0].page_bytes = 4 * 256;
        pages_fill(&layout, &item, &run, &range);
        ck_assert_uint_eq(range.offset, 3 * 4 * 132);
        ck_assert_uint_eq(range.length, 2 * 4 * 132);
}
END_TEST

START_TEST(packed_pages_keep_their_order_and_their_bytes)
{
        const uint64_t raw_bytes = 8 * PIECE;
        struct page_range ranges[] = {{PIECE - 10, 20}, {PIECE + 100, 50}, {6 * PIECE + 5, 7}};
        struct pages pages = {ranges, 3};
        struct piece_set pieces = pages_pieces(&pages, raw_bytes);

        ck_assert_uint_eq(pieces.words[0], 0x43);
        pages_pack(&pages, &pieces, raw_bytes);
        ck_assert_uint_eq(ranges[0].offset, PIECE - 10);
        ck_assert_uint_eq(ranges[1].offset, PIECE + 100);
        ck_assert_uint_eq(ranges[2].offset, 2 * PIECE + 5);
        ck_assert_uint_eq(pages_bytes(&pages), 77);
}
END_TEST

START_TEST(extents_are_cut_where_runs_end_and_where_memory_does)
{
        struct host_extent of_copy[] = {
                {.arena_id = 1, .offset = 40960, .length = 8192},
                {.arena_id = 1, .offset = 4096, .length = 4096},
                {.arena_id = 2, .offset = 8192, .length = 8192},
        };
        struct host_copy copy = {.extents = of_copy, .n_extents = 3};
        struct page_range ranges[] = {{100, 50}, {8000, 5000}, {13000, 10}, {20000, 480}};
        struct pages pages = {ranges, 4};
        struct wire_extent extents[WIRE_EXTENTS_MAX];
        static const struct wire_extent expected[] = {
                {1, 0, 40960 + 100, 50},  {1, 0, 40960 + 8000, 192},
                {1, 0, 4096, 4096},       {2, 0, 8192, 5000 - 192 - 4096 + 10},
                {2, 0, 8192 + 7712, 480},
        };

        ck_assert_uint_eq(pages_extents(&pages, &copy, extents), 5);
        for (uint32_t i = 0; i < 5; i++)
                ck_assert_mem_eq(&extents[i], &expected[i], sizeof(expected[i]));
}
END_TEST

/* As many runs over as many extents as there can be. */
START_TEST(the_most_extents_fit_a_result)
{
        struct host_extent of_copy[HOST_EXTENTS_MAX];
        struct host_copy copy = {.extents = of_copy, .n_extents = HOST_EXTENTS_MAX};
        struct page_range ranges[WIRE_RUNS_MAX];
        struct pages pages = {ranges, WIRE_RUNS_MAX};
        struct wire_extent extents[WIRE_EXTENTS_MAX];
        uint64_t sum = 0;
        uint32_t n;

        for (uint32_t i = 0; i < HOST_EXTENTS_MAX; i++)
                of_copy[i] = (struct host_extent){.offset = i * 16384, .length = 4096};
        for (uint32_t i = 0; i < WIRE_RUNS_MAX; i++)
                ranges[i] = (struct page_range){i * 4096 + 2048, 4095};
        ranges[WIRE_RUNS_MAX - 1].length = 2048;
        n = pages_extents(&pages, &copy, extents);
        ck_assert_uint_eq(n, WIRE_RUNS_MAX + HOST_EXTENTS_MAX - 1);
        for (uint32_t i = 0; i < n; i++)
                sum += extents[i].length;
        ck_assert_uint_eq(sum, pages_bytes(&pages));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/pages");
        TCase *tcase = tcase_create("pages");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, only_pages_that_the_layout_knows_may_be_asked_for);
        tcase_add_test(tcase, bytes_of_a_page_are_those_of_its_shard);
        tcase_add_test(tcase, bytes_of_a_page_with_a_codec_are_those_that_are_stored);
        tcase_add_test(tcase, packed_pages_keep_their_order_and_their_bytes);
        tcase_add_test(tcase, extents_are_cut_where_runs_end_and_where_memory_does);
        tcase_add_test(tcase, the_most_extents_fit_a_result);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
