// SPDX-License-Identifier: Apache-2.0
/*
 * The bridge between messages: requests, batches and rooms. The socket, the link and the
 * device are the test's: what the bridge says is noted, and grants are over when the test says.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/rdma/bridge.h"
#include "proto/status.h"

#define UNITS      64u
#define NOTES_MAX  64u
#define GRANTS_MAX 8u

/* What was said to the library or to the daemon. */
struct note {
        struct wire_header header;
        uint32_t n_ok;
        uint32_t status; /* of the last item */
        uint64_t set;
        uint32_t flags; /* of a batch */
};

struct notes {
        struct note notes[NOTES_MAX];
        uint32_t n;
};

static struct kvt__bridge bridge;
static struct notes told, said;
static struct rdma_grant_options grants[GRANTS_MAX];
static uint32_t n_grants;
static int grant_result; /* of the next ones */
static uint32_t failure; /* status; 0: none */
static uint8_t memory[UNITS * ROOM_UNIT];
static _Alignas(8) uint8_t from_daemon[WIRE_MESSAGE_MAX];

/* ---- the bridge's surroundings ---- */

static void note(struct notes *notes, const void *packet)
{
        struct note *to = &notes->notes[notes->n++];
        const struct wire_batch *batch = packet;
        const struct wire_extent *extents;
        struct message_cursor cursor;
        struct wire_result_item item;
        const uint64_t *pieces;

        ck_assert_uint_le(notes->n, NOTES_MAX);
        *to = (struct note){.header = batch->header};
        if (batch->header.kind == WIRE_ABORT || batch->header.kind == WIRE_RELEASE) {
                to->set = batch->set;
                to->flags = batch->flags;
        }
        if (batch->header.kind != WIRE_RESULT)
                return;
        message_cursor_init(&cursor, packet);
        while (!message_next_result(&cursor, &item, &extents, &pieces)) {
                to->n_ok += item.status == KVT_WIRE_OK;
                to->status = item.status;
        }
}

void bridge_tell(struct kvt__bridge *to, const void *packet, size_t length, int fd)
{
        (void)to;
        (void)length;
        (void)fd;
        note(&told, packet);
}

void bridge_forward(struct kvt__bridge *to, const struct wire_header *header)
{
        (void)to;
        note(&said, header);
}

void bridge_say(struct kvt__bridge *to, const void *packet, size_t length)
{
        (void)to;
        (void)length;
        note(&said, packet);
}

void bridge_beat(struct kvt__bridge *to)
{
        (void)to;
}

void bridge_fail(struct kvt__bridge *to, uint32_t status, const char *format, ...)
{
        (void)to;
        (void)format;
        failure = status;
}

struct rdma_connection *remote_link_connection(const struct remote_link *link)
{
        return (void *)(uintptr_t)link;
}

int rdma_grant_new(struct rdma_grant **ret_grant, struct rdma_connection *connection,
                   const struct rdma_grant_options *options)
{
        (void)connection;
        if (grant_result)
                return grant_result;
        ck_assert_uint_lt(n_grants, GRANTS_MAX);
        grants[n_grants] = *options;
        *ret_grant = (void *)&grants[n_grants++];
        return 0;
}

void rdma_grant_release(struct rdma_grant *grant)
{
        const struct rdma_grant_options *options = (const void *)grant;

        options->on_reusable(options->user, grant);
}

static void setup(void)
{
        static const uint8_t no_boot_id[16];

        bridge = (struct kvt__bridge){.base = memory, .bytes = sizeof(memory), .arena_id = 7};
        told.n = said.n = n_grants = 0;
        grant_result = 0;
        failure = 0;
        LIST_INIT(&bridge.eras);
        LIST_INIT(&bridge.batches);
        RB_INIT(&bridge.requests);
        bridge.link = (void *)memory;
        bridge.is_welcome = true;
        bridge.era = 1;
        bridge.result = aligned_alloc(8, WIRE_MESSAGE_MAX);
        bridge.own = aligned_alloc(8, WIRE_MESSAGE_MAX);
        bridge.packet_in = aligned_alloc(8, WIRE_MESSAGE_MAX);
        ck_assert(bridge.result && bridge.own && bridge.packet_in);
        ck_assert_int_eq(rooms_init(&bridge.rooms, sizeof(memory)), 0);
        ck_assert_int_eq(presence_table_new(&bridge.table, 1024, no_boot_id, 1000000), 0);
}

static void teardown(void)
{
        batches_drop(&bridge);
        bridge_requests_free(&bridge);
        rooms_deinit(&bridge.rooms);
        presence_table_free(bridge.table);
        free(bridge.result);
        free(bridge.own);
        free(bridge.packet_in);
}

