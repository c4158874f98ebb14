// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/bundle.h"
#include "storage/segment.h"
#include "tests/unit/storage/pool_sample.h"

#define PARTS POOL_SAMPLES

static const struct bundle_id sample_id = {.node = {1, 2, 0xab, [15] = 0xff}, .number = 0x123};

/* Memory of exactly @length bytes, so that a sanitizer sees the first byte behind it. */
static uint8_t *copy_of(const void *bytes, size_t length)
{
        uint8_t *copy = malloc(length ? length : 1);

        ck_assert_ptr_nonnull(copy);
        if (length)
                memcpy(copy, bytes, length);
        return copy;
}

static uint8_t *encode_part(const struct bundle_part *part, size_t *ret_bytes)
{
        uint8_t *record = malloc(bundle_part_bytes(part));

        ck_assert_ptr_nonnull(record);
        bundle_part_encode(record, part);
        *ret_bytes = bundle_part_bytes(part);
        return record;
}

START_TEST(part_comes_back_as_it_was)
{
        struct bundle_part part = pool_sample((uint32_t)_i), again;
        size_t bytes, used = 0;
        uint8_t *record = encode_part(&part, &bytes);
        uint8_t *shifted = malloc(bytes + 1);

        ck_assert_ptr_nonnull(shifted);
        ck_assert_uint_eq(bytes % 8, 0);
        memcpy(shifted + 1, record, bytes);
        ck_assert_int_eq(bundle_part_decode(&again, shifted + 1, bytes, &used, NULL), 0);
        ck_assert_uint_eq(used, bytes);
        ck_assert(pool_sample_equal(&part, &again));
        free(shifted);
        free(record);
}
END_TEST

START_TEST(part_has_its_golden_bytes)
{
        struct bundle_part part = pool_sample(1);
        size_t bytes;
        uint8_t *record = encode_part(&part, &bytes);
        const struct bundle_part_head *head = (const void *)record;

        ck_assert_uint_eq(bytes, 216 + 2 * 8 + 5 * 32 + 16);
        ck_assert_uint_eq(record[4], SEGMENT_PARENT_UNKNOWN | SEGMENT_CROPPABLE);
        ck_assert_uint_eq(record[16], 40);
        ck_assert_uint_eq(head->n_covers, 5);
        /* The checksum covers every byte: it stands for the rest. */
        ck_assert_uint_eq(head->checksum, 4197955550745866850u);
        free(record);
}
END_TEST

