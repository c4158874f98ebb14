// SPDX-License-Identifier: Apache-2.0
/*
 * From a match to the leases: exactly what a boundary needs, also of layouts with more cells
 * than one bank holds, in one acquire; and the ranks of one engine that share the work of
 * storing.
 */
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"

#define MIB   (UINT64_C(1) << 20)
#define CHUNK 16u
#define BYTES 512u /* of each object */
#define N_MAX 512u /* boundaries */

static struct daemon_fixture fixture;
static struct kvt_digest digests[N_MAX];

static const uint8_t engine_id[16] = "boundary's ranks";

static void start(uint32_t n_pieces)
{
        struct daemon_options options = {.piece_bytes = 32 * MIB, .n_pieces = n_pieces};

        daemon_fixture_init(&fixture, &options);
        for (uint32_t i = 0; i < N_MAX; i++)
                memcpy(digests[i].bytes, &(uint32_t){i + 1}, sizeof(uint32_t));
}

/* Of one layout at most ten: each has a name of its own. */
static struct kvt_group group(uint32_t kind, uint32_t shards, uint32_t window_tokens)
{
        static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
        static unsigned next;

        return (struct kvt_group){
                .name = names[next++ % 10],
                .kind = kind,
                .shards = shards,
                .page_tokens = kind == KVT_GROUP_STATE ? 0 : CHUNK,
                .page_bytes = BYTES,
                .window_tokens = window_tokens,
        };
}

static struct kvt_session *open_rank(const struct kvt_group *groups, uint32_t n_groups,
                                     uint32_t rank, uint32_t n_ranks)
{
        struct kvt_layout layout = {
                .size = sizeof(layout),
                .model = "boundary",
                .chunk_tokens = CHUNK,
                .groups = groups,
                .n_groups = n_groups,
        };
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = fixture.socket,
                .layout = &layout,
                .engine_id = engine_id,
                .connect_timeout_ns = FLOW_TIMEOUT_NS,
                .rank = rank,
                .n_ranks = n_ranks,
        };
        struct kvt_session *session;
        char why[256] = "";

        ck_assert_msg(!kvt_open(&session, &options, why, sizeof(why)), "%s", why);
        return session;
}

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static struct kvt_completion finish(struct kvt_session *session, submit_fn submit,
                                    struct kvt_object *objects, size_t n)
{
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = FLOW_TIMEOUT_NS};
        struct kvt_completion completion;
        uint64_t id;

        ck_assert_int_eq(submit(session, &call, objects, n, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, 2 * FLOW_TIMEOUT_NS), KVT_OK);
        return completion;
}

/* What its bytes are: boundary, group, shard, over and over. */
static uint64_t content_of(uint32_t boundary, uint16_t group_number, uint16_t shard)
{
        return (uint64_t)boundary << 32 | (uint32_t)group_number << 16 | shard;
}

static void write_content(const struct kvt_object *object)
{
        uint64_t content =
                content_of(object->boundary_tokens / CHUNK, object->group, object->shard);

        for (uint64_t i = 0; i < BYTES; i += sizeof(content))
                ck_assert_int_eq(kvt_write(object, i, &content, sizeof(content)), KVT_OK);
}

static void expect_content(const struct kvt_object *object)
{
        uint32_t boundary;
        uint64_t bytes[BYTES / 8];

        memcpy(&boundary, object->digest.bytes, sizeof(boundary));
        ck_assert_uint_eq(object->bytes, BYTES);
        ck_assert_int_eq(kvt_read(object, 0, bytes, BYTES), KVT_OK);
        for (unsigned i = 0; i < BYTES / 8; i++)
                ck_assert_uint_eq(bytes[i], content_of(boundary, object->group, object->shard));
}

/* Stores @n objects, of which boundary_tokens, group and shard are set. */
static void store(struct kvt_session *session, struct kvt_object *objects, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                uint32_t boundary = objects[i].boundary_tokens / CHUNK;

                objects[i].digest = digests[boundary - 1];
                if (boundary > 1)
                        objects[i].parent = digests[boundary - 2];
                objects[i].bytes = BYTES;
        }
        ck_assert_uint_eq(finish(session, kvt_reserve, objects, n).status, KVT_OK);
        for (size_t i = 0; i < n; i++)
                write_content(&objects[i]);
        ck_assert_uint_eq(finish(session, kvt_commit, objects, n).status, KVT_OK);
}

