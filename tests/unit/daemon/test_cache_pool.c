// SPDX-License-Identifier: Apache-2.0
/*
 * The way to the pool and back: what is worth the trip goes, in the order of its prompt; what
 * NVMe lost comes from there; and a pool that is full, slow or gone costs nothing here.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cache_world.h"
#include "daemon/pin_set.h"
#include "tests/support/fake_tier.h"

static void begin(void)
{
        world_begin();
        world_add_remote();
}

static void see_again(uint32_t n)
{
        cache_touch(&cache, world_find(n));
        transfers_pump(&cache);
}

/*
 * Until nothing is under way any more: @n is hashed and written down, so what would go to the
 * pool of its own accord has gone.
 */
static void settle(uint32_t n)
{
        wait_until(world_is_below(n) && world_copy(n)->checksums);
        world_spin(2); /* whoever waited for that has heard of it */
        wait_until(transfers_are_idle(&cache.transfers));
}

static struct tier_place pool_place(uint32_t n)
{
        return index_place(cache.index, world_find(n), INDEX_REMOTE);
}

/* Stores @n and waits until it is on NVMe and in the pool. */
static void put_everywhere(uint32_t n, uint8_t value)
{
        ck_assert_int_eq(world_put(n, value, false, NULL), 0);
        see_again(n);
        wait_until(world_is_below(n) && world_is_in_pool(n));
}

/* And leaves it in the pool alone. */
static void put_in_pool(uint32_t n, uint8_t value)
{
        put_everywhere(n, value);
        cache_drop_place(&cache, world_find(n), INDEX_NVME, METRICS_FOR_SPACE);
        cache_drop_host(&cache, world_find(n), METRICS_FOR_SPACE);
}

static void assert_promoted(uint32_t n, uint8_t value)
{
        struct host_copy *copy = world_promote(n);

        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_READY);
        ck_assert_uint_eq(world_first_byte(copy), value);
        ck_assert_ptr_eq(world_copy(n), copy);
        host_copy_unuse(&cache.copies, copy);
}

static void assert_missed(uint32_t n)
{
        struct host_copy *copy = world_promote(n);

        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_FAILED);
        ck_assert_int_eq(copy->failure, TIER_E_MISS);
        host_copy_unuse(&cache.copies, copy);
}

/* ---- what goes ---- */

START_TEST(what_was_seen_once_does_not_go_and_what_was_seen_twice_does)
{
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        settle(1);
        ck_assert(!world_is_in_pool(1));
        see_again(1);
        wait_until(world_is_in_pool(1));
        ck_assert(index_object_is_ours(world_find(1), INDEX_REMOTE));
}
END_TEST

START_TEST(what_is_pinned_goes)
{
        struct pin_set pins = {0};
        struct index_boundary *boundary;

        index_pins(cache.index)->bytes_max[INDEX_HOST] = UINT64_MAX;
        index_pins(cache.index)->bytes_max[INDEX_NVME] = UINT64_MAX;
        index_pins(cache.index)->bytes_max[INDEX_REMOTE] = UINT64_MAX;
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        boundary = index_boundary_at(cache.index, world_find(1)->boundary);
        ck_assert_int_eq(pin_set_add(&pins, cache.index, boundary), 0);
        offer_pinned(&cache, boundary);
        transfers_pump(&cache);
        wait_until(world_is_in_pool(1));
        ck_assert(world_find(1)->flags & INDEX_PINNED_REMOTE);
        pin_set_clear(&pins, cache.index, 0);
}
END_TEST

START_TEST(a_long_prompt_goes_whole_root_first_though_seen_once)
{
        cache.offers.tokens_min = 4 * 256;
        for (uint32_t n = 1; n <= 3; n++)
                ck_assert_int_eq(world_put_child(n, n - 1, n * 256, OBJECT), 0);
        for (uint32_t n = 1; n <= 3; n++)
                settle(n);
        for (uint32_t n = 1; n <= 3; n++)
                ck_assert(!world_is_in_pool(n));
        ck_assert_int_eq(world_put_child(4, 3, 4 * 256, OBJECT), 0);
        wait_until(world_is_in_pool(4));
        for (uint32_t n = 1; n <= 3; n++)
                ck_assert_uint_lt(pool_place(n).claim, pool_place(n + 1).claim);
}
END_TEST

