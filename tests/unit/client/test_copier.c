// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>

#include "client/page_call.h"
#include "client/session.h"

static struct kvt_session *session;
static struct kvt__call store = {.kind = KVT__STORE_PAGES}, load = {.kind = KVT__LOAD_PAGES};
static struct kvt__page_object stores[2] = {{.call = &store}, {.call = &store}};
static struct kvt__page_object loads[2] = {{.call = &load}, {.call = &load}};

/* A session that is nothing but its queues: the thread does not run. */
static void set_up(void)
{
        session = calloc(1, sizeof(*session));
        ck_assert_ptr_nonnull(session);
        kvt__copier_init(&session->copier);
}

static void tear_down(void)
{
        kvt__copier_deinit(&session->copier, false);
        free(session);
}

static void expect_next(struct kvt__page_object *object)
{
        ck_assert_ptr_eq(kvt__copier_next(&session->copier), object);
        if (object)
                kvt__copier_remove(session, object);
}

START_TEST(loads_go_first_and_each_kind_keeps_its_order)
{
        kvt__copier_add(session, &stores[0]);
        kvt__copier_add(session, &stores[1]);
        kvt__copier_add(session, &loads[0]);
        kvt__copier_add(session, &loads[1]);
        expect_next(&loads[0]);
        expect_next(&loads[1]);
        expect_next(&stores[0]);
        kvt__copier_add(session, &loads[0]);
        expect_next(&loads[0]);
        expect_next(&stores[1]);
        expect_next(NULL);
}
END_TEST

START_TEST(what_is_removed_is_not_copied)
{
        kvt__copier_add(session, &stores[0]);
        kvt__copier_add(session, &stores[1]);
        kvt__copier_add(session, &loads[0]);
        kvt__copier_remove(session, &loads[0]);
        kvt__copier_remove(session, &stores[0]);
        expect_next(&stores[1]);
        expect_next(NULL);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("client/copier");
        TCase *tcase = tcase_create("copier");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, loads_go_first_and_each_kind_keeps_its_order);
        tcase_add_test(tcase, what_is_removed_is_not_copied);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
