// SPDX-License-Identifier: Apache-2.0
/* Calls over page maps, step by step, against a daemon that does what a test tells it. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "fake_daemon.h"
#include "proto/message.h"

#define SECONDS(n) ((n)*UINT64_C(1000000000))
#define MS(n)      ((n)*UINT64_C(1000000))
#define N_PAGES    8u

static struct fake fake;
static struct kvt_session *session;
static struct kvt_page_map *map;
static uint8_t pages[N_PAGES][FAKE_OBJECT];

/* A chunk of the fake's layout is one page. */
static void setup(void)
{
        struct kvt_page_view view = {
                .base = pages, .page_stride = FAKE_OBJECT, .row_bytes = FAKE_OBJECT};
        struct kvt_page_group group = {.n_pages = N_PAGES, .n_views = 1, .views = &view};
        char why[256] = "";

        fake_start(&fake, false);
        session = fake_open(&fake);
        ck_assert_msg(kvt_page_map_new(session, &group, 1, &map, why, sizeof(why)) == KVT_OK, "%s",
                      why);
        for (uint32_t i = 0; i < N_PAGES; i++)
                memset(pages[i], (int)i + 1, FAKE_OBJECT);
}

static void teardown(void)
{
        fake_hang_up(&fake);
        kvt_close(session);
        kvt_page_map_free(map);
        fake_stop(&fake);
}

/* ---- objects: number i has slot i, and lies at the i-th 64 KiB of the first arena ---- */

