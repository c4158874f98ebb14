// SPDX-License-Identifier: Apache-2.0
/*
 * Leases, sets and grants: what is held is counted, what has ended is found no more, and
 * nothing is left over.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/lease.h"
#include "daemon/session.h"
#include "daemon/set.h"

#define PIECE_BYTES (UINT64_C(4) << 20)

static uv_loop_t loop;
static struct host_pool *host;
static struct host_copies copies;
static struct leases leases;
static struct session one, other;

static void init_session(struct session *session, uint64_t id)
{
        memset(session, 0, sizeof(*session));
        session->id = id;
        TAILQ_INIT(&session->leases);
        RB_INIT(&session->sets);
}

static void setup(void)
{
        struct host_options options = {
                .total_bytes = PIECE_BYTES,
                .piece_bytes = PIECE_BYTES,
                .page_bytes = 4096,
        };
        uint64_t end = uv_hrtime() + UINT64_C(10000000000);

        ck_assert(!uv_loop_init(&loop));
        ck_assert(!host_pool_new(&host, &loop, &options));
        while (!host_n_arenas(host)) {
                uv_run(&loop, UV_RUN_NOWAIT);
                ck_assert_msg(uv_hrtime() < end, "no arena came up");
        }
        ck_assert(!host_copies_init(&copies, host));
        leases_init(&leases, &copies);
        init_session(&one, 1);
        init_session(&other, 2);
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

static uint64_t used_bytes(void)
{
        struct host_usage usage;

        host_usage(host, &usage);
        return usage.used_bytes;
}

static void teardown(void)
{
        bool closed = false;

        ck_assert_uint_eq(one.n_leases + other.n_leases, 0);
        ck_assert_uint_eq(one.leased_bytes + other.leased_bytes, 0);
        ck_assert_uint_eq(copies.leased_bytes, 0);
        ck_assert(RB_EMPTY(&one.sets) && RB_EMPTY(&leases.reservations));
        ck_assert(RB_EMPTY(&leases.grants));
        ck_assert_uint_eq(used_bytes(), 0);
        leases_deinit(&leases);
        host_copies_deinit(&copies);
        host_pool_close(host, on_closed, &closed);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert(closed && !uv_loop_close(&loop));
}

/* With the one use that host_copy_new() gives. */
static struct host_copy *new_copy(uint64_t bytes, enum host_copy_state state)
{
        struct object_key key = {.group = 0};
        struct host_copy *copy;

        ck_assert_int_eq(host_copy_new(&copies, &key, bytes, state, UINT32_MAX, 1, &copy), 0);
        return copy;
}

static struct lease *new_lease(struct session *session, enum lease_kind kind,
                               struct host_copy *copy)
{
        struct lease *lease;

        ck_assert_int_eq(lease_new(&leases, session, kind, copy, &lease), 0);
        return lease;
}

static struct lease *new_writer(uint32_t n, uint16_t group)
{
        struct host_copy *copy = new_copy(4096, HOST_COPY_WRITING);
        struct lease *lease = new_lease(&one, LEASE_WRITE, copy);

        host_copy_unuse(&copies, copy);
        lease->entry.layout = 1;
        lease->entry.group = group;
        memcpy(lease->entry.digest.bytes, &n, sizeof(n));
        lease_enter_reservation(&leases, lease);
        return lease;
}

static bool is_reserved(uint32_t n, uint16_t group)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &n, sizeof(n));
        return lease_is_reserved(&leases, 1, &digest, group, 0);
}

