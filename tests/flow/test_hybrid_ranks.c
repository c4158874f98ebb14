// SPDX-License-Identifier: Apache-2.0
/*
 * An engine of three processes: a scheduler that matches and two ranks of a pipeline, which
 * hold different layers and move the bytes. None of them knows the whole layout.
 */
#include <string.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/hybrid_engine.h"

#define MIB     (UINT64_C(1) << 20)
#define CHUNK   HYBRID_CHUNK_TOKENS
#define N_RANKS 2u
#define MEMBERS 2u /* objects of one rank at a boundary */

enum { KV, STATE, N_GROUPS };

static const uint8_t engine_id[16] = "a pipeline of 2";

static struct daemon_fixture fixture;
static struct hybrid_engine scheduler, ranks[N_RANKS], whole;
static struct hybrid_prompt prompt;

/* Rank 0 has twice the layers of rank 1. */
static const struct kvt_row rows[N_GROUPS][N_RANKS] = {
        {{.first_shard = 0, .page_bytes = 8192}, {.first_shard = 1, .page_bytes = 4096}},
        {{.first_shard = 0}, {.first_shard = 1}},
};

/* With the rows of one rank, of all (N_RANKS), or of none (-1). */
static struct kvt_layout layout_of(int rank, struct kvt_group *groups)
{
        struct kvt_layout layout = hybrid_layout();

        groups[KV] = (struct kvt_group){
                .name = "kv", .kind = KVT_GROUP_ATTENTION, .shards = N_RANKS, .page_tokens = 16};
        groups[STATE] =
                (struct kvt_group){.name = "state", .kind = KVT_GROUP_STATE, .shards = N_RANKS};
        for (unsigned i = 0; rank >= 0 && i < N_GROUPS; i++) {
                groups[i].rows = (unsigned)rank == N_RANKS ? rows[i] : &rows[i][rank];
                groups[i].n_rows = (unsigned)rank == N_RANKS ? N_RANKS : 1;
        }
        layout.pp = N_RANKS;
        layout.groups = groups;
        layout.n_groups = N_GROUPS;
        return layout;
}

static enum kvt_status open_process(struct hybrid_engine *engine, int rank)
{
        static struct kvt_group groups[N_RANKS + 2][N_GROUPS];
        struct kvt_layout layout = layout_of(rank, groups[rank + 1]);
        struct kvt_options options = {
                .engine_id = engine_id,
                .rank = rank < 0 ? 0 : (uint32_t)rank,
                .n_ranks = N_RANKS,
                .flags = KVT_OPEN_PARTIAL_LAYOUT,
        };

        return hybrid_open_rank(engine, fixture.socket, &layout, &options);
}

/* An engine of one process that knows all of it. */
static void open_whole(void)
{
        static struct kvt_group groups[N_GROUPS];
        struct kvt_layout layout = layout_of(N_RANKS, groups);

        hybrid_open(&whole, fixture.socket, &layout);
        prompt = hybrid_prompt(&whole, 1, 3 * CHUNK + 1, NULL);
}

static void wait_for_all(void)
{
        ck_assert_int_eq(kvt_wait_attached(scheduler.session, FLOW_TIMEOUT_NS), KVT_OK);
        for (unsigned i = 0; i < N_RANKS; i++)
                ck_assert_int_eq(kvt_wait_attached(ranks[i].session, FLOW_TIMEOUT_NS), KVT_OK);
}

static void start(void)
{
        struct daemon_options options = {.piece_bytes = 8 * MIB, .nvme_bytes = 32 * MIB};

        daemon_fixture_init(&fixture, &options);
        open_whole();
        ck_assert_int_eq(open_process(&scheduler, -1), KVT_PENDING);
        ck_assert_int_eq(open_process(&ranks[0], 0), KVT_PENDING);
        open_process(&ranks[1], 1);
        wait_for_all();
}

static void stop(void)
{
        hybrid_close(&whole);
        hybrid_close(&scheduler);
        for (unsigned i = 0; i < N_RANKS; i++)
                hybrid_close(&ranks[i]);
        daemon_wait_number(&fixture, "leases", 0);
        daemon_fixture_deinit(&fixture);
}

static size_t members_of(unsigned rank, uint32_t boundary, struct kvt_object *ret_members)
{
        struct kvt_object objects[N_RANKS * N_GROUPS];
        size_t n = hybrid_objects(&whole, &prompt, boundary, HYBRID_ALL, objects), n_members = 0;

        for (size_t i = 0; i < n; i++)
                if (kvt_is_mine(ranks[rank].session, objects[i].group, objects[i].shard, boundary))
                        ret_members[n_members++] = objects[i];
        return n_members;
}

/* A rank stores its part of a boundary as a set. */
static void store(unsigned rank, uint32_t boundary)
{
        struct kvt_object members[N_RANKS * N_GROUPS];

        ck_assert_uint_eq(members_of(rank, boundary, members), MEMBERS);
        ck_assert_uint_eq(hybrid_call(&ranks[rank], kvt_reserve, boundary, members, MEMBERS).status,
                          KVT_OK);
        hybrid_fill(members, MEMBERS, 0);
        ck_assert_uint_eq(hybrid_call(&ranks[rank], kvt_commit, boundary, members, MEMBERS).status,
                          KVT_OK);
}

