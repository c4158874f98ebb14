// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "tests/rdma/test_rdma.h"

/* Not one byte beside it is touched. */
static void read_and_write(struct pair *pair, size_t length, size_t offset)
{
        uint8_t *theirs = pair->server.memory + offset, *ours = pair->client.memory + offset / 2;
        uint64_t address = (uintptr_t)theirs;

        fill(theirs, length, length);
        memset(ours, 0, length + 1);
        grant(pair, offset, length, false);
        ck_assert_int_eq(move(pair, offset / 2, length, address, false), RDMA_RESULT_DONE);
        ck_assert(!memcmp(theirs, ours, length));
        ck_assert_uint_eq(ours[length], 0);
        take_back(pair);
        fill(ours, length, length + 1);
        theirs[length] = 7;
        grant(pair, offset, length, true);
        ck_assert_int_eq(move(pair, offset / 2, length, address, true), RDMA_RESULT_DONE);
        ck_assert(!memcmp(theirs, ours, length));
        ck_assert_uint_eq(theirs[length], 7);
        take_back(pair);
}

START_TEST(reads_and_writes_are_exact_from_one_byte_on)
{
        static const size_t lengths[] = {1, 7, 4095, 4096, 4097, 65536, MIB - 1, MIB + 1, 64 * MIB};
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, 65 * MIB);
        for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
                read_and_write(&pair, lengths[i], i * 3);
        pair_close(&pair);
}
END_TEST

START_TEST(a_quarter_of_a_gibibyte_is_read_exactly)
{
        const size_t length = 256 * MIB;
        struct pair pair;

        pair_init(&pair);
        pair_open(&pair, length);
        fill(pair.server.memory, length, 1);
        grant(&pair, 0, length, false);
        ck_assert_int_eq(move(&pair, 0, length, (uintptr_t)pair.server.memory, false),
                         RDMA_RESULT_DONE);
        ck_assert(!memcmp(pair.server.memory, pair.client.memory, length));
        take_back(&pair);
        pair_close(&pair);
}
END_TEST

static void on_done(struct rdma_transfer *transfer, enum rdma_result result)
{
        *(bool *)transfer->user = true;
        ck_assert_int_eq(result, RDMA_RESULT_DONE);
}

/* The object's extents lie scattered in the arena of either side. */
START_TEST(a_transfer_has_many_pieces)
{
        struct rdma_piece pieces[RDMA_PIECES_MAX];
        const size_t stride = 16 * KIB;
        struct rdma_transfer transfer;
        struct pair pair;
        bool is_done = false;

        pair_init(&pair);
        pair_open(&pair, 4 * MIB);
        fill(pair.server.memory, 4 * MIB, 3);
        grant(&pair, 0, 4 * MIB, false);
        for (size_t i = 0; i < RDMA_PIECES_MAX; i++)
                pieces[i] = (struct rdma_piece){
                        .local = {pair.client.region, pair.client.memory + i * stride, 5000 + i},
                        .remote_address = (uintptr_t)pair.server.memory +
                                          (RDMA_PIECES_MAX - 1 - i) * stride + i,
                        .remote_key = pair.server.offer.places[0].key,
                };
        transfer = (struct rdma_transfer){
                .connection = pair.client.connection,
                .pieces = pieces,
                .n_pieces = RDMA_PIECES_MAX,
                .timeout_ns = 20 * SIDE_SECOND,
                .on_done = on_done,
                .user = &is_done,
        };
        ck_assert_int_eq(rdma_transfer_start(&transfer), 0);
        ck_assert(pair_wait(&pair, &is_done, 20 * SIDE_SECOND));
        for (size_t i = 0; i < RDMA_PIECES_MAX; i++) {
                const uint8_t *theirs = pair.server.memory + (RDMA_PIECES_MAX - 1 - i) * stride + i;
                const uint8_t *ours = pair.client.memory + i * stride;

                ck_assert_msg(!memcmp(ours, theirs, 5000 + i), "piece %zu", i);
                ck_assert_msg(!ours[5000 + i], "behind piece %zu", i);
        }
        take_back(&pair);
        pair_close(&pair);
}
END_TEST

