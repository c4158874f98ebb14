// SPDX-License-Identifier: Apache-2.0
/*
 * What a peer may do to memory is what it was granted, for as long as it was granted, and the
 * device sees to it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/rdma_queue.h"
#include "tests/rdma/test_rdma.h"

#define PAGE 4096u

/* ---- what the device is asked to bind ---- */

/* The linker puts it in the way (--wrap). The helpers write, the test reads what is granted. */
static struct ibv_mw_bind_info bound[4];
static uint32_t n_bound;

bool __real_rdma_queue_post(struct rdma_connection *connection, struct ibv_send_wr *request,
                            enum rdma_work work, const void *owner);
bool __wrap_rdma_queue_post(struct rdma_connection *connection, struct ibv_send_wr *request,
                            enum rdma_work work, const void *owner);

bool __wrap_rdma_queue_post(struct rdma_connection *connection, struct ibv_send_wr *request,
                            enum rdma_work work, const void *owner)
{
        uint32_t n = __atomic_load_n(&n_bound, __ATOMIC_RELAXED);

        if (request->opcode == IBV_WR_BIND_MW && n < sizeof(bound) / sizeof(*bound)) {
                bound[n] = request->bind_mw.bind_info;
                __atomic_store_n(&n_bound, n + 1, __ATOMIC_RELEASE);
        }
        return __real_rdma_queue_post(connection, request, work, owner);
}

