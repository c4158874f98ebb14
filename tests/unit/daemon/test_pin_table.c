// SPDX-License-Identifier: Apache-2.0
/* What a pin protects, what that counts for, and that nothing of it is left behind. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/index.h"
#include "daemon/pin_set.h"
#include "daemon/pin_table.h"

#define UNIT 4096u

static struct index *index_;
static struct pin_table *pins;
static struct pin_set set, other;

static void setup(void)
{
        static const struct digest layouts[] = {{{42}}, {{43}}};
        uint16_t layout;

        ck_assert_int_eq(index_new(&index_, 1000, NULL), 0);
        for (unsigned i = 0; i < 2; i++)
                ck_assert_int_eq(index_layout(index_, 0, &layouts[i], &layout), 0);
        pins = index_pins(index_);
        pins->bytes_max[INDEX_HOST] = 100 * UNIT;
        pins->bytes_max[INDEX_NVME] = 100 * UNIT;
        pins->bytes_max[INDEX_REMOTE] = 100 * UNIT;
        set = other = (struct pin_set){0};
}

static void teardown(void)
{
        pin_set_clear(&set, index_, 0);
        pin_set_clear(&other, index_, 0);
        ck_assert_uint_eq(pins->n_held, 0);
        ck_assert_uint_eq(pins->bytes[INDEX_HOST], 0);
        ck_assert_uint_eq(pins->bytes[INDEX_NVME], 0);
        index_free(index_);
}

static struct digest digest_of(uint32_t number)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &number, sizeof(number));
        return digest;
}

static struct index_boundary *find(uint32_t number)
{
        struct digest digest = digest_of(number);

        return index_find_boundary(index_, 1, &digest);
}

/* Of one unit; @tokens rise along a chain. */
static struct index_object *add(uint32_t number, uint32_t parent, uint32_t tokens, uint16_t group)
{
        struct index_new_object object = {
                .layout = 1,
                .digest = digest_of(number),
                .parent = digest_of(parent),
                .parent_unknown = parent == UINT32_MAX,
                .boundary_tokens = tokens,
                .raw_bytes = UNIT - 1,
                .group = group,
        };
        struct index_object *added;

        if (object.parent_unknown)
                object.parent = (struct digest){{0}};
        ck_assert_int_eq(index_add(index_, &object, &added), 0);
        return added;
}

static struct index_object *store(uint32_t number, uint32_t parent, uint32_t tokens)
{
        struct index_object *object = add(number, parent, tokens, 0);

        index_set_host(index_, object, 1);
        return object;
}

static void drop(struct index_object *object)
{
        index_set_host(index_, object, INDEX_NONE);
        index_set_place(index_, object, (struct tier_place){0});
        index_remove(index_, object);
}

static bool is_protected(const struct index_object *object)
{
        return object->flags & INDEX_PINNED_HOST;
}

START_TEST(a_pin_protects_its_chain_and_not_what_is_beside_or_below)
{
        struct index_object *root = store(1, 0, 1), *middle = store(2, 1, 2);
        struct index_object *leaf = store(3, 2, 3), *beside = store(4, 1, 2);

        ck_assert_int_eq(pin_set_add(&set, index_, find(2)), 0);
        ck_assert(is_protected(root) && is_protected(middle));
        ck_assert(!is_protected(leaf) && !is_protected(beside));
        ck_assert_uint_eq(pins->bytes[INDEX_HOST], 2 * UNIT);
        ck_assert_uint_eq(pins->n_held, 2);
        ck_assert(pin_set_remove(&set, index_, find(2)));
        ck_assert(!is_protected(root) && !is_protected(middle));
        ck_assert(!pin_set_remove(&set, index_, find(2)));
}
END_TEST

START_TEST(a_chain_stays_pinned_until_the_last_pin_on_it_has_gone)
{
        struct index_object *root = store(1, 0, 1), *a = store(2, 1, 2), *b = store(3, 1, 2);

        ck_assert_int_eq(pin_set_add(&set, index_, find(2)), 0);
        ck_assert_int_eq(pin_set_add(&set, index_, find(2)), 0);
        ck_assert_uint_eq(set.n, 1);
        ck_assert_int_eq(pin_set_add(&other, index_, find(2)), 0);
        ck_assert_int_eq(pin_set_add(&other, index_, find(3)), 0);
        ck_assert_uint_eq(pins->bytes[INDEX_HOST], 3 * UNIT);
        pin_set_clear(&set, index_, 0);
        ck_assert(is_protected(root) && is_protected(a) && is_protected(b));
        ck_assert(pin_set_remove(&other, index_, find(2)));
        ck_assert(is_protected(root) && !is_protected(a) && is_protected(b));
        ck_assert(pin_set_remove(&other, index_, find(3)));
        ck_assert(!is_protected(root));
}
END_TEST