/* Everything of boundaries 1 to @n_boundaries, of groups of the same @n_shards. */
static void store_all(struct kvt_session *session, uint32_t n_boundaries, uint16_t n_groups,
                      uint16_t n_shards)
{
        size_t n = (size_t)n_boundaries * n_groups * n_shards, i = 0;
        struct kvt_object *objects = calloc(n, sizeof(*objects));

        ck_assert_ptr_nonnull(objects);
        for (uint32_t b = 1; b <= n_boundaries; b++)
                for (uint16_t g = 0; g < n_groups; g++)
                        for (uint16_t s = 0; s < n_shards; s++, i++) {
                                objects[i].boundary_tokens = b * CHUNK;
                                objects[i].group = g;
                                objects[i].shard = s;
                        }
        store(session, objects, n);
        free(objects);
}

static struct kvt_boundary longest(struct kvt_session *session, uint32_t n)
{
        struct kvt_boundary usable = {0};
        struct kvt_match_query query = {
                .size = sizeof(query),
                .digests = digests,
                .n_digests = n,
                .usable = &usable,
                .n_usable = 1,
        };
        struct kvt_match match = {.size = sizeof(match)};

        ck_assert_int_eq(kvt_match(session, &query, &match), KVT_OK);
        return usable;
}

static size_t needed(struct kvt_session *session, uint32_t boundaries, const uint16_t *shards,
                     uint32_t n_shards, struct kvt_object *ret_objects, size_t max)
{
        struct kvt_boundary_query query = {
                .size = sizeof(query),
                .digests = digests,
                .boundaries = boundaries,
                .shards = shards,
                .n_shards = n_shards,
        };
        size_t n;

        ck_assert_int_eq(kvt_boundary_objects(session, &query, ret_objects, max, &n), KVT_OK);
        return n;
}

/* Loads what the boundary needs; it must be @n objects, all leased at once, and no more. */
static void load(struct kvt_session *session, uint32_t boundaries, size_t n)
{
        struct kvt_object *objects = calloc(n, sizeof(*objects));
        struct kvt_completion completion;

        ck_assert_ptr_nonnull(objects);
        ck_assert_uint_eq(needed(session, boundaries, NULL, 0, objects, n), n);
        completion = finish(session, kvt_acquire, objects, n);
        ck_assert_uint_eq(completion.status, KVT_OK);
        ck_assert_uint_eq(completion.n_granted, n);
        ck_assert_uint_eq(daemon_number(&fixture, "leases"), n);
        for (size_t i = 0; i < n; i++)
                expect_content(&objects[i]);
        ck_assert_uint_eq(finish(session, kvt_release, objects, n).status, KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "leases"), 0);
        free(objects);
}

static bool names(const struct kvt_object *objects, size_t n, uint32_t boundary, uint16_t g,
                  uint16_t s)
{
        size_t found = 0;

        for (size_t i = 0; i < n; i++)
                found += objects[i].group == g && objects[i].shard == s &&
                         !memcmp(&objects[i].digest, &digests[boundary - 1], sizeof(digests[0]));
        ck_assert_uint_le(found, 1);
        return found;
}

