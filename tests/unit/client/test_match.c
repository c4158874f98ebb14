// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "fake_daemon.h"

#define N_DIGESTS 100u
#define KV        UINT64_C(1)
#define STATE     UINT64_C(2)

static struct fake fake;
static struct kvt_session *session;
static struct kvt_digest digests[N_DIGESTS];

static void start(bool with_state)
{
        fake_start(&fake, with_state);
        session = fake_open(&fake);
        for (uint32_t i = 0; i < N_DIGESTS; i++)
                for (uint32_t j = 0; j < 32; j++)
                        digests[i].bytes[j] = (uint8_t)(i * 7 + j * 31 + 1);
}

static void stop(void)
{
        fake_hang_up(&fake);
        kvt_close(session);
        fake_stop(&fake);
}

/* Boundaries first..last (counted from 1) get these bits. */
static void put(uint32_t first, uint32_t last, uint64_t present, uint64_t resident)
{
        for (uint32_t i = first; i <= last; i++)
                fake_put(&fake, &digests[i - 1], present, resident);
}

static struct kvt_match match(uint32_t n, uint32_t prompt_tokens, uint32_t max_tokens)
{
        struct kvt_match_query query = {
                .size = sizeof(query),
                .digests = digests,
                .n_digests = n,
                .prompt_tokens = prompt_tokens,
                .max_tokens = max_tokens,
        };
        struct kvt_match found = {.size = sizeof(found)};

        ck_assert_int_eq(kvt_match(session, &query, &found), KVT_OK);
        return found;
}

START_TEST(match_is_the_run_of_boundaries_before_the_first_gap)
{
        struct kvt_match found;

        start(false);
        put(1, 70, KV, KV);
        put(72, 90, KV, KV);
        found = match(N_DIGESTS, 0, 0);
        ck_assert_uint_eq(found.boundaries, 70);
        ck_assert_uint_eq(found.tokens, 70 * FAKE_CHUNK);
        ck_assert_uint_eq(found.kv_boundaries, 70);
        ck_assert_uint_eq(found.resident_boundaries, 70);
        ck_assert_uint_eq(match(40, 0, 0).boundaries, 40);
        ck_assert_uint_eq(match(0, 0, 0).boundaries, 0);
        stop();
}
END_TEST

START_TEST(match_tells_what_is_in_host_memory)
{
        struct kvt_match found;

        start(false);
        put(1, 33, KV, KV);
        put(34, 60, KV, 0);
        put(61, 64, KV, KV);
        found = match(N_DIGESTS, 0, 0);
        ck_assert_uint_eq(found.boundaries, 64);
        ck_assert_uint_eq(found.resident_boundaries, 33);
        stop();
}
END_TEST

START_TEST(match_obeys_max_tokens)
{
        start(false);
        put(1, 10, KV, KV);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 5 * FAKE_CHUNK).boundaries, 5);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 5 * FAKE_CHUNK - 1).boundaries, 4);
        ck_assert_uint_eq(match(N_DIGESTS, 10 * FAKE_CHUNK, 0).boundaries, 10);
        stop();
}
END_TEST

START_TEST(match_needs_a_state_at_exactly_its_boundary)
{
        struct kvt_match found;

        start(true);
        put(1, 4, KV, KV);
        put(5, 5, KV | STATE, KV | STATE);
        put(6, 7, KV, KV);
        put(8, 8, KV | STATE, KV);
        put(9, 9, KV, KV);
        put(10, 10, STATE, STATE);
        found = match(N_DIGESTS, 0, 0);
        ck_assert_uint_eq(found.boundaries, 8);
        ck_assert_uint_eq(found.resident_boundaries, 5);
        ck_assert_uint_eq(found.kv_boundaries, 9);
        stop();
}
END_TEST

START_TEST(match_with_states_stays_below_the_last_prompt_token)
{
        start(true);
        put(1, 10, KV | STATE, KV | STATE);
        ck_assert_uint_eq(match(N_DIGESTS, 10 * FAKE_CHUNK, 0).boundaries, 9);
        ck_assert_uint_eq(match(N_DIGESTS, 10 * FAKE_CHUNK + 1, 0).boundaries, 10);
        ck_assert_uint_eq(match(N_DIGESTS, 1, 0).boundaries, 0);
        stop();
}
END_TEST