START_TEST(a_pin_beyond_the_limit_is_refused_and_changes_nothing)
{
        struct index_object *root = store(1, 0, 1), *leaf = store(2, 1, 2);

        pins->bytes_max[INDEX_HOST] = UNIT;
        ck_assert_int_eq(pin_set_add(&set, index_, find(2)), PIN_E_FULL);
        ck_assert(!is_protected(root) && !is_protected(leaf));
        ck_assert_uint_eq(pins->n_held, 0);
        ck_assert_uint_eq(set.n, 0);
        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), 0);
        /* What is held already costs nothing more. */
        ck_assert_int_eq(pin_set_add(&other, index_, find(1)), 0);
        ck_assert_int_eq(pin_set_add(&other, index_, find(2)), PIN_E_FULL);
        ck_assert(is_protected(root) && !is_protected(leaf));
}
END_TEST

START_TEST(what_comes_later_is_protected_while_there_is_room)
{
        struct index_object *first = store(1, 0, 1), *second, *third;

        pins->bytes_max[INDEX_HOST] = 2 * UNIT;
        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), 0);
        second = add(1, 0, 1, 1);
        third = add(1, 0, 1, 2);
        index_set_host(index_, second, 2);
        index_set_host(index_, third, 3);
        ck_assert(is_protected(first) && is_protected(second) && !is_protected(third));
        ck_assert_uint_eq(pins->bytes[INDEX_HOST], 2 * UNIT);
        /* What leaves the tier gives its room to what comes next. */
        index_set_host(index_, second, INDEX_NONE);
        ck_assert_uint_eq(pins->bytes[INDEX_HOST], UNIT);
        index_remove(index_, second);
        index_set_host(index_, third, INDEX_NONE);
        index_set_host(index_, third, 3);
        ck_assert(is_protected(third));
}
END_TEST

START_TEST(each_tier_counts_for_itself)
{
        struct index_object *object = store(1, 0, 1);

        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), 0);
        ck_assert_uint_eq(pins->bytes[INDEX_NVME], 0);
        index_set_place(index_, object, (struct tier_place){7, 7});
        ck_assert_uint_eq(pins->bytes[INDEX_NVME], 2 * UNIT);
        ck_assert(object->flags & INDEX_PINNED_NVME);
        index_set_host(index_, object, INDEX_NONE);
        ck_assert_uint_eq(pins->bytes[INDEX_HOST], 0);
        ck_assert(!(object->flags & INDEX_PINNED_HOST));
        ck_assert(object->flags & INDEX_PINNED_NVME);
        index_set_remote(index_, object, (struct tier_place){7, 7}, true);
        ck_assert_uint_eq(pins->bytes[INDEX_REMOTE], UNIT);
        ck_assert(object->flags & INDEX_PINNED_REMOTE);
}
END_TEST

START_TEST(what_other_nodes_have_in_the_pool_is_not_pinned)
{
        struct index_object *object = store(1, 0, 1);

        index_set_remote(index_, object, (struct tier_place){7, 7}, false);
        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), 0);
        ck_assert(!(object->flags & INDEX_PINNED_REMOTE));
        ck_assert_uint_eq(pins->bytes[INDEX_REMOTE], 0);
        index_set_remote(index_, object, (struct tier_place){8, 8}, true);
        ck_assert(object->flags & INDEX_PINNED_REMOTE);
        index_set_remote(index_, object, (struct tier_place){0}, false);
        ck_assert_uint_eq(pins->bytes[INDEX_REMOTE], 0);
}
END_TEST

START_TEST(a_pin_outlives_the_objects_it_protects)
{
        struct index_object *object = store(1, 0, 1);

        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), 0);
        drop(object);
        ck_assert_ptr_nonnull(find(1));
        ck_assert_uint_eq(pins->bytes[INDEX_HOST], 0);
        object = store(1, 0, 1);
        ck_assert(is_protected(object));
        drop(object);
        pin_set_clear(&set, index_, 0);
        ck_assert_ptr_null(find(1));
}
END_TEST

