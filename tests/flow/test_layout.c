// SPDX-License-Identifier: Apache-2.0
/*
 * An engine of five processes, TP 2 x PP 2 and a scheduler, of which no one knows the whole
 * layout: a rank knows what its own shards hold, the scheduler nothing of that.
 */
#include <string.h>

#include "client/kvtier.h"
#include "proto/layout.h"
#include "proto/message.h"
#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/wire_client.h"

#define TIMEOUT_NS UINT64_C(60000000000)
#define N_RANKS    4u
#define SCHEDULER  4u /* knows no rows */
#define WHOLE      5u /* knows all */

static struct daemon_fixture fixture;
static struct kvt_session *sessions[6]; /* by rank */

/* What may be different from one process to another. */
struct tweak {
        uint64_t kv_bytes;    /* of a page on the ranks of the first stage; 0: 8192 */
        uint64_t last_bytes;  /* and of the last; 0: 4096 */
        const char *kv_dtype; /* NULL: "bf16" */
        const char *tensor;   /* NULL: "layers.0.k" */
        uint32_t chunk_tokens;
        uint8_t engine;
};

/* Ranks 0 and 1 hold two layers, ranks 2 and 3 the last one, which has no state. */
static void fill_rows(struct kvt_row *kv, struct kvt_row *state, unsigned rank,
                      const struct tweak *tweak, struct kvt_tensor tensors[3])
{
        bool first_stage = rank < 2;
        uint64_t bytes = tweak->kv_bytes ? tweak->kv_bytes : 8192;
        uint64_t last_bytes = tweak->last_bytes ? tweak->last_bytes : 4096;

        tensors[0] = (struct kvt_tensor){tweak->tensor ? tweak->tensor : "layers.0.k", "bf16",
                                         bytes / 2};
        tensors[1] = (struct kvt_tensor){"layers.1.k", "bf16", bytes / 2};
        tensors[2] = (struct kvt_tensor){"layers.2.k", "bf16", last_bytes};
        *kv = (struct kvt_row){
                .first_shard = rank,
                .page_bytes = first_stage ? bytes : last_bytes,
                .tensors = first_stage ? &tensors[0] : &tensors[2],
                .n_tensors = first_stage ? 2 : 1,
        };
        *state = (struct kvt_row){.first_shard = rank, .page_bytes = first_stage ? 70000 : 0};
}

static enum kvt_status open_tweaked(unsigned rank, const struct tweak *tweak, char why[512])
{
        struct kvt_tensor tensors[N_RANKS][3];
        struct kvt_row kv[N_RANKS], state[N_RANKS];
        unsigned first = rank < N_RANKS ? rank : 0;
        unsigned n_rows = rank < N_RANKS ? 1 : rank == WHOLE ? N_RANKS : 0;
        struct kvt_group groups[] = {
                {.name = "kv",
                 .kind = KVT_GROUP_ATTENTION,
                 .shards = N_RANKS,
                 .page_tokens = 16,
                 .rows = &kv[first],
                 .n_rows = n_rows},
                {.name = "state",
                 .kind = KVT_GROUP_STATE,
                 .shards = N_RANKS,
                 .rows = &state[first],
                 .n_rows = n_rows},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "hybrid",
                                    .kv_dtype = tweak->kv_dtype ? tweak->kv_dtype : "bf16",
                                    .chunk_tokens = tweak->chunk_tokens,
                                    .tp = 2,
                                    .pp = 2,
                                    .groups = groups,
                                    .n_groups = 2};
        uint8_t engine_id[16] = {[0] = 9, [15] = tweak->engine};
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = fixture.socket,
                .program = "engine",
                .layout = &layout,
                .engine_id = engine_id,
                .flags = rank == WHOLE ? 0 : KVT_OPEN_PARTIAL_LAYOUT,
                .rank = rank < N_RANKS ? rank : 0,
                .n_ranks = rank < N_RANKS ? N_RANKS : 0,
                .connect_timeout_ns = TIMEOUT_NS,
        };

        for (unsigned i = 0; i < N_RANKS; i++)
                fill_rows(&kv[i], &state[i], i, tweak, tensors[i]);
        return kvt_open(&sessions[rank], &options, why, 512);
}

static enum kvt_status open_rank(unsigned rank)
{
        char why[512] = "";

        return open_tweaked(rank, &(struct tweak){0}, why);
}

