// SPDX-License-Identifier: Apache-2.0
/* Each call of libkvtier against a real daemon, alone and together. */
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"

#define MIB        (UINT64_C(1) << 20)
#define SECONDS(n) ((n)*UINT64_C(1000000000))
#define N_TOKENS   1000u

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static struct daemon_fixture fixture;
static struct kvt_session *a, *b; /* two processes of one engine, so to speak */

static struct kvt_session *open_session(uint32_t chunk_tokens)
{
        static const uint8_t engine_id[16] = {7};
        static const struct kvt_group groups[] = {
                {.name = "kv", .kind = KVT_GROUP_ATTENTION, .page_tokens = 16, .page_bytes = 4096},
                {.name = "state", .kind = KVT_GROUP_STATE, .shards = 2},
        };
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "library",
                                    .chunk_tokens = chunk_tokens,
                                    .groups = groups,
                                    .n_groups = 2};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = fixture.socket,
                                      .layout = &layout,
                                      .engine_id = engine_id,
                                      .connect_timeout_ns = SECONDS(60)};
        struct kvt_session *session;
        char why[256];

        ck_assert_msg(kvt_open(&session, &options, why, sizeof(why)) == KVT_OK, "%s", why);
        return session;
}

static void start(uint64_t nvme_bytes)
{
        struct daemon_options options = {.nvme_bytes = nvme_bytes};

        daemon_fixture_init(&fixture, &options);
        a = open_session(64);
        b = open_session(64);
}

static void stop(void)
{
        kvt_close(a);
        kvt_close(b);
        daemon_fixture_deinit(&fixture);
}

static struct kvt_object object(uint8_t name, uint16_t group, uint16_t shard, uint64_t bytes)
{
        return (struct kvt_object){
                .digest = {{name, 1}},
                .group = group,
                .shard = shard,
                .boundary_tokens = 64,
                .bytes = bytes,
        };
}

static struct kvt_completion finish(struct kvt_session *session, uint64_t call)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(session, call, &completion, SECONDS(60)), KVT_OK);
        return completion;
}

static struct kvt_completion run(struct kvt_session *session, submit_fn submit,
                                 struct kvt_object *objects, size_t n, struct kvt_call call)
{
        uint64_t id;

        call.size = sizeof(call);
        call.flags |= KVT_CALL_WAITED;
        ck_assert_int_eq(submit(session, &call, objects, n, &id), KVT_OK);
        return finish(session, id);
}

static uint32_t run_plain(struct kvt_session *session, submit_fn submit, struct kvt_object *objects,
                          size_t n)
{
        return run(session, submit, objects, n, (struct kvt_call){0}).status;
}

static void fill(const struct kvt_object *objects, size_t n)
{
        for (size_t i = 0; i < n; i++)
                for (uint32_t j = 0; j < objects[i].n_segments; j++)
                        memset(objects[i].segments[j].address, (int)i + 1,
                               objects[i].segments[j].bytes);
}

/* A boundary's chunk and both shards of its state, stored as one set. */
static void store_boundary(uint8_t name)
{
        struct kvt_object objects[3] = {object(name, 0, 0, 16384), object(name, 1, 0, 777),
                                        object(name, 1, 1, 100000)};
        struct kvt_call set = {.set = 5};

        ck_assert_uint_eq(run(a, kvt_reserve, objects, 3, set).status, KVT_OK);
        fill(objects, 3);
        ck_assert_uint_eq(run(a, kvt_commit, objects, 3, set).status, KVT_OK);
}

static struct kvt_match match(struct kvt_session *session, uint8_t name)
{
        struct kvt_object named = object(name, 0, 0, 0);
        struct kvt_match_query query = {
                .size = sizeof(query), .digests = &named.digest, .n_digests = 1};
        struct kvt_match found = {.size = sizeof(found)};

        ck_assert_int_eq(kvt_match(session, &query, &found), KVT_OK);
        return found;
}

