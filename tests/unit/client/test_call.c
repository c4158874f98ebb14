// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <poll.h>
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

static uint64_t expect_request(uint16_t kind)
{
        return ((const struct wire_header *)fake_expect(&fake, kind))->request;
}

static uint64_t expect_lease(uint16_t kind)
{
        struct message_cursor cursor;
        uint64_t lease;

        message_cursor_init(&cursor, fake_expect(&fake, kind));
        ck_assert_int_eq(message_next_lease(&cursor, &lease), 0);
        return lease;
}

static struct kvt_completion wait_one(void)
{
        struct kvt_completion completion;

        ck_assert_uint_eq(kvt_wait(session, &completion, 1, SECONDS(5)), 1);
        return completion;
}

static void expect_nothing_more(void)
{
        struct kvt_completion completion;

        ck_assert_uint_eq(kvt_poll(session, &completion, 1), 0);
}

static struct fake_item granted(uint32_t index, uint64_t lease)
{
        return (struct fake_item){
                .index = index,
                .status = KVT_OK,
                .lease = lease,
                .bytes = FAKE_OBJECT,
                .arena = index % FAKE_ARENAS,
                .offset = index / FAKE_ARENAS * 65536,
        };
}

/* One object that this session holds for writing (@kind RESERVE) or reading. */
static struct kvt_object hold(uint16_t kind, uint64_t lease)
{
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct fake_item item = granted(0, lease);
        uint64_t request;

        if (kind == WIRE_RESERVE)
                ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_OK);
        else
                ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, NULL), KVT_OK);
        request = expect_request(kind);
        if (kind == WIRE_ACQUIRE)
                fake_granted(&fake, request, KVT_OK, 1);
        fake_result(&fake, request, false, &item, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(object.status, KVT_OK);
        ck_assert_uint_ne(object.lease, 0);
        ck_assert_uint_eq(object.n_segments, 1);
        return object;
}