/* The ranks from @first on; the last one knows the last row. */
static void open_ranks(unsigned first, unsigned end)
{
        for (unsigned rank = first; rank < end; rank++)
                ck_assert_int_eq(open_rank(rank), rank + 1 < N_RANKS ? KVT_PENDING : KVT_OK);
}

static void close_rank(unsigned rank)
{
        if (sessions[rank])
                kvt_close(sessions[rank]);
        sessions[rank] = NULL;
}

static void start(void)
{
        daemon_fixture_init(&fixture, &(struct daemon_options){0});
}

static void stop(void)
{
        for (unsigned rank = 0; rank <= WHOLE; rank++)
                close_rank(rank);
        daemon_fixture_deinit(&fixture);
}

static struct kvt_session_info info_of(unsigned rank)
{
        struct kvt_session_info info = {.size = sizeof(info)};

        ck_assert_int_eq(kvt_session_info(sessions[rank], &info), KVT_OK);
        return info;
}

static void expect_pending(unsigned rank)
{
        struct kvt_session_info info = info_of(rank);

        ck_assert_uint_eq(info.attached, 1);
        ck_assert_uint_eq(info.pending, 1);
        ck_assert_int_eq(kvt_wait_attached(sessions[rank], 0), KVT_PENDING);
}

static void wait_whole(unsigned rank)
{
        ck_assert_int_eq(kvt_wait_attached(sessions[rank], TIMEOUT_NS), KVT_OK);
        ck_assert_uint_eq(info_of(rank).pending, 0);
}

