// SPDX-License-Identifier: Apache-2.0
/*
 * Which boundaries of a hybrid model are usable: replays of faults that engines and other
 * caches had. Whatever match promises is then loaded and compared byte by byte.
 */
#include <string.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

#define MIB   (UINT64_C(1) << 20)
#define CHUNK HYBRID_CHUNK_TOKENS

static struct daemon_fixture fixture;
static struct hybrid_engine engine;

static void start(uint64_t nvme_bytes)
{
        struct daemon_options options = {.piece_bytes = 16 * MIB, .nvme_bytes = nvme_bytes};

        daemon_fixture_init(&fixture, &options);
        hybrid_open(&engine, fixture.socket, NULL);
}

static void stop(void)
{
        hybrid_close(&engine);
        daemon_wait_number(&fixture, "leases", 0);
        daemon_fixture_deinit(&fixture);
}

/* A prompt of @n chunks and a half, so that the rule of prompt - 1 cuts nothing off. */
static struct hybrid_prompt prompt_of(uint32_t n)
{
        return hybrid_prompt(&engine, 1, n * CHUNK + CHUNK / 2, NULL);
}

static void expect_drop(const struct hybrid_prompt *prompt, uint32_t boundary, int group, int shard,
                        uint32_t usable, uint32_t kv)
{
        hybrid_drop(&fixture, prompt, boundary, group, shard);
        ck_assert_uint_eq(hybrid_usable(&engine, prompt), usable);
        ck_assert_uint_eq(hybrid_match(&engine, prompt).kv_boundaries, kv);
}

static void evict_from_host(const struct hybrid_prompt *prompt, uint32_t boundary, int group)
{
        hybrid_evict(&fixture, prompt, boundary, group, -1, "host");
}

/* Its numbers are those of what loading it takes. */
static void expect_boundary(const struct hybrid_prompt *prompt, const struct kvt_boundary *found,
                            uint32_t boundaries, uint32_t flags)
{
        struct kvt_object objects[HYBRID_BOUNDARIES_MAX * HYBRID_GROUPS_MAX * HYBRID_SHARDS];
        size_t n = hybrid_needed(&engine, prompt, boundaries, objects);
        uint64_t bytes = 0;

        for (size_t i = 0; i < n; i++)
                bytes += objects[i].group == HYBRID_STATE ? 0 : objects[i].bytes;
        ck_assert_uint_eq(found->boundaries, boundaries);
        ck_assert_uint_eq(found->tokens, boundaries * CHUNK);
        ck_assert_uint_eq(found->n_objects, n);
        /* The layout does not tell the length of its states. */
        ck_assert_uint_eq(found->flags, flags | KVT_BOUNDARY_BYTES_UNKNOWN);
        ck_assert_uint_eq(found->bytes, bytes);
        ck_assert_uint_eq(found->bytes_below, 0);
        ck_assert_int_eq(hybrid_load(&engine, prompt, boundaries), KVT_OK);
}

START_TEST(kv_of_four_chunks_and_a_state_at_two_make_two_usable)
{
        struct hybrid_prompt prompt;

        start(0);
        prompt = prompt_of(4);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_KV);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 0);
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 2, HYBRID_STATES, 0, 0), KVT_OK);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 2);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).kv_boundaries, 4);
        ck_assert_int_eq(hybrid_load(&engine, &prompt, 3), KVT_MISS);
        stop();
}
END_TEST

START_TEST(the_last_token_of_a_prompt_is_never_matched)
{
        static const struct {
                uint32_t tokens, usable;
        } cases[] = {
                {3 * CHUNK - 1, 2}, {3 * CHUNK, 2}, {3 * CHUNK + 1, 3}, {CHUNK, 0}, {CHUNK + 1, 1},
        };
        struct hybrid_prompt stored;

        start(0);
        stored = prompt_of(4);
        hybrid_store_run(&engine, &stored, 1, 4, HYBRID_ALL);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct hybrid_prompt prompt = hybrid_prompt(&engine, 1, cases[i].tokens, NULL);

                ck_assert_uint_eq(hybrid_usable(&engine, &prompt), cases[i].usable);
        }
        stop();
}
END_TEST

START_TEST(a_dense_layout_matches_up_to_the_last_chunk)
{
        struct kvt_layout layout = hybrid_layout();
        struct hybrid_engine dense;
        struct hybrid_prompt prompt;

        start(0);
        layout.n_groups = HYBRID_STATE;
        hybrid_open(&dense, fixture.socket, &layout);
        prompt = hybrid_prompt(&dense, 1, 3 * CHUNK, NULL);
        hybrid_store_run(&dense, &prompt, 1, 3, HYBRID_ALL);
        ck_assert_uint_eq(hybrid_usable(&dense, &prompt), 3);
        hybrid_close(&dense);
        stop();
}
END_TEST

