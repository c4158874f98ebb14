// SPDX-License-Identifier: Apache-2.0
/*
 * What kvtierctl doctor says of engines that lose what they could have: each story happens to a
 * real daemon, and is told with its figures; before it happens, nothing is.
 *
 * KVTIERD and KVTIERCTL in the environment name the programs; KNOWLEDGE is the folder of the
 * tables in the source tree.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

#define CHUNK HYBRID_CHUNK_TOKENS

static struct daemon_fixture fixture;
static struct hybrid_engine engine;
static struct hybrid_prompt prompt;
static json_t *findings;

static void start(void)
{
        const struct daemon_options options = {.piece_bytes = 4 << 20, .n_pieces = 2};

        daemon_fixture_init(&fixture, &options);
}

static void attach(const struct kvt_layout *layout)
{
        hybrid_open(&engine, fixture.socket, layout);
        prompt = hybrid_prompt(&engine, 1, HYBRID_BOUNDARIES_MAX * CHUNK, NULL);
}

static void leave(void)
{
        hybrid_close(&engine);
        daemon_wait_number(&fixture, "sessions", 0);
}

static void stop(void)
{
        json_decref(findings);
        findings = NULL;
        daemon_fixture_deinit(&fixture);
}

/* Whether "kvtierctl layouts" prints a line that begins with @text. */
static bool layouts_say(const char *text)
{
        char command[512], line[512];
        bool found = false;
        FILE *output;

        snprintf(command, sizeof(command), "%s --socket=%s layouts", getenv("KVTIERCTL"),
                 fixture.socket);
        output = popen(command, "re");
        ck_assert_ptr_nonnull(output);
        while (fgets(line, sizeof(line), output))
                found |= !strncmp(line, text, strlen(text));
        ck_assert_int_eq(pclose(output), 0);
        return found;
}

/* Runs it; what it finds is not what is configured here, such as huge pages, alone. */
static void ask_doctor(void)
{
        char command[512];
        json_error_t error;
        json_t *document;
        FILE *output;

        snprintf(command, sizeof(command), "%s --socket=%s --json doctor --knowledge=%s",
                 getenv("KVTIERCTL"), fixture.socket, KNOWLEDGE);
        output = popen(command, "re");
        ck_assert_ptr_nonnull(output);
        document = json_loadf(output, 0, &error);
        ck_assert_msg(document != NULL, "%s", error.text);
        ck_assert_int_eq(WEXITSTATUS(pclose(output)), 1);
        json_decref(findings);
        findings = json_incref(json_object_get(document, "findings"));
        json_decref(document);
}

static const json_t *finding_of(const char *check)
{
        const json_t *finding, *found = NULL;
        size_t i;

        json_array_foreach(
                findings, i,
                finding) if (!strcmp(json_string_value(json_object_get(finding, "check")), check))
                found = finding;
        return found;
}

/* It is found, and the finding holds each of the texts, NULL at the end; or none is found. */
static void expect(const char *check, const char *const *texts)
{
        const json_t *finding;
        const char *said;

        ask_doctor();
        finding = finding_of(check);
        if (!texts) {
                ck_assert_msg(finding == NULL, "%s",
                              json_string_value(json_object_get(finding, "finding")));
                return;
        }
        ck_assert_msg(finding != NULL, "no %s", check);
        said = json_string_value(json_object_get(finding, "finding"));
        for (; *texts; texts++)
                ck_assert_msg(strstr(said, *texts) != NULL, "\"%s\" not in: %s", *texts, said);
}

#define EXPECT(check, ...) expect(check, (const char *const[]){__VA_ARGS__, NULL})
#define EXPECT_NONE(check) expect(check, NULL)

START_TEST(another_dtype_loses_what_was_stored_and_coming_back_has_it_again)
{
        struct kvt_layout layout = hybrid_layout();

        start();
        layout.kv_dtype = "bfloat16";
        attach(&layout);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        EXPECT_NONE("other_layout");
        leave();

        layout.kv_dtype = "fp8";
        attach(&layout);
        EXPECT("other_layout", "kv_dtype fp8, there bfloat16", "nobody uses", "(28 objects");
        leave();

        layout.kv_dtype = "bfloat16";
        attach(&layout);
        EXPECT_NONE("other_layout");
        leave();
        stop();
}
END_TEST

START_TEST(draft_tokens_keep_two_engines_apart)
{
        struct kvt_layout layout = hybrid_layout();
        struct hybrid_engine other;

        start();
        attach(&layout);
        hybrid_store_run(&engine, &prompt, 1, 2, HYBRID_ALL);
        other = engine;
        layout.draft_tokens = 2;
        attach(&layout);
        hybrid_store_run(&engine, &prompt, 1, 2, HYBRID_ALL);
        EXPECT("other_layout", "draft_tokens", "in use, too");
        hybrid_close(&other);
        leave();
        stop();
}
END_TEST

