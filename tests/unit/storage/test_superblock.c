// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "storage/superblock.h"

static struct superblock sample(void)
{
        struct superblock block = {
                .member_index = 1,
                .n_members = 3,
                .size_bytes = 64u << 20,
                .unit_bytes = 4096,
                .header_bytes = 4096,
                .epoch = 7,
                .sequence = 9,
        };

        memset(block.pool_uuid, 0xaa, sizeof(block.pool_uuid));
        memset(block.member_uuid, 0xbb, sizeof(block.member_uuid));
        superblock_seal(&block);
        return block;
}

START_TEST(superblock_has_its_golden_bytes)
{
        static const uint8_t golden[] = {
                'K', 'V', 'T', 'I', 'E', 'R', 'S', 'B', 1, 0, 0, 0, 0, 16, 0, 0,
        };
        struct superblock block = sample();
        const uint8_t *bytes = (const uint8_t *)&block;

        ck_assert_mem_eq(bytes, golden, sizeof(golden));
        ck_assert_uint_eq(bytes[24], 0xaa);
        ck_assert_uint_eq(bytes[40], 0xbb);
        ck_assert_uint_eq(bytes[56], 1);
        ck_assert_uint_eq(bytes[60], 3);
        ck_assert_uint_eq(bytes[67], 4);
        ck_assert_uint_eq(bytes[80], 7);
        ck_assert_uint_eq(bytes[88], 9);
        /* The checksum covers every byte: it stands for the rest of the golden block. */
        ck_assert_uint_eq(block.checksum, 5566183413872444242u);
}
END_TEST

START_TEST(superblock_decodes_what_was_sealed)
{
        struct superblock block = sample(), decoded;

        ck_assert_int_eq(superblock_decode(&decoded, &block, NULL), 0);
        ck_assert_mem_eq(&decoded, &block, sizeof(block));
}
END_TEST

START_TEST(superblock_detects_each_flipped_bit)
{
        struct superblock block = sample(), decoded;
        uint8_t *bytes = (uint8_t *)&block;

        for (size_t bit = 0; bit < 8 * sizeof(block); bit++) {
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ck_assert_int_gt(superblock_decode(&decoded, &block, NULL), 0);
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        ck_assert_int_eq(superblock_decode(&decoded, &block, NULL), 0);
}
END_TEST

static int decode_sealed(struct superblock block)
{
        struct superblock decoded;

        superblock_seal(&block);
        return superblock_decode(&decoded, &block, NULL);
}

START_TEST(superblock_refuses_impossible_fields)
{
        struct superblock block = sample();

        block.member_index = 3;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_DAMAGED);
        block = sample();
        block.unit_bytes = 512;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_DAMAGED);
        block = sample();
        block.size_bytes += 1;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_DAMAGED);
        block = sample();
        block.size_bytes = 4096;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_DAMAGED);
        block = sample();
        block.epoch = 0;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_DAMAGED);
        block = sample();
        block.reserved[100] = 1;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_DAMAGED);
}
END_TEST

START_TEST(superblock_feature_classes_refuse_or_ignore)
{
        struct superblock block = sample();

        block.refuse_flags = 1;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_NEWER);
        block = sample();
        block.readonly_flags = 1;
        ck_assert_int_eq(decode_sealed(block), SUPERBLOCK_E_NEWER);
        block = sample();
        block.ignore_flags = 1;
        ck_assert_int_eq(decode_sealed(block), 0);
}
END_TEST

START_TEST(superblock_newer_format_names_both_versions)
{
        struct superblock block = sample(), decoded;
        struct why why = {""};

        block.version = 77;
        ck_assert_int_eq(superblock_decode(&decoded, &block, &why), SUPERBLOCK_E_NEWER);
        ck_assert_ptr_nonnull(strstr(why.text, "77"));
        ck_assert_ptr_nonnull(strstr(why.text, "up to 1"));
}
END_TEST

START_TEST(superblock_choose_takes_the_whole_copy)
{
        uint8_t *area = calloc(1, SUPERBLOCK_AREA_BYTES);
        struct superblock block = sample(), chosen;

        ck_assert_int_eq(superblock_choose(&chosen, area, NULL), SUPERBLOCK_E_EMPTY);
        memcpy(area, &block, sizeof(block));
        ck_assert_int_eq(superblock_choose(&chosen, area, NULL), 0);
        block.sequence = 10;
        superblock_seal(&block);
        memcpy(area + SUPERBLOCK_COPY_BYTES, &block, sizeof(block));
        ck_assert_int_eq(superblock_choose(&chosen, area, NULL), 0);
        ck_assert_uint_eq(chosen.sequence, 10);
        area[SUPERBLOCK_COPY_BYTES + 2000] ^= 1;
        ck_assert_int_eq(superblock_choose(&chosen, area, NULL), 0);
        ck_assert_uint_eq(chosen.sequence, 9);
        area[60] ^= 1;
        ck_assert_int_eq(superblock_choose(&chosen, area, NULL), SUPERBLOCK_E_DAMAGED);
        free(area);
}
END_TEST

START_TEST(superblock_choose_never_calls_foreign_bytes_empty)
{
        uint8_t *area = calloc(1, SUPERBLOCK_AREA_BYTES);
        struct superblock chosen;

        area[SUPERBLOCK_AREA_BYTES - 1] = 1;
        ck_assert_int_eq(superblock_choose(&chosen, area, NULL), SUPERBLOCK_E_FOREIGN);
        area[SUPERBLOCK_AREA_BYTES - 1] = 0;
        area[0] = 0xeb;
        ck_assert_int_eq(superblock_choose(&chosen, area, NULL), SUPERBLOCK_E_FOREIGN);
        free(area);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/superblock");
        TCase *tcase = tcase_create("superblock");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, superblock_has_its_golden_bytes);
        tcase_add_test(tcase, superblock_decodes_what_was_sealed);
        tcase_add_test(tcase, superblock_detects_each_flipped_bit);
        tcase_add_test(tcase, superblock_refuses_impossible_fields);
        tcase_add_test(tcase, superblock_feature_classes_refuse_or_ignore);
        tcase_add_test(tcase, superblock_newer_format_names_both_versions);
        tcase_add_test(tcase, superblock_choose_takes_the_whole_copy);
        tcase_add_test(tcase, superblock_choose_never_calls_foreign_bytes_empty);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
