// SPDX-License-Identifier: Apache-2.0
/*
 * What other nodes do in the pool: their objects appear, vanish and replace, and never push
 * out what is here.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cache_world.h"
#include "daemon/layout_table.h"
#include "daemon/remote_entry.h"
#include "tests/support/fake_tier.h"

enum { SMALL = 4096 };

static void begin(void)
{
        world_begin();
        world_add_remote();
}

static struct tier_object object_of(uint32_t n, uint64_t bytes)
{
        return (struct tier_object){
                .key = world_key(n),
                .parent_unknown = true,
                .boundary_tokens = 256,
                .generation = 4711,
                .raw_bytes = bytes,
        };
}

static struct tier_place appear(uint32_t n, uint64_t bytes, uint8_t value)
{
        struct tier_object object = object_of(n, bytes);

        return fake_tier_appear(cache.remote, &object, value);
}

static uint64_t n_foreign(void)
{
        struct index_usage usage;

        index_usage(cache.index, &usage);
        return usage.foreign_objects;
}

static void assert_promoted(uint32_t n, uint8_t value)
{
        struct host_copy *copy = world_promote(n);

        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_int_eq(copy->state, HOST_COPY_READY);
        ck_assert_uint_eq(world_first_byte(copy), value);
        host_copy_unuse(&cache.copies, copy);
}

START_TEST(what_appears_can_be_loaded_and_what_vanishes_is_gone)
{
        struct tier_place place = appear(1, OBJECT, 0x5a);

        ck_assert(world_is_in_pool(1));
        ck_assert(!index_object_is_ours(world_find(1), INDEX_REMOTE));
        assert_promoted(1, 0x5a);
        place = appear(2, OBJECT, 1);
        fake_tier_vanish(cache.remote, place, false, 0);
        ck_assert_ptr_null(world_find(2));
        ck_assert_uint_eq(metrics.removed_objects_total[METRICS_REMOTE][METRICS_VANISHED], 1);
}
END_TEST

START_TEST(what_vanishes_stays_where_it_is_here)
{
        struct tier_place place;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        place = appear(1, OBJECT, 1);
        ck_assert(world_is_in_pool(1));
        fake_tier_vanish(cache.remote, place, false, 0);
        ck_assert(!world_is_in_pool(1));
        ck_assert(world_copy(1) && world_is_below(1));
}
END_TEST

START_TEST(what_others_replaced_leaves_every_tier_here)
{
        struct tier_place place;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        place = appear(1, OBJECT, 1);
        fake_tier_vanish(cache.remote, place, true, 12345);
        ck_assert_ptr_null(world_find(1));
        ck_assert_uint_eq(metrics.removed_objects_total[METRICS_HOST][METRICS_REPLACED], 1);
        ck_assert_uint_eq(metrics.removed_objects_total[METRICS_NVME][METRICS_REPLACED], 1);
        wait_until(!cache.n_forgetting);
}
END_TEST

START_TEST(what_has_the_checksum_that_holds_stays)
{
        struct tier_place place;
        uint64_t total;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        total = world_copy(1)->checksums->total;
        place = appear(1, OBJECT, 1);
        fake_tier_vanish(cache.remote, place, true, total);
        ck_assert(world_copy(1) && world_is_below(1));
        /* On NVMe alone its checksum is not known. */
        place = appear(1, OBJECT, 1);
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
        fake_tier_vanish(cache.remote, place, true, total);
        ck_assert_ptr_null(world_find(1));
        wait_until(!cache.n_forgetting);
}
END_TEST

START_TEST(a_promotion_of_what_was_replaced_meanwhile_is_not_published)
{
        struct tier_place place;
        struct host_copy *copy;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        place = appear(1, OBJECT, 1);
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
        fake_tier_hold(cache.nvme, true);
        copy = world_promote(1);
        fake_tier_vanish(cache.remote, place, true, 12345);
        appear(1, OBJECT, 2);
        fake_tier_hold(cache.nvme, false);
        wait_until(copy->state != HOST_COPY_ARRIVING);
        ck_assert_ptr_null(world_copy(1));
        host_copy_unuse(&cache.copies, copy);
        assert_promoted(1, 2);
        wait_until(!cache.n_forgetting);
}
END_TEST

enum { NOTHING, BY_OTHERS, BY_THE_SAME, BY_US, N_EVENTS };

