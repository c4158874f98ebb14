// SPDX-License-Identifier: Apache-2.0
/* From struct kvt_layout to an encoding: rows, what a process does not know, what is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/layout.h"

#define N_MANY 1100u

static struct kvt__layout_encoding encoding, other;
static struct kvt_group group;
static struct kvt_layout from;
static struct layout layout;
static struct why why;

static void setup(void)
{
        group = (struct kvt_group){.name = "kv",
                                   .kind = KVT_GROUP_ATTENTION,
                                   .shards = 4,
                                   .page_tokens = 16,
                                   .page_bytes = 4096};
        from = (struct kvt_layout){
                .size = sizeof(from), .model = "m", .groups = &group, .n_groups = 1};
        why.text[0] = '\0';
}

static void expect_encoded(struct kvt__layout_encoding *ret_encoding, bool is_partial)
{
        ck_assert_msg(!kvt__layout_encode(ret_encoding, &from, is_partial, &why), "%s", why.text);
        ck_assert_int_eq(
                layout_decode_partial(&layout, ret_encoding->bytes, ret_encoding->length, &why), 0);
        ck_assert_int_eq(layout.is_partial, is_partial);
}

static void expect_refused(const char *text)
{
        ck_assert_int_eq(kvt__layout_encode(&encoding, &from, true, &why), -EINVAL);
        ck_assert_msg(strstr(why.text, text), "\"%s\" lacks \"%s\"", why.text, text);
}

static void use_rows(const struct kvt_row *rows, uint32_t n)
{
        group.page_bytes = 0;
        group.rows = rows;
        group.n_rows = n;
}

START_TEST(rows_per_shard_encode_as_shards_that_are_alike)
{
        static const struct kvt_row rows[] = {
                {.first_shard = 0, .page_bytes = 4096},
                {.first_shard = 1, .page_bytes = 4096},
                {.first_shard = 2, .n_shards = 2, .page_bytes = 4096}};

        expect_encoded(&encoding, false);
        ck_assert_uint_eq(layout.n_rows, 1);
        use_rows(rows, 3);
        expect_encoded(&other, false);
        ck_assert_uint_eq(other.length, encoding.length);
        ck_assert_mem_eq(other.bytes, encoding.bytes, encoding.length);
}
END_TEST

START_TEST(rows_carry_their_own_tensors)
{
        static const struct kvt_tensor tensors[] = {{"layers.0", "bf16", 4},
                                                    {"layers.1", "bf16", 6}};
        static const struct kvt_row rows[] = {
                {.n_shards = 2, .page_bytes = 4, .tensors = &tensors[0], .n_tensors = 1},
                {.first_shard = 2,
                 .n_shards = 2,
                 .page_bytes = 10,
                 .padded_bytes = 12,
                 .tensors = tensors,
                 .n_tensors = 2}};
        struct layout_tensor tensor;
        uint32_t position = 0;

        use_rows(rows, 2);
        expect_encoded(&encoding, false);
        ck_assert_uint_eq(layout_row(&layout, 0, 0)->padded_bytes, 4);
        ck_assert_uint_eq(layout_row(&layout, 0, 3)->padded_bytes, 12);
        ck_assert_uint_eq(layout_row(&layout, 0, 3)->n_tensors, 2);
        ck_assert(layout_tensor_next(layout_row(&layout, 0, 1), &position, &tensor));
        ck_assert_mem_eq(tensor.name.bytes, "layers.0", 8);
}
END_TEST

START_TEST(a_process_may_know_all_some_or_no_rows)
{
        static const struct kvt_row row = {.first_shard = 2, .page_bytes = 4096};

        expect_encoded(&encoding, true);
        ck_assert(layout_is_complete(&layout));
        group.page_bytes = 0;
        expect_encoded(&encoding, true);
        ck_assert_uint_eq(layout.n_rows, 0);
        use_rows(&row, 1);
        expect_encoded(&encoding, true);
        ck_assert_ptr_null(layout_row(&layout, 0, 1));
        ck_assert_uint_eq(layout_row(&layout, 0, 2)->page_bytes, 4096);
        ck_assert_int_eq(kvt__layout_encode(&encoding, &from, false, &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "no row for the shards before"));
}
END_TEST

START_TEST(a_state_of_any_length_is_a_row_of_no_bytes)
{
        static const struct kvt_row row = {.n_shards = 4};

        group = (struct kvt_group){.name = "state", .kind = KVT_GROUP_STATE, .shards = 4};
        expect_encoded(&encoding, true);
        ck_assert(!layout_is_complete(&layout));
        use_rows(&row, 1);
        expect_encoded(&encoding, true);
        ck_assert(layout_is_complete(&layout));
}
END_TEST

START_TEST(what_cannot_be_is_refused_with_the_group)
{
        static struct kvt_row many[N_MANY];
        static const struct kvt_row far = {.first_shard = 1024, .page_bytes = 1};
        static const struct kvt_row wide = {.n_shards = 1025, .page_bytes = 1};
        static const struct kvt_row odd = {.page_bytes = 1, .reserved = 1};
        static const struct kvt_row crowded = {.page_bytes = 1, .n_tensors = 513};

        group.rows = &far;
        group.n_rows = 1;
        expect_refused("group kv: with rows, page_bytes, padded_bytes and tensors stand in them");
        use_rows(NULL, 1);
        expect_refused("group kv: with rows");
        use_rows(&far, 1);
        expect_refused("group kv: a row has shards 1024");
        use_rows(&wide, 1);
        expect_refused("1025 more, at most 1024");
        use_rows(&odd, 1);
        expect_refused("group kv: a row");
        use_rows(&crowded, 1);
        expect_refused("group kv: a row has 513 tensors, at most 512");
        for (uint32_t i = 0; i < N_MANY; i++)
                many[i] = (struct kvt_row){.first_shard = i % 1024, .page_bytes = i + 1};
        use_rows(many, N_MANY);
        ck_assert_int_eq(kvt__layout_encode(&encoding, &from, true, &why), -ENOSPC);
        ck_assert_str_eq(why.text, "group kv: the groups have more than 1024 rows in all");
}
END_TEST

START_TEST(an_unknown_codec_is_refused_by_the_name_of_the_group)
{
        group.codec = 3;
        expect_refused("group 0 \"kv\": unknown codec, expected none (0)");
        group.codec = 256;
        expect_refused("group kv: unknown codec 256");
        group.codec = 0;
        group.shards = 1025;
        expect_refused("group kv: 1025 shards, at most 1024");
}
END_TEST

/* The whole as a daemon would tell it to one that asked for a part. */
static int complete(const struct digest *id)
{
        static struct layout whole;

        return kvt__layout_complete(&whole, &encoding, other.bytes, other.length, id, &why);
}

