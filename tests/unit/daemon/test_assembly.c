// SPDX-License-Identifier: Apache-2.0
/* Parts of a request become the whole of it, or end the session. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/assembly.h"
#include "daemon/daemon.h"
#include "daemon/load.h"
#include "proto/message.h"

static struct daemon state;
static struct session session;
static _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];

static void setup(void)
{
        memset(&state, 0, sizeof(state));
        memset(&session, 0, sizeof(session));
        state.is_closing = true; /* no loop to wake */
        session.daemon = &state;
        session.state = SESSION_ATTACHED;
        TAILQ_INIT(&session.loads);
        TAILQ_INIT(&session.waiting);
}

static const struct wire_batch *keys(struct wire_batch batch, uint32_t first, uint32_t n)
{
        struct message_builder builder;

        batch.first = first;
        message_builder_init(&builder, packet, &batch, sizeof(batch));
        for (uint32_t i = first; i < first + n; i++) {
                struct wire_key_item key = {.group = (uint16_t)i};

                ck_assert(!message_append(&builder, &key, sizeof(key), 1));
        }
        return (const void *)packet;
}

static struct wire_batch acquire_of(uint32_t total, bool more)
{
        static const uint8_t boot_id[16] = {1};
        struct wire_batch batch = {.total = total, .layout = 1};

        message_header_init(&batch.header, WIRE_ACQUIRE, 77, 1, boot_id);
        batch.header.flags = more ? WIRE_MORE : 0;
        return batch;
}

START_TEST(parts_become_one_request_in_order)
{
        struct assembly *assembly = NULL;

        ck_assert(!assembly_add(&session, keys(acquire_of(1200, true), 0, 500), &assembly));
        ck_assert(!assembly_add(&session, keys(acquire_of(1200, true), 500, 500), &assembly));
        ck_assert(assembly_add(&session, keys(acquire_of(1200, false), 1000, 200), &assembly));
        ck_assert_ptr_null(session.assembly);
        ck_assert_uint_eq(assembly->n, 1200);
        ck_assert_uint_eq(assembly->request, 77);
        for (uint32_t i = 0; i < 1200; i++)
                ck_assert_uint_eq(assembly->keys[i].group, i);
        ck_assert_int_eq(session.state, SESSION_ATTACHED);
        assembly_free(assembly);
}
END_TEST

/* Items whose group says how many runs they have: @n_runs each. */
static const struct wire_batch *sparse_keys(struct wire_batch batch, uint32_t first, uint32_t n,
                                            uint32_t n_runs)
{
        struct message_builder builder;

        batch.first = first;
        message_builder_init(&builder, packet, &batch, sizeof(batch));
        for (uint32_t i = first; i < first + n; i++) {
                struct wire_key_item key = {.group = (uint16_t)i, .n_runs = n_runs};

                ck_assert(!message_append(&builder, &key, sizeof(key), 1));
                for (uint32_t j = 0; j < n_runs; j++) {
                        struct wire_page_run run = {100 * i + 2 * j, 1};

                        ck_assert(!message_append(&builder, &run, sizeof(run), 0));
                }
        }
        return (const void *)packet;
}

START_TEST(runs_of_pages_are_kept_in_the_order_of_their_keys)
{
        struct assembly *assembly = NULL;
        struct wire_batch more = acquire_of(30, true), last = acquire_of(30, false);
        const struct wire_page_run *run;

        ck_assert(!assembly_add(&session, sparse_keys(more, 0, 10, 3), &assembly));
        ck_assert(!assembly_add(&session, keys(more, 10, 10), &assembly));
        ck_assert(assembly_add(&session, sparse_keys(last, 20, 10, 64), &assembly));
        ck_assert_uint_eq(assembly->n, 30);
        ck_assert_uint_eq(assembly->n_runs, 10 * 3 + 10 * 64);
        run = assembly->runs;
        for (uint32_t i = 0; i < 30; i++)
                for (uint32_t j = 0; j < assembly->keys[i].n_runs; j++, run++)
                        ck_assert_uint_eq(run->first_page, 100 * i + 2 * j);
        assembly_free(assembly);
}
END_TEST

START_TEST(more_runs_than_a_request_may_have_end_the_session)
{
        struct assembly *assembly = NULL;
        uint32_t total = WIRE_RUNS_TOTAL / 64 + 1, first = 0;

        for (; first + 64 < total; first += 64)
                ck_assert(!assembly_add(
                        &session, sparse_keys(acquire_of(total, true), first, 64, 64), &assembly));
        ck_assert_int_eq(session.state, SESSION_ATTACHED);
        ck_assert(!assembly_add(&session,
                                sparse_keys(acquire_of(total, false), first, total - first, 64),
                                &assembly));
        ck_assert_int_eq(session.state, SESSION_CLOSING);
        ck_assert_str_eq(session.close_detail, "a request names too many runs of pages");
        ck_assert_ptr_null(session.assembly);
}
END_TEST

