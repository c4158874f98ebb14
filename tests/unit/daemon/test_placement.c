// SPDX-License-Identifier: Apache-2.0
/*
 * The order of eviction: what goes first, what never goes, and that a replay of requests
 * evicts exactly what a textbook LRU, touched from the tail, evicts.
 */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/placement.h"

DEFINE_CLEANUP(struct index *, index_free)

static const struct digest layout_id = {{42}};

static struct index *make(uint16_t *ret_layout)
{
        struct index *index;

        ck_assert_int_eq(index_new(&index, 10000, NULL), 0);
        ck_assert_int_eq(index_layout(index, 0, &layout_id, ret_layout), 0);
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

static struct index_boundary *find(struct index *index, uint32_t number)
{
        struct digest digest = digest_of(number);

        return index_find_boundary(index, 1, &digest);
}

/* As the daemon stores: entered, complete in the host tier, touched. */
static struct index_boundary *store(struct index *index, uint32_t number, uint32_t parent,
                                    uint32_t tokens, uint32_t now_s)
{
        struct index_new_object object = {
                .layout = 1,
                .digest = digest_of(number),
                .parent = digest_of(parent),
                .boundary_tokens = tokens,
                .raw_bytes = 1,
        };
        struct index_object *added;
        struct index_boundary *boundary;

        ck_assert_int_eq(index_add(index, &object, &added), 0);
        index_set_host(index, added, 1);
        boundary = index_boundary_at(index, added->boundary);
        placement_touch(index, boundary, now_s);
        return boundary;
}

static void evict(struct index *index, struct index_boundary *boundary)
{
        struct index_object *object = index_object_at(index, boundary->first_object);

        index_set_host(index, object, INDEX_NONE);
        index_remove(index, object);
}

static bool anything(void *user, const struct placement_victim *victim)
{
        return true;
}

static bool all_but(void *user, const struct placement_victim *victim)
{
        const uint32_t *leased = user;

        return number_of(victim->boundary) != *leased;
}

static uint32_t victim_number(struct index *index)
{
        struct index_boundary *victim =
                placement_victim(index, INDEX_HOST, anything, NULL, 100).boundary;

        ck_assert_ptr_nonnull(victim);
        return number_of(victim);
}

START_TEST(the_suffix_goes_before_the_prefix)
{
        _cleanup_(index_freep) struct index *index = NULL;
        uint16_t layout;

        index = make(&layout);
        for (uint32_t i = 1; i <= 50; i++)
                store(index, i, i - 1, i, 7);
        for (uint32_t i = 50; i >= 1; i--) {
                ck_assert_uint_eq(victim_number(index), i);
                evict(index, find(index, i));
        }
        ck_assert_ptr_null(placement_victim(index, INDEX_HOST, anything, NULL, 100).boundary);
}
END_TEST

START_TEST(the_least_recently_used_branch_goes_first)
{
        _cleanup_(index_freep) struct index *index = NULL;
        uint16_t layout;

        index = make(&layout);
        store(index, 1, 0, 1, 1);
        store(index, 2, 1, 2, 1);
        store(index, 3, 1, 2, 2);
        ck_assert_uint_eq(victim_number(index), 2);
        placement_touch(index, find(index, 2), 3);
        ck_assert_uint_eq(victim_number(index), 3);
}
END_TEST

START_TEST(leased_bytes_are_passed_over)
{
        _cleanup_(index_freep) struct index *index = NULL;
        uint32_t leased = 3;
        struct index_boundary *victim;
        uint16_t layout;

        index = make(&layout);
        for (uint32_t i = 1; i <= 3; i++)
                store(index, i, i - 1, i, 1);
        victim = placement_victim(index, INDEX_HOST, all_but, &leased, 100).boundary;
        ck_assert_ptr_nonnull(victim);
        ck_assert_uint_eq(number_of(victim), 2);
        ck_assert_ptr_null(placement_victim(index, INDEX_HOST, all_but, &leased, 1).boundary);
}
END_TEST

START_TEST(a_parent_stored_again_after_its_children_is_newer_than_they)
{
        _cleanup_(index_freep) struct index *index = NULL;
        uint16_t layout;

        index = make(&layout);
        for (uint32_t i = 1; i <= 4; i++)
                store(index, i, i - 1, i, 1);
        /* Out of order, as when a lease kept the suffix. */
        evict(index, find(index, 2));
        evict(index, find(index, 3));
        store(index, 9, 0, 1, 1);
        store(index, 3, 2, 3, 1);
        store(index, 2, 1, 2, 1);
        for (uint32_t i = 4; i >= 2; i--) {
                ck_assert_uint_eq(victim_number(index), i);
                evict(index, find(index, i));
        }
}
END_TEST

START_TEST(stores_and_touches_within_a_second_do_not_walk)
{
        enum { DEPTH = 5000, TOUCHES = 2000000 };
        _cleanup_(index_freep) struct index *index = NULL;
        struct index_boundary *leaf = NULL;
        uint16_t layout;

        index = make(&layout);
        for (uint32_t i = 1; i <= DEPTH; i++)
                leaf = store(index, i, i - 1, i, 9);
        /* 10^10 steps if each walked: the test would not end in time. */
        for (uint32_t i = 0; i < TOUCHES; i++)
                placement_touch(index, leaf, 9);
        ck_assert_ptr_eq(placement_next(index, INDEX_HOST, NULL), leaf);
}
END_TEST

START_TEST(tiers_are_ordered_each_by_itself)
{
        _cleanup_(index_freep) struct index *index = NULL;
        struct index_boundary *boundary;
        struct index_object *object;
        uint16_t layout;

        index = make(&layout);
        for (uint32_t i = 1; i <= 3; i++)
                store(index, i, i - 1, i, 1);
        object = index_object_at(index, find(index, 2)->first_object);
        index_set_place(index, object, (struct tier_place){.claim = 1});
        boundary = placement_next(index, INDEX_NVME, NULL);
        ck_assert_ptr_nonnull(boundary);
        ck_assert_uint_eq(number_of(boundary), 2);
        /* Its parent only holds a place there: it is no step of the walk. */
        ck_assert_ptr_null(placement_next(index, INDEX_NVME, boundary));
        index_set_place(index, object, (struct tier_place){0});
        ck_assert_ptr_null(placement_next(index, INDEX_NVME, NULL));
        ck_assert(!(find(index, 1)->flags & INDEX_IN_NVME));
}
END_TEST

START_TEST(the_write_policy_says_how_much_is_cold)
{
        ck_assert_uint_eq(placement_cold_bytes(PLACEMENT_WRITE_OFF, 1000), 0);
        ck_assert_uint_eq(placement_cold_bytes(PLACEMENT_WRITE_COLD, 1000), 100);
        ck_assert_uint_eq(placement_cold_bytes(PLACEMENT_WRITE_STORE, 1000), 1000);
}
END_TEST

/* ---- against the textbook ---- */

enum { BLOCKS = 600, CAPACITY = 120, REQUESTS = 4000, DEPTH_MAX = 30 };

/* The reference: a time stamp a block, tail first; the oldest stamp goes. */
static uint64_t stamps[BLOCKS]; /* 0: not there */
static uint64_t stamp = 1;

static uint64_t random_state = 88172645463325252u;

static uint64_t random_below(uint64_t limit)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return ((random_state * 2685821657736338717u) >> 11) % limit;
}

