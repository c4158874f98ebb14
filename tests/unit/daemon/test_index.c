// SPDX-License-Identifier: Apache-2.0
/*
 * The index and its eviction orders against a plain list of objects: random trees, covers,
 * moves between tiers, touches and removals; after each step everything that the index
 * says is compared with what the list says.
 */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/index.h"
#include "daemon/placement.h"

DEFINE_CLEANUP(struct index *, index_free)
DEFINE_CLEANUP(struct presence_table *, presence_table_free)

static uint64_t random_state = 88172645463325252u;

static uint64_t random_below(uint64_t limit)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return ((random_state * 2685821657736338717u) >> 11) % limit;
}

static struct digest digest_of(uint32_t number)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &number, sizeof(number));
        digest.bytes[31] = 1;
        return digest;
}

static const uint8_t boot_id[16] = {7};

static void make(struct presence_table **ret_table, struct index **ret_index, uint16_t *ret_layout,
                 uint64_t objects_max)
{
        struct digest layout_id = digest_of(99);

        ck_assert_int_eq(presence_table_new(ret_table, objects_max, boot_id, 1), 0);
        ck_assert_int_eq(index_new(ret_index, objects_max, *ret_table), 0);
        ck_assert_int_eq(index_layout(*ret_index, 0, &layout_id, ret_layout), 0);
}

static struct index_object *add(struct index *index, uint16_t layout, uint32_t number,
                                uint32_t parent, uint32_t tokens)
{
        struct index_new_object object = {
                .layout = layout,
                .digest = digest_of(number),
                .parent = parent ? digest_of(parent) : (struct digest){{0}},
                .boundary_tokens = tokens,
                .raw_bytes = 100,
        };
        struct index_object *added = NULL;

        /* An assertion costs a system call: too much for a million. */
        if (index_add(index, &object, &added))
                ck_abort_msg("index_add");
        return added;
}

static struct index_boundary *boundary_of(struct index *index, uint16_t layout, uint32_t number)
{
        struct digest digest = digest_of(number);

        return index_find_boundary(index, layout, &digest);
}

static void drop(struct index *index, struct index_object *object)
{
        index_set_host(index, object, INDEX_NONE);
        index_set_place(index, object, (struct tier_place){0});
        index_set_remote(index, object, (struct tier_place){0}, false);
        index_remove(index, object);
}

/* ---- the reference ---- */

enum { NODES = 40, CELLS = 70, OBJECTS_MAX = 200, COVERS = 3 };

struct reference_object {
        bool exists;
        bool host;
        bool nvme;
        bool remote;
        bool own; /* this node's in the remote tier */
        uint32_t node; /* 1 .. NODES */
        uint16_t cell;
        uint32_t covers[COVERS];
        uint32_t n_covers;
        struct index_object *object;
};

static struct reference_object objects[OBJECTS_MAX];
static struct presence_table *table;
static struct index *index_;
static uint16_t layout;

/* Node n hangs on n / 2 at a depth that rises with n. */
static uint32_t parent_node(uint32_t node)
{
        return node / 2;
}

static bool holds(const struct reference_object *object, uint32_t node)
{
        if (!object->exists)
                return false;
        for (uint32_t i = 0; i < object->n_covers; i++)
                if (object->covers[i] == node)
                        return true;
        return object->node == node;
}

static void assert_presence(uint32_t node)
{
        struct digest layout_id = digest_of(99), digest = digest_of(node);
        const struct presence_view *view = presence_table_view(table);

        for (uint32_t bank = 0; bank < 2; bank++) {
                uint64_t seed = presence_seed(view->header->hash_key, 0, &layout_id, bank);
                uint64_t present = 0, resident = 0, local = 0;
                struct presence_bits bits = {0};

                for (int i = 0; i < OBJECTS_MAX; i++) {
                        uint64_t bit = UINT64_C(1) << objects[i].cell % 64;

                        if (!holds(&objects[i], node) || objects[i].cell / 64 != bank)
                                continue;
                        local |= objects[i].host || objects[i].nvme ? bit : 0;
                        present |= objects[i].remote ? bit : 0;
                        resident |= objects[i].host ? bit : 0;
                }
                present |= local;
                ck_assert_int_eq(presence_lookup(view, presence_fingerprint(seed, &digest), &bits),
                                 present != 0);
                if (present) {
                        ck_assert_uint_eq(bits.present, present);
                        ck_assert_uint_eq(bits.resident, resident);
                        ck_assert_int_eq((bits.flags & PRESENCE_HAS_CHILD) != 0,
                                         boundary_of(index_, layout, node)->n_children != 0);
                        ck_assert_int_eq((bits.flags & PRESENCE_REMOTE_ONLY) != 0,
                                         (present & ~local) != 0);
                }
        }
}

