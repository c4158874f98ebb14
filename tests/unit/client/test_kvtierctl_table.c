// SPDX-License-Identifier: Apache-2.0
/* The tables of kvtierctl and the numbers in them. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/table.h"

static char *printed(const struct table *table)
{
        char *text = NULL;
        size_t size;
        FILE *file = open_memstream(&text, &size);

        ck_assert_ptr_nonnull(file);
        ck_assert_int_eq(table_print(table, file), 0);
        fclose(file);
        return text;
}

START_TEST(columns_are_as_wide_as_their_widest_cell)
{
        struct table table;
        char *text;

        table_init(&table, "NAME #BYTES STATE");
        for (int i = 0; i < 40; i++) {
                table_add(&table, i ? "b" : "longer");
                table_add(&table, "%d", i ? 7 : 123456);
                table_add(&table, "ok");
        }
        text = printed(&table);
        ck_assert_int_eq(strncmp(text,
                                 "NAME     BYTES  STATE\n"
                                 "longer  123456  ok\n"
                                 "b            7  ok\n",
                                 22 + 19 + 19),
                         0);
        free(text);
        table_deinit(&table);
}
END_TEST

START_TEST(what_clients_call_themselves_cannot_steer_the_terminal)
{
        struct table table;
        char *text;

        table_init(&table, "PROGRAM");
        table_add(&table, "a\033[2J\n\x7f"
                          "b\u00e4");
        text = printed(&table);
        ck_assert_str_eq(text, "PROGRAM\na?[2J??b\u00e4\n");
        free(text);
        table_deinit(&table);
}
END_TEST

START_TEST(text_that_does_not_fit_is_cut)
{
        char text[8] = "", behind[8] = "behind";
        size_t used = 0;

        text_append(text, sizeof(text), &used, "%d, ", 123);
        ck_assert_uint_eq(used, 5);
        for (int i = 0; i < 3; i++) {
                text_append(text, sizeof(text), &used, "%s", "456789");
                ck_assert_uint_eq(used, 7);
                ck_assert_str_eq(text, "123, 45");
        }
        ck_assert_str_eq(behind, "behind");
}
END_TEST

START_TEST(numbers_have_the_unit_that_fits)
{
        ck_assert_str_eq(text_bytes(0), "0 B");
        ck_assert_str_eq(text_bytes(1023), "1023 B");
        ck_assert_str_eq(text_bytes(1536), "1.5 KiB");
        ck_assert_str_eq(text_bytes(UINT64_C(128) << 20), "128 MiB");
        ck_assert_str_eq(text_bytes(UINT64_MAX), "16384 PiB");
        ck_assert_str_eq(text_count(7), "7");
        ck_assert_str_eq(text_count(1000), "1,000");
        ck_assert_str_eq(text_count(UINT64_C(1234567890)), "1,234,567,890");
        ck_assert_str_eq(text_seconds(3e-7), "300 ns");
        ck_assert_str_eq(text_seconds(2.5e-4), "250.0 us");
        ck_assert_str_eq(text_seconds(3.2), "3.2 s");
        ck_assert_str_eq(text_seconds(600), "10 min");
        ck_assert_str_eq(text_seconds(864000), "10 d");
        ck_assert_str_eq(text_percent(1, 3), "33.3 %");
        ck_assert_str_eq(text_percent(1, 0), "-");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("kvtierctl_table");
        TCase *tcase = tcase_create("kvtierctl_table");
        SRunner *runner;
        int n_failed;

        tcase_add_test(tcase, columns_are_as_wide_as_their_widest_cell);
        tcase_add_test(tcase, what_clients_call_themselves_cannot_steer_the_terminal);
        tcase_add_test(tcase, text_that_does_not_fit_is_cut);
        tcase_add_test(tcase, numbers_have_the_unit_that_fits);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