START_TEST(reserve_write_commit_reaches_the_daemons_memory)
{
        struct kvt_object object = hold(WIRE_RESERVE, 5);
        struct fake_item done = {.status = KVT_OK};
        struct message_cursor cursor;
        struct wire_commit_item item;
        const uint64_t *pieces;
        const struct wire_header *header;

        ck_assert_int_eq(kvt_write(&object, 100, "hello", 5), KVT_OK);
        ck_assert_mem_eq(fake.arenas[0] + 100, "hello", 5);
        ck_assert_int_eq(kvt_write(&object, FAKE_OBJECT, "x", 1), KVT_INVALID);
        ck_assert_int_eq(kvt_commit(session, NULL, &object, 1, NULL), KVT_OK);
        header = fake_expect(&fake, WIRE_COMMIT);
        message_cursor_init(&cursor, header);
        ck_assert_int_eq(message_next_commit(&cursor, &item, &pieces), 0);
        ck_assert_uint_eq(item.lease, 5);
        fake_result(&fake, header->request, false, &done, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(object.lease, 0);
        ck_assert_ptr_null(object.segments);
}
END_TEST

START_TEST(results_may_come_in_any_order_and_in_parts)
{
        struct kvt_object objects[3] = {
                {.bytes = FAKE_OBJECT}, {.bytes = FAKE_OBJECT}, {.bytes = FAKE_OBJECT}};
        struct fake_item last = granted(2, 12);
        struct fake_item others[2] = {granted(1, 11), {.index = 0, .status = KVT_ALREADY_HAVE}};
        uint64_t request;

        ck_assert_int_eq(kvt_reserve(session, NULL, objects, 3, NULL), KVT_OK);
        request = expect_request(WIRE_RESERVE);
        fake_result(&fake, request, true, &last, 1);
        fake_result(&fake, request, false, others, 2);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(objects[0].status, KVT_ALREADY_HAVE);
        ck_assert_uint_eq(objects[0].lease, 0);
        ck_assert_uint_eq(objects[1].status, KVT_OK);
        ck_assert_uint_eq(objects[1].segments[0].arena_id, 1);
        ck_assert_uint_eq(objects[2].segments[0].arena_offset, 65536);
        expect_nothing_more();
}
END_TEST

START_TEST(large_batches_are_split_under_one_request)
{
        static struct kvt_object objects[2000];
        const struct wire_batch *batch;
        uint64_t request = 0;
        uint32_t n = 0;

        for (int i = 0; i < 2000; i++)
                objects[i].bytes = FAKE_OBJECT;
        ck_assert_int_eq(kvt_reserve(session, NULL, objects, 2000, NULL), KVT_OK);
        do {
                batch = fake_expect(&fake, WIRE_RESERVE);
                ck_assert_uint_eq(batch->first, n);
                ck_assert_uint_eq(batch->total, 2000);
                ck_assert(!request || request == batch->header.request);
                request = batch->header.request;
                n += batch->header.n_items;
        } while (batch->header.flags & WIRE_MORE);
        ck_assert_uint_eq(n, 2000);
}
END_TEST

START_TEST(a_daemon_that_does_not_read_blocks_nobody)
{
        static struct kvt_object objects[2000];
        enum kvt_status status = KVT_OK;
        const struct wire_batch *batch;
        uint32_t submitted = 0, n = 0;

        for (int i = 0; i < 2000; i++)
                objects[i].bytes = FAKE_OBJECT;
        for (; status == KVT_OK && submitted < 100; submitted++)
                status = kvt_reserve(session, NULL, objects, 2000, NULL);
        ck_assert_int_eq(status, KVT_REFUSED);
        /* What was queued arrives whole once the daemon reads. */
        while (n < submitted - 1) {
                batch = fake_expect(&fake, WIRE_RESERVE);
                n += !(batch->header.flags & WIRE_MORE);
        }
        fake_expect_silence(&fake, 20);
}
END_TEST

START_TEST(a_daemon_that_does_not_read_is_told_no_matches)
{
        static struct kvt_object objects[2000];
        struct wire_recent recent = {.nth = 0};
        struct kvt_object probe = {.bytes = 0};
        uint64_t request;
        uint32_t n = 0;

        ck_assert_int_eq(kvt_acquire(session, NULL, &probe, 1, NULL), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        for (int i = 0; i < 2000; i++)
                objects[i].bytes = FAKE_OBJECT;
        while (kvt_reserve(session, NULL, objects, 2000, NULL) == KVT_OK)
                n++;
        message_header_init(&recent.header, WIRE_RECENT, 1, fake.session, fake.boot_id);
        recent.header.length = sizeof(recent);
        fake_send(&fake, &recent, sizeof(recent), -1);
        /* Answered behind it: then it has been looked at. */
        fake_granted(&fake, request, KVT_MISS, 0);
        fake_result(&fake, request, false, NULL, 0);
        ck_assert_uint_eq(wait_one().status, KVT_MISS);
        while (n) {
                const struct wire_batch *batch = fake_expect(&fake, WIRE_RESERVE);

                n -= !(batch->header.flags & WIRE_MORE);
        }
        fake_expect_silence(&fake, 20);
        fake_send(&fake, &recent, sizeof(recent), -1);
        ck_assert_uint_eq(expect_request(WIRE_MATCHES), 1);
}
END_TEST

START_TEST(a_late_grant_is_given_back_after_timeout)
{
        struct kvt_object object = {.bytes = FAKE_OBJECT, .status = 99};
        struct kvt_call call = {.size = sizeof(call), .timeout_ns = MS(20)};
        struct fake_item item = granted(0, 77);
        uint64_t request;

        ck_assert_int_eq(kvt_reserve(session, &call, &object, 1, NULL), KVT_OK);
        request = expect_request(WIRE_RESERVE);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        ck_assert_uint_eq(object.status, KVT_TIMEOUT);
        ck_assert_uint_eq(object.lease, 0);
        ck_assert_uint_eq(((const struct wire_cancel *)fake_expect(&fake, WIRE_CANCEL))->target,
                          request);
        fake_result(&fake, request, false, &item, 1);
        ck_assert_uint_eq(expect_lease(WIRE_ABORT), 77);
        ck_assert_uint_eq(object.lease, 0);
        expect_nothing_more();
}
END_TEST

/* A set may be reserved by several calls, and lives until its commit or abort. */
START_TEST(a_late_grant_leaves_the_rest_of_its_set)
{
        struct kvt_object first = {.bytes = FAKE_OBJECT}, second = {.bytes = FAKE_OBJECT};
        struct kvt_call call = {.size = sizeof(call), .set = 7};
        struct fake_item item = granted(0, 76), late = granted(0, 77);
        const struct wire_batch *abort;
        uint64_t request, lease;
        struct message_cursor cursor;

        ck_assert_int_eq(kvt_reserve(session, &call, &first, 1, NULL), KVT_OK);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &item, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        call.timeout_ns = MS(20);
        ck_assert_int_eq(kvt_reserve(session, &call, &second, 1, NULL), KVT_OK);
        request = expect_request(WIRE_RESERVE);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        fake_expect(&fake, WIRE_CANCEL);
        fake_result(&fake, request, false, &late, 1);
        abort = fake_expect(&fake, WIRE_ABORT);
        ck_assert_uint_eq(abort->flags, WIRE_ABORT_MEMBERS);
        message_cursor_init(&cursor, abort);
        ck_assert_int_eq(message_next_lease(&cursor, &lease), 0);
        ck_assert_uint_eq(lease, 77);
        call.timeout_ns = 0;
        ck_assert_int_eq(kvt_commit(session, &call, &first, 1, NULL), KVT_OK);
        fake_expect(&fake, WIRE_COMMIT);
}
END_TEST

/* The same of what was granted before the deadline, in a call that has not ended by then. */
START_TEST(a_call_that_ends_early_leaves_the_rest_of_its_set)
{
        struct kvt_object objects[2] = {{.bytes = FAKE_OBJECT}, {.bytes = FAKE_OBJECT}};
        struct kvt_call call = {.size = sizeof(call), .set = 7, .timeout_ns = MS(100)};
        struct fake_item item = granted(0, 77);
        const struct wire_batch *abort;

        ck_assert_int_eq(kvt_reserve(session, &call, objects, 2, NULL), KVT_OK);
        fake_result(&fake, expect_request(WIRE_RESERVE), true, &item, 1);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        abort = fake_expect(&fake, WIRE_ABORT);
        ck_assert_uint_eq(abort->flags, WIRE_ABORT_MEMBERS);
        ck_assert_uint_eq(abort->header.n_items, 1);
}
END_TEST

START_TEST(a_late_grant_of_an_acquire_is_released)
{
        struct kvt_object object = {.bytes = 0};
        struct kvt_call call = {.size = sizeof(call), .timeout_ns = MS(20)};
        struct fake_item item = granted(0, 78);
        uint64_t request;

        ck_assert_int_eq(kvt_acquire(session, &call, &object, 1, NULL), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        fake_expect(&fake, WIRE_CANCEL);
        fake_granted(&fake, request, KVT_OK, 1);
        fake_result(&fake, request, false, &item, 1);
        ck_assert_uint_eq(expect_lease(WIRE_RELEASE), 78);
}
END_TEST

START_TEST(a_commit_that_timed_out_is_decided_by_the_late_answer)
{
        struct kvt_object object = hold(WIRE_RESERVE, 5), again;
        struct kvt_call call = {.size = sizeof(call), .timeout_ns = MS(20)};
        struct fake_item done = {.status = KVT_OK};
        uint64_t request;

        again = object;
        ck_assert_int_eq(kvt_commit(session, &call, &object, 1, NULL), KVT_OK);
        request = expect_request(WIRE_COMMIT);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        ck_assert_uint_eq(object.status, KVT_TIMEOUT);
        /* Undecided: nobody else may end it, the bytes are still mapped. */
        ck_assert_int_eq(kvt_abort(session, NULL, &again, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_GONE);
        fake_expect_silence(&fake, 10);
        fake_result(&fake, request, false, &done, 1);
        expect_nothing_more();
}
END_TEST

START_TEST(acquire_reports_the_decision_and_then_what_arrives)
{
        struct kvt_object objects[2] = {{.status = 99}, {.status = 99}};
        struct fake_item first[2] = {granted(0, 21), {.index = 1, .status = KVT_PENDING}};
        struct fake_item second = granted(1, 22);
        struct kvt_completion completion;
        uint64_t request;

        ck_assert_int_eq(kvt_acquire(session, NULL, objects, 2, NULL), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 2);
        fake_result(&fake, request, true, first, 2);
        completion = wait_one();
        ck_assert_uint_eq(completion.status, KVT_OK);
        ck_assert_uint_eq(completion.flags, KVT_COMPLETION_MORE);
        ck_assert_uint_eq(completion.n_granted, 2);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_eq(objects[1].status, KVT_PENDING);
        ck_assert_uint_eq(objects[1].lease, 0);
        fake_result(&fake, request, false, &second, 1);
        completion = wait_one();
        ck_assert_uint_eq(completion.flags, 0);
        ck_assert_uint_eq(objects[1].status, KVT_OK);
        ck_assert_uint_eq(objects[1].n_segments, 1);
        expect_nothing_more();
}
END_TEST

/* What a part does not speak of is not written to: the caller may have it in use. */
START_TEST(each_part_of_an_answer_tells_what_is_new)
{
        enum { N = 64, N_GRANTED = N / 2 };
        struct kvt_object objects[N] = {{.bytes = 0}};
        uint64_t request;

        ck_assert_int_eq(kvt_acquire(session, NULL, objects, N, NULL), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, N_GRANTED);
        for (uint32_t part = 0; part < N; part++) {
                /* 1, 4, 7, ... 0: not in their order. */
                struct fake_item item = {.index = (3 * part + 1) % N, .status = KVT_CORRUPT};

                for (uint32_t i = 0; i < N; i++)
                        objects[i].status = 99;
                fake_result(&fake, request, part + 1 < N, &item, 1);
                ck_assert_uint_eq(wait_one().flags, part + 1 < N ? KVT_COMPLETION_MORE : 0);
                for (uint32_t i = 0; i < N; i++) {
                        uint32_t first = i < N_GRANTED ? KVT_PENDING : KVT_MISS;

                        ck_assert_uint_eq(objects[i].status, i == item.index ? KVT_CORRUPT
                                                             : part          ? 99
                                                                             : first);
                }
        }
        expect_nothing_more();
}
END_TEST

START_TEST(an_acquire_that_waits_is_decided_later)
{
        struct kvt_object object = {.bytes = 0};
        struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAIT, .timeout_ns = SECONDS(5)};
        struct fake_item item = granted(0, 21);
        const struct wire_batch *batch;
        uint64_t request;

        ck_assert_int_eq(kvt_acquire(session, &call, &object, 1, NULL), KVT_OK);
        batch = fake_expect(&fake, WIRE_ACQUIRE);
        ck_assert_uint_eq(batch->flags, WIRE_ACQUIRE_WAIT);
        ck_assert_uint_eq(batch->timeout_ns, SECONDS(5));
        request = batch->header.request;
        fake_granted(&fake, request, KVT_PENDING, 0);
        fake_expect_silence(&fake, 10);
        expect_nothing_more();
        fake_granted(&fake, request, KVT_OK, 1);
        fake_result(&fake, request, false, &item, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        ck_assert_uint_eq(object.status, KVT_OK);
}
END_TEST

START_TEST(a_failed_promotion_is_a_miss_of_that_object_alone)
{
        struct kvt_object objects[2] = {{.bytes = 0}, {.bytes = 0}};
        struct fake_item items[2] = {granted(0, 21), {.index = 1, .status = KVT_CORRUPT}};
        uint64_t request;

        ck_assert_int_eq(kvt_acquire(session, NULL, objects, 2, NULL), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 2);
        fake_result(&fake, request, false, items, 2);
        ck_assert_uint_eq(wait_one().status, KVT_CORRUPT);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_ne(objects[0].lease, 0);
        ck_assert_uint_eq(objects[1].status, KVT_CORRUPT);
        ck_assert_uint_eq(objects[1].lease, 0);
}
END_TEST

START_TEST(a_refused_acquire_holds_nothing_and_names_what_is_resident)
{
        struct kvt_object object = {.bytes = 0};
        struct kvt_completion completion;
        uint64_t request;

        ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, NULL), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_BUSY, 0);
        fake_result(&fake, request, false, NULL, 0);
        completion = wait_one();
        ck_assert_uint_eq(completion.status, KVT_BUSY);
        ck_assert_uint_eq(object.status, KVT_BUSY);
        ck_assert_uint_eq(object.lease, 0);
}
END_TEST

START_TEST(a_deadline_after_the_decision_ends_only_what_is_pending)
{
        struct kvt_object objects[2] = {{.bytes = 0}, {.bytes = 0}};
        struct kvt_call call = {.size = sizeof(call), .timeout_ns = MS(100)};
        struct fake_item first[2] = {granted(0, 21), {.index = 1, .status = KVT_PENDING}};
        struct fake_item late = granted(1, 22);
        uint64_t request;

        ck_assert_int_eq(kvt_acquire(session, &call, objects, 2, NULL), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        fake_granted(&fake, request, KVT_OK, 2);
        fake_result(&fake, request, true, first, 2);
        ck_assert_uint_eq(wait_one().flags, KVT_COMPLETION_MORE);
        ck_assert_uint_eq(wait_one().status, KVT_TIMEOUT);
        ck_assert_uint_eq(objects[0].status, KVT_OK);
        ck_assert_uint_eq(objects[1].status, KVT_TIMEOUT);
        fake_expect(&fake, WIRE_CANCEL);
        fake_result(&fake, request, false, &late, 1);
        ck_assert_uint_eq(expect_lease(WIRE_RELEASE), 22);
        ck_assert_int_eq(kvt_release(session, NULL, objects, 1, NULL), KVT_OK);
        ck_assert_uint_eq(expect_lease(WIRE_RELEASE), 21);
}
END_TEST

START_TEST(a_cancel_completes_after_its_target)
{
        struct kvt_object object = {.bytes = 0};
        uint64_t target, cancel, request, cancel_request;

        ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, &target), KVT_OK);
        request = expect_request(WIRE_ACQUIRE);
        ck_assert_int_eq(kvt_cancel(session, NULL, target, &cancel), KVT_OK);
        cancel_request = expect_request(WIRE_CANCEL);
        expect_nothing_more();
        fake_granted(&fake, request, KVT_CANCELLED, 0);
        fake_result(&fake, request, false, NULL, 0);
        fake_result(&fake, cancel_request, false, NULL, 0);
        ck_assert_uint_eq(wait_one().call, target);
        ck_assert_uint_eq(object.status, KVT_CANCELLED);
        ck_assert_uint_eq(wait_one().call, cancel);
}
END_TEST

START_TEST(a_cancel_that_comes_too_late_leaves_the_targets_own_result)
{
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct fake_item item = granted(0, 5);
        uint64_t target, request, cancel_request;
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, &target), KVT_OK);
        request = expect_request(WIRE_RESERVE);
        ck_assert_int_eq(kvt_cancel(session, NULL, target, NULL), KVT_OK);
        cancel_request = expect_request(WIRE_CANCEL);
        fake_result(&fake, request, false, &item, 1);
        fake_result(&fake, cancel_request, false, NULL, 0);
        completion = wait_one();
        ck_assert_uint_eq(completion.call, target);
        ck_assert_uint_eq(completion.status, KVT_OK);
        ck_assert_uint_ne(object.lease, 0);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
}
END_TEST