START_TEST(an_acquire_leases_exactly_what_the_boundary_needs)
{
        const struct kvt_group groups[] = {
                group(KVT_GROUP_ATTENTION, 2, 0),
                group(KVT_GROUP_SCRATCH, 2, 0),
                group(KVT_GROUP_WINDOW, 2, 2 * CHUNK - 1),
                group(KVT_GROUP_STATE, 2, 0),
        };
        struct kvt_object objects[64] = {0};
        struct kvt_session *session;
        size_t n = 0;

        start(2);
        session = open_rank(groups, 4, 0, 0);
        /* Of the window only what boundary 6 needs; states at 4 and 6. */
        for (uint32_t b = 1; b <= 6; b++)
                for (uint16_t s = 0; s < 2; s++) {
                        const bool has[] = {true, false, b >= 5, b == 4 || b == 6};

                        for (uint16_t g = 0; g < 4; g++)
                                if (has[g])
                                        objects[n++] = (struct kvt_object){
                                                .boundary_tokens = b * CHUNK,
                                                .group = g,
                                                .shard = s,
                                        };
                }
        store(session, objects, n);
        ck_assert_uint_eq(longest(session, 6).boundaries, 6);
        ck_assert_uint_eq(longest(session, 6).n_objects, 2 * (6 + 2 + 1));
        ck_assert_uint_eq(longest(session, 6).bytes, 2 * (6 + 2 + 1) * BYTES);
        ck_assert_uint_eq(longest(session, 5).boundaries, 0);
        n = needed(session, 6, NULL, 0, objects, 64);
        ck_assert_uint_eq(n, 18);
        for (uint32_t b = 1; b <= 6; b++)
                for (uint16_t s = 0; s < 2; s++) {
                        ck_assert(names(objects, n, b, 0, s));
                        ck_assert(!names(objects, n, b, 1, s));
                        ck_assert_int_eq(names(objects, n, b, 2, s), b >= 5);
                        ck_assert_int_eq(names(objects, n, b, 3, s), b == 6);
                }
        load(session, 6, 18);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_rank_gets_the_objects_of_its_shards)
{
        const struct kvt_group groups[] = {
                group(KVT_GROUP_ATTENTION, 8, 0),
                group(KVT_GROUP_ATTENTION, 2, 0), /* few heads: four ranks share each */
                group(KVT_GROUP_INDEX, 1, 0),
        };
        const uint16_t shards[] = {5, 7};
        struct kvt_session *session;
        struct kvt_object objects[16];
        size_t n;

        start(2);
        session = open_rank(groups, 3, 0, 0);
        n = needed(session, 2, shards, 2, objects, 16);
        ck_assert_uint_eq(n, 2 * (2 + 1 + 1));
        for (uint32_t b = 1; b <= 2; b++) {
                ck_assert(names(objects, n, b, 0, 5));
                ck_assert(names(objects, n, b, 0, 7));
                ck_assert(names(objects, n, b, 1, 1));
                ck_assert(names(objects, n, b, 2, 0));
        }
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(eighty_cells_are_matched_and_leased_as_one)
{
        struct kvt_group groups[10];
        struct kvt_session *session;

        for (int i = 0; i < 10; i++)
                groups[i] = group(KVT_GROUP_ATTENTION, 8, 0);
        groups[9].kind = KVT_GROUP_WINDOW;
        groups[9].window_tokens = CHUNK;
        start(2);
        session = open_rank(groups, 10, 0, 0);
        store_all(session, 12, 10, 8);
        ck_assert_uint_eq(longest(session, 20).boundaries, 12);
        load(session, 12, 8 * (9 * 12 + 1));
        daemon_evict(&fixture, NULL);
        ck_assert_uint_eq(longest(session, 20).boundaries, 0);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(one_acquire_leases_512_boundaries_of_40_cells)
{
        struct kvt_group groups[5];
        struct kvt_session *session;

        for (int i = 0; i < 5; i++)
                groups[i] = group(KVT_GROUP_ATTENTION, 8, 0);
        start(4);
        session = open_rank(groups, 5, 0, 0);
        store_all(session, 512, 5, 8);
        ck_assert_uint_eq(longest(session, 512).n_objects, 20480);
        load(session, 512, 20480);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

static struct kvt_match match_branch(struct kvt_session *session, uint32_t n_common)
{
        struct kvt_digest branch[8];
        struct kvt_match_query query = {
                .size = sizeof(query),
                .digests = branch,
                .n_digests = 8,
                .flags = KVT_MATCH_CHECKPOINT | KVT_MATCH_STATE,
        };
        struct kvt_match match = {.size = sizeof(match)};

        memcpy(branch, digests, sizeof(branch));
        for (uint32_t i = n_common; i < 8; i++)
                branch[i].bytes[31] = 0xbb;
        ck_assert_int_eq(kvt_match(session, &query, &match), KVT_OK);
        return match;
}

START_TEST(prompts_that_branch_where_no_state_is_get_a_hint)
{
        const struct kvt_group groups[] = {group(KVT_GROUP_ATTENTION, 1, 0),
                                           group(KVT_GROUP_STATE, 1, 0)};
        struct kvt_object objects[8] = {0};
        struct kvt_session *session;

        start(2);
        session = open_rank(groups, 2, 0, 0);
        for (uint32_t b = 1; b <= 6; b++)
                objects[b - 1].boundary_tokens = b * CHUNK;
        objects[6] = (struct kvt_object){.boundary_tokens = 2 * CHUNK, .group = 1};
        store(session, objects, 7);
        ck_assert_uint_eq(match_branch(session, 4).kv_boundaries, 4);
        ck_assert_uint_eq(match_branch(session, 4).boundaries, 2);
        ck_assert_uint_eq(match_branch(session, 4).checkpoint_boundaries, 4);
        ck_assert_uint_eq(match_branch(session, 4).state_boundaries, 2);
        ck_assert_uint_eq(match_branch(session, 4).replay_tokens, 6 * CHUNK);
        /* Nothing hangs on the last one: this prompt merely goes on. */
        ck_assert_uint_eq(match_branch(session, 6).kv_boundaries, 6);
        ck_assert_uint_eq(match_branch(session, 6).checkpoint_boundaries, 0);
        objects[0] = (struct kvt_object){.boundary_tokens = 4 * CHUNK, .group = 1};
        store(session, objects, 1);
        ck_assert_uint_eq(match_branch(session, 4).boundaries, 4);
        ck_assert_uint_eq(match_branch(session, 4).checkpoint_boundaries, 0);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

#define N_RANKS 4

/* The scheduler's sight of it: one copy of each, whoever wrote it. */
START_TEST(four_ranks_store_a_replicated_group_once_and_each_loads_all)
{
        const struct kvt_group groups[] = {
                group(KVT_GROUP_ATTENTION, 1, 0), /* MLA */
                group(KVT_GROUP_STATE, N_RANKS, 0),
        };
        struct kvt_session *ranks[N_RANKS];
        uint32_t n_stored[N_RANKS] = {0};

        start(2);
        for (uint32_t r = 0; r < N_RANKS; r++)
                ranks[r] = open_rank(groups, 2, r, N_RANKS);
        for (uint32_t b = 1; b <= 8; b++)
                for (uint32_t r = 0; r < N_RANKS; r++) {
                        struct kvt_object objects[1 + N_RANKS] = {0};
                        size_t n = 0;

                        if (kvt_is_mine(ranks[r], 0, 0, b)) {
                                objects[n++].boundary_tokens = b * CHUNK;
                                n_stored[r]++;
                        }
                        for (uint16_t s = 0; s < N_RANKS; s++) {
                                ck_assert_int_eq(kvt_is_mine(ranks[r], 1, s, b), s == r);
                                if (s == r)
                                        objects[n++] = (struct kvt_object){
                                                .boundary_tokens = b * CHUNK,
                                                .group = 1,
                                                .shard = s,
                                        };
                        }
                        /* What is there already would not be reserved: store() would fail. */
                        store(ranks[r], objects, n);
                }
        for (uint32_t r = 0; r < N_RANKS; r++)
                ck_assert_uint_eq(n_stored[r], 8 / N_RANKS);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 8 + 8 * N_RANKS);
        for (uint32_t r = 0; r < N_RANKS; r++) {
                uint16_t shard = (uint16_t)r;
                struct kvt_object objects[16];
                size_t n = needed(ranks[r], 8, &shard, 1, objects, 16);

                ck_assert_uint_eq(longest(ranks[r], 8).boundaries, 8);
                ck_assert_uint_eq(n, 8 + 1);
                ck_assert_uint_eq(finish(ranks[r], kvt_acquire, objects, n).status, KVT_OK);
                for (size_t i = 0; i < n; i++)
                        expect_content(&objects[i]);
                ck_assert_uint_eq(finish(ranks[r], kvt_release, objects, n).status, KVT_OK);
        }
        for (uint32_t r = 0; r < N_RANKS; r++)
                kvt_close(ranks[r]);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                an_acquire_leases_exactly_what_the_boundary_needs,
                a_rank_gets_the_objects_of_its_shards,
                eighty_cells_are_matched_and_leased_as_one,
                one_acquire_leases_512_boundaries_of_40_cells,
                prompts_that_branch_where_no_state_is_get_a_hint,
                four_ranks_store_a_replicated_group_once_and_each_loads_all,
                NULL,
        };

        return flow_run("flow/boundary", tests, 60);
}