START_TEST(what_is_hashed_first_waits_for_what_comes_before_it)
{
        cache.write_policy = PLACEMENT_WRITE_OFF;
        cache.offers.tokens_min = 3 * 256;
        ck_assert_int_eq(world_put_child(1, 0, 256, OBJECT - 65536), 0);
        ck_assert_int_eq(world_put_child(2, 1, 2 * 256, 4096), 0);
        ck_assert_int_eq(world_put_child(3, 2, 3 * 256, 4096), 0);
        wait_until(world_is_in_pool(1) && world_is_in_pool(2) && world_is_in_pool(3));
        ck_assert_uint_lt(pool_place(1).claim, pool_place(2).claim);
        ck_assert_uint_lt(pool_place(2).claim, pool_place(3).claim);
}
END_TEST

START_TEST(nothing_goes_when_the_pool_is_only_read)
{
        cache.offers.write = PLACEMENT_WRITE_OFF;
        cache.offers.all = true;
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        see_again(1);
        settle(1);
        ck_assert(!world_is_in_pool(1));
}
END_TEST

START_TEST(what_is_queued_stays_when_writing_is_switched_off)
{
        cache.offers.all = true;
        fake_tier_hold(cache.remote, true);
        for (uint32_t n = 1; n <= 6; n++)
                ck_assert_int_eq(world_put(n, 1, false, NULL), 0);
        wait_until(fake_tier_held(cache.remote));
        ck_assert_uint_gt(cache.copies.offered_bytes, 0);
        cache.offers.write = PLACEMENT_WRITE_OFF;
        fake_tier_hold(cache.remote, false);
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert_uint_eq(cache.copies.offered_bytes, 0);
        ck_assert(world_copy(6) && !world_is_in_pool(6));
}
END_TEST

START_TEST(the_cold_end_of_host_memory_goes_ahead_of_its_eviction)
{
        cache.offers.write = PLACEMENT_WRITE_COLD;
        cache.offers.all = true;
        ck_assert_int_eq(world_put(0, 1, false, NULL), 0);
        settle(0);
        ck_assert(!world_is_in_pool(0));
        for (uint32_t n = 1; n < 16; n++)
                ck_assert_int_eq(world_put(n, 1, false, NULL), 0);
        wait_until(world_is_in_pool(0));
        ck_assert(!world_is_in_pool(15));
}
END_TEST

START_TEST(a_drain_writes_to_the_pool_what_nothing_else_keeps)
{
        cache.offers.write = PLACEMENT_WRITE_COLD;
        cache.write_policy = PLACEMENT_WRITE_OFF;
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        ck_assert_int_eq(world_put(2, 1, false, NULL), 0);
        see_again(1);
        transfers_drain(&cache);
        wait_until(transfers_are_idle(&cache.transfers) && !cache.copies.offered_bytes);
        ck_assert(world_is_in_pool(1) && !world_is_in_pool(2));
}
END_TEST

START_TEST(a_drain_leaves_to_nvme_what_is_written_there)
{
        cache.offers.write = PLACEMENT_WRITE_COLD;
        cache.offers.all = true;
        cache.write_policy = PLACEMENT_WRITE_COLD;
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        transfers_drain(&cache);
        settle(1);
        ck_assert(!world_is_in_pool(1));
}
END_TEST

/* NVMe is nearly full of what has left host memory, @n objects; nothing is in the pool. */
static uint32_t fill_nvme(void)
{
        uint32_t n = 0;
        struct tier_usage usage;

        cache.offers.write = PLACEMENT_WRITE_OFF;
        do {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                wait_until(world_is_below(n));
                cache_drop_host(&cache, world_find(n), METRICS_FOR_SPACE);
                n++;
                cache.nvme->ops.usage(cache.nvme, &usage);
        } while (usage.capacity_bytes - usage.used_bytes > usage.capacity_bytes / 16);
        return n;
}