START_TEST(a_cancel_whose_deadline_passes_still_ends_its_target_first)
{
        struct kvt_object object = {.bytes = 0};
        struct kvt_call call = {.size = sizeof(call), .timeout_ns = MS(20)};
        uint64_t target, cancel;
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, &target), KVT_OK);
        ck_assert_int_eq(kvt_cancel(session, &call, target, &cancel), KVT_OK);
        completion = wait_one();
        ck_assert_uint_eq(completion.call, target);
        ck_assert_uint_eq(completion.status, KVT_CANCELLED);
        completion = wait_one();
        ck_assert_uint_eq(completion.call, cancel);
        ck_assert_uint_eq(completion.status, KVT_TIMEOUT);
}
END_TEST

START_TEST(a_hang_up_completes_everything_with_unavailable)
{
        struct kvt_object held = hold(WIRE_RESERVE, 5);
        struct kvt_object objects[2] = {{.bytes = FAKE_OBJECT}, {.bytes = 0}};
        struct kvt_completion completions[4];
        size_t n = 0;

        ck_assert_int_eq(kvt_reserve(session, NULL, &objects[0], 1, NULL), KVT_OK);
        ck_assert_int_eq(kvt_acquire(session, NULL, &objects[1], 1, NULL), KVT_OK);
        ck_assert_int_eq(kvt_commit(session, NULL, &held, 1, NULL), KVT_OK);
        expect_request(WIRE_RESERVE);
        fake_hang_up(&fake);
        while (n < 3)
                n += kvt_wait(session, completions + n, 4 - n, SECONDS(5));
        for (size_t i = 0; i < 3; i++)
                ck_assert_uint_eq(completions[i].status, KVT_UNAVAILABLE);
        ck_assert_uint_eq(objects[0].status, KVT_UNAVAILABLE);
        ck_assert_uint_eq(objects[1].status, KVT_UNAVAILABLE);
        ck_assert_uint_eq(held.lease, 0);
        expect_nothing_more();
        /* Nothing is sent again. */
        fake_greet(&fake);
        fake_expect(&fake, WIRE_COPIES_ENDED);
        fake_expect_silence(&fake, 20);
}
END_TEST

