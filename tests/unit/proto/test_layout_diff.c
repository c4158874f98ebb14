// SPDX-License-Identifier: Apache-2.0
/* Each field that makes another layout is told, by its name and both values. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "proto/layout_diff.h"

#define TEXT(literal) ((struct layout_string){(literal), sizeof(literal) - 1})

static struct layout a, b;
static uint8_t tensors[3][64];
static char told[4096]; /* "field: a | b\n" for each */
static unsigned limit;

static struct layout_row row_of(uint16_t first, uint16_t n, uint64_t bytes, unsigned tensor,
                                struct layout_string dtype)
{
        struct layout_row row = {
                .first_shard = first, .n_shards = n, .page_bytes = bytes, .padded_bytes = bytes};
        int r = layout_tensor_encode(tensors[tensor], sizeof(tensors[0]), TEXT("k"), dtype, bytes);

        ck_assert_int_gt(r, 0);
        row.tensors = tensors[tensor];
        row.tensors_bytes = (uint32_t)r;
        row.n_tensors = 1;
        return row;
}

static void add(struct layout *layout, uint16_t group, struct layout_row row)
{
        ck_assert_int_eq(layout_add_row(layout, group, &row), 0);
}

static void set_up(void)
{
        a = (struct layout){
                .model = TEXT("org/model"),
                .kv_dtype = TEXT("bfloat16"),
                .chunk_tokens = 32,
                .tp = 4,
                .pp = 1,
                .cp = 1,
                .n_groups = 3,
                .groups = {{.name = TEXT("full"),
                            .kind = LAYOUT_ATTENTION,
                            .n_shards = 4,
                            .page_tokens = 16},
                           {.name = TEXT("window"),
                            .kind = LAYOUT_WINDOW,
                            .n_shards = 1,
                            .page_tokens = 16,
                            .window_tokens = 1024},
                           {.name = TEXT("state"), .kind = LAYOUT_STATE, .n_shards = 1}},
        };
        add(&a, 0, row_of(0, 2, 4096, 0, TEXT("bf16")));
        add(&a, 0, row_of(2, 2, 8192, 1, TEXT("bf16")));
        add(&a, 1, row_of(0, 1, 512, 2, TEXT("bf16")));
        add(&a, 2, (struct layout_row){.n_shards = 1});
        b = a;
        told[0] = '\0';
        limit = 100;
}

static bool on_difference(void *user, const struct layout_difference *difference)
{
        size_t used = strlen(told);

        (void)user;
        snprintf(told + used, sizeof(told) - used, "%s: %s | %s\n", difference->field,
                 difference->a, difference->b);
        return --limit;
}

static bool encode_alike(void)
{
        static uint8_t one[LAYOUT_BYTES_MAX], other[LAYOUT_BYTES_MAX];
        int n = layout_encode(&a, one, sizeof(one));

        return n == layout_encode(&b, other, sizeof(other)) && !memcmp(one, other, (size_t)n);
}

/* The difference is told as @expected, and is one: the encodings differ. */
static void expect(const char *expected)
{
        ck_assert_uint_gt(layout_diff(&a, &b, on_difference, NULL), 0);
        ck_assert_str_eq(told, expected);
        ck_assert(!encode_alike());
}

START_TEST(equal_layouts_have_no_difference)
{
        ck_assert(encode_alike());
        ck_assert_uint_eq(layout_diff(&a, &b, on_difference, NULL), 0);
}
END_TEST

START_TEST(strings_and_numbers_are_told_by_name)
{
        b.kv_dtype = TEXT("fp8_e4m3");
        b.draft_tokens = 2;
        b.tp = 8;
        expect("kv_dtype: \"bfloat16\" | \"fp8_e4m3\"\n"
               "draft_tokens: 0 | 2\n"
               "tp: 4 | 8\n");
}
END_TEST

START_TEST(long_strings_are_told_from_where_they_part)
{
        static char one[400], other[400];

        memset(one, 'x', sizeof(one));
        memset(other, 'x', sizeof(other));
        memcpy(one + 390, "first", 5);
        memcpy(other + 390, "other", 5);
        a.engine_build = (struct layout_string){one, sizeof(one)};
        b.engine_build = (struct layout_string){other, sizeof(other)};
        ck_assert_uint_eq(layout_diff(&a, &b, on_difference, NULL), 1);
        ck_assert_ptr_nonnull(strstr(told, "xfirst"));
        ck_assert_ptr_nonnull(strstr(told, "xother"));
}
END_TEST

START_TEST(group_fields_name_the_group)
{
        b.groups[1].window_tokens = 4096;
        b.groups[2].kind = LAYOUT_SCRATCH;
        b.groups[0].page_tokens = 32;
        b.groups[0].codec = CODEC_MXFP8;
        expect("group full codec: none | mxfp8\n"
               "group full page_tokens: 16 | 32\n"
               "group window window_tokens: 1024 | 4096\n"
               "group state kind: state | scratch\n");
}
END_TEST

START_TEST(rows_name_their_shards)
{
        b.rows[1].page_bytes = 4100;
        b.rows[2].padded_bytes = 1024;
        expect("group full shards 2-3 page_bytes: 8192 | 4100\n"
               "group window padded_bytes: 512 | 1024\n");
}
END_TEST

START_TEST(rows_cut_elsewhere_are_compared_shard_by_shard)
{
        b.rows[0].n_shards = 3;
        b.rows[1].first_shard = 3;
        b.rows[1].n_shards = 1;
        expect("group full shard 2 page_bytes: 8192 | 4096\n"
               "group full shard 2 padded_bytes: 8192 | 4096\n"
               "group full shard 2 tensor k bytes: 8192 | 4096\n");
}
END_TEST

START_TEST(the_first_tensor_that_differs_is_told)
{
        uint8_t saved[64];

        memcpy(saved, tensors[2], sizeof(saved));
        b.rows[2] = row_of(0, 1, 512, 2, TEXT("fp8"));
        a.rows[2].tensors = saved;
        expect("group window tensor k dtype: \"bf16\" | \"fp8\"\n");
}
END_TEST

START_TEST(groups_of_one_side_are_told)
{
        b.n_groups = 2;
        b.n_rows = 3;
        expect("group state: state | -\n");
}
END_TEST

START_TEST(another_order_of_groups_is_a_difference)
{
        struct layout_group group = b.groups[1];

        b.groups[1] = b.groups[2];
        b.groups[2] = group;
        expect("order of the groups: - | -\n");
}
END_TEST

START_TEST(the_caller_ends_the_comparison)
{
        b.tp = b.pp = b.cp = 9;
        limit = 2;
        ck_assert_uint_eq(layout_diff(&a, &b, on_difference, NULL), 2);
        ck_assert_str_eq(told, "tp: 4 | 9\npp: 1 | 9\n");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("layout_diff");
        TCase *tcase = tcase_create("layout_diff");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, set_up, NULL);
        tcase_add_test(tcase, equal_layouts_have_no_difference);
        tcase_add_test(tcase, strings_and_numbers_are_told_by_name);
        tcase_add_test(tcase, long_strings_are_told_from_where_they_part);
        tcase_add_test(tcase, group_fields_name_the_group);
        tcase_add_test(tcase, rows_name_their_shards);
        tcase_add_test(tcase, rows_cut_elsewhere_are_compared_shard_by_shard);
        tcase_add_test(tcase, the_first_tensor_that_differs_is_told);
        tcase_add_test(tcase, groups_of_one_side_are_told);
        tcase_add_test(tcase, another_order_of_groups_is_a_difference);
        tcase_add_test(tcase, the_caller_ends_the_comparison);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
