// SPDX-License-Identifier: Apache-2.0
/*
 * The reader's half of the presence table, on a table made by hand: what a damaged header
 * costs, which buckets a lookup visits, and that an entry which is never finished is a
 * miss. The writer's half is tested with the daemon.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/presence.h"

#define N_BUCKETS 64u

static struct {
        struct presence_header header;
        uint8_t padding[PRESENCE_HEADER_BYTES - sizeof(struct presence_header)];
        struct presence_entry entries[N_BUCKETS * PRESENCE_BUCKET_ENTRIES];
} table;

static struct presence_view view;

/* A fingerprint whose home is bucket @home. */
static uint64_t fingerprint_at(uint64_t home, uint32_t low)
{
        uint64_t fingerprint = ((home << 32) / N_BUCKETS + 1) << 32 | low;

        ck_assert_uint_eq(presence_home(fingerprint, N_BUCKETS), home);
        return fingerprint;
}

static struct presence_entry *put(uint64_t bucket, unsigned slot, uint64_t fingerprint)
{
        struct presence_entry *entry = &table.entries[bucket * PRESENCE_BUCKET_ENTRIES + slot];

        entry->fingerprint = fingerprint;
        entry->present = 0x7;
        entry->resident = 0x5;
        entry->flags |= PRESENCE_REMOTE_ONLY;
        return entry;
}

static void count_overflow(uint64_t home)
{
        table.entries[home * PRESENCE_BUCKET_ENTRIES].flags += 1u << PRESENCE_OVERFLOW_SHIFT;
}

static void setup(void)
{
        memset(&table, 0, sizeof(table));
        table.header.magic = PRESENCE_MAGIC;
        table.header.version = PRESENCE_VERSION;
        table.header.header_bytes = PRESENCE_HEADER_BYTES;
        table.header.entry_bytes = sizeof(struct presence_entry);
        table.header.probe_buckets = PRESENCE_PROBE_BUCKETS;
        table.header.n_buckets = N_BUCKETS;
        ck_assert_int_eq(presence_view_init(&view, &table, sizeof(table)), 0);
}

#define REFUSED(member, value)                                                                     \
        do {                                                                                       \
                struct presence_header before = table.header;                                      \
                table.header.member = (value);                                                     \
                ck_assert_int_eq(presence_view_init(&view, &table, sizeof(table)), -EPROTO);       \
                table.header = before;                                                             \
        } while (0)

START_TEST(a_damaged_header_is_refused)
{
        REFUSED(magic, 0);
        REFUSED(magic, PRESENCE_MAGIC + 1);
        REFUSED(version, 0);
        REFUSED(version, PRESENCE_VERSION + 1);
        REFUSED(header_bytes, 80);
        REFUSED(header_bytes, 8192);
        REFUSED(entry_bytes, 0);
        REFUSED(entry_bytes, 64);
        REFUSED(probe_buckets, 0);
        REFUSED(probe_buckets, PRESENCE_PROBE_BUCKETS + 1);
        REFUSED(n_buckets, 0);
        /* A probe that ends behind the last bucket goes on at the first, once. */
        REFUSED(n_buckets, PRESENCE_PROBE_BUCKETS - 1);
        REFUSED(n_buckets, N_BUCKETS + 1);
        REFUSED(n_buckets, UINT64_C(1) << 32);
        REFUSED(n_buckets, UINT64_MAX);

        /* However large the mapping: a home is computed with 32 bits. Nothing else is read. */
        table.header.n_buckets = UINT64_C(1) << 32;
        ck_assert_int_eq(presence_view_init(&view, &table, UINT64_C(1) << 40), -EPROTO);
        table.header.n_buckets--;
        ck_assert_int_eq(presence_view_init(&view, &table, UINT64_C(1) << 40), 0);
}
END_TEST

START_TEST(a_mapping_shorter_than_the_table_is_refused)
{
        ck_assert_int_eq(presence_view_init(&view, &table, 0), -EPROTO);
        ck_assert_int_eq(presence_view_init(&view, &table, PRESENCE_HEADER_BYTES - 1), -EPROTO);
        ck_assert_int_eq(presence_view_init(&view, &table, PRESENCE_HEADER_BYTES), -EPROTO);
        ck_assert_int_eq(presence_view_init(&view, &table, sizeof(table) - 1), -EPROTO);
        ck_assert_int_eq(presence_view_init(&view, &table, sizeof(table)), 0);
}
END_TEST

START_TEST(an_empty_table_misses)
{
        struct presence_bits bits;

        for (uint64_t home = 0; home < N_BUCKETS; home++)
                ck_assert(!presence_lookup(&view, fingerprint_at(home, 1), &bits));
}
END_TEST

