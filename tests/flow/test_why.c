// SPDX-License-Identifier: Apache-2.0
/*
 * Why a prompt is not a hit: each cause happens to an engine, and the daemon names it, with
 * the boundary, the group and the shard.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/hybrid_engine.h"
#include "tests/support/powerfs_client.h"

#define MIB       (UINT64_C(1) << 20)
#define CHUNK     HYBRID_CHUNK_TOKENS
#define DATA_FROM (128 << 10) /* behind the superblocks */

static struct daemon_fixture fixture;
static struct hybrid_engine engine;
static struct hybrid_prompt prompt; /* four chunks and a half */
static json_t *answer;

static void start(const struct daemon_options *options)
{
        daemon_fixture_init(&fixture, options);
        hybrid_open(&engine, fixture.socket, NULL);
        prompt = hybrid_prompt(&engine, 1, 4 * CHUNK + CHUNK / 2, NULL);
}

static void start_small(uint64_t nvme_bytes)
{
        struct daemon_options options = {
                .piece_bytes = 4 * MIB, .n_pieces = 2, .nvme_bytes = nvme_bytes};

        start(&options);
}

static void stop(void)
{
        json_decref(answer);
        answer = NULL;
        hybrid_close(&engine);
        daemon_wait_number(&fixture, "leases", 0);
        daemon_fixture_deinit(&fixture);
}

/* ---- asking ---- */

static const char *text_of(const json_t *object, const char *name)
{
        const char *text = json_string_value(json_object_get(object, name));

        return text ? text : "";
}

static uint64_t number_of(const json_t *object, const char *name)
{
        ck_assert_msg(json_is_integer(json_object_get(object, name)), "no %s", name);
        return (uint64_t)json_integer_value(json_object_get(object, name));
}

static void ask(const char *command)
{
        json_decref(answer);
        answer = daemon_ask(&fixture, command);
        ck_assert_ptr_nonnull(answer);
}

static void add_hex(char *text, const uint8_t *bytes, size_t n)
{
        text += strlen(text);
        for (size_t i = 0; i < n; i++)
                sprintf(text + 2 * i, "%02x", bytes[i]);
}

/* Asks about the digests of @prompt in the layout of @of. */
static void ask_about(const struct hybrid_engine *of, const struct hybrid_prompt *asked,
                      uint32_t prompt_tokens)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        char command[HYBRID_BOUNDARIES_MAX * 64 + 256];

        ck_assert_int_eq(kvt_session_info(of->session, &info), KVT_OK);
        sprintf(command, "{\"command\":\"why\",\"prompt_tokens\":%u,\"layout\":\"", prompt_tokens);
        add_hex(command, info.layout_id, sizeof(info.layout_id));
        strcat(command, "\",\"digests\":\"");
        for (uint32_t i = 0; i < asked->n_boundaries; i++)
                add_hex(command, asked->digests[i].bytes, sizeof(asked->digests[i].bytes));
        strcat(command, "\"}");
        ask(command);
        ck_assert_msg(json_is_true(json_object_get(answer, "ok")), "%s", text_of(answer, "error"));
}

static void ask_why(void)
{
        ask_about(&engine, &prompt, prompt.n_tokens);
}

static const json_t *run_of(uint32_t boundary)
{
        const json_t *runs = json_object_get(answer, "runs"), *run;
        size_t i;

        json_array_foreach(runs, i, run) if (number_of(run, "from") <= boundary &&
                                             boundary <= number_of(run, "to")) return run;
        ck_abort_msg("boundary %u is in no run", boundary);
}

/* The gap of (group, shard) at a boundary. */
static const json_t *gap_of(uint32_t boundary, unsigned group, unsigned shard)
{
        const json_t *gaps = json_object_get(run_of(boundary), "gaps"), *gap;
        size_t i;

        json_array_foreach(gaps, i, gap) if (number_of(gap, "group") == group &&
                                             number_of(gap, "first_shard") <= shard &&
                                             shard < number_of(gap, "first_shard") +
                                                             number_of(gap, "shards")) return gap;
        ck_abort_msg("boundary %u: group %u shard %u is not missing", boundary, group, shard);
}

