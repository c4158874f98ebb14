// SPDX-License-Identifier: Apache-2.0
/* Parts of a layout, put together in any order, and everything in which they can disagree. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout_merge.h"

#define TEXT(literal) ((struct layout_string){(literal), sizeof(literal) - 1})
#define N_SHARDS      6u

static struct layout layout, other;
static struct layout_conflict conflict;
static uint8_t first[64], second[64];
static uint32_t first_bytes, second_bytes;

/* Shards 0 to 2 and 3 to 5 of each group hold the same. */
static struct layout_row row_of(uint16_t group, uint16_t shard)
{
        bool early = shard < 3;

        return (struct layout_row){
                .first_shard = shard,
                .n_shards = 1,
                .page_bytes = 7,
                .padded_bytes = 1000u * (group + 1u),
                .n_tensors = 1,
                .tensors = early ? first : second,
                .tensors_bytes = early ? first_bytes : second_bytes,
        };
}

/* A layout of two groups with the rows of the shards in @shards (bits). */
static void make(struct layout *ret_layout, unsigned shards)
{
        memset(ret_layout, 0, sizeof(*ret_layout));
        ret_layout->model = TEXT("model");
        ret_layout->tp = ret_layout->pp = ret_layout->cp = 1;
        ret_layout->n_groups = 2;
        ret_layout->groups[0] = (struct layout_group){.name = TEXT("kv"),
                                                      .kind = LAYOUT_ATTENTION,
                                                      .n_shards = N_SHARDS,
                                                      .page_tokens = 16};
        ret_layout->groups[1] = (struct layout_group){
                .name = TEXT("state"), .kind = LAYOUT_STATE, .n_shards = N_SHARDS};
        for (uint16_t group = 0; group < 2; group++)
                for (uint16_t shard = 0; shard < N_SHARDS; shard++) {
                        struct layout_row row = row_of(group, shard);

                        if (shards >> shard & 1)
                                ck_assert_int_eq(layout_add_row(ret_layout, group, &row), 0);
                }
        ret_layout->is_partial = !layout_is_complete(ret_layout);
}

static uint32_t tensor(uint8_t *buffer, struct layout_string name)
{
        int r = layout_tensor_encode(buffer, sizeof(first), name, TEXT("bf16"), 7);

        ck_assert_int_gt(r, 0);
        return (uint32_t)r;
}

static void setup(void)
{
        first_bytes = tensor(first, TEXT("layers.0"));
        second_bytes = tensor(second, TEXT("layers.1"));
        make(&layout, 0x09);
        make(&other, 0x09);
        memset(&conflict, 0, sizeof(conflict));
}

static void expect_same(const struct layout *a, const struct layout *b)
{
        static uint8_t one[LAYOUT_BYTES_MAX], two[LAYOUT_BYTES_MAX];
        int length = layout_encode(a, one, sizeof(one));

        ck_assert_int_gt(length, 0);
        ck_assert_int_eq(layout_encode(b, two, sizeof(two)), length);
        ck_assert_mem_eq(one, two, (size_t)length);
}

START_TEST(any_two_parts_make_what_they_know_between_them)
{
        for (unsigned a = 0; a < 1u << N_SHARDS; a++) {
                struct layout expected;
                unsigned b = (unsigned)_i;

                make(&layout, a);
                make(&other, b);
                make(&expected, a | b);
                ck_assert_int_eq(layout_merge(&layout, &other, &conflict), 0);
                ck_assert_int_eq(layout_validate(&layout, NULL), 0);
                ck_assert_int_eq(layout.is_partial, (a | b) != (1u << N_SHARDS) - 1);
                expect_same(&layout, &expected);
        }
}
END_TEST

START_TEST(a_part_may_leave_the_chunk_to_the_other)
{
        other.chunk_tokens = 64;
        ck_assert_int_eq(layout_merge(&layout, &other, &conflict), 0);
        ck_assert_uint_eq(layout.chunk_tokens, 64);
        other.chunk_tokens = 0;
        ck_assert_int_eq(layout_merge(&layout, &other, &conflict), 0);
        ck_assert_uint_eq(layout.chunk_tokens, 64);
}
END_TEST

/* What @other says is refused, and @layout stays what it was. */
static void expect_conflict(const char *field, int group, int shard, const char *ours,
                            const char *theirs)
{
        struct layout before = layout;

        ck_assert_int_eq(layout_merge(&layout, &other, &conflict), LAYOUT_MERGE_E_CONFLICT);
        ck_assert_str_eq(conflict.field, field);
        ck_assert_int_eq(conflict.group, group);
        ck_assert_int_eq(conflict.shard, shard);
        ck_assert_str_eq(conflict.ours, ours);
        ck_assert_str_eq(conflict.theirs, theirs);
        ck_assert_mem_eq(&layout, &before, sizeof(before));
        make(&other, 0x09);
}

#define CONFLICT(change, ...)                                                                      \
        do {                                                                                       \
                change;                                                                            \
                expect_conflict(__VA_ARGS__);                                                      \
        } while (0)