START_TEST(states_that_are_not_stored_and_then_not_loaded_are_named)
{
        uint64_t generation;

        start();
        attach(NULL);
        EXPECT_NONE("states");
        hybrid_store_run(&engine, &prompt, 1, 8, HYBRID_KV);
        EXPECT("states", "24 objects of KV were stored", "no state");

        hybrid_store_run(&engine, &prompt, 8, 8, HYBRID_STATES);
        EXPECT_NONE("states");
        for (uint32_t boundary = 1; boundary <= 6; boundary++)
                ck_assert_int_eq(hybrid_load_boundary(&engine, &prompt, boundary, HYBRID_KV, 0, 0,
                                                      &generation),
                                 KVT_OK);
        EXPECT("states", "18 objects of KV were loaded", "none of the 2 states");

        ck_assert_int_eq(hybrid_load(&engine, &prompt, 8), KVT_OK);
        EXPECT_NONE("states");
        leave();
        stop();
}
END_TEST

/* Reserves the states of all boundaries @beyond tokens behind their chunks, and gives them up. */
static void offer_states(uint32_t beyond)
{
        struct kvt_object states[HYBRID_SHARDS];

        for (uint32_t boundary = 1; boundary <= HYBRID_BOUNDARIES_MAX; boundary++) {
                size_t n = hybrid_objects(&engine, &prompt, boundary, HYBRID_STATES, states);

                for (size_t i = 0; i < n; i++)
                        states[i].boundary_tokens = boundary * (CHUNK + beyond);
                ck_assert_int_eq(hybrid_call(&engine, kvt_reserve, 0, states, n).status, KVT_OK);
                ck_assert_int_eq(hybrid_call(&engine, kvt_abort, 0, states, n).status, KVT_OK);
        }
}

START_TEST(states_that_come_where_no_chunk_ends_are_named_with_their_distance)
{
        start();
        attach(NULL);
        offer_states(0);
        EXPECT_NONE("chunk");
        offer_states(1);
        EXPECT_NONE("chunk"); /* not more than half */
        leave();
        stop();

        start();
        attach(NULL);
        offer_states(3);
        EXPECT("chunk", "32 of 32 states of group state", "chunk of 64 tokens",
               "multiples of 67 tokens");
        leave();
        stop();
}
END_TEST

static void tell(uint64_t prompts, uint64_t tokens, uint64_t tail_tokens, uint64_t hit_tokens,
                 uint32_t batch_tokens)
{
        const struct kvt_told told = {.size = sizeof(told),
                                      .prompts = prompts,
                                      .prompt_tokens = tokens,
                                      .tail_tokens = tail_tokens,
                                      .kv_tokens = hit_tokens,
                                      .hit_tokens = hit_tokens,
                                      .batch_tokens = batch_tokens};

        ck_assert_int_eq(kvt_tell(engine.session, &told), KVT_OK);
        /* Whatever is answered after it: the daemon has heard it. */
        hybrid_load(&engine, &prompt, 1);
}

START_TEST(what_an_engine_tells_of_its_steps_is_found_until_it_has_gone)
{
        struct hybrid_engine other;

        start();
        attach(NULL);
        tell(0, 0, 0, 0, 64);
        EXPECT_NONE("batch_tokens");
        tell(0, 0, 0, 0, 63);
        EXPECT("batch_tokens", "at most 63 tokens in a step", "N, has 64");
        other = engine;
        attach(NULL);
        tell(0, 0, 0, 0, 512);
        EXPECT("batch_tokens", "at most 63 tokens in a step");
        hybrid_close(&other);
        leave();
        EXPECT_NONE("batch_tokens");
        stop();
}
END_TEST

START_TEST(what_an_engine_tells_of_its_prompts_adds_up_and_outlives_it)
{
        start();
        attach(NULL);
        ck_assert(!layouts_say("prompts"));
        tell(15, 1500, 400, 500, 0);
        EXPECT_NONE("tails");
        ck_assert(layouts_say("prompts 15: of 1,500 tokens that engines lacked 33.3 % were hits, "
                              "45.5 % without tails\n"));
        tell(1, 100, 0, 100, 0);
        leave();
        EXPECT("tails", "lacked 37.5 % were hits, 50.0 % without", "chunk of 64 tokens",
               "25.0 % of the tokens, 25 a prompt");
        stop();
}
END_TEST