START_TEST(what_nvme_will_evict_next_is_spilled_if_it_is_worth_it)
{
        uint32_t n = fill_nvme();

        cache.offers.write = PLACEMENT_WRITE_COLD;
        index_boundary_at(cache.index, world_find(1)->boundary)->flags |= INDEX_SEEN_TWICE;
        transfers_pump(&cache);
        wait_until(world_is_in_pool(1));
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert_ptr_null(world_copy(1));
        ck_assert(world_is_below(1));
        for (uint32_t i = 0; i < n; i++)
                ck_assert(i == 1 || !world_is_in_pool(i));
        cache_drop_place(&cache, world_find(1), INDEX_NVME, METRICS_FOR_SPACE);
        assert_promoted(1, 1);
}
END_TEST

/* Object 1 alone is worth a spill, and is on its way. */
static void spill_one(void)
{
        cache.offers.write = PLACEMENT_WRITE_COLD;
        index_boundary_at(cache.index, world_find(1)->boundary)->flags |= INDEX_SEEN_TWICE;
        cache.spill_scan_at_bytes = 0;
        transfers_pump(&cache);
        ck_assert_uint_eq(cache.transfers.n_up, 1);
}

START_TEST(what_was_spilled_may_be_removed_and_spilled_again)
{
        fill_nvme();
        for (unsigned i = 0; i < 2; i++) {
                spill_one();
                wait_until(world_is_in_pool(1));
                wait_until(transfers_are_idle(&cache.transfers));
                ck_assert(!(world_find(1)->flags & INDEX_WRITING_POOL));
                cache_drop_place(&cache, world_find(1), INDEX_REMOTE, METRICS_BY_ADMIN);
                wait_until(!cache.n_forgetting);
        }
}
END_TEST

START_TEST(a_spill_that_fails_leaves_host_memory_and_is_not_repeated_at_once)
{
        const int failures[] = {-ENOSPC, TIER_E_FULL};

        fill_nvme();
        for (unsigned i = 0; i < 2; i++) {
                fake_tier_fail_writes(cache.remote, 1, failures[i]);
                spill_one();
                wait_until(metrics.tier_io_errors_total[METRICS_REMOTE] == i + 1);
                wait_until(transfers_are_idle(&cache.transfers));
                ck_assert_ptr_null(world_copy(1));
                ck_assert(!world_is_in_pool(1));
                ck_assert(!(world_find(1)->flags & INDEX_WRITING_POOL));
                transfers_pump(&cache);
                ck_assert(transfers_are_idle(&cache.transfers));
        }
        spill_one();
        wait_until(world_is_in_pool(1));
}
END_TEST

START_TEST(a_spill_that_is_used_meanwhile_stays_in_host_memory)
{
        fill_nvme();
        fake_tier_hold(cache.remote, true);
        spill_one();
        wait_until(fake_tier_held(cache.remote) == 1);
        cache_touch(&cache, world_find(1));
        fake_tier_hold(cache.remote, false);
        wait_until(world_is_in_pool(1));
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert_ptr_nonnull(world_copy(1));
}
END_TEST

START_TEST(nothing_is_spilled_while_the_pool_refuses_writes)
{
        fill_nvme();
        cache.offers.write = PLACEMENT_WRITE_COLD;
        cache.offers.all = true;
        fake_tier_set_paused(cache.remote, true);
        transfers_pump(&cache);
        wait_until(cache.transfers.lanes[INDEX_REMOTE].paused);
        wait_until(transfers_are_idle(&cache.transfers));
        for (unsigned i = 0; i < 10; i++) {
                transfers_pump(&cache);
                ck_assert(transfers_are_idle(&cache.transfers));
        }
        fake_tier_set_paused(cache.remote, false);
        transfers_tier_is_ready(&cache, INDEX_REMOTE);
        wait_until(world_is_in_pool(0));
}
END_TEST