START_TEST(a_match_sees_a_boundary_when_all_of_it_is_committed)
{
        start(0);
        ck_assert_uint_eq(match(b, 1).boundaries, 0);
        store_boundary(1);
        ck_assert_uint_eq(match(b, 1).boundaries, 1);
        ck_assert_uint_eq(match(b, 1).tokens, 64);
        ck_assert_uint_eq(match(b, 1).resident_boundaries, 1);
        stop();
}
END_TEST

START_TEST(an_acquire_gives_the_bytes_and_checksums_that_tell_a_change)
{
        struct kvt_object objects[3] = {object(1, 0, 0, 0), object(1, 1, 0, 0), object(1, 1, 1, 0)};
        struct kvt_call call = {.flags = KVT_CALL_CHECKSUMS};
        uint8_t bytes[777], *first;

        start(0);
        store_boundary(1);
        ck_assert_uint_eq(run(b, kvt_acquire, objects, 3, call).status, KVT_OK);
        ck_assert_uint_eq(objects[1].bytes, 777);
        ck_assert_int_eq(kvt_read(&objects[1], 0, bytes, 777), KVT_OK);
        ck_assert_uint_eq(bytes[0], 2);
        ck_assert_uint_eq(bytes[776], 2);
        ck_assert_int_eq(kvt_verify(b, &objects[2]), KVT_OK);
        first = objects[2].segments[0].address;
        first[5] ^= 1;
        ck_assert_int_eq(kvt_verify(b, &objects[2]), KVT_CORRUPT);
        first[5] ^= 1;
        ck_assert_uint_eq(run_plain(b, kvt_release, objects, 3), KVT_OK);
        ck_assert_ptr_null(objects[2].segments);
        stop();
}
END_TEST

START_TEST(an_acquire_is_all_or_nothing_unless_told_otherwise)
{
        struct kvt_object objects[2] = {object(1, 0, 0, 0), object(2, 0, 0, 0)};
        struct kvt_completion completion;

        start(0);
        store_boundary(1);
        ck_assert_uint_eq(run_plain(b, kvt_acquire, objects, 2), KVT_MISS);
        ck_assert_uint_eq(objects[0].lease, 0);
        completion = run(b, kvt_acquire, objects, 2, (struct kvt_call){.flags = KVT_CALL_PARTIAL});
        ck_assert_uint_eq(completion.status, KVT_OK);
        ck_assert_uint_eq(completion.n_granted, 1);
        ck_assert_uint_eq(objects[1].status, KVT_MISS);
        ck_assert_uint_eq(run_plain(b, kvt_release, objects, 1), KVT_OK);
        stop();
}
END_TEST

static uint32_t adopt(const uint8_t token[16], struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        uint64_t id;

        ck_assert_int_eq(kvt_adopt(b, &call, token, objects, n, &id), KVT_OK);
        return finish(b, id).status;
}

START_TEST(an_adopter_holds_a_lease_of_its_own)
{
        struct kvt_object objects[3] = {object(1, 0, 0, 0), object(1, 1, 0, 0), object(1, 1, 1, 0)};
        struct kvt_object mine = object(1, 1, 1, 0), late = mine;
        struct kvt_completion granted;

        start(0);
        store_boundary(1);
        granted = run(a, kvt_acquire, objects, 3, (struct kvt_call){0});
        ck_assert_uint_eq(adopt(granted.token, &mine, 1), KVT_OK);
        ck_assert_uint_eq(run_plain(a, kvt_release, objects, 3), KVT_OK);
        ck_assert_uint_eq(mine.bytes, 100000);
        ck_assert_uint_eq(*(uint8_t *)mine.segments[0].address, 3);
        ck_assert_uint_eq(run_plain(b, kvt_release, &mine, 1), KVT_OK);
        ck_assert_uint_eq(adopt(granted.token, &late, 1), KVT_GONE);
        stop();
}
END_TEST

