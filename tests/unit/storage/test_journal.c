// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/journal.h"
#include "storage/segment.h"
#include "tests/unit/storage/pool_sample.h"

#define NUMBER 0x7edcba9876543210u

static const uint8_t node[16] = {0xde, 0xad, [15] = 7};
static const uint8_t encoding[] = "not looked into by journals";

enum { RECORDS = 7 };

/* One record of each kind, in the order of their numbers but for the snapshot. */
static struct journal_record sample(uint32_t i)
{
        static const enum journal_kind kinds[RECORDS] = {
                JOURNAL_SNAPSHOT, JOURNAL_STORED, JOURNAL_DELETED, JOURNAL_DROPPED,
                JOURNAL_REPLACED, JOURNAL_READ,   JOURNAL_LAYOUT,
        };
        struct journal_record record = {.kind = kinds[i]};

        if (record.kind >= JOURNAL_STORED && record.kind <= JOURNAL_DROPPED) {
                memset(record.bundle.node, 0x5a, sizeof(record.bundle.node));
                record.bundle.number = INT64_MAX - i;
        }
        if (record.kind == JOURNAL_STORED || record.kind == JOURNAL_DROPPED)
                record.part = BUNDLE_PARTS_MAX - 1;
        if (record.kind == JOURNAL_STORED)
                record.stored = pool_sample(1);
        if (record.kind == JOURNAL_REPLACED) {
                record.key = pool_sample(2).object.key;
                record.checksum_total = UINT64_MAX;
        }
        if (record.kind == JOURNAL_READ) {
                memset(record.node, 0xa5, sizeof(record.node));
                record.number = 12;
        }
        if (record.kind == JOURNAL_LAYOUT) {
                record.layout = (struct tier_layout){
                        .domain = 3, .length = sizeof(encoding), .encoding = encoding};
                ck_assert_int_eq(layout_id(&record.layout.id, encoding, sizeof(encoding)), 0);
        }
        return record;
}

static bool records_equal(const struct journal_record *a, const struct journal_record *b)
{
        return a->kind == b->kind && !memcmp(&a->bundle, &b->bundle, sizeof(a->bundle)) &&
               a->part == b->part && pool_sample_equal(&a->stored, &b->stored) &&
               object_key_equal(&a->key, &b->key) && a->checksum_total == b->checksum_total &&
               !memcmp(a->node, b->node, sizeof(a->node)) && a->number == b->number &&
               digest_equal(&a->layout.id, &b->layout.id) && a->layout.domain == b->layout.domain &&
               a->layout.length == b->layout.length &&
               (!a->layout.length ||
                !memcmp(a->layout.encoding, b->layout.encoding, a->layout.length));
}

/* A sealed segment of samples [first, end). */
static struct journal_segment segment_of(uint32_t first, uint32_t end)
{
        struct journal_segment segment;

        journal_segment_init(&segment);
        for (uint32_t i = first; i < end; i++) {
                struct journal_record record = sample(i);

                ck_assert_int_eq(journal_segment_add(&segment, &record), 0);
        }
        journal_segment_seal(&segment, node, NUMBER);
        return segment;
}

struct seen {
        uint32_t first;
        uint32_t n;
        uint32_t limit; /* 0: none */
};

static bool see_record(void *user, const struct journal_record *record)
{
        struct seen *seen = user;
        struct journal_record wanted = sample(seen->first + seen->n);

        ck_assert(records_equal(&wanted, record));
        return ++seen->n != seen->limit;
}

/* Decodes a copy of exactly @length bytes, so that a sanitizer sees the first behind it. */
static int decode(const uint8_t *bytes, size_t length, struct seen *seen, struct why *why)
{
        uint8_t *copy = malloc(length ? length : 1);
        int r;

        ck_assert_ptr_nonnull(copy);
        memcpy(copy, bytes, length);
        r = journal_segment_decode(copy, length, node, NUMBER, see_record, seen, why);
        free(copy);
        return r;
}

START_TEST(record_of_each_kind_comes_back_as_it_was)
{
        struct journal_segment segment = segment_of((uint32_t)_i, (uint32_t)_i + 1);
        struct journal_record record = sample((uint32_t)_i);
        struct seen seen = {.first = (uint32_t)_i};

        ck_assert_uint_eq(segment.length, 64 + journal_record_bytes(&record));
        ck_assert_int_eq(decode(segment.bytes, segment.length, &seen, NULL), 0);
        ck_assert_uint_eq(seen.n, 1);
        journal_segment_deinit(&segment);
}
END_TEST