/* ---- both ends ---- */

/* Items are not looked at by the bridge, but for those of COMMIT and the like. */
static void library_sends(uint16_t kind, uint64_t request, uint64_t set, const void *items,
                          size_t item_bytes, uint32_t n)
{
        struct wire_batch fixed = {.set = set, .total = n};
        struct message_builder builder;

        message_header_init(&fixed.header, kind, request, 0, bridge.boot_id);
        message_builder_init(&builder, bridge.packet_in, &fixed, sizeof(fixed));
        message_append(&builder, items, item_bytes * n, n);
        bridge_from_library(&bridge);
}

static void library_cancels(uint64_t request, uint64_t target)
{
        struct wire_cancel cancel = {.target = target};

        message_header_init(&cancel.header, WIRE_CANCEL, request, 0, bridge.boot_id);
        cancel.header.length = sizeof(cancel);
        memcpy(bridge.packet_in, &cancel, sizeof(cancel));
        bridge_from_library(&bridge);
}

static void daemon_answers(uint64_t request, const struct wire_result_item *items, uint32_t n,
                           bool more)
{
        struct message_builder builder;
        struct wire_header header;

        message_header_init(&header, WIRE_RESULT, request, 0, bridge.boot_id);
        message_builder_init(&builder, from_daemon, &header, sizeof(header));
        for (uint32_t i = 0; i < n; i++)
                message_append_result(&builder, &items[i], NULL, NULL);
        message_set_more(&builder, more);
        bridge_from_daemon(&bridge, (const void *)from_daemon);
}

static void daemon_says(uint64_t request, uint32_t status)
{
        struct wire_result_item item = {.status = status};

        daemon_answers(request, &item, 1, false);
}

static void daemon_grants(uint64_t request, uint32_t n, uint64_t bytes)
{
        struct wire_result_item items[8] = {{0}};

        for (uint32_t i = 0; i < n; i++)
                items[i] = (struct wire_result_item){
                        .index = i, .status = KVT_WIRE_OK, .lease = i + 1, .bytes = bytes};
        daemon_answers(request, items, n, false);
}

/* How often the library has been told the end of it. */
static uint32_t count_ends(uint64_t request)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < told.n; i++)
                n += told.notes[i].header.request == request &&
                     !(told.notes[i].header.flags & WIRE_MORE);
        return n;
}

static const struct note *last(const struct notes *notes)
{
        ck_assert_uint_gt(notes->n, 0);
        return &notes->notes[notes->n - 1];
}

static void acquire(uint64_t request)
{
        struct wire_key_item item = {{{0}}};

        library_sends(WIRE_ACQUIRE, request, 0, &item, sizeof(item), 1);
}

static void reserve(uint64_t request, uint64_t set, uint32_t n)
{
        struct wire_reserve_item items[8] = {{{{0}}}};

        library_sends(WIRE_RESERVE, request, set, items, sizeof(items[0]), n);
}

static void commit(uint64_t request, uint64_t lease)
{
        struct wire_commit_item item = {.lease = lease};

        library_sends(WIRE_COMMIT, request, 0, &item, sizeof(item), 1);
}

/* ---- cancels ---- */

START_TEST(each_cancel_of_an_acquire_is_answered_when_its_bytes_are_there)
{
        struct rdma_place place = {.address = 4096};

        acquire(1);
        daemon_grants(1, 1, 100);
        ck_assert_uint_eq(n_grants, 1);
        grants[0].on_granted(grants[0].user, (void *)&grants[0], RDMA_RESULT_DONE, &place);
        ck_assert_uint_eq(last(&said)->header.kind, WIRE_FETCH);
        for (uint64_t cancel = 2; cancel <= 4; cancel++) {
                uint64_t fetch = said.notes[1].header.request;

                library_cancels(cancel, 1);
                daemon_says(cancel, KVT_WIRE_OK);
                ck_assert_uint_eq(count_ends(cancel), 0);
                if (cancel == 4)
                        daemon_says(fetch, KVT_WIRE_OK);
        }
        for (uint64_t request = 1; request <= 4; request++)
                ck_assert_uint_eq(count_ends(request), 1);
        ck_assert(RB_EMPTY(&bridge.requests));
}
END_TEST