static void expect_same_layout(unsigned a, unsigned b)
{
        struct kvt_session_info one = info_of(a), other = info_of(b);

        ck_assert_mem_eq(one.layout_id, other.layout_id, sizeof(one.layout_id));
        ck_assert_uint_eq(one.chunk_tokens, other.chunk_tokens);
        ck_assert_uint_ne(one.chunk_tokens, 0);
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static uint32_t run(unsigned rank, submit_fn submit, struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t id;

        ck_assert_int_eq(submit(sessions[rank], &call, objects, n, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(sessions[rank], id, &completion, TIMEOUT_NS), KVT_OK);
        ck_assert_uint_eq(completion.flags, 0);
        return completion.status;
}

/* The chunk and the state of @rank's shard at the first boundary. */
static void name_objects(struct kvt_object objects[2], unsigned rank, uint32_t chunk_tokens)
{
        for (uint16_t group = 0; group < 2; group++)
                objects[group] = (struct kvt_object){
                        .digest = {{1, 2, 3}},
                        .group = group,
                        .shard = (uint16_t)rank,
                        .boundary_tokens = chunk_tokens,
                        .bytes = rank < 2 ? 70000 : 5000 + rank,
                };
        objects[0].bytes = (uint64_t)chunk_tokens / 16 * (rank < 2 ? 8192 : 4096);
}

static void store(unsigned rank)
{
        struct kvt_object objects[2];

        name_objects(objects, rank, info_of(rank).chunk_tokens);
        ck_assert_uint_eq(run(rank, kvt_reserve, objects, 2), KVT_OK);
        ck_assert_uint_eq(run(rank, kvt_commit, objects, 2), KVT_OK);
}

static uint32_t matched_boundaries(unsigned rank)
{
        struct kvt_digest digest = {{1, 2, 3}};
        struct kvt_match_query query = {.size = sizeof(query), .digests = &digest, .n_digests = 1};
        struct kvt_match match = {.size = sizeof(match)};

        ck_assert_int_eq(kvt_match(sessions[rank], &query, &match), KVT_OK);
        return match.boundaries;
}

START_TEST(ranks_derive_the_id_that_one_who_knows_all_derives)
{
        struct tweak other_engine = {.engine = 1};
        char why[512];

        start();
        ck_assert_int_eq(open_rank(SCHEDULER), KVT_PENDING);
        open_ranks(0, 3);
        for (unsigned rank = 0; rank < 3; rank++)
                expect_pending(rank);
        expect_pending(SCHEDULER);
        ck_assert_int_eq(open_rank(3), KVT_OK);
        for (unsigned rank = 0; rank <= SCHEDULER; rank++)
                wait_whole(rank);
        ck_assert_int_eq(open_tweaked(WHOLE, &other_engine, why), KVT_OK);
        for (unsigned rank = 0; rank <= SCHEDULER; rank++)
                expect_same_layout(rank, WHOLE);
        stop();
}
END_TEST

START_TEST(what_ranks_store_is_matched_by_the_scheduler_and_by_other_engines)
{
        struct tweak other_engine = {.engine = 1};
        char why[512];

        start();
        ck_assert_int_eq(open_rank(SCHEDULER), KVT_PENDING);
        open_ranks(0, N_RANKS);
        wait_whole(SCHEDULER);
        for (unsigned rank = 0; rank < N_RANKS; rank++) {
                wait_whole(rank);
                ck_assert_uint_eq(matched_boundaries(SCHEDULER), 0);
                store(rank);
        }
        ck_assert_uint_eq(matched_boundaries(SCHEDULER), 1);
        ck_assert_int_eq(open_tweaked(WHOLE, &other_engine, why), KVT_OK);
        ck_assert_uint_eq(matched_boundaries(WHOLE), 1);
        stop();
}
END_TEST

START_TEST(until_the_layout_is_whole_matches_miss_and_calls_end_pending)
{
        static const uint8_t token[16] = {1};
        const submit_fn submits[] = {kvt_reserve, kvt_acquire};
        struct kvt_call polled = {.size = sizeof(polled)};
        struct kvt_completion completion;
        struct kvt_object objects[2];
        uint64_t id;

        start();
        ck_assert_int_eq(open_rank(0), KVT_PENDING);
        for (size_t i = 0; i < 2; i++) {
                name_objects(objects, 0, 16);
                ck_assert_uint_eq(run(0, submits[i], objects, 2), KVT_PENDING);
                for (size_t j = 0; j < 2; j++) {
                        ck_assert_uint_eq(objects[j].status, KVT_PENDING);
                        ck_assert_uint_eq(objects[j].lease, 0);
                        ck_assert_uint_eq(objects[j].n_segments, 0);
                }
        }
        ck_assert_int_eq(kvt_adopt(sessions[0], &polled, token, objects, 2, &id), KVT_OK);
        ck_assert_uint_eq(kvt_wait(sessions[0], &completion, 1, TIMEOUT_NS), 1);
        ck_assert_uint_eq(completion.call, id);
        ck_assert_uint_eq(completion.status, KVT_PENDING);
        ck_assert_uint_eq(matched_boundaries(0), 0);

        open_ranks(1, N_RANKS);
        wait_whole(0);
        store(0);
        stop();
}
END_TEST

/* Of all sessions, as kvtierctl tells it. */
static void expect_states(const char *state)
{
        json_t *answer = daemon_ask(&fixture, "{\"command\":\"sessions\"}");
        const json_t *session;
        size_t i;

        ck_assert_ptr_nonnull(answer);
        ck_assert_uint_gt(json_array_size(json_object_get(answer, "sessions")), 2);
        json_array_foreach(json_object_get(answer, "sessions"), i, session)
                ck_assert_str_eq(json_string_value(json_object_get(session, "state")), state);
        json_decref(answer);
}

START_TEST(pending_says_which_row_is_missing)
{
        char why[512];

        start();
        open_ranks(0, 2);
        ck_assert_int_eq(open_tweaked(3, &(struct tweak){0}, why), KVT_PENDING);
        ck_assert_ptr_nonnull(strstr(why, "group 0 \"kv\""));
        ck_assert_ptr_nonnull(strstr(why, "shard 2"));
        ck_assert_str_eq(info_of(3).last_error, why);
        daemon_wait_log(&fixture, "layout_pending", "shard 2");
        expect_states("pending");
        ck_assert_int_eq(open_rank(2), KVT_OK);
        expect_states("attached");
        stop();
}
END_TEST

static void expect_refused(unsigned rank, struct tweak tweak, const char *place, const char *other)
{
        char why[512] = "";

        ck_assert_int_eq(open_tweaked(rank, &tweak, why), KVT_REFUSED);
        ck_assert_ptr_null(sessions[rank]);
        ck_assert_msg(strstr(why, place), "\"%s\" lacks \"%s\"", why, place);
        ck_assert_msg(strstr(why, other), "\"%s\" lacks \"%s\"", why, other);
}

START_TEST(a_contradiction_is_refused_with_both_ranks_and_the_field)
{
        struct tweak whole = {.kv_bytes = 16384};

        start();
        open_ranks(0, 3);
        expect_refused(SCHEDULER, (struct tweak){.kv_dtype = "fp8"}, "kv_dtype: session",
                       "engine) says \"fp8\"");
        expect_refused(WHOLE, whole, "group 0 \"kv\", shard 0: page_bytes: session",
                       "engine) says 16384");
        expect_refused(WHOLE, whole, "(rank 0 of 4, pid", "engine) of its engine says 8192");
        expect_refused(WHOLE, (struct tweak){.tensor = "layers.9.k"}, "shard 0: tensors: session",
                       "layers.9.k bf16 4096");
        for (unsigned rank = 0; rank < 3; rank++)
                expect_pending(rank);
        ck_assert_int_eq(open_rank(3), KVT_OK);
        for (unsigned rank = 0; rank < N_RANKS; rank++)
                wait_whole(rank);
        stop();
}
END_TEST

START_TEST(chunks_are_what_one_asks_for_unless_two_disagree)
{
        char why[512];

        start();
        ck_assert_int_eq(open_tweaked(0, &(struct tweak){.chunk_tokens = 48}, why), KVT_PENDING);
        expect_refused(1, (struct tweak){.chunk_tokens = 64}, "chunk_tokens: session",
                       "(rank 0 of 4, pid");
        open_ranks(1, N_RANKS);
        wait_whole(1);
        ck_assert_uint_eq(info_of(1).chunk_tokens, 48);
        expect_refused(SCHEDULER, (struct tweak){.chunk_tokens = 64}, "chunk_tokens", "says 48");
        stop();
}
END_TEST

static void hold_rank_2(struct child *self, void *argument)
{
        char why[512];

        child_hear(self);
        ck_assert_int_eq(open_tweaked(2, argument, why), KVT_PENDING);
        child_say(self, 1);
        child_hear(self);
}

START_TEST(rows_of_a_rank_that_dies_too_early_are_forgotten)
{
        struct tweak other = {.last_bytes = 2048};
        struct child child;

        start();
        child_start(&child, hold_rank_2, &other);
        open_ranks(0, 2);
        child_say(&child, 1);
        child_hear(&child);
        daemon_wait_number(&fixture, "sessions", 3);
        child_kill(&child);
        daemon_wait_number(&fixture, "sessions", 2);
        ck_assert_int_eq(open_rank(3), KVT_PENDING);
        for (unsigned rank = 0; rank < 4; rank++)
                if (rank != 2)
                        expect_pending(rank);
        ck_assert_int_eq(open_rank(2), KVT_OK);
        wait_whole(3);
        stop();
}
END_TEST

START_TEST(a_rank_that_comes_back_changed_before_the_end_is_taken)
{
        struct tweak other = {.kv_bytes = 16384};
        char why[512];

        start();
        ck_assert_int_eq(open_rank(0), KVT_PENDING);
        close_rank(0);
        daemon_wait_number(&fixture, "sessions", 0);
        ck_assert_int_eq(open_tweaked(0, &other, why), KVT_PENDING);
        ck_assert_int_eq(open_tweaked(1, &other, why), KVT_PENDING);
        open_ranks(2, N_RANKS);
        wait_whole(0);
        stop();
}
END_TEST

START_TEST(a_whole_layout_outlives_the_rank_that_completed_it)
{
        struct tweak other = {.kv_bytes = 16384};
        char why[512];

        start();
        open_ranks(0, N_RANKS);
        wait_whole(1);
        close_rank(0);
        daemon_wait_number(&fixture, "sessions", 3);
        ck_assert_int_eq(open_rank(SCHEDULER), KVT_OK);
        expect_refused(0, other, "group 0 \"kv\", shard 0: page_bytes: session",
                       "says 16384, the whole layout of its engine says 8192");
        ck_assert_int_eq(open_rank(0), KVT_OK);
        expect_same_layout(0, SCHEDULER);

        for (unsigned rank = 0; rank <= SCHEDULER; rank++)
                close_rank(rank);
        daemon_wait_number(&fixture, "sessions", 0);
        ck_assert_int_eq(open_tweaked(WHOLE, &other, why), KVT_OK);
        stop();
}
END_TEST

START_TEST(one_who_knows_all_completes_the_others)
{
        start();
        ck_assert_int_eq(open_rank(2), KVT_PENDING);
        ck_assert_int_eq(open_rank(WHOLE), KVT_OK);
        wait_whole(2);
        expect_same_layout(2, WHOLE);
        ck_assert_int_eq(open_rank(SCHEDULER), KVT_OK);
        expect_same_layout(SCHEDULER, WHOLE);
        stop();
}
END_TEST

START_TEST(a_daemon_that_restarts_puts_the_layout_together_again)
{
        struct kvt_session_info before;

        start();
        ck_assert_int_eq(open_rank(SCHEDULER), KVT_PENDING);
        open_ranks(0, 3);
        daemon_kill(&fixture);
        daemon_start(&fixture);
        daemon_wait_number(&fixture, "sessions", 4);
        ck_assert_int_eq(open_rank(3), KVT_OK);
        for (unsigned rank = 0; rank <= SCHEDULER; rank++)
                wait_whole(rank);

        before = info_of(SCHEDULER);
        daemon_kill(&fixture);
        daemon_start(&fixture);
        daemon_wait_number(&fixture, "sessions", 5);
        for (unsigned rank = 0; rank <= SCHEDULER; rank++) {
                wait_whole(rank);
                if (rank < N_RANKS)
                        store(rank);
        }
        ck_assert_uint_eq(info_of(SCHEDULER).reconnects, before.reconnects + 1);
        ck_assert_mem_eq(info_of(SCHEDULER).layout_id, before.layout_id, 32);
        ck_assert_uint_eq(matched_boundaries(SCHEDULER), 1);
        stop();
}
END_TEST

/* A layout of which nothing is known but that it has one group of one shard. */
static void attach_partially(struct wire_client *client)
{
        struct wire_attach attach = {.header = wire_client_header(client, WIRE_ATTACH),
                                     .engine_id = {3}};
        static struct layout layout = {
                .model = {"wire", 4},
                .tp = 1,
                .pp = 1,
                .cp = 1,
                .n_groups = 1,
                .is_partial = true,
                .groups = {{.name = {"state", 5}, .kind = LAYOUT_STATE, .n_shards = 1}},
        };
        uint8_t encoding[256];
        struct message_builder builder;
        int length = layout_encode(&layout, encoding, sizeof(encoding));

        ck_assert_int_gt(length, 0);
        attach.layout_bytes = (uint32_t)length;
        message_builder_init(&builder, client->out, &attach, sizeof(attach));
        ck_assert(!message_append(&builder, encoding, attach.layout_bytes, 0));
        ck_assert(wire_client_send(client, client->out, builder.length));
}

START_TEST(the_daemon_answers_pending_to_those_who_ask_too_early)
{
        static struct wire_client client;
        const struct wire_attached *attached;
        struct wire_object object = wire_object(1, 4096);

        start();
        ck_assert(wire_client_connect(&client, fixture.socket));
        ck_assert_uint_eq(wire_client_hello(&client, 0), KVT_OK);
        attach_partially(&client);
        attached = (const void *)wire_client_receive(&client);
        ck_assert_ptr_nonnull(attached);
        ck_assert_uint_eq(attached->header.kind, WIRE_ATTACHED);
        ck_assert_uint_eq(attached->status, KVT_PENDING);
        ck_assert_uint_eq(attached->layout, 0);
        object.group = 0;
        wire_client_reserve(&client, 0, &object, 1);
        ck_assert_uint_eq(object.status, KVT_PENDING);
        ck_assert_uint_eq(object.lease, 0);
        ck_assert_uint_eq(wire_client_acquire(&client, 0, NULL, &object, 1), KVT_PENDING);
        client.layout = 1;
        wire_client_reserve(&client, 0, &object, 1);
        ck_assert_uint_eq(object.status, KVT_GONE);
        wire_client_close(&client);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                ranks_derive_the_id_that_one_who_knows_all_derives,
                what_ranks_store_is_matched_by_the_scheduler_and_by_other_engines,
                until_the_layout_is_whole_matches_miss_and_calls_end_pending,
                pending_says_which_row_is_missing,
                a_contradiction_is_refused_with_both_ranks_and_the_field,
                chunks_are_what_one_asks_for_unless_two_disagree,
                rows_of_a_rank_that_dies_too_early_are_forgotten,
                a_rank_that_comes_back_changed_before_the_end_is_taken,
                a_whole_layout_outlives_the_rank_that_completed_it,
                one_who_knows_all_completes_the_others,
                a_daemon_that_restarts_puts_the_layout_together_again,
                the_daemon_answers_pending_to_those_who_ask_too_early,
                NULL,
        };

        return flow_run("layout", tests, 120);
}
