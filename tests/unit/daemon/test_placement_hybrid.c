// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts with states: what goes first, what a state's end does to its KV, what is learned
 * from states that come back, and that the books add up whatever happens in whatever order.
 */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/layout_table.h"
#include "daemon/pin_table.h"
#include "daemon/placement.h"

DEFINE_CLEANUP(struct index *, index_free)
DEFINE_CLEANUP(struct presence_table *, presence_table_free)

enum { KV, STATE, HYBRID = 1, DENSE = 2, LONG_AGO_S = 1000 };

static const struct digest hybrid_id = {{42}}, dense_id = {{43}};

static struct index *make_unknown(void)
{
        struct index *index;
        uint16_t layout;

        ck_assert_int_eq(index_new(&index, 10000, NULL), 0);
        ck_assert_int_eq(index_layout(index, 0, &hybrid_id, &layout), 0);
        ck_assert_int_eq(layout, HYBRID);
        ck_assert_int_eq(index_layout(index, 0, &dense_id, &layout), 0);
        ck_assert_int_eq(layout, DENSE);
        return index;
}

static struct index *make(void)
{
        struct index *index = make_unknown();

        placement_learn_groups(index, HYBRID, 1u << STATE);
        return index;
}

static struct digest digest_of(uint32_t number)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &number, sizeof(number));
        return digest;
}

static uint32_t number_of(const struct index_boundary *boundary)
{
        uint32_t number;

        memcpy(&number, boundary->digest.bytes, sizeof(number));
        return number;
}

static struct index_object *find(struct index *index, uint32_t number, uint16_t group)
{
        struct digest digest = digest_of(number);
        struct index_boundary *boundary = index_find_boundary(index, HYBRID, &digest);

        return boundary ? index_find_object(index, boundary, group, 0) : NULL;
}

static enum placement_list list_of(struct index *index, uint32_t number, enum index_tier tier)
{
        struct digest digest = digest_of(number);
        struct index_boundary *boundary = index_find_boundary(index, HYBRID, &digest);

        ck_assert_ptr_nonnull(boundary);
        return index_order(index)->hybrid.nodes[index_boundary_id(index, boundary)].list[tier];
}

struct where {
        uint16_t layout;
        uint32_t number, parent, tokens, now_s;
};

static struct index_object *store_in(struct index *index, const struct where *where, uint16_t group,
                                     struct index_origin origin)
{
        struct index_new_object new_object = {
                .layout = where->layout,
                .group = group,
                .digest = digest_of(where->number),
                .parent = digest_of(where->parent),
                .boundary_tokens = where->tokens,
                .raw_bytes = 1,
        };
        struct index_object *object;

        ck_assert_int_eq(index_add(index, &new_object, &object), 0);
        index_set_host(index, object, 1);
        placement_stored(index, object, &origin, where->now_s);
        return object;
}

/* KV of boundaries first .. last of a chain that hangs on boundary first - 1. */
static void store_kv(struct index *index, uint32_t first, uint32_t last, uint32_t now_s)
{
        for (uint32_t i = first; i <= last; i++) {
                struct where where = {HYBRID, i, i - 1, i % 100, now_s};

                store_in(index, &where, KV, (struct index_origin){0});
        }
}

static void store_state(struct index *index, uint32_t number, uint32_t began, uint32_t now_s)
{
        struct where where = {HYBRID, number, number - 1, number % 100, now_s};

        store_in(index, &where, STATE,
                 (struct index_origin){.is_known = true, .began_tokens = began % 100});
}

static void use(struct index *index, uint32_t number, uint32_t now_s)
{
        placement_use(index, find(index, number, STATE), now_s);
}

static void drop(struct index *index, struct index_object *object)
{
        index_set_host(index, object, INDEX_NONE);
        index_remove(index, object);
}

static bool anything(void *user, const struct placement_victim *victim)
{
        return true;
}

static struct placement_victim next_victim(struct index *index)
{
        return placement_victim(index, INDEX_HOST, anything, NULL, 100);
}

/* As the cache does it; says whether the victim was as expected. */
static void evict_expecting(struct index *index, uint32_t number, enum placement_part part)
{
        struct placement_victim victim = next_victim(index);
        uint32_t id;

        ck_assert_ptr_nonnull(victim.boundary);
        ck_assert_uint_eq(number_of(victim.boundary), number);
        ck_assert_int_eq(victim.part, part);
        placement_evict(index, INDEX_HOST, &victim);
        id = victim.boundary->first_object;
        while (id) {
                struct index_object *object = index_object_at(index, id);

                id = object->next;
                if (placement_takes(index, &victim, object))
                        drop(index, object);
        }
}