/* ---- what comes back ---- */

START_TEST(what_the_pool_alone_has_comes_back_equal_and_goes_to_nvme_again)
{
        put_in_pool(1, 0x5a);
        ck_assert(!world_is_below(1));
        assert_promoted(1, 0x5a);
        wait_until(world_is_below(1));
        ck_assert(world_is_in_pool(1));
}
END_TEST

START_TEST(what_nvme_cannot_read_comes_from_the_pool)
{
        put_everywhere(1, 0x5a);
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
        fake_tier_corrupt(cache.nvme, world_find(1)->place);
        assert_promoted(1, 0x5a);
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_NVME], 1);
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_REMOTE], 0);
}
END_TEST

START_TEST(what_both_cannot_read_is_a_miss_and_gone)
{
        put_everywhere(1, 0x5a);
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
        fake_tier_corrupt(cache.nvme, world_find(1)->place);
        fake_tier_corrupt(cache.remote, pool_place(1));
        assert_missed(1);
        ck_assert_ptr_null(world_find(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_REMOTE], 1);
        wait_until(!cache.n_forgetting);
}
END_TEST

START_TEST(a_pool_out_of_reach_is_a_miss_and_keeps_its_objects)
{
        put_in_pool(1, 1);
        fake_tier_fail_reads(cache.remote, 1, -ETIMEDOUT);
        assert_missed(1);
        ck_assert(world_is_in_pool(1));
        ck_assert_uint_eq(metrics.tier_io_errors_total[METRICS_REMOTE], 1);
        assert_promoted(1, 1);
}
END_TEST

START_TEST(a_read_that_is_refused_at_once_is_a_miss)
{
        const int refusals[] = {-EHOSTDOWN, TIER_E_PAUSED};

        put_in_pool(1, 1);
        for (unsigned i = 0; i < 2; i++) {
                struct object_key key = world_key(1);
                struct host_copy *copy;

                fake_tier_refuse_reads(cache.remote, refusals[i]);
                ck_assert_int_eq(cache_new_copy(&cache, &key, OBJECT, HOST_COPY_ARRIVING,
                                                UINT32_MAX, false, &copy),
                                 0);
                ck_assert_int_eq(transfer_up(&cache, world_find(1), copy, NULL), TIER_E_MISS);
                host_copy_unuse(&cache.copies, copy);
                ck_assert(world_is_in_pool(1));
        }
        fake_tier_refuse_reads(cache.remote, 0);
        assert_promoted(1, 1);
}
END_TEST

START_TEST(a_bundle_that_is_gone_is_a_miss_and_its_entry_goes)
{
        put_in_pool(1, 1);
        fake_tier_fail_reads(cache.remote, 1, TIER_E_MISS);
        assert_missed(1);
        ck_assert_ptr_null(world_find(1));
        wait_until(!cache.n_forgetting);
}
END_TEST

START_TEST(a_slow_pool_does_not_hold_up_nvme)
{
        struct host_copy *slow;

        put_in_pool(1, 1);
        ck_assert_int_eq(world_put(2, 2, false, NULL), 0);
        wait_until(world_is_below(2));
        cache_drop_host(&cache, world_find(2), METRICS_FOR_SPACE);
        fake_tier_hold(cache.remote, true);
        slow = world_promote(1);
        assert_promoted(2, 2);
        ck_assert_int_eq(slow->state, HOST_COPY_ARRIVING);
        fake_tier_hold(cache.remote, false);
        wait_until(slow->state == HOST_COPY_READY);
        host_copy_unuse(&cache.copies, slow);
}
END_TEST

/* ---- trouble ---- */