static void expect_gap(uint32_t boundary, unsigned group, unsigned shard, const char *cause,
                       const char *reason)
{
        const json_t *gap = gap_of(boundary, group, shard);

        ck_assert_str_eq(text_of(gap, "cause"), cause);
        ck_assert_str_eq(text_of(gap, "reason"), reason);
        ck_assert_str_ne(text_of(gap, "text"), "");
}

/* The sentence holds each of the texts, NULL at the end. */
static void expect_sentence(const char *const *texts)
{
        const char *sentence = text_of(answer, "why");

        for (; *texts; texts++)
                ck_assert_msg(strstr(sentence, *texts) != NULL, "\"%s\" not in: %s", *texts,
                              sentence);
}

#define EXPECT_SENTENCE(...) expect_sentence((const char *const[]){__VA_ARGS__, NULL})

/* The daemon's own joint match agrees with the library's. */
static void expect_usable(uint32_t usable)
{
        ck_assert_uint_eq(number_of(answer, "usable_boundaries"), usable);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).boundaries, usable);
}

/* ---- causes ---- */

START_TEST(a_full_hit_says_so)
{
        start_small(0);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        ask_why();
        expect_usable(4);
        ck_assert_uint_eq(number_of(run_of(1), "to"), 4);
        ck_assert_uint_eq(number_of(run_of(4), "missing"), 0);
        EXPECT_SENTENCE("It is a hit now", "256 tokens");
        stop();
}
END_TEST

START_TEST(what_was_never_stored_is_told_with_the_first_gap)
{
        start_small(0);
        hybrid_store_run(&engine, &prompt, 1, 2, HYBRID_ALL);
        ask_why();
        expect_usable(2);
        expect_gap(3, HYBRID_ATTENTION, 0, "never_stored", "");
        ck_assert_uint_eq(number_of(run_of(3), "to"), 4);
        EXPECT_SENTENCE("boundary 3 (tokens 129 to 192)", "group full", "never stored",
                        "128 tokens (boundary 2)");
        stop();
}
END_TEST

START_TEST(one_shard_that_was_removed_is_named)
{
        start_small(0);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        hybrid_drop(&fixture, &prompt, 2, HYBRID_ATTENTION, 1);
        ask_why();
        expect_usable(1);
        ck_assert_uint_eq(number_of(run_of(2), "missing"), 1);
        expect_gap(2, HYBRID_ATTENTION, 1, "dropped", "ADMIN");
        EXPECT_SENTENCE("boundary 2", "shard 1", "removed by kvtierctl", "s ago");
        stop();
}
END_TEST

START_TEST(a_state_that_is_missing_is_told_apart_from_its_chunks)
{
        start_small(0);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_KV);
        hybrid_store_run(&engine, &prompt, 2, 2, HYBRID_STATES);
        ask_why();
        expect_usable(2);
        ck_assert_uint_eq(number_of(answer, "kv_boundaries"), 4);
        expect_gap(4, HYBRID_STATE, 1, "never_stored", "");
        EXPECT_SENTENCE("chunks reach up to boundary 4 (256 tokens)", "group state, every shard",
                        "128 tokens (boundary 2)");
        stop();
}
END_TEST

START_TEST(a_window_names_the_chunk_that_it_lacks)
{
        start_small(0);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        hybrid_drop(&fixture, &prompt, 3, HYBRID_WINDOW, 0);
        ask_why();
        expect_usable(2);
        expect_gap(3, HYBRID_WINDOW, 0, "dropped", "ADMIN");
        EXPECT_SENTENCE("up to boundary 4", "needs a window in which boundary 3",
                        "group window, shard 0");
        stop();
}
END_TEST

