// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

START_TEST(where_is_empty_until_something_is_raised)
{
        ck_assert_str_eq(err_where(), "");
}
END_TEST

START_TEST(where_names_the_last_raise)
{
        char expected[64];
        int r;

        r = err_raise_at(-ENOMEM, "some/folder/file.c", 12);
        ck_assert_int_eq(r, -ENOMEM);
        ck_assert_str_eq(err_where(), "file.c:12");
        snprintf(expected, sizeof(expected), "test_error.c:%d", __LINE__ + 1);
        r = err_raise(-EIO);
        ck_assert_int_eq(r, -EIO);
        ck_assert_str_eq(err_where(), expected);
}
END_TEST

START_TEST(where_cuts_a_name_that_is_too_long)
{
        char name[512];

        memset(name, 'x', sizeof(name) - 1);
        name[sizeof(name) - 1] = '\0';
        ck_assert_int_eq(err_raise_at(-EIO, name, 1), -EIO);
        ck_assert_uint_lt(strlen(err_where()), sizeof(name) - 1);
}
END_TEST

static void *raise_elsewhere(void *unused)
{
        return err_raise_at(-EIO, "other.c", 1) == -EIO ? NULL : unused;
}

START_TEST(where_belongs_to_its_thread)
{
        pthread_t thread;

        ck_assert_int_eq(err_raise_at(-EIO, "mine.c", 5), -EIO);
        ck_assert_int_eq(pthread_create(&thread, NULL, raise_elsewhere, NULL), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_str_eq(err_where(), "mine.c:5");
}
END_TEST

START_TEST(why_is_set_prefixed_and_may_be_absent)
{
        struct why why;

        why_set(NULL, "nobody asks");
        why_prefix(NULL, "nobody asks");
        why_set(&why, "bytes is %d", 7);
        why_prefix(&why, "item %d", 3);
        ck_assert_str_eq(why.text, "item 3: bytes is 7");
}
END_TEST

START_TEST(why_is_cut_at_its_size)
{
        char text[2 * sizeof(struct why)];
        struct why why;

        memset(text, 'x', sizeof(text) - 1);
        text[sizeof(text) - 1] = '\0';
        why_set(&why, "%s", text);
        ck_assert_uint_eq(strlen(why.text), sizeof(why.text) - 1);
        why_prefix(&why, "item");
        ck_assert_uint_eq(strlen(why.text), sizeof(why.text) - 1);
        ck_assert_int_eq(strncmp(why.text, "item: xxx", 9), 0);
        why_prefix(&why, "%s", text);
        ck_assert_uint_eq(strlen(why.text), sizeof(why.text) - 1);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/error");
        TCase *tcase = tcase_create("error");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_test(tcase, where_is_empty_until_something_is_raised);
        tcase_add_test(tcase, where_names_the_last_raise);
        tcase_add_test(tcase, where_cuts_a_name_that_is_too_long);
        tcase_add_test(tcase, where_belongs_to_its_thread);
        tcase_add_test(tcase, why_is_set_prefixed_and_may_be_absent);
        tcase_add_test(tcase, why_is_cut_at_its_size);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
