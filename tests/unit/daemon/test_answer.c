// SPDX-License-Identifier: Apache-2.0
/* Answers: each item once, split over messages that the library accepts, in order. */
#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/answer.h"
#include "daemon/daemon.h"
#include "daemon/session_socket.h"

static uv_loop_t loop;
static struct daemon state;
static struct session session;
static int client;
static _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];

static void setup(void)
{
        int pair[2];

        memset(&state, 0, sizeof(state));
        memset(&session, 0, sizeof(session));
        ck_assert(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair));
        ck_assert(!uv_loop_init(&loop));
        ck_assert(!uv_poll_init(&loop, &session.socket_poll, pair[0]));
        session.socket_poll.data = &session;
        state.is_closing = true; /* nobody to wake */
        session.daemon = &state;
        session.state = SESSION_ATTACHED;
        session.id = 5;
        session.carrier = &session_socket_carrier;
        session.fd = pair[0];
        TAILQ_INIT(&session.output);
        client = pair[1];
}

static void teardown(void)
{
        struct session_output *output;

        while ((output = TAILQ_FIRST(&session.output))) {
                TAILQ_REMOVE(&session.output, output, link);
                free(output);
        }
        uv_close((uv_handle_t *)&session.socket_poll, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert(!uv_loop_close(&loop));
        close(session.fd);
        close(client);
}

/* The next message, checked as the library does; NULL when there is none now. */
static const struct wire_header *receive(void)
{
        ssize_t n = recv(client, packet, sizeof(packet), MSG_DONTWAIT);
        const struct wire_header *header = (const void *)packet;
        struct why why = {""};

        if (n < 0)
                return NULL;
        ck_assert_msg(!message_check(packet, (size_t)n, &why), "%s", why.text);
        ck_assert_uint_eq(header->kind, WIRE_RESULT);
        ck_assert_uint_eq(header->session, 5);
        return header;
}

/* Reads until the end of the answer; items have to come with the indexes 0 .. n - 1. */
static uint32_t read_statuses(uint64_t request, uint32_t status)
{
        const struct wire_header *header;
        uint32_t n = 0;

        do {
                struct message_cursor cursor;
                struct wire_result_item item;
                const struct wire_extent *extents;
                const uint64_t *pieces;

                while (!(header = receive()))
                        uv_run(&loop, UV_RUN_ONCE);
                ck_assert_uint_eq(header->request, request);
                message_cursor_init(&cursor, header);
                while (!message_next_result(&cursor, &item, &extents, &pieces)) {
                        ck_assert_uint_eq(item.index, n++);
                        ck_assert_uint_eq(item.status, status);
                }
        } while (header->flags & WIRE_MORE);
        return n;
}

START_TEST(a_long_answer_is_split_and_its_last_message_says_so)
{
        struct answer answer;

        answer_begin(&answer, &session, 9);
        for (uint32_t i = 0; i < 5000; i++)
                answer_status(&answer, i, KVT_WIRE_BUSY);
        answer_end(&answer, false);
        ck_assert_uint_eq(read_statuses(9, KVT_WIRE_BUSY), 5000);
        ck_assert_ptr_null(receive());
}
END_TEST

START_TEST(an_answer_without_items_is_an_answer)
{
        struct answer answer;

        answer_begin(&answer, &session, 9);
        answer_end(&answer, false);
        ck_assert_uint_eq(read_statuses(9, KVT_WIRE_OK), 0);
        answer_once(&session, 10, KVT_WIRE_GONE);
        ck_assert_uint_eq(read_statuses(10, KVT_WIRE_GONE), 1);
}
END_TEST

START_TEST(a_part_that_is_not_looked_into_is_answered_for_each_object)
{
        struct wire_batch part = {.header = {.request = 9, .n_items = 3, .flags = WIRE_MORE},
                                  .total = 5};

        answer_part(&session, &part, KVT_WIRE_GONE);
        part.header.flags = 0;
        part.header.n_items = 2;
        part.first = 3;
        answer_part(&session, &part, KVT_WIRE_GONE);
        ck_assert_uint_eq(read_statuses(9, KVT_WIRE_GONE), 5);
}
END_TEST

START_TEST(what_the_socket_does_not_take_comes_later_in_order)
{
        for (uint64_t request = 1; request <= 20; request++) {
                struct answer answer;

                answer_begin(&answer, &session, request);
                for (uint32_t i = 0; i < 4000; i++)
                        answer_status(&answer, i, KVT_WIRE_OK);
                answer_end(&answer, false);
        }
        ck_assert_uint_gt(session.output_bytes, 0);
        for (uint64_t request = 1; request <= 20; request++)
                ck_assert_uint_eq(read_statuses(request, KVT_WIRE_OK), 4000);
        ck_assert_uint_eq(session.output_bytes, 0);
        ck_assert_int_eq(session.state, SESSION_ATTACHED);
}
END_TEST

START_TEST(who_does_not_read_is_disconnected_and_nothing_more_is_queued)
{
        uint64_t before;

        for (uint64_t i = 1; session.state == SESSION_ATTACHED; i++) {
                struct answer answer;

                answer_begin(&answer, &session, i);
                for (uint32_t n = 0; n < 16384; n++)
                        answer_status(&answer, n, KVT_WIRE_OK);
                answer_end(&answer, false);
                ck_assert_uint_lt(i, 1000);
        }
        ck_assert_uint_eq(state.metrics.disconnects_total[METRICS_NOT_READING], 1);
        before = session.output_bytes;
        answer_once(&session, 1, KVT_WIRE_OK);
        ck_assert_uint_eq(session.output_bytes, before);
        ck_assert_uint_le(before, UINT64_C(32) << 20);
}
END_TEST

START_TEST(a_copy_comes_with_its_extents_and_checksums_as_asked_for)
{
        struct checksum_list checksums = {.n_pieces = CHECKSUM_PIECES_MAX};
        struct host_extent extents[HOST_EXTENTS_MAX];
        struct host_copy copy = {
                .extents = extents,
                .n_extents = HOST_EXTENTS_MAX,
                .generation = 44,
                .raw_bytes = 1000,
                .checksums = &checksums,
        };
        struct answer answer;
        uint32_t n = 0;
        bool more = true;

        for (uint32_t i = 0; i < HOST_EXTENTS_MAX; i++)
                extents[i] = (struct host_extent){7, 0, i * 8192, 4096};
        checksums.pieces[CHECKSUM_PIECES_MAX - 1] = 99;
        answer_begin(&answer, &session, 9);
        for (uint32_t i = 0; i < 60; i++)
                answer_copy(&answer, i, KVT_WIRE_OK, 1000 + i, &copy, i % 2, i % 3 == 0);
        answer_end(&answer, false);
        while (more) {
                const struct wire_header *header = receive();
                struct message_cursor cursor;
                struct wire_result_item item;
                const struct wire_extent *got;
                const uint64_t *pieces;

                ck_assert_ptr_nonnull(header);
                message_cursor_init(&cursor, header);
                for (; !message_next_result(&cursor, &item, &got, &pieces); n++) {
                        ck_assert_uint_eq(item.index, n);
                        ck_assert_uint_eq(item.lease, 1000 + n);
                        ck_assert_uint_eq(item.generation, 44);
                        ck_assert_uint_eq(item.n_extents, n % 2 ? HOST_EXTENTS_MAX : 0);
                        ck_assert_uint_eq(item.n_pieces, n % 3 ? 0 : CHECKSUM_PIECES_MAX);
                        if (n % 2)
                                ck_assert_uint_eq(got[HOST_EXTENTS_MAX - 1].offset, 63 * 8192);
                        if (n % 3 == 0)
                                ck_assert_uint_eq(pieces[CHECKSUM_PIECES_MAX - 1], 99);
                }
                more = header->flags & WIRE_MORE;
        }
        ck_assert_uint_eq(n, 60);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/answer");
        TCase *tcase = tcase_create("answer");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_long_answer_is_split_and_its_last_message_says_so);
        tcase_add_test(tcase, an_answer_without_items_is_an_answer);
        tcase_add_test(tcase, what_the_socket_does_not_take_comes_later_in_order);
        tcase_add_test(tcase, who_does_not_read_is_disconnected_and_nothing_more_is_queued);
        tcase_add_test(tcase, a_copy_comes_with_its_extents_and_checksums_as_asked_for);
        tcase_add_test(tcase, a_part_that_is_not_looked_into_is_answered_for_each_object);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
