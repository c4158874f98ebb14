// SPDX-License-Identifier: Apache-2.0
/*
 * Lists and counts of layouts with states add up whatever happens in whatever order, and also when
 * it becomes known only later that a layout has states.
 */
#include <check.h>
#include <string.h>

#include "daemon/pin_table.h"
#include "hybrid_world.h"

START_TEST(a_layout_that_becomes_known_changes_over)
{
        _cleanup_(index_freep) struct index *index = world_make_unknown();

        world_store_kv(index, 1, 2, 1);
        world_store_state(index, 2, 0, 1);
        world_store_kv(index, 101, 101, 1);
        ck_assert_ptr_nonnull(placement_next(index, INDEX_HOST, NULL));
        placement_learn_groups(index, HYBRID, 1u << STATE);
        ck_assert_ptr_null(placement_next(index, INDEX_HOST, NULL));
        ck_assert_int_eq(world_list(index, 2, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(world_list(index, 1, INDEX_HOST), PLACEMENT_NO_LIST);
        ck_assert_int_eq(world_list(index, 101, INDEX_HOST), PLACEMENT_YOUNG);
        for (uint32_t i = 1; i <= 2; i++)
                world_drop(index, world_find(index, i, KV));
        world_drop(index, world_find(index, 2, STATE));
        world_drop(index, world_find(index, 101, KV));
        ck_assert_ptr_null(world_next_victim(index).boundary);
}
END_TEST

START_TEST(a_boundary_that_only_a_pin_keeps_changes_over_too)
{
        _cleanup_(index_freep) struct index *index = world_make_unknown();
        struct digest digest = world_digest(1);
        struct index_boundary *boundary;

        index_pins(index)->bytes_max[INDEX_HOST] = 1 << 20;
        world_store_kv(index, 1, 1, 1);
        boundary = index_find_boundary(index, HYBRID, &digest);
        ck_assert_int_eq(pin_hold(index, boundary), 0);
        world_drop(index, world_find(index, 1, KV));
        placement_learn_groups(index, HYBRID, 1u << STATE);
        ck_assert_uint_eq(index_order(index)->hybrid.n_nodes, 1);
        index_unpin(index, boundary);
        ck_assert_uint_eq(index_order(index)->hybrid.n_nodes, 0);
}
END_TEST

START_TEST(a_state_keeps_its_rank_when_it_goes_down_and_comes_back)
{
        _cleanup_(index_freep) struct index *index = world_make();
        struct index_object *state;

        world_store_kv(index, 1, 1, 1);
        world_store_state(index, 1, 0, 1);
        world_use(index, 1, 2);
        state = world_find(index, 1, STATE);
        index_set_place(index, state, (struct tier_place){.claim = 1});
        ck_assert_int_eq(world_list(index, 1, INDEX_NVME), PLACEMENT_PROVEN);
        index_set_host(index, state, INDEX_NONE);
        index_set_host(index, state, 1);
        ck_assert_int_eq(world_list(index, 1, INDEX_HOST), PLACEMENT_PROVEN);
        index_set_place(index, state, (struct tier_place){0});
}
END_TEST

enum { NODES = 200, STEPS = 200000 };

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t limit)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (uint32_t)(((random_state * 2685821657736338717u) >> 33) % limit);
}

static uint32_t depth_of(uint32_t node)
{
        uint32_t depth = 0;

        for (; node; node /= 3)
                depth++;
        return depth;
}

static bool has(struct index *index, uint32_t node, uint16_t group, enum index_tier tier)
{
        const struct index_object *object = world_find(index, node, group);

        return object && index_object_is_ours(object, tier);
}

static uint32_t live[NODES];

static void count_live(struct index *index, enum index_tier tier)
{
        memset(live, 0, sizeof(live));
        for (uint32_t node = NODES; --node > 0;) {
                struct digest digest = world_digest(node);
                const struct index_boundary *boundary = index_find_boundary(index, HYBRID, &digest);

                live[node] += has(index, node, STATE, tier);
                if (live[node] && boundary->parent)
                        live[node / 3]++;
        }
}

static void assert_books(struct index *index, enum index_tier tier)
{
        count_live(index, tier);
        for (uint32_t node = 1; node < NODES; node++) {
                struct digest digest = world_digest(node);
                const struct index_boundary *boundary = index_find_boundary(index, HYBRID, &digest);
                enum placement_list list;

                if (!boundary)
                        continue;
                list = world_list(index, node, tier);
                ck_assert_uint_eq(index_order(index)
                                          ->links[tier][index_boundary_id(index, boundary)]
                                          .children,
                                  live[node]);
                if (has(index, node, STATE, tier))
                        ck_assert_int_ne(list, PLACEMENT_NO_LIST);
                else if (has(index, node, KV, tier) && !live[node])
                        ck_assert(list == PLACEMENT_YOUNG || list == PLACEMENT_DEAD);
                else
                        ck_assert_int_eq(list, PLACEMENT_NO_LIST);
        }
}

static void change(struct index *index, uint32_t node, uint16_t group, uint32_t now_s)
{
        struct index_object *object = world_find(index, node, group);
        struct where where = {HYBRID, node, node / 3, depth_of(node), now_s};

        if (!object) {
                world_store_in(index, &where, group,
                               (struct index_origin){.is_known = random_below(2),
                                                     .is_branch = !random_below(8),
                                                     .began_tokens = random_below(depth_of(node))});
                return;
        }
        switch (random_below(6)) {
        case 5:
                index_set_remote(index, object, (struct tier_place){.claim = random_below(2)},
                                 random_below(2));
                break;
        case 0:
                index_set_place(index, object,
                                (struct tier_place){.claim = object->place.claim ? 0 : 1});
                break;
        case 1:
                index_set_host(index, object, object->host ? INDEX_NONE : 1);
                break;
        case 2:
                index_set_place(index, object, (struct tier_place){0});
                index_set_host(index, object, INDEX_NONE);
                break;
        default:
                placement_use(index, object, now_s);
        }
        if (index_object_is_nowhere(object))
                index_remove(index, object);
}

START_TEST(the_books_add_up_whatever_happens)
{
        _cleanup_(index_freep) struct index *index = world_make();

        for (uint32_t step = 0; step < STEPS; step++) {
                if (random_below(16)) {
                        change(index, 1 + random_below(NODES - 1), random_below(2) ? KV : STATE,
                               step / 100);
                } else {
                        enum index_tier tier = (enum index_tier)random_below(INDEX_N_TIERS);
                        struct placement_victim victim =
                                placement_victim(index, tier, world_anything, NULL, 100);

                        if (victim.boundary)
                                placement_evict(index, tier, &victim);
                }
                if (step % 200 == 0) {
                        assert_books(index, INDEX_HOST);
                        assert_books(index, INDEX_NVME);
                        assert_books(index, INDEX_REMOTE);
                }
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("placement_books");
        TCase *tcase = tcase_create("books");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_layout_that_becomes_known_changes_over);
        tcase_add_test(tcase, a_boundary_that_only_a_pin_keeps_changes_over_too);
        tcase_add_test(tcase, a_state_keeps_its_rank_when_it_goes_down_and_comes_back);
        tcase_add_test(tcase, the_books_add_up_whatever_happens);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed > 0;
}