START_TEST(match_misses_while_the_table_is_not_serving)
{
        start(false);
        put(1, 10, KV, KV);
        fake_set_state(&fake, PRESENCE_STARTING);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 0).boundaries, 0);
        fake_set_state(&fake, PRESENCE_DRAINING);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 0).boundaries, 10);
        fake_set_state(&fake, PRESENCE_STOPPED);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 0).boundaries, 0);
        stop();
}
END_TEST

START_TEST(match_misses_after_a_hang_up_and_comes_back)
{
        start(false);
        put(1, 10, KV, KV);
        fake_hang_up(&fake);
        fake_await(session, false);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 0).boundaries, 0);
        fake_greet(&fake);
        fake_await(session, true);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 0).boundaries, 10);
        stop();
}
END_TEST

static void await_boundaries(uint32_t boundaries)
{
        for (int i = 0; i < 5000 && match(N_DIGESTS, 0, 0).boundaries != boundaries; i++)
                fake_expect_silence(&fake, 1);
        ck_assert_uint_eq(match(N_DIGESTS, 0, 0).boundaries, boundaries);
}

START_TEST(match_misses_while_the_heart_does_not_beat)
{
        start(false);
        put(1, 10, KV, KV);
        fake_beat(&fake, 1);
        await_boundaries(0);
        fake_beat(&fake, UINT64_MAX);
        await_boundaries(10);
        stop();
}
END_TEST

START_TEST(probe_gives_the_raw_bits)
{
        uint64_t present[3], resident[3];

        start(true);
        put(1, 1, KV | STATE, KV);
        put(3, 3, STATE, 0);
        ck_assert_int_eq(kvt_probe(session, digests, 3, present, resident), KVT_OK);
        ck_assert_uint_eq(present[0], KV | STATE);
        ck_assert_uint_eq(resident[0], KV);
        ck_assert_uint_eq(present[1], 0);
        ck_assert_uint_eq(present[2], STATE);
        ck_assert_int_eq(kvt_probe(session, digests, 3, NULL, NULL), KVT_OK);
        stop();
}
END_TEST

/* So many that buckets overflow into their neighbours. */
START_TEST(probe_finds_what_lives_away_from_home)
{
        static struct kvt_digest many[1400];
        static uint64_t present[1400];

        start(false);
        for (uint32_t i = 0; i < 1400; i++) {
                memcpy(many[i].bytes, &i, sizeof(i));
                if (i % 2)
                        fake_put(&fake, &many[i], i, 1);
        }
        ck_assert_int_eq(kvt_probe(session, many, 1400, present, NULL), KVT_OK);
        for (uint32_t i = 0; i < 1400; i++)
                ck_assert_uint_eq(present[i], i % 2 ? i : 0);
        stop();
}
END_TEST

static Suite *match_suite(void)
{
        Suite *suite = suite_create("client/match");
        TCase *tests = tcase_create("match");

        tcase_set_timeout(tests, 20);
        tcase_add_test(tests, match_is_the_run_of_boundaries_before_the_first_gap);
        tcase_add_test(tests, match_tells_what_is_in_host_memory);
        tcase_add_test(tests, match_obeys_max_tokens);
        tcase_add_test(tests, match_needs_a_state_at_exactly_its_boundary);
        tcase_add_test(tests, match_with_states_stays_below_the_last_prompt_token);
        tcase_add_test(tests, match_misses_while_the_table_is_not_serving);
        tcase_add_test(tests, match_misses_after_a_hang_up_and_comes_back);
        tcase_add_test(tests, match_misses_while_the_heart_does_not_beat);
        tcase_add_test(tests, probe_gives_the_raw_bits);
        tcase_add_test(tests, probe_finds_what_lives_away_from_home);
        suite_add_tcase(suite, tests);
        return suite;
}

int main(void)
{
        SRunner *runner = srunner_create(match_suite());
        int failed;

        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