static const struct wire_batch *commits(uint32_t first, uint32_t n, uint32_t n_pieces, bool more)
{
        struct wire_batch batch = acquire_of(10, more);
        struct message_builder builder;
        uint64_t pieces[4] = {11, 12, 13, 14};

        batch.header.kind = WIRE_COMMIT;
        batch.first = first;
        batch.set = 3;
        message_builder_init(&builder, packet, &batch, sizeof(batch));
        for (uint32_t i = first; i < first + n; i++) {
                struct wire_commit_item item = {.lease = 100 + i, .n_pieces = n_pieces};

                ck_assert(!message_append(&builder, &item, sizeof(item), 1));
                ck_assert(!message_append(&builder, pieces, n_pieces * sizeof(pieces[0]), 0));
        }
        return (const void *)packet;
}

START_TEST(a_commit_keeps_leases_and_the_writers_checksums)
{
        struct assembly *assembly = NULL;

        ck_assert(!assembly_add(&session, commits(0, 6, 4, true), &assembly));
        memset(packet, 0xff, sizeof(packet)); /* nothing may point into it */
        ck_assert(assembly_add(&session, commits(6, 4, 0, false), &assembly));
        ck_assert_uint_eq(assembly->n, 10);
        for (uint32_t i = 0; i < 10; i++) {
                const struct assembly_commit *commit = &assembly->commits[i];

                ck_assert_uint_eq(commit->lease, 100 + i);
                ck_assert_uint_eq(commit->n_pieces, i < 6 ? 4 : 0);
                ck_assert(i < 6 ? commit->pieces[3] == 14 : !commit->pieces);
        }
        assembly_free(assembly);
}
END_TEST

/* After a first part of 10 items out of 20, @wrong as the next one. */
static void expect_misfit(const struct wire_batch *wrong, uint32_t first, uint32_t n)
{
        struct assembly *assembly = NULL;

        setup();
        ck_assert(!assembly_add(&session, keys(acquire_of(20, true), 0, 10), &assembly));
        ck_assert(!assembly_add(&session, keys(*wrong, first, n), &assembly));
        ck_assert_int_eq(session.state, SESSION_CLOSING);
        ck_assert_ptr_null(session.assembly);
        ck_assert_uint_eq(state.metrics.disconnects_total[METRICS_GARBAGE], 1);
}

START_TEST(parts_that_do_not_follow_one_another_end_the_session)
{
        struct wire_batch part = acquire_of(20, false);

        expect_misfit(&part, 11, 9); /* a gap */
        expect_misfit(&part, 0, 10); /* the first once more */
        expect_misfit(&part, 10, 5); /* the last, and not all are there */
        part.total = 21;
        expect_misfit(&part, 10, 11);
        part = acquire_of(20, false);
        part.layout = 2;
        expect_misfit(&part, 10, 10);
        part = acquire_of(20, false);
        part.flags = WIRE_ACQUIRE_PARTIAL;
        expect_misfit(&part, 10, 10);
        part = acquire_of(20, false);
        part.header.request = 78;
        expect_misfit(&part, 10, 10);
        part = acquire_of(20, false);
        part.header.kind = WIRE_ADOPT;
        expect_misfit(&part, 10, 10);
}
END_TEST

START_TEST(a_first_part_that_is_not_the_first_ends_the_session)
{
        struct assembly *assembly = NULL;

        ck_assert(!assembly_add(&session, keys(acquire_of(20, true), 5, 5), &assembly));
        ck_assert_int_eq(session.state, SESSION_CLOSING);
}
END_TEST

START_TEST(a_hang_up_in_the_middle_leaves_nothing)
{
        struct assembly *assembly = NULL;

        ck_assert(!assembly_add(&session, commits(0, 6, 4, true), &assembly));
        ck_assert_ptr_nonnull(session.assembly);
        loads_hang_up(&session);
        ck_assert_ptr_null(session.assembly);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/assembly");
        TCase *tcase = tcase_create("assembly");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, parts_become_one_request_in_order);
        tcase_add_test(tcase, runs_of_pages_are_kept_in_the_order_of_their_keys);
        tcase_add_test(tcase, more_runs_than_a_request_may_have_end_the_session);
        tcase_add_test(tcase, a_commit_keeps_leases_and_the_writers_checksums);
        tcase_add_test(tcase, parts_that_do_not_follow_one_another_end_the_session);
        tcase_add_test(tcase, a_first_part_that_is_not_the_first_ends_the_session);
        tcase_add_test(tcase, a_hang_up_in_the_middle_leaves_nothing);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
