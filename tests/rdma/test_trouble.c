// SPDX-License-Identifier: Apache-2.0
/*
 * Bad wires, dead wires, dead and stopped peers. Times are as measured by the client: a peer is
 * lost within 3 s, an operation ends at its deadline.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/rdma/test_rdma.h"

#define LOST_NS (3 * SIDE_SECOND)

static void mend(void)
{
        run_command("wire bad");
}

static void mend_anew(void)
{
        mend();
        run_command("wire up");
}

/* With the times that the library takes by itself: what is measured here. */
static void init(struct pair *pair)
{
        pair_init(pair);
        pair->client.options.silence_ns = pair->server.options.silence_ns = 0;
}

static void transfer_over(const char *netem)
{
        const size_t length = 4 * MIB;
        struct pair pair;

        run_command("wire bad %s", netem);
        pair_init(&pair);
        pair_open(&pair, length);
        fill(pair.server.memory, length, 11);
        grant(&pair, 0, length, false);
        ck_assert_int_eq(move(&pair, 0, length, (uintptr_t)pair.server.memory, false),
                         RDMA_RESULT_DONE);
        ck_assert(!memcmp(pair.server.memory, pair.client.memory, length));
        take_back(&pair);
        fill(pair.client.memory, length, 12);
        grant(&pair, 0, length, true);
        ck_assert_int_eq(move(&pair, 0, length, (uintptr_t)pair.server.memory, true),
                         RDMA_RESULT_DONE);
        ck_assert(!memcmp(pair.server.memory, pair.client.memory, length));
        take_back(&pair);
        pair_close(&pair);
}

START_TEST(transfers_are_exact_over_a_wire_that_loses_one_in_a_hundred)
{
        transfer_over("loss 1%");
}
END_TEST

START_TEST(transfers_are_exact_over_a_wire_that_delays)
{
        transfer_over("delay 5ms");
}
END_TEST

/* 64 MiB are under way for five seconds then. */
static void slow_down(void)
{
        run_command("wire bad rate 100mbit");
}

/* A read that has begun, of more than the wire carries until it is met. */
static void start_long_read(struct pair *pair, struct side_transfer *transfer, size_t length,
                            uint64_t timeout_ns)
{
        const struct rdma_place *place = &pair->server.offer.places[0];

        side_start(&pair->client, transfer, 0, length, place->address, place->key, false,
                   timeout_ns);
        while (!pair->client.memory[0] && !transfer->is_done)
                pair_run(pair, MS);
        ck_assert(!transfer->is_done);
}

static void open_for_reading(struct pair *pair, size_t length)
{
        pair_open(pair, length);
        memset(pair->server.memory, 1, length);
        grant(pair, 0, length, false);
}

/* Both sides, when nothing at all is under way. */
START_TEST(a_dead_wire_is_noticed_within_three_seconds)
{
        struct side_moment start;
        struct pair pair;

        init(&pair);
        pair_open(&pair, 0);
        run_command("wire down");
        start = side_moment();
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 10 * SIDE_SECOND));
        ck_assert(pair_wait(&pair, &pair.server.is_closed, 10 * SIDE_SECOND));
        ck_assert_int_eq(pair.client.end, RDMA_END_LOST);
        /* The device whose own interface is down may say so. */
        ck_assert(pair.server.end == RDMA_END_LOST || pair.server.end == RDMA_END_DEVICE);
        side_expect_took(start, pair.client.closed, 0, LOST_NS);
        side_expect_took(start, pair.server.closed, 0, LOST_NS);
        pair_close(&pair);
}
END_TEST

START_TEST(a_read_over_a_wire_that_dies_ends_with_the_peer)
{
        struct side_transfer transfer;
        struct side_moment start;
        struct pair pair;

        init(&pair);
        open_for_reading(&pair, 64 * MIB);
        slow_down();
        start_long_read(&pair, &transfer, 64 * MIB, 60 * SIDE_SECOND);
        run_command("wire down");
        start = side_moment();
        ck_assert(pair_wait(&pair, &transfer.is_done, 10 * SIDE_SECOND));
        ck_assert_int_eq(transfer.result, RDMA_RESULT_BROKEN);
        side_expect_took(start, transfer.done, 0, LOST_NS);
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
        ck_assert_int_eq(pair.client.end, RDMA_END_LOST);
        /* The one that granted has its memory back as well. */
        ck_assert(pair_wait(&pair, &pair.server.is_reusable, 10 * SIDE_SECOND));
        pair_close(&pair);
}
END_TEST

