// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/status.h"

START_TEST(every_status_has_a_name_and_a_text)
{
        for (uint32_t i = 0; i < KVT_WIRE_STATUS_COUNT; i++) {
                ck_assert_ptr_nonnull(status_name(i));
                ck_assert_ptr_nonnull(status_text(i));
                for (uint32_t j = 0; j < i; j++)
                        ck_assert_str_ne(status_name(i), status_name(j));
        }
        ck_assert_str_eq(status_name(KVT_WIRE_ALREADY_HAVE), "ALREADY_HAVE");
        ck_assert_str_eq(status_text(KVT_WIRE_MISS), "not stored");
}
END_TEST

START_TEST(a_number_outside_the_list_is_unknown)
{
        ck_assert_str_eq(status_name(KVT_WIRE_STATUS_COUNT), "UNKNOWN");
        ck_assert_str_eq(status_name(UINT32_MAX), "UNKNOWN");
        ck_assert_str_eq(status_text(KVT_WIRE_STATUS_COUNT), "unknown status");
}
END_TEST

/* Numbers are on the wire and in programs: they never change. */
START_TEST(numbers_are_those_of_the_first_release)
{
        ck_assert_uint_eq(KVT_WIRE_OK, 0);
        ck_assert_uint_eq(KVT_WIRE_GONE, 8);
        ck_assert_uint_eq(KVT_WIRE_CORRUPT, 14);
        ck_assert_uint_eq(KVT_WIRE_DRAINING, 19);
        ck_assert_uint_ge(KVT_WIRE_STATUS_COUNT, 20);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/status");
        TCase *tcase = tcase_create("status");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_test(tcase, every_status_has_a_name_and_a_text);
        tcase_add_test(tcase, a_number_outside_the_list_is_unknown);
        tcase_add_test(tcase, numbers_are_those_of_the_first_release);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