START_TEST(bytes_leased_by_several_count_once_in_all_and_once_for_each)
{
        struct host_copy *copy = new_copy(5000, HOST_COPY_READY);
        struct lease *first = new_lease(&one, LEASE_READ, copy);
        struct lease *second = new_lease(&other, LEASE_READ, copy);

        ck_assert_uint_eq(copies.leased_bytes, 8192);
        ck_assert_uint_eq(one.leased_bytes, 8192);
        ck_assert_uint_eq(other.leased_bytes, 8192);
        host_copy_unuse(&copies, copy);
        lease_end(&leases, first);
        ck_assert_uint_eq(copies.leased_bytes, 8192);
        ck_assert_uint_eq(one.leased_bytes, 0);
        ck_assert_uint_eq(used_bytes(), 8192);
        lease_end(&leases, second);
        ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(an_id_is_its_sessions_own_and_never_comes_again)
{
        struct lease *lease = new_lease(&one, LEASE_HAVE, NULL);
        uint64_t id = lease->id;

        ck_assert_ptr_eq(lease_find(&leases, &one, id), lease);
        ck_assert_ptr_null(lease_find(&leases, &other, id));
        ck_assert_ptr_null(lease_find(&leases, &one, 0));
        ck_assert_ptr_null(lease_find(&leases, &one, UINT64_MAX));
        lease_end(&leases, lease);
        ck_assert_ptr_null(lease_find(&leases, &one, id));
        lease = new_lease(&one, LEASE_HAVE, NULL);
        ck_assert_uint_ne(lease->id, id);
        ck_assert_ptr_null(lease_find(&leases, &one, id));
        lease_end(&leases, lease);
}
END_TEST

START_TEST(a_key_is_reserved_until_its_last_writer_ends)
{
        struct lease *first = new_writer(7, 1), *second = new_writer(7, 1);
        struct lease *neighbour = new_writer(7, 2);

        ck_assert(is_reserved(7, 1) && is_reserved(7, 2));
        ck_assert(!is_reserved(7, 0) && !is_reserved(8, 1));
        lease_end(&leases, first);
        ck_assert(is_reserved(7, 1));
        lease_end(&leases, second);
        ck_assert(!is_reserved(7, 1) && is_reserved(7, 2));
        lease_end(&leases, neighbour);
}
END_TEST

START_TEST(a_retired_writer_keeps_its_bytes_and_nothing_else)
{
        struct lease *lease = new_writer(7, 0);

        ck_assert(lease_retire(&leases, lease));
        ck_assert(!lease_retire(&leases, lease));
        ck_assert(!is_reserved(7, 0));
        ck_assert_uint_eq(copies.leased_bytes, 4096);
        ck_assert_uint_eq(used_bytes(), 4096);
        lease_end(&leases, lease);
}
END_TEST

START_TEST(a_set_lives_as_long_as_its_last_member)
{
        struct lease *writer = new_writer(1, 0);
        struct lease *have = new_lease(&one, LEASE_HAVE, NULL);
        struct lease_set *set;

        ck_assert_int_eq(set_join(writer, 5), 0);
        ck_assert_int_eq(set_join(have, 5), 0);
        set = set_find(&one, 5);
        ck_assert_ptr_nonnull(set);
        ck_assert_ptr_null(set_find(&one, 6));
        ck_assert_ptr_null(set_find(&other, 5));
        ck_assert_uint_eq(set->n_write, 1);
        ck_assert_uint_eq(set->n_have, 1);
        lease_end(&leases, writer);
        ck_assert_uint_eq(set_find(&one, 5)->n_write, 0);
        lease_end(&leases, have);
        ck_assert_ptr_null(set_find(&one, 5));
}
END_TEST

START_TEST(the_end_of_a_set_ends_every_member_and_no_other_set)
{
        for (uint32_t n = 0; n < 20; n++)
                ck_assert_int_eq(set_join(new_writer(n, 0), n % 2), 0);
        set_end(&leases, set_find(&one, 0));
        ck_assert_ptr_null(set_find(&one, 0));
        ck_assert_uint_eq(one.n_leases, 10);
        for (uint32_t n = 0; n < 20; n++)
                ck_assert(is_reserved(n, 0) == (n % 2 == 1));
        set_end(&leases, set_find(&one, 1));
}
END_TEST

START_TEST(a_set_has_no_more_members_than_one_commit_can_name)
{
        struct lease *lease;

        for (uint32_t n = 0; n < WIRE_ITEMS_MAX; n++)
                ck_assert_int_eq(set_join(new_lease(&one, LEASE_HAVE, NULL), 9), 0);
        lease = new_lease(&one, LEASE_HAVE, NULL);
        ck_assert_int_eq(set_join(lease, 9), SET_E_FULL);
        lease_end(&leases, lease);
        set_end(&leases, set_find(&one, 9));
}
END_TEST

/* A grant over @n copies, of which @session leases the first. */
static struct grant *new_grant(struct session *session, uint32_t n, struct lease **ret_lease)
{
        static const uint8_t engine[16] = {1};
        struct grant *grant;

        ck_assert_int_eq(grant_new(&leases, engine, 0, 1, n, &grant), 0);
        for (uint32_t i = 0; i < n; i++) {
                struct host_copy *copy = new_copy(4096, HOST_COPY_READY);
                struct digest digest = {{0}};
                uint32_t name = i * 7919 % n;

                memcpy(digest.bytes, &name, sizeof(name));
                grant_add_member(&leases, grant, copy, &digest, 0, (uint16_t)(i % 3));
                host_copy_unuse(&copies, copy);
        }
        *ret_lease = new_lease(session, LEASE_READ, grant->members[0].copy);
        grant_attach_lease(grant, *ret_lease);
        return grant;
}

START_TEST(a_token_is_good_while_somebody_holds_a_lease_of_it)
{
        struct lease *first, *second;
        struct grant *grant = new_grant(&one, 3, &first);
        uint8_t token[16];

        memcpy(token, grant->token, sizeof(token));
        ck_assert_ptr_eq(grant_find(&leases, token), grant);
        second = new_lease(&other, LEASE_READ, grant->members[1].copy);
        grant_attach_lease(grant, second);
        lease_end(&leases, first);
        ck_assert_ptr_eq(grant_find(&leases, token), grant);
        ck_assert_uint_eq(copies.leased_bytes, 3 * 4096);
        lease_end(&leases, second);
        ck_assert_ptr_null(grant_find(&leases, token));
}
END_TEST

START_TEST(a_token_that_only_quarantine_holds_is_gone)
{
        struct lease *first, *second;
        struct grant *grant = new_grant(&one, 1, &first);
        uint8_t token[16];

        memcpy(token, grant->token, sizeof(token));
        second = new_lease(&other, LEASE_READ, grant->members[0].copy);
        grant_attach_lease(grant, second);
        lease_retire(&leases, first);
        ck_assert_ptr_eq(grant_find(&leases, token), grant);
        lease_retire(&leases, second);
        ck_assert_ptr_null(grant_find(&leases, token));
        ck_assert_uint_eq(copies.leased_bytes, 4096);
        lease_end(&leases, first);
        ck_assert_uint_eq(copies.leased_bytes, 4096);
        lease_end(&leases, second);
}
END_TEST

START_TEST(members_are_found_in_whatever_order_they_are_asked_for)
{
        enum { N = 500 };
        struct wire_key_item key = {.group = 0};
        uint32_t position = 0;
        struct lease *lease;
        struct grant *grant = new_grant(&one, N, &lease);

        for (uint32_t i = 0; i < 3 * N; i++) {
                /* As granted, then backwards, then leaping. */
                uint32_t at = i < N ? i : i < 2 * N ? 2 * N - 1 - i : i * 37 % N;
                const struct grant_member *member = &grant->members[at];

                key.boundary = member->boundary;
                key.shard = member->shard;
                ck_assert_ptr_eq(grant_find_member(grant, &key, &position), member);
        }
        key.group = 1;
        ck_assert_ptr_null(grant_find_member(grant, &key, &position));
        lease_end(&leases, lease);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/lease");
        TCase *tcase = tcase_create("lease");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, bytes_leased_by_several_count_once_in_all_and_once_for_each);
        tcase_add_test(tcase, an_id_is_its_sessions_own_and_never_comes_again);
        tcase_add_test(tcase, a_key_is_reserved_until_its_last_writer_ends);
        tcase_add_test(tcase, a_retired_writer_keeps_its_bytes_and_nothing_else);
        tcase_add_test(tcase, a_set_lives_as_long_as_its_last_member);
        tcase_add_test(tcase, the_end_of_a_set_ends_every_member_and_no_other_set);
        tcase_add_test(tcase, a_set_has_no_more_members_than_one_commit_can_name);
        tcase_add_test(tcase, a_token_is_good_while_somebody_holds_a_lease_of_it);
        tcase_add_test(tcase, a_token_that_only_quarantine_holds_is_gone);
        tcase_add_test(tcase, members_are_found_in_whatever_order_they_are_asked_for);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