START_TEST(kv_that_no_state_makes_usable_goes_before_states)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 1, 3, 1);
        store_state(index, 3, 0, 1);
        store_kv(index, 101, 103, 2);
        store_kv(index, 201, 201, LONG_AGO_S);
        evict_expecting(index, 103, PLACEMENT_ALL);
        evict_expecting(index, 102, PLACEMENT_ALL);
        evict_expecting(index, 101, PLACEMENT_ALL);
        ck_assert(!next_victim(index).is_dead);
        evict_expecting(index, 3, PLACEMENT_STATES);
}
END_TEST

START_TEST(kv_goes_after_the_state_that_alone_made_it_usable)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 1, 4, 1);
        store_state(index, 2, 0, 1);
        store_state(index, 4, 0, 1);
        evict_expecting(index, 4, PLACEMENT_STATES);
        evict_expecting(index, 4, PLACEMENT_ALL);
        evict_expecting(index, 3, PLACEMENT_ALL);
        evict_expecting(index, 2, PLACEMENT_STATES);
        ck_assert(next_victim(index).is_dead);
        evict_expecting(index, 2, PLACEMENT_ALL);
        evict_expecting(index, 1, PLACEMENT_ALL);
        ck_assert_ptr_null(next_victim(index).boundary);
}
END_TEST

START_TEST(new_kv_waits_for_its_state)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 101, 110, 1);
        store_state(index, 110, 0, 1);
        store_kv(index, 1, 5, 2);
        evict_expecting(index, 110, PLACEMENT_STATES);
        for (uint32_t i = 110; i >= 106; i--)
                evict_expecting(index, i, PLACEMENT_ALL);
        ck_assert_int_eq(list_of(index, 5, INDEX_HOST), PLACEMENT_YOUNG);
        store_state(index, 5, 0, 3);
        ck_assert_int_eq(list_of(index, 5, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(list_of(index, 4, INDEX_HOST), PLACEMENT_NO_LIST);
}
END_TEST

START_TEST(new_kv_is_at_most_half_of_the_tier)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 1, 10, 1);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(list_of(index, 5, INDEX_HOST), PLACEMENT_YOUNG);
        ck_assert_int_eq(list_of(index, 6, INDEX_HOST), PLACEMENT_DEAD);
}
END_TEST

START_TEST(a_state_that_was_never_used_goes_before_one_that_was)
{
        _cleanup_(index_freep) struct index *index = make();

        for (uint32_t chain = 100; chain <= 400; chain += 100) {
                store_kv(index, chain + 1, chain + 1, chain);
                store_state(index, chain + 1, 0, chain);
        }
        use(index, 101, 401);
        use(index, 201, 402);
        /* The share of the unproven is half: at two of four the used ones are next. */
        evict_expecting(index, 101, PLACEMENT_STATES);
        evict_expecting(index, 101, PLACEMENT_ALL);
        evict_expecting(index, 301, PLACEMENT_STATES);
}
END_TEST

