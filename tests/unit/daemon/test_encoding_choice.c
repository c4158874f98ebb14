// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "daemon/encoding_choice.h"

static struct encoding_choice parse(const char *text)
{
        struct encoding_choice choice;
        struct why why = {""};

        ck_assert_msg(encoding_choice_parse(&choice, text, &why) == 0, "%s", why.text);
        return choice;
}

static void assert_refused(const char *text, const char *expected)
{
        struct encoding_choice choice, untouched = {{9, 9, 9, 9, 9}};
        struct why why = {""};

        choice = untouched;
        ck_assert_int_eq(encoding_choice_parse(&choice, text, &why), -EINVAL);
        ck_assert_msg(strstr(why.text, expected) != NULL, "\"%s\": %s", text, why.text);
        ck_assert_mem_eq(&choice, &untouched, sizeof(choice));
}

START_TEST(one_word_is_for_all_groups)
{
        struct encoding_choice choice = parse("planes-zstd");

        for (uint8_t kind = LAYOUT_ATTENTION; kind <= LAYOUT_STATE; kind++) {
                ck_assert_uint_eq(encoding_choose(&choice, kind, 2).kind, ENCODING_PLANES_ZSTD);
                ck_assert_uint_eq(encoding_choose(&choice, kind, 2).element_bytes, 2);
        }
        choice = parse("off");
        for (uint8_t kind = LAYOUT_ATTENTION; kind <= LAYOUT_STATE; kind++)
                ck_assert_uint_eq(encoding_number(encoding_choose(&choice, kind, 2)), 0);
}
END_TEST

START_TEST(words_for_kinds_of_groups_come_behind_or_alone)
{
        struct encoding_choice choice = parse("planes-zstd,state=off,index=lz4");

        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_WINDOW, 2).kind, ENCODING_PLANES_ZSTD);
        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_STATE, 2).kind, ENCODING_RAW);
        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_INDEX, 2).kind, ENCODING_LZ4);
        choice = parse("attention=planes-lz4,compressed=planes-zstd");
        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_ATTENTION, 4).kind, ENCODING_PLANES_LZ4);
        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_ATTENTION, 4).element_bytes, 4);
        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_COMPRESSED, 4).kind,
                          ENCODING_PLANES_ZSTD);
        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_STATE, 4).kind, ENCODING_RAW);
}
END_TEST

START_TEST(groups_that_nobody_described_stay_raw)
{
        struct encoding_choice choice = parse("planes-zstd");

        ck_assert_uint_eq(encoding_choose(&choice, 0, 0).kind, ENCODING_RAW);
        ck_assert_uint_eq(encoding_choose(&choice, LAYOUT_SCRATCH, 2).kind, ENCODING_RAW);
}
END_TEST

START_TEST(wrong_words_are_refused_by_name)
{
        char text[300];

        assert_refused("zip", "\"zip\" is none of off, lz4, planes-lz4, planes-zstd");
        assert_refused("", "\"\" is none of off");
        assert_refused("lz4,state=zip", "\"zip\" is none of");
        assert_refused("lz4,mamba=off", "\"mamba\" is no kind of groups: use attention");
        assert_refused("lz4,stat=off", "\"stat\" is no kind");
        assert_refused("state=off,lz4", "\"lz4\" comes late");
        assert_refused("lz4,", "none of");
        memset(text, 'x', sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        assert_refused(text, "is too long");
}
END_TEST

static struct layout_string string_of(const char *text)
{
        return (struct layout_string){text, (uint16_t)strlen(text)};
}

/* A layout of one group with two tensors of these dtypes and bytes. */
static uint8_t number_bytes(const char *first, uint64_t first_bytes, const char *second,
                            uint64_t second_bytes, uint8_t codec)
{
        static struct layout layout;
        uint8_t tensors[256];
        int n, m;

        memset(&layout, 0, sizeof(layout));
        n = layout_tensor_encode(tensors, sizeof(tensors), string_of("k"), string_of(first),
                                 first_bytes);
        ck_assert_int_gt(n, 0);
        m = layout_tensor_encode(tensors + n, sizeof(tensors) - (size_t)n, string_of("v"),
                                 string_of(second), second_bytes);
        ck_assert_int_gt(m, 0);
        layout.n_groups = layout.n_rows = layout.groups[0].n_rows = 1;
        layout.groups[0].codec = codec;
        layout.rows[0].n_tensors = 2;
        layout.rows[0].tensors = tensors;
        layout.rows[0].tensors_bytes = (uint32_t)(n + m);
        return encoding_choice_number_bytes(&layout, 0);
}

START_TEST(numbers_are_as_long_as_the_dtype_says)
{
        ck_assert_uint_eq(number_bytes("bfloat16", 10, "bfloat16", 10, CODEC_NONE), 2);
        ck_assert_uint_eq(number_bytes("torch.float32", 10, "f32", 10, CODEC_NONE), 4);
        ck_assert_uint_eq(number_bytes("bf16", 10, "F16", 10, CODEC_NONE), 2);
        ck_assert_uint_eq(number_bytes("float8_e4m3fn", 10, "uint8", 10, CODEC_NONE), 1);
        ck_assert_uint_eq(number_bytes("q8_0", 10, "q4_0", 10, CODEC_NONE), 1);
        ck_assert_uint_eq(number_bytes("float64", 10, "int64", 10, CODEC_NONE), 1);
        ck_assert_uint_eq(number_bytes("auto", 10, "", 10, CODEC_NONE), 1);
        ck_assert_uint_eq(number_bytes("x99999999999999999999", 10, "", 10, CODEC_NONE), 1);
}
END_TEST

START_TEST(the_dtype_of_most_bytes_decides)
{
        ck_assert_uint_eq(number_bytes("bfloat16", 10, "float32", 30, CODEC_NONE), 4);
        ck_assert_uint_eq(number_bytes("bfloat16", 30, "float32", 10, CODEC_NONE), 2);
        ck_assert_uint_eq(number_bytes("uint8", 30, "float32", 10, CODEC_NONE), 1);
}
END_TEST

START_TEST(without_tensors_it_is_the_dtype_of_the_cache)
{
        static struct layout layout;

        layout.n_groups = layout.n_rows = layout.groups[0].n_rows = 1;
        layout.kv_dtype = string_of("bfloat16,float32");
        ck_assert_uint_eq(encoding_choice_number_bytes(&layout, 0), 2);
        layout.kv_dtype = string_of("");
        ck_assert_uint_eq(encoding_choice_number_bytes(&layout, 0), 1);
}
END_TEST

START_TEST(pages_under_a_lossy_codec_are_bytes)
{
        ck_assert_uint_eq(number_bytes("bfloat16", 10, "bfloat16", 10, CODEC_FP8_TILE128), 1);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/encoding choice");
        TCase *tcase = tcase_create("encoding choice");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, one_word_is_for_all_groups);
        tcase_add_test(tcase, words_for_kinds_of_groups_come_behind_or_alone);
        tcase_add_test(tcase, groups_that_nobody_described_stay_raw);
        tcase_add_test(tcase, wrong_words_are_refused_by_name);
        tcase_add_test(tcase, numbers_are_as_long_as_the_dtype_says);
        tcase_add_test(tcase, the_dtype_of_most_bytes_decides);
        tcase_add_test(tcase, without_tensors_it_is_the_dtype_of_the_cache);
        tcase_add_test(tcase, pages_under_a_lossy_codec_are_bytes);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