START_TEST(a_pool_that_refuses_writes_holds_no_host_memory)
{
        cache.write_policy = PLACEMENT_WRITE_OFF;
        cache.offers.all = true;
        fake_tier_set_paused(cache.remote, true);
        for (uint32_t n = 0; n < 40; n++)
                ck_assert_int_eq(world_put(n, 1, false, NULL), 0);
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert_uint_gt(metrics.remote_refused_writes_total, 0);
        ck_assert_uint_eq(metrics.write_behind_pauses_total[METRICS_REMOTE], 1);
        ck_assert_uint_gt(metrics.remote_dropped_objects_total, 20);
        ck_assert(world_copy(39) && !world_is_in_pool(39));
        fake_tier_set_paused(cache.remote, false);
        transfers_tier_is_ready(&cache, INDEX_REMOTE);
        wait_until(world_is_in_pool(39));
        ck_assert_uint_eq(cache.copies.offered_bytes, 0);
}
END_TEST

START_TEST(a_pool_that_was_full_takes_writes_when_it_says_so)
{
        cache.transfers.lanes[INDEX_REMOTE].full = true; /* and no forget is under way */
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        see_again(1);
        world_spin(10);
        ck_assert(!world_is_in_pool(1));
        transfers_tier_is_ready(&cache, INDEX_REMOTE);
        wait_until(world_is_in_pool(1));
}
END_TEST

START_TEST(a_write_that_fails_leaves_the_object_here)
{
        fake_tier_fail_writes(cache.remote, 1, -ETIMEDOUT);
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        see_again(1);
        wait_until(metrics.tier_io_errors_total[METRICS_REMOTE] == 1);
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert(world_copy(1) && !world_is_in_pool(1));
        see_again(1);
        wait_until(world_is_in_pool(1));
}
END_TEST

START_TEST(a_full_pool_gives_up_what_this_node_used_longest_ago)
{
        cache.offers.all = true;
        for (uint32_t n = 0; n < 40; n++) {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                wait_until(world_is_in_pool(n));
        }
        ck_assert(!world_is_in_pool(0));
        ck_assert(world_is_in_pool(20));
        ck_assert_uint_ge(metrics.removed_objects_total[METRICS_REMOTE][METRICS_FOR_SPACE], 8);
}
END_TEST

START_TEST(what_is_pinned_stays_in_a_full_pool)
{
        struct pin_set pins = {0};

        cache.offers.all = true;
        index_pins(cache.index)->bytes_max[INDEX_HOST] = UINT64_MAX;
        index_pins(cache.index)->bytes_max[INDEX_NVME] = UINT64_MAX;
        index_pins(cache.index)->bytes_max[INDEX_REMOTE] = UINT64_MAX;
        ck_assert_int_eq(world_put(0, 0, false, NULL), 0);
        wait_until(world_is_in_pool(0) && world_is_below(0));
        /* In host memory it would be held there, and newest everywhere. */
        cache_drop_place(&cache, world_find(0), INDEX_NVME, METRICS_FOR_SPACE);
        cache_drop_host(&cache, world_find(0), METRICS_FOR_SPACE);
        ck_assert_int_eq(pin_set_add(&pins, cache.index,
                                     index_boundary_at(cache.index, world_find(0)->boundary)),
                         0);
        for (uint32_t n = 1; n < 40; n++) {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                wait_until(world_is_in_pool(n));
        }
        ck_assert(world_is_in_pool(0) && !world_is_in_pool(1));
        pin_set_clear(&pins, cache.index, 0);
}
END_TEST

START_TEST(a_replace_leaves_both_tiers_and_is_told_with_its_checksum)
{
        bool forgetting = false;
        unsigned before = n_forgotten;

        put_everywhere(1, 1);
        ck_assert_uint_eq(fake_tier_n_replaced(cache.remote), 0);
        ck_assert_int_eq(world_put(1, 2, true, &forgetting), 0);
        ck_assert(forgetting);
        ck_assert_uint_eq(fake_tier_n_replaced(cache.remote), 1);
        ck_assert_uint_eq(fake_tier_replaced_total(cache.remote), 0);
        ck_assert(!world_is_in_pool(1));
        wait_until(n_forgotten == before + 1);
        wait_until(fake_tier_n_replaced(cache.remote) == 2);
        ck_assert_uint_eq(fake_tier_replaced_total(cache.remote), world_copy(1)->checksums->total);
        world_spin(20);
        ck_assert_uint_eq(n_forgotten, before + 1);
}
END_TEST

