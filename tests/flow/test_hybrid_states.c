// SPDX-License-Identifier: Apache-2.0
/*
 * Recurrent states: blobs of any length that come back to the bit from every tier, and what
 * holds when an engine stores one again with other bytes.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

#define KIB   UINT64_C(1024)
#define MIB   (UINT64_C(1024) * KIB)
#define CHUNK HYBRID_CHUNK_TOKENS

static struct daemon_fixture fixture;
static struct hybrid_engine engine;
static struct hybrid_prompt prompt;

static void start(const struct daemon_options *options)
{
        daemon_fixture_init(&fixture, options);
        hybrid_open(&engine, fixture.socket, NULL);
        prompt = hybrid_prompt(&engine, 1, HYBRID_BOUNDARIES_MAX * CHUNK, NULL);
}

static void stop(void)
{
        hybrid_close(&engine);
        daemon_wait_number(&fixture, "leases", 0);
        daemon_fixture_deinit(&fixture);
}

static void restart(void)
{
        daemon_kill(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(engine.session);
}

static enum kvt_status load_state(uint32_t boundary, uint64_t generation)
{
        uint64_t found;

        return hybrid_load_boundary(&engine, &prompt, boundary, HYBRID_STATES, generation,
                                    generation, &found);
}

/* ---- lengths ---- */

static void round_trip(const uint64_t *lengths, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                engine.state_bytes = lengths[i];
                ck_assert_int_eq(hybrid_store(&engine, &prompt, i + 1, HYBRID_STATES, i, 0),
                                 KVT_OK);
                ck_assert_int_eq(load_state(i + 1, i), KVT_OK);
        }
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        daemon_wait_number(&fixture, "host.objects", 0);
        for (uint32_t i = 0; i < n; i++)
                ck_assert_int_eq(load_state(i + 1, i), KVT_OK);
        restart();
        for (uint32_t i = 0; i < n; i++)
                ck_assert_int_eq(load_state(i + 1, i), KVT_OK);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
}

/* Shard 1 has a byte more each time: odd where shard 0 is even. */
START_TEST(states_of_every_length_come_back_to_the_bit)
{
        static const uint64_t lengths[] = {1,           KIB,         4095,    4096,
                                           100003,      256 * KIB,   MIB - 1, MIB,
                                           3 * MIB + 5, 8 * MIB + 3, 12345678};
        struct daemon_options options = {.nvme_bytes = 96 * MIB};

        start(&options);
        round_trip(lengths, sizeof(lengths) / sizeof(lengths[0]));
        stop();
}
END_TEST

START_TEST(a_state_of_64_mib_comes_back_to_the_bit)
{
        static const uint64_t lengths[] = {64 * MIB};
        struct daemon_options options = {
                .piece_bytes = 192 * MIB, .n_pieces = 1, .nvme_bytes = 192 * MIB};

        start(&options);
        round_trip(lengths, 1);
        stop();
}
END_TEST

START_TEST(a_state_of_512_mib_comes_back_to_the_bit)
{
        static const uint64_t lengths[] = {512 * MIB};
        struct daemon_options options = {
                .piece_bytes = 1536 * MIB, .n_pieces = 1, .nvme_bytes = 1536 * MIB};

        start(&options);
        round_trip(lengths, 1);
        stop();
}
END_TEST

/* ---- the same key again, with other bytes ---- */

START_TEST(a_state_stored_again_without_replace_keeps_its_first_bytes)
{
        start(NULL);
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_STATES, 1, 0), KVT_OK);
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_STATES, 2, 0), KVT_ALREADY_HAVE);
        ck_assert_int_eq(load_state(1, 1), KVT_OK);
        /* Another length under the same key changes nothing either. */
        engine.state_bytes += 8;
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_STATES, 2, 0), KVT_ALREADY_HAVE);
        engine.state_bytes -= 8;
        ck_assert_int_eq(load_state(1, 1), KVT_OK);
        stop();
}
END_TEST

START_TEST(a_poisoned_state_is_overwritten_with_replace)
{
        start(NULL);
        hybrid_store_run(&engine, &prompt, 1, 1, HYBRID_KV);
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_STATES, 1, 0), KVT_OK);
        /* Shorter, too: the length is the new one's. */
        engine.state_bytes -= 1234;
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_STATES, 0, KVT_REPLACE), KVT_OK);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 1);
        stop();
}
END_TEST

/* Round 0, 1, 2: killed at once, a moment later, and when all of it is on NVMe. */
static bool overwrite_and_kill(unsigned round)
{
        uint64_t generation = 2 + round;
        struct timespec moment = {.tv_nsec = 500000 * (long)(round % 7)};
        enum kvt_status status;

        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_STATES, generation, KVT_REPLACE),
                         KVT_OK);
        if (round % 3 == 1)
                nanosleep(&moment, NULL);
        if (round % 3 == 2)
                daemon_wait_written(&fixture);
        restart();
        status = load_state(1, generation); /* any other bytes fail there */
        ck_assert(status == KVT_OK || (status == KVT_MISS && round % 3 != 2));
        return status == KVT_OK;
}