START_TEST(of_a_conversation_two_states_are_kept)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 1, 2, 1);
        store_state(index, 2, 0, 1);
        use(index, 2, 2);
        store_kv(index, 3, 4, 2);
        store_state(index, 4, 2, 2);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(list_of(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
        use(index, 4, 3);
        store_kv(index, 5, 6, 3);
        store_state(index, 6, 4, 3);
        /* The first one goes, alone: its KV is that of the others. */
        evict_expecting(index, 2, PLACEMENT_STATES);
        ck_assert_int_eq(list_of(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(list_of(index, 6, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(a_superseded_state_that_is_used_is_kept)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 1, 6, 1);
        store_state(index, 2, 0, 1);
        store_state(index, 4, 2, 2);
        store_state(index, 6, 4, 3);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_DEAD);
        use(index, 2, 4);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(states_whose_kv_has_a_gap_go_first)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 101, 101, 1);
        store_state(index, 101, 0, 1);
        store_kv(index, 1, 4, 2);
        store_state(index, 2, 0, 2);
        store_state(index, 4, 0, 2);
        use(index, 4, 3);
        /* In the tier below it would be no gap. */
        index_set_place(index, find(index, 3, KV), (struct tier_place){.claim = 1});
        index_set_host(index, find(index, 3, KV), INDEX_NONE);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(list_of(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
        index_set_place(index, find(index, 3, KV), (struct tier_place){0});
        index_remove(index, find(index, 3, KV));
        evict_expecting(index, 4, PLACEMENT_ALL);
        evict_expecting(index, 101, PLACEMENT_STATES);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_UNPROVEN);
}
END_TEST

/* KV belongs at every second boundary; 4 and 2 have none, nor has 104, which is new. */
START_TEST(states_whose_kv_never_came_go_first_after_a_while)
{
        _cleanup_(index_freep) struct index *index = make();

        index_layout_at(index, HYBRID)->kv_tokens = 2;
        store_kv(index, 201, 202, 1);
        store_state(index, 202, 0, 1);
        store_state(index, 203, 202, 1);
        store_state(index, 4, 0, 2);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(list_of(index, 4, INDEX_HOST), PLACEMENT_UNPROVEN);
        store_state(index, 104, 0, 62);
        evict_expecting(index, 4, PLACEMENT_ALL);
        ck_assert_int_eq(list_of(index, 104, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(list_of(index, 202, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(list_of(index, 203, INDEX_HOST), PLACEMENT_UNPROVEN);
        /* It was new when the others were sought: it is looked at again. */
        use(index, 202, 122);
        evict_expecting(index, 104, PLACEMENT_ALL);
}
END_TEST

START_TEST(kv_that_comes_behind_its_state_is_waited_for)
{
        _cleanup_(index_freep) struct index *index = make();

        index_layout_at(index, HYBRID)->kv_tokens = 1;
        store_state(index, 2, 0, 1);
        store_kv(index, 1, 2, 30);
        store_kv(index, 101, 101, 100);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_UNPROVEN);
}
END_TEST

START_TEST(a_state_that_is_used_without_kv_needs_none)
{
        _cleanup_(index_freep) struct index *index = make();

        index_layout_at(index, HYBRID)->kv_tokens = 1;
        store_state(index, 2, 0, 1);
        use(index, 2, 2);
        store_kv(index, 101, 101, 100);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(broken_states_are_found_while_others_break)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 1, 1, 1);
        store_state(index, 1, 0, 1);
        for (uint32_t chain = 100; chain < 480000; chain += 100)
                store_kv(index, chain + 1, chain + 1, 1);
        for (uint32_t chain = 100; chain < 600; chain += 100)
                store_state(index, chain + 1, 0, 1);
        drop(index, find(index, 1, KV));
        for (uint32_t chain = 100; chain < 600; chain += 100) {
                placement_hybrid_age(index, INDEX_HOST);
                drop(index, find(index, chain + 1, KV));
        }
        ck_assert_int_eq(list_of(index, 1, INDEX_HOST), PLACEMENT_DEAD);
        for (unsigned i = 0; i < 4; i++)
                placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(list_of(index, 501, INDEX_HOST), PLACEMENT_DEAD);
}
END_TEST

START_TEST(where_prompts_branch_the_state_stays)
{
        _cleanup_(index_freep) struct index *index = make();
        struct where branch = {HYBRID, 2, 1, 2, 1}, other = {HYBRID, 50, 2, 3, 1};

        store_kv(index, 1, 4, 1);
        store_in(index, &other, KV, (struct index_origin){0});
        store_in(index, &branch, STATE, (struct index_origin){.is_known = true, .is_branch = true});
        store_state(index, 4, 0, 1);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
        ck_assert_int_eq(list_of(index, 4, INDEX_HOST), PLACEMENT_UNPROVEN);
        /* With two ways to go on it is not superseded either. */
        store_kv(index, 5, 6, 2);
        store_state(index, 6, 4, 2);
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(without_a_word_from_the_engine_it_is_guessed_where_a_prefill_began)
{
        _cleanup_(index_freep) struct index *index = make();
        struct where end = {HYBRID, 4, 3, 4, 3};

        store_kv(index, 1, 4, 1);
        store_state(index, 2, 0, 1);
        use(index, 2, 2);
        store_in(index, &end, STATE, (struct index_origin){0});
        ck_assert_int_eq(list_of(index, 4, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(of_one_prefill_only_the_last_state_is_proven_by_it)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 1, 2, 1);
        store_state(index, 2, 0, 1);
        use(index, 2, 2);
        store_kv(index, 3, 8, 2);
        store_state(index, 6, 2, 2);
        store_state(index, 8, 2, 2);
        ck_assert_int_eq(list_of(index, 6, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(list_of(index, 8, INDEX_HOST), PLACEMENT_PROVEN);
}
END_TEST

START_TEST(what_comes_back_too_late_makes_its_list_larger)
{
        _cleanup_(index_freep) struct index *index = make();
        const struct placement_share *share = &index_order(index)->hybrid.shares[INDEX_HOST];
        double before = share->unproven;

        for (uint32_t chain = 100; chain <= 500; chain += 100) {
                store_kv(index, chain + 1, chain + 2, chain);
                store_state(index, chain + 2, 0, chain);
        }
        evict_expecting(index, 102, PLACEMENT_STATES);
        evict_expecting(index, 102, PLACEMENT_ALL);
        evict_expecting(index, 101, PLACEMENT_ALL);
        ck_assert(!find(index, 101, KV));
        /* Nothing of it is left in the index, but it is remembered. */
        store_kv(index, 101, 102, 600);
        store_state(index, 102, 0, 600);
        ck_assert(share->unproven > before);
        ck_assert_int_eq(list_of(index, 102, INDEX_HOST), PLACEMENT_PROVEN);
        /* Once. */
        before = share->unproven;
        drop(index, find(index, 102, STATE));
        store_state(index, 102, 0, 601);
        ck_assert(share->unproven == before);
}
END_TEST

START_TEST(children_are_remembered_when_their_bytes_are_gone)
{
        _cleanup_(index_freep) struct index *index = make();
        struct digest seen = digest_of(2), leaf = digest_of(3), never = digest_of(4);
        bool has_child;

        store_kv(index, 1, 3, 1);
        for (uint32_t i = 3; i > 0; i--)
                drop(index, find(index, i, KV));
        ck_assert(placement_knows(index, HYBRID, &seen, &has_child) && has_child);
        ck_assert(placement_knows(index, HYBRID, &leaf, &has_child) && !has_child);
        ck_assert(!placement_knows(index, HYBRID, &never, &has_child));
        /* The same child is no second one. */
        store_kv(index, 1, 3, 2);
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
        struct digest digest = digest_of(number);
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
        store_kv(index, 1, 2, 1);
        ck_assert_uint_eq(flags_in(index, table, 1), PRESENCE_SEEN | PRESENCE_HAS_CHILD);
        ck_assert_uint_eq(flags_in(index, table, 2), PRESENCE_SEEN);
        for (uint32_t i = 2; i > 0; i--)
                drop(index, find(index, i, KV));
        ck_assert_uint_eq(flags_in(index, table, 1), PRESENCE_SEEN | PRESENCE_HAS_CHILD);
        ck_assert_uint_eq(flags_in(index, table, 2), PRESENCE_SEEN);
        /* Forgotten is forgotten there too. */
        for (uint32_t i = 100; i < 5000; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                drop(index, store_in(index, &where, KV, (struct index_origin){0}));
        }
        ck_assert_uint_eq(flags_in(index, table, 1), 0);
        index_free(index);
        presence_table_free(table);
}
END_TEST

START_TEST(the_memory_is_bounded)
{
        _cleanup_(index_freep) struct index *index = make();

        for (uint32_t i = 1; i <= 5000; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                drop(index, store_in(index, &where, KV, (struct index_origin){0}));
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
        ck_assert_int_eq(index_new(&index, OBJECTS_MAX, table), 0);
        ck_assert_int_eq(index_layout(index, 0, &hybrid_id, &layout), 0);
        placement_learn_groups(index, HYBRID, 1u << STATE);
        for (uint32_t i = 1; i <= 5000; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                drop(index, store_in(index, &where, KV, (struct index_origin){0}));
        }
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.used, OBJECTS_MAX / 4 + 1);
        for (uint32_t i = 5001; i <= 5000 + OBJECTS_MAX; i++) {
                struct where where = {HYBRID, i, 0, 1, i};

                store_in(index, &where, KV, (struct index_origin){0});
        }
        presence_table_usage(table, &usage);
        ck_assert_uint_eq(usage.used, OBJECTS_MAX + OBJECTS_MAX / 16 + 1);
}
END_TEST

START_TEST(both_kinds_of_layout_share_a_tier_by_age)
{
        _cleanup_(index_freep) struct index *index = make();
        struct where old = {DENSE, 1, 0, 1, 1}, new = {DENSE, 2, 0, 1, 30};

        store_in(index, &old, KV, (struct index_origin){0});
        store_kv(index, 1, 1, 20);
        store_state(index, 1, 0, 20);
        store_in(index, &new, KV, (struct index_origin){0});
        ck_assert_uint_eq(next_victim(index).boundary->layout, DENSE);
        evict_expecting(index, 1, PLACEMENT_ALL);
        ck_assert_uint_eq(next_victim(index).boundary->layout, HYBRID);
        evict_expecting(index, 1, PLACEMENT_STATES);
        /* Its KV is dead now: before what is older. */
        ck_assert_uint_eq(next_victim(index).boundary->layout, HYBRID);
        evict_expecting(index, 1, PLACEMENT_ALL);
        evict_expecting(index, 2, PLACEMENT_ALL);
}
END_TEST

static bool all_but(void *user, const struct placement_victim *victim)
{
        const uint32_t *leased = user;

        return number_of(victim->boundary) != *leased;
}

START_TEST(a_leased_state_stays)
{
        _cleanup_(index_freep) struct index *index = make();
        struct placement_victim victim;
        uint32_t leased = 101;

        for (uint32_t chain = 100; chain <= 200; chain += 100) {
                store_kv(index, chain + 1, chain + 1, chain);
                store_state(index, chain + 1, 0, chain);
        }
        victim = placement_victim(index, INDEX_HOST, all_but, &leased, 100);
        ck_assert_ptr_nonnull(victim.boundary);
        ck_assert_uint_eq(number_of(victim.boundary), 201);
}
END_TEST

START_TEST(new_kv_that_is_renewed_stays_new)
{
        _cleanup_(index_freep) struct index *index = make();
        struct placement_victim oldest;

        store_kv(index, 101, 110, 1);
        store_state(index, 110, 0, 1);
        store_kv(index, 1, 1, 1);
        oldest = placement_oldest(index, INDEX_HOST, PLACEMENT_YOUNG);
        placement_renew(index, INDEX_HOST, oldest.boundary, 30);
        placement_hybrid_age(index, INDEX_HOST);
        ck_assert_int_eq(list_of(index, 1, INDEX_HOST), PLACEMENT_YOUNG);
}
END_TEST

/* Else a long chain that is leased would hide all that may go behind it. */
START_TEST(renewed_kv_is_not_behind_its_parent)
{
        _cleanup_(index_freep) struct index *index = make();

        store_kv(index, 101, 120, 1);
        store_state(index, 120, 0, 1);
        store_kv(index, 1, 3, 1);
        store_kv(index, 51, 51, 2);
        for (uint32_t i = 3; i >= 1; i--) {
                struct placement_victim oldest =
                        placement_oldest(index, INDEX_HOST, PLACEMENT_YOUNG);

                ck_assert_uint_eq(number_of(oldest.boundary), i);
                placement_renew(index, INDEX_HOST, oldest.boundary, 3);
        }
        ck_assert_uint_eq(
                number_of(placement_oldest(index, INDEX_HOST, PLACEMENT_YOUNG).boundary), 51);
}
END_TEST

START_TEST(a_layout_that_becomes_known_changes_over)
{
        _cleanup_(index_freep) struct index *index = make_unknown();

        store_kv(index, 1, 2, 1);
        store_state(index, 2, 0, 1);
        store_kv(index, 101, 101, 1);
        ck_assert_ptr_nonnull(placement_next(index, INDEX_HOST, NULL));
        placement_learn_groups(index, HYBRID, 1u << STATE);
        ck_assert_ptr_null(placement_next(index, INDEX_HOST, NULL));
        ck_assert_int_eq(list_of(index, 2, INDEX_HOST), PLACEMENT_UNPROVEN);
        ck_assert_int_eq(list_of(index, 1, INDEX_HOST), PLACEMENT_NO_LIST);
        ck_assert_int_eq(list_of(index, 101, INDEX_HOST), PLACEMENT_YOUNG);
        for (uint32_t i = 1; i <= 2; i++)
                drop(index, find(index, i, KV));
        drop(index, find(index, 2, STATE));
        drop(index, find(index, 101, KV));
        ck_assert_ptr_null(next_victim(index).boundary);
}
END_TEST

START_TEST(a_boundary_that_only_a_pin_keeps_changes_over_too)
{
        _cleanup_(index_freep) struct index *index = make_unknown();
        struct digest digest = digest_of(1);
        struct index_boundary *boundary;

        index_pins(index)->bytes_max[INDEX_HOST] = 1 << 20;
        store_kv(index, 1, 1, 1);
        boundary = index_find_boundary(index, HYBRID, &digest);
        ck_assert_int_eq(pin_hold(index, boundary), 0);
        drop(index, find(index, 1, KV));
        placement_learn_groups(index, HYBRID, 1u << STATE);
        ck_assert_uint_eq(index_order(index)->hybrid.n_nodes, 1);
        index_unpin(index, boundary);
        ck_assert_uint_eq(index_order(index)->hybrid.n_nodes, 0);
}
END_TEST

START_TEST(a_state_keeps_its_rank_when_it_goes_down_and_comes_back)
{
        _cleanup_(index_freep) struct index *index = make();
        struct index_object *state;

        store_kv(index, 1, 1, 1);
        store_state(index, 1, 0, 1);
        use(index, 1, 2);
        state = find(index, 1, STATE);
        index_set_place(index, state, (struct tier_place){.claim = 1});
        ck_assert_int_eq(list_of(index, 1, INDEX_NVME), PLACEMENT_PROVEN);
        index_set_host(index, state, INDEX_NONE);
        index_set_host(index, state, 1);
        ck_assert_int_eq(list_of(index, 1, INDEX_HOST), PLACEMENT_PROVEN);
        index_set_place(index, state, (struct tier_place){0});
}
END_TEST

/* ---- the books ---- */

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
        const struct index_object *object = find(index, node, group);

        return object && index_object_is_in(object, tier);
}

static uint32_t live[NODES];

static void count_live(struct index *index, enum index_tier tier)
{
        memset(live, 0, sizeof(live));
        for (uint32_t node = NODES; --node > 0;) {
                struct digest digest = digest_of(node);
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
                struct digest digest = digest_of(node);
                const struct index_boundary *boundary = index_find_boundary(index, HYBRID, &digest);
                enum placement_list list;

                if (!boundary)
                        continue;
                list = list_of(index, node, tier);
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
        struct index_object *object = find(index, node, group);
        struct where where = {HYBRID, node, node / 3, depth_of(node), now_s};

        if (!object) {
                store_in(index, &where, group,
                         (struct index_origin){.is_known = random_below(2),
                                               .is_branch = !random_below(8),
                                               .began_tokens = random_below(depth_of(node))});
                return;
        }
        switch (random_below(5)) {
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
        if (!object->host && !object->place.claim)
                index_remove(index, object);
}

START_TEST(the_books_add_up_whatever_happens)
{
        _cleanup_(index_freep) struct index *index = make();

        for (uint32_t step = 0; step < STEPS; step++) {
                if (random_below(16)) {
                        change(index, 1 + random_below(NODES - 1), random_below(2) ? KV : STATE,
                               step / 100);
                } else {
                        enum index_tier tier = random_below(2) ? INDEX_HOST : INDEX_NVME;
                        struct placement_victim victim =
                                placement_victim(index, tier, anything, NULL, 100);

                        if (victim.boundary)
                                placement_evict(index, tier, &victim);
                }
                if (step % 200 == 0) {
                        assert_books(index, INDEX_HOST);
                        assert_books(index, INDEX_NVME);
                }
        }
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
        tcase_add_test(tcase, states_whose_kv_has_a_gap_go_first);
        tcase_add_test(tcase, states_whose_kv_never_came_go_first_after_a_while);
        tcase_add_test(tcase, kv_that_comes_behind_its_state_is_waited_for);
        tcase_add_test(tcase, a_state_that_is_used_without_kv_needs_none);
        tcase_add_test(tcase, broken_states_are_found_while_others_break);
        tcase_add_test(tcase, where_prompts_branch_the_state_stays);
        tcase_add_test(tcase, without_a_word_from_the_engine_it_is_guessed_where_a_prefill_began);
        tcase_add_test(tcase, of_one_prefill_only_the_last_state_is_proven_by_it);
        tcase_add_test(tcase, what_comes_back_too_late_makes_its_list_larger);
        tcase_add_test(tcase, children_are_remembered_when_their_bytes_are_gone);
        tcase_add_test(tcase, match_can_tell_what_was_seen_when_its_bytes_are_gone);
        tcase_add_test(tcase, the_memory_is_bounded);
        tcase_add_test(tcase, what_is_remembered_leaves_room_in_the_presence_table);
        tcase_add_test(tcase, both_kinds_of_layout_share_a_tier_by_age);
        tcase_add_test(tcase, a_leased_state_stays);
        tcase_add_test(tcase, new_kv_that_is_renewed_stays_new);
        tcase_add_test(tcase, renewed_kv_is_not_behind_its_parent);
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
