// SPDX-License-Identifier: Apache-2.0
/* Which pieces a part of an object touches, and where they lie without the others. */
#include <check.h>
#include <stdlib.h>

#include "proto/piece_set.h"

#define PIECE CHECKSUM_PIECE_BYTES

START_TEST(a_range_touches_the_pieces_that_hold_its_bytes)
{
        const uint64_t raw_bytes = 10 * PIECE + 7;
        static const struct {
                uint64_t offset, length;
                uint64_t word;
        } cases[] = {
                {0, 1, 1},
                {PIECE - 1, 1, 1},
                {PIECE - 1, 2, 3},
                {PIECE, PIECE, 2},
                {3 * PIECE - 1, PIECE + 2, 0x1c},
                {10 * PIECE, 7, 0x400},
                {0, 10 * PIECE + 7, 0x7ff},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct piece_set set = {{0}};

                piece_set_add(&set, raw_bytes, cases[i].offset, cases[i].length);
                ck_assert_uint_eq(set.words[0], cases[i].word);
                ck_assert(piece_set_fits(&set, raw_bytes));
        }
}
END_TEST

START_TEST(large_objects_have_larger_pieces)
{
        const uint64_t raw_bytes = UINT64_C(1) << 30;
        struct piece_set set = {{0}};

        piece_set_add(&set, raw_bytes, raw_bytes - 1, 1);
        ck_assert(piece_set_has(&set, CHECKSUM_PIECES_MAX - 1));
        ck_assert_uint_eq(piece_set_bytes(&set, raw_bytes), raw_bytes / CHECKSUM_PIECES_MAX);
}
END_TEST

START_TEST(a_set_fits_only_objects_that_have_its_pieces)
{
        struct piece_set set = {{0}};

        ck_assert(!piece_set_fits(&set, 5 * PIECE));
        piece_set_add(&set, 5 * PIECE, 4 * PIECE, 1);
        ck_assert(piece_set_fits(&set, 5 * PIECE));
        ck_assert(piece_set_fits(&set, 4 * PIECE + 1));
        ck_assert(!piece_set_fits(&set, 4 * PIECE));
}
END_TEST

START_TEST(packed_pieces_lie_one_after_another)
{
        const uint64_t raw_bytes = 9 * PIECE + 100;
        struct piece_set set = {{0}};

        piece_set_add(&set, raw_bytes, PIECE, 2 * PIECE); /* 1, 2 */
        piece_set_add(&set, raw_bytes, 5 * PIECE + 9, 1); /* 5 */
        piece_set_add(&set, raw_bytes, raw_bytes - 1, 1); /* 9, the short one */
        ck_assert_uint_eq(piece_set_bytes(&set, raw_bytes), 3 * PIECE + 100);
        ck_assert_uint_eq(piece_set_position(&set, raw_bytes, PIECE), 0);
        ck_assert_uint_eq(piece_set_position(&set, raw_bytes, 3 * PIECE - 1), 2 * PIECE - 1);
        ck_assert_uint_eq(piece_set_position(&set, raw_bytes, 5 * PIECE + 9), 2 * PIECE + 9);
        ck_assert_uint_eq(piece_set_position(&set, raw_bytes, raw_bytes - 1), 3 * PIECE + 99);
}
END_TEST

START_TEST(runs_are_walked_in_order_and_end)
{
        const uint64_t raw_bytes = 70 * PIECE - 1;
        struct piece_set set = {{0}};
        struct piece_run run = {0, 0};

        piece_set_add(&set, raw_bytes, 0, 1);
        piece_set_add(&set, raw_bytes, 63 * PIECE, PIECE + 1); /* over the border of two words */
        piece_set_add(&set, raw_bytes, 69 * PIECE, 1);
        ck_assert(piece_set_next(&set, raw_bytes, run.end, &run));
        ck_assert(run.first == 0 && run.end == PIECE);
        ck_assert(piece_set_next(&set, raw_bytes, run.end, &run));
        ck_assert(run.first == 63 * PIECE && run.end == 65 * PIECE);
        ck_assert(piece_set_next(&set, raw_bytes, run.end, &run));
        ck_assert(run.first == 69 * PIECE && run.end == raw_bytes);
        ck_assert(!piece_set_next(&set, raw_bytes, run.end, &run));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/piece_set");
        TCase *tcase = tcase_create("piece_set");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, a_range_touches_the_pieces_that_hold_its_bytes);
        tcase_add_test(tcase, large_objects_have_larger_pieces);
        tcase_add_test(tcase, a_set_fits_only_objects_that_have_its_pieces);
        tcase_add_test(tcase, packed_pieces_lie_one_after_another);
        tcase_add_test(tcase, runs_are_walked_in_order_and_end);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