START_TEST(a_dead_lease_stays_readable_until_released)
{
        struct kvt_object object = hold(WIRE_ACQUIRE, 5);
        char bytes[5];

        memcpy(fake.arenas[0], "alive", 5);
        fake_restart(&fake);
        fake_await(session, false);
        fake_greet(&fake);
        fake_await(session, true);
        ck_assert_int_eq(kvt_read(&object, 0, bytes, 5), KVT_OK);
        ck_assert_mem_eq(bytes, "alive", 5);
        ck_assert_int_eq(kvt_release(session, NULL, &object, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_GONE);
        ck_assert_uint_eq(object.lease, 0);
}
END_TEST

START_TEST(copies_ended_is_said_after_the_last_dead_lease_and_not_before)
{
        struct kvt_object first = hold(WIRE_ACQUIRE, 5), second = hold(WIRE_RESERVE, 6);
        const struct wire_copies_ended *ended;
        struct fake_item done = {.status = KVT_OK};
        uint8_t secret[16];

        memcpy(secret, fake.secret, sizeof(secret));
        fake_hang_up(&fake);
        fake_await(session, false);
        fake_greet(&fake);
        fake_await(session, true);
        ck_assert_int_eq(kvt_release(session, NULL, &first, 1, NULL), KVT_OK);
        fake_expect_silence(&fake, 30);
        ck_assert_int_eq(kvt_abort(session, NULL, &second, 1, NULL), KVT_OK);
        ended = fake_expect(&fake, WIRE_COPIES_ENDED);
        ck_assert_mem_eq(ended->secret, secret, 16);
        fake_result(&fake, ended->header.request, false, &done, 1);
        ck_assert_uint_eq(wait_one().status, KVT_GONE);
        ck_assert_uint_eq(wait_one().status, KVT_GONE);
        hold(WIRE_ACQUIRE, 7); /* the answer did no harm */
}
END_TEST

START_TEST(leases_ended_while_the_daemon_is_away_are_said_at_the_next_greeting)
{
        struct kvt_object object = hold(WIRE_ACQUIRE, 5);
        uint8_t secret[16];

        memcpy(secret, fake.secret, sizeof(secret));
        fake_hang_up(&fake);
        fake_await(session, false);
        ck_assert_int_eq(kvt_release(session, NULL, &object, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_GONE);
        fake_greet(&fake);
        ck_assert_mem_eq(
                ((const struct wire_copies_ended *)fake_expect(&fake, WIRE_COPIES_ENDED))->secret,
                secret, 16);
}
END_TEST

START_TEST(a_set_with_a_dead_member_publishes_nothing)
{
        struct kvt_object objects[2] = {hold(WIRE_RESERVE, 5)};
        struct kvt_call call = {.size = sizeof(call), .set = 3};
        struct fake_item done = {.status = KVT_OK};
        const struct wire_batch *batch;

        fake_hang_up(&fake);
        fake_await(session, false);
        fake_greet(&fake);
        fake_await(session, true);
        objects[1] = hold(WIRE_RESERVE, 6);
        ck_assert_int_eq(kvt_commit(session, &call, objects, 2, NULL), KVT_OK);
        batch = fake_expect(&fake, WIRE_ABORT);
        ck_assert_uint_eq(batch->set, 3);
        ck_assert_uint_eq(batch->total, 1);
        fake_result(&fake, batch->header.request, false, &done, 1);
        ck_assert_uint_eq(wait_one().status, KVT_GONE);
        ck_assert_uint_eq(objects[0].status, KVT_GONE);
        ck_assert_uint_eq(objects[1].status, KVT_GONE);
}
END_TEST

START_TEST(a_lease_ends_once)
{
        struct kvt_object object = hold(WIRE_ACQUIRE, 5), copy = object;
        struct fake_item done = {.status = KVT_OK};

        ck_assert_int_eq(kvt_abort(session, NULL, &copy, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_INVALID);
        ck_assert_int_eq(kvt_release(session, NULL, &object, 1, NULL), KVT_OK);
        ck_assert_int_eq(kvt_release(session, NULL, &copy, 1, NULL), KVT_OK);
        ck_assert_uint_eq(wait_one().status, KVT_GONE);
        fake_result(&fake, expect_request(WIRE_RELEASE), false, &done, 1);
        ck_assert_uint_eq(wait_one().status, KVT_OK);
        fake_expect_silence(&fake, 10);
}
END_TEST

START_TEST(bytes_outside_the_arenas_are_a_hang_up)
{
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct fake_item item = granted(0, 5);

        item.offset = FAKE_ARENA_BYTES - 4096;
        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_OK);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &item, 1);
        ck_assert_uint_eq(wait_one().status, KVT_UNAVAILABLE);
        ck_assert_uint_eq(object.lease, 0);
        fake_expect_hang_up(&fake);
}
END_TEST

START_TEST(the_eventfd_is_readable_while_completions_wait)
{
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct fake_item item = granted(0, 5);
        struct pollfd event = {.fd = kvt_fd(session), .events = POLLIN};

        ck_assert_int_eq(poll(&event, 1, 0), 0);
        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_OK);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &item, 1);
        ck_assert_int_eq(poll(&event, 1, 5000), 1);
        /* Results are written as they are reported, never behind the caller's back. */
        ck_assert_uint_eq(object.lease, 0);
        wait_one();
        ck_assert_uint_ne(object.lease, 0);
        ck_assert_int_eq(poll(&event, 1, 0), 0);
}
END_TEST