START_TEST(the_last_token_is_left_to_compute)
{
        start_small(0);
        prompt = hybrid_prompt(&engine, 1, 4 * CHUNK, NULL);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_KV);
        hybrid_store_run(&engine, &prompt, 4, 4, HYBRID_STATES);
        ask_why();
        expect_usable(0);
        ck_assert_uint_eq(number_of(answer, "limit"), 3);
        ck_assert(json_is_true(json_object_get(run_of(4), "above_limit")));
        EXPECT_SENTENCE("up to boundary 3", "group state", "no prefix is usable");
        hybrid_store_run(&engine, &prompt, 3, 3, HYBRID_STATES);
        ask_why();
        expect_usable(3);
        EXPECT_SENTENCE("It is a hit now", "leaves at least the last token");
        prompt = hybrid_prompt(&engine, 1, CHUNK, NULL);
        ask_why();
        EXPECT_SENTENCE("No hit is possible");
        stop();
}
END_TEST

/* Other prompts until boundary 1 of ours has left the tier. */
static void crowd_out(const char *tier)
{
        for (uint64_t seed = 100; seed < 1000; seed++) {
                struct hybrid_prompt other = hybrid_prompt(&engine, seed, 8 * CHUNK, NULL);

                hybrid_store_run(&engine, &other, 1, 8, HYBRID_ALL);
                if (fixture.options.nvme_bytes)
                        daemon_wait_written(&fixture);
                ask_why();
                if (!number_of(run_of(4), tier))
                        return;
        }
        ck_abort_msg("nothing made room");
}

START_TEST(eviction_is_told_with_its_tier_and_rule)
{
        start_small(0);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        crowd_out("in_host");
        expect_gap(4, HYBRID_ATTENTION, 0, "dropped", "SPACE");
        ck_assert_str_eq(text_of(gap_of(4, HYBRID_ATTENTION, 0), "tier"), "host");
        ck_assert_str_ne(text_of(gap_of(4, HYBRID_ATTENTION, 0), "rule"), "");
        EXPECT_SENTENCE("in host memory: evicted to make room (");
        stop();
}
END_TEST

START_TEST(eviction_from_nvme_is_told_after_that_from_host_memory)
{
        start_small(32 * MIB);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        daemon_wait_written(&fixture);
        hybrid_evict(&fixture, &prompt, 4, -1, -1, "host");
        crowd_out("in_nvme_only");
        expect_gap(4, HYBRID_ATTENTION, 0, "dropped", "SPACE");
        ck_assert_str_eq(text_of(gap_of(4, HYBRID_ATTENTION, 0), "tier"), "nvme");
        stop();
}
END_TEST

START_TEST(corrupt_bytes_are_told)
{
        static uint8_t garbage[8 * MIB];
        int fd;

        start_small(32 * MIB);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        fd = daemon_open_data(&fixture);
        memset(garbage, 0xff, sizeof(garbage));
        ck_assert_int_eq(pwrite(fd, garbage, sizeof(garbage), DATA_FROM), sizeof(garbage));
        ck_assert_int_eq(fsync(fd), 0);
        close(fd);
        ck_assert_uint_gt(daemon_verify(&fixture), 0);
        ask_why();
        expect_usable(0);
        expect_gap(1, HYBRID_ATTENTION, 0, "dropped", "CORRUPT");
        EXPECT_SENTENCE("boundary 1", "on NVMe", "failed their checksum");
        stop();
}
END_TEST

START_TEST(what_was_reclaimed_is_told)
{
        struct kvt_object named = {.flags = KVT_RECLAIM_PREFIX | KVT_RECLAIM_BELOW};

        start_small(0);
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        named.digest = prompt.digests[2];
        ck_assert_int_eq(hybrid_call(&engine, kvt_reclaim, 0, &named, 1).status, KVT_OK);
        ask_why();
        expect_usable(0);
        for (uint32_t boundary = 1; boundary <= 4; boundary++)
                expect_gap(boundary, HYBRID_ATTENTION, 1, "dropped", "RECLAIMED");
        EXPECT_SENTENCE("boundary 1", "marked as no longer wanted");
        stop();
}
END_TEST