START_TEST(a_waiting_acquire_can_be_served_and_cancelled)
{
        struct kvt_object writer = object(1, 0, 0, 16384), reader = object(1, 0, 0, 0);
        struct kvt_call call = {.size = sizeof(call),
                                .flags = KVT_CALL_WAITED | KVT_CALL_WAIT,
                                .timeout_ns = SECONDS(60)};
        struct kvt_call waited = {.size = sizeof(waited), .flags = KVT_CALL_WAITED};
        uint64_t acquire, cancel;

        start(0);
        ck_assert_uint_eq(run_plain(a, kvt_reserve, &writer, 1), KVT_OK);
        ck_assert_int_eq(kvt_acquire(b, &call, &reader, 1, &acquire), KVT_OK);
        ck_assert_int_eq(kvt_cancel(b, &waited, acquire, &cancel), KVT_OK);
        ck_assert_uint_eq(finish(b, cancel).status, KVT_OK);
        ck_assert_uint_eq(finish(b, acquire).status, KVT_CANCELLED);

        ck_assert_int_eq(kvt_acquire(b, &call, &reader, 1, &acquire), KVT_OK);
        ck_assert_uint_eq(run_plain(a, kvt_commit, &writer, 1), KVT_OK);
        ck_assert_uint_eq(finish(b, acquire).status, KVT_OK);
        ck_assert_uint_eq(run_plain(b, kvt_release, &reader, 1), KVT_OK);
        stop();
}
END_TEST

START_TEST(a_batch_of_thousands_is_one_call)
{
        enum { N = 3000 };
        static struct kvt_object objects[N];

        start(0);
        for (uint32_t i = 0; i < N; i++) {
                objects[i] = object(9, 1, 0, 100);
                memcpy(&objects[i].digest.bytes[8], &i, sizeof(i));
        }
        ck_assert_uint_eq(run_plain(a, kvt_reserve, objects, N), KVT_OK);
        ck_assert_uint_eq(run_plain(a, kvt_commit, objects, N), KVT_OK);
        ck_assert_uint_eq(run(b, kvt_acquire, objects, N, (struct kvt_call){0}).n_granted, N);
        ck_assert_uint_eq(run_plain(b, kvt_release, objects, N), KVT_OK);
        daemon_wait_number(&fixture, "leases", 0);
        stop();
}
END_TEST

START_TEST(what_lies_on_nvme_is_pending_and_then_there)
{
        struct kvt_object loaded = object(1, 1, 1, 0);
        struct kvt_completion completion;

        start(64 * MIB);
        store_boundary(1);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        ck_assert_uint_eq(match(b, 1).boundaries, 1);
        ck_assert_uint_eq(match(b, 1).resident_boundaries, 0);
        ck_assert_int_eq(kvt_acquire(b, NULL, &loaded, 1, NULL), KVT_OK);
        do {
                ck_assert_uint_eq(kvt_wait(b, &completion, 1, SECONDS(60)), 1);
                ck_assert_uint_eq(completion.status, KVT_OK);
                if (completion.flags & KVT_COMPLETION_MORE)
                        ck_assert_uint_eq(loaded.status, KVT_PENDING);
        } while (completion.flags & KVT_COMPLETION_MORE);
        ck_assert_uint_eq(loaded.status, KVT_OK);
        ck_assert_uint_eq(*(uint8_t *)loaded.segments[0].address, 3);
        ck_assert_uint_eq(run_plain(b, kvt_release, &loaded, 1), KVT_OK);
        stop();
}
END_TEST

START_TEST(close_leaves_no_lease_behind)
{
        struct kvt_object held[2] = {object(1, 1, 1, 0), object(2, 0, 0, 16384)};

        start(0);
        store_boundary(1);
        ck_assert_uint_eq(run_plain(b, kvt_acquire, &held[0], 1), KVT_OK);
        ck_assert_uint_eq(run_plain(b, kvt_reserve, &held[1], 1), KVT_OK);
        kvt_close(b);
        b = NULL;
        /* This process lives on: what was not given back would stay in quarantine. */
        daemon_wait_number(&fixture, "leases", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "quarantined"), 0);
        stop();
}
END_TEST

