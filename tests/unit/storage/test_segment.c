// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "storage/segment.h"

#define RAW_BYTES (600u << 10)

static struct segment_header sample(void)
{
        struct segment_header header = {
                .epoch = 2,
                .n_extents = 2,
                .claim = 0x1122334455667788,
                .generation = 5,
                .boundary_tokens = 512,
                .raw_bytes = RAW_BYTES,
                .stored_bytes = RAW_BYTES,
                .committed_ns = 1234567890,
        };
        struct checksum_list list = {.total = 99, .raw_bytes = RAW_BYTES};

        memset(header.pool_uuid, 0xaa, sizeof(header.pool_uuid));
        memset(header.key.layout.bytes, 0x11, DIGEST_BYTES);
        memset(header.key.boundary.bytes, 0x22, DIGEST_BYTES);
        header.key.group = 3;
        header.key.shard = 4;
        memset(header.parent.bytes, 0x33, DIGEST_BYTES);
        header.extents[0] = (struct segment_extent){.first = 32, .count = 100, .member = 1};
        header.extents[1] = (struct segment_extent){.first = 500, .count = 51, .member = 0};
        list.piece_bytes = checksum_piece_bytes(RAW_BYTES);
        list.n_pieces = checksum_n_pieces(RAW_BYTES);
        for (uint32_t i = 0; i < list.n_pieces; i++)
                list.pieces[i] = 1000 + i;
        segment_set_checksums(&header, &list);
        segment_seal(&header);
        return header;
}

START_TEST(header_has_its_golden_bytes)
{
        struct segment_header header = sample();
        const uint8_t *bytes = (const uint8_t *)&header;

        ck_assert_mem_eq(bytes, "KVTIEROB\1\0\0\0\0\20\0\0", 16);
        ck_assert_uint_eq(bytes[24], 0xaa);
        ck_assert_uint_eq(bytes[40], 2);
        ck_assert_uint_eq(header.own_offset, 32 * 4096);
        ck_assert_uint_eq(bytes[56], 1);
        ck_assert_uint_eq(bytes[64], 0x88);
        ck_assert_uint_eq(bytes[80], 0x11);
        ck_assert_uint_eq(bytes[152], 0x33);
        ck_assert_uint_eq(bytes[312], 32);
        /* The checksum covers every byte: it stands for the rest of the golden header. */
        ck_assert_uint_eq(header.checksum, 16372233572004968411u);
}
END_TEST

START_TEST(header_keeps_the_piece_list)
{
        struct segment_header header = sample();
        struct checksum_list list;

        ck_assert_int_eq(segment_check(&header, NULL), 0);
        segment_get_checksums(&header, &list);
        ck_assert_uint_eq(list.total, 99);
        ck_assert_uint_eq(list.n_pieces, 3);
        ck_assert_uint_eq(list.pieces[2], 1002);
        ck_assert_uint_eq(list.raw_bytes, RAW_BYTES);
}
END_TEST

START_TEST(header_detects_each_flipped_bit)
{
        struct segment_header header = sample();
        uint8_t *bytes = (uint8_t *)&header;

        for (size_t bit = 0; bit < 8 * sizeof(header); bit++) {
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ck_assert_int_gt(segment_check(&header, NULL), 0);
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        ck_assert_int_eq(segment_check(&header, NULL), 0);
}
END_TEST

static int check_sealed(struct segment_header header)
{
        segment_seal(&header);
        return segment_check(&header, NULL);
}

START_TEST(header_refuses_impossible_fields)
{
        struct segment_header header = sample();

        header.n_extents = 17;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.n_extents = 1;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.extents[1].count++;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.extents[1].first = UINT64_MAX - 3;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.extents[1].member = 64;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.n_pieces = 200;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.raw_bytes--;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.claim = 0;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.flags = 1u << 9;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.reserved[0] = 1;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.pieces[5] = 1;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
}
END_TEST

/* As sample(), stored in two thirds of its length. */
static struct segment_header encoded_sample(void)
{
        struct encoding_table table = {
                .encoding = {ENCODING_PLANES_ZSTD, 2},
                .n_pieces = 3,
                .stored_bytes = 400u << 10,
                .checksums = {7, 8, 9},
                .lengths = {150u << 10, 200u << 10, 50u << 10},
        };
        struct segment_header header = sample();

        segment_set_encoding(&header, &table);
        header.n_extents = 1;
        header.extents[0].count = 101;
        memset(&header.extents[1], 0, sizeof(header.extents[1]));
        segment_seal(&header);
        return header;
}

START_TEST(header_keeps_how_the_object_is_stored)
{
        struct segment_header header = encoded_sample();
        struct encoding_table table;

        ck_assert_int_eq(segment_check(&header, NULL), 0);
        segment_get_encoding(&header, &table);
        ck_assert_uint_eq(table.encoding.kind, ENCODING_PLANES_ZSTD);
        ck_assert_uint_eq(table.encoding.element_bytes, 2);
        ck_assert_uint_eq(table.n_pieces, 3);
        ck_assert_uint_eq(table.stored_bytes, 400u << 10);
        ck_assert_uint_eq(table.checksums[2], 9);
        ck_assert_uint_eq(table.lengths[1], 200u << 10);
        ck_assert_uint_eq(((const uint8_t *)&header)[208], 3);
        ck_assert_uint_eq(((const uint8_t *)&header)[209], 2);
}
END_TEST

START_TEST(header_refuses_impossible_stored_forms)
{
        struct segment_header header = encoded_sample();

        header.stored_lengths[0]++;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = encoded_sample();
        header.stored_lengths[0] += header.stored_lengths[2];
        header.stored_lengths[2] = 0;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = encoded_sample();
        header.stored_lengths[3] = 1;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = encoded_sample();
        header.stored_checksums[3] = 1;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = encoded_sample();
        header.codec = 0;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = sample();
        header.stored_checksums[0] = 1;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_DAMAGED);
        header = encoded_sample();
        header.codec = ENCODING_KINDS | 2u << 8;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_NEWER);
        header = encoded_sample();
        header.codec |= 1u << 16;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_NEWER);
}
END_TEST

START_TEST(header_of_a_newer_format_is_told_apart)
{
        struct segment_header header = sample();
        struct why why = {""};

        header.version = 42;
        ck_assert_int_eq(segment_check(&header, &why), SEGMENT_E_NEWER);
        ck_assert_ptr_nonnull(strstr(why.text, "42"));
        ck_assert_ptr_nonnull(strstr(why.text, "up to 1"));
        header = sample();
        header.refuse_flags = 4;
        ck_assert_int_eq(check_sealed(header), SEGMENT_E_NEWER);
        header = sample();
        header.ignore_flags = 4;
        ck_assert_int_eq(check_sealed(header), 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/segment");
        TCase *tcase = tcase_create("segment");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, header_has_its_golden_bytes);
        tcase_add_test(tcase, header_keeps_the_piece_list);
        tcase_add_test(tcase, header_detects_each_flipped_bit);
        tcase_add_test(tcase, header_refuses_impossible_fields);
        tcase_add_test(tcase, header_keeps_how_the_object_is_stored);
        tcase_add_test(tcase, header_refuses_impossible_stored_forms);
        tcase_add_test(tcase, header_of_a_newer_format_is_told_apart);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