START_TEST(a_parent_that_becomes_known_is_pinned_too)
{
        struct index_object *root = store(1, 0, 1), *leaf = store(2, UINT32_MAX, 2), *again;

        ck_assert_int_eq(pin_set_add(&set, index_, find(2)), 0);
        ck_assert(is_protected(leaf) && !is_protected(root));
        again = add(2, 1, 2, 1);
        ck_assert_ptr_nonnull(again);
        ck_assert(is_protected(root));
        ck_assert_uint_eq(pins->n_held, 2);
        pin_set_clear(&set, index_, 0);
        ck_assert(!is_protected(root));
        index_remove(index_, again);
}
END_TEST

START_TEST(pins_of_one_layout_can_end_together)
{
        struct index_new_object there = {.layout = 2, .digest = digest_of(1), .raw_bytes = UNIT};
        struct index_object *here = store(1, 0, 1), *elsewhere;

        ck_assert_int_eq(index_add(index_, &there, &elsewhere), 0);
        index_set_host(index_, elsewhere, 2);
        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), 0);
        ck_assert_int_eq(pin_set_add(&set, index_, index_boundary_at(index_, elsewhere->boundary)),
                         0);
        pin_set_clear(&set, index_, 2);
        ck_assert(is_protected(here) && !is_protected(elsewhere));
        ck_assert_uint_eq(set.n, 1);
}
END_TEST

START_TEST(an_owner_has_a_limited_number_of_pins)
{
        set.n = PIN_SET_MAX;
        store(1, 0, 1);
        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), PIN_SET_E_MANY);
        set.n = PIN_SET_MAX - 1;
        ck_assert_int_eq(pin_set_add(&set, index_, find(1)), 0);
        set.n = 1;
}
END_TEST

/* Chains that are pinned, unpinned, dropped and stored in any order leave nothing behind. */
START_TEST(no_order_of_events_upsets_the_count)
{
        enum { N = 40 };
        struct index_object *objects[N + 1] = {NULL};

        srand(7);
        for (unsigned step = 0; step < 20000; step++) {
                uint32_t number = 1 + (uint32_t)rand() % N, parent = number / 2;
                struct index_boundary *boundary = find(number);
                uint64_t expected = 0;

                switch (rand() % 4) {
                case 0:
                        if (!objects[number])
                                objects[number] = store(number, parent, number);
                        break;
                case 1:
                        if (objects[number])
                                drop(objects[number]);
                        objects[number] = NULL;
                        break;
                case 2:
                        if (boundary)
                                ck_assert_int_eq(pin_set_add(&set, index_, boundary), 0);
                        break;
                default:
                        if (boundary)
                                pin_set_remove(&set, index_, boundary);
                }
                for (number = 1; number <= N; number++)
                        if (objects[number] && is_protected(objects[number]))
                                expected += UNIT;
                ck_assert_uint_eq(pins->bytes[INDEX_HOST], expected);
                for (number = 1; number <= N; number++) {
                        boundary = find(number);
                        if (!objects[number] || !pins_hold(pins, objects[number]->boundary))
                                continue;
                        ck_assert(is_protected(objects[number]));
                        if (boundary->parent)
                                ck_assert(pins_hold(pins, boundary->parent));
                }
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/pin_table");
        TCase *tcase = tcase_create("pins");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, a_pin_protects_its_chain_and_not_what_is_beside_or_below);
        tcase_add_test(tcase, a_chain_stays_pinned_until_the_last_pin_on_it_has_gone);
        tcase_add_test(tcase, a_pin_beyond_the_limit_is_refused_and_changes_nothing);
        tcase_add_test(tcase, what_comes_later_is_protected_while_there_is_room);
        tcase_add_test(tcase, each_tier_counts_for_itself);
        tcase_add_test(tcase, what_other_nodes_have_in_the_pool_is_not_pinned);
        tcase_add_test(tcase, a_pin_outlives_the_objects_it_protects);
        tcase_add_test(tcase, a_parent_that_becomes_known_is_pinned_too);
        tcase_add_test(tcase, pins_of_one_layout_can_end_together);
        tcase_add_test(tcase, an_owner_has_a_limited_number_of_pins);
        tcase_add_test(tcase, no_order_of_events_upsets_the_count);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
