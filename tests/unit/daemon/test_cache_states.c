// SPDX-License-Identifier: Apache-2.0
/* A layout with states: group 1 makes the KV of group 0 usable. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cache_world.h"

static uint64_t part_bytes;

static void begin(void)
{
        world_begin();
        part_bytes = OBJECT;
}

static struct index_object *find_part(uint32_t n, uint16_t group)
{
        struct index_new_object entry = world_entry(n, 1);
        struct index_boundary *boundary =
                index_find_boundary(cache.index, entry.layout, &entry.digest);

        return boundary ? index_find_object(cache.index, boundary, group, 0) : NULL;
}

/* KV or state of boundary @n, which hangs on @parent (0: a root). */
static void put_part(uint32_t n, uint32_t parent, uint16_t group)
{
        struct index_new_object entry = world_entry(n, part_bytes);
        struct object_key key = world_key(n);
        struct host_copy *copy;
        bool forgetting;

        placement_learn_groups(cache.index, entry.layout, 1u << 1);
        key.group = entry.group = entry.cell = group;
        entry.boundary_tokens = 256 * (n % 100);
        entry.parent_unknown = false;
        if (parent)
                entry.parent = world_key(parent).boundary;
        ck_assert_int_eq(cache_new_copy(&cache, &key, part_bytes, HOST_COPY_WRITING, UINT32_MAX,
                                        false, &copy),
                         0);
        world_fill(copy, (uint8_t)n);
        copy->state = HOST_COPY_READY;
        ck_assert_int_eq(
                cache_publish(&cache, copy, &entry, false, world_on_forgotten, NULL, &forgetting),
                0);
        host_copy_unuse(&cache.copies, copy);
}

static void put_chain(uint32_t first, uint32_t last)
{
        for (uint32_t n = first; n <= last; n++)
                put_part(n, n == first ? 0 : n - 1, 0);
        put_part(last, last - 1, 1);
}

START_TEST(kv_without_its_state_goes_before_older_states)
{
        cache.write_policy = PLACEMENT_WRITE_OFF;
        put_chain(1, 3);
        put_chain(101, 105);
        cache_drop_host(&cache, find_part(105, 1), METRICS_UNREADABLE);
        put_chain(201, 208);
        ck_assert_ptr_nonnull(find_part(3, 1));
        ck_assert_ptr_nonnull(find_part(1, 0));
        ck_assert_ptr_null(find_part(105, 0));
        ck_assert_ptr_nonnull(find_part(208, 1));
}
END_TEST

START_TEST(a_leased_state_stays_and_its_kv_with_it)
{
        struct host_copy *leased;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        put_chain(1, 3);
        leased = host_copy_at(&cache.copies, find_part(3, 1)->host);
        host_copy_lease(&cache.copies, leased);
        for (uint32_t n = 101; n < 1000; n += 100)
                put_chain(n, n + 3);
        for (uint32_t n = 1; n <= 3; n++)
                ck_assert_ptr_nonnull(find_part(n, 0));
        ck_assert_ptr_nonnull(find_part(3, 1));
        ck_assert_ptr_null(find_part(104, 1));
        host_copy_unlease(&cache.copies, leased);
}
END_TEST

START_TEST(a_cold_state_is_written_with_the_kv_that_it_makes_usable)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 101; n < 1200; n += 100) {
                put_chain(n, n + 3);
                wait_until(transfers_are_idle(&cache.transfers));
        }
        ck_assert_uint_eq(metrics.host_dropped_objects_total, 0);
        for (uint32_t n = 101; n <= 104; n++)
                ck_assert(find_part(n, 0) && find_part(n, 0)->place.claim);
        ck_assert(find_part(104, 1) && find_part(104, 1)->place.claim);
}
END_TEST

START_TEST(what_is_dead_is_not_drained)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        put_chain(1, 3);
        put_chain(101, 103);
        cache_drop_host(&cache, find_part(103, 1), METRICS_UNREADABLE);
        transfers_drain(&cache);
        wait_until(transfers_are_idle(&cache.transfers) && TAILQ_EMPTY(&cache.copies.dirty));
        ck_assert_uint_eq(world_tier_objects(), 4);
        ck_assert(find_part(3, 1)->place.claim && !find_part(102, 0)->place.claim);
}
END_TEST

START_TEST(what_was_never_used_since_the_start_makes_room_below)
{
        for (uint32_t n = 0; n < 80; n++) {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
                for (uint32_t i = 0; i <= n; i++)
                        if (world_find(i))
                                index_boundary_at(cache.index, world_find(i)->boundary)->touched_s =
                                        INDEX_NEVER;
        }
        ck_assert_uint_eq(metrics.tier_io_errors_total[METRICS_NVME], 0);
        ck_assert(world_is_below(79));
}
END_TEST

static void leave_host(uint32_t n, uint16_t group)
{
        struct index_object *object = find_part(n, group);

        if (object->host != INDEX_NONE)
                cache_drop_host(&cache, object, METRICS_FOR_SPACE);
}

/* NVMe is nearly full of chains, from boundary 101 on; host memory is empty. */
static void fill_below(void)
{
        struct tier_usage usage;
        uint32_t n = 0;

        do {
                n++;
                put_chain(100 * n + 1, 100 * n + 3);
                wait_until(transfers_are_idle(&cache.transfers));
                for (uint32_t i = 1; i <= 3; i++)
                        leave_host(100 * n + i, 0);
                leave_host(100 * n + 3, 1);
                cache.nvme->ops.usage(cache.nvme, &usage);
        } while (usage.capacity_bytes - usage.used_bytes > usage.capacity_bytes / 16);
}

START_TEST(states_of_one_chain_are_spilled_with_their_kv_once)
{
        world_add_remote();
        cache.offers.write = PLACEMENT_WRITE_OFF;
        part_bytes = OBJECT / 16; /* both paths lie in what is looked at */
        put_chain(1, 3);
        put_part(4, 3, 0);
        put_part(5, 4, 0);
        put_part(5, 4, 1);
        wait_until(transfers_are_idle(&cache.transfers));
        for (uint32_t n = 1; n <= 5; n++)
                leave_host(n, 0);
        leave_host(3, 1);
        leave_host(5, 1);
        part_bytes = OBJECT;
        fill_below();
        for (uint32_t n = 1; n <= 5; n++)
                index_boundary_at(cache.index, find_part(n, 0)->boundary)->flags |=
                        INDEX_SEEN_TWICE;
        cache.offers.write = PLACEMENT_WRITE_COLD;
        transfers_pump(&cache);
        ck_assert_uint_eq(cache.transfers.n_up, 7);
        for (uint32_t n = 1; n <= 5; n++)
                ck_assert_ptr_nonnull(transfer_arriving(&cache, find_part(n, 0)));
        wait_until(index_object_is_in(find_part(5, 1), INDEX_REMOTE));
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert(index_object_is_in(find_part(3, 1), INDEX_REMOTE));
        ck_assert(RB_EMPTY(&cache.transfers.up));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache_states");
        TCase *tcase = tcase_create("states");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, begin, world_end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, kv_without_its_state_goes_before_older_states);
        tcase_add_test(tcase, a_leased_state_stays_and_its_kv_with_it);
        tcase_add_test(tcase, a_cold_state_is_written_with_the_kv_that_it_makes_usable);
        tcase_add_test(tcase, what_is_dead_is_not_drained);
        tcase_add_test(tcase, what_was_never_used_since_the_start_makes_room_below);
        tcase_add_test(tcase, states_of_one_chain_are_spilled_with_their_kv_once);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