START_TEST(an_evicted_state_takes_its_boundary_and_no_other)
{
        struct hybrid_prompt prompt;

        start(0);
        prompt = prompt_of(5);
        hybrid_store_run(&engine, &prompt, 1, 5, HYBRID_ALL);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 5);
        expect_drop(&prompt, 5, HYBRID_STATE, -1, 4, 5);
        expect_drop(&prompt, 3, HYBRID_STATE, -1, 4, 5);
        expect_drop(&prompt, 4, HYBRID_STATE, -1, 2, 5);
        /* It comes back with the state, which the chunks have waited for. */
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 5, HYBRID_ALL, 0, 0), KVT_OK);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 5);
        stop();
}
END_TEST

START_TEST(one_evicted_chunk_in_the_middle_ends_the_prefix)
{
        struct hybrid_prompt prompt;

        start(0);
        prompt = prompt_of(5);
        hybrid_store_run(&engine, &prompt, 1, 5, HYBRID_ALL);
        expect_drop(&prompt, 4, HYBRID_INDEX, -1, 3, 3);
        expect_drop(&prompt, 3, HYBRID_ATTENTION, -1, 2, 2);
        expect_drop(&prompt, 1, HYBRID_ATTENTION, 0, 0, 0);
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 1, HYBRID_KV, 0, 0), KVT_OK);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 2);
        stop();
}
END_TEST

START_TEST(a_window_needs_its_trailing_chunks_and_no_others)
{
        struct hybrid_prompt prompt;

        start(0);
        prompt = prompt_of(5);
        hybrid_store_run(&engine, &prompt, 1, 5, HYBRID_ALL);
        /* The window spans two chunks. */
        expect_drop(&prompt, 3, HYBRID_WINDOW, 0, 5, 5);
        expect_drop(&prompt, 1, HYBRID_WINDOW, -1, 5, 5);
        /* 3 and 4 want chunk 3, and 2 and 1 want chunk 1. */
        expect_drop(&prompt, 5, HYBRID_WINDOW, 1, 0, 0);
        stop();
}
END_TEST

START_TEST(all_usable_boundaries_are_told_longest_first)
{
        struct kvt_boundary usable[8];
        struct hybrid_prompt prompt;
        struct kvt_match match;

        start(64 * MIB);
        prompt = prompt_of(5);
        hybrid_store_run(&engine, &prompt, 1, 5, HYBRID_KV);
        hybrid_store_run(&engine, &prompt, 1, 2, HYBRID_STATES);
        hybrid_store_run(&engine, &prompt, 4, 4, HYBRID_STATES);
        daemon_wait_written(&fixture);
        evict_from_host(&prompt, 2, HYBRID_STATE);
        match = hybrid_query(&engine, &prompt,
                             (struct kvt_match_query){.usable = usable, .n_usable = 8});
        ck_assert_uint_eq(match.n_usable, 3);
        expect_boundary(&prompt, &usable[0], 4, KVT_BOUNDARY_RESIDENT);
        expect_boundary(&prompt, &usable[1], 2, KVT_BOUNDARY_BELOW);
        expect_boundary(&prompt, &usable[2], 1, KVT_BOUNDARY_RESIDENT);
        ck_assert_uint_eq(match.resident_boundaries, 4);
        /* With less room the longest ones. */
        match = hybrid_query(
                &engine, &prompt,
                (struct kvt_match_query){.usable = usable, .n_usable = 2, .max_tokens = 4 * CHUNK});
        ck_assert_uint_eq(match.n_usable, 2);
        ck_assert_uint_eq(usable[1].boundaries, 2);
        match = hybrid_query(&engine, &prompt,
                             (struct kvt_match_query){
                                     .usable = usable, .n_usable = 2, .max_tokens = 4 * CHUNK - 1});
        ck_assert_uint_eq(match.n_usable, 2);
        ck_assert_uint_eq(usable[0].boundaries, 2);
        stop();
}
END_TEST

static uint32_t hint(const struct hybrid_prompt *prompt)
{
        return hybrid_query(&engine, prompt,
                            (struct kvt_match_query){.prompt_tokens = prompt->n_tokens,
                                                     .flags = KVT_MATCH_CHECKPOINT})
                .checkpoint_boundaries;
}