START_TEST(segment_gives_its_records_in_order_until_told_to_end)
{
        struct journal_segment segment = segment_of(0, RECORDS);
        struct seen seen = {0};

        ck_assert_int_eq(decode(segment.bytes, segment.length, &seen, NULL), 0);
        ck_assert_uint_eq(seen.n, RECORDS);
        seen = (struct seen){.limit = 3};
        ck_assert_int_eq(decode(segment.bytes, segment.length, &seen, NULL), 0);
        ck_assert_uint_eq(seen.n, 3);
        journal_segment_deinit(&segment);
}
END_TEST

START_TEST(segment_has_its_golden_bytes)
{
        struct journal_segment segment = segment_of(0, RECORDS);
        const struct journal_head *head = (const void *)segment.bytes;

        ck_assert_mem_eq(segment.bytes, "KVTIERJO\1\0\0\0", 12);
        ck_assert_uint_eq(head->length, segment.length);
        ck_assert_uint_eq(head->n_records, RECORDS);
        ck_assert_uint_eq(segment.bytes[40], 0x10);
        ck_assert_uint_eq(segment.bytes[64], JOURNAL_SNAPSHOT);
        ck_assert_uint_eq(segment.bytes[72], JOURNAL_STORED);
        /* The checksum covers every byte: it stands for the rest. */
        ck_assert_uint_eq(head->checksum, 8051677616254245108u);
        journal_segment_deinit(&segment);
}
END_TEST

