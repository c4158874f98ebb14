// SPDX-License-Identifier: Apache-2.0
/*
 * States that cannot be used because KV in front of them is missing: they are found, but not too
 * soon.
 */
#include <check.h>

#include "daemon/layout_table.h"
#include "hybrid_world.h"

START_TEST(states_whose_kv_has_a_gap_go_first)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 101, 101, 1);
        world_store_state(index, 101, 0, 1);
        world_store_kv(index, 1, 4, 2);
        world_store_state(index, 2, 0, 2);
        world_store_state(index, 4, 0, 2);
        world_use(index, 4, 3);
        /* In the tier below it would be no gap. */
        index_set_place(index, world_find(index, 3, KV), (struct tier_place){.claim = 1});
        index_set_host(index, world_find(index, 3, KV), INDEX_NONE);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(world_list(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
        index_set_place(index, world_find(index, 3, KV), (struct tier_place){0});
        index_remove(index, world_find(index, 3, KV));
        world_evict_expecting(index, 4, PLACEMENT_ALL);
        world_evict_expecting(index, 101, PLACEMENT_STATES);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_UNPROVEN);
}
END_TEST

/* KV belongs at every second boundary; 4 and 2 have none, nor has 104, which is new. */
START_TEST(states_whose_kv_never_came_go_first_after_a_while)
{
        _cleanup_(index_freep) struct index *index = world_make();

        index_layout_at(index, HYBRID)->kv_tokens = 2;
        world_store_kv(index, 201, 202, 1);
        world_store_state(index, 202, 0, 1);
        world_store_state(index, 203, 202, 1);
        world_store_state(index, 4, 0, 2);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(world_list(index, 4, INDEX_HOST), PLACEMENT_UNPROVEN);
        world_store_state(index, 104, 0, 62);
        world_evict_expecting(index, 4, PLACEMENT_ALL);
        ck_assert_int_eq(world_list(index, 104, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(world_list(index, 202, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(world_list(index, 203, INDEX_HOST), PLACEMENT_UNPROVEN);
        /* It was new when the others were sought: it is looked at again. */
        world_use(index, 202, 122);
        world_evict_expecting(index, 104, PLACEMENT_ALL);
}
END_TEST

START_TEST(kv_that_comes_behind_its_state_is_waited_for)
{
        _cleanup_(index_freep) struct index *index = world_make();

        index_layout_at(index, HYBRID)->kv_tokens = 1;
        world_store_state(index, 2, 0, 1);
        world_store_kv(index, 1, 2, 30);
        world_store_kv(index, 101, 101, 100);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_UNPROVEN);
}
END_TEST

START_TEST(a_state_that_is_used_without_kv_needs_none)
{
        _cleanup_(index_freep) struct index *index = world_make();

        index_layout_at(index, HYBRID)->kv_tokens = 1;
        world_store_state(index, 2, 0, 1);
        world_use(index, 2, 2);
        world_store_kv(index, 101, 101, 100);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(broken_states_are_found_while_others_break)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 1, 1, 1);
        world_store_state(index, 1, 0, 1);
        for (uint32_t chain = 100; chain < 480000; chain += 100)
                world_store_kv(index, chain + 1, chain + 1, 1);
        for (uint32_t chain = 100; chain < 600; chain += 100)
                world_store_state(index, chain + 1, 0, 1);
        world_drop(index, world_find(index, 1, KV));
        for (uint32_t chain = 100; chain < 600; chain += 100) {
                placement_hybrid_age(index, INDEX_HOST);
                world_drop(index, world_find(index, chain + 1, KV));
        }
        ck_assert_int_eq(world_list(index, 1, INDEX_HOST), PLACEMENT_DEAD);
        for (unsigned i = 0; i < 4; i++)
                placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(world_list(index, 501, INDEX_HOST), PLACEMENT_DEAD);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("placement_gaps");
        TCase *tcase = tcase_create("gaps");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, states_whose_kv_has_a_gap_go_first);
        tcase_add_test(tcase, states_whose_kv_never_came_go_first_after_a_while);
        tcase_add_test(tcase, kv_that_comes_behind_its_state_is_waited_for);
        tcase_add_test(tcase, a_state_that_is_used_without_kv_needs_none);
        tcase_add_test(tcase, broken_states_are_found_while_others_break);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed > 0;
}
