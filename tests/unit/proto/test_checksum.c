// SPDX-License-Identifier: Apache-2.0
/*
 * Piece sizes, and sums that do not depend on how the bytes lie in memory. The vector was
 * computed apart from the library:
 *
 *   import struct, xxhash
 *   d = bytes(i * 7 % 251 for i in range(600000)); P = 256 << 10
 *   pieces = [xxhash.xxh3_64_intdigest(d[i:i + P]) for i in range(0, len(d), P)]
 *   total = xxhash.xxh3_64_intdigest(struct.pack("<3Q", *pieces) + bytes(range(72)) +
 *                                    struct.pack("<Q", len(d)))
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/checksum.h"

#define BYTES 600000u

static uint8_t bytes[BYTES];
static struct object_key key;
static struct checksum_list list;

static const struct checksum_segment whole = {bytes, BYTES};

static void setup(void)
{
        uint8_t raw[sizeof(key)];

        for (uint8_t i = 0; i < sizeof(raw); i++)
                raw[i] = i;
        memcpy(&key, raw, sizeof(key));
        for (uint32_t i = 0; i < BYTES; i++)
                bytes[i] = (uint8_t)(i * 7 % 251);
        checksum_compute(&list, &key, BYTES, &whole, 1);
}

START_TEST(sums_are_the_documented_ones)
{
        ck_assert_uint_eq(list.n_pieces, 3);
        ck_assert_uint_eq(list.piece_bytes, 256u << 10);
        ck_assert_uint_eq(list.pieces[0], UINT64_C(0x789173d32626cddb));
        ck_assert_uint_eq(list.pieces[1], UINT64_C(0xdaee5e086e1527a0));
        ck_assert_uint_eq(list.pieces[2], UINT64_C(0x86035757d1b0a385));
        ck_assert_uint_eq(list.total, UINT64_C(0x483d6d62e9aef315));
        ck_assert(checksum_list_is_sane(&list));
}
END_TEST

START_TEST(sums_do_not_depend_on_segments)
{
        static const uint64_t cuts[] = {1, 4096, 262143, 262144, 262145, 524288, 599999};

        for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
                const struct checksum_segment parts[] = {
                        {bytes, cuts[i] / 2},
                        {bytes + cuts[i] / 2, cuts[i] - cuts[i] / 2},
                        {bytes + cuts[i], BYTES - cuts[i]},
                };
                struct checksum_list other;

                checksum_compute(&other, &key, BYTES, parts, 3);
                ck_assert_mem_eq(other.pieces, list.pieces, 3 * sizeof(list.pieces[0]));
                ck_assert_uint_eq(other.total, list.total);
                ck_assert_int_eq(checksum_first_mismatch(&list, parts, 3), -1);
        }
}
END_TEST

START_TEST(a_flipped_bit_is_found_in_its_piece)
{
        static const uint32_t places[] = {0, 262143, 262144, 524288, 599999};

        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
                bytes[places[i]] ^= 0x80;
                ck_assert_int_eq(checksum_first_mismatch(&list, &whole, 1),
                                 (int)(places[i] / (256u << 10)));
                bytes[places[i]] ^= 0x80;
        }
        ck_assert_int_eq(checksum_first_mismatch(&list, &whole, 1), -1);
}
END_TEST

START_TEST(the_total_covers_key_length_and_pieces)
{
        struct checksum_list other = list;

        key.shard++;
        ck_assert_uint_ne(checksum_total(&list, &key), list.total);
        key.shard--;
        other.raw_bytes--;
        ck_assert_uint_ne(checksum_total(&other, &key), list.total);
        other = list;
        other.pieces[2]++;
        ck_assert_uint_ne(checksum_total(&other, &key), list.total);
        ck_assert_uint_eq(checksum_total(&list, &key), list.total);
}
END_TEST

START_TEST(pieces_grow_so_that_their_number_is_bounded)
{
        const uint64_t unit = 32u << 20;

        ck_assert_uint_eq(checksum_n_pieces(1), 1);
        ck_assert_uint_eq(checksum_n_pieces(256u << 10), 1);
        ck_assert_uint_eq(checksum_n_pieces((256u << 10) + 1), 2);
        ck_assert_uint_eq(checksum_piece_bytes(unit), 256u << 10);
        ck_assert_uint_eq(checksum_n_pieces(unit), 128);
        ck_assert_uint_eq(checksum_piece_bytes(unit + 1), 512u << 10);
        ck_assert_uint_eq(checksum_n_pieces(unit + 1), 65);
        for (uint64_t length = 1; length <= UINT64_C(1) << 30; length = length * 3 + 1)
                ck_assert_uint_le(checksum_n_pieces(length), CHECKSUM_PIECES_MAX);
}
END_TEST

/* A length that came from a disk: the list is refused, and nobody divides by zero. */
START_TEST(impossible_lengths_have_too_many_pieces)
{
        for (uint64_t length = UINT64_C(1) << 40; length; length <<= 1)
                for (int i = -1; i <= 1; i++) {
                        list.raw_bytes = length + (uint64_t)i;
                        list.piece_bytes = checksum_piece_bytes(list.raw_bytes);
                        list.n_pieces = checksum_n_pieces(list.raw_bytes);
                        ck_assert_uint_gt(list.n_pieces, CHECKSUM_PIECES_MAX);
                        ck_assert(!checksum_list_is_sane(&list));
                }
        ck_assert_uint_gt(checksum_n_pieces(UINT64_MAX), CHECKSUM_PIECES_MAX);
}
END_TEST

START_TEST(a_list_of_another_shape_is_not_sane)
{
        struct checksum_list other = list;

        other.n_pieces = 2;
        ck_assert(!checksum_list_is_sane(&other));
        other = list;
        other.piece_bytes *= 2;
        ck_assert(!checksum_list_is_sane(&other));
        other = list;
        other.raw_bytes = 0;
        ck_assert(!checksum_list_is_sane(&other));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/checksum");
        TCase *tcase = tcase_create("checksum");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, sums_are_the_documented_ones);
        tcase_add_test(tcase, impossible_lengths_have_too_many_pieces);
        tcase_add_test(tcase, sums_do_not_depend_on_segments);
        tcase_add_test(tcase, a_flipped_bit_is_found_in_its_piece);
        tcase_add_test(tcase, the_total_covers_key_length_and_pieces);
        tcase_add_test(tcase, pieces_grow_so_that_their_number_is_bounded);
        tcase_add_test(tcase, a_list_of_another_shape_is_not_sane);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
