// SPDX-License-Identifier: Apache-2.0
/* The ring of drops: newest first, bounded, and nothing of another digest. */
#include <check.h>
#include <string.h>

#include "daemon/drop_ring.h"

static struct drop_ring ring;

static struct drop drop_of(uint32_t number, uint16_t shard, enum drop_reason reason)
{
        struct drop drop = {.layout = 1, .shard = shard, .reason = (uint8_t)reason};

        memcpy(drop.digest.bytes, &number, sizeof(number));
        return drop;
}

static void note(uint32_t number, uint16_t shard, enum drop_reason reason)
{
        struct drop drop = drop_of(number, shard, reason);

        drop_ring_note(&ring, &drop);
}

/* The @n-th newest record of @number (0: the newest), or NULL. */
static const struct drop *find(uint32_t number, unsigned n)
{
        struct drop wanted = drop_of(number, 0, DROP_SPACE);
        const struct drop *found;
        uint64_t position = 0;

        do {
                found = drop_ring_next(&ring, 1, &wanted.digest, &position);
        } while (found && n--);
        return found;
}

static void set_up(void)
{
        ck_assert_int_eq(drop_ring_init(&ring), 0);
}

static void tear_down(void)
{
        drop_ring_deinit(&ring);
}

START_TEST(records_come_newest_first_and_only_of_their_digest)
{
        struct drop other = drop_of(1, 0, DROP_SPACE);
        uint64_t position = 0;

        note(1, 0, DROP_SPACE);
        note(2, 0, DROP_ADMIN);
        note(1, 1, DROP_CORRUPT);
        ck_assert_int_eq(find(1, 0)->reason, DROP_CORRUPT);
        ck_assert_int_eq(find(1, 1)->reason, DROP_SPACE);
        ck_assert_ptr_null(find(1, 2));
        ck_assert_int_eq(find(2, 0)->reason, DROP_ADMIN);
        ck_assert_ptr_null(find(3, 0));
        ck_assert_uint_ne(find(1, 0)->wall_ns, 0);
        ck_assert_ptr_null(drop_ring_next(&ring, 2, &other.digest, &position));
}
END_TEST

START_TEST(the_oldest_make_way_and_end_their_chains)
{
        for (uint32_t i = 0; i < 3 * DROP_RING_SIZE; i++)
                note(i / 2, (uint16_t)(i % 2), DROP_SPACE);
        ck_assert_ptr_null(find(0, 0));
        ck_assert_ptr_null(find(DROP_RING_SIZE - 1, 0));
        for (uint32_t i = DROP_RING_SIZE; i < 3 * DROP_RING_SIZE / 2; i++) {
                ck_assert_ptr_nonnull(find(i, 1));
                ck_assert_ptr_null(find(i, 2));
        }
}
END_TEST

START_TEST(the_last_records_of_all_digests_are_seen_newest_first)
{
        ck_assert_ptr_null(drop_ring_recent(&ring, 0));
        note(1, 0, DROP_SPACE);
        note(2, 0, DROP_ADMIN);
        ck_assert_int_eq(drop_ring_recent(&ring, 0)->reason, DROP_ADMIN);
        ck_assert_int_eq(drop_ring_recent(&ring, 1)->reason, DROP_SPACE);
        ck_assert_ptr_null(drop_ring_recent(&ring, 2));
        for (uint32_t i = 0; i < DROP_RING_SIZE; i++)
                note(i, 1, DROP_CORRUPT);
        ck_assert_int_eq(drop_ring_recent(&ring, DROP_RING_SIZE - 1)->reason, DROP_CORRUPT);
        ck_assert_ptr_null(drop_ring_recent(&ring, DROP_RING_SIZE));
}
END_TEST

START_TEST(what_repeats_itself_counts_up_in_place)
{
        note(1, 0, DROP_SPACE);
        for (unsigned i = 0; i < 2 * DROP_RING_SIZE; i++)
                note(2, 3, DROP_NO_ROOM);
        ck_assert_uint_eq(find(2, 0)->count, 2 * DROP_RING_SIZE);
        ck_assert_ptr_null(find(2, 1));
        ck_assert_ptr_nonnull(find(1, 0));
        /* What came in between is not passed over. */
        note(2, 3, DROP_SPACE);
        note(2, 3, DROP_NO_ROOM);
        ck_assert_uint_eq(find(2, 0)->count, 1);
        ck_assert_int_eq(find(2, 1)->reason, DROP_SPACE);
}
END_TEST

START_TEST(a_hot_digest_does_not_make_a_search_long)
{
        for (uint32_t i = 0; i < DROP_RING_SIZE; i++)
                note(7, (uint16_t)i, i % 2 ? DROP_SPACE : DROP_ADMIN);
        for (unsigned n = 0; n < 1000; n++)
                ck_assert_ptr_nonnull(find(7, n));
        ck_assert_ptr_null(find(8, 0));
}
END_TEST

START_TEST(a_ring_of_zeros_takes_notes_and_forgets_them)
{
        drop_ring_deinit(&ring);
        note(1, 0, DROP_SPACE);
        ck_assert_ptr_null(find(1, 0));
        ck_assert_ptr_null(drop_ring_recent(&ring, 0));
}
END_TEST

START_TEST(every_reason_has_a_text)
{
        for (unsigned i = 0; i < DROP_N_REASONS + 2u; i++) {
                ck_assert_str_ne(drop_reason_text((uint8_t)i), "");
                ck_assert_str_ne(drop_reason_name((uint8_t)i), "");
        }
        ck_assert(drop_reason_is_refusal(DROP_NO_ROOM) && !drop_reason_is_refusal(DROP_SPACE));
        ck_assert_str_eq(drop_rule_text(200), "");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("drop_ring");
        TCase *tcase = tcase_create("drop_ring");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 20);
        tcase_add_test(tcase, records_come_newest_first_and_only_of_their_digest);
        tcase_add_test(tcase, the_oldest_make_way_and_end_their_chains);
        tcase_add_test(tcase, the_last_records_of_all_digests_are_seen_newest_first);
        tcase_add_test(tcase, what_repeats_itself_counts_up_in_place);
        tcase_add_test(tcase, a_hot_digest_does_not_make_a_search_long);
        tcase_add_test(tcase, a_ring_of_zeros_takes_notes_and_forgets_them);
        tcase_add_test(tcase, every_reason_has_a_text);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