/* What happens to object 1 while it is read from a peer. */
static void happen(int event, uint64_t total)
{
        struct object_key key = world_key(1);
        struct tier_place nowhere = {0, 0};
        bool forgetting;

        if (event == BY_OTHERS)
                cache.remote->on_vanished(cache.remote->on_shared_user, &key, nowhere, true,
                                          total + 1);
        if (event == BY_THE_SAME)
                cache.remote->on_vanished(cache.remote->on_shared_user, &key, nowhere, true, total);
        if (event != BY_US)
                return;
        ck_assert_int_eq(world_put(1, 2, true, &forgetting), 0);
        wait_until(transfers_are_idle(&cache.transfers));
        cache_drop(&cache, world_find(1), METRICS_UNREADABLE);
}

START_TEST(a_read_from_a_peer_that_is_outdated_is_not_published)
{
        struct index_new_object entry = world_entry(1, OBJECT);
        struct object_key key = world_key(1);
        struct host_copy *copy;
        struct cache_read read;
        int r;

        ck_assert_int_eq(
                cache_new_copy(&cache, &key, OBJECT, HOST_COPY_ARRIVING, UINT32_MAX, false, &copy),
                0);
        cache_read_begin(&cache, &read, &key);
        world_fill(copy, 1);
        copy->state = HOST_COPY_READY;
        ck_assert_int_eq(transfer_hash(&cache, copy), 0);
        wait_until(copy->checksums);
        happen(_i, copy->checksums->total);
        r = cache_publish_read(&cache, copy, &entry, &read);
        cache_read_end(&read);
        host_copy_unuse(&cache.copies, copy);
        ck_assert_int_eq(r, _i == NOTHING || _i == BY_THE_SAME ? 0 : CACHE_E_REPLACED);
        ck_assert_int_eq(world_copy(1) != NULL, !r);
        wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
}
END_TEST

START_TEST(of_two_places_this_nodes_own_stays)
{
        struct tier_place own;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        cache_touch(&cache, world_find(1));
        transfers_pump(&cache);
        wait_until(world_is_in_pool(1));
        own = index_place(cache.index, world_find(1), INDEX_REMOTE);
        appear(1, OBJECT, 1);
        ck_assert_uint_eq(index_place(cache.index, world_find(1), INDEX_REMOTE).claim, own.claim);
        ck_assert(index_object_is_ours(world_find(1), INDEX_REMOTE));
        wait_until(!cache.n_forgetting);
}
END_TEST

START_TEST(of_two_places_of_others_the_later_holds)
{
        struct tier_place later;

        appear(1, OBJECT, 1);
        later = appear(1, OBJECT, 2);
        ck_assert_uint_eq(index_place(cache.index, world_find(1), INDEX_REMOTE).claim, later.claim);
        wait_until(!cache.n_forgetting);
        assert_promoted(1, 2);
}
END_TEST

START_TEST(what_does_not_fit_what_is_here_is_not_taken)
{
        struct tier_object wild = object_of(7, SMALL);

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        appear(1, SMALL, 1);
        ck_assert(!world_is_in_pool(1));
        wild.cell = LAYOUT_TABLE_BANKS * PRESENCE_CELLS_PER_BANK;
        fake_tier_appear(cache.remote, &wild, 1);
        ck_assert_ptr_null(world_find(7));
        ck_assert_uint_eq(metrics.remote_unindexed_objects_total, 2);
        wait_until(!cache.n_forgetting);
}
END_TEST

START_TEST(what_is_unknown_here_takes_no_layout_number_when_it_goes)
{
        struct object_key key = world_key(1);
        uint32_t n;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        n = index_n_layouts(cache.index);
        memset(key.layout.bytes, 9, sizeof(key.layout.bytes));
        cache.remote->on_vanished(cache.remote->on_shared_user, &key, (struct tier_place){0, 0},
                                  true, 1);
        ck_assert_uint_eq(index_n_layouts(cache.index), n);
}
END_TEST

START_TEST(others_leave_layout_numbers_to_those_who_attach)
{
        struct digest id = {.bytes = {9}};
        uint16_t layout;
        uint32_t i;

        ck_assert_int_eq(remote_entry_layout(&cache, DOMAIN_DEFAULT + 1, &id, &layout),
                         INDEX_E_FULL);
        for (i = 0; i < UINT16_MAX; i++) {
                memcpy(id.bytes + 1, &i, sizeof(i));
                if (remote_entry_layout(&cache, DOMAIN_DEFAULT, &id, &layout))
                        break;
        }
        ck_assert_uint_lt(i, UINT16_MAX - 4000);
        ck_assert_int_eq(index_layout(cache.index, DOMAIN_DEFAULT, &id, &layout), 0);
        /* What is known has its number. */
        ck_assert_int_eq(remote_entry_layout(&cache, DOMAIN_DEFAULT, &id, &layout), 0);
}
END_TEST

