// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "storage/space.h"

#define STRIPE 2048u

static struct space space;

static void set_up(void)
{
        space_init(&space, STRIPE);
        for (uint32_t i = 0; i < 3; i++)
                ck_assert_int_eq(space_add_member(&space, i, 10032, 32), 0);
}

static void tear_down(void)
{
        space_deinit(&space);
}

static uint64_t units(const struct space_extents *extents)
{
        uint64_t n = 0;

        for (uint32_t i = 0; i < extents->n; i++)
                n += extents->at[i].count;
        return n;
}

START_TEST(a_small_object_lies_on_one_member)
{
        struct space_extents extents;

        ck_assert_int_eq(space_alloc(&space, STRIPE, &extents), 0);
        ck_assert_uint_eq(extents.n, 1);
        ck_assert_uint_eq(units(&extents), STRIPE);
        ck_assert_uint_ge(extents.at[0].first, 32);
        ck_assert_uint_eq(space.used_units, STRIPE);
}
END_TEST

START_TEST(a_large_object_is_spread_evenly)
{
        struct space_extents extents;
        uint32_t seen = 0;

        ck_assert_int_eq(space_alloc(&space, STRIPE + 1, &extents), 0);
        ck_assert_uint_eq(extents.n, 3);
        ck_assert_uint_eq(units(&extents), STRIPE + 1);
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert_uint_ge(extents.at[i].count, STRIPE / 3);
                seen |= 1u << extents.at[i].member;
        }
        ck_assert_uint_eq(seen, 7);
}
END_TEST

START_TEST(small_objects_go_to_the_idle_then_to_the_emptiest_member)
{
        struct space_extents extents;

        ck_assert_int_eq(space_alloc(&space, 100, &extents), 0);
        ck_assert_uint_eq(extents.at[0].member, 0);
        ck_assert_int_eq(space_alloc(&space, 100, &extents), 0);
        ck_assert_uint_eq(extents.at[0].member, 1);
        space.members[2].bytes_in_flight = 4096;
        ck_assert_int_eq(space_alloc(&space, 100, &extents), 0);
        ck_assert_uint_ne(extents.at[0].member, 2);
}
END_TEST

START_TEST(a_full_space_refuses_and_takes_nothing)
{
        struct space_extents extents[16], more;
        uint32_t n = 0;

        while (n < 15) {
                ck_assert_int_eq(space_alloc(&space, 2000, &extents[n]), 0);
                n++;
        }
        ck_assert_uint_eq(space.used_units, space.total_units);
        ck_assert_int_eq(space_alloc(&space, 1, &more), SPACE_E_FULL);
        space_release(&space, &extents[3]);
        ck_assert_int_eq(space_alloc(&space, 2001, &more), SPACE_E_FULL);
        ck_assert_uint_eq(space.used_units, space.total_units - 2000);
        ck_assert_int_eq(space_alloc(&space, 2000, &more), 0);
}
END_TEST

START_TEST(what_no_member_holds_alone_is_spread_over_the_free_runs)
{
        struct space_extents extents[15], more;

        for (uint32_t i = 0; i < 15; i++)
                ck_assert_int_eq(space_alloc(&space, 2000, &extents[i]), 0);
        for (uint32_t i = 0; i < 3; i++)
                space_release(&space, &extents[i]);
        ck_assert_int_eq(space_alloc(&space, 6000, &more), 0);
        ck_assert_uint_eq(units(&more), 6000);
        ck_assert_uint_le(more.n, 3);
}
END_TEST

START_TEST(what_is_trimmed_is_free_again)
{
        struct space_extents extents[15], more, rest;
        uint64_t used;

        for (uint32_t i = 0; i < 15; i++)
                ck_assert_int_eq(space_alloc(&space, 2000, &extents[i]), 0);
        for (uint32_t i = 0; i < 3; i++)
                space_release(&space, &extents[i]);
        ck_assert_int_eq(space_alloc(&space, 6000, &more), 0);
        used = space.used_units;
        ck_assert_int_eq(space_trim(&space, &more, 6000), 0);
        ck_assert_uint_eq(space.used_units, used);
        for (uint64_t n = 5999; n; n = n * 2 / 3) {
                uint64_t first = more.at[0].first;

                ck_assert_int_eq(space_trim(&space, &more, n), 0);
                ck_assert_uint_eq(units(&more), n);
                ck_assert_uint_eq(more.at[0].first, first);
                ck_assert_uint_eq(space.used_units, used - 6000 + n);
        }
        ck_assert_uint_eq(more.n, 1);
        ck_assert_int_eq(space_alloc(&space, 5999, &rest), 0);
        space_release(&space, &more);
        space_release(&space, &rest);
        ck_assert_uint_eq(space.used_units, used - 6000);
}
END_TEST