static bool is_ours(const struct reference_object *object, enum index_tier tier)
{
        if (tier == INDEX_REMOTE)
                return object->remote && object->own;
        return tier == INDEX_HOST ? object->host : object->nvme;
}

static bool has_bytes(uint32_t node, enum index_tier tier)
{
        for (int i = 0; i < OBJECTS_MAX; i++)
                if (objects[i].exists && objects[i].node == node && is_ours(&objects[i], tier))
                        return true;
        return false;
}

static bool is_above(const struct index_boundary *above, const struct index_boundary *below)
{
        while (below && below != above)
                below = below->parent ? index_boundary_at(index_, below->parent) : NULL;
        return below != NULL;
}

/* All that have bytes are on the order, each newer than all its descendants. */
static void assert_order(enum index_tier tier)
{
        struct index_boundary *order[NODES], *boundary = NULL;
        uint32_t n = 0, n_expected = 0;

        while ((boundary = placement_next(index_, tier, boundary))) {
                ck_assert_uint_lt(n, NODES);
                order[n++] = boundary;
        }
        for (uint32_t node = 1; node <= NODES; node++)
                n_expected += has_bytes(node, tier);
        ck_assert_uint_eq(n, n_expected);
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t j = i + 1; j < n; j++)
                        if (is_above(order[i], order[j]))
                                ck_abort_msg("an ancestor is older");
}

static bool may_evict(void *user, const struct placement_victim *victim)
{
        const bool *leased = user;
        uint32_t node;

        memcpy(&node, victim->boundary->digest.bytes, sizeof(node));
        return !leased[node];
}

static void assert_victim(enum index_tier tier)
{
        bool leased[NODES + 1], any = false;
        struct index_boundary *victim;

        for (uint32_t node = 1; node <= NODES; node++) {
                leased[node] = random_below(3) == 0;
                any |= !leased[node] && has_bytes(node, tier);
        }
        victim = placement_victim(index_, tier, may_evict, leased, NODES).boundary;
        ck_assert_int_eq(victim != NULL, any);
        if (!victim)
                return;
        for (uint32_t node = 1; node <= NODES; node++) {
                struct index_boundary *below = boundary_of(index_, layout, node);

                if (below && below != victim && has_bytes(node, tier) && !leased[node])
                        if (is_above(victim, below))
                                ck_abort_msg("the victim has a descendant that could go");
        }
}

static void assert_usage(void)
{
        struct index_usage usage;
        uint64_t n = 0, in_host = 0, in_nvme = 0, in_remote = 0, foreign = 0, n_walked = 0;
        struct index_object *object = NULL;

        for (int i = 0; i < OBJECTS_MAX; i++) {
                n += objects[i].exists;
                in_host += objects[i].exists && objects[i].host;
                in_nvme += objects[i].exists && objects[i].nvme;
                in_remote += objects[i].exists && objects[i].remote;
                foreign += objects[i].remote && !objects[i].own && !objects[i].host &&
                           !objects[i].nvme;
        }
        index_usage(index_, &usage);
        ck_assert_uint_eq(usage.objects, n);
        ck_assert_uint_eq(usage.objects_in[INDEX_HOST], in_host);
        ck_assert_uint_eq(usage.objects_in[INDEX_NVME], in_nvme);
        ck_assert_uint_eq(usage.objects_in[INDEX_REMOTE], in_remote);
        ck_assert_uint_eq(usage.foreign_objects, foreign);
        ck_assert_int_eq(index_find_foreign(index_, UINT32_MAX) != NULL, foreign != 0);
        ck_assert_uint_eq(usage.bytes_in[INDEX_HOST], in_host * 100);
        ck_assert_uint_eq(usage.bytes_in[INDEX_REMOTE], in_remote * 100);
        while ((object = index_next_object(index_,
                                           object ? index_object_id(index_, object) : INDEX_NONE)))
                n_walked++;
        ck_assert_uint_eq(n_walked, n);
}

/* The boundaries that must exist: of objects and covers, and all known ancestors. */
static void assert_boundaries(void)
{
        struct index_usage usage;
        uint64_t n = 0;

        for (uint32_t node = 1; node <= NODES; node++) {
                struct index_boundary *boundary = boundary_of(index_, layout, node);
                bool held = false;

                for (int i = 0; i < OBJECTS_MAX; i++)
                        held |= holds(&objects[i], node);
                if (held)
                        ck_assert_ptr_nonnull(boundary);
                if (boundary && !held)
                        ck_assert_uint_gt(boundary->n_children, 0);
                n += boundary != NULL;
        }
        index_usage(index_, &usage);
        ck_assert_uint_eq(usage.boundaries, n);
}

