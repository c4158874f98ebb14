// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/rdma/room.h"

#define UNITS 64u

static struct rooms rooms;

static void setup(void)
{
        ck_assert_int_eq(rooms_init(&rooms, UNITS * ROOM_UNIT), 0);
}

static void teardown(void)
{
        rooms_deinit(&rooms);
}

static struct room *take(uint64_t era, uint64_t lease, uint64_t bytes)
{
        struct room *room;

        ck_assert_int_eq(room_new(&room, &rooms, era, lease, bytes), 0);
        ck_assert_uint_eq(room->bytes, bytes);
        ck_assert_uint_ge(room->run->length, bytes);
        return room;
}

/* All of it is free, as one run. */
static void expect_empty(void)
{
        const struct run *run = TAILQ_FIRST(&rooms.free);

        ck_assert(RB_EMPTY(&rooms.tree));
        ck_assert_ptr_nonnull(run);
        ck_assert_uint_eq(run->offset, 0);
        ck_assert_uint_eq(run->length, UNITS * ROOM_UNIT);
}

START_TEST(rooms_never_overlap_and_come_together_again)
{
        struct room *held[UNITS] = {NULL};
        uint8_t owner[UNITS];
        uint64_t lease = 0;

        memset(owner, 0xff, sizeof(owner));
        srand(7);
        for (unsigned step = 0; step < 20000; step++) {
                unsigned i = (unsigned)rand() % UNITS;
                uint64_t first, n;

                if (!held[i] && room_new(&held[i], &rooms, 1, ++lease,
                                         1 + (uint64_t)rand() % (9 * ROOM_UNIT))) {
                        held[i] = NULL;
                        continue;
                }
                first = held[i]->run->offset / ROOM_UNIT;
                n = held[i]->run->length / ROOM_UNIT;
                if (owner[first] == i) {
                        memset(owner + first, 0xff, n);
                        room_end(&rooms, held[i]);
                        held[i] = NULL;
                        continue;
                }
                for (uint64_t unit = first; unit < first + n; unit++) {
                        ck_assert_uint_eq(owner[unit], 0xff);
                        owner[unit] = (uint8_t)i;
                }
        }
        rooms_end_era(&rooms, 1);
        expect_empty();
}
END_TEST

START_TEST(what_is_lent_stays_until_it_is_taken_back)
{
        struct room *room = take(1, 5, 10), *other;

        room->is_lent = true;
        room_end(&rooms, room);
        ck_assert_ptr_null(room_find(&rooms, 1, 5));
        ck_assert_int_eq(room_new(&other, &rooms, 1, 6, UNITS * ROOM_UNIT), ROOM_E_FULL);
        room_take_back(&rooms, room);
        expect_empty();
        room = take(1, 6, UNITS * ROOM_UNIT);
        room->is_lent = true;
        room_take_back(&rooms, room);
        ck_assert_ptr_eq(room_find(&rooms, 1, 6), room);
}
END_TEST

START_TEST(eras_end_apart)
{
        take(1, 5, 10);
        take(2, 5, 10);
        take(1, 6, 10);
        ck_assert_ptr_ne(room_find(&rooms, 1, 5), room_find(&rooms, 2, 5));
        rooms_end_era(&rooms, 1);
        ck_assert(!rooms_have_era(&rooms, 1));
        ck_assert(rooms_have_era(&rooms, 2));
        ck_assert_ptr_nonnull(room_find(&rooms, 2, 5));
        rooms_end_era(&rooms, 2);
        expect_empty();
}
END_TEST

START_TEST(what_never_fits_is_told_from_what_does_not_fit_now)
{
        struct room *room;

        ck_assert_int_eq(room_new(&room, &rooms, 1, 1, UNITS * ROOM_UNIT + 1), ROOM_E_TOO_LARGE);
        take(1, 2, 1);
        ck_assert_int_eq(room_new(&room, &rooms, 1, 3, UNITS * ROOM_UNIT), ROOM_E_FULL);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/room");
        TCase *all = tcase_create("room");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(all, setup, teardown);
        tcase_add_test(all, rooms_never_overlap_and_come_together_again);
        tcase_add_test(all, what_is_lent_stays_until_it_is_taken_back);
        tcase_add_test(all, eras_end_apart);
        tcase_add_test(all, what_never_fits_is_told_from_what_does_not_fit_now);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