START_TEST(a_boundary_is_usable_when_every_rank_has_stored_its_part)
{
        start();
        store(0, 1);
        store(0, 2);
        ck_assert_uint_eq(hybrid_match(&scheduler, &prompt).boundaries, 0);
        store(1, 1);
        ck_assert_uint_eq(hybrid_match(&scheduler, &prompt).boundaries, 1);
        store(1, 2);
        ck_assert_uint_eq(hybrid_match(&scheduler, &prompt).boundaries, 2);
        /* For an engine that knew the layout from the start it is the same one. */
        ck_assert_uint_eq(hybrid_usable(&whole, &prompt), 2);
        stop();
}
END_TEST

/* What rank 1 needs of boundary 2: both its chunks, and the state. */
static size_t needed_by_rank_1(struct kvt_object *ret_objects, size_t max)
{
        static const uint16_t shards[] = {1};
        struct kvt_boundary_query query = {.size = sizeof(query),
                                           .digests = prompt.digests,
                                           .boundaries = 2,
                                           .shards = shards,
                                           .n_shards = 1};
        size_t n;

        ck_assert_int_eq(kvt_boundary_objects(ranks[1].session, &query, ret_objects, max, &n),
                         KVT_OK);
        return n;
}

START_TEST(what_the_scheduler_acquires_the_ranks_adopt)
{
        struct kvt_object all[6], mine[6];
        struct kvt_call waited = {
                .size = sizeof(waited), .flags = KVT_CALL_WAITED, .timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_boundary_query query = {.size = sizeof(query), .boundaries = 2};
        struct kvt_completion granted, adopted;
        size_t n, n_mine;
        uint64_t id;

        start();
        for (unsigned rank = 0; rank < N_RANKS; rank++)
                for (uint32_t boundary = 1; boundary <= 2; boundary++)
                        store(rank, boundary);
        query.digests = prompt.digests;
        ck_assert_int_eq(kvt_boundary_objects(scheduler.session, &query, all, 6, &n), KVT_OK);
        ck_assert_uint_eq(n, 6);
        granted = hybrid_call(&scheduler, kvt_acquire, 0, all, n);
        ck_assert_uint_eq(granted.status, KVT_OK);

        n_mine = needed_by_rank_1(mine, 6);
        ck_assert_uint_eq(n_mine, 3);
        ck_assert_int_eq(kvt_adopt(ranks[1].session, &waited, granted.token, mine, n_mine, &id),
                         KVT_OK);
        ck_assert_int_eq(kvt_wait_call(ranks[1].session, id, &adopted, FLOW_TIMEOUT_NS), KVT_OK);
        ck_assert_uint_eq(adopted.status, KVT_OK);
        /* The scheduler may let go first. */
        ck_assert_uint_eq(hybrid_call(&scheduler, kvt_release, 0, all, n).status, KVT_OK);
        for (size_t i = 0; i < n_mine; i++) {
                ck_assert_uint_eq(mine[i].shard, 1);
                ck_assert(hybrid_holds(&mine[i], 0));
        }
        ck_assert_uint_eq(hybrid_call(&ranks[1], kvt_release, 0, mine, n_mine).status, KVT_OK);
        stop();
}
END_TEST

START_TEST(an_engine_that_lacks_a_rank_misses_and_holds_nothing)
{
        struct kvt_object objects[N_RANKS * N_GROUPS];
        size_t n;

        daemon_fixture_init(&fixture, NULL);
        open_whole();
        hybrid_store_run(&whole, &prompt, 1, 2, HYBRID_ALL);
        ck_assert_int_eq(open_process(&scheduler, -1), KVT_PENDING);
        ck_assert_int_eq(open_process(&ranks[1], 1), KVT_PENDING);
        ck_assert_uint_eq(hybrid_match(&scheduler, &prompt).kv_boundaries, 0);
        n = hybrid_objects(&whole, &prompt, 1, HYBRID_ALL, objects);
        ck_assert_uint_eq(hybrid_call(&ranks[1], kvt_acquire, 0, objects, n).status, KVT_PENDING);
        for (size_t i = 0; i < n; i++) {
                ck_assert_uint_eq(objects[i].status, KVT_PENDING);
                ck_assert_uint_eq(objects[i].lease, 0);
        }
        ck_assert_uint_eq(daemon_number(&fixture, "leases"), 0);
        /* With its last rank it finds what another engine of this layout has stored. */
        open_process(&ranks[0], 0);
        wait_for_all();
        ck_assert_uint_eq(hybrid_match(&scheduler, &prompt).boundaries, 2);
        ck_assert_int_eq(hybrid_load(&ranks[1], &prompt, 2), KVT_OK);
        stop();
}
END_TEST

START_TEST(all_ranks_come_back_after_the_death_of_the_daemon)
{
        start();
        for (unsigned rank = 0; rank < N_RANKS; rank++)
                store(rank, 1);
        daemon_wait_written(&fixture);
        daemon_kill(&fixture);
        daemon_start(&fixture);
        /* In whatever order they reconnect. */
        wait_for_all();
        ck_assert_uint_eq(hybrid_match(&scheduler, &prompt).boundaries, 1);
        ck_assert_int_eq(hybrid_load(&ranks[0], &prompt, 1), KVT_OK);
        store(0, 2);
        store(1, 2);
        ck_assert_uint_eq(hybrid_match(&scheduler, &prompt).boundaries, 2);
        flow_wait_attached(whole.session);
        stop();
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_boundary_is_usable_when_every_rank_has_stored_its_part,
                what_the_scheduler_acquires_the_ranks_adopt,
                an_engine_that_lacks_a_rank_misses_and_holds_nothing,
                all_ranks_come_back_after_the_death_of_the_daemon,
                NULL,
        };

        return flow_run("hybrid_ranks", tests, 120);
}