static void random_add(struct reference_object *object)
{
        uint32_t node = 1 + (uint32_t)random_below(NODES);
        uint16_t cell = (uint16_t)random_below(CELLS);
        struct digest covers[COVERS];
        struct index_new_object new_object = {
                .layout = layout,
                .group = cell / 7,
                .shard = cell % 7,
                .cell = cell,
                .digest = digest_of(node),
                .parent = parent_node(node) ? digest_of(parent_node(node)) : (struct digest){{0}},
                .parent_unknown = random_below(4) == 0,
                .croppable = random_below(3) == 0,
                .boundary_tokens = random_below(8) ? node : 0,
                .raw_bytes = 100,
                .covers = covers,
        };

        for (int i = 0; i < OBJECTS_MAX; i++)
                if (objects[i].exists && objects[i].node == node && objects[i].cell == cell)
                        return;
        *object = (struct reference_object){.exists = true, .node = node, .cell = cell};
        if (new_object.croppable)
                object->n_covers = new_object.n_covers = (uint32_t)random_below(COVERS + 1);
        for (uint32_t i = 0; i < object->n_covers; i++) {
                object->covers[i] = 1 + (uint32_t)random_below(NODES);
                covers[i] = digest_of(object->covers[i]);
        }
        ck_assert_int_eq(index_add(index_, &new_object, &object->object), 0);
}

static void random_move(struct reference_object *object)
{
        if (random_below(3) == 0) {
                object->remote = !object->remote;
                object->own = random_below(2);
                index_set_remote(index_, object->object,
                                 (struct tier_place){.claim = object->remote ? 7 : 0}, object->own);
        } else if (random_below(2)) {
                object->host = !object->host;
                index_set_host(index_, object->object, object->host ? 5 : INDEX_NONE);
        } else {
                object->nvme = !object->nvme;
                index_set_place(index_, object->object,
                                (struct tier_place){.claim = object->nvme ? 6 : 0});
        }
}

static void random_step(uint32_t now_s)
{
        struct reference_object *object = &objects[random_below(OBJECTS_MAX)];

        if (!object->exists) {
                random_add(object);
        } else if (random_below(4) == 0) {
                drop(index_, object->object);
                *object = (struct reference_object){0};
        } else if (random_below(2)) {
                random_move(object);
        } else {
                placement_touch(index_, index_boundary_at(index_, object->object->boundary), now_s);
        }
}

START_TEST(every_step_agrees_with_a_plain_list)
{
        make(&table, &index_, &layout, OBJECTS_MAX);
        for (uint32_t step = 0; step < 30000; step++) {
                random_step(step / 20);
                assert_presence(1 + (uint32_t)random_below(NODES));
                if (step % 8)
                        continue;
                assert_order(INDEX_HOST);
                assert_order(INDEX_NVME);
                assert_order(INDEX_REMOTE);
                assert_victim((enum index_tier)(step / 8 % INDEX_N_TIERS));
                assert_usage();
                assert_boundaries();
        }
        for (uint32_t node = 1; node <= NODES; node++)
                assert_presence(node);
        index_ = index_free(index_);
        table = presence_table_free(table);
}
END_TEST

/* ---- single claims ---- */

START_TEST(circles_of_claimed_parents_are_refused)
{
        _cleanup_(presence_table_freep) struct presence_table *t = NULL;
        _cleanup_(index_freep) struct index *index = NULL;
        struct index_object *a, *b, *self;
        uint16_t l;

        make(&t, &index, &l, 100);
        self = add(index, l, 9, 9, 5);
        ck_assert_uint_eq(index_boundary_at(index, self->boundary)->parent, INDEX_NONE);

        /* Each parent of the other: the second claim is the one that is dropped. */
        a = add(index, l, 1, 2, 10);
        b = add(index, l, 2, 1, 20);
        ck_assert_uint_eq(index_boundary_at(index, a->boundary)->parent, b->boundary);
        ck_assert_uint_eq(index_boundary_at(index, b->boundary)->parent, INDEX_NONE);
        index_set_host(index, a, 1);
        index_set_host(index, b, 2);
        placement_touch(index, index_boundary_at(index, a->boundary), 1);
        drop(index, self);
        drop(index, b);
        drop(index, a);

        /* And when the counts fit one way only. */
        a = add(index, l, 1, 2, 20);
        b = add(index, l, 2, 1, 10);
        ck_assert_uint_eq(index_boundary_at(index, a->boundary)->parent, b->boundary);
        ck_assert_uint_eq(index_boundary_at(index, b->boundary)->parent, INDEX_NONE);
        drop(index, b);
        drop(index, a);
}
END_TEST