static const uint32_t slots[N_PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
static struct kvt_object objects[N_PAGES];

static void name_objects(uint32_t n)
{
        memset(objects, 0, sizeof(objects));
        for (uint32_t i = 0; i < n; i++) {
                objects[i].digest.bytes[0] = (uint8_t)(i + 1);
                objects[i].slots = &slots[i];
                objects[i].n_slots = 1;
        }
}

static uint8_t *arena_of(uint32_t i)
{
        return fake.arenas[0] + i * 65536;
}

static struct fake_item granted(uint32_t index, uint64_t lease)
{
        return (struct fake_item){.index = index,
                                  .status = KVT_OK,
                                  .lease = lease,
                                  .bytes = FAKE_OBJECT,
                                  .offset = index * 65536};
}

static struct fake_item refused(uint32_t index, uint32_t status)
{
        return (struct fake_item){.index = index, .status = status};
}

static bool is_all(const uint8_t *bytes, int value)
{
        return bytes[0] == value && !memcmp(bytes, bytes + 1, FAKE_OBJECT - 1);
}

/* ---- calls ---- */

static uint64_t start(bool is_store, uint32_t n, uint64_t set, uint64_t timeout_ns)
{
        struct kvt_call call = {.size = sizeof(call), .set = set, .timeout_ns = timeout_ns};
        uint64_t id;

        name_objects(n);
        ck_assert_int_eq(is_store ? kvt_store_pages(session, &call, map, objects, n, &id)
                                  : kvt_load_pages(session, &call, map, NULL, objects, n, &id),
                         KVT_OK);
        return id;
}

static uint64_t expect_request(uint16_t kind)
{
        return ((const struct wire_header *)fake_expect(&fake, kind))->request;
}

/* The leases that a request names. */
static uint64_t expect_leases(uint16_t kind, uint64_t *ret_leases, uint32_t n)
{
        const struct wire_header *header = fake_expect(&fake, kind);
        struct message_cursor cursor;
        struct wire_commit_item item;
        const uint64_t *pieces;

        ck_assert_uint_eq(header->n_items, n);
        message_cursor_init(&cursor, header);
        for (uint32_t i = 0; i < n; i++)
                if (kind == WIRE_COMMIT) {
                        ck_assert_int_eq(message_next_commit(&cursor, &item, &pieces), 0);
                        ret_leases[i] = item.lease;
                } else {
                        ck_assert_int_eq(message_next_lease(&cursor, &ret_leases[i]), 0);
                }
        return header->request;
}

static struct kvt_completion wait_one(void)
{
        struct kvt_completion completion;

        ck_assert_uint_eq(kvt_wait(session, &completion, 1, SECONDS(5)), 1);
        ck_assert_uint_eq(completion.flags, 0);
        return completion;
}

static void expect_nothing_more(void)
{
        struct kvt_completion completion;

        ck_assert_uint_eq(kvt_poll(session, &completion, 1), 0);
}

/* Opened in this thread, so that the next one lies where this one was. */
static struct kvt_session *open_alone(void)
{
        struct kvt_options options = {
                .size = sizeof(options), .socket = "/nonexistent/socket", .layout = &fake.layout};
        struct kvt_session *alone;

        ck_assert_int_eq(kvt_open(&alone, &options, NULL, 0), KVT_UNAVAILABLE);
        return alone;
}

START_TEST(a_map_of_a_closed_session_is_not_the_next_ones)
{
        struct kvt_page_view view = {
                .base = pages, .page_stride = FAKE_OBJECT, .row_bytes = FAKE_OBJECT};
        struct kvt_page_group group = {.n_pages = N_PAGES, .n_views = 1, .views = &view};

        name_objects(1);
        for (int i = 0; i < 8; i++) {
                struct kvt_session *alone = open_alone();
                struct kvt_page_map *old;

                ck_assert_int_eq(kvt_page_map_new(alone, &group, 1, &old, NULL, 0), KVT_OK);
                ck_assert_int_eq(kvt_store_pages(alone, NULL, old, objects, 1, NULL),
                                 KVT_UNAVAILABLE);
                kvt_close(alone);
                alone = open_alone();
                ck_assert_int_eq(kvt_store_pages(alone, NULL, old, objects, 1, NULL), KVT_INVALID);
                kvt_close(alone);
                kvt_page_map_free(old);
        }
}
END_TEST

/* ---- stores ---- */

START_TEST(a_store_asks_for_the_bytes_that_its_slots_make)
{
        struct message_cursor cursor;
        struct wire_reserve_item item;
        const struct digest *covers;

        start(true, 1, 0, 0);
        message_cursor_init(&cursor, fake_expect(&fake, WIRE_RESERVE));
        ck_assert_int_eq(message_next_reserve(&cursor, &item, &covers), 0);
        ck_assert_uint_eq(item.bytes, FAKE_OBJECT);
        ck_assert_uint_eq(objects[0].bytes, 0);
}
END_TEST

START_TEST(a_store_copies_what_it_is_granted_and_commits_that_alone)
{
        struct fake_item answers[] = {granted(0, 5), refused(1, KVT_ALREADY_HAVE),
                                      refused(2, KVT_BUSY), granted(3, 6)};
        struct fake_item done[] = {refused(0, KVT_OK), refused(1, KVT_ALREADY_HAVE)};
        uint64_t id = start(true, 4, 0, 0), request = expect_request(WIRE_RESERVE), leases[2];
        struct kvt_completion completion;

        fake_result(&fake, request, true, answers, 2);
        fake_result(&fake, request, false, answers + 2, 2);
        request = expect_leases(WIRE_COMMIT, leases, 2);
        ck_assert_uint_eq(leases[0], 5);
        ck_assert_uint_eq(leases[1], 6);
        ck_assert(is_all(arena_of(0), 1));
        ck_assert(is_all(arena_of(1), 0));
        ck_assert(is_all(arena_of(3), 4));
        expect_nothing_more();
        fake_result(&fake, request, false, done, 2);
        completion = wait_one();
        ck_assert_uint_eq(completion.call, id);
        ck_assert_uint_eq(completion.status, KVT_BUSY);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_eq(objects[1].status, KVT_ALREADY_HAVE);
        ck_assert_uint_eq(objects[2].status, KVT_BUSY);
        ck_assert_uint_eq(objects[3].status, KVT_ALREADY_HAVE);
        expect_nothing_more();
}
END_TEST

START_TEST(a_set_with_a_refused_member_is_aborted_and_says_so_of_all)
{
        struct fake_item answers[] = {granted(0, 5), refused(1, KVT_REFUSED)};
        uint64_t leases[1];

        start(true, 2, 9, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, answers, 2);
        expect_leases(WIRE_ABORT, leases, 1);
        ck_assert_uint_eq(leases[0], 5);
        ck_assert_uint_eq(wait_one().status, KVT_REFUSED);
        ck_assert_uint_eq(objects[0].status, KVT_REFUSED);
        ck_assert_uint_eq(objects[1].status, KVT_REFUSED);
}
END_TEST

START_TEST(what_a_set_found_stored_is_named_in_its_commit_and_not_copied)
{
        struct fake_item answers[] = {granted(0, 5),
                                      {.index = 1, .status = KVT_ALREADY_HAVE, .lease = 7}};
        struct fake_item done[] = {refused(0, KVT_OK), refused(1, KVT_OK)};
        uint64_t leases[2];

        start(true, 2, 9, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, answers, 2);
        fake_result(&fake, expect_leases(WIRE_COMMIT, leases, 2), false, done, 2);
        ck_assert_uint_eq(leases[0], 5);
        ck_assert_uint_eq(leases[1], 7);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_eq(objects[1].status, KVT_ALREADY_HAVE);
        ck_assert(is_all(arena_of(1), 0));
}
END_TEST

START_TEST(a_set_that_is_stored_already_is_over_without_a_commit)
{
        struct fake_item have = {.status = KVT_ALREADY_HAVE, .lease = 7};

        start(true, 1, 9, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &have, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(objects[0].status, KVT_ALREADY_HAVE);
        fake_expect_silence(&fake, 20);
}
END_TEST

START_TEST(a_commit_that_is_stale_is_told_of_every_member)
{
        struct fake_item answers[] = {granted(0, 5), granted(1, 6)};
        struct fake_item stale[] = {refused(0, KVT_STALE), refused(1, KVT_STALE)};
        uint64_t leases[2];

        start(true, 2, 9, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, answers, 2);
        fake_result(&fake, expect_leases(WIRE_COMMIT, leases, 2), false, stale, 2);
        ck_assert_uint_eq(wait_one().status, KVT_STALE);
        ck_assert_uint_eq(objects[0].status, KVT_STALE);
        ck_assert_uint_eq(objects[1].status, KVT_STALE);
}
END_TEST

START_TEST(what_was_granted_at_another_length_is_given_back_and_not_committed)
{
        struct fake_item answers[] = {granted(0, 5), granted(1, 6)}, done = refused(0, KVT_OK);
        uint64_t leases[1];

        answers[0].bytes = FAKE_OBJECT - 1;
        start(true, 2, 0, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, answers, 2);
        fake_result(&fake, expect_leases(WIRE_COMMIT, leases, 1), false, &done, 1);
        ck_assert_uint_eq(leases[0], 6);
        expect_leases(WIRE_ABORT, leases, 1);
        ck_assert_uint_eq(leases[0], 5);
        ck_assert_uint_eq(wait_one().status, KVT_INVALID);
        ck_assert_uint_eq(objects[0].status, KVT_INVALID);
        ck_assert_uint_eq(objects[1].status, KVT_OK);
        ck_assert(is_all(arena_of(0), 0));
}
END_TEST

START_TEST(a_store_that_times_out_in_its_commit_is_over_for_the_caller)
{
        struct fake_item answer = granted(0, 5), done = refused(0, KVT_OK);
        uint64_t leases[1], commit;

        start(true, 1, 0, MS(200));
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &answer, 1);
        commit = expect_leases(WIRE_COMMIT, leases, 1);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        ck_assert_uint_eq(objects[0].status, KVT_TIMEOUT);
        /* The daemon's late answer is nobody's. */
        fake_result(&fake, commit, false, &done, 1);
        start(true, 1, 0, 0);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &answer, 1);
        fake_result(&fake, expect_leases(WIRE_COMMIT, leases, 1), false, &done, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
}
END_TEST

START_TEST(what_a_commit_left_alone_is_given_back_after_a_timeout)
{
        struct fake_item answer = granted(0, 5), none = refused(0, KVT_INVALID);
        uint64_t leases[1], commit;

        start(true, 1, 9, MS(200));
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &answer, 1);
        commit = expect_leases(WIRE_COMMIT, leases, 1);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        fake_result(&fake, commit, false, &none, 1);
        expect_leases(WIRE_ABORT, leases, 1);
        ck_assert_uint_eq(leases[0], 5);
}
END_TEST

