// SPDX-License-Identifier: Apache-2.0
/*
 * Devices without memory windows: they grant nothing, unless their owner has said that what is
 * granted opens the whole region. The guest's devices have windows; here they deny it.
 */
#include <string.h>

#include "base/rdma_queue.h"
#include "tests/rdma/test_rdma.h"

#define PAGE 4096u

static bool has_no_windows;

/* The linker puts it in the way (--wrap). */
int __real_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr);
int __wrap_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr);

int __wrap_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr)
{
        const unsigned windows = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        int r = __real_ibv_query_device(context, ret_attr);

        if (!r && has_no_windows)
                ret_attr->device_cap_flags &= ~windows;
        return r;
}

static void open_without_windows(struct pair *pair, size_t memory_bytes, bool whole_regions)
{
        has_no_windows = true;
        pair_init(pair);
        pair->server.options.whole_regions = whole_regions;
        pair_open(pair, memory_bytes);
}

static uint32_t region_key(const struct side *side)
{
        return side->region->mrs[0]->rkey;
}

static void expect_no_windows(const struct side *side, uint64_t n_grants)
{
        struct rdma_port_stats stats;

        rdma_port_stats(side->port, &stats);
        ck_assert_uint_eq(stats.windows, 0);
        ck_assert_uint_eq(stats.windows_bound, 0);
        ck_assert_uint_eq(stats.grants, n_grants);
}

START_TEST(without_windows_nothing_is_granted_unless_it_is_wanted)
{
        struct pair pair;

        open_without_windows(&pair, 3 * PAGE, false);
        memset(pair.server.memory, 's', 3 * PAGE);
        memset(pair.client.memory, 'c', 3 * PAGE);
        side_grant(&pair.server, PAGE, PAGE, true);
        ck_assert(pair_wait(&pair, &pair.server.is_granted, 10 * SIDE_SECOND));
        ck_assert_int_eq(pair.server.granted, RDMA_RESULT_UNSUPPORTED);
        ck_assert(pair_wait(&pair, &pair.server.is_reusable, 10 * SIDE_SECOND));
        ck_assert(!pair.server.is_closed && !pair.client.is_closed);
        expect_no_windows(&pair.server, 0);
        /* Who guesses the region's key has no right by it. */
        pair.server.offer.places[0].key = region_key(&pair.server);
        ck_assert_int_eq(move(&pair, 0, PAGE, (uintptr_t)pair.server.memory, true),
                         RDMA_RESULT_REFUSED);
        for (size_t i = 0; i < 3 * PAGE; i++)
                ck_assert_uint_eq(pair.server.memory[i], 's');
        pair_close(&pair);
}
END_TEST

/* There and back, by grants of their own; what stands beside it stays as it is. */
static void round_trip(struct pair *pair, size_t offset, size_t length, uint64_t seed)
{
        uint8_t *own = pair->client.memory, *granted = pair->server.memory + offset;
        uint8_t *content = own + pair->client.memory_bytes / 2;

        fill(content, length, seed);
        memcpy(own, content, length);
        memset(pair->server.memory, 's', pair->server.memory_bytes);
        grant(pair, offset, length, true);
        ck_assert_uint_eq(pair->server.offer.places[0].key, region_key(&pair->server));
        ck_assert_int_eq(move(pair, 0, length, (uintptr_t)granted, true), RDMA_RESULT_DONE);
        take_back(pair);
        ck_assert(!memcmp(granted, content, length));
        for (size_t i = 0; i < pair->server.memory_bytes; i++)
                if (i < offset || i >= offset + length)
                        ck_assert_uint_eq(pair->server.memory[i], 's');
        memset(own, 'c', length + 1);
        grant(pair, offset, length, false);
        ck_assert_int_eq(move(pair, 0, length, (uintptr_t)granted, false), RDMA_RESULT_DONE);
        take_back(pair);
        ck_assert(!memcmp(own, content, length));
        ck_assert_uint_eq(own[length], 'c');
}

