// SPDX-License-Identifier: Apache-2.0
/* What goes down to the tier, and when it does not. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cache_world.h"
#include "tests/support/fake_tier.h"

START_TEST(a_failing_write_leaves_the_object_in_host_memory)
{
        fake_tier_fail_writes(cache.nvme, 1, -EIO);
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert(!world_is_below(1));
        ck_assert_ptr_nonnull(world_copy(1));
        ck_assert_uint_eq(metrics.tier_io_errors_total[METRICS_NVME], 1);
        /* The next one goes down as if nothing had been. */
        ck_assert_int_eq(world_put(2, 2, false, NULL), 0);
        wait_until(world_is_below(2));
}
END_TEST

START_TEST(a_full_tier_makes_room_by_its_oldest)
{
        for (uint32_t n = 0; n < 80; n++) {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
        }
        ck_assert(!world_is_below(0));
        ck_assert(world_is_below(79));
        ck_assert_uint_gt(metrics.removed_objects_total[METRICS_NVME][METRICS_FOR_SPACE], 10);
}
END_TEST

START_TEST(full_in_pieces_evicts_something_all_the_same)
{
        for (uint32_t n = 0; n < 4; n++)
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
        wait_until(world_is_below(3));
        fake_tier_set_full(cache.nvme, true);
        ck_assert_int_eq(world_put(9, 9, false, NULL), 0);
        wait_until(metrics.removed_objects_total[METRICS_NVME][METRICS_FOR_SPACE] > 0);
        fake_tier_set_full(cache.nvme, false);
        wait_until(world_is_below(9));
}
END_TEST

START_TEST(write_behind_stops_when_paused_and_goes_on_when_ready)
{
        fake_tier_set_paused(cache.nvme, true);
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(cache.transfers.lanes[INDEX_NVME].paused);
        world_spin(20);
        ck_assert(!world_is_below(1));
        /* Host service goes on. */
        ck_assert_int_eq(world_put(2, 2, false, NULL), 0);
        fake_tier_set_paused(cache.nvme, false);
        transfers_tier_is_ready(&cache, INDEX_NVME); /* what the daemon does in on_ready */
        transfers_pump(&cache);
        wait_until(world_is_below(1) && world_is_below(2));
}
END_TEST

START_TEST(a_writer_whose_checksums_do_not_match_is_dropped)
{
        struct checksum_list *list = calloc(1, sizeof(*list));
        struct host_copy *copy;

        ck_assert_ptr_nonnull(list);
        cache.write_policy = PLACEMENT_WRITE_OFF;
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        copy = world_copy(1);
        list->n_pieces = checksum_n_pieces(OBJECT);
        ck_assert_int_eq(transfer_verify_written(&cache, copy, list), 0);
        wait_until(transfers_are_idle(&cache.transfers));
        ck_assert_ptr_null(world_find(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_HOST], 1);
}
END_TEST

/* Under "store" the write-down has begun to hash before the writer's list is looked at. */
static void verify_while_it_goes_down(bool right)
{
        struct checksum_list *list = calloc(1, sizeof(*list));
        struct checksum_segment segments[HOST_EXTENTS_MAX];
        struct object_key key = world_key(1);
        struct host_copy *copy;

        ck_assert_ptr_nonnull(list);
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        copy = world_copy(1);
        ck_assert(copy->hashing);
        checksum_compute(list, &key, OBJECT, segments,
                         host_copy_checksum_segments(&cache.copies, copy, segments));
        list->pieces[0] ^= !right;
        ck_assert_int_eq(transfer_verify_written(&cache, copy, list), 0);
        wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
        ck_assert_uint_eq(metrics.checksum_bytes_total, OBJECT);
}

START_TEST(a_written_list_costs_no_second_hash)
{
        verify_while_it_goes_down(true);
        ck_assert(world_is_below(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_HOST], 0);
}
END_TEST

START_TEST(a_wrong_written_list_keeps_the_object_out_of_the_tier)
{
        verify_while_it_goes_down(false);
        ck_assert_ptr_null(world_find(1));
        ck_assert_uint_eq(world_tier_objects(), 0);
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_HOST], 1);
}
END_TEST

START_TEST(a_stop_ends_the_writing)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 0; n < 12; n++)
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
        fake_tier_hold(cache.nvme, true);
        transfers_drain(&cache);
        wait_until(fake_tier_held(cache.nvme));
        transfers_stop(&cache);
        fake_tier_hold(cache.nvme, false);
        wait_until(transfers_are_idle(&cache.transfers));
        world_spin(10);
        ck_assert(transfers_are_idle(&cache.transfers));
        ck_assert(!TAILQ_EMPTY(&cache.copies.dirty));
        ck_assert_uint_ge(world_tier_objects(), 1);
}
END_TEST

START_TEST(a_stop_ends_what_waits_for_the_tier)
{
        fake_tier_set_paused(cache.nvme, true);
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(cache.transfers.lanes[INDEX_NVME].paused);
        ck_assert(!transfers_are_idle(&cache.transfers));
        transfers_stop(&cache);
        ck_assert(transfers_are_idle(&cache.transfers));
        ck_assert_uint_eq(cache.transfers.lanes[INDEX_NVME].down_bytes, 0);
}
END_TEST

START_TEST(a_drain_writes_the_newest_and_does_not_push_it_out_again)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 0; n < 8; n++)
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
        ck_assert_uint_eq(world_tier_objects(), 0);
        transfers_drain(&cache);
        wait_until(transfers_are_idle(&cache.transfers) && TAILQ_EMPTY(&cache.copies.dirty));
        for (uint32_t n = 0; n < 8; n++)
                ck_assert(world_is_below(n));
}
END_TEST

START_TEST(the_cold_end_is_written_before_it_is_evicted)
{
        cache.write_policy = PLACEMENT_WRITE_COLD;
        for (uint32_t n = 0; n < 64; n++) {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                wait_until(transfers_are_idle(&cache.transfers));
        }
        ck_assert_uint_eq(metrics.host_dropped_objects_total, 0);
        ck_assert(world_is_below(20));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache_writes");
        TCase *tcase = tcase_create("writes");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, world_begin, world_end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_failing_write_leaves_the_object_in_host_memory);
        tcase_add_test(tcase, a_full_tier_makes_room_by_its_oldest);
        tcase_add_test(tcase, full_in_pieces_evicts_something_all_the_same);
        tcase_add_test(tcase, write_behind_stops_when_paused_and_goes_on_when_ready);
        tcase_add_test(tcase, a_writer_whose_checksums_do_not_match_is_dropped);
        tcase_add_test(tcase, a_written_list_costs_no_second_hash);
        tcase_add_test(tcase, a_wrong_written_list_keeps_the_object_out_of_the_tier);
        tcase_add_test(tcase, a_stop_ends_the_writing);
        tcase_add_test(tcase, a_stop_ends_what_waits_for_the_tier);
        tcase_add_test(tcase, a_drain_writes_the_newest_and_does_not_push_it_out_again);
        tcase_add_test(tcase, the_cold_end_is_written_before_it_is_evicted);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
