// SPDX-License-Identifier: Apache-2.0
/* The ring of recent matches: what is kept of them, and what many threads make of it. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/recent.h"

#define CHUNK     16u
#define N_DIGESTS 2000u
#define N_THREADS 4u
#define N_ROUNDS  20000u

static struct presence_header header;
static struct kvt__table table;
static struct kvt__recent recent;
static struct kvt_digest digests[N_DIGESTS];
static struct wire_matches message;
static struct digest kept[KVT__RECENT_DIGESTS];

static void set_up(void)
{
        memset(&table, 0, sizeof(table));
        table.view.header = &header;
        table.needs.chunk_tokens = CHUNK;
        table.needs.has_state = true;
        for (uint32_t i = 0; i < N_DIGESTS; i++)
                memcpy(digests[i].bytes, &i, sizeof(i));
        ck_assert_int_eq(kvt__recent_init(&recent), 0);
}

static void tear_down(void)
{
        kvt__recent_deinit(&recent);
}

/* A match of digests @first .. @first + @n - 1 that found @found of them. */
static void note(uint32_t first, uint32_t n, uint32_t found)
{
        struct kvt_match_query query = {
                .size = sizeof(query), .digests = digests + first, .n_digests = n};
        struct kvt_match match = {.boundaries = found, .kv_boundaries = found};

        kvt__recent_note(&recent, &table, &query, &match);
}

static const struct wire_matches *read_nth(uint32_t nth)
{
        memset(&message, 0, sizeof(message));
        kvt__recent_read(&recent, nth, &message, kept);
        return &message;
}

/* Which of the digests is it? */
static uint32_t number_of(const struct digest *digest)
{
        uint32_t number;

        memcpy(&number, digest->bytes, sizeof(number));
        return number;
}

START_TEST(a_full_hit_is_not_kept)
{
        note(0, 10, 10);
        ck_assert_uint_eq(read_nth(0)->sequence, 0);
        ck_assert_uint_eq(message.n_recent, 0);
        note(0, 0, 0);
        ck_assert_uint_eq(read_nth(0)->sequence, 0);
}
END_TEST

START_TEST(a_hit_up_to_the_last_token_is_full)
{
        struct kvt_match_query query = {
                .digests = digests, .n_digests = 10, .prompt_tokens = 10 * CHUNK};
        struct kvt_match match = {.boundaries = 9, .kv_boundaries = 9};

        kvt__recent_note(&recent, &table, &query, &match);
        ck_assert_uint_eq(read_nth(0)->sequence, 0);
        query.prompt_tokens++;
        kvt__recent_note(&recent, &table, &query, &match);
        ck_assert_uint_eq(read_nth(0)->sequence, 1);
        ck_assert_uint_eq(message.prompt_tokens, 10 * CHUNK + 1);
        query.max_tokens = 9 * CHUNK + 5;
        query.prompt_tokens = 0;
        kvt__recent_note(&recent, &table, &query, &match);
        ck_assert_uint_eq(read_nth(1)->sequence, 0);
}
END_TEST

START_TEST(matches_are_numbered_from_the_newest_on)
{
        header.heartbeat_ns = 77;
        for (uint32_t i = 0; i < KVT__RECENT_MAX + 3; i++)
                note(i, 10, 4);
        ck_assert_uint_eq(read_nth(0)->sequence, KVT__RECENT_MAX + 3);
        ck_assert_uint_eq(message.n_recent, KVT__RECENT_MAX);
        ck_assert_uint_eq(message.beat_ns, 77);
        ck_assert_uint_eq(message.total, 10);
        ck_assert_uint_eq(message.boundaries, 4);
        ck_assert_uint_eq(message.header.n_items, 10);
        ck_assert_uint_eq(number_of(&kept[0]), KVT__RECENT_MAX + 2);
        ck_assert_uint_eq(read_nth(KVT__RECENT_MAX - 1)->sequence, 4);
        ck_assert_uint_eq(number_of(&kept[9]), 3 + 9);
        ck_assert_uint_eq(read_nth(KVT__RECENT_MAX)->sequence, 0);
        ck_assert_uint_eq(message.header.n_items, 0);
}
END_TEST

START_TEST(a_prompt_asked_again_is_only_counted)
{
        note(0, 10, 4);
        note(5, 10, 4);
        for (unsigned i = 0; i < 100; i++)
                note(0, 10, 4);
        ck_assert_uint_eq(read_nth(1)->repeats, 101);
        ck_assert_uint_eq(message.n_recent, 2);
}
END_TEST

START_TEST(of_a_long_prompt_the_part_around_the_gap_is_kept)
{
        note(0, N_DIGESTS, 0);
        ck_assert_uint_eq(read_nth(0)->first, 0);
        ck_assert_uint_eq(message.total, N_DIGESTS);
        ck_assert_uint_lt(message.header.n_items, 100);
        note(0, N_DIGESTS - 1, 1500);
        ck_assert_uint_eq(read_nth(0)->header.n_items, KVT__RECENT_DIGESTS);
        ck_assert_uint_eq(number_of(&kept[0]), message.first);
        ck_assert_uint_lt(message.first, 1500);
        ck_assert_uint_gt(message.first + KVT__RECENT_DIGESTS, 1501);
}
END_TEST

static _Atomic uint32_t n_ended;

/* Each prompt is of one thread: its digests are never mixed with another's. */
static void *note_many(void *argument)
{
        uint32_t thread = *(uint32_t *)argument;

        for (uint32_t i = 0; i < N_ROUNDS; i++)
                note(thread * 400 + i % 100, 50 + i % 200, i % 50);
        atomic_fetch_add(&n_ended, 1);
        return NULL;
}

START_TEST(many_threads_never_mix_what_they_keep)
{
        pthread_t threads[N_THREADS];
        uint32_t numbers[N_THREADS], n_read = 0;

        for (uint32_t i = 0; i < N_THREADS; i++) {
                numbers[i] = i;
                ck_assert_int_eq(pthread_create(&threads[i], NULL, note_many, &numbers[i]), 0);
        }
        for (uint32_t i = 0; atomic_load(&n_ended) < N_THREADS || !n_read; i++) {
                if (!read_nth(i % KVT__RECENT_MAX)->sequence)
                        continue;
                n_read++;
                for (uint32_t j = 1; j < message.header.n_items; j++)
                        ck_assert_uint_eq(number_of(&kept[j]), number_of(&kept[0]) + j);
        }
        for (uint32_t i = 0; i < N_THREADS; i++)
                pthread_join(threads[i], NULL);
        ck_assert_uint_gt(n_read, 0);
        ck_assert_uint_gt(read_nth(0)->sequence, 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/recent");
        TCase *tcase = tcase_create("recent");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, a_full_hit_is_not_kept);
        tcase_add_test(tcase, a_hit_up_to_the_last_token_is_full);
        tcase_add_test(tcase, matches_are_numbered_from_the_newest_on);
        tcase_add_test(tcase, a_prompt_asked_again_is_only_counted);
        tcase_add_test(tcase, of_a_long_prompt_the_part_around_the_gap_is_kept);
        tcase_add_test(tcase, many_threads_never_mix_what_they_keep);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