/* The engine is back, and the daemon has heard all that it had to say. */
static void start_again(void)
{
        daemon_start(&fixture);
        daemon_wait_number(&fixture, "sessions", 1);
        ck_assert_int_eq(kvt_wait_attached(engine.session, FLOW_TIMEOUT_NS), KVT_OK);
        hybrid_load(&engine, &prompt, 1);
}

START_TEST(what_was_told_while_there_was_no_daemon_is_told_when_there_is)
{
        const struct kvt_told told = {.size = sizeof(told),
                                      .prompts = 20,
                                      .prompt_tokens = 2000,
                                      .tail_tokens = 1000,
                                      .hit_tokens = 1000,
                                      .batch_tokens = 32};

        start();
        attach(NULL);
        tell(0, 0, 0, 0, 48);
        daemon_kill(&fixture);
        ck_assert_int_eq(kvt_tell(engine.session, &told), KVT_OK);
        start_again();
        EXPECT("tails", "lacked 50.0 % were hits, 100.0 % without");
        EXPECT("batch_tokens", "at most 32 tokens");

        daemon_stop(&fixture);
        start_again();
        EXPECT_NONE("tails"); /* told once */
        EXPECT("batch_tokens", "at most 32 tokens");
        leave();
        stop();
}
END_TEST

START_TEST(what_cannot_be_is_not_told)
{
        struct kvt_told told = {.size = sizeof(told), .prompt_tokens = 10, .hit_tokens = 11};
        struct {
                struct kvt_told told;
                uint64_t more; /* of a later version */
        } later;

        start();
        attach(NULL);
        ck_assert_int_eq(kvt_tell(engine.session, &told), KVT_INVALID);
        told.hit_tokens = 10;
        told.size = sizeof(told.size) - 1;
        ck_assert_int_eq(kvt_tell(engine.session, &told), KVT_INVALID);
        told.size = sizeof(told);
        later.told = told;
        later.told.size = sizeof(later);
        later.more = 1;
        ck_assert_int_eq(kvt_tell(engine.session, &later.told), KVT_INVALID);
        later.more = 0;
        ck_assert_int_eq(kvt_tell(engine.session, &later.told), KVT_OK);
        told.prompts = UINT64_MAX;
        ck_assert_int_eq(kvt_tell(engine.session, &told), KVT_INVALID);
        ck_assert_int_eq(kvt_tell(engine.session, NULL), KVT_INVALID);
        ck_assert_int_eq(kvt_tell(NULL, &told), KVT_INVALID);
        leave();
        stop();
}
END_TEST

START_TEST(an_engine_that_was_turned_away_is_named_with_the_chunk_that_would_do)
{
        struct kvt_group group = {.name = "kv",
                                  .kind = KVT_GROUP_ATTENTION,
                                  .page_tokens = 16,
                                  .page_bytes = 1 << 20};
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "m",
                                    .engine = "test",
                                    .chunk_tokens = 1024,
                                    .groups = &group,
                                    .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = fixture.socket,
                                      .program = "too-large",
                                      .layout = &layout,
                                      .connect_timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_session *session = NULL;

        start();
        EXPECT_NONE("layout_refused");
        ck_assert_int_ne(kvt_open(&session, &options, NULL, 0), KVT_OK);
        kvt_close(session);
        EXPECT("layout_refused", "(too-large)", "lower chunk_tokens from 1024 to 32");
        stop();
}
END_TEST

START_TEST(a_sparse_model_without_its_indexer_is_named)
{
        struct kvt_layout layout = hybrid_layout();
        struct kvt_group dense = layout.groups[HYBRID_ATTENTION];

        start();
        layout.model = "deepseek-ai/DeepSeek-V3.2";
        attach(&layout);
        EXPECT_NONE("indexer");
        leave();

        layout.groups = &dense;
        layout.n_groups = 1;
        attach(&layout);
        EXPECT("indexer", "no indexer keys", "DeepSeek-V3.2, as it is called");
        leave();
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                another_dtype_loses_what_was_stored_and_coming_back_has_it_again,
                draft_tokens_keep_two_engines_apart,
                states_that_are_not_stored_and_then_not_loaded_are_named,
                states_that_come_where_no_chunk_ends_are_named_with_their_distance,
                what_an_engine_tells_of_its_steps_is_found_until_it_has_gone,
                what_an_engine_tells_of_its_prompts_adds_up_and_outlives_it,
                what_was_told_while_there_was_no_daemon_is_told_when_there_is,
                what_cannot_be_is_not_told,
                an_engine_that_was_turned_away_is_named_with_the_chunk_that_would_do,
                a_sparse_model_without_its_indexer_is_named,
                NULL,
        };

        return flow_run("doctor", tests, 120);
}
