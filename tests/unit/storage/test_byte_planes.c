// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "storage/byte_planes.h"

#define LENGTH_MAX 300u

static const uint32_t plane_counts[] = {1, 2, 4};

START_TEST(split_sorts_bytes_by_their_place)
{
        uint32_t n_planes = plane_counts[_i];
        uint8_t bytes[LENGTH_MAX] = {0}, planes[LENGTH_MAX + 1];

        for (size_t length = 0; length <= LENGTH_MAX; length++) {
                size_t at = 0;

                for (size_t i = 0; i < length; i++)
                        bytes[i] = (uint8_t)(i * 7 + length);
                planes[length] = 0xee;
                byte_planes_split(bytes, length, n_planes, planes);
                for (uint32_t plane = 0; plane < n_planes; plane++)
                        for (size_t i = plane; i < length; i += n_planes)
                                ck_assert_uint_eq(planes[at++], bytes[i]);
                ck_assert_uint_eq(at, length);
                ck_assert_uint_eq(planes[length], 0xee);
        }
}
END_TEST

START_TEST(join_undoes_split)
{
        uint32_t n_planes = plane_counts[_i];
        uint8_t bytes[LENGTH_MAX] = {0}, planes[LENGTH_MAX], back[LENGTH_MAX + 1];

        for (size_t length = 0; length <= LENGTH_MAX; length++) {
                const uint8_t *at[4];
                const uint8_t *next = planes;

                for (size_t i = 0; i < length; i++)
                        bytes[i] = (uint8_t)(i * 13 + 5 * length);
                byte_planes_split(bytes, length, n_planes, planes);
                for (uint32_t i = 0; i < n_planes; i++) {
                        at[i] = next;
                        next += byte_planes_length(length, n_planes, i);
                }
                back[length] = 0xee;
                byte_planes_join(at, length, n_planes, back);
                ck_assert_mem_eq(back, bytes, length);
                ck_assert_uint_eq(back[length], 0xee);
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/byte_planes");
        TCase *tcase = tcase_create("byte_planes");
        SRunner *runner;
        int n_failed;

        tcase_add_loop_test(tcase, split_sorts_bytes_by_their_place, 0, 3);
        tcase_add_loop_test(tcase, join_undoes_split, 0, 3);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
