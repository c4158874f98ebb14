// SPDX-License-Identifier: Apache-2.0
/*
 * Objects that are stored, looked up, evicted and lost: what is held stays, and nothing is
 * left waiting.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cache_world.h"
#include "tests/support/fake_tier.h"

START_TEST(what_is_stored_goes_down_and_comes_back_equal)
{
        struct host_copy *copy;

        ck_assert_int_eq(world_put(1, 0x5a, false, NULL), 0);
        wait_until(world_is_below(1));
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
        ck_assert_ptr_null(world_copy(1));
        copy = world_promote(1);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_READY);
        ck_assert_uint_eq(world_first_byte(copy), 0x5a);
        ck_assert_ptr_eq(world_copy(1), copy);
        host_copy_unuse(&cache.copies, copy);
}
END_TEST

START_TEST(room_is_made_by_evicting_the_oldest_but_never_what_is_leased)
{
        struct host_copy *leased;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        ck_assert_int_eq(world_put(0, 0xee, false, NULL), 0);
        leased = world_copy(0);
        host_copy_lease(&cache.copies, leased);
        for (uint32_t n = 1; n < 40; n++)
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
        ck_assert_ptr_eq(world_copy(0), leased);
        ck_assert_uint_eq(world_first_byte(leased), 0xee);
        ck_assert_ptr_null(world_copy(1));
        ck_assert_ptr_nonnull(world_copy(39));
        host_copy_unlease(&cache.copies, leased);
}
END_TEST

START_TEST(what_is_leased_does_not_stay_at_the_old_end)
{
        struct host_copy *copy;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        for (uint32_t n = 0; n < 12; n++)
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
        copy = world_copy(0);
        host_copy_lease(&cache.copies, copy);
        for (uint32_t n = 0; n < 12; n++)
                index_boundary_at(cache.index, world_find(n)->boundary)->touched_s = 0;
        ck_assert_uint_eq(
                index_boundary_id(cache.index, placement_next(cache.index, INDEX_HOST, NULL)),
                world_find(0)->boundary);
        for (uint32_t n = 12; world_copy(1); n++)
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
        ck_assert_ptr_eq(world_copy(0), copy);
        ck_assert_uint_ne(
                index_boundary_id(cache.index, placement_next(cache.index, INDEX_HOST, NULL)),
                world_find(0)->boundary);
        host_copy_unlease(&cache.copies, copy);
}
END_TEST

START_TEST(all_leased_is_busy_and_holds_nothing)
{
        struct host_copy *leased[16];
        struct host_usage before, after;
        uint32_t n = 0;

        cache.write_policy = PLACEMENT_WRITE_OFF;
        while (n < 16 && !world_put(n, 1, false, NULL)) {
                leased[n] = world_copy(n);
                host_copy_lease(&cache.copies, leased[n]);
                n++;
        }
        host_usage(cache.host, &before);
        ck_assert_int_eq(world_put(99, 1, false, NULL), CACHE_E_BUSY);
        host_usage(cache.host, &after);
        ck_assert_uint_eq(before.used_bytes, after.used_bytes);
        while (n--)
                host_copy_unlease(&cache.copies, leased[n]);
}
END_TEST

START_TEST(first_commit_wins)
{
        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        ck_assert_int_eq(world_put(1, 2, false, NULL), CACHE_E_EXISTS);
        ck_assert_uint_eq(world_first_byte(world_copy(1)), 1);
}
END_TEST

START_TEST(corrupt_bytes_are_a_miss_and_leave_the_tier)
{
        struct host_copy *copy;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
        fake_tier_corrupt(cache.nvme, world_find(1)->place);
        copy = world_promote(1);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_FAILED);
        ck_assert_int_eq(copy->failure, TIER_E_CORRUPT);
        ck_assert_ptr_null(world_find(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_NVME], 1);
        host_copy_unuse(&cache.copies, copy);
        wait_until(!cache.n_forgetting);
        ck_assert_uint_eq(world_tier_objects(), 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache");
        TCase *tcase = tcase_create("cache");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, world_begin, world_end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, what_is_stored_goes_down_and_comes_back_equal);
        tcase_add_test(tcase, room_is_made_by_evicting_the_oldest_but_never_what_is_leased);
        tcase_add_test(tcase, what_is_leased_does_not_stay_at_the_old_end);
        tcase_add_test(tcase, all_leased_is_busy_and_holds_nothing);
        tcase_add_test(tcase, first_commit_wins);
        tcase_add_test(tcase, corrupt_bytes_are_a_miss_and_leave_the_tier);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
