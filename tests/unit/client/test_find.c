// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions whose engine has shards on other nodes: shard 0 is here, shard 1 is not.
 */
#include <check.h>
#include <string.h>

#include "fake_daemon.h"
#include "proto/message.h"

#define N_DIGESTS 100u
#define OURS      UINT64_C(1)
#define BOTH      UINT64_C(3)
#define SECOND    UINT64_C(1000000000)

static struct fake fake;
static struct kvt_session *session;
static struct kvt_digest digests[N_DIGESTS];

static void setup_whole(void)
{
        fake_start(&fake, false);
        session = fake_open(&fake);
}

static void setup(void)
{
        static const uint16_t shards[] = {0};
        static struct kvt_group group;

        fake_start(&fake, false);
        group = fake.layout.groups[0];
        group.shards = 2;
        fake.layout.groups = &group;
        fake.shards = shards;
        fake.n_shards = 1;
        session = fake_open(&fake);
        for (uint32_t i = 0; i < N_DIGESTS; i++)
                digests[i].bytes[0] = (uint8_t)(i + 1);
}

static void teardown(void)
{
        if (fake.socket >= 0)
                fake_hang_up(&fake);
        kvt_close(session);
        fake_stop(&fake);
}

/* Boundaries first..last (counted from 1) get these bits in the node's own table. */
static void put(uint32_t first, uint32_t last, uint64_t present)
{
        for (uint32_t i = first; i <= last; i++)
                fake_put(&fake, &digests[i - 1], present, present);
}

static struct kvt_match match(void)
{
        struct kvt_match_query query = {
                .size = sizeof(query), .digests = digests, .n_digests = N_DIGESTS};
        struct kvt_match found = {.size = sizeof(found)};

        ck_assert_int_eq(kvt_match(session, &query, &found), KVT_OK);
        return found;
}

static uint64_t begin_find(uint32_t n)
{
        const struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        uint64_t id;

        ck_assert_int_eq(kvt_find(session, &call, digests, n, &id), KVT_OK);
        return id;
}

static enum kvt_status wait_for(uint64_t id)
{
        struct kvt_completion completion;

        ck_assert_int_eq(kvt_wait_call(session, id, &completion, 5 * SECOND), KVT_OK);
        return completion.status;
}

/* Boundaries @first to @last of request @id have these bits. */
static void answer(uint64_t id, uint32_t first, uint32_t last, uint64_t present, uint64_t resident,
                   bool more)
{
        struct wire_found found = {.first = first - 1, .n_banks = 1};
        const struct wire_found_bits bits = {.present = present, .resident = resident};
        struct message_builder builder;

        message_header_init(&found.header, WIRE_FOUND, id, fake.session, fake.boot_id);
        message_builder_init(&builder, fake.packet, &found, sizeof(found));
        for (uint32_t i = first; i <= last; i++)
                message_append(&builder, &bits, sizeof(bits), 1);
        message_set_more(&builder, more);
        fake_send(&fake, fake.packet, builder.length, -1);
}

static void find(uint32_t n, uint32_t n_found)
{
        uint64_t id = begin_find(n);
        const struct wire_batch *batch = fake_expect(&fake, WIRE_FIND);

        ck_assert_uint_eq(batch->header.n_items, n);
        answer(id, 1, n_found, BOTH, BOTH, n_found < n);
        if (n_found < n)
                answer(id, n_found + 1, n, OURS, OURS, false);
        ck_assert_int_eq(wait_for(id), KVT_OK);
}

static void forget(void)
{
        struct wire_header header;

        message_header_init(&header, WIRE_FORGET, 0, fake.session, fake.boot_id);
        header.length = sizeof(header);
        fake_send(&fake, &header, sizeof(header), -1);
}

/* What was sent before it has been read: its answer comes behind. It is of none of the others. */
static void settle(void)
{
        const struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        const struct kvt_digest last = {{0}};
        uint64_t id;

        ck_assert_int_eq(kvt_find(session, &call, &last, 1, &id), KVT_OK);
        fake_expect(&fake, WIRE_FIND);
        answer(id, 1, 1, 0, 0, false);
        ck_assert_int_eq(wait_for(id), KVT_OK);
}

/* Whatever this node's own table says, also of the shard that is elsewhere. */
START_TEST(match_says_nothing_before_the_other_nodes_are_asked)
{
        put(1, 10, BOTH);
        ck_assert_uint_eq(match().boundaries, 0);
        ck_assert_uint_eq(match().kv_boundaries, 0);
}
END_TEST

START_TEST(match_shows_what_was_found)
{
        put(1, 10, OURS);
        find(10, 7);
        ck_assert_uint_eq(match().boundaries, 7);
        ck_assert_uint_eq(match().kv_boundaries, 7);
        ck_assert_uint_eq(match().resident_boundaries, 7);
}
END_TEST