START_TEST(in_a_full_index_others_find_no_place_and_make_room_first)
{
        uint32_t n = 100;

        ck_assert_int_eq(world_put(1, 1, false, NULL), 0);
        wait_until(world_is_below(1));
        while (!metrics.remote_unindexed_objects_total)
                appear(n++, SMALL, 1);
        ck_assert(world_copy(1) && world_is_below(1));
        ck_assert_uint_eq(n_foreign(), 999);
        for (uint32_t i = 2; i < 6; i++)
                ck_assert_int_eq(world_put(i, 1, false, NULL), 0);
        ck_assert_uint_eq(n_foreign(), 995);
        for (uint32_t i = 1; i < 6; i++)
                ck_assert_ptr_nonnull(world_copy(i));
        wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
}
END_TEST

START_TEST(few_of_others_are_not_searched_for)
{
        ck_assert(!index_expects_foreign(cache.index, UINT32_MAX));
        for (uint32_t n = 1; n < 10; n++)
                ck_assert_int_eq(world_put(n, 1, false, NULL), 0);
        appear(10, SMALL, 1);
        ck_assert(index_expects_foreign(cache.index, 10));
        ck_assert(!index_expects_foreign(cache.index, 9));
        wait_until(transfers_are_idle(&cache.transfers));
}
END_TEST

START_TEST(a_full_pool_gives_up_nothing_of_others)
{
        cache.offers.all = true;
        for (uint32_t n = 100; n < 200; n++)
                appear(n, SMALL, 1);
        for (uint32_t n = 0; n < 40; n++) {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                wait_until(world_is_in_pool(n));
        }
        ck_assert_uint_eq(n_foreign(), 100);
}
END_TEST

static void on_end(void *user, int result)
{
        ck_assert_int_eq(result, 0);
        *(bool *)user = true;
}

/* The index of a new run: nothing is in it, and everything is below. */
static void start_anew(void)
{
        bool ended = false;

        wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
        cache_deinit(&cache);
        index_free(cache.index);
        ck_assert(!index_new(&cache.index, 1000, NULL));
        cache.next_generation = 0;
        ck_assert(!cache_init(&cache));
        cache_recover(&cache, on_end, &ended);
        wait_until(ended);
}

START_TEST(after_a_restart_what_is_in_both_tiers_is_one_object)
{
        struct index_usage usage;
        uint64_t generation;

        for (uint32_t n = 1; n <= 3; n++) {
                ck_assert_int_eq(world_put(n, (uint8_t)n, false, NULL), 0);
                cache_touch(&cache, world_find(n));
                transfers_pump(&cache);
                wait_until(world_is_below(n) && world_is_in_pool(n));
        }
        generation = world_find(3)->generation;
        appear(4, OBJECT, 4);
        cache_drop_place(&cache, world_find(2), INDEX_NVME, METRICS_FOR_SPACE);
        start_anew();
        index_usage(cache.index, &usage);
        ck_assert_uint_eq(usage.objects, 4);
        ck_assert_uint_eq(usage.objects_in[INDEX_NVME], 2);
        ck_assert_uint_eq(usage.objects_in[INDEX_REMOTE], 4);
        ck_assert_uint_eq(usage.foreign_objects, 1);
        ck_assert_uint_eq(world_find(3)->generation, generation);
        ck_assert_uint_gt(cache.next_generation, generation);
        for (uint32_t n = 1; n <= 4; n++)
                assert_promoted(n, (uint8_t)n);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache_shared");
        TCase *tcase = tcase_create("shared");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, begin, world_end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, what_appears_can_be_loaded_and_what_vanishes_is_gone);
        tcase_add_test(tcase, what_vanishes_stays_where_it_is_here);
        tcase_add_test(tcase, what_others_replaced_leaves_every_tier_here);
        tcase_add_test(tcase, what_has_the_checksum_that_holds_stays);
        tcase_add_test(tcase, a_promotion_of_what_was_replaced_meanwhile_is_not_published);
        tcase_add_loop_test(tcase, a_read_from_a_peer_that_is_outdated_is_not_published, 0,
                            N_EVENTS);
        tcase_add_test(tcase, of_two_places_this_nodes_own_stays);
        tcase_add_test(tcase, of_two_places_of_others_the_later_holds);
        tcase_add_test(tcase, what_does_not_fit_what_is_here_is_not_taken);
        tcase_add_test(tcase, what_is_unknown_here_takes_no_layout_number_when_it_goes);
        tcase_add_test(tcase, others_leave_layout_numbers_to_those_who_attach);
        tcase_add_test(tcase, in_a_full_index_others_find_no_place_and_make_room_first);
        tcase_add_test(tcase, few_of_others_are_not_searched_for);
        tcase_add_test(tcase, a_full_pool_gives_up_nothing_of_others);
        tcase_add_test(tcase, after_a_restart_what_is_in_both_tiers_is_one_object);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
