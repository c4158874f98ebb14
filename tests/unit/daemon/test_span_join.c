// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/span_join.h"

/* Two groups: four shards, cells 0 to 3, and one for all, cell 4. */
static struct layout layout;
static struct span_join join;

static void begin(uint32_t n)
{
        layout = (struct layout){.n_groups = 2};
        layout.groups[0].kind = LAYOUT_ATTENTION;
        layout.groups[0].n_shards = 4;
        layout.groups[1].kind = LAYOUT_STATE;
        layout.groups[1].n_shards = 1;
        ck_assert_int_eq(span_join_init(&join, &layout, n), 0);
}

static void end(void)
{
        span_join_deinit(&join);
}

static void add(uint16_t first_shard, uint16_t n_shards, const struct peer_found_bits *bits)
{
        uint16_t shards[4];
        struct layout_span span;

        for (uint16_t i = 0; i < n_shards; i++)
                shards[i] = first_shard + i;
        layout_span_init(&span, &layout, shards, n_shards);
        span_join_add(&join, &span, bits);
}

START_TEST(all_of_a_boundary_is_there_when_each_node_has_its_own)
{
        const struct peer_found_bits ours[2] = {{0x13, 0x13}, {0x13, 0x03}};
        const struct peer_found_bits theirs[2] = {{0x1c, 0x1c}, {0x1c, 0x1c}};

        begin(2);
        add(0, 2, ours);
        ck_assert(!span_join_is_whole(&join));
        add(2, 2, theirs);
        ck_assert(span_join_is_whole(&join));
        ck_assert_uint_eq(span_join_at(&join, 0)->present, 0x1f);
        ck_assert_uint_eq(span_join_at(&join, 0)->resident, 0x1f);
        ck_assert_uint_eq(span_join_at(&join, 1)->present, 0x1f);
        ck_assert_uint_eq(span_join_at(&join, 1)->resident, 0x0f);
        end();
}
END_TEST

START_TEST(a_shard_that_nobody_answers_for_leaves_nothing)
{
        const struct peer_found_bits everything[1] = {{0x1f, 0x1f}};

        begin(1);
        ck_assert_ptr_null(span_join_at(&join, 0));
        add(0, 2, everything);
        add(3, 1, everything);
        ck_assert_ptr_null(span_join_at(&join, 0));
        end();
}
END_TEST

/* A peer read, say, has left something here that is the other node's to have. */
START_TEST(what_a_node_has_of_shards_elsewhere_does_not_count)
{
        const struct peer_found_bits ours[1] = {{0x1f, 0x1f}}, theirs[1] = {{0x14, 0x14}};

        begin(1);
        add(0, 2, ours);
        add(2, 2, theirs);
        ck_assert_uint_eq(span_join_at(&join, 0)->present, 0x17);
        end();
}
END_TEST

START_TEST(what_each_node_has_to_have_is_there_only_on_each)
{
        const struct peer_found_bits with[1] = {{0x1f, 0x1f}}, without[1] = {{0x0f, 0x0f}};

        begin(1);
        add(0, 2, _i ? with : without);
        add(2, 2, _i ? without : with);
        ck_assert_uint_eq(span_join_at(&join, 0)->present, 0x0f);
        end();
}
END_TEST

START_TEST(a_shard_that_two_nodes_claim_is_there_only_on_both)
{
        const struct peer_found_bits with[1] = {{0x1f, 0x1f}}, without[1] = {{0x1d, 0x1d}};

        begin(1);
        add(0, 2, with);
        add(1, 3, without);
        ck_assert_uint_eq(span_join_at(&join, 0)->present, 0x1d);
        end();
}
END_TEST

/* 65 cells and more: each bank by itself. */
START_TEST(banks_are_joined_each_by_itself)
{
        struct peer_found_bits ours[2 * 2], theirs[2 * 2];
        uint16_t shards[100];
        struct layout_span span;

        layout = (struct layout){.n_groups = 1};
        layout.groups[0].kind = LAYOUT_ATTENTION;
        layout.groups[0].n_shards = 100;
        ck_assert_int_eq(span_join_init(&join, &layout, 2), 0);
        ck_assert_uint_eq(join.n_banks, 2);
        for (uint16_t i = 0; i < 100; i++)
                shards[i] = i;
        memset(ours, 0xff, sizeof(ours));
        memset(theirs, 0xff, sizeof(theirs));
        theirs[3].present &= ~(UINT64_C(1) << 35);
        theirs[3].resident = 0;
        layout_span_init(&span, &layout, shards, 90);
        span_join_add(&join, &span, ours);
        layout_span_init(&span, &layout, shards + 90, 10);
        span_join_add(&join, &span, theirs);
        ck_assert_uint_eq(span_join_at(&join, 0)[0].present, UINT64_MAX);
        ck_assert_uint_eq(span_join_at(&join, 0)[1].present, (UINT64_C(1) << 36) - 1);
        ck_assert_uint_eq(span_join_at(&join, 1)[1].present, (UINT64_C(1) << 35) - 1);
        ck_assert_uint_eq(span_join_at(&join, 1)[1].resident, (UINT64_C(1) << 26) - 1);
        end();
}
END_TEST

/* In whatever order, and however the shards are dealt, it is the obvious answer. */
START_TEST(any_nodes_in_any_order_give_the_intersection)
{
        srand(7);
        for (unsigned round = 0; round < 2000; round++) {
                uint16_t node_of[4];
                struct peer_found_bits bits[3];
                uint64_t expected = 0x1f;

                begin(1);
                for (unsigned s = 0; s < 4; s++)
                        node_of[s] = (uint16_t)(rand() % 3);
                for (unsigned node = 0; node < 3; node++)
                        bits[node].present = bits[node].resident = (uint64_t)rand() & 0x1f;
                for (unsigned s = 0; s < 4; s++) {
                        expected &= bits[node_of[s]].present | ~(UINT64_C(1) << s);
                        expected &= bits[node_of[s]].present | ~UINT64_C(0x10);
                }
                for (unsigned i = 0; i < 3; i++) {
                        unsigned node = (i + round) % 3;
                        uint16_t shards[4];
                        uint32_t n = 0;
                        struct layout_span span;

                        for (uint16_t s = 0; s < 4; s++)
                                if (node_of[s] == node)
                                        shards[n++] = s;
                        if (!n)
                                continue;
                        ck_assert(!span_join_is_whole(&join));
                        layout_span_init(&span, &layout, shards, n);
                        span_join_add(&join, &span, &bits[node]);
                }
                ck_assert_uint_eq(span_join_at(&join, 0)->present, expected);
                end();
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/span_join");
        TCase *tcase = tcase_create("joins");
        SRunner *runner;
        int n_failed;

        tcase_add_test(tcase, all_of_a_boundary_is_there_when_each_node_has_its_own);
        tcase_add_test(tcase, a_shard_that_nobody_answers_for_leaves_nothing);
        tcase_add_test(tcase, what_a_node_has_of_shards_elsewhere_does_not_count);
        tcase_add_loop_test(tcase, what_each_node_has_to_have_is_there_only_on_each, 0, 2);
        tcase_add_test(tcase, a_shard_that_two_nodes_claim_is_there_only_on_both);
        tcase_add_test(tcase, banks_are_joined_each_by_itself);
        tcase_add_test(tcase, any_nodes_in_any_order_give_the_intersection);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