START_TEST(whole_regions_move_every_byte_and_bind_nothing)
{
        static const size_t lengths[] = {1, 7, PAGE - 1, PAGE, PAGE + 1, 2 * MIB + 3};
        const uint64_t n = sizeof(lengths) / sizeof(*lengths);
        struct pair pair;

        open_without_windows(&pair, 5 * MIB, true);
        for (uint64_t i = 0; i < n; i++)
                round_trip(&pair, PAGE + 3, lengths[i], i);
        ck_assert(!pair.server.is_closed && !pair.client.is_closed);
        expect_no_windows(&pair.server, 2 * n);
        pair_close(&pair);
}
END_TEST

/* What the warning is about. */
START_TEST(a_whole_region_is_open_beside_the_grant_and_never_beyond_it)
{
        struct pair pair;

        open_without_windows(&pair, 3 * PAGE, true);
        memset(pair.server.memory, 's', 3 * PAGE);
        grant(&pair, PAGE, PAGE, false);
        ck_assert_int_eq(move(&pair, 0, 1, (uintptr_t)pair.server.memory, false), RDMA_RESULT_DONE);
        ck_assert_uint_eq(pair.client.memory[0], 's');
        ck_assert_int_eq(move(&pair, 1, 2, (uintptr_t)pair.server.memory + 3 * PAGE - 1, false),
                         RDMA_RESULT_REFUSED);
        ck_assert_uint_eq(pair.client.memory[1], 0);
        pair_close(&pair);
}
END_TEST

START_TEST(windows_are_bound_although_whole_regions_would_do)
{
        struct rdma_port_stats stats;
        struct pair pair;

        pair_init(&pair);
        pair.server.options.whole_regions = true;
        pair_open(&pair, PAGE);
        ck_assert_ptr_null(rdma_port_warning(pair.server.port));
        grant(&pair, 0, PAGE, true);
        ck_assert_uint_ne(pair.server.offer.places[0].key, region_key(&pair.server));
        rdma_port_stats(pair.server.port, &stats);
        ck_assert_uint_eq(stats.windows_bound, 1);
        take_back(&pair);
        pair.server.offer.places[0].key = region_key(&pair.server);
        ck_assert_int_eq(move(&pair, 0, 1, (uintptr_t)pair.server.memory, true),
                         RDMA_RESULT_REFUSED);
        pair_close(&pair);
}
END_TEST

/* Of a port with both devices. */
static void expect_one_warning(bool whole_regions, const char *consequence)
{
        const char *warning, *first;
        struct side side;

        side_init(&side, "rxea");
        side.options.device = NULL;
        side.options.whole_regions = whole_regions;
        side_open(&side, 0);
        ck_assert_uint_eq(side.port->n_devices, 2);
        warning = rdma_port_warning(side.port);
        ck_assert_ptr_nonnull(warning);
        first = strstr(warning, "RDMA device rxe");
        ck_assert_ptr_eq(first, warning);
        ck_assert_ptr_null(strstr(first + 1, "RDMA device"));
        ck_assert_msg(strstr(warning, " has no memory windows of type 2: "), "%s", warning);
        ck_assert_msg(strstr(warning, consequence), "%s", warning);
        side_close(&side);
}

START_TEST(devices_without_windows_are_warned_of_once)
{
        has_no_windows = true;
        expect_one_warning(false, "nothing is granted through it, unless rdma.whole_regions is on");
        expect_one_warning(true, "a peer that is granted a part of our memory can reach all of it");
}
END_TEST

TCase *whole_case(void)
{
        TCase *whole = tcase_create("whole");

        tcase_set_timeout(whole, 60);
        tcase_add_test(whole, without_windows_nothing_is_granted_unless_it_is_wanted);
        tcase_add_test(whole, whole_regions_move_every_byte_and_bind_nothing);
        tcase_add_test(whole, a_whole_region_is_open_beside_the_grant_and_never_beyond_it);
        tcase_add_test(whole, windows_are_bound_although_whole_regions_would_do);
        tcase_add_test(whole, devices_without_windows_are_warned_of_once);
        return whole;
}
