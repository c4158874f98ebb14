// SPDX-License-Identifier: Apache-2.0
/* What a boundary needs and which rank stores it, as far as no daemon is needed to tell. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "fake_daemon.h"

static struct fake fake;
static struct kvt_session *session;
static struct kvt_digest digests[8];
static struct kvt_object objects[64];

static const struct kvt_group groups[] = {
        {.name = "kv", .kind = KVT_GROUP_ATTENTION, .shards = 8, .page_tokens = FAKE_CHUNK,
         .page_bytes = 64},
        {.name = "few heads", .kind = KVT_GROUP_ATTENTION, .shards = 2, .page_tokens = FAKE_CHUNK,
         .page_bytes = 64},
        {.name = "mla", .kind = KVT_GROUP_ATTENTION, .page_tokens = FAKE_CHUNK, .page_bytes = 64},
        {.name = "scratch", .kind = KVT_GROUP_SCRATCH, .shards = 8},
};

static void start(uint32_t n_groups)
{
        fake_start(&fake, false);
        fake.layout.groups = groups;
        fake.layout.n_groups = n_groups;
        session = fake_open(&fake);
        for (uint8_t i = 0; i < 8; i++)
                digests[i].bytes[0] = i;
}

static void stop(void)
{
        fake_hang_up(&fake);
        kvt_close(session);
        fake_stop(&fake);
}

static struct kvt_boundary_query query_of(uint32_t boundaries)
{
        return (struct kvt_boundary_query){
                .size = sizeof(struct kvt_boundary_query),
                .digests = digests,
                .boundaries = boundaries,
        };
}

START_TEST(objects_come_chunk_by_chunk_from_the_first)
{
        struct kvt_boundary_query query = query_of(3);
        size_t n;

        start(4);
        ck_assert_int_eq(kvt_boundary_objects(session, &query, objects, 64, &n), KVT_OK);
        ck_assert_uint_eq(n, 3 * (8 + 2 + 1));
        for (size_t i = 0; i < n; i++)
                ck_assert_uint_eq(objects[i].digest.bytes[0], i / 11);
        stop();
}
END_TEST

START_TEST(too_many_objects_are_counted_and_not_written)
{
        struct kvt_boundary_query query = query_of(3);
        size_t n = 0;

        start(4);
        memset(objects, 0xee, sizeof(objects));
        ck_assert_int_eq(kvt_boundary_objects(session, &query, objects, 32, &n), KVT_TOO_LARGE);
        ck_assert_uint_eq(n, 33);
        ck_assert_uint_eq(objects[32].group, 0xeeee);
        ck_assert_int_eq(kvt_boundary_objects(session, &query, NULL, 0, &n), KVT_TOO_LARGE);
        ck_assert_uint_eq(n, 33);
        stop();
}
END_TEST

START_TEST(what_cannot_be_asked_is_invalid)
{
        const uint16_t beyond = 8;
        struct kvt_boundary_query query = query_of(0);
        size_t n;

        start(4);
        ck_assert_int_eq(kvt_boundary_objects(session, &query, objects, 64, &n), KVT_INVALID);
        query = query_of(1);
        query.n_shards = 1;
        ck_assert_int_eq(kvt_boundary_objects(session, &query, objects, 64, &n), KVT_INVALID);
        query.shards = &beyond;
        ck_assert_int_eq(kvt_boundary_objects(session, &query, objects, 64, &n), KVT_INVALID);
        query = query_of(1);
        query.digests = NULL;
        ck_assert_int_eq(kvt_boundary_objects(session, &query, objects, 64, &n), KVT_INVALID);
        ck_assert_int_eq(kvt_boundary_objects(session, NULL, objects, 64, &n), KVT_INVALID);
        stop();
}
END_TEST

START_TEST(without_the_daemon_nothing_is_known)
{
        struct kvt_boundary_query query = query_of(1);
        size_t n;

        start(4);
        fake_hang_up(&fake);
        fake_await(session, false);
        ck_assert_int_eq(kvt_boundary_objects(session, &query, objects, 64, &n), KVT_UNAVAILABLE);
        stop();
}
END_TEST

/* Opened for each rank; no daemon is needed to know whose turn it is. */
static struct kvt_session *rank_of(uint32_t n_groups, uint32_t rank, uint32_t n_ranks)
{
        struct kvt_layout layout = fake.layout;
        struct kvt_options options = {
                .size = sizeof(options),
                .socket = "/nonexistent/kvtierd.sock",
                .layout = &layout,
                .rank = rank,
                .n_ranks = n_ranks,
        };
        struct kvt_session *opened = NULL;