START_TEST(segment_gives_nothing_of_a_damaged_one)
{
        struct journal_segment segment = segment_of(0, RECORDS);
        struct seen seen = {0};

        for (size_t bit = 0; bit < 8 * segment.length; bit++) {
                segment.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ck_assert_int_gt(decode(segment.bytes, segment.length, &seen, NULL), 0);
                segment.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        ck_assert_uint_eq(seen.n, 0);
        journal_segment_deinit(&segment);
}
END_TEST

START_TEST(segment_cut_or_lengthened_is_damaged)
{
        struct journal_segment segment = segment_of(0, RECORDS);
        struct seen seen = {0};
        struct why why;
        uint8_t *longer = calloc(1, segment.length + 8);

        ck_assert_ptr_nonnull(longer);
        for (size_t length = 0; length < segment.length; length++) {
                why.text[0] = '\0';
                ck_assert_int_eq(decode(segment.bytes, length, &seen, &why), JOURNAL_E_DAMAGED);
                ck_assert_str_ne(why.text, "");
        }
        memcpy(longer, segment.bytes, segment.length);
        for (size_t more = 1; more <= 8; more++)
                ck_assert_int_eq(decode(longer, segment.length + more, &seen, NULL),
                                 JOURNAL_E_DAMAGED);
        ck_assert_uint_eq(seen.n, 0);
        free(longer);
        journal_segment_deinit(&segment);
}
END_TEST

/* Puts length and checksum right again, after the bytes were changed. */
static void reseal(struct journal_segment *segment)
{
        struct journal_head head;

        memcpy(&head, segment->bytes, sizeof(head));
        head.length = (uint32_t)segment->length;
        memcpy(segment->bytes, &head, sizeof(head));
        head.checksum = segment_checksum(segment->bytes, segment->length,
                                         offsetof(struct journal_head, checksum));
        memcpy(segment->bytes, &head, sizeof(head));
}

/* Changes 4 bytes at @at of the segment of sample @i alone and decodes it. */
static int decode_changed(uint32_t i, size_t at, uint32_t value)
{
        struct journal_segment segment = segment_of(i, i + 1);
        struct seen seen = {.first = i};
        struct why why = {""};
        int r;

        memcpy(segment.bytes + at, &value, sizeof(value));
        reseal(&segment);
        r = decode(segment.bytes, segment.length, &seen, &why);
        ck_assert_uint_eq(seen.n, 0);
        ck_assert_str_ne(why.text, "");
        journal_segment_deinit(&segment);
        return r;
}

START_TEST(segment_refuses_impossible_fields)
{
        const size_t body = 72;

        ck_assert_int_eq(decode_changed(1, 48, 0), JOURNAL_E_DAMAGED); /* records */
        ck_assert_int_eq(decode_changed(1, 48, 2), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(1, 48, UINT32_MAX), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(1, 60, 1), JOURNAL_E_DAMAGED); /* reserved */
        for (uint32_t i = 0; i < RECORDS; i++) {
                ck_assert_int_eq(decode_changed(i, 68, 0), JOURNAL_E_DAMAGED); /* its length */
                ck_assert_int_eq(decode_changed(i, 68, 9), JOURNAL_E_DAMAGED);
                ck_assert_int_eq(decode_changed(i, 68, 16384), JOURNAL_E_DAMAGED);
                ck_assert_int_eq(decode_changed(i, 68, UINT32_MAX - 7), JOURNAL_E_DAMAGED);
        }
        ck_assert_int_eq(decode_changed(1, body + 24, BUNDLE_PARTS_MAX), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(1, body + 28, 1), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(1, body + 32 + 200, 6), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(3, body + 28, 1), JOURNAL_E_DAMAGED);
        for (uint32_t i = 1; i <= 3; i++) /* a number whose next one would wrap */
                ck_assert_int_eq(decode_changed(i, body + 20, 1u << 31), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(5, body + 20, 1u << 31), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(4, body + 68, LAYOUT_GROUPS_MAX), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(6, body, 0), JOURNAL_E_DAMAGED);      /* id */
        ck_assert_int_eq(decode_changed(6, body + 36, 0), JOURNAL_E_DAMAGED); /* length */
        ck_assert_int_eq(decode_changed(6, body + 36, LAYOUT_BYTES_MAX + 1), JOURNAL_E_DAMAGED);
        ck_assert_int_eq(decode_changed(6, body + 36, UINT32_MAX), JOURNAL_E_DAMAGED);
}
END_TEST

START_TEST(segment_refuses_a_snapshot_that_is_not_first)
{
        struct journal_segment segment = segment_of(2, 4);
        const uint32_t kind = JOURNAL_SNAPSHOT, bytes = 8;
        struct seen seen = {.first = 2};
        struct why why = {""};

        /* The second record becomes a snapshot, and the last. */
        memcpy(segment.bytes + 64 + 32, &kind, sizeof(kind));
        memcpy(segment.bytes + 64 + 36, &bytes, sizeof(bytes));
        segment.length = 64 + 32 + 8;
        reseal(&segment);
        ck_assert_int_eq(decode(segment.bytes, segment.length, &seen, &why), JOURNAL_E_DAMAGED);
        ck_assert_ptr_nonnull(strstr(why.text, "record 1"));
        ck_assert_uint_eq(seen.n, 0);
        journal_segment_deinit(&segment);
}
END_TEST

START_TEST(segment_of_a_newer_format_is_told_apart)
{
        struct journal_segment segment = segment_of(0, 2);
        const uint32_t version = 9;
        struct seen seen = {0};
        struct why why = {""};

        ck_assert_int_eq(decode_changed(1, 52, 1), JOURNAL_E_NEWER); /* refuse flag */
        ck_assert_int_eq(decode_changed(1, 64, 0), JOURNAL_E_NEWER); /* kind */
        ck_assert_int_eq(decode_changed(1, 64, JOURNAL_SNAPSHOT + 1), JOURNAL_E_NEWER);
        memcpy(segment.bytes + 8, &version, sizeof(version));
        ck_assert_int_eq(decode(segment.bytes, segment.length, &seen, &why), JOURNAL_E_NEWER);
        ck_assert_ptr_nonnull(strstr(why.text, "journal format 9"));
        ck_assert_ptr_nonnull(strstr(why.text, "up to 1"));
        journal_segment_deinit(&segment);
}
END_TEST

START_TEST(segment_under_another_name_is_refused)
{
        struct journal_segment segment = segment_of(0, RECORDS);
        static const uint8_t other[16];
        struct seen seen = {0};
        struct why why = {""};

        ck_assert_int_eq(journal_segment_decode(segment.bytes, segment.length, other, NUMBER,
                                                see_record, &seen, &why),
                         -EINVAL);
        ck_assert_int_eq(journal_segment_decode(segment.bytes, segment.length, node, NUMBER + 1,
                                                see_record, &seen, NULL),
                         -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "another node"));
        ck_assert_uint_eq(seen.n, 0);
        journal_segment_deinit(&segment);
}
END_TEST