START_TEST(a_read_over_a_wire_that_dies_ends_at_its_deadline)
{
        struct side_transfer transfer;
        struct side_moment start;
        struct pair pair;

        pair_init(&pair);
        open_for_reading(&pair, 64 * MIB);
        slow_down();
        start = side_moment();
        start_long_read(&pair, &transfer, 64 * MIB, SIDE_SECOND);
        run_command("wire down");
        ck_assert(pair_wait(&pair, &transfer.is_done, 10 * SIDE_SECOND));
        ck_assert_int_eq(transfer.result, RDMA_RESULT_TIMEOUT);
        side_expect_took(start, transfer.done, SIDE_SECOND, SIDE_SECOND + 500 * MS);
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
        ck_assert_int_eq(pair.client.end, RDMA_END_TIMEOUT);
        pair_close(&pair);
}
END_TEST

/* One that the device has not been given yet can be taken back: the others go on. */
START_TEST(a_read_that_has_not_begun_ends_alone)
{
        struct side_transfer first, second;
        struct pair pair;

        pair_init(&pair);
        open_for_reading(&pair, 64 * MIB);
        slow_down();
        start_long_read(&pair, &first, 64 * MIB, 60 * SIDE_SECOND);
        side_start(&pair.client, &second, 0, 4096, pair.server.offer.places[0].address,
                   pair.server.offer.places[0].key, false, 20 * MS);
        ck_assert(pair_wait(&pair, &second.is_done, 10 * SIDE_SECOND));
        ck_assert_int_eq(second.result, RDMA_RESULT_TIMEOUT);
        ck_assert(!first.is_done);
        run_command("wire bad");
        ck_assert(pair_wait(&pair, &first.is_done, 60 * SIDE_SECOND));
        ck_assert_int_eq(first.result, RDMA_RESULT_DONE);
        ck_assert(!pair.client.is_closed);
        take_back(&pair);
        pair_close(&pair);
}
END_TEST

START_TEST(after_a_dead_wire_a_new_connection_works)
{
        struct rdma_backoff backoff = {.min_ns = 50 * MS, .max_ns = 400 * MS};
        const bool never = false;
        struct pair pair;
        int n_attempts = 0;

        init(&pair);
        pair.client.options.handshake_ns = 2 * SIDE_SECOND;
        pair_open(&pair, 0);
        run_command("wire bad loss 100%%");
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 10 * SIDE_SECOND));
        ck_assert(pair_wait(&pair, &pair.server.is_closed, 10 * SIDE_SECOND));
        do {
                if (n_attempts == 2)
                        run_command("wire bad");
                pair_wait(&pair, &never, rdma_backoff_next(&backoff, 0));
                side_connect(&pair.client, pair.server.number, "here", NULL);
                while (!pair.client.is_open && !pair.client.is_closed)
                        pair_run(&pair, 10 * MS);
        } while (!pair.client.is_open && ++n_attempts < 20);
        ck_assert(pair.client.is_open);
        ck_assert_int_ge(n_attempts, 2);
        ck_assert(pair_wait(&pair, &pair.server.is_open, 20 * SIDE_SECOND));
        ck_assert_int_eq(rdma_connection_send(pair.client.connection, "again", 5), 0);
        ck_assert(pair_wait_for(&pair, &pair.server.n_messages, 1, 20 * SIDE_SECOND));
        pair_close(&pair);
}
END_TEST