START_TEST(a_parent_learned_late_joins_the_tree_and_the_order)
{
        _cleanup_(presence_table_freep) struct presence_table *t = NULL;
        _cleanup_(index_freep) struct index *index = NULL;
        struct index_object *leaf, *middle, *root;
        struct index_boundary *order;
        uint16_t l;

        make(&t, &index, &l, 100);
        leaf = add(index, l, 3, 2, 30);
        root = add(index, l, 1, 0, 10);
        index_set_host(index, root, 1);
        index_set_host(index, leaf, 1);
        middle = add(index, l, 2, 1, 20);
        index_set_host(index, middle, 1);
        order = placement_next(index, INDEX_HOST, NULL);
        ck_assert_uint_eq(index_boundary_id(index, order), leaf->boundary);
        order = placement_next(index, INDEX_HOST, order);
        ck_assert_uint_eq(index_boundary_id(index, order), middle->boundary);
        order = placement_next(index, INDEX_HOST, order);
        ck_assert_uint_eq(index_boundary_id(index, order), root->boundary);
        ck_assert_ptr_null(placement_next(index, INDEX_HOST, order));
}
END_TEST

START_TEST(a_boundary_goes_with_its_last_holder)
{
        _cleanup_(presence_table_freep) struct presence_table *t = NULL;
        _cleanup_(index_freep) struct index *index = NULL;
        struct index_object *child, *blobs[2];
        struct digest cover = digest_of(7);
        uint32_t n;
        uint16_t l;

        make(&t, &index, &l, 100);
        child = add(index, l, 2, 1, 20);
        ck_assert_ptr_nonnull(boundary_of(index, l, 1));
        drop(index, child);
        ck_assert_ptr_null(boundary_of(index, l, 1));
        for (uint32_t i = 0; i < 2; i++) {
                struct index_new_object blob = {
                        .layout = l,
                        .digest = digest_of(20 + i),
                        .parent_unknown = true,
                        .croppable = true,
                        .raw_bytes = 1,
                        .covers = &cover,
                        .n_covers = 1,
                };

                ck_assert_int_eq(index_add(index, &blob, &blobs[i]), 0);
        }
        index_set_host(index, blobs[0], 3);
        ck_assert_ptr_eq(index_find_serving(index, boundary_of(index, l, 7), 0, 0), blobs[0]);
        ck_assert(digest_equal(index_covers(index, blobs[1], &n), &cover));
        ck_assert_uint_eq(n, 1);
        drop(index, blobs[0]);
        ck_assert_ptr_eq(index_find_serving(index, boundary_of(index, l, 7), 0, 0), blobs[1]);
        drop(index, blobs[1]);
        ck_assert_ptr_null(boundary_of(index, l, 7));
}
END_TEST

static bool shows_child(const struct presence_table *t, uint32_t number, uint32_t bank)
{
        const struct presence_view *view = presence_table_view(t);
        struct digest layout_id = digest_of(99), digest = digest_of(number);
        uint64_t seed = presence_seed(view->header->hash_key, 0, &layout_id, bank);
        struct presence_bits bits;

        ck_assert(presence_lookup(view, presence_fingerprint(seed, &digest), &bits));
        return bits.flags & PRESENCE_HAS_CHILD;
}

START_TEST(the_table_shows_in_every_bank_what_has_children)
{
        _cleanup_(presence_table_freep) struct presence_table *t = NULL;
        _cleanup_(index_freep) struct index *index = NULL;
        struct index_new_object second = {
                .digest = digest_of(1), .boundary_tokens = 10, .cell = 64, .raw_bytes = 100};
        struct index_object *root, *other, *children[2];
        uint16_t l;

        make(&t, &index, &l, 100);
        root = add(index, l, 1, 0, 10);
        second.layout = l;
        second.group = 1;
        ck_assert_int_eq(index_add(index, &second, &other), 0);
        index_set_host(index, root, 1);
        index_set_host(index, other, 2);
        ck_assert(!shows_child(t, 1, 0) && !shows_child(t, 1, 1));
        for (uint32_t i = 0; i < 2; i++)
                children[i] = add(index, l, 2 + i, 1, 20);
        ck_assert(shows_child(t, 1, 0) && shows_child(t, 1, 1));
        /* What is published later says it as well. */
        index_set_place(index, other, (struct tier_place){.claim = 5});
        index_set_host(index, root, INDEX_NONE);
        index_set_host(index, root, 1);
        ck_assert(shows_child(t, 1, 0) && shows_child(t, 1, 1));
        drop(index, children[0]);
        ck_assert(shows_child(t, 1, 0) && shows_child(t, 1, 1));
        drop(index, children[1]);
        ck_assert(!shows_child(t, 1, 0) && !shows_child(t, 1, 1));
}
END_TEST