START_TEST(a_lease_outlives_the_daemon_and_the_session_comes_back)
{
        struct kvt_object held = object(1, 1, 1, 0);
        struct kvt_session_info info = {.size = sizeof(info)};

        start(0);
        store_boundary(1);
        ck_assert_uint_eq(run_plain(b, kvt_acquire, &held, 1), KVT_OK);
        daemon_kill(&fixture);
        ck_assert_uint_eq(*(uint8_t *)held.segments[0].address, 3);
        daemon_start(&fixture);
        do {
                daemon_pause();
                ck_assert_int_eq(kvt_session_info(a, &info), KVT_OK);
        } while (!info.attached);
        ck_assert_uint_eq(match(a, 1).boundaries, 0);
        store_boundary(1);
        ck_assert_uint_eq(*(uint8_t *)held.segments[0].address, 3);
        ck_assert_uint_eq(run_plain(b, kvt_release, &held, 1), KVT_GONE);
        stop();
}
END_TEST

static struct kvt_blob blob_of(const uint32_t *tokens, size_t n, uint32_t flags)
{
        return (struct kvt_blob){.size = sizeof(struct kvt_blob),
                                 .tokens = tokens,
                                 .n_tokens = n,
                                 .group = 1,
                                 .flags = flags};
}

START_TEST(a_blob_is_found_by_its_end_and_a_croppable_one_by_every_boundary)
{
        static uint32_t tokens[N_TOKENS];
        static uint8_t bytes[100000], back[100000];
        struct kvt_blob whole = blob_of(tokens, 900, KVT_CROPPABLE);
        struct kvt_blob plain = blob_of(tokens, 130, 0);
        struct kvt_blob wanted = blob_of(tokens, N_TOKENS, 0);
        uint64_t length;
        size_t found;

        start(0);
        for (uint32_t i = 0; i < N_TOKENS; i++)
                tokens[i] = i * i;
        memset(bytes, 5, sizeof(bytes));
        ck_assert_int_eq(kvt_blob_find(b, &wanted, &found), KVT_MISS);
        ck_assert_int_eq(kvt_blob_put(a, &plain, bytes, 1000), KVT_OK);
        ck_assert_int_eq(kvt_blob_find(b, &wanted, &found), KVT_OK);
        ck_assert_uint_eq(found, 130);
        ck_assert_int_eq(kvt_blob_put(a, &whole, bytes, sizeof(bytes)), KVT_OK);
        ck_assert_int_eq(kvt_blob_put(a, &whole, bytes, sizeof(bytes)), KVT_ALREADY_HAVE);
        ck_assert_int_eq(kvt_blob_get(b, &wanted, back, sizeof(back), &length, &found), KVT_OK);
        ck_assert_uint_eq(found, 900);
        ck_assert_uint_eq(length, sizeof(bytes));
        ck_assert_mem_eq(back, bytes, sizeof(bytes));

        wanted.n_tokens = 800;
        ck_assert_int_eq(kvt_blob_get(b, &wanted, back, sizeof(back), &length, &found), KVT_OK);
        ck_assert_uint_eq(found, 800 / 64 * 64);
        ck_assert_int_eq(kvt_blob_get(b, &wanted, back, 10, &length, &found), KVT_TOO_LARGE);
        ck_assert_uint_eq(length, sizeof(bytes));
        tokens[0]++;
        ck_assert_int_eq(kvt_blob_find(b, &wanted, &found), KVT_MISS);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_match_sees_a_boundary_when_all_of_it_is_committed,
                an_acquire_gives_the_bytes_and_checksums_that_tell_a_change,
                an_acquire_is_all_or_nothing_unless_told_otherwise,
                an_adopter_holds_a_lease_of_its_own,
                a_waiting_acquire_can_be_served_and_cancelled,
                a_batch_of_thousands_is_one_call,
                what_lies_on_nvme_is_pending_and_then_there,
                close_leaves_no_lease_behind,
                a_lease_outlives_the_daemon_and_the_session_comes_back,
                a_blob_is_found_by_its_end_and_a_croppable_one_by_every_boundary,
                NULL,
        };

        return flow_run("library", tests, 120);
}