START_TEST(what_a_waiter_leaves_is_told_by_the_eventfd)
{
        struct kvt_object objects[2] = {{.bytes = FAKE_OBJECT}, {.bytes = FAKE_OBJECT}};
        struct fake_item item = granted(0, 5);
        struct pollfd event = {.fd = kvt_fd(session), .events = POLLIN};
        uint64_t requests[2];

        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(kvt_reserve(session, NULL, &objects[i], 1, NULL), KVT_OK);
                requests[i] = expect_request(WIRE_RESERVE);
        }
        for (int i = 0; i < 2; i++)
                fake_result(&fake, requests[i], false, &item, 1);
        wait_one();
        ck_assert_int_eq(poll(&event, 1, 5000), 1);
        wait_one();
        ck_assert_int_eq(poll(&event, 1, 0), 0);
        expect_nothing_more();
}
END_TEST

START_TEST(a_waited_call_is_reported_to_its_waiter_alone)
{
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct fake_item item = granted(0, 5);
        struct kvt_completion completion;
        uint64_t id;

        ck_assert_int_eq(kvt_reserve(session, &call, &object, 1, &id), KVT_OK);
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, MS(5)), KVT_TIMEOUT);
        fake_result(&fake, expect_request(WIRE_RESERVE), false, &item, 1);
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, SECONDS(5)), KVT_OK);
        ck_assert_uint_eq(completion.status, KVT_OK);
        ck_assert_uint_eq(object.status, KVT_OK);
        expect_nothing_more();
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, 0), KVT_INVALID);
}
END_TEST