/* The @n-th is the extent to the byte, for the one kind of access. */
static void expect_bound(uint32_t n, const uint8_t *address, size_t length, bool is_writable)
{
        ck_assert_uint_gt(__atomic_load_n(&n_bound, __ATOMIC_ACQUIRE), n);
        ck_assert_uint_eq(bound[n].addr, (uintptr_t)address);
        ck_assert_uint_eq(bound[n].length, length);
        ck_assert_uint_eq(bound[n].mw_access_flags,
                          is_writable ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
}

START_TEST(a_window_is_bound_to_what_is_granted_and_no_more)
{
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        grant(&pair, PAGE + 3, 5, false);
        expect_bound(0, pair.server.memory + PAGE + 3, 5, false);
        take_back(&pair);
        grant(&pair, PAGE, PAGE, true);
        expect_bound(1, pair.server.memory + PAGE, PAGE, true);
        ck_assert_uint_eq(__atomic_load_n(&n_bound, __ATOMIC_ACQUIRE), 2);
        pair_close(&pair);
}
END_TEST

/* ---- what the device lets a peer do ---- */

/*
 * The server has granted the second of its three pages; the client tries @length at @offset.
 * False: the device let it.
 */
static bool is_refused(bool is_granted_for_writing, size_t offset, size_t length, bool is_write)
{
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        memset(pair.server.memory, 's', 3 * PAGE);
        memset(pair.client.memory, 'c', 3 * PAGE);
        n_bound = 0;
        grant(&pair, PAGE, PAGE, is_granted_for_writing);
        /* So what the device lets through was not granted. */
        expect_bound(0, pair.server.memory + PAGE, PAGE, is_granted_for_writing);
        if (!move(&pair, 0, length, (uintptr_t)pair.server.memory + offset, is_write)) {
                pair_close(&pair);
                return false;
        }
        for (size_t i = 0; i < 3 * PAGE; i++) {
                ck_assert_uint_eq(pair.server.memory[i], 's');
                ck_assert_uint_eq(pair.client.memory[i], 'c');
        }
        ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
        ck_assert_int_eq(pair.client.end, RDMA_END_DEVICE);
        ck_assert(pair_wait(&pair, &pair.server.is_closed, 20 * SIDE_SECOND));
        ck_assert(pair.server.is_reusable);
        pair_close(&pair);
        return true;
}

/*
 * rdma_rxe looks up a window by its key, and holds an access to its connection, its kind of
 * access and its life, but to the bounds of the region (Linux 6.1, check_rkey()).
 */
START_TEST(access_outside_of_the_window_is_refused)
{
        bool is_held = is_refused(false, PAGE - 1, 2, false);

        if (!is_held) {
                skip_claim("access_outside_of_the_window_is_refused",
                           "rdma_rxe holds a window to the bounds of its region only");
                return;
        }
        ck_assert(is_refused(false, 2 * PAGE - 1, 2, false));
        ck_assert(is_refused(false, 0, 1, false));
        ck_assert(is_refused(true, PAGE - 1, 2, true));
        ck_assert(is_refused(true, 2 * PAGE - 1, 2, true));
}
END_TEST

START_TEST(access_outside_of_the_region_is_refused)
{
        ck_assert(is_refused(false, 3 * PAGE - 1, 2, false));
        ck_assert(is_refused(false, 3 * PAGE, 1, false));
        ck_assert(is_refused(true, 3 * PAGE - 1, 2, true));
}
END_TEST

START_TEST(what_is_not_granted_has_no_key)
{
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        for (uint32_t i = 0; i < 3; i++) {
                pair.server.offer.places[0].key = i << 8;
                ck_assert_int_eq(move(&pair, 0, 1, (uintptr_t)pair.server.memory, false),
                                 RDMA_RESULT_REFUSED);
                ck_assert(pair_wait(&pair, &pair.client.is_closed, 20 * SIDE_SECOND));
                ck_assert(pair_wait(&pair, &pair.server.is_closed, 20 * SIDE_SECOND));
                pair.server.is_open = false;
                side_connect(&pair.client, pair.server.number, "here", NULL);
                ck_assert(pair_wait(&pair, &pair.client.is_open, 10 * SIDE_SECOND));
                ck_assert(pair_wait(&pair, &pair.server.is_open, 10 * SIDE_SECOND));
        }
        pair_close(&pair);
}
END_TEST

START_TEST(a_window_for_reading_is_not_for_writing_nor_the_other_way)
{
        ck_assert(is_refused(false, PAGE, 1, true));
        ck_assert(is_refused(true, PAGE, 1, false));
}
END_TEST

START_TEST(reading_what_was_taken_back_is_refused)
{
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        grant(&pair, 0, PAGE, false);
        ck_assert_int_eq(move(&pair, 0, 8, (uintptr_t)pair.server.memory, false), RDMA_RESULT_DONE);
        take_back(&pair);
        ck_assert(!pair.client.is_closed);
        ck_assert_int_eq(move(&pair, 0, 8, (uintptr_t)pair.server.memory, false),
                         RDMA_RESULT_REFUSED);
        pair_close(&pair);
}
END_TEST

/* The next grant has the same window, and another key. */
START_TEST(an_old_key_does_not_open_the_next_grant)
{
        struct rdma_port_stats stats;
        struct pair pair;
        uint32_t key;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        grant(&pair, 0, PAGE, false);
        key = pair.server.offer.places[0].key;
        take_back(&pair);
        grant(&pair, 0, PAGE, false);
        rdma_port_stats(pair.server.port, &stats);
        ck_assert_uint_eq(stats.windows, 1);
        ck_assert_uint_eq(stats.windows_bound, 1);
        ck_assert_uint_ne(key, pair.server.offer.places[0].key);
        pair.server.offer.places[0].key = key;
        ck_assert_int_eq(move(&pair, 0, 8, (uintptr_t)pair.server.memory, false),
                         RDMA_RESULT_REFUSED);
        pair_close(&pair);
}
END_TEST

START_TEST(a_window_is_of_one_connection_alone)
{
        struct pair pair;
        struct side other;
        struct side_transfer transfer;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        grant(&pair, 0, PAGE, false);
        /* Another client, let in as well: the server's side now tells of this connection. */
        side_init(&other, "rxeb");
        side_open(&other, PAGE);
        pair.server.is_open = false;
        side_connect(&other, pair.server.number, "here", NULL);
        while (!other.is_open && !other.is_closed) {
                pair_run(&pair, 10 * MS);
                side_wait(&other, &other.is_open, 10 * MS);
        }
        ck_assert(other.is_open);
        side_start(&other, &transfer, 0, 8, (uintptr_t)pair.server.memory,
                   pair.server.offer.places[0].key, false, 10 * SIDE_SECOND);
        ck_assert(side_wait(&other, &transfer.is_done, 20 * SIDE_SECOND));
        ck_assert_int_eq(transfer.result, RDMA_RESULT_REFUSED);
        /* And the one that it was granted to still reads. */
        ck_assert_int_eq(move(&pair, 0, 8, (uintptr_t)pair.server.memory, false), RDMA_RESULT_DONE);
        side_close(&other);
        ck_assert(pair_wait(&pair, &pair.server.is_closed, 20 * SIDE_SECOND));
        ck_assert(!pair.server.is_reusable);
        rdma_connection_close(pair.client.connection);
        ck_assert(pair_wait(&pair, &pair.server.is_reusable, 20 * SIDE_SECOND));
        pair_close(&pair);
}
END_TEST

/*
 * A device waits for what it is writing before it says that a window is gone. Soft-RoCE does not:
 * a packet whose key it has looked at is copied to its end, which a guest without processor time
 * can put off for long. Whoever lets memory go before the window is gone loses megabytes here.
 */
static size_t packets_under_way(const struct side *side)
{
        const size_t packet = 4096; /* wire, the script: the most that fits into its packets */

        return strncmp(side->options.device, "rxe", 3) ? 0 : packet;
}

static void expect_unchanged_but_for(size_t n, const uint8_t *memory, size_t length)
{
        size_t first = length, last = 0;

        for (size_t i = 0; i < length; i++) {
                if (memory[i] == 's')
                        continue;
                first = i < first ? i : first;
                last = i;
        }
        ck_assert_msg(first == length || last - first < n, "bytes %zu to %zu", first, last);
}

/* What "reusable" promises: the peer is in the middle of writing when it is taken back. */
START_TEST(nothing_but_a_packet_under_way_changes_once_memory_is_reusable)
{
        const size_t length = 64 * MIB;
        struct side_transfer transfer;
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, length);
        memset(pair.client.memory, 'c', length);
        grant(&pair, 0, length, true);
        side_start(&pair.client, &transfer, 0, length, (uintptr_t)pair.server.memory,
                   pair.server.offer.places[0].key, true, 30 * SIDE_SECOND);
        while (pair.server.memory[MIB] != 'c')
                pair_run(&pair, MS);
        rdma_grant_release(pair.server.grant);
        ck_assert(pair_wait(&pair, &pair.server.is_reusable, 10 * SIDE_SECOND));
        ck_assert_uint_ne(pair.server.memory[length - 1], 'c');
        memset(pair.server.memory, 's', length);
        ck_assert(pair_wait(&pair, &transfer.is_done, 30 * SIDE_SECOND));
        ck_assert_int_eq(transfer.result, RDMA_RESULT_REFUSED);
        pair_run(&pair, 300 * MS);
        expect_unchanged_but_for(packets_under_way(&pair.server), pair.server.memory, length);
        pair_close(&pair);
}
END_TEST