START_TEST(a_device_that_fails_to_read_is_told)
{
        struct powerfs_mount *mount;
        const char *reason;

        if (!powerfs_is_available(&reason)) {
                fprintf(stderr, "skipped: %s\n", reason);
                return;
        }
        ck_assert_int_eq(powerfs_new(0, &mount), 0);
        start(&(struct daemon_options){
                .piece_bytes = 4 * MIB, .nvme_bytes = 32 * MIB, .nvme_folder = mount->mountpoint});
        hybrid_store_run(&engine, &prompt, 1, 4, HYBRID_ALL);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        ck_assert_int_eq(powerfs_command(mount, "fail-read 0 *"), 0);
        ck_assert_int_ne(hybrid_load(&engine, &prompt, 4), KVT_OK);
        ask_why();
        expect_usable(0);
        expect_gap(1, HYBRID_ATTENTION, 0, "dropped", "IO_ERROR");
        EXPECT_SENTENCE("boundary 1", "on NVMe", "the device failed to read it");
        hybrid_close(&engine);
        daemon_wait_number(&fixture, "leases", 0);
        /* The fixture looks for leftovers, of which the mount's server is none. */
        daemon_stop(&fixture);
        powerfs_free(mount);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_reservation_is_told_until_it_ends)
{
        struct kvt_object objects[HYBRID_GROUPS_MAX * HYBRID_SHARDS];
        size_t n;

        start_small(0);
        n = hybrid_objects(&engine, &prompt, 1, HYBRID_ALL, objects);
        ck_assert_int_eq(hybrid_call(&engine, kvt_reserve, 0, objects, n).status, KVT_OK);
        ask_why();
        expect_gap(1, HYBRID_ATTENTION, 0, "reserved", "");
        EXPECT_SENTENCE("reserved by its writer, not committed yet");
        ck_assert_int_eq(hybrid_call(&engine, kvt_abort, 0, objects, n).status, KVT_OK);
        ask_why();
        expect_gap(1, HYBRID_ATTENTION, 0, "refused", "ABORTED");
        stop();
}
END_TEST

START_TEST(a_limit_that_refused_a_store_is_named)
{
        static const char *const overrides[] = {"session.leases_max=2", NULL};
        struct daemon_options options = {.overrides = overrides};
        struct kvt_object objects[HYBRID_GROUPS_MAX * HYBRID_SHARDS];
        size_t n;

        start(&options);
        n = hybrid_objects(&engine, &prompt, 1, HYBRID_KV, objects);
        ck_assert_int_eq(hybrid_call(&engine, kvt_reserve, 0, objects, n).status, KVT_REFUSED);
        ask_why();
        expect_gap(1, HYBRID_INDEX, 0, "refused", "SESSION_LEASES");
        ck_assert_ptr_nonnull(
                strstr(text_of(gap_of(1, HYBRID_INDEX, 0), "text"), "session.leases_max"));
        ck_assert_int_eq(hybrid_call(&engine, kvt_abort, 0, objects, 2).status, KVT_OK);
        stop();
}
END_TEST

START_TEST(another_layout_that_has_the_prompt_is_shown_with_what_differs)
{
        struct kvt_layout layout = hybrid_layout();
        struct hybrid_engine other;
        const json_t *differences;

        start_small(0);
        layout.kv_dtype = "fp8";
        hybrid_open(&other, fixture.socket, &layout);
        hybrid_store_run(&other, &prompt, 1, 4, HYBRID_ALL);
        ask_why();
        expect_usable(0);
        differences = json_object_get(run_of(1), "differences");
        ck_assert_uint_eq(json_array_size(differences), 1);
        ck_assert_str_eq(text_of(json_array_get(differences, 0), "field"), "kv_dtype");
        EXPECT_SENTENCE("Layout ", "differs in kv_dtype (\"bf16\" here, \"fp8\" there)");
        hybrid_close(&other);
        stop();
}
END_TEST

/* ---- where the question comes from ---- */

static uint64_t session_id(void)
{
        json_t *sessions = daemon_ask(&fixture, "{\"command\":\"sessions\"}");
        uint64_t id =
                number_of(json_array_get(json_object_get(sessions, "sessions"), 0), "session");

        json_decref(sessions);
        return id;
}

static void ask_match(uint64_t session, unsigned nth)
{
        char command[128];

        snprintf(command, sizeof(command), "{\"command\":\"why\",\"session\":%llu,\"nth\":%u}",
                 (unsigned long long)session, nth);
        ask(command);
}

