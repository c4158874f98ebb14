// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/rdma/test_rdma.h"

#define MANY 300u

/* The messages of a side are numbered; their lengths differ. */
static size_t make_message(uint8_t bytes[1024], uint32_t number)
{
        size_t length = sizeof(number) + number * 37 % 1000;

        memset(bytes, (int)number, length);
        memcpy(bytes, &number, sizeof(number));
        return length;
}

static void check_message(struct side *side, const void *bytes, size_t length)
{
        uint8_t expected[1024];

        ck_assert_uint_eq(length, make_message(expected, side->n_messages - 1));
        ck_assert(!memcmp(bytes, expected, length));
}

/* As many as the queue takes. */
static void send_more(struct side *side, uint32_t *n_sent)
{
        uint8_t bytes[1024];

        while (*n_sent < MANY) {
                size_t length = make_message(bytes, *n_sent);
                int r = rdma_connection_send(side->connection, bytes, length);

                if (r) {
                        ck_assert_int_eq(r, RDMA_E_FULL);
                        return;
                }
                ++*n_sent;
        }
}

START_TEST(messages_arrive_whole_and_in_order_when_credits_run_out_both_ways)
{
        uint64_t until_ns = side_now_ns() + 30 * SIDE_SECOND;
        uint32_t n_server = 0, n_client = 0;
        struct rdma_port_stats stats;
        struct pair pair;

        pair_init(&pair);
        pair.server.on_message = pair.client.on_message = check_message;
        pair_open(&pair, 0);
        /* Nobody takes anything: credits, then queues are used up, and then there is no more. */
        for (int n_more = 0; n_more < 20 && side_now_ns() < until_ns; usleep(10000)) {
                send_more(&pair.server, &n_server);
                send_more(&pair.client, &n_client);
                n_more += n_client >= 8 + 16 && n_server >= 8 + 16;
        }
        ck_assert_uint_eq(n_client, 8 + 16);
        ck_assert_uint_eq(n_server, 8 + 16);
        while ((pair.server.n_messages < MANY || pair.client.n_messages < MANY) &&
               side_now_ns() < until_ns) {
                uint32_t n = pair.client.n_messages;

                send_more(&pair.server, &n_server);
                send_more(&pair.client, &n_client);
                pair_wait_for(&pair, &pair.client.n_messages, n + 1, 10 * MS);
        }
        ck_assert_uint_eq(pair.server.n_messages, MANY);
        ck_assert_uint_eq(pair.client.n_messages, MANY);
        ck_assert_uint_gt(pair.client.n_rooms, 0);
        rdma_port_stats(pair.client.port, &stats);
        ck_assert_uint_gt(stats.credit_waits, 0);
        ck_assert_uint_eq(stats.messages_sent, MANY);
        ck_assert_uint_eq(stats.messages_received, MANY);
        pair_close(&pair);
}
END_TEST

START_TEST(one_way_alone_credits_come_back_too)
{
        uint64_t until_ns = side_now_ns() + 30 * SIDE_SECOND;
        struct pair pair;
        uint32_t n = 0;

        pair_init(&pair);
        pair.server.on_message = check_message;
        pair_open(&pair, 0);
        while (pair.server.n_messages < MANY && side_now_ns() < until_ns) {
                send_more(&pair.client, &n);
                pair_wait_for(&pair, &pair.server.n_messages, n, 10 * MS);
        }
        ck_assert_uint_eq(pair.server.n_messages, MANY);
        pair_close(&pair);
}
END_TEST

START_TEST(a_message_has_a_least_and_a_greatest_length)
{
        static const uint8_t bytes[4096];
        struct pair pair;
        size_t most;

        pair_init(&pair);
        pair.server.options.message_bytes = 1024;
        pair_open(&pair, 0);
        most = rdma_connection_message_max(pair.client.connection);
        ck_assert_uint_eq(most, 1024 - 16);
        ck_assert_uint_eq(rdma_connection_message_max(pair.server.connection), most);
        ck_assert_int_eq(rdma_connection_send(pair.client.connection, bytes, most + 1),
                         RDMA_E_INVALID);
        ck_assert_int_eq(rdma_connection_send(pair.client.connection, bytes, 0), RDMA_E_INVALID);
        ck_assert_int_eq(rdma_connection_send(pair.client.connection, bytes, most), 0);
        ck_assert(pair_wait_for(&pair, &pair.server.n_messages, 1, 20 * SIDE_SECOND));
        ck_assert_uint_eq(pair.server.last_bytes, most);
        pair_close(&pair);
}
END_TEST

START_TEST(a_peer_that_takes_no_messages_is_given_up_at_the_deadline)
{
        uint32_t n = 0;
        struct pair pair;
        struct side_moment start;

        pair_init(&pair);
        pair.client.options.message_ns = SIDE_SECOND;
        pair_open(&pair, 0);
        start = side_moment();
        send_more(&pair.client, &n);
        /* Its helper lives and echoes; its owner sleeps. */
        ck_assert(side_wait(&pair.client, &pair.client.is_closed, 20 * SIDE_SECOND));
        ck_assert_int_eq(pair.client.end, RDMA_END_TIMEOUT);
        ck_assert_str_eq(pair.client.why, "the peer takes no messages");
        side_expect_took(start, pair.client.closed, SIDE_SECOND, 3 * SIDE_SECOND);
        ck_assert(pair_wait(&pair, &pair.server.is_closed, 20 * SIDE_SECOND));
        ck_assert_int_eq(pair.server.end, RDMA_END_PEER_CLOSED);
        pair_close(&pair);
}
END_TEST

START_TEST(silence_of_both_owners_keeps_a_connection)
{
        struct rdma_port_stats stats, theirs;
        struct pair pair;

        pair_init(&pair);
        pair.client.options.idle_ns = pair.server.options.idle_ns = 100 * MS;
        pair.client.options.silence_ns = pair.server.options.silence_ns = 2 * SIDE_SECOND;
        pair_open(&pair, 0);
        pair_run(&pair, 5 * SIDE_SECOND);
        ck_assert_msg(!pair.client.is_closed, "%s", pair.client.why);
        ck_assert_msg(!pair.server.is_closed, "%s", pair.server.why);
        rdma_port_stats(pair.client.port, &stats);
        rdma_port_stats(pair.server.port, &theirs);
        ck_assert_uint_gt(stats.nudges + theirs.nudges, 5);
        pair_close(&pair);
}
END_TEST

TCase *message_case(void)
{
        TCase *message = tcase_create("message");

        tcase_set_timeout(message, 60);
        tcase_add_test(message, messages_arrive_whole_and_in_order_when_credits_run_out_both_ways);
        tcase_add_test(message, one_way_alone_credits_come_back_too);
        tcase_add_test(message, a_message_has_a_least_and_a_greatest_length);
        tcase_add_test(message, a_peer_that_takes_no_messages_is_given_up_at_the_deadline);
        tcase_add_test(message, silence_of_both_owners_keeps_a_connection);
        return message;
}