START_TEST(a_contradiction_in_the_head_names_the_field)
{
        CONFLICT(other.model = TEXT("medel"), "model", -1, -1, "\"model\"", "\"medel\"");
        CONFLICT(other.replay_mode = TEXT("x"), "replay_mode", -1, -1, "\"\"", "\"x\"");
        CONFLICT(other.draft_tokens = 3, "draft_tokens", -1, -1, "0", "3");
        CONFLICT(other.tp = 2, "tp", -1, -1, "1", "2");
        CONFLICT(other.pp = 2, "pp", -1, -1, "1", "2");
        CONFLICT(other.cp = 2, "cp", -1, -1, "1", "2");
        CONFLICT(other.n_groups = 1, "n_groups", -1, -1, "2", "1");
        layout.chunk_tokens = 16;
        CONFLICT(other.chunk_tokens = 32, "chunk_tokens", -1, -1, "16", "32");
}
END_TEST

START_TEST(a_contradiction_in_a_group_names_it)
{
        CONFLICT(other.groups[1].name = TEXT("stale"), "name", 1, -1, "\"state\"", "\"stale\"");
        CONFLICT(other.groups[0].kind = LAYOUT_INDEX, "kind", 0, -1, "1", "3");
        CONFLICT(other.groups[0].codec = 1, "codec", 0, -1, "0", "1");
        CONFLICT(other.groups[1].n_shards = 7, "n_shards", 1, -1, "6", "7");
        CONFLICT(other.groups[0].page_tokens = 8, "page_tokens", 0, -1, "16", "8");
        CONFLICT(other.groups[0].window_tokens = 8, "window_tokens", 0, -1, "0", "8");
}
END_TEST

START_TEST(a_contradiction_in_a_row_names_the_shard)
{
        CONFLICT(other.rows[0].page_bytes = 5, "page_bytes", 0, 0, "7", "5");
        CONFLICT(other.rows[3].padded_bytes = 5, "padded_bytes", 1, 3, "2000", "5");
        CONFLICT(other.rows[1].n_tensors = 0, "n_tensors", 0, 3, "1", "0");
        CONFLICT(other.rows[2].tensors = second, "tensors", 1, 0, "layers.0 bf16 7",
                 "layers.1 bf16 7");
}
END_TEST

START_TEST(only_what_both_know_can_contradict)
{
        make(&layout, 0x06);
        other.rows[0].page_bytes = 5;
        ck_assert_int_eq(layout_merge(&layout, &other, &conflict), 0);
        ck_assert_uint_eq(layout_row(&layout, 0, 0)->page_bytes, 5);
        ck_assert_uint_eq(layout_row(&layout, 0, 1)->page_bytes, 7);
}
END_TEST

/* @shards of a group that hold something else each. */
static void make_uneven(struct layout *ret_layout, uint16_t first_shard, uint16_t n)
{
        make(ret_layout, 0);
        ret_layout->groups[0].n_shards = LAYOUT_SHARDS_MAX;
        ret_layout->groups[1].n_shards = LAYOUT_SHARDS_MAX;
        ret_layout->is_partial = true;
        for (uint16_t i = 0; i < n; i++) {
                struct layout_row row = row_of(0, 0);

                row.first_shard = (uint16_t)(first_shard + i);
                row.page_bytes += row.first_shard;
                ck_assert_int_eq(layout_add_row(ret_layout, 0, &row), 0);
        }
}

START_TEST(more_rows_than_there_is_room_for_are_refused)
{
        struct layout_row row = row_of(1, 9);

        make_uneven(&layout, 0, 512);
        make_uneven(&other, 512, 512);
        ck_assert_int_eq(layout_merge(&layout, &other, &conflict), 0);
        ck_assert_uint_eq(layout.n_rows, LAYOUT_ROWS_MAX);
        make_uneven(&other, 0, 0);
        ck_assert_int_eq(layout_add_row(&other, 1, &row), 0);
        ck_assert_int_eq(layout_merge(&layout, &other, &conflict), -ENOSPC);
        ck_assert_uint_eq(layout.n_rows, LAYOUT_ROWS_MAX);
        ck_assert_uint_eq(layout.groups[1].n_rows, 0);
}
END_TEST

START_TEST(a_place_is_told_in_words)
{
        struct why place;

        other.rows[0].page_bytes = 5;
        ck_assert_int_eq(layout_merge(&layout, &other, &conflict), LAYOUT_MERGE_E_CONFLICT);
        layout_conflict_place(&conflict, &layout, &place);
        ck_assert_str_eq(place.text, "group 0 \"kv\", shard 0: page_bytes");
        conflict.shard = -1;
        layout_conflict_place(&conflict, &layout, &place);
        ck_assert_str_eq(place.text, "group 0 \"kv\": page_bytes");
        conflict.group = -1;
        layout_conflict_place(&conflict, &layout, &place);
        ck_assert_str_eq(place.text, "page_bytes");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/layout_merge");
        TCase *tcase = tcase_create("merge");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_loop_test(tcase, any_two_parts_make_what_they_know_between_them, 0,
                            1 << N_SHARDS);
        tcase_add_test(tcase, a_part_may_leave_the_chunk_to_the_other);
        tcase_add_test(tcase, a_contradiction_in_the_head_names_the_field);
        tcase_add_test(tcase, a_contradiction_in_a_group_names_it);
        tcase_add_test(tcase, a_contradiction_in_a_row_names_the_shard);
        tcase_add_test(tcase, only_what_both_know_can_contradict);
        tcase_add_test(tcase, more_rows_than_there_is_room_for_are_refused);
        tcase_add_test(tcase, a_place_is_told_in_words);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
