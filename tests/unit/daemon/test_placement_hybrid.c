// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts with states: what goes first, and what becomes of a state by its use and by others that
 * come behind it.
 */
#include <check.h>

#include "hybrid_world.h"

START_TEST(kv_that_no_state_makes_usable_goes_before_states)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 1, 3, 1);
        world_store_state(index, 3, 0, 1);
        world_store_kv(index, 101, 103, 2);
        world_store_kv(index, 201, 201, LONG_AGO_S);
        world_evict_expecting(index, 103, PLACEMENT_ALL);
        world_evict_expecting(index, 102, PLACEMENT_ALL);
        world_evict_expecting(index, 101, PLACEMENT_ALL);
        ck_assert(!world_next_victim(index).is_dead);
        world_evict_expecting(index, 3, PLACEMENT_STATES);
}
END_TEST

START_TEST(kv_goes_after_the_state_that_alone_made_it_usable)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 1, 4, 1);
        world_store_state(index, 2, 0, 1);
        world_store_state(index, 4, 0, 1);
        world_evict_expecting(index, 4, PLACEMENT_STATES);
        world_evict_expecting(index, 4, PLACEMENT_ALL);
        world_evict_expecting(index, 3, PLACEMENT_ALL);
        world_evict_expecting(index, 2, PLACEMENT_STATES);
        ck_assert(world_next_victim(index).is_dead);
        world_evict_expecting(index, 2, PLACEMENT_ALL);
        world_evict_expecting(index, 1, PLACEMENT_ALL);
        ck_assert_ptr_null(world_next_victim(index).boundary);
}
END_TEST

START_TEST(new_kv_waits_for_its_state)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 101, 110, 1);
        world_store_state(index, 110, 0, 1);
        world_store_kv(index, 1, 5, 2);
        world_evict_expecting(index, 110, PLACEMENT_STATES);
        for (uint32_t i = 110; i >= 106; i--)
                world_evict_expecting(index, i, PLACEMENT_ALL);
        ck_assert_int_eq(world_list(index, 5, INDEX_HOST), PLACEMENT_YOUNG);
        world_store_state(index, 5, 0, 3);
        ck_assert_int_eq(world_list(index, 5, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(world_list(index, 4, INDEX_HOST), PLACEMENT_NO_LIST);
}
END_TEST

START_TEST(new_kv_is_at_most_half_of_the_tier)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 1, 10, 1);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(world_list(index, 5, INDEX_HOST), PLACEMENT_YOUNG);
        ck_assert_int_eq(world_list(index, 6, INDEX_HOST), PLACEMENT_DEAD);
}
END_TEST

START_TEST(a_state_that_was_never_used_goes_before_one_that_was)
{
        _cleanup_(index_freep) struct index *index = world_make();

        for (uint32_t chain = 100; chain <= 400; chain += 100) {
                world_store_kv(index, chain + 1, chain + 1, chain);
                world_store_state(index, chain + 1, 0, chain);
        }
        world_use(index, 101, 401);
        world_use(index, 201, 402);
        /* The share of the unproven is half: at two of four the used ones are next. */
        world_evict_expecting(index, 101, PLACEMENT_STATES);
        world_evict_expecting(index, 101, PLACEMENT_ALL);
        world_evict_expecting(index, 301, PLACEMENT_STATES);
}
END_TEST