START_TEST(a_grant_may_be_released_before_it_is_granted)
{
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        side_grant(&pair.server, 0, PAGE, false);
        rdma_grant_release(pair.server.grant);
        rdma_grant_release(pair.server.grant);
        ck_assert(pair_wait(&pair, &pair.server.is_reusable, 10 * SIDE_SECOND));
        ck_assert(pair.server.is_granted);
        ck_assert_int_eq(pair.server.granted, RDMA_RESULT_DONE);
        pair_close(&pair);
}
END_TEST

START_TEST(grants_end_with_the_connection)
{
        struct rdma_port_stats stats;
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 3 * PAGE);
        grant(&pair, 0, 2 * PAGE, true);
        rdma_connection_close(pair.client.connection);
        ck_assert(pair_wait(&pair, &pair.server.is_closed, 20 * SIDE_SECOND));
        ck_assert_int_eq(pair.server.end, RDMA_END_PEER_CLOSED);
        ck_assert(pair.server.is_reusable);
        rdma_port_stats(pair.server.port, &stats);
        ck_assert_uint_eq(stats.windows, 0);
        pair_close(&pair);
}
END_TEST

TCase *right_case(void)
{
        TCase *right = tcase_create("right");

        tcase_set_timeout(right, 60);
        tcase_add_test(right, a_window_is_bound_to_what_is_granted_and_no_more);
        tcase_add_test(right, access_outside_of_the_window_is_refused);
        tcase_add_test(right, access_outside_of_the_region_is_refused);
        tcase_add_test(right, what_is_not_granted_has_no_key);
        tcase_add_test(right, a_window_for_reading_is_not_for_writing_nor_the_other_way);
        tcase_add_test(right, reading_what_was_taken_back_is_refused);
        tcase_add_test(right, an_old_key_does_not_open_the_next_grant);
        tcase_add_test(right, a_window_is_of_one_connection_alone);
        tcase_add_test(right, nothing_but_a_packet_under_way_changes_once_memory_is_reusable);
        tcase_add_test(right, a_grant_may_be_released_before_it_is_granted);
        tcase_add_test(right, grants_end_with_the_connection);
        return right;
}
