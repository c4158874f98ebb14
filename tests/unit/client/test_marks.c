// SPDX-License-Identifier: Apache-2.0
/* Reclaim, pin, unpin and calls that bypass the store, as the daemon sees them. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "fake_daemon.h"
#include "proto/message.h"

#define SECONDS(n) ((n)*UINT64_C(1000000000))
#define MS(n)      ((n)*UINT64_C(1000000))

static struct fake fake;
static struct kvt_session *session;

static void setup(void)
{
        fake_start(&fake, false);
        session = fake_open(&fake);
}

static void teardown(void)
{
        fake_hang_up(&fake);
        kvt_close(session);
        fake_stop(&fake);
}

static struct kvt_object named(uint8_t name)
{
        return (struct kvt_object){.digest = {{name}}};
}

/* Expects one MARK with exactly these items, which may stand in any order. */
static uint64_t expect_marks(const struct wire_mark_item *items, uint32_t n)
{
        const struct wire_batch *batch = fake_expect(&fake, WIRE_MARK);
        struct message_cursor cursor;
        struct wire_mark_item item;
        uint32_t n_found = 0;

        ck_assert_uint_eq(batch->total, n);
        ck_assert_uint_ne(batch->layout, 0);
        message_cursor_init(&cursor, batch);
        while (!message_next_mark(&cursor, &item))
                for (uint32_t i = 0; i < n; i++)
                        n_found += !memcmp(&item, &items[i], sizeof(item));
        ck_assert_uint_eq(n_found, n);
        return batch->header.request;
}

static uint64_t expect_mark(uint8_t name, uint32_t flags)
{
        struct wire_mark_item item = {.boundary = {{name}}, .flags = flags};

        return expect_marks(&item, 1);
}

static struct kvt_completion wait_one(void)
{
        struct kvt_completion completion;

        ck_assert_uint_eq(kvt_wait(session, &completion, 1, SECONDS(5)), 1);
        return completion;
}

static void answer(uint64_t request, uint32_t status)
{
        struct fake_item item = {.status = status};

        fake_result(&fake, request, false, &item, 1);
}

static void pin(uint8_t name, uint32_t status)
{
        struct kvt_object object = named(name);

        ck_assert_int_eq(kvt_pin(session, NULL, &object, 1, NULL), KVT_OK);
        answer(expect_mark(name, WIRE_MARK_PIN), status);
        ck_assert_uint_eq(wait_one().status, status);
        ck_assert_uint_eq(object.status, status);
}

/* Another run of the daemon; the library says first that it is done with the one before. */
static void greet_again(void)
{
        const struct wire_header *header;

        fake_greet(&fake);
        header = fake_expect(&fake, WIRE_COPIES_ENDED);
        answer(header->request, KVT_GONE);
}

static void reconnect(void)
{
        fake_hang_up(&fake);
        fake_restart(&fake);
        greet_again();
}

START_TEST(a_reclaim_says_what_of_each_boundary)
{
        struct kvt_object objects[3] = {named(1), named(2), named(3)};
        struct wire_mark_item items[3] = {
                {.boundary = {{1}}, .flags = WIRE_MARK_RECLAIM_BELOW},
                {.boundary = {{2}}, .flags = WIRE_MARK_RECLAIM_PREFIX},
                {.boundary = {{3}}, .flags = WIRE_MARK_RECLAIM_BELOW | WIRE_MARK_RECLAIM_PREFIX}};
        struct fake_item results[3] = {{.index = 0, .status = KVT_OK},
                                       {.index = 2, .status = KVT_MISS},
                                       {.index = 1, .status = KVT_BUSY}};
        uint64_t request;

        objects[0].flags = KVT_RECLAIM_BELOW;
        objects[1].flags = KVT_RECLAIM_PREFIX;
        objects[2].flags = KVT_RECLAIM_BELOW | KVT_RECLAIM_PREFIX;
        objects[1].lease = 77; /* of another call: not this one's business */
        ck_assert_int_eq(kvt_reclaim(session, NULL, objects, 3, NULL), KVT_OK);
        request = expect_marks(items, 3);
        fake_result(&fake, request, true, results, 2);
        fake_result(&fake, request, false, results + 2, 1);
        ck_assert_uint_eq(wait_one().status, KVT_BUSY);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_eq(objects[1].status, KVT_BUSY);
        ck_assert_uint_eq(objects[2].status, KVT_MISS);
        ck_assert_uint_eq(objects[1].lease, 77);
}
END_TEST