START_TEST(what_is_below_elsewhere_is_not_resident)
{
        uint64_t id = begin_find(4);

        put(1, 4, OURS);
        fake_expect(&fake, WIRE_FIND);
        answer(id, 1, 2, BOTH, BOTH, true);
        answer(id, 3, 4, BOTH, OURS, false);
        ck_assert_int_eq(wait_for(id), KVT_OK);
        ck_assert_uint_eq(match().boundaries, 4);
        ck_assert_uint_eq(match().resident_boundaries, 2);
}
END_TEST

START_TEST(what_has_gone_from_here_since_is_not_shown)
{
        put(1, 10, OURS);
        find(10, 10);
        put(6, 6, 0);
        ck_assert_uint_eq(match().boundaries, 5);
}
END_TEST

START_TEST(a_later_answer_takes_the_place_of_an_earlier)
{
        put(1, 10, OURS);
        find(10, 10);
        find(10, 3);
        ck_assert_uint_eq(match().boundaries, 3);
        find(10, 8);
        ck_assert_uint_eq(match().boundaries, 8);
}
END_TEST

START_TEST(what_is_to_be_forgotten_is_not_shown)
{
        put(1, 10, OURS);
        find(10, 10);
        forget();
        settle();
        ck_assert_uint_eq(match().boundaries, 0);
        find(10, 10);
        ck_assert_uint_eq(match().boundaries, 10);
}
END_TEST

/* A session of all shards, which has no table of what was found. */
START_TEST(nothing_to_forget_is_no_fault)
{
        const struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        const struct wire_header *header;
        uint64_t id, request;

        ck_assert_int_eq(kvt_acquire(session, &call, &object, 1, &id), KVT_OK);
        header = fake_expect(&fake, WIRE_ACQUIRE);
        request = header->request;
        forget();
        /* Answered behind it: then it has been looked at. */
        fake_granted(&fake, request, KVT_MISS, 0);
        fake_result(&fake, request, false, NULL, 0);
        ck_assert_int_eq(wait_for(id), KVT_MISS);
}
END_TEST

START_TEST(another_connection_has_found_nothing)
{
        put(1, 10, OURS);
        find(10, 10);
        fake_hang_up(&fake);
        fake_await(session, false);
        fake_greet(&fake);
        fake_await(session, true);
        ck_assert_uint_eq(match().boundaries, 0);
}
END_TEST

START_TEST(a_probe_shows_what_was_found)
{
        uint64_t present[3], resident[3];

        put(1, 3, BOTH);
        find(3, 2);
        ck_assert_int_eq(kvt_probe(session, digests, 3, present, resident), KVT_OK);
        ck_assert_uint_eq(present[1], BOTH);
        ck_assert_uint_eq(resident[1], BOTH);
        ck_assert_uint_eq(present[2], OURS);
}
END_TEST

START_TEST(a_find_that_the_daemon_does_not_answer_ends_at_its_deadline)
{
        const struct kvt_call call = {
                .size = sizeof(call), .flags = KVT_CALL_WAITED, .timeout_ns = SECOND / 20};
        uint64_t id;

        ck_assert_int_eq(kvt_find(session, &call, digests, 4, &id), KVT_OK);
        fake_expect(&fake, WIRE_FIND);
        ck_assert_int_eq(wait_for(id), KVT_TIMEOUT);
        ck_assert_uint_eq(match().boundaries, 0);
        answer(id, 1, 4, BOTH, BOTH, false);
        settle();
        ck_assert(fake.socket >= 0);
}
END_TEST

START_TEST(a_daemon_that_finds_what_was_not_looked_for_is_hung_up_on)
{
        uint64_t id = begin_find(4);

        fake_expect(&fake, WIRE_FIND);
        answer(_i ? id : id + 1, 1, 5, BOTH, BOTH, false);
        fake_expect_hang_up(&fake);
        ck_assert_int_eq(wait_for(id), KVT_UNAVAILABLE);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/find");
        TCase *tcase = tcase_create("find"), *whole = tcase_create("whole");
        SRunner *runner;
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, match_says_nothing_before_the_other_nodes_are_asked);
        tcase_add_test(tcase, match_shows_what_was_found);
        tcase_add_test(tcase, what_is_below_elsewhere_is_not_resident);
        tcase_add_test(tcase, what_has_gone_from_here_since_is_not_shown);
        tcase_add_test(tcase, a_later_answer_takes_the_place_of_an_earlier);
        tcase_add_test(tcase, what_is_to_be_forgotten_is_not_shown);
        tcase_add_test(tcase, another_connection_has_found_nothing);
        tcase_add_test(tcase, a_probe_shows_what_was_found);
        tcase_add_test(tcase, a_find_that_the_daemon_does_not_answer_ends_at_its_deadline);
        tcase_add_loop_test(tcase, a_daemon_that_finds_what_was_not_looked_for_is_hung_up_on, 0, 2);
        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(whole, setup_whole, teardown);
        tcase_add_test(whole, nothing_to_forget_is_no_fault);
        suite_add_tcase(suite, whole);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