START_TEST(a_cancel_behind_a_commit_that_fails_is_answered)
{
        reserve(1, 0, 1);
        daemon_grants(1, 1, 100);
        commit(2, 1);
        library_cancels(3, 2);
        ck_assert_uint_eq(count_ends(3), 0);
        grants[0].on_granted(grants[0].user, (void *)&grants[0], RDMA_RESULT_TIMEOUT, NULL);
        grants[0].on_reusable(grants[0].user, (void *)&grants[0]);
        ck_assert_uint_eq(count_ends(2), 1);
        ck_assert_uint_eq(count_ends(3), 1);
        ck_assert(RB_EMPTY(&bridge.requests));
        ck_assert(RB_EMPTY(&bridge.rooms.tree));
}
END_TEST

START_TEST(windows_that_have_run_out_are_busy)
{
        acquire(1);
        daemon_grants(1, 1, 100);
        grants[0].on_granted(grants[0].user, (void *)&grants[0], RDMA_RESULT_FULL, NULL);
        grants[0].on_reusable(grants[0].user, (void *)&grants[0]);
        ck_assert_uint_eq(count_ends(1), 1);
        ck_assert_uint_eq(last(&told)->status, KVT_WIRE_BUSY);
        /* The daemon has its lease back. */
        ck_assert_uint_eq(last(&said)->header.kind, WIRE_RELEASE);
}
END_TEST

START_TEST(cancels_that_wait_go_with_the_connection)
{
        acquire(1);
        daemon_grants(1, 1, 100);
        library_cancels(2, 1);
        daemon_says(2, KVT_WIRE_OK);
        /* teardown() and a checker of leaks see the rest. */
        ck_assert_uint_eq(count_ends(2), 0);
        ck_assert(!bridge_request_find(&bridge, 2));
}
END_TEST

/* ---- rooms ---- */

START_TEST(what_finds_no_room_leaves_the_rest_of_its_set_alone)
{
        const struct note *abort;

        reserve(1, 7, 2);
        daemon_grants(1, 2, 40 * ROOM_UNIT);
        abort = last(&said);
        ck_assert_uint_eq(abort->header.kind, WIRE_ABORT);
        ck_assert_uint_eq(abort->header.n_items, 1);
        ck_assert_uint_eq(abort->set, 7);
        ck_assert_uint_eq(abort->flags, WIRE_ABORT_MEMBERS);
        ck_assert_uint_eq(last(&told)->n_ok, 1);
        ck_assert_uint_eq(last(&told)->status, KVT_WIRE_BUSY);
        ck_assert_ptr_nonnull(room_find(&bridge.rooms, 1, 1));
        ck_assert_ptr_null(room_find(&bridge.rooms, 1, 2));
}
END_TEST

START_TEST(the_rooms_of_a_set_end_with_it)
{
        uint64_t lease = 1;

        /* By the abort of one, in a batch of no set. */
        reserve(1, 7, 3);
        daemon_grants(1, 3, 100);
        library_sends(WIRE_ABORT, 2, 0, &lease, sizeof(lease), 1);
        daemon_says(2, KVT_WIRE_OK);
        ck_assert(RB_EMPTY(&bridge.rooms.tree));
        /* By a commit that names one of them, which is told what has become of the set. */
        reserve(3, 7, 2);
        daemon_grants(3, 2, 100);
        library_sends(WIRE_COMMIT, 4, 7, &(struct wire_commit_item){.lease = 9},
                      sizeof(struct wire_commit_item), 1);
        daemon_says(4, KVT_WIRE_INVALID);
        ck_assert_ptr_nonnull(room_find(&bridge.rooms, 1, 2));
        library_sends(WIRE_COMMIT, 5, 7, &(struct wire_commit_item){.lease = 9},
                      sizeof(struct wire_commit_item), 1);
        daemon_says(5, KVT_WIRE_GONE);
        ck_assert(RB_EMPTY(&bridge.rooms.tree));
}
END_TEST

START_TEST(a_member_that_is_given_back_alone_leaves_the_rooms_of_its_set)
{
        struct {
                struct wire_batch fixed;
                uint64_t lease;
        } abort = {.fixed = {.total = 1, .flags = WIRE_ABORT_MEMBERS}, .lease = 1};

        reserve(1, 7, 3);
        daemon_grants(1, 3, 100);
        message_header_init(&abort.fixed.header, WIRE_ABORT, 2, 0, bridge.boot_id);
        abort.fixed.header.n_items = 1;
        abort.fixed.header.length = sizeof(abort);
        memcpy(bridge.packet_in, &abort, sizeof(abort));
        bridge_from_library(&bridge);
        daemon_says(2, KVT_WIRE_OK);
        ck_assert_ptr_null(room_find(&bridge.rooms, 1, 1));
        ck_assert_ptr_nonnull(room_find(&bridge.rooms, 1, 2));
        ck_assert_ptr_nonnull(room_find(&bridge.rooms, 1, 3));
}
END_TEST