START_TEST(a_checkpoint_is_wanted_where_prompts_branch)
{
        struct hybrid_prompt first, second, third;

        start(64 * MIB);
        first = prompt_of(6);
        second = hybrid_branch(&engine, 1, 3, 2, first.n_tokens);
        third = hybrid_branch(&engine, 1, 3, 3, first.n_tokens);
        hybrid_store_run(&engine, &first, 1, 6, HYBRID_KV);
        hybrid_store_run(&engine, &first, 6, 6, HYBRID_STATES);
        ck_assert_uint_eq(hint(&first), 0);
        /* The second prompt finds KV of three chunks that it cannot use. */
        ck_assert_uint_eq(hybrid_usable(&engine, &second), 0);
        ck_assert_uint_eq(hint(&second), 3);
        ck_assert_int_eq(hybrid_store(&engine, &second, 3, HYBRID_STATES, 0, 0), KVT_OK);
        hybrid_store_run(&engine, &second, 4, 6, HYBRID_KV);
        ck_assert_uint_eq(hint(&second), 0);
        /* So that the third can. */
        ck_assert_uint_eq(hybrid_usable(&engine, &third), 3);
        ck_assert_uint_eq(hint(&third), 0);
        /* The tree is known from NVMe, too. */
        hybrid_drop(&fixture, &first, 3, HYBRID_STATE, -1);
        daemon_wait_written(&fixture);
        /* Not killed: the deletes of what was dropped may be on their way still. */
        daemon_stop(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(engine.session);
        ck_assert_uint_eq(hint(&third), 3);
        stop();
}
END_TEST

START_TEST(one_missing_shard_makes_a_boundary_unusable)
{
        struct hybrid_prompt prompt;

        start(0);
        prompt = prompt_of(4);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        expect_drop(&prompt, 4, HYBRID_STATE, 1, 3, 4);
        expect_drop(&prompt, 3, HYBRID_ATTENTION, 1, 2, 2);
        stop();
}
END_TEST

START_TEST(boundaries_stay_usable_from_nvme_and_over_a_restart)
{
        struct hybrid_prompt prompt;
        struct kvt_match match;

        start(64 * MIB);
        prompt = prompt_of(4);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_KV);
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 3, HYBRID_STATES, 0, 0), KVT_OK);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).resident_boundaries, 3);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        match = hybrid_match(&engine, &prompt);
        ck_assert_uint_eq(match.boundaries, 3);
        ck_assert_uint_eq(match.resident_boundaries, 0);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 3);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).resident_boundaries, 3);

        daemon_kill(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(engine.session);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).resident_boundaries, 0);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 3);
        /* The tree is known still: a boundary that fell before the restart can be added. */
        ck_assert_int_eq(hybrid_store(&engine, &prompt, 4, HYBRID_STATES, 0, 0), KVT_OK);
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 4);
        stop();
}
END_TEST

/* ---- law 4: never another's bytes ---- */

/* Each differs from hybrid_layout() in one thing. */
static struct kvt_layout other_layout(unsigned which)
{
        static struct kvt_group groups[5];
        struct kvt_layout layout = hybrid_layout();

        memcpy(groups, layout.groups, sizeof(groups));
        layout.groups = groups;
        switch (which) {
        case 0:
                layout.kv_dtype = "fp8";
                break;
        case 1: /* N, with as many bytes in a chunk */
                groups[HYBRID_ATTENTION].page_tokens *= 2;
                groups[HYBRID_ATTENTION].page_bytes *= 2;
                groups[HYBRID_ATTENTION].padded_bytes *= 2;
                break;
        case 2:
                layout.draft_tokens = 3;
                break;
        case 3:
                layout.replay_mode = "recover";
                break;
        case 4:
                layout.engine_build = "2";
                break;
        case 5:
                layout.revision = "2";
                break;
        case 6:
                layout.kernel_layout = "LBHNC";
                break;
        case 7:
                layout.pp = 2;
                break;
        case 8:
                groups[HYBRID_WINDOW].window_tokens++;
                break;
        case 9: /* what is not stored decides what the rest means, too */
                groups[HYBRID_SCRATCH].name = "pool";
                break;
        default: /* only padding */
                groups[HYBRID_ATTENTION].padded_bytes += 64;
        }
        return layout;
}
#define N_LAYOUTS 11u