START_TEST(a_store_ends_with_the_connection_in_each_of_its_steps)
{
        struct fake_item answer = granted(0, 5);
        uint64_t leases[1];

        for (unsigned step = 0; step < 2; step++) {
                uint64_t request;

                start(true, 1, 0, 0);
                request = expect_request(WIRE_RESERVE);
                if (step) {
                        fake_result(&fake, request, false, &answer, 1);
                        expect_leases(WIRE_COMMIT, leases, 1);
                }
                fake_hang_up(&fake);
                ck_assert_uint_eq(wait_one().status, KVT_UNAVAILABLE);
                ck_assert_uint_eq(objects[0].status, KVT_UNAVAILABLE);
                fake_greet(&fake);
                fake_expect(&fake, WIRE_COPIES_ENDED);
                fake_await(session, true);
        }
}
END_TEST

START_TEST(a_grant_beside_garbage_does_not_outlive_its_store)
{
        struct fake_item first = granted(0, 5), last[] = {granted(1, 6), granted(7, 7)};
        uint64_t request;

        start(true, 3, 0, 0);
        request = expect_request(WIRE_RESERVE);
        fake_result(&fake, request, true, &first, 1);
        fake_result(&fake, request, false, last, 2);
        fake_expect_hang_up(&fake);
        ck_assert_uint_eq(wait_one().status, KVT_UNAVAILABLE);
        /* All its leases have ended, or the daemon would not hear this. */
        fake_greet(&fake);
        fake_expect(&fake, WIRE_COPIES_ENDED);
}
END_TEST