START_TEST(an_entry_at_home_is_found)
{
        struct presence_bits bits;

        for (unsigned slot = 0; slot < PRESENCE_BUCKET_ENTRIES; slot++) {
                put(3, slot, fingerprint_at(3, slot));
                ck_assert(presence_lookup(&view, fingerprint_at(3, slot), &bits));
                ck_assert_uint_eq(bits.present, 0x7);
                ck_assert_uint_eq(bits.resident, 0x5);
                ck_assert_uint_eq(bits.flags, PRESENCE_REMOTE_ONLY);
        }
        ck_assert(!presence_lookup(&view, fingerprint_at(3, 77), &bits));
}
END_TEST

START_TEST(a_displaced_entry_is_found_in_each_bucket_of_the_probe)
{
        struct presence_bits bits;

        /* The home is near the end, so that the probe wraps around. */
        for (uint32_t i = 1; i < PRESENCE_PROBE_BUCKETS; i++) {
                setup();
                count_overflow(52);
                put((52 + i) % N_BUCKETS, i % 2, fingerprint_at(52, i));
                ck_assert(presence_lookup(&view, fingerprint_at(52, i), &bits));
        }
}
END_TEST

START_TEST(a_probe_is_bounded)
{
        struct presence_bits bits;

        count_overflow(2);
        put(2 + PRESENCE_PROBE_BUCKETS, 0, fingerprint_at(2, 1));
        ck_assert(!presence_lookup(&view, fingerprint_at(2, 1), &bits));
}
END_TEST

START_TEST(a_home_without_overflow_ends_the_lookup)
{
        struct presence_bits bits;

        put(4, 0, fingerprint_at(3, 1));
        ck_assert(!presence_lookup(&view, fingerprint_at(3, 1), &bits));
        count_overflow(3);
        ck_assert(presence_lookup(&view, fingerprint_at(3, 1), &bits));
}
END_TEST

START_TEST(an_entry_that_stays_odd_is_a_miss)
{
        struct presence_entry *entry = put(3, 0, fingerprint_at(3, 1));
        struct presence_bits bits;

        entry->sequence = 7;
        /* It returns: a writer that died in mid-write is not waited for. */
        ck_assert(!presence_lookup(&view, fingerprint_at(3, 1), &bits));
        entry->sequence = 8;
        ck_assert(presence_lookup(&view, fingerprint_at(3, 1), &bits));
}
END_TEST

START_TEST(fingerprints_depend_on_everything_and_are_never_zero)
{
        struct digest layout = {{1}}, other_layout = {{2}}, boundary = {{3}}, other = {{4}};
        uint64_t seed = presence_seed(9, 0, &layout, 0);

        ck_assert_uint_ne(seed, presence_seed(8, 0, &layout, 0));
        ck_assert_uint_ne(seed, presence_seed(9, 1, &layout, 0));
        ck_assert_uint_ne(seed, presence_seed(9, 0, &other_layout, 0));
        ck_assert_uint_ne(seed, presence_seed(9, 0, &layout, 1));
        ck_assert_uint_ne(presence_fingerprint(seed, &boundary),
                          presence_fingerprint(seed, &other));
        ck_assert_uint_ne(presence_fingerprint(seed, &boundary),
                          presence_fingerprint(seed + 1, &boundary));
        ck_assert_uint_ne(presence_fingerprint(seed, &boundary), 0);
}
END_TEST

START_TEST(a_table_has_room_for_its_objects_at_two_thirds)
{
        for (uint64_t objects = 1; objects <= UINT64_C(1) << 28; objects *= 4) {
                uint64_t entries = presence_n_buckets(objects) * PRESENCE_BUCKET_ENTRIES;

                ck_assert_uint_ge(entries, objects + objects / 2 - 1);
                ck_assert_uint_ge(entries, PRESENCE_PROBE_BUCKETS * PRESENCE_BUCKET_ENTRIES);
                ck_assert_uint_eq(presence_table_bytes(objects),
                                  PRESENCE_HEADER_BYTES + entries * 32);
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("proto/presence_read");
        TCase *tcase = tcase_create("presence_read");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, a_damaged_header_is_refused);
        tcase_add_test(tcase, a_mapping_shorter_than_the_table_is_refused);
        tcase_add_test(tcase, an_empty_table_misses);
        tcase_add_test(tcase, an_entry_at_home_is_found);
        tcase_add_test(tcase, a_displaced_entry_is_found_in_each_bucket_of_the_probe);
        tcase_add_test(tcase, a_probe_is_bounded);
        tcase_add_test(tcase, a_home_without_overflow_ends_the_lookup);
        tcase_add_test(tcase, an_entry_that_stays_odd_is_a_miss);
        tcase_add_test(tcase, fingerprints_depend_on_everything_and_are_never_zero);
        tcase_add_test(tcase, a_table_has_room_for_its_objects_at_two_thirds);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