START_TEST(an_engine_with_another_layout_misses)
{
        struct hybrid_prompt prompt;

        start(0);
        prompt = prompt_of(3);
        hybrid_store_run(&engine, &prompt, 1, 3, HYBRID_ALL);
        for (unsigned i = 0; i < N_LAYOUTS; i++) {
                struct kvt_layout layout = other_layout(i);
                struct hybrid_engine other;
                uint64_t generation;

                hybrid_open(&other, fixture.socket, &layout);
                ck_assert_msg(hybrid_match(&other, &prompt).kv_boundaries == 0, "layout %u", i);
                ck_assert_int_eq(hybrid_load(&other, &prompt, 1), KVT_MISS);
                /* What it stores itself is its own. */
                ck_assert_int_eq(hybrid_store(&other, &prompt, 1, HYBRID_ALL, 100 + i, 0), KVT_OK);
                ck_assert_uint_eq(hybrid_match(&other, &prompt).boundaries, 1);
                ck_assert_int_eq(hybrid_load_boundary(&other, &prompt, 1, HYBRID_ALL, 100 + i,
                                                      100 + i, &generation),
                                 KVT_OK);
                hybrid_close(&other);
        }
        ck_assert_uint_eq(hybrid_usable(&engine, &prompt), 3);
        stop();
}
END_TEST

START_TEST(another_salt_or_another_first_token_misses)
{
        struct hybrid_prompt plain, salted, other;

        start(0);
        plain = prompt_of(3);
        salted = hybrid_prompt(&engine, 1, plain.n_tokens, "tenant");
        other = hybrid_prompt(&engine, 2, plain.n_tokens, NULL);
        hybrid_store_run(&engine, &plain, 1, 3, HYBRID_ALL);
        ck_assert_uint_eq(hybrid_match(&engine, &salted).kv_boundaries, 0);
        ck_assert_int_eq(hybrid_load(&engine, &salted, 1), KVT_MISS);
        ck_assert_uint_eq(hybrid_match(&engine, &other).kv_boundaries, 0);
        hybrid_store_run(&engine, &salted, 1, 2, HYBRID_ALL);
        ck_assert_uint_eq(hybrid_usable(&engine, &salted), 2);
        ck_assert_uint_eq(hybrid_usable(&engine, &plain), 3);
        stop();
}
END_TEST

/* ---- more cells than one word has bits ---- */

START_TEST(ten_groups_of_eight_shards_match_jointly)
{
        char names[10][8];
        struct kvt_group groups[10];
        struct kvt_layout layout = hybrid_layout();
        struct hybrid_engine wide;
        struct hybrid_prompt prompt;

        for (unsigned i = 0; i < 10; i++) {
                snprintf(names[i], sizeof(names[i]), "%u", i);
                groups[i] = (struct kvt_group){
                        .name = names[i],
                        .kind = i < 1 ? KVT_GROUP_ATTENTION : KVT_GROUP_STATE,
                        .shards = 8,
                        .page_tokens = i < 1 ? 16 : 0,
                        .page_bytes = i < 1 ? 512 : 0,
                };
        }
        layout.groups = groups;
        layout.n_groups = 10;
        start(0);
        hybrid_open(&wide, fixture.socket, &layout);
        prompt = hybrid_prompt(&wide, 1, 3 * CHUNK + 1, NULL);
        hybrid_store_run(&wide, &prompt, 1, 3, HYBRID_ALL);
        ck_assert_uint_eq(hybrid_usable(&wide, &prompt), 3);
        /* The first cell, one near the border of the banks, and the very last one. */
        hybrid_drop(&fixture, &prompt, 3, 9, 7);
        ck_assert_uint_eq(hybrid_usable(&wide, &prompt), 2);
        ck_assert_uint_eq(hybrid_match(&wide, &prompt).kv_boundaries, 3);
        hybrid_drop(&fixture, &prompt, 2, 8, 0);
        ck_assert_uint_eq(hybrid_usable(&wide, &prompt), 1);
        hybrid_drop(&fixture, &prompt, 1, 0, 0);
        ck_assert_uint_eq(hybrid_usable(&wide, &prompt), 0);
        hybrid_close(&wide);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                kv_of_four_chunks_and_a_state_at_two_make_two_usable,
                the_last_token_of_a_prompt_is_never_matched,
                a_dense_layout_matches_up_to_the_last_chunk,
                an_evicted_state_takes_its_boundary_and_no_other,
                one_evicted_chunk_in_the_middle_ends_the_prefix,
                a_window_needs_its_trailing_chunks_and_no_others,
                all_usable_boundaries_are_told_longest_first,
                a_checkpoint_is_wanted_where_prompts_branch,
                one_missing_shard_makes_a_boundary_unusable,
                boundaries_stay_usable_from_nvme_and_over_a_restart,
                an_engine_with_another_layout_misses,
                another_salt_or_another_first_token_misses,
                ten_groups_of_eight_shards_match_jointly,
                NULL,
        };

        return flow_run("hybrid_match", tests, 120);
}