START_TEST(neighbouring_pages_become_one_run)
{
        static const uint32_t first[] = {0, 1, 2, 7, 9, 10}, last[] = {5};
        static const struct wire_page_run expected[] = {{0, 3}, {7, 1}, {9, 2}};
        struct kvt_object objects[3] = {
                {.pages = first, .n_pages = 6}, {.group = 0}, {.pages = last, .n_pages = 1}};
        const struct wire_page_run *runs;
        const struct wire_header *header;
        struct message_cursor cursor;
        struct wire_key_item item;

        ck_assert_int_eq(kvt_acquire(session, NULL, objects, 3, NULL), KVT_OK);
        header = fake_expect(&fake, WIRE_ACQUIRE);
        message_cursor_init(&cursor, header);
        ck_assert_int_eq(message_next_key(&cursor, &item, &runs), 0);
        ck_assert_uint_eq(item.n_runs, 3);
        ck_assert_mem_eq(runs, expected, sizeof(expected));
        ck_assert_int_eq(message_next_key(&cursor, &item, &runs), 0);
        ck_assert_uint_eq(item.n_runs, 0);
        ck_assert_int_eq(message_next_key(&cursor, &item, &runs), 0);
        ck_assert_uint_eq(item.n_runs, 1);
        ck_assert_uint_eq(runs[0].first_page, 5);
}
END_TEST