/* A process of its own, which grants all of its memory to whoever comes. */
static pid_t serve(size_t length, uint16_t *ret_number)
{
        struct side side;
        int fds[2];
        pid_t pid;

        ck_assert_int_eq(pipe(fds), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid) {
                ck_assert_int_eq(read(fds[0], ret_number, sizeof(*ret_number)),
                                 sizeof(*ret_number));
                close(fds[0]);
                close(fds[1]);
                return pid;
        }
        side_init(&side, "rxea");
        side_open(&side, length);
        memset(side.memory, 1, length);
        side_listen(&side, "10.1.0.0/24");
        if (write(fds[1], &side.number, sizeof(side.number)) != sizeof(side.number))
                _exit(1);
        side_wait(&side, &side.is_open, 30 * SIDE_SECOND);
        side_grant(&side, 0, length, false);
        side_wait(&side, &side.is_granted, 30 * SIDE_SECOND);
        rdma_connection_send(side.connection, &side.offer, sizeof(side.offer));
        side_wait(&side, &side.is_closed, 60 * SIDE_SECOND);
        _exit(0);
}

static pid_t read_from_process(struct pair *pair, struct side_transfer *transfer, size_t length)
{
        uint16_t number;
        pid_t pid = serve(length, &number);

        init(pair);
        side_open(&pair->client, length);
        side_connect(&pair->client, number, "here", NULL);
        ck_assert(pair_wait_for(pair, &pair->client.n_messages, 1, 20 * SIDE_SECOND));
        memcpy(&pair->server.offer, pair->client.last, sizeof(pair->server.offer));
        start_long_read(pair, transfer, length, 60 * SIDE_SECOND);
        return pid;
}

START_TEST(a_peer_killed_in_a_read_ends_it)
{
        struct side_transfer transfer;
        struct side_moment start;
        struct pair pair;
        pid_t pid;

        slow_down();
        pid = read_from_process(&pair, &transfer, 64 * MIB);
        start = side_moment();
        kill(pid, SIGKILL);
        ck_assert(pair_wait(&pair, &transfer.is_done, 10 * SIDE_SECOND));
        ck_assert_int_eq(transfer.result, RDMA_RESULT_BROKEN);
        side_expect_took(start, transfer.done, 0, LOST_NS);
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
        waitpid(pid, NULL, 0);
        pair_close(&pair);
}
END_TEST

/* Its device still serves reads; that alone keeps nobody alive once they have ended. */
START_TEST(a_peer_that_is_stopped_is_lost)
{
        struct side_transfer transfer;
        struct side_moment start;
        struct pair pair;
        pid_t pid;

        pid = read_from_process(&pair, &transfer, 8 * MIB);
        kill(pid, SIGSTOP);
        ck_assert(pair_wait(&pair, &transfer.is_done, 10 * SIDE_SECOND));
        ck_assert_int_eq(transfer.result, RDMA_RESULT_DONE);
        start = side_moment();
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 10 * SIDE_SECOND));
        ck_assert_int_eq(pair.client.end, RDMA_END_LOST);
        side_expect_took(start, pair.client.closed, 0, LOST_NS);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        pair_close(&pair);
}
END_TEST

TCase *trouble_case(void)
{
        TCase *trouble = tcase_create("trouble");

        tcase_set_timeout(trouble, 60);
        tcase_add_checked_fixture(trouble, mend, mend);
        tcase_add_test(trouble, transfers_are_exact_over_a_wire_that_loses_one_in_a_hundred);
        tcase_add_test(trouble, transfers_are_exact_over_a_wire_that_delays);
        tcase_add_test(trouble, a_read_that_has_not_begun_ends_alone);
        tcase_add_test(trouble, after_a_dead_wire_a_new_connection_works);
        tcase_add_test(trouble, a_peer_killed_in_a_read_ends_it);
        tcase_add_test(trouble, a_peer_that_is_stopped_is_lost);
        return trouble;
}

TCase *link_case(void)
{
        TCase *link = tcase_create("link");

        tcase_set_timeout(link, 60);
        tcase_add_checked_fixture(link, mend_anew, NULL);
        tcase_add_test(link, a_dead_wire_is_noticed_within_three_seconds);
        tcase_add_test(link, a_read_over_a_wire_that_dies_ends_with_the_peer);
        tcase_add_test(link, a_read_over_a_wire_that_dies_ends_at_its_deadline);
        return link;
}