START_TEST(a_reclaim_of_nothing_or_of_who_knows_what_is_not_sent)
{
        struct kvt_object object = named(1);

        ck_assert_int_eq(kvt_reclaim(session, NULL, &object, 1, NULL), KVT_INVALID);
        object.flags = KVT_RECLAIM_BELOW | KVT_REPLACE;
        ck_assert_int_eq(kvt_reclaim(session, NULL, &object, 1, NULL), KVT_UNSUPPORTED);
        fake_expect_silence(&fake, 20);
}
END_TEST

static void answer_both(uint64_t request, uint32_t first, uint32_t second)
{
        struct fake_item items[2] = {{.index = 1, .status = second},
                                     {.index = 0, .status = first}};

        fake_result(&fake, request, false, items, 2);
}

static uint32_t lost_pins(void)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        struct kvt_object object = named(9);

        /* What was sent before the answer to this has been seen to. */
        object.flags = KVT_RECLAIM_BELOW;
        ck_assert_int_eq(kvt_reclaim(session, NULL, &object, 1, NULL), KVT_OK);
        answer(expect_mark(9, WIRE_MARK_RECLAIM_BELOW), KVT_OK);
        wait_one();
        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        return info.lost_pins;
}

START_TEST(pins_that_are_not_taken_again_are_counted)
{
        struct wire_mark_item items[2] = {{.boundary = {{1}}, .flags = WIRE_MARK_PIN},
                                          {.boundary = {{2}}, .flags = WIRE_MARK_PIN}};
        struct kvt_object object = named(2);

        pin(1, KVT_OK);
        pin(2, KVT_OK);
        ck_assert_uint_eq(lost_pins(), 0);
        reconnect();
        answer_both(expect_marks(items, 2), KVT_OK, KVT_REFUSED);
        ck_assert_uint_eq(lost_pins(), 1);
        pin(2, KVT_REFUSED);
        ck_assert_uint_eq(lost_pins(), 1);
        pin(2, KVT_OK);
        ck_assert_uint_eq(lost_pins(), 0);
        reconnect();
        answer_both(expect_marks(items, 2), KVT_MISS, KVT_MISS);
        ck_assert_uint_eq(lost_pins(), 2);
        ck_assert_int_eq(kvt_unpin(session, NULL, &object, 1, NULL), KVT_OK);
        ck_assert_uint_eq(expect_mark(2, WIRE_MARK_UNPIN) != 0, true);
        fake_hang_up(&fake);
        ck_assert_uint_eq(wait_one().status, KVT_UNAVAILABLE);
        fake_restart(&fake);
        greet_again();
        answer(expect_marks(items, 1), KVT_OK);
        ck_assert_uint_eq(lost_pins(), 0);
}
END_TEST