START_TEST(the_daemons_whole_is_held_against_the_part)
{
        struct digest id;

        group.page_bytes = 0;
        expect_encoded(&encoding, true);
        group.page_bytes = 4096;
        from.chunk_tokens = 16;
        expect_encoded(&other, false);
        ck_assert_int_eq(layout_id(&id, other.bytes, other.length), 0);
        ck_assert_int_eq(complete(&id), 0);
        id.bytes[7]++;
        ck_assert_int_eq(complete(&id), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "disagree about the layout's id"));

        from.chunk_tokens = 0;
        expect_encoded(&other, false);
        ck_assert_int_eq(layout_id(&id, other.bytes, other.length), 0);
        ck_assert_int_eq(complete(&id), -EINVAL);
        ck_assert_str_eq(why.text, "the daemon's layout does not say how long chunks are");

        from.model = "n";
        expect_encoded(&other, false);
        ck_assert_int_eq(layout_id(&id, other.bytes, other.length), 0);
        ck_assert_int_eq(complete(&id), -EINVAL);
        ck_assert_str_eq(why.text, "the daemon's layout differs from this process's: model is "
                                   "\"n\", not \"m\"");
        expect_encoded(&other, true);
        ck_assert_int_eq(layout_id(&id, other.bytes, other.length), 0);
        ck_assert_int_eq(complete(&id), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "flags"));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/layout");
        TCase *tcase = tcase_create("layout");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, rows_per_shard_encode_as_shards_that_are_alike);
        tcase_add_test(tcase, rows_carry_their_own_tensors);
        tcase_add_test(tcase, a_process_may_know_all_some_or_no_rows);
        tcase_add_test(tcase, a_state_of_any_length_is_a_row_of_no_bytes);
        tcase_add_test(tcase, what_cannot_be_is_refused_with_the_group);
        tcase_add_test(tcase, an_unknown_codec_is_refused_by_the_name_of_the_group);
        tcase_add_test(tcase, the_daemons_whole_is_held_against_the_part);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
