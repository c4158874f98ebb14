// SPDX-License-Identifier: Apache-2.0
/*
 * Policies on traces that are made here: none holds more than the capacity, none beats the
 * bound, and with room for everything all that was seen is a hit.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/replay/cell.h"

enum { CHUNK_TOKENS = 512, N_SESSIONS = 40 };

static const struct replay_policy *const policies[] = {
        &replay_min, &replay_oracle, &replay_dense, &replay_p0,  &replay_p1,
        &replay_p2,  &replay_p3,     &replay_p7,    &replay_a2q,
};
enum { N_POLICIES = sizeof(policies) / sizeof(policies[0]) };

static struct trace trace;

static void set_up(void)
{
        trace_init(&trace, CHUNK_TOKENS);
}

static void tear_down(void)
{
        trace_deinit(&trace);
}

static uint32_t extend(uint32_t last, uint32_t id)
{
        uint32_t chunk;

        ck_assert_int_eq(trace_chunk(&trace, last, id, &chunk), 0);
        return chunk;
}

static void ask(uint32_t last, uint32_t n_chunks, uint32_t tokens_more)
{
        ck_assert_int_eq(trace_append(&trace, trace.n_requests, TRACE_NONE,
                                      n_chunks * CHUNK_TOKENS + tokens_more, last),
                         0);
}

/* Conversations that take turns; all begin with one of three system prompts. */
static void make_conversations(unsigned int seed)
{
        uint32_t last[N_SESSIONS], n[N_SESSIONS] = {0};

        for (int turn = 0; turn < 1000; turn++) {
                int session = rand_r(&seed) % N_SESSIONS;
                uint32_t grows = 1 + (uint32_t)rand_r(&seed) % 8;

                if (!n[session] || rand_r(&seed) % 20 == 0) {
                        uint32_t system = (uint32_t)rand_r(&seed) % 3;

                        last[session] = TRACE_NONE;
                        for (n[session] = 0; n[session] < 4 * (system + 1); n[session]++)
                                last[session] = extend(last[session], system);
                }
                for (uint32_t i = 0; i < grows; i++, n[session]++)
                        last[session] = extend(last[session], (uint32_t)rand_r(&seed) | 0x80u);
                ask(last[session], n[session], (uint32_t)rand_r(&seed) % 2);
        }
        ck_assert_int_eq(trace_finish(&trace), 0);
}

static struct replay_result run(const struct replay_policy *policy, const char *name)
{
        struct replay_result result;
        struct replay_sizes sizes;
        struct cell cell;
        struct why why;

        ck_assert_msg(cell_parse(&cell, name, &why) == 0, "%s", why.text);
        ck_assert_int_eq(cell_sizes(&cell, &trace, &sizes), 0);
        ck_assert_int_eq(replay_run(policy, &sizes, &trace, &result), 0);
        ck_assert_uint_le(result.bytes_held_max, sizes.capacity_bytes);
        ck_assert_uint_le(result.hit_tokens, result.input_tokens);
        ck_assert_msg(result.state_share >= 0 && result.state_share <= 1, "%f",
                      result.state_share);
        return result;
}

START_TEST(no_policy_beats_the_bound_or_outgrows_the_capacity)
{
        static const char *const names[] = {"agent.qwen3-next.1", "agent.qwen3-next.5",
                                            "agent.kimi-linear.10", "agent.qwen3-next.40"};

        make_conversations((unsigned int)_i + 1);
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
                uint64_t bound = run(&replay_min, names[i]).hit_tokens;

                for (size_t j = 0; j < N_POLICIES; j++) {
                        struct replay_result result = run(policies[j], names[i]);

                        ck_assert_msg(result.hit_tokens <= bound, "%s of %s", policies[j]->name,
                                      names[i]);
                }
        }
}
END_TEST

START_TEST(with_room_for_everything_only_placement_matters)
{
        uint64_t all;

        make_conversations(7);
        all = run(&replay_min, "agent.qwen3-next.100").hit_tokens;
        ck_assert_uint_eq(run(&replay_oracle, "agent.qwen3-next.100").hit_tokens, all);
        ck_assert_uint_eq(run(&replay_dense, "agent.dense.100").hit_tokens, all);
        ck_assert_uint_lt(run(&replay_p1, "agent.qwen3-next.100").hit_tokens, all);
}
END_TEST