START_TEST(part_detects_each_flipped_bit)
{
        struct bundle_part part = pool_sample((uint32_t)_i), again;
        size_t bytes, used;
        uint8_t *record = encode_part(&part, &bytes);

        for (size_t bit = 0; bit < 8 * bytes; bit++) {
                record[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ck_assert_int_gt(bundle_part_decode(&again, record, bytes, &used, NULL), 0);
                record[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        ck_assert_int_eq(bundle_part_decode(&again, record, bytes, &used, NULL), 0);
        free(record);
}
END_TEST

START_TEST(part_cut_anywhere_is_damaged)
{
        struct bundle_part part = pool_sample((uint32_t)_i), again;
        struct why why;
        size_t bytes, used;
        uint8_t *record = encode_part(&part, &bytes);

        for (size_t length = 0; length < bytes; length++) {
                uint8_t *cut = copy_of(record, length);

                why.text[0] = '\0';
                ck_assert_int_eq(bundle_part_decode(&again, cut, length, &used, &why),
                                 BUNDLE_E_DAMAGED);
                ck_assert_str_ne(why.text, "");
                free(cut);
        }
        free(record);
}
END_TEST

static void seal_part(uint8_t *record)
{
        struct bundle_part_head head;

        memcpy(&head, record, sizeof(head));
        head.checksum = segment_checksum(record, head.record_bytes,
                                         offsetof(struct bundle_part_head, checksum));
        memcpy(record, &head, sizeof(head));
}

/* What the head of sample 1 may not say, even under a right checksum. */
static void set_flag(struct bundle_part_head *head)
{
        head->flags = 4;
}
static void set_group(struct bundle_part_head *head)
{
        head->key.group = LAYOUT_GROUPS_MAX;
}
static void set_shard(struct bundle_part_head *head)
{
        head->key.shard = LAYOUT_SHARDS_MAX;
}
static void set_cell(struct bundle_part_head *head)
{
        head->cell = LAYOUT_CELLS_MAX;
}
static void set_raw(struct bundle_part_head *head)
{
        head->raw_bytes = 0;
}
static void set_raw_huge(struct bundle_part_head *head)
{
        head->raw_bytes = UINT64_MAX;
}
static void set_stored(struct bundle_part_head *head)
{
        head->stored_bytes = 0;
}
static void set_stored_more(struct bundle_part_head *head)
{
        head->stored_bytes = head->raw_bytes + 1;
}
static void set_offset(struct bundle_part_head *head)
{
        head->offset = 100;
}
static void set_offset_far(struct bundle_part_head *head)
{
        head->offset = BUNDLE_BYTES_MAX;
}
static void set_offset_wraps(struct bundle_part_head *head)
{
        head->offset = UINT64_MAX;
}
static void set_piece(struct bundle_part_head *head)
{
        head->piece_bytes = 4096;
}
static void set_total(struct bundle_part_head *head)
{
        head->checksum_total++;
}
static void set_reserved(struct bundle_part_head *head)
{
        head->reserved = 1;
}
static void set_reserved2(struct bundle_part_head *head)
{
        head->reserved2 = 1;
}
static void set_raw_encoding(struct bundle_part_head *head)
{
        head->encoding = 0;
}
static void set_other_key(struct bundle_part_head *head)
{
        head->key.domain = 1;
}

static void (*const impossible[])(struct bundle_part_head *head) = {
        set_flag,         set_group,     set_shard,       set_cell,     set_raw,
        set_raw_huge,     set_stored,    set_stored_more, set_offset,   set_offset_far,
        set_offset_wraps, set_piece,     set_total,       set_reserved, set_reserved2,
        set_raw_encoding, set_other_key,
};

START_TEST(part_refuses_an_impossible_field)
{
        struct bundle_part part = pool_sample(1), again;
        size_t bytes, used;
        uint8_t *record = encode_part(&part, &bytes);
        struct bundle_part_head head;
        struct why why = {""};

        memcpy(&head, record, sizeof(head));
        impossible[_i](&head);
        memcpy(record, &head, sizeof(head));
        seal_part(record);
        ck_assert_int_eq(bundle_part_decode(&again, record, bytes, &used, &why), BUNDLE_E_DAMAGED);
        ck_assert_ptr_nonnull(strstr(why.text, "impossible"));
        free(record);
}
END_TEST

START_TEST(part_refuses_counts_that_its_length_does_not_hold)
{
        static const uint32_t counts[] = {0, 3, 129, 1u << 29, UINT32_MAX};
        struct bundle_part part = pool_sample(1), again;
        size_t bytes, used;
        uint8_t *record = encode_part(&part, &bytes);
        const size_t fields[] = {offsetof(struct bundle_part_head, n_pieces),
                                 offsetof(struct bundle_part_head, n_covers),
                                 offsetof(struct bundle_part_head, encoding_bytes)};

        for (size_t field = 0; field < 3; field++) {
                for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
                        uint8_t *copy = copy_of(record, bytes);

                        memcpy(copy + fields[field], &counts[i], sizeof(counts[i]));
                        seal_part(copy);
                        ck_assert_int_eq(bundle_part_decode(&again, copy, bytes, &used, NULL),
                                         BUNDLE_E_DAMAGED);
                        free(copy);
                }
        }
        free(record);
}
END_TEST

START_TEST(part_refuses_padding_that_is_not_zero)
{
        struct bundle_part part = pool_sample(1), again;
        size_t bytes, used;
        uint8_t *record = encode_part(&part, &bytes);

        record[bytes - 1] = 1;
        seal_part(record);
        ck_assert_int_eq(bundle_part_decode(&again, record, bytes, &used, NULL), BUNDLE_E_DAMAGED);
        free(record);
}
END_TEST

/* All samples but the large one, in one bundle. */
static uint8_t *encode_bundle(struct bundle_part parts[PARTS], uint32_t *ret_n, size_t *ret_bytes)
{
        uint32_t n = 0;
        uint8_t *header;

        for (uint32_t i = 0; i < POOL_SAMPLES; i++) {
                parts[n] = pool_sample(i);
                if (parts[n].stored_bytes < BUNDLE_BYTES_MAX / 2)
                        n++;
        }
        ck_assert_uint_le(bundle_place(parts, n), BUNDLE_BYTES_MAX);
        *ret_n = n;
        *ret_bytes = bundle_header_bytes(parts, n);
        header = malloc(*ret_bytes);
        ck_assert_ptr_nonnull(header);
        bundle_header_encode(header, &sample_id, parts, n);
        return header;
}

START_TEST(header_lists_its_parts_in_order)
{
        struct bundle_part parts[PARTS], again;
        struct bundle_head head;
        uint32_t n;
        size_t bytes, used, at = sizeof(head);
        uint64_t offset;
        uint8_t *header = encode_bundle(parts, &n, &bytes);

        memcpy(&head, header, sizeof(head));
        ck_assert_mem_eq(head.magic, BUNDLE_MAGIC, sizeof(head.magic));
        ck_assert_uint_eq(head.version, BUNDLE_VERSION);
        ck_assert_mem_eq(head.node, sample_id.node, 16);
        ck_assert_uint_eq(head.number, sample_id.number);
        ck_assert_uint_eq(head.n_parts, n);
        ck_assert_uint_eq(head.header_bytes, bytes);
        ck_assert_uint_eq(head.checksum,
                          segment_checksum(header, bytes, offsetof(struct bundle_head, checksum)));
        offset = bytes;
        for (uint32_t i = 0; i < n; i++, at += used) {
                ck_assert_int_eq(bundle_part_decode(&again, header + at, bytes - at, &used, NULL),
                                 0);
                ck_assert(pool_sample_equal(&parts[i], &again));
                ck_assert_uint_eq(again.offset, offset);
                offset += again.stored_bytes;
        }
        ck_assert_uint_eq(at, bytes);
        free(header);
}
END_TEST

START_TEST(name_has_one_spelling)
{
        static const char *const wrong[] = {
                "",
                "bundle",
                "bundle/",
                "bundle/0102ab000000000000000000000000ff",
                "bundle/0102ab000000000000000000000000ff/",
                "bundle/0102ab000000000000000000000000ff/000000000000012",
                "bundle/0102ab000000000000000000000000ff/00000000000001230",
                "bundle/0102ab000000000000000000000000ff/000000000000012g",
                "bundle/0102AB000000000000000000000000ff/0000000000000123",
                "bundle/0102ab000000000000000000000000ff.0000000000000123",
                "bundle/0102ab000000000000000000000000f/0000000000000123",
                "journal/0102ab000000000000000000000000ff/0000000000000123",
        };
        char name[POOL_NAME_MAX];
        struct bundle_id id = {.number = 77};

        bundle_name(name, &sample_id);
        ck_assert_str_eq(name, "bundle/0102ab000000000000000000000000ff/0000000000000123");
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
                ck_assert_msg(!bundle_name_parse(wrong[i], &id), "%s", wrong[i]);
        ck_assert_uint_eq(id.number, 77);
        ck_assert(bundle_name_parse(name, &id));
        ck_assert_mem_eq(id.node, sample_id.node, 16);
        ck_assert_uint_eq(id.number, sample_id.number);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/bundle");
        TCase *tcase = tcase_create("bundle");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_loop_test(tcase, part_comes_back_as_it_was, 0, POOL_SAMPLES);
        tcase_add_test(tcase, part_has_its_golden_bytes);
        tcase_add_loop_test(tcase, part_detects_each_flipped_bit, 0, POOL_SAMPLES);
        tcase_add_loop_test(tcase, part_cut_anywhere_is_damaged, 0, POOL_SAMPLES);
        tcase_add_loop_test(tcase, part_refuses_an_impossible_field, 0,
                            sizeof(impossible) / sizeof(impossible[0]));
        tcase_add_test(tcase, part_refuses_counts_that_its_length_does_not_hold);
        tcase_add_test(tcase, part_refuses_padding_that_is_not_zero);
        tcase_add_test(tcase, header_lists_its_parts_in_order);
        tcase_add_test(tcase, name_has_one_spelling);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