START_TEST(a_session_is_asked_for_what_its_matches_missed)
{
        struct hybrid_prompt later;
        uint64_t id;

        start_small(0);
        id = session_id();
        later = hybrid_prompt(&engine, 2, 2 * CHUNK + 1, NULL);
        ask_match(id, 0);
        ck_assert_ptr_nonnull(strstr(text_of(answer, "error"), "full hit"));
        hybrid_store_run(&engine, &prompt, 1, 3, HYBRID_ALL);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).boundaries, 3);
        ck_assert_uint_eq(hybrid_match(&engine, &prompt).boundaries, 3);
        ck_assert_uint_eq(hybrid_match(&engine, &later).boundaries, 0);
        ask_match(id, 1);
        ck_assert_msg(json_is_true(json_object_get(answer, "ok")), "%s", text_of(answer, "error"));
        ck_assert_uint_eq(number_of(json_object_get(answer, "match"), "times"), 2);
        ck_assert_uint_eq(number_of(json_object_get(answer, "match"), "boundaries"), 3);
        ck_assert_uint_eq(number_of(answer, "usable_boundaries"), 3);
        expect_gap(4, HYBRID_ATTENTION, 0, "never_stored", "");
        ask_match(id, 0);
        ck_assert_uint_eq(number_of(answer, "boundaries"), 2);
        ask_match(id, 2);
        ck_assert_ptr_nonnull(strstr(text_of(answer, "error"), "only 2 matches"));
        ask_match(id + 100, 0);
        ck_assert_ptr_nonnull(strstr(text_of(answer, "error"), "no attached session"));
        stop();
}
END_TEST

START_TEST(after_a_restart_the_layout_is_known_before_the_engine_is_back)
{
        struct hybrid_engine gone;

        start_small(32 * MIB);
        hybrid_store_run(&engine, &prompt, 1, 2, HYBRID_ALL);
        daemon_wait_written(&fixture);
        daemon_kill(&fixture);
        gone = engine;
        daemon_start(&fixture);
        ask_about(&gone, &prompt, prompt.n_tokens);
        ck_assert_uint_eq(number_of(answer, "usable_boundaries"), 2);
        ck_assert_uint_eq(number_of(run_of(1), "in_host"), 0);
        expect_gap(3, HYBRID_ATTENTION, 0, "never_stored", "");
        EXPECT_SENTENCE("what was not on NVMe when the daemon started is forgotten");
        stop();
}
END_TEST

START_TEST(questions_that_make_no_sense_are_refused)
{
        static const char *const commands[] = {
                "{\"command\":\"why\"}",
                "{\"command\":\"why\",\"layout\":\"ffff\",\"digests\":\"\"}",
                "{\"command\":\"why\",\"session\":\"x\"}",
                "{\"command\":\"why\",\"session\":1,\"nth\":-1}",
        };

        start_small(0);
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
                ask(commands[i]);
                ck_assert(json_is_false(json_object_get(answer, "ok")));
                ck_assert_str_ne(text_of(answer, "error"), "");
        }
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_full_hit_says_so,
                what_was_never_stored_is_told_with_the_first_gap,
                one_shard_that_was_removed_is_named,
                a_state_that_is_missing_is_told_apart_from_its_chunks,
                a_window_names_the_chunk_that_it_lacks,
                the_last_token_is_left_to_compute,
                eviction_is_told_with_its_tier_and_rule,
                eviction_from_nvme_is_told_after_that_from_host_memory,
                corrupt_bytes_are_told,
                what_was_reclaimed_is_told,
                a_device_that_fails_to_read_is_told,
                a_reservation_is_told_until_it_ends,
                a_limit_that_refused_a_store_is_named,
                another_layout_that_has_the_prompt_is_shown_with_what_differs,
                a_session_is_asked_for_what_its_matches_missed,
                after_a_restart_the_layout_is_known_before_the_engine_is_back,
                questions_that_make_no_sense_are_refused,
                NULL,
        };

        return flow_run("why", tests, 120);
}