static bool count_record(void *user, const struct journal_record *record)
{
        ck_assert_uint_eq(record->kind, JOURNAL_DELETED);
        ck_assert_uint_eq(record->bundle.number, *(uint32_t *)user);
        (*(uint32_t *)user)++;
        return true;
}

START_TEST(segment_takes_records_up_to_its_limit)
{
        struct journal_record record = {.kind = JOURNAL_DELETED};
        struct journal_segment segment;
        uint32_t n = 0, seen = 0;
        int r;

        journal_segment_init(&segment);
        while (!(r = journal_segment_add(&segment, &record)))
                record.bundle.number = ++n;
        ck_assert_int_eq(r, JOURNAL_E_FULL);
        ck_assert_uint_eq(n, (JOURNAL_SEGMENT_BYTES - 64) / 32);
        journal_segment_seal(&segment, node, 1);
        ck_assert_uint_le(segment.length, JOURNAL_SEGMENT_BYTES);
        ck_assert_int_eq(journal_segment_decode(segment.bytes, segment.length, node, 1,
                                                count_record, &seen, NULL),
                         0);
        ck_assert_uint_eq(seen, n);
        journal_segment_deinit(&segment);
}
END_TEST

START_TEST(name_has_one_spelling)
{
        static const char *const wrong[] = {
                "journal/dead0000000000000000000000000007",
                "journal/dead0000000000000000000000000007/7edcba987654321",
                "journal/dead0000000000000000000000000007/7edcba98765432100",
                "journal/dead0000000000000000000000000007/7EDCBA9876543210",
                "journal/dead0000000000000000000000000007/8000000000000000",
                "bundle/dead0000000000000000000000000007/7edcba9876543210",
                "node/dead0000000000000000000000000007/",
                "node/dead000000000000000000000000000",
                "node/",
        };
        char name[POOL_NAME_MAX];
        uint8_t parsed[16];
        uint64_t number;

        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                ck_assert(!journal_name_parse(wrong[i], parsed, &number));
                ck_assert(!journal_node_name_parse(wrong[i], parsed));
        }
        journal_name(name, node, NUMBER);
        ck_assert_str_eq(name, "journal/dead0000000000000000000000000007/7edcba9876543210");
        ck_assert(journal_name_parse(name, parsed, &number));
        ck_assert_mem_eq(parsed, node, 16);
        ck_assert_uint_eq(number, NUMBER);
        memset(parsed, 0, sizeof(parsed));
        journal_node_name(name, node);
        ck_assert_str_eq(name, "node/dead0000000000000000000000000007");
        ck_assert(journal_node_name_parse(name, parsed));
        ck_assert_mem_eq(parsed, node, 16);
}
END_TEST

static struct journal_node sample_node(void)
{
        struct journal_node block = {
                .host = "node-1.example.org",
                .written_ns = UINT64_MAX,
                .first_segment = 5,
                .next_segment = UINT64_MAX - 1,
                .bundles = 3,
                .bytes = 4,
                .bytes_max = UINT64_MAX - 2,
                .heartbeat_s = UINT32_MAX,
        };

        memcpy(block.node, node, sizeof(block.node));
        return block;
}

START_TEST(node_comes_back_as_it_was)
{
        struct journal_node block = sample_node(), again;
        uint8_t bytes[JOURNAL_NODE_BYTES];

        journal_node_encode(bytes, &block);
        ck_assert_int_eq(journal_node_decode(&again, bytes, sizeof(bytes), NULL), 0);
        ck_assert_mem_eq(again.node, node, 16);
        ck_assert_str_eq(again.host, block.host);
        ck_assert_uint_eq(again.written_ns, block.written_ns);
        ck_assert_uint_eq(again.first_segment, block.first_segment);
        ck_assert_uint_eq(again.next_segment, block.next_segment);
        ck_assert_uint_eq(again.bundles, block.bundles);
        ck_assert_uint_eq(again.bytes, block.bytes);
        ck_assert_uint_eq(again.bytes_max, block.bytes_max);
        ck_assert_uint_eq(again.heartbeat_s, block.heartbeat_s);
}
END_TEST