/* ---- loads ---- */

START_TEST(a_load_copies_and_releases_and_does_not_wait_for_that)
{
        struct fake_item answers[] = {granted(0, 5), granted(1, 6)};
        uint64_t leases[2], request;

        memset(arena_of(0), 100, FAKE_OBJECT);
        memset(arena_of(1), 101, FAKE_OBJECT);
        start(false, 2, 0, 0);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 2);
        fake_result(&fake, request, false, answers, 2);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert(is_all(pages[0], 100));
        ck_assert(is_all(pages[1], 101));
        ck_assert(is_all(pages[2], 3));
        ck_assert_uint_eq(objects[1].bytes, FAKE_OBJECT);
        expect_leases(WIRE_RELEASE, leases, 2);
        ck_assert_uint_eq(leases[0], 5);
        ck_assert_uint_eq(leases[1], 6);
}
END_TEST

START_TEST(a_load_has_one_completion_when_all_has_arrived_or_failed)
{
        struct fake_item first = granted(0, 5), last = granted(2, 6);
        struct fake_item bad = refused(1, KVT_CORRUPT);
        uint64_t leases[2], request;

        memset(arena_of(2), 102, FAKE_OBJECT);
        start(false, 3, 0, 0);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 3);
        fake_result(&fake, request, true, &first, 1);
        fake_result(&fake, request, true, &bad, 1);
        fake_expect_silence(&fake, 20);
        expect_nothing_more();
        fake_result(&fake, request, false, &last, 1);
        ck_assert_uint_eq(wait_one().status, KVT_CORRUPT);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_eq(objects[1].status, KVT_CORRUPT);
        ck_assert_uint_eq(objects[2].status, KVT_OK);
        ck_assert(is_all(pages[2], 102));
        ck_assert(is_all(pages[1], 2));
        expect_leases(WIRE_RELEASE, leases, 2);
}
END_TEST

START_TEST(an_object_that_does_not_fit_its_slots_is_not_copied)
{
        struct fake_item answers[] = {granted(0, 5), granted(1, 6)};
        uint64_t leases[2], request;

        answers[0].bytes = FAKE_OBJECT - 1;
        start(false, 2, 0, 0);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 2);
        fake_result(&fake, request, false, answers, 2);
        ck_assert_uint_eq(wait_one().status, KVT_INVALID);
        ck_assert_uint_eq(objects[0].status, KVT_INVALID);
        ck_assert_uint_eq(objects[1].status, KVT_OK);
        ck_assert(is_all(pages[0], 1));
        expect_leases(WIRE_RELEASE, leases, 2);
}
END_TEST

START_TEST(a_load_keeps_what_it_was_granted_when_the_daemon_dies)
{
        struct fake_item first = granted(0, 5);
        uint64_t request;

        memset(arena_of(0), 100, FAKE_OBJECT);
        start(false, 2, 0, 0);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 2);
        fake_result(&fake, request, true, &first, 1);
        fake_hang_up(&fake);
        ck_assert_uint_eq(wait_one().status, KVT_UNAVAILABLE);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_eq(objects[1].status, KVT_UNAVAILABLE);
        ck_assert(is_all(pages[0], 100));
        ck_assert(is_all(pages[1], 2));
        /* And the next connection hears that the copies have ended. */
        fake_greet(&fake);
        fake_expect(&fake, WIRE_COPIES_ENDED);
}
END_TEST