/* Block b hangs on b / 3, 0 is no block: random leaves share prefixes. */
static uint32_t chain_of(uint32_t leaf, uint32_t chain[DEPTH_MAX])
{
        uint32_t n = 0;

        for (; leaf; leaf /= 3)
                chain[n++] = leaf;
        return n; /* leaf first */
}

static uint32_t reference_victim(void)
{
        uint32_t oldest = 0;

        for (uint32_t block = 1; block < BLOCKS; block++)
                if (stamps[block] && (!oldest || stamps[block] < stamps[oldest]))
                        oldest = block;
        return oldest;
}

static void request(struct index *index, uint32_t leaf, uint32_t now_s, uint32_t *n_stored)
{
        uint32_t chain[DEPTH_MAX], n = chain_of(leaf, chain), deepest = 0;

        /* What is there is used, then the rest is stored from the root down. */
        for (uint32_t i = n; i-- > 0 && stamps[chain[i]];)
                deepest = chain[i];
        for (uint32_t i = 0; i < n; i++)
                if (stamps[chain[i]])
                        stamps[chain[i]] = ++stamp;
        if (deepest)
                placement_touch(index, find(index, deepest), now_s);
        for (uint32_t i = n; i-- > 0;) {
                if (stamps[chain[i]])
                        continue;
                if (*n_stored == CAPACITY) {
                        uint32_t victim = reference_victim();

                        ck_assert_uint_eq(victim_number(index), victim);
                        evict(index, find(index, victim));
                        stamps[victim] = 0;
                        --*n_stored;
                }
                store(index, chain[i], chain[i] / 3, n - i, now_s);
                ++*n_stored;
                for (uint32_t j = i; j < n; j++)
                        stamps[chain[j]] = ++stamp;
        }
}

START_TEST(a_replay_evicts_what_the_textbook_evicts)
{
        _cleanup_(index_freep) struct index *index = NULL;
        uint32_t n_stored = 0;
        uint16_t layout;

        index = make(&layout);
        /* One request a second: within one, the daemon's order is coarser than the book's. */
        for (uint32_t now_s = 1; now_s <= REQUESTS; now_s++)
                request(index, 1 + (uint32_t)random_below(BLOCKS - 1), now_s, &n_stored);
        ck_assert_uint_eq(n_stored, CAPACITY);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("placement");
        TCase *tcase = tcase_create("placement");
        SRunner *runner;
        int n_failed;

        tcase_set_timeout(tcase, 50);
        tcase_add_test(tcase, the_suffix_goes_before_the_prefix);
        tcase_add_test(tcase, the_least_recently_used_branch_goes_first);
        tcase_add_test(tcase, leased_bytes_are_passed_over);
        tcase_add_test(tcase, a_parent_stored_again_after_its_children_is_newer_than_they);
        tcase_add_test(tcase, stores_and_touches_within_a_second_do_not_walk);
        tcase_add_test(tcase, tiers_are_ordered_each_by_itself);
        tcase_add_test(tcase, the_write_policy_says_how_much_is_cold);
        tcase_add_test(tcase, a_replay_evicts_what_the_textbook_evicts);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? 1 : 0;
}