/* 32,768 runs are many messages; one more is none. */
START_TEST(runs_of_a_call_are_limited)
{
        static struct kvt_object objects[WIRE_RUNS_TOTAL / 64 + 1];
        const struct wire_batch *batch;
        uint32_t pages[64], n = 0;

        for (uint32_t i = 0; i < 64; i++)
                pages[i] = 2 * i;
        for (uint32_t i = 0; i < WIRE_RUNS_TOTAL / 64 + 1; i++)
                objects[i] = (struct kvt_object){.pages = pages, .n_pages = 64};
        ck_assert_int_eq(kvt_acquire(session, NULL, objects, WIRE_RUNS_TOTAL / 64 + 1, NULL),
                         KVT_TOO_LARGE);
        fake_expect_silence(&fake, 10);
        ck_assert_int_eq(kvt_acquire(session, NULL, objects, WIRE_RUNS_TOTAL / 64, NULL), KVT_OK);
        do {
                batch = fake_expect(&fake, WIRE_ACQUIRE);
                ck_assert_uint_eq(batch->first, n);
                n += batch->header.n_items;
        } while (batch->header.flags & WIRE_MORE);
        ck_assert_uint_eq(n, WIRE_RUNS_TOTAL / 64);
}
END_TEST

START_TEST(bad_arguments_send_nothing)
{
        struct kvt_object object = {.bytes = 0};
        struct kvt_call call = {.size = sizeof(call), .flags = 1u << 30};
        static const uint32_t bad_pages[][2] = {{1, 0}, {1, 1}, {0, UINT32_MAX}};
        static const uint8_t token[16] = {1};

        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_INVALID);
        object.bytes = UINT64_MAX;
        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_TOO_LARGE);
        object.bytes = 1;
        ck_assert_int_eq(kvt_reserve(session, &call, &object, 1, NULL), KVT_UNSUPPORTED);
        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 0, NULL), KVT_INVALID);
        ck_assert_int_eq(kvt_reserve(NULL, NULL, &object, 1, NULL), KVT_INVALID);
        for (size_t i = 0; i < sizeof(bad_pages) / sizeof(bad_pages[0]); i++) {
                object.pages = bad_pages[i];
                object.n_pages = 2;
                ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, NULL), KVT_INVALID);
        }
        object = (struct kvt_object){.n_pages = 1};
        ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, NULL), KVT_INVALID);
        object = (struct kvt_object){.pages = bad_pages[0]};
        ck_assert_int_eq(kvt_acquire(session, NULL, &object, 1, NULL), KVT_INVALID);
        ck_assert_int_eq(kvt_adopt(session, NULL, token, &object, 1, NULL), KVT_INVALID);
        fake_expect_silence(&fake, 10);
}
END_TEST

