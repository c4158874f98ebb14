// SPDX-License-Identifier: Apache-2.0
/*
 * What stays when host memory gets scarce: states that were used, what sessions hold, and
 * the KV that they make usable. What goes is KV without a state, and old states.
 */
#include <stdlib.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/hybrid_engine.h"

#define KIB   UINT64_C(1024)
#define MIB   (KIB * KIB)
#define CHUNK HYBRID_CHUNK_TOKENS

static struct daemon_fixture fixture;
static struct hybrid_engine engine;

static void start(void)
{
        struct daemon_options options = {.piece_bytes = 4 * MIB, .n_pieces = 2};

        daemon_fixture_init(&fixture, &options);
        hybrid_open(&engine, fixture.socket, NULL);
        engine.state_bytes = 200 * KIB + 3;
}

static void stop(void)
{
        hybrid_close(&engine);
        daemon_fixture_deinit(&fixture);
}

/* A prompt of four chunks that only this @seed has, with KV and a state at its end. */
static struct hybrid_prompt serve(uint64_t seed)
{
        struct hybrid_prompt prompt = hybrid_prompt(&engine, seed, 4 * CHUNK + 1, NULL);

        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_KV);
        hybrid_store_run(&engine, &prompt, 4, 4, HYBRID_STATES);
        return prompt;
}

/* Strangers come until so much has been evicted. */
static void press(unsigned n_evicted)
{
        uint64_t before = daemon_number(&fixture, "host.evicted");

        for (uint64_t seed = 1000; daemon_number(&fixture, "host.evicted") < before + n_evicted;
             seed++)
                serve(seed);
}

START_TEST(kv_that_no_state_makes_usable_goes_first)
{
        struct hybrid_prompt old, useless;

        start();
        old = serve(1);
        useless = serve(2);
        hybrid_drop(&fixture, &useless, 4, HYBRID_STATE, -1);
        press(1);
        ck_assert_uint_lt(hybrid_match(&engine, &useless).kv_boundaries, 4);
        ck_assert_uint_eq(hybrid_usable(&engine, &old), 4);
        stop();
}
END_TEST

START_TEST(a_state_that_was_used_stays)
{
        struct hybrid_prompt used, unused;

        start();
        used = serve(1);
        unused = serve(2);
        ck_assert_int_eq(hybrid_load(&engine, &used, 4), KVT_OK);
        press(40);
        ck_assert_uint_eq(hybrid_usable(&engine, &used), 4);
        ck_assert_uint_eq(hybrid_match(&engine, &unused).boundaries, 0);
        stop();
}
END_TEST

START_TEST(what_a_session_holds_stays)
{
        static struct kvt_object objects[HYBRID_OBJECTS_MAX];
        struct hybrid_prompt held;
        size_t n;

        start();
        held = serve(1);
        n = hybrid_needed(&engine, &held, 4, objects);
        ck_assert_int_eq(hybrid_call(&engine, kvt_acquire, 0, objects, n).status, KVT_OK);
        press(300);
        ck_assert_uint_eq(hybrid_match(&engine, &held).boundaries, 4);
        for (size_t i = 0; i < n; i++)
                ck_assert(hybrid_holds(&objects[i], 0));
        hybrid_call(&engine, kvt_release, 0, objects, n);
        stop();
}
END_TEST

START_TEST(a_branch_is_known_when_its_kv_is_gone)
{
        struct hybrid_prompt first, second;
        struct kvt_match match;

        start();
        first = hybrid_prompt(&engine, 1, 4 * CHUNK + 1, NULL);
        second = hybrid_branch(&engine, 1, 2, 7, 4 * CHUNK + 1);
        hybrid_store_run(&engine, &first, 1, 4, HYBRID_KV);
        for (uint32_t boundary = 4; boundary > 0; boundary--)
                hybrid_drop(&fixture, &first, boundary, -1, -1);
        match = hybrid_query(&engine, &second,
                             (struct kvt_match_query){.prompt_tokens = second.n_tokens,
                                                      .flags = KVT_MATCH_CHECKPOINT});
        ck_assert_uint_eq(match.kv_boundaries, 0);
        ck_assert_uint_eq(match.checkpoint_boundaries, 2);
        /* Its own prompt again leaves nothing that was seen. */
        match = hybrid_query(&engine, &first,
                             (struct kvt_match_query){.prompt_tokens = first.n_tokens,
                                                      .flags = KVT_MATCH_CHECKPOINT});
        ck_assert_uint_eq(match.checkpoint_boundaries, 0);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                kv_that_no_state_makes_usable_goes_first,
                a_state_that_was_used_stays,
                what_a_session_holds_stays,
                a_branch_is_known_when_its_kv_is_gone,
                NULL,
        };

        return flow_run("hybrid_placement", tests, 120);
}
