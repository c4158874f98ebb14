// SPDX-License-Identifier: Apache-2.0
/*
 * What is known of boundaries whose bytes are gone: what is learned when they come back, what a
 * match is told of them, and how much of it is kept.
 */
#include <check.h>

#include "hybrid_world.h"

DEFINE_CLEANUP(struct presence_table *, presence_table_free)

START_TEST(what_comes_back_too_late_makes_its_list_larger)
{
        _cleanup_(index_freep) struct index *index = world_make();
        const struct placement_share *share = &index_order(index)->hybrid.shares[INDEX_HOST];
        double before = share->unproven;

        for (uint32_t chain = 100; chain <= 500; chain += 100) {
                world_store_kv(index, chain + 1, chain + 2, chain);
                world_store_state(index, chain + 2, 0, chain);
        }
        world_evict_expecting(index, 102, PLACEMENT_STATES);
        world_evict_expecting(index, 102, PLACEMENT_ALL);
        world_evict_expecting(index, 101, PLACEMENT_ALL);
        ck_assert(!world_find(index, 101, KV));
        /* Nothing of it is left in the index, but it is remembered. */
        world_store_kv(index, 101, 102, 600);
        world_store_state(index, 102, 0, 600);
        ck_assert(share->unproven > before);
        ck_assert_int_eq(world_list(index, 102, INDEX_HOST), PLACEMENT_PROVEN);
        /* Once. */
        before = share->unproven;
        world_drop(index, world_find(index, 102, STATE));
        world_store_state(index, 102, 0, 601);
        ck_assert(share->unproven == before);
}
END_TEST

START_TEST(children_are_remembered_when_their_bytes_are_gone)
{
        _cleanup_(index_freep) struct index *index = world_make();
        struct digest seen = world_digest(2), leaf = world_digest(3), never = world_digest(4);
        bool has_child;

        world_store_kv(index, 1, 3, 1);
        for (uint32_t i = 3; i > 0; i--)
                world_drop(index, world_find(index, i, KV));
        ck_assert(placement_knows(index, HYBRID, &seen, &has_child) && has_child);
        ck_assert(placement_knows(index, HYBRID, &leaf, &has_child) && !has_child);
        ck_assert(!placement_knows(index, HYBRID, &never, &has_child));
        /* The same child is no second one. */
        world_store_kv(index, 1, 3, 2);
        ck_assert_uint_eq(
                index_order(index)
                        ->hybrid
                        .nodes[index_boundary_id(index, index_find_boundary(index, HYBRID, &seen))]
                        .past.children_seen,
                1);
}
END_TEST

static uint32_t flags_in(struct index *index, const struct presence_table *table, uint32_t number)
{
        struct digest digest = world_digest(number);
        struct presence_bits bits = {0};

        presence_lookup(presence_table_view(table), index_fingerprint(index, HYBRID, &digest),
                        &bits);
        return bits.flags & (PRESENCE_SEEN | PRESENCE_HAS_CHILD);
}

START_TEST(match_can_tell_what_was_seen_when_its_bytes_are_gone)
{
        static const uint8_t boot_id[16] = {1};
        struct presence_table *table;
        struct index *index;
        uint16_t layout;

        ck_assert_int_eq(presence_table_new(&table, 10000, boot_id, 1), 0);
        ck_assert_int_eq(index_new(&index, 10000, table), 0);
        ck_assert_int_eq(index_layout(index, 0, &hybrid_id, &layout), 0);
        placement_learn_groups(index, HYBRID, 1u << STATE);
        world_store_kv(index, 1, 2, 1);
        ck_assert_uint_eq(flags_in(index, table, 1), PRESENCE_SEEN | PRESENCE_HAS_CHILD);
        ck_assert_uint_eq(flags_in(index, table, 2), PRESENCE_SEEN);
        for (uint32_t i = 2; i > 0; i--)
                world_drop(index, world_find(index, i, KV));
        ck_assert_uint_eq(flags_in(index, table, 1), PRESENCE_SEEN | PRESENCE_HAS_CHILD);
        ck_assert_uint_eq(flags_in(index, table, 2), PRESENCE_SEEN);
        /* Forgotten is forgotten there too. */
        for (uint32_t i = 100; i < 5000; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                world_drop(index, world_store_in(index, &where, KV, (struct index_origin){0}));
        }
        ck_assert_uint_eq(flags_in(index, table, 1), 0);
        index_free(index);
        presence_table_free(table);
}
END_TEST

START_TEST(the_memory_is_bounded)
{
        _cleanup_(index_freep) struct index *index = world_make();

        for (uint32_t i = 1; i <= 5000; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                world_drop(index, world_store_in(index, &where, KV, (struct index_origin){0}));
        }
        ck_assert_uint_le(placement_memory_n(&index_order(index)->hybrid.memory), 1024);
        ck_assert_uint_ge(placement_memory_n(&index_order(index)->hybrid.memory), 1000);
}
END_TEST

START_TEST(what_is_remembered_leaves_room_in_the_presence_table)
{
        enum { OBJECTS_MAX = 400 };
        _cleanup_(presence_table_freep) struct presence_table *table = NULL;
        _cleanup_(index_freep) struct index *index = NULL;
        struct presence_table_usage usage;
        uint16_t layout;

        ck_assert_int_eq(presence_table_new(&table, OBJECTS_MAX, (uint8_t[16]){1}, 1), 0);
        /* By a key of chance, one in a hundred tables has two full buckets for some entry. */
        ((struct presence_header *)(uintptr_t)presence_table_view(table)->header)->hash_key = 1;
        ck_assert_int_eq(index_new(&index, OBJECTS_MAX, table), 0);
        ck_assert_int_eq(index_layout(index, 0, &hybrid_id, &layout), 0);
        placement_learn_groups(index, HYBRID, 1u << STATE);
        for (uint32_t i = 1; i <= 5000; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                world_drop(index, world_store_in(index, &where, KV, (struct index_origin){0}));
        }
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.used, OBJECTS_MAX / 4 + 1);
        for (uint32_t i = 5001; i <= 5000 + OBJECTS_MAX; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                world_store_in(index, &where, KV, (struct index_origin){0});
        }
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.used, OBJECTS_MAX + OBJECTS_MAX / 16 + 1);
        ck_assert_uint_eq(usage.refused_total, 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("placement_memory");
        TCase *tcase = tcase_create("memory");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, what_comes_back_too_late_makes_its_list_larger);
        tcase_add_test(tcase, children_are_remembered_when_their_bytes_are_gone);
        tcase_add_test(tcase, match_can_tell_what_was_seen_when_its_bytes_are_gone);
        tcase_add_test(tcase, the_memory_is_bounded);
        tcase_add_test(tcase, what_is_remembered_leaves_room_in_the_presence_table);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed > 0;
}