static Suite *call_suite(void)
{
        Suite *suite = suite_create("client/call");
        TCase *tests = tcase_create("call");

        tcase_set_timeout(tests, 20);
        tcase_add_checked_fixture(tests, setup, teardown);
        tcase_add_test(tests, reserve_write_commit_reaches_the_daemons_memory);
        tcase_add_test(tests, results_may_come_in_any_order_and_in_parts);
        tcase_add_test(tests, large_batches_are_split_under_one_request);
        tcase_add_test(tests, a_daemon_that_does_not_read_blocks_nobody);
        tcase_add_test(tests, a_daemon_that_does_not_read_is_told_no_matches);
        tcase_add_test(tests, a_late_grant_is_given_back_after_timeout);
        tcase_add_test(tests, a_late_grant_leaves_the_rest_of_its_set);
        tcase_add_test(tests, a_call_that_ends_early_leaves_the_rest_of_its_set);
        tcase_add_test(tests, a_late_grant_of_an_acquire_is_released);
        tcase_add_test(tests, a_commit_that_timed_out_is_decided_by_the_late_answer);
        tcase_add_test(tests, acquire_reports_the_decision_and_then_what_arrives);
        tcase_add_test(tests, each_part_of_an_answer_tells_what_is_new);
        tcase_add_test(tests, an_acquire_that_waits_is_decided_later);
        tcase_add_test(tests, a_failed_promotion_is_a_miss_of_that_object_alone);
        tcase_add_test(tests, a_refused_acquire_holds_nothing_and_names_what_is_resident);
        tcase_add_test(tests, a_deadline_after_the_decision_ends_only_what_is_pending);
        tcase_add_test(tests, a_cancel_completes_after_its_target);
        tcase_add_test(tests, a_cancel_that_comes_too_late_leaves_the_targets_own_result);
        tcase_add_test(tests, a_cancel_whose_deadline_passes_still_ends_its_target_first);
        tcase_add_test(tests, a_hang_up_completes_everything_with_unavailable);
        tcase_add_test(tests, a_dead_lease_stays_readable_until_released);
        tcase_add_test(tests, copies_ended_is_said_after_the_last_dead_lease_and_not_before);
        tcase_add_test(tests, leases_ended_while_the_daemon_is_away_are_said_at_the_next_greeting);
        tcase_add_test(tests, a_set_with_a_dead_member_publishes_nothing);
        tcase_add_test(tests, a_lease_ends_once);
        tcase_add_test(tests, bytes_outside_the_arenas_are_a_hang_up);
        tcase_add_test(tests, the_eventfd_is_readable_while_completions_wait);
        tcase_add_test(tests, what_a_waiter_leaves_is_told_by_the_eventfd);
        tcase_add_test(tests, a_waited_call_is_reported_to_its_waiter_alone);
        tcase_add_test(tests, neighbouring_pages_become_one_run);
        tcase_add_test(tests, runs_of_a_call_are_limited);
        tcase_add_test(tests, bad_arguments_send_nothing);
        suite_add_tcase(suite, tests);
        return suite;
}

int main(void)
{
        SRunner *runner = srunner_create(call_suite());
        int failed;

        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