START_TEST(a_replace_does_not_wait_for_a_pool_that_is_slow)
{
        bool forgetting = true;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        cache_drop_place(&cache, world_find(1), INDEX_NVME, METRICS_FOR_SPACE);
        wait_until(!cache.n_forgetting);
        cache_sync_forgets(&cache, world_on_forgotten, NULL);
        wait_until(n_forgotten == 1);
        fake_tier_hold(cache.remote, true);
        see_again(1);
        wait_until(fake_tier_held(cache.remote) == 1);
        ck_assert_int_eq(world_put(1, 2, true, &forgetting), 0);
        ck_assert(!forgetting);
        fake_tier_hold(cache.remote, false);
        wait_until(transfers_are_idle(&cache.transfers));
        if (world_is_in_pool(1)) {
                cache_drop_place(&cache, world_find(1), INDEX_NVME, METRICS_FOR_SPACE);
                cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
                assert_promoted(1, 2);
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache_pool");
        TCase *tcase = tcase_create("pool");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, begin, world_end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, what_was_seen_once_does_not_go_and_what_was_seen_twice_does);
        tcase_add_test(tcase, what_is_pinned_goes);
        tcase_add_test(tcase, a_long_prompt_goes_whole_root_first_though_seen_once);
        tcase_add_test(tcase, what_is_hashed_first_waits_for_what_comes_before_it);
        tcase_add_test(tcase, nothing_goes_when_the_pool_is_only_read);
        tcase_add_test(tcase, what_is_queued_stays_when_writing_is_switched_off);
        tcase_add_test(tcase, the_cold_end_of_host_memory_goes_ahead_of_its_eviction);
        tcase_add_test(tcase, a_drain_writes_to_the_pool_what_nothing_else_keeps);
        tcase_add_test(tcase, a_drain_leaves_to_nvme_what_is_written_there);
        tcase_add_test(tcase, what_nvme_will_evict_next_is_spilled_if_it_is_worth_it);
        tcase_add_test(tcase, what_was_spilled_may_be_removed_and_spilled_again);
        tcase_add_test(tcase, a_spill_that_fails_leaves_host_memory_and_is_not_repeated_at_once);
        tcase_add_test(tcase, a_spill_that_is_used_meanwhile_stays_in_host_memory);
        tcase_add_test(tcase, nothing_is_spilled_while_the_pool_refuses_writes);
        tcase_add_test(tcase, what_the_pool_alone_has_comes_back_equal_and_goes_to_nvme_again);
        tcase_add_test(tcase, what_nvme_cannot_read_comes_from_the_pool);
        tcase_add_test(tcase, what_both_cannot_read_is_a_miss_and_gone);
        tcase_add_test(tcase, a_pool_out_of_reach_is_a_miss_and_keeps_its_objects);
        tcase_add_test(tcase, a_read_that_is_refused_at_once_is_a_miss);
        tcase_add_test(tcase, a_bundle_that_is_gone_is_a_miss_and_its_entry_goes);
        tcase_add_test(tcase, a_slow_pool_does_not_hold_up_nvme);
        tcase_add_test(tcase, a_pool_that_refuses_writes_holds_no_host_memory);
        tcase_add_test(tcase, a_pool_that_was_full_takes_writes_when_it_says_so);
        tcase_add_test(tcase, a_write_that_fails_leaves_the_object_here);
        tcase_add_test(tcase, a_full_pool_gives_up_what_this_node_used_longest_ago);
        tcase_add_test(tcase, what_is_pinned_stays_in_a_full_pool);
        tcase_add_test(tcase, a_replace_leaves_both_tiers_and_is_told_with_its_checksum);
        tcase_add_test(tcase, a_replace_does_not_wait_for_a_pool_that_is_slow);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