START_TEST(a_cancelled_load_completes_first_and_gives_back_what_comes_late)
{
        struct fake_item first = granted(0, 5), late = granted(1, 6);
        struct kvt_completion completion;
        uint64_t id = start(false, 2, 0, 0), cancel, request, leases[1];

        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 2);
        fake_result(&fake, request, true, &first, 1);
        fake_expect_silence(&fake, 20);
        ck_assert_int_eq(kvt_cancel(session, NULL, id, &cancel), KVT_OK);
        completion = wait_one();
        ck_assert_uint_eq(completion.call, id);
        ck_assert_uint_eq(completion.status, KVT_CANCELLED);
        ck_assert_uint_eq(objects[0].status, KVT_CANCELLED);
        completion = wait_one();
        ck_assert_uint_eq(completion.call, cancel);
        ck_assert_uint_eq(completion.status, KVT_OK);
        memset(pages, 9, sizeof(pages));

        /* The daemon is told to stop, and hears of each lease that it grants all the same. */
        fake_expect(&fake, WIRE_CANCEL);
        expect_leases(WIRE_RELEASE, leases, 1);
        ck_assert_uint_eq(leases[0], 5);
        fake_result(&fake, request, false, &late, 1);
        expect_leases(WIRE_RELEASE, leases, 1);
        ck_assert_uint_eq(leases[0], 6);
        ck_assert(is_all(pages[1], 9));
}
END_TEST

START_TEST(a_cancel_of_what_is_over_completes_at_once)
{
        struct fake_item miss[] = {refused(0, KVT_MISS)};
        uint64_t id = start(false, 1, 0, 0), request = expect_request(WIRE_ACQUIRE);

        fake_granted(&fake, request, KVT_MISS, 0);
        fake_result(&fake, request, false, miss, 1);
        ck_assert_uint_eq(wait_one().status, KVT_MISS);
        ck_assert_uint_eq(objects[0].status, KVT_MISS);
        ck_assert_int_eq(kvt_cancel(session, NULL, id, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/page_call");
        TCase *calls = tcase_create("page_call");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(calls, setup, teardown);
        tcase_set_timeout(calls, 30);
        tcase_add_test(calls, a_map_of_a_closed_session_is_not_the_next_ones);
        tcase_add_test(calls, a_store_asks_for_the_bytes_that_its_slots_make);
        tcase_add_test(calls, a_store_copies_what_it_is_granted_and_commits_that_alone);
        tcase_add_test(calls, a_set_with_a_refused_member_is_aborted_and_says_so_of_all);
        tcase_add_test(calls, what_a_set_found_stored_is_named_in_its_commit_and_not_copied);
        tcase_add_test(calls, a_set_that_is_stored_already_is_over_without_a_commit);
        tcase_add_test(calls, a_commit_that_is_stale_is_told_of_every_member);
        tcase_add_test(calls, what_was_granted_at_another_length_is_given_back_and_not_committed);
        tcase_add_test(calls, a_store_that_times_out_in_its_commit_is_over_for_the_caller);
        tcase_add_test(calls, what_a_commit_left_alone_is_given_back_after_a_timeout);
        tcase_add_test(calls, a_store_ends_with_the_connection_in_each_of_its_steps);
        tcase_add_test(calls, a_grant_beside_garbage_does_not_outlive_its_store);
        tcase_add_test(calls, a_load_copies_and_releases_and_does_not_wait_for_that);
        tcase_add_test(calls, a_load_has_one_completion_when_all_has_arrived_or_failed);
        tcase_add_test(calls, an_object_that_does_not_fit_its_slots_is_not_copied);
        tcase_add_test(calls, a_load_keeps_what_it_was_granted_when_the_daemon_dies);
        tcase_add_test(calls, a_cancelled_load_completes_first_and_gives_back_what_comes_late);
        tcase_add_test(calls, a_cancel_of_what_is_over_completes_at_once);
        suite_add_tcase(suite, calls);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