static void poison_and_overwrite(unsigned rounds)
{
        struct daemon_options options = {.piece_bytes = 16 * MIB, .nvme_bytes = 64 * MIB};
        unsigned n_kept = 0;

        start(&options);
        engine.state_bytes = 300001;
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_STATES, 1, 0), KVT_OK);
        daemon_wait_written(&fixture);
        for (unsigned i = 0; i < rounds; i++)
                n_kept += overwrite_and_kill(i);
        ck_assert_uint_ge(n_kept, rounds / 3);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        stop();
}

START_TEST(poisoned_bytes_do_not_come_back_when_the_daemon_is_killed_after_the_answer)
{
        poison_and_overwrite(30);
}
END_TEST

START_TEST(poisoned_bytes_do_not_come_back_when_the_daemon_is_killed_after_the_answer_long)
{
        poison_and_overwrite(600);
}
END_TEST

/* ---- rolling back ---- */

/* The nearest state at or below @position; it comes back with the bytes of generation 0. */
static void expect_rollback(uint32_t position, uint32_t boundary, uint32_t replay_tokens)
{
        struct kvt_match match = hybrid_query(
                &engine, &prompt,
                (struct kvt_match_query){.max_tokens = position, .flags = KVT_MATCH_STATE});

        ck_assert_uint_eq(match.state_boundaries, boundary);
        ck_assert_uint_eq(match.replay_tokens, replay_tokens);
        if (boundary)
                ck_assert_int_eq(load_state(boundary, 0), KVT_OK);
}

START_TEST(an_engine_rolls_back_to_the_nearest_state_below)
{
        start(NULL);
        /* It has the KV itself: that of the first chunk is all that is stored. */
        hybrid_store_run(&engine, &prompt, 1, 1, HYBRID_KV);
        hybrid_store_run(&engine, &prompt, 2, 3, HYBRID_STATES);
        hybrid_store_run(&engine, &prompt, 6, 6, HYBRID_STATES);
        expect_rollback(7 * CHUNK + 5, 6, CHUNK + 5);
        expect_rollback(6 * CHUNK, 6, 0);
        expect_rollback(6 * CHUNK - 1, 3, 3 * CHUNK - 1);
        expect_rollback(2 * CHUNK + 1, 2, 1);
        expect_rollback(2 * CHUNK - 1, 0, 2 * CHUNK - 1);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).boundaries, 0);
        stop();
}
END_TEST

START_TEST(an_engine_resumes_from_an_earlier_checkpoint)
{
        struct daemon_options options = {.piece_bytes = 16 * MIB, .nvme_bytes = 64 * MIB};
        uint32_t position = 5 * CHUNK + 20;

        start(&options);
        hybrid_store_run(&engine, &prompt, 1, 5, HYBRID_KV);
        hybrid_store_run(&engine, &prompt, 2, 2, HYBRID_STATES);
        hybrid_store_run(&engine, &prompt, 4, 4, HYBRID_STATES);
        daemon_wait_written(&fixture);
        restart();
        expect_rollback(position, 4, CHUNK + 20);
        hybrid_drop(&fixture, &prompt, 4, HYBRID_STATE, 0);
        expect_rollback(position, 2, 3 * CHUNK + 20);
        /* What it computes again on the way is a checkpoint for the next time. */
        hybrid_store_run(&engine, &prompt, 5, 5, HYBRID_STATES);
        expect_rollback(position, 5, 20);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 5);
        stop();
}
END_TEST

int main(int argc, char **argv)
{
        const TTest *const tests[] = {
                states_of_every_length_come_back_to_the_bit,
                a_state_of_64_mib_comes_back_to_the_bit,
                a_state_stored_again_without_replace_keeps_its_first_bytes,
                a_poisoned_state_is_overwritten_with_replace,
                poisoned_bytes_do_not_come_back_when_the_daemon_is_killed_after_the_answer,
                an_engine_rolls_back_to_the_nearest_state_below,
                an_engine_resumes_from_an_earlier_checkpoint,
                NULL,
        };
        const TTest *const long_tests[] = {
                a_state_of_512_mib_comes_back_to_the_bit,
                poisoned_bytes_do_not_come_back_when_the_daemon_is_killed_after_the_answer_long,
                NULL,
        };

        return argc > 1 ? flow_run("hybrid_states", long_tests, 600)
                        : flow_run("hybrid_states", tests, 120);
}