        layout.groups = groups + (n_groups == 1 ? 2 : 0);
        layout.n_groups = n_groups;
        ck_assert_int_eq(kvt_open(&opened, &options, NULL, 0),
                         rank < (n_ranks ? n_ranks : 1) && n_ranks <= 1024 ? KVT_UNAVAILABLE
                                                                           : KVT_INVALID);
        return opened;
}

/* Who stores each: exactly one rank, of those that hold it, and all of these in turn. */
static void check_turns(uint32_t n_groups, uint32_t n_ranks)
{
        static const uint16_t shards[] = {8, 2, 1};
        struct kvt_session *ranks[16];

        for (uint32_t r = 0; r < n_ranks; r++)
                ranks[r] = rank_of(n_groups, r, n_ranks);
        for (uint16_t g = 0; g < (n_groups == 1 ? 1 : 3); g++) {
                uint16_t n = n_groups == 1 ? 1 : shards[g];

                for (uint16_t s = 0; s < n; s++) {
                        uint32_t n_turns[16] = {0}, per_shard = n_ranks > n ? n_ranks / n : 1;

                        for (uint32_t b = 1; b <= 64; b++) {
                                uint32_t n_writers = 0;

                                for (uint32_t r = 0; r < n_ranks; r++) {
                                        int is_mine = kvt_is_mine(ranks[r], g, s, b);

                                        n_turns[r] += is_mine ? 1 : 0;
                                        n_writers += is_mine ? 1 : 0;
                                }
                                ck_assert_uint_eq(n_writers, 1);
                        }
                        for (uint32_t r = 0; r < n_ranks; r++)
                                ck_assert_uint_eq(n_turns[r],
                                                  r * n / n_ranks == s || n > n_ranks
                                                          ? (n > n_ranks && s * n_ranks / n != r
                                                                     ? 0
                                                                     : 64 / per_shard)
                                                          : 0);
                }
        }
        for (uint32_t r = 0; r < n_ranks; r++)
                kvt_close(ranks[r]);
}

START_TEST(ranks_that_hold_the_same_store_it_in_turn)
{
        fake_start(&fake, false);
        check_turns(3, 1);
        check_turns(3, 4);
        check_turns(3, 8);
        check_turns(3, 16);
        check_turns(1, 8); /* nothing but replicated groups */
        fake_stop(&fake);
}
END_TEST

START_TEST(what_is_never_stored_is_nobodys)
{
        start(4);
        ck_assert_int_eq(kvt_is_mine(session, 0, 7, 1), 1);
        ck_assert_int_eq(kvt_is_mine(session, 0, 8, 1), 0);
        ck_assert_int_eq(kvt_is_mine(session, 3, 0, 1), 0);
        ck_assert_int_eq(kvt_is_mine(session, 4, 0, 1), 0);
        ck_assert_int_eq(kvt_is_mine(NULL, 0, 0, 1), 0);
        stop();
}
END_TEST

START_TEST(a_rank_beyond_the_ranks_is_refused)
{
        fake_start(&fake, false);
        ck_assert_ptr_null(rank_of(3, 4, 4));
        ck_assert_ptr_null(rank_of(3, 1, 0));
        ck_assert_ptr_null(rank_of(3, 0, 1025));
        fake_stop(&fake);
}
END_TEST

static Suite *boundary_suite(void)
{
        Suite *suite = suite_create("client/boundary");
        TCase *tests = tcase_create("boundary");

        tcase_set_timeout(tests, 20);
        tcase_add_test(tests, objects_come_chunk_by_chunk_from_the_first);
        tcase_add_test(tests, too_many_objects_are_counted_and_not_written);
        tcase_add_test(tests, what_cannot_be_asked_is_invalid);
        tcase_add_test(tests, without_the_daemon_nothing_is_known);
        tcase_add_test(tests, ranks_that_hold_the_same_store_it_in_turn);
        tcase_add_test(tests, what_is_never_stored_is_nobodys);
        tcase_add_test(tests, a_rank_beyond_the_ranks_is_refused);
        suite_add_tcase(suite, tests);
        return suite;
}

int main(void)
{
        SRunner *runner = srunner_create(boundary_suite());
        int failed;

        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