START_TEST(extents_are_taken_all_or_none)
{
        struct space_extents free_one = {.n = 1, .at = {{.first = 100, .count = 10}}};
        struct space_extents both = {
                .n = 2,
                .at = {{.first = 500, .count = 10, .member = 1}, {.first = 105, .count = 2}},
        };
        struct space_extents outside = {.n = 1, .at = {{.first = 10030, .count = 3}}};
        struct space_extents nowhere = {.n = 1, .at = {{.first = 50, .count = 3, .member = 9}}};
        struct space_extents reserved = {.n = 1, .at = {{.first = 31, .count = 3}}};

        ck_assert_int_eq(space_take(&space, &free_one), 0);
        ck_assert_int_eq(space_take(&space, &both), SPACE_E_TAKEN);
        ck_assert_uint_eq(space.used_units, 10);
        ck_assert_int_eq(space_take(&space, &outside), SPACE_E_TAKEN);
        ck_assert_int_eq(space_take(&space, &nowhere), SPACE_E_TAKEN);
        ck_assert_int_eq(space_take(&space, &reserved), SPACE_E_TAKEN);
        space_release(&space, &free_one);
        ck_assert_int_eq(space_take(&space, &both), 0);
}
END_TEST

START_TEST(a_place_names_its_extents)
{
        const struct space_extents cases[] = {
                {.n = 1, .at = {{.first = 32, .count = 1, .member = 0}}},
                {.n = 1,
                 .at = {{.first = (1ull << 36) - 1, .count = (1u << 21) - 1, .member = 63}}},
                {.n = 1, .at = {{.first = 1ull << 36, .count = 1, .member = 1}}},
                {.n = 1, .at = {{.first = 5, .count = 1u << 21, .member = 1}}},
                {.n = 2, .at = {{.first = 5, .count = 7, .member = 1}, {.first = 9, .count = 1}}},
        };

        for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct space_extents extents;
                struct tier_place place;

                ck_assert_int_eq(space_make_place(&space, 77 + i, &cases[i], &place), 0);
                ck_assert_uint_eq(place.claim, 77 + i);
                space_extents_of(place, &extents);
                ck_assert_uint_eq(extents.n, cases[i].n);
                ck_assert_mem_eq(extents.at, cases[i].at, extents.n * sizeof(extents.at[0]));
                if (i & 1)
                        space_forget_place(place); /* the others go with the space */
        }
}
END_TEST

START_TEST(missing_members_are_passed_over)
{
        struct space gaps;
        struct space_extents extents;

        space_init(&gaps, STRIPE);
        ck_assert_int_eq(space_add_member(&gaps, 2, 10032, 32), 0);
        ck_assert_int_eq(space_alloc(&gaps, STRIPE * 2, &extents), 0);
        ck_assert_uint_eq(extents.n, 1);
        ck_assert_uint_eq(extents.at[0].member, 2);
        space_deinit(&gaps);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/space");
        TCase *tcase = tcase_create("space");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, a_small_object_lies_on_one_member);
        tcase_add_test(tcase, a_large_object_is_spread_evenly);
        tcase_add_test(tcase, small_objects_go_to_the_idle_then_to_the_emptiest_member);
        tcase_add_test(tcase, a_full_space_refuses_and_takes_nothing);
        tcase_add_test(tcase, what_no_member_holds_alone_is_spread_over_the_free_runs);
        tcase_add_test(tcase, what_is_trimmed_is_free_again);
        tcase_add_test(tcase, extents_are_taken_all_or_none);
        tcase_add_test(tcase, a_place_names_its_extents);
        tcase_add_test(tcase, missing_members_are_passed_over);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