START_TEST(full_is_an_outcome_and_ends_with_a_removal)
{
        _cleanup_(presence_table_freep) struct presence_table *t = NULL;
        _cleanup_(index_freep) struct index *index = NULL;
        struct index_new_object more = {.boundary_tokens = 1, .digest = digest_of(50)};
        struct index_object *objects_[10], *added;
        uint16_t l;

        make(&t, &index, &l, 10);
        for (uint32_t i = 0; i < 10; i++)
                objects_[i] = add(index, l, i + 1, i, i + 1);
        more.layout = l;
        ck_assert_int_eq(index_add(index, &more, &added), INDEX_E_FULL);
        drop(index, objects_[4]);
        ck_assert_int_eq(index_add(index, &more, &added), 0);
}
END_TEST

START_TEST(deep_chains_need_no_stack)
{
        enum { DEPTH = 1000000 };
        _cleanup_(index_freep) struct index *index = NULL;
        struct digest layout_id = digest_of(99);
        struct index_boundary *leaf;
        struct index_usage usage;
        uint16_t l;

        ck_assert_int_eq(index_new(&index, DEPTH, NULL), 0);
        ck_assert_int_eq(index_layout(index, 0, &layout_id, &l), 0);
        for (uint32_t i = 1; i <= DEPTH; i++) {
                struct index_object *object = add(index, l, i, i - 1, i);

                index_set_host(index, object, 1);
                placement_touch(index, index_boundary_at(index, object->boundary), 1);
        }
        leaf = boundary_of(index, l, DEPTH);
        placement_touch(index, leaf, 2);
        ck_assert_ptr_eq(placement_next(index, INDEX_HOST, NULL), leaf);
        /* From the root down all become placeholders; the last takes the chain along. */
        for (uint32_t i = 1; i <= DEPTH; i++)
                drop(index, index_object_at(index, boundary_of(index, l, i)->first_object));
        index_usage(index, &usage);
        ck_assert_uint_eq(usage.boundaries, 0);
}
END_TEST

START_TEST(layouts_and_domains_never_meet)
{
        _cleanup_(presence_table_freep) struct presence_table *t = NULL;
        _cleanup_(index_freep) struct index *index = NULL;
        struct digest one = digest_of(99), other = digest_of(98);
        uint16_t a, b, c, again;

        make(&t, &index, &a, 100);
        ck_assert_int_eq(index_layout(index, 0, &other, &b), 0);
        ck_assert_int_eq(index_layout(index, 1, &one, &c), 0);
        ck_assert_int_eq(index_layout(index, 0, &one, &again), 0);
        ck_assert_uint_eq(again, a);
        ck_assert(a != b && b != c && a != c);
        ck_assert_uint_eq(index_n_layouts(index), 3);
        index_set_host(index, add(index, a, 1, 0, 1), 1);
        ck_assert_ptr_nonnull(boundary_of(index, a, 1));
        ck_assert_ptr_null(boundary_of(index, b, 1));
        ck_assert_ptr_null(boundary_of(index, c, 1));
        ck_assert(digest_equal(index_layout_id(index, b), &other));
        ck_assert_uint_eq(index_layout_domain(index, c), 1);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("index");
        TCase *tcase = tcase_create("index");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 50);
        tcase_add_test(tcase, every_step_agrees_with_a_plain_list);
        tcase_add_test(tcase, circles_of_claimed_parents_are_refused);
        tcase_add_test(tcase, a_parent_learned_late_joins_the_tree_and_the_order);
        tcase_add_test(tcase, a_boundary_goes_with_its_last_holder);
        tcase_add_test(tcase, the_table_shows_in_every_bank_what_has_children);
        tcase_add_test(tcase, full_is_an_outcome_and_ends_with_a_removal);
        tcase_add_test(tcase, deep_chains_need_no_stack);
        tcase_add_test(tcase, layouts_and_domains_never_meet);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