START_TEST(the_rooms_of_another_set_of_that_number_stay)
{
        struct wire_result_item granted = {.status = KVT_WIRE_OK, .lease = 2, .bytes = 100};

        reserve(1, 7, 1);
        daemon_grants(1, 1, 100);
        library_sends(WIRE_COMMIT, 2, 7, &(struct wire_commit_item){.lease = 9},
                      sizeof(struct wire_commit_item), 1);
        ck_assert_uint_eq(last(&said)->header.kind, WIRE_COMMIT);
        /* A commit that replaces is answered late; the daemon's set has ended with it. */
        reserve(3, 7, 1);
        daemon_answers(3, &granted, 1, false);
        daemon_says(2, KVT_WIRE_OK);
        ck_assert_ptr_null(room_find(&bridge.rooms, 1, 1));
        ck_assert_ptr_nonnull(room_find(&bridge.rooms, 1, 2));
        /* Its own commit ends it. */
        library_sends(WIRE_COMMIT, 4, 7, &(struct wire_commit_item){.lease = 9},
                      sizeof(struct wire_commit_item), 1);
        daemon_says(4, KVT_WIRE_OK);
        ck_assert(RB_EMPTY(&bridge.rooms.tree));
}
END_TEST

START_TEST(a_lease_that_is_granted_twice_is_hung_up_on)
{
        struct wire_result_item items[2];

        for (uint32_t i = 0; i < 2; i++)
                items[i] = (struct wire_result_item){
                        .index = i, .status = KVT_WIRE_OK, .lease = 5, .bytes = 100};
        reserve(1, 0, 2);
        daemon_answers(1, items, 2, false);
        ck_assert_uint_eq(failure, KVT_WIRE_UNAVAILABLE);
        ck_assert_ptr_nonnull(room_find(&bridge.rooms, 1, 5));
        rooms_end_era(&bridge.rooms, 1);
        ck_assert(RB_EMPTY(&bridge.rooms.tree));
        ck_assert_uint_eq(TAILQ_FIRST(&bridge.rooms.free)->length, sizeof(memory));
}
END_TEST

/* ---- what is found ---- */

START_TEST(a_find_that_was_refused_says_so_once)
{
        static const struct digest digests[2];
        struct wire_result_item item = {.status = KVT_WIRE_GONE};

        library_sends(WIRE_FIND, 1, 0, digests, sizeof(digests[0]), 2);
        /* By parts, as it was asked. */
        daemon_answers(1, &item, 1, true);
        ck_assert_uint_eq(count_ends(1), 0);
        item.index = 1;
        daemon_answers(1, &item, 1, false);
        ck_assert_uint_eq(count_ends(1), 1);
        ck_assert_uint_eq(last(&told)->status, KVT_WIRE_GONE);
        ck_assert_uint_eq(last(&told)->header.n_items, 1);
        ck_assert(RB_EMPTY(&bridge.requests));
}
END_TEST

/* The library has no business with it: the table is the bridge's. */
START_TEST(what_is_to_be_forgotten_leaves_the_table)
{
        const struct wire_header forget = {.kind = WIRE_FORGET, .length = sizeof(forget)};
        struct presence_bits bits;

        ck_assert_int_eq(presence_table_set(bridge.table, 77, 3, 3, 0), 0);
        bridge_from_daemon(&bridge, &forget);
        ck_assert(!presence_lookup(presence_table_view(bridge.table), 77, &bits));
        ck_assert_uint_eq(told.n, 0);
        ck_assert_uint_eq(failure, 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/bridge");
        TCase *all = tcase_create("bridge");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(all, setup, teardown);
        tcase_add_test(all, each_cancel_of_an_acquire_is_answered_when_its_bytes_are_there);
        tcase_add_test(all, a_cancel_behind_a_commit_that_fails_is_answered);
        tcase_add_test(all, windows_that_have_run_out_are_busy);
        tcase_add_test(all, cancels_that_wait_go_with_the_connection);
        tcase_add_test(all, what_finds_no_room_leaves_the_rest_of_its_set_alone);
        tcase_add_test(all, the_rooms_of_a_set_end_with_it);
        tcase_add_test(all, a_member_that_is_given_back_alone_leaves_the_rooms_of_its_set);
        tcase_add_test(all, the_rooms_of_another_set_of_that_number_stay);
        tcase_add_test(all, a_lease_that_is_granted_twice_is_hung_up_on);
        tcase_add_test(all, a_find_that_was_refused_says_so_once);
        tcase_add_test(all, what_is_to_be_forgotten_leaves_the_table);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
