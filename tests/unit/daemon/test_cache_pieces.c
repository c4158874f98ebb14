// SPDX-License-Identifier: Apache-2.0
/* Single pieces of objects, which come up for who asked and are never published. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cache_world.h"
#include "tests/support/fake_tier.h"

/* Brings one piece of object @n into a copy that nobody else knows. */
static struct host_copy *fetch_piece(uint32_t n, uint32_t piece)
{
        struct index_object *object = world_find(n);
        struct object_key key = world_key(n);
        struct piece_set pieces = {{UINT64_C(1) << piece}};
        struct host_copy *copy;

        ck_assert_ptr_nonnull(object);
        ck_assert_int_eq(cache_new_copy(&cache, &key, piece_set_bytes(&pieces, OBJECT),
                                        HOST_COPY_ARRIVING, UINT32_MAX, false, &copy),
                         0);
        ck_assert_int_eq(transfer_up(&cache, object, copy, &pieces), 0);
        return copy;
}

START_TEST(pieces_come_up_for_who_asked_and_are_never_published)
{
        struct host_copy *copy, *other;

        world_put_below(0x5a);
        copy = fetch_piece(1, 3);
        ck_assert_ptr_null(transfer_arriving(&cache, world_find(1)));
        other = fetch_piece(1, 3);
        ck_assert_ptr_ne(copy, other);
        wait_until(copy->state != HOST_COPY_ARRIVING && other->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_READY);
        ck_assert_uint_eq(world_first_byte(copy), 0x5a);
        ck_assert_uint_eq(copy->object, INDEX_NONE);
        ck_assert_ptr_null(copy->checksums);
        ck_assert_ptr_null(world_copy(1));
        ck_assert(world_is_below(1));
        ck_assert_uint_eq(metrics.page_loads_read_bytes_total, 2 * CHECKSUM_PIECE_BYTES);
        host_copy_unuse(&cache.copies, copy);
        host_copy_unuse(&cache.copies, other);
}
END_TEST

START_TEST(a_place_is_in_use_until_the_last_read_of_it_ends)
{
        struct host_copy *copies[3];

        world_put_below(1);
        fake_tier_hold(cache.nvme, true);
        copies[0] = fetch_piece(1, 0);
        copies[1] = world_promote(1);
        copies[2] = fetch_piece(1, 1);
        ck_assert_ptr_eq(transfer_arriving(&cache, world_find(1)), copies[1]);
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert(world_find(1)->flags & INDEX_READING);
                fake_tier_release(cache.nvme, 1);
                wait_until(copies[i]->state == HOST_COPY_READY);
        }
        ck_assert(!(world_find(1)->flags & INDEX_READING));
        ck_assert_ptr_eq(world_copy(1), copies[1]);
        for (uint32_t i = 0; i < 3; i++)
                host_copy_unuse(&cache.copies, copies[i]);
        fake_tier_hold(cache.nvme, false);
}
END_TEST

START_TEST(a_corrupt_piece_drops_the_object_from_the_tier)
{
        struct host_copy *copy;

        world_put_below(1);
        fake_tier_fail_reads(cache.nvme, 1, TIER_E_CORRUPT);
        copy = fetch_piece(1, 2);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_FAILED);
        ck_assert_ptr_null(world_find(1));
        ck_assert_uint_eq(metrics.corrupt_objects_total[METRICS_NVME], 1);
        host_copy_unuse(&cache.copies, copy);
}
END_TEST

/* Also when they are bad: the new generation has nothing to do with them. */
START_TEST(pieces_of_a_replaced_generation_serve_who_waits_and_touch_nothing)
{
        struct host_copy *good, *bad;

        world_put_below(1);
        fake_tier_hold(cache.nvme, true);
        good = fetch_piece(1, 0);
        fake_tier_fail_reads(cache.nvme, 1, TIER_E_CORRUPT);
        bad = fetch_piece(1, 0);
        ck_assert_int_eq(world_put(1, 2, true, NULL), 0);
        fake_tier_hold(cache.nvme, false);
        wait_until(good->state != HOST_COPY_ARRIVING && bad->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(good->state, HOST_COPY_READY);
        ck_assert_uint_eq(world_first_byte(good), 1);
        ck_assert_int_eq(bad->state, HOST_COPY_FAILED);
        wait_until(world_is_below(1));
        ck_assert_uint_eq(world_first_byte(world_copy(1)), 2);
        host_copy_unuse(&cache.copies, good);
        host_copy_unuse(&cache.copies, bad);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache_pieces");
        TCase *tcase = tcase_create("pieces");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, world_begin, world_end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, pieces_come_up_for_who_asked_and_are_never_published);
        tcase_add_test(tcase, a_place_is_in_use_until_the_last_read_of_it_ends);
        tcase_add_test(tcase, a_corrupt_piece_drops_the_object_from_the_tier);
        tcase_add_test(tcase, pieces_of_a_replaced_generation_serve_who_waits_and_touch_nothing);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