START_TEST(pins_that_stood_are_sent_again_on_the_next_connection)
{
        struct wire_mark_item items[2] = {{.boundary = {{1}}, .flags = WIRE_MARK_PIN},
                                          {.boundary = {{4}}, .flags = WIRE_MARK_PIN}};
        struct kvt_object gone = named(3), object = named(9);

        pin(1, KVT_OK);
        pin(2, KVT_REFUSED);
        pin(3, KVT_OK);
        pin(4, KVT_OK);
        pin(4, KVT_OK);
        ck_assert_int_eq(kvt_unpin(session, NULL, &gone, 1, NULL), KVT_OK);
        answer(expect_mark(3, WIRE_MARK_UNPIN), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        for (unsigned i = 0; i < 2; i++) {
                reconnect();
                /* Whatever comes of it, it is tried again next time. */
                answer_both(expect_marks(items, 2), KVT_MISS, KVT_REFUSED);
        }
        object.flags = KVT_RECLAIM_BELOW;
        ck_assert_int_eq(kvt_reclaim(session, NULL, &object, 1, NULL), KVT_OK);
        answer(expect_mark(9, WIRE_MARK_RECLAIM_BELOW), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
}
END_TEST

START_TEST(what_is_unpinned_while_the_daemon_is_away_stays_unpinned)
{
        struct kvt_object object = named(1);

        pin(1, KVT_OK);
        fake_hang_up(&fake);
        fake_restart(&fake);
        fake_await(session, false);
        ck_assert_int_eq(kvt_unpin(session, NULL, &object, 1, NULL), KVT_UNAVAILABLE);
        greet_again();
        fake_expect_silence(&fake, 50);
}
END_TEST

START_TEST(an_unpin_behind_a_pin_wins)
{
        struct kvt_object first = named(1), second = named(1);
        uint64_t request;

        ck_assert_int_eq(kvt_pin(session, NULL, &first, 1, NULL), KVT_OK);
        ck_assert_int_eq(kvt_unpin(session, NULL, &second, 1, NULL), KVT_OK);
        request = expect_mark(1, WIRE_MARK_PIN);
        answer(request, KVT_OK);
        answer(expect_mark(1, WIRE_MARK_UNPIN), KVT_OK);
        wait_one();
        wait_one();
        reconnect();
        fake_expect_silence(&fake, 50);
}
END_TEST

START_TEST(a_mark_that_is_late_leaves_the_callers_memory_alone)
{
        struct kvt_call call = {.size = sizeof(call), .timeout_ns = MS(20)};
        struct kvt_object *object = malloc(sizeof(*object));
        uint64_t request;

        *object = named(1);
        ck_assert_int_eq(kvt_pin(session, &call, object, 1, NULL), KVT_OK);
        request = expect_mark(1, WIRE_MARK_PIN);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        free(object);
        answer(request, KVT_OK);
        /* It was pinned after all, and so it is again. */
        reconnect();
        expect_mark(1, WIRE_MARK_PIN);
}
END_TEST

START_TEST(a_request_that_bypasses_the_store_asks_nobody)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_BYPASS};
        struct kvt_object object = named(1), other = named(2);
        uint8_t token[16] = {3};

        object.bytes = FAKE_OBJECT;
        ck_assert_int_eq(kvt_acquire(session, &call, &object, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_MISS);
        ck_assert_uint_eq(object.status, KVT_MISS);
        ck_assert_uint_eq(object.lease, 0);
        ck_assert_int_eq(kvt_adopt(session, &call, token, &object, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_MISS);
        ck_assert_int_eq(kvt_reserve(session, &call, &object, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_REFUSED);
        ck_assert_int_eq(kvt_pin(session, &call, &other, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_REFUSED);
        fake_expect_silence(&fake, 20);
}
END_TEST

START_TEST(an_unpin_reaches_the_daemon_also_with_a_bypass)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_BYPASS};
        struct kvt_object object = named(1);

        pin(1, KVT_OK);
        ck_assert_int_eq(kvt_unpin(session, &call, &object, 1, NULL), KVT_OK);
        answer(expect_mark(1, WIRE_MARK_UNPIN), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
}
END_TEST

START_TEST(a_bypass_needs_no_daemon)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_BYPASS};
        struct kvt_object object = named(1);

        fake_hang_up(&fake);
        fake_await(session, false);
        ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, NULL), KVT_UNAVAILABLE);
        ck_assert_int_eq(kvt_acquire(session, &call, &object, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_MISS);
}
END_TEST

/* ---- a daemon that knows less ---- */

START_TEST(a_kind_that_the_daemon_does_not_know_is_unsupported_for_all)
{
        struct kvt_object objects[3] = {named(1), named(2), named(3)};
        const struct wire_batch *batch;

        ck_assert_int_eq(kvt_prefetch(session, NULL, NULL, objects, 3, NULL), KVT_OK);
        batch = fake_expect(&fake, WIRE_PREFETCH);
        ck_assert_uint_eq(batch->total, 3);
        answer(batch->header.request, KVT_UNSUPPORTED);
        ck_assert_uint_eq(wait_one().status, KVT_UNSUPPORTED);
        for (unsigned i = 0; i < 3; i++)
                ck_assert_uint_eq(objects[i].status, KVT_UNSUPPORTED);
        /* The session goes on. */
        pin(1, KVT_OK);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/marks");
        TCase *tcase = tcase_create("marks");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, a_reclaim_says_what_of_each_boundary);
        tcase_add_test(tcase, a_reclaim_of_nothing_or_of_who_knows_what_is_not_sent);
        tcase_add_test(tcase, pins_that_are_not_taken_again_are_counted);
        tcase_add_test(tcase, pins_that_stood_are_sent_again_on_the_next_connection);
        tcase_add_test(tcase, what_is_unpinned_while_the_daemon_is_away_stays_unpinned);
        tcase_add_test(tcase, an_unpin_behind_a_pin_wins);
        tcase_add_test(tcase, a_mark_that_is_late_leaves_the_callers_memory_alone);
        tcase_add_test(tcase, a_request_that_bypasses_the_store_asks_nobody);
        tcase_add_test(tcase, an_unpin_reaches_the_daemon_also_with_a_bypass);
        tcase_add_test(tcase, a_bypass_needs_no_daemon);
        tcase_add_test(tcase, a_kind_that_the_daemon_does_not_know_is_unsupported_for_all);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