START_TEST(of_a_conversation_two_states_are_kept)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 1, 2, 1);
        world_store_state(index, 2, 0, 1);
        world_use(index, 2, 2);
        world_store_kv(index, 3, 4, 2);
        world_store_state(index, 4, 2, 2);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(world_list(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
        world_use(index, 4, 3);
        world_store_kv(index, 5, 6, 3);
        world_store_state(index, 6, 4, 3);
        /* The first one goes, alone: its KV is that of the others. */
        world_evict_expecting(index, 2, PLACEMENT_STATES);
        ck_assert_int_eq(world_list(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(world_list(index, 6, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(a_superseded_state_that_is_used_is_kept)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 1, 6, 1);
        world_store_state(index, 2, 0, 1);
        world_store_state(index, 4, 2, 2);
        world_store_state(index, 6, 4, 3);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_DEAD);
        world_use(index, 2, 4);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(where_prompts_branch_the_state_stays)
{
        _cleanup_(index_freep) struct index *index = world_make();
        struct where branch = {HYBRID, 2, 1, 2, 1}, other = {HYBRID, 50, 2, 3, 1};

        world_store_kv(index, 1, 4, 1);
        world_store_in(index, &other, KV, (struct index_origin){0});
        world_store_in(index, &branch, STATE,
                       (struct index_origin){.is_known = true, .is_branch = true});
        world_store_state(index, 4, 0, 1);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(world_list(index, 4, INDEX_HOST), PLACEMENT_UNPROVEN);
        /* With two ways to go on it is not superseded either. */
        world_store_kv(index, 5, 6, 2);
        world_store_state(index, 6, 4, 2);
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(without_a_word_from_the_engine_it_is_guessed_where_a_prefill_began)
{
        _cleanup_(index_freep) struct index *index = world_make();
        struct where end = {HYBRID, 4, 3, 4, 3};

        world_store_kv(index, 1, 4, 1);
        world_store_state(index, 2, 0, 1);
        world_use(index, 2, 2);
        world_store_in(index, &end, STATE, (struct index_origin){0});
        ck_assert_int_eq(world_list(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(of_one_prefill_only_the_last_state_is_proven_by_it)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 1, 2, 1);
        world_store_state(index, 2, 0, 1);
        world_use(index, 2, 2);
        world_store_kv(index, 3, 8, 2);
        world_store_state(index, 6, 2, 2);
        world_store_state(index, 8, 2, 2);
        ck_assert_int_eq(world_list(index, 6, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(world_list(index, 8, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(both_kinds_of_layout_share_a_tier_by_age)
{
        _cleanup_(index_freep) struct index *index = world_make();
        struct where old = {DENSE, 1, 0, 1, 1}, new = {DENSE, 2, 0, 1, 30};

        world_store_in(index, &old, KV, (struct index_origin){0});
        world_store_kv(index, 1, 1, 20);
        world_store_state(index, 1, 0, 20);
        world_store_in(index, &new, KV, (struct index_origin){0});
        ck_assert_uint_eq(world_next_victim(index).boundary->layout, DENSE);
        world_evict_expecting(index, 1, PLACEMENT_ALL);
        ck_assert_uint_eq(world_next_victim(index).boundary->layout, HYBRID);
        world_evict_expecting(index, 1, PLACEMENT_STATES);
        /* Its KV is dead now: before what is older. */
        ck_assert_uint_eq(world_next_victim(index).boundary->layout, HYBRID);
        world_evict_expecting(index, 1, PLACEMENT_ALL);
        world_evict_expecting(index, 2, PLACEMENT_ALL);
}
END_TEST

static bool all_but(void *user, const struct placement_victim *victim)
{
        const uint32_t *leased = user;

        return world_number(victim->boundary) != *leased;
}

START_TEST(a_leased_state_stays)
{
        _cleanup_(index_freep) struct index *index = world_make();
        struct placement_victim victim;
        uint32_t leased = 101;

        for (uint32_t chain = 100; chain <= 200; chain += 100) {
                world_store_kv(index, chain + 1, chain + 1, chain);
                world_store_state(index, chain + 1, 0, chain);
        }
        victim = placement_victim(index, INDEX_HOST, all_but, &leased, 100);
        ck_assert_ptr_nonnull(victim.boundary);
        ck_assert_uint_eq(world_number(victim.boundary), 201);
}
END_TEST

START_TEST(new_kv_that_is_renewed_stays_new)
{
        _cleanup_(index_freep) struct index *index = world_make();
        struct placement_victim oldest;

        world_store_kv(index, 101, 110, 1);
        world_store_state(index, 110, 0, 1);
        world_store_kv(index, 1, 1, 1);
        oldest = placement_oldest(index, INDEX_HOST, PLACEMENT_YOUNG);
        placement_renew(index, INDEX_HOST, oldest.boundary, 30);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(world_list(index, 1, INDEX_HOST), PLACEMENT_YOUNG);
}
END_TEST

/* Else a long chain that is leased would hide all that may go behind it. */
START_TEST(renewed_kv_is_not_behind_its_parent)
{
        _cleanup_(index_freep) struct index *index = world_make();

        world_store_kv(index, 101, 120, 1);
        world_store_state(index, 120, 0, 1);
        world_store_kv(index, 1, 3, 1);
        world_store_kv(index, 51, 51, 2);
        for (uint32_t i = 3; i >= 1; i--) {
                struct placement_victim oldest =
                        placement_oldest(index, INDEX_HOST, PLACEMENT_YOUNG);

                ck_assert_uint_eq(world_number(oldest.boundary), i);
                placement_renew(index, INDEX_HOST, oldest.boundary, 3);
        }
        ck_assert_uint_eq(
                world_number(placement_oldest(index, INDEX_HOST, PLACEMENT_YOUNG).boundary), 51);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("placement_hybrid");
        TCase *tcase = tcase_create("hybrid");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, kv_that_no_state_makes_usable_goes_before_states);
        tcase_add_test(tcase, kv_goes_after_the_state_that_alone_made_it_usable);
        tcase_add_test(tcase, new_kv_waits_for_its_state);
        tcase_add_test(tcase, new_kv_is_at_most_half_of_the_tier);
        tcase_add_test(tcase, a_state_that_was_never_used_goes_before_one_that_was);
        tcase_add_test(tcase, of_a_conversation_two_states_are_kept);
        tcase_add_test(tcase, a_superseded_state_that_is_used_is_kept);
        tcase_add_test(tcase, where_prompts_branch_the_state_stays);
        tcase_add_test(tcase, without_a_word_from_the_engine_it_is_guessed_where_a_prefill_began);
        tcase_add_test(tcase, of_one_prefill_only_the_last_state_is_proven_by_it);
        tcase_add_test(tcase, both_kinds_of_layout_share_a_tier_by_age);
        tcase_add_test(tcase, a_leased_state_stays);
        tcase_add_test(tcase, new_kv_that_is_renewed_stays_new);
        tcase_add_test(tcase, renewed_kv_is_not_behind_its_parent);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed > 0;
}