START_TEST(knowledge_of_the_future_is_worth_something)
{
        make_conversations(3);
        ck_assert_uint_gt(run(&replay_oracle, "agent.qwen3-next.5").hit_tokens,
                          run(&replay_a2q, "agent.qwen3-next.5").hit_tokens);
}
END_TEST

/* Chunks hit: two prompts have the same three chunks in front, the third is those and no more. */
static uint64_t hits_of_three(const struct replay_policy *policy, uint32_t tokens_more)
{
        uint32_t shared = TRACE_NONE, last;

        for (int i = 0; i < 3; i++)
                shared = extend(shared, 1);
        for (uint32_t i = 0; i < 2; i++) {
                last = extend(shared, 10 + i);
                ask(last, 4, 1);
        }
        ask(shared, 3, tokens_more);
        ck_assert_int_eq(trace_finish(&trace), 0);
        return run(policy, "agent.qwen3-next.100").hit_tokens / CHUNK_TOKENS;
}

START_TEST(the_state_where_prompts_branch_is_stored_by_the_second_one)
{
        static const struct {
                const struct replay_policy *policy;
                uint64_t hits;
        } expected[] = {
                /* The second and the third prompt. */
                {&replay_min, 6}, {&replay_oracle, 6}, {&replay_dense, 6}, {&replay_p0, 6},
                /* The third. */
                {&replay_p3, 3}, {&replay_p7, 3}, {&replay_a2q, 3},
                /* None: no prompt ended there. */
                {&replay_p1, 0}, {&replay_p2, 0},
        };

        ck_assert_uint_eq(hits_of_three(expected[_i].policy, 1), expected[_i].hits);
}
END_TEST

START_TEST(a_prompt_that_ends_with_a_chunk_cannot_use_all_of_it)
{
        ck_assert_uint_eq(hits_of_three(&replay_dense, 0), 5);
}
END_TEST

/* Three prompts in turn, with room for two: LRU always drops the one that comes next. */
START_TEST(the_bound_keeps_what_is_used_next)
{
        for (int turn = 0; turn < 4; turn++)
                for (uint32_t i = 0; i < 3; i++)
                        ask(extend(TRACE_NONE, i), 1, 1);
        ck_assert_int_eq(trace_finish(&trace), 0);
        ck_assert_uint_eq(run(&replay_dense, "agent.dense.67").hit_tokens, 0);
        ck_assert_uint_eq(run(&replay_min, "agent.dense.67").hit_tokens / CHUNK_TOKENS, 6);
}
END_TEST

START_TEST(names_of_cells_are_checked)
{
        struct cell cell;
        struct why why;

        for (size_t i = 0; cell_names[i]; i++)
                ck_assert_msg(cell_parse(&cell, cell_names[i], &why) == 0, "%s", why.text);
        ck_assert_int_eq(cell_parse(&cell, "agent.kimi-linear.0.3", &why), 0);
        ck_assert(fabs(cell.percent - 0.3) < 1e-9);
        ck_assert_int_eq(cell_parse(&cell, "agents.kimi-linear.1", &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "no trace"));
        ck_assert_int_eq(cell_parse(&cell, "agent.kimi.1", &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "no model"));
        ck_assert_int_eq(cell_parse(&cell, "agent.dense.0", &why), -EINVAL);
        ck_assert_int_eq(cell_parse(&cell, "agent.dense.5x", &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "percentage"));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("replay");
        TCase *tcase = tcase_create("replay");
        SRunner *runner;
        int n_failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_loop_test(tcase, no_policy_beats_the_bound_or_outgrows_the_capacity, 0, 10);
        tcase_add_test(tcase, with_room_for_everything_only_placement_matters);
        tcase_add_test(tcase, knowledge_of_the_future_is_worth_something);
        tcase_add_loop_test(tcase, the_state_where_prompts_branch_is_stored_by_the_second_one, 0,
                            N_POLICIES);
        tcase_add_test(tcase, a_prompt_that_ends_with_a_chunk_cannot_use_all_of_it);
        tcase_add_test(tcase, the_bound_keeps_what_is_used_next);
        tcase_add_test(tcase, names_of_cells_are_checked);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