START_TEST(node_detects_each_flipped_bit_and_each_cut)
{
        struct journal_node block = sample_node(), again;
        uint8_t bytes[JOURNAL_NODE_BYTES];
        struct why why;

        journal_node_encode(bytes, &block);
        for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
                why.text[0] = '\0';
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ck_assert_int_gt(journal_node_decode(&again, bytes, sizeof(bytes), &why), 0);
                ck_assert_str_ne(why.text, "");
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        for (size_t length = 0; length < sizeof(bytes); length++)
                ck_assert_int_eq(journal_node_decode(&again, bytes, length, NULL),
                                 JOURNAL_E_DAMAGED);
}
END_TEST

START_TEST(node_puts_no_control_character_on_a_terminal)
{
        struct journal_node block = sample_node(), again;
        uint8_t bytes[JOURNAL_NODE_BYTES];
        uint64_t checksum;

        memcpy(block.host, "a\033[2J b\xff", 9);
        journal_node_encode(bytes, &block);
        ck_assert_int_eq(journal_node_decode(&again, bytes, sizeof(bytes), NULL), 0);
        ck_assert_str_eq(again.host, "a?[2J?b?");
        bytes[41] = '\033';
        checksum = segment_checksum(bytes, sizeof(bytes), 16);
        memcpy(bytes + 16, &checksum, sizeof(checksum));
        ck_assert_int_eq(journal_node_decode(&again, bytes, sizeof(bytes), NULL),
                         JOURNAL_E_DAMAGED);
        memset(block.host, 'x', sizeof(block.host));
        journal_node_encode(bytes, &block);
        ck_assert_int_eq(journal_node_decode(&again, bytes, sizeof(bytes), NULL), 0);
        ck_assert_uint_eq(strlen(again.host), POOL_HOST_MAX - 1);
}
END_TEST

START_TEST(node_refuses_impossible_fields)
{
        struct journal_node block = sample_node(), again;
        uint8_t bytes[JOURNAL_NODE_BYTES];
        uint64_t checksum;
        struct why why = {""};

        block.first_segment = 2;
        block.next_segment = 1;
        journal_node_encode(bytes, &block);
        ck_assert_int_eq(journal_node_decode(&again, bytes, sizeof(bytes), NULL),
                         JOURNAL_E_DAMAGED);
        block = sample_node();
        journal_node_encode(bytes, &block);
        bytes[JOURNAL_NODE_BYTES - 1] = 1;
        checksum = segment_checksum(bytes, sizeof(bytes), 16);
        memcpy(bytes + 16, &checksum, sizeof(checksum));
        ck_assert_int_eq(journal_node_decode(&again, bytes, sizeof(bytes), NULL),
                         JOURNAL_E_DAMAGED);
        bytes[8] = 3;
        ck_assert_int_eq(journal_node_decode(&again, bytes, sizeof(bytes), &why), JOURNAL_E_NEWER);
        ck_assert_ptr_nonnull(strstr(why.text, "node format 3"));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/journal");
        TCase *tcase = tcase_create("journal");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_loop_test(tcase, record_of_each_kind_comes_back_as_it_was, 0, RECORDS);
        tcase_add_test(tcase, segment_gives_its_records_in_order_until_told_to_end);
        tcase_add_test(tcase, segment_has_its_golden_bytes);
        tcase_add_test(tcase, segment_gives_nothing_of_a_damaged_one);
        tcase_add_test(tcase, segment_cut_or_lengthened_is_damaged);
        tcase_add_test(tcase, segment_refuses_impossible_fields);
        tcase_add_test(tcase, segment_refuses_a_snapshot_that_is_not_first);
        tcase_add_test(tcase, segment_of_a_newer_format_is_told_apart);
        tcase_add_test(tcase, segment_under_another_name_is_refused);
        tcase_add_test(tcase, segment_takes_records_up_to_its_limit);
        tcase_add_test(tcase, name_has_one_spelling);
        tcase_add_test(tcase, node_comes_back_as_it_was);
        tcase_add_test(tcase, node_detects_each_flipped_bit_and_each_cut);
        tcase_add_test(tcase, node_puts_no_control_character_on_a_terminal);
        tcase_add_test(tcase, node_refuses_impossible_fields);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