START_TEST(many_transfers_share_the_connection_up_to_its_limit)
{
        enum { MANY = 64 };
        static struct side_transfer transfers[MANY];
        struct side_transfer beyond = {.transfer = {.n_pieces = 1, .timeout_ns = 1}};
        struct pair pair;
        uint32_t key;

        pair_init(&pair);
        pair.client.options.n_operations = MANY;
        pair_open(&pair, 4 * MIB);
        fill(pair.server.memory, 4 * MIB, 5);
        grant(&pair, 0, 4 * MIB, false);
        key = pair.server.offer.places[0].key;
        for (size_t i = 0; i < MANY; i++)
                side_start(&pair.client, &transfers[i], i * 64 * KIB, 64 * KIB,
                           (uintptr_t)pair.server.memory + i * 64 * KIB, key, false,
                           30 * SIDE_SECOND);
        beyond.transfer.connection = pair.client.connection;
        beyond.piece.local = (struct rdma_extent){pair.client.region, pair.client.memory, 1};
        beyond.transfer.pieces = &beyond.piece;
        ck_assert_int_eq(rdma_transfer_start(&beyond.transfer), RDMA_E_FULL);
        ck_assert_int_eq(rdma_region_free(pair.client.region), RDMA_E_BUSY);
        for (size_t i = 0; i < MANY; i++) {
                ck_assert(pair_wait(&pair, &transfers[i].is_done, 30 * SIDE_SECOND));
                ck_assert_int_eq(transfers[i].result, RDMA_RESULT_DONE);
        }
        ck_assert(!memcmp(pair.server.memory, pair.client.memory, 4 * MIB));
        take_back(&pair);
        pair_close(&pair);
}
END_TEST

START_TEST(memory_outside_its_region_is_refused_at_once)
{
        struct pair pair;
        struct side_transfer transfer = {.transfer = {.n_pieces = 1, .timeout_ns = 1}};
        struct rdma_extent *local = &transfer.piece.local;

        pair_init(&pair);
        pair_open(&pair, MIB);
        transfer.transfer.connection = pair.client.connection;
        transfer.transfer.pieces = &transfer.piece;
        *local = (struct rdma_extent){pair.client.region, pair.client.memory + 1, MIB};
        ck_assert_int_eq(rdma_transfer_start(&transfer.transfer), RDMA_E_INVALID);
        *local = (struct rdma_extent){pair.client.region, pair.client.memory - 1, 1};
        ck_assert_int_eq(rdma_transfer_start(&transfer.transfer), RDMA_E_INVALID);
        *local = (struct rdma_extent){pair.client.region, pair.client.memory + 16, UINT64_MAX - 8};
        ck_assert_int_eq(rdma_transfer_start(&transfer.transfer), RDMA_E_INVALID);
        *local = (struct rdma_extent){pair.client.region, pair.client.memory, 0};
        ck_assert_int_eq(rdma_transfer_start(&transfer.transfer), RDMA_E_INVALID);
        *local = (struct rdma_extent){pair.server.region, pair.server.memory, 1};
        ck_assert_int_eq(rdma_transfer_start(&transfer.transfer), RDMA_E_INVALID);
        pair_close(&pair);
}
END_TEST

START_TEST(a_helper_that_spins_does_the_same)
{
        struct pair pair;

        pair_init(&pair);
        pair.client.options.busy_poll = true;
        pair_open(&pair, 2 * MIB);
        read_and_write(&pair, MIB + 5, 3);
        pair_close(&pair);
}
END_TEST

TCase *transfer_case(void)
{
        TCase *transfer = tcase_create("transfer");

        tcase_set_timeout(transfer, 300);
        tcase_add_test(transfer, reads_and_writes_are_exact_from_one_byte_on);
        tcase_add_test(transfer, a_quarter_of_a_gibibyte_is_read_exactly);
        tcase_add_test(transfer, a_transfer_has_many_pieces);
        tcase_add_test(transfer, many_transfers_share_the_connection_up_to_its_limit);
        tcase_add_test(transfer, memory_outside_its_region_is_refused_at_once);
        tcase_add_test(transfer, a_helper_that_spins_does_the_same);
        return transfer;
}
