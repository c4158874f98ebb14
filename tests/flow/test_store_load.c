// SPDX-License-Identifier: Apache-2.0
/* Storing and loading through a real daemon: bytes, eviction, limits, sets, waiting. */
#include <stdlib.h>
#include <string.h>

#include "proto/status.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/wire_client.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)
#define GIB (UINT64_C(1024) * MIB)

static struct daemon_fixture fixture;

static const uint64_t sizes[] = {
        1, 7, 4095, 4096, 4097, 64 * KIB, 256 * KIB + 1, 1 * MIB, 3 * MIB + 5, 16 * MIB,
};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static struct wire_client *open_client(void)
{
        struct wire_client *client = calloc(1, sizeof(*client));

        ck_assert_ptr_nonnull(client);
        wire_client_open(client, fixture.socket);
        return client;
}

static void close_client(struct wire_client *client)
{
        wire_client_close(client);
        free(client);
}

/* ---- bytes ---- */

START_TEST(bytes_of_every_size_come_back_equal)
{
        struct kvt_session *writer, *reader;

        daemon_fixture_init(&fixture, NULL);
        writer = flow_open(fixture.socket);
        reader = flow_open(fixture.socket);
        for (uint64_t i = 0; i < N_SIZES; i++) {
                ck_assert_int_eq(flow_get(reader, i, 0, 0, NULL), KVT_MISS);
                ck_assert_int_eq(flow_put(writer, i, 0, sizes[i], 0), KVT_OK);
                ck_assert(flow_is_present(reader, i));
                ck_assert_int_eq(flow_get(reader, i, 0, 0, NULL), KVT_OK);
                ck_assert_int_eq(flow_put(reader, i, 9, sizes[i], 0), KVT_ALREADY_HAVE);
        }
        kvt_close(writer);
        kvt_close(reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(bytes_of_every_size_come_back_equal_from_nvme)
{
        struct daemon_options options = {.nvme_bytes = 96 * MIB};
        struct kvt_session *session;

        daemon_fixture_init(&fixture, &options);
        session = flow_open(fixture.socket);
        for (uint64_t i = 0; i < N_SIZES; i++)
                ck_assert_int_eq(flow_put(session, i, 0, sizes[i], 0), KVT_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        daemon_wait_number(&fixture, "host.objects", 0);
        for (uint64_t i = 0; i < N_SIZES; i++)
                ck_assert_int_eq(flow_get(session, i, 0, 0, NULL), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), N_SIZES);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

static void store_and_load_one(uint64_t bytes)
{
        struct daemon_options options = {.piece_bytes = 2 * bytes, .n_pieces = 1};
        struct kvt_session *session;

        daemon_fixture_init(&fixture, &options);
        session = flow_open(fixture.socket);
        ck_assert_int_eq(flow_put(session, 1, 0, bytes, 0), KVT_OK);
        ck_assert_int_eq(flow_get(session, 1, 0, 0, NULL), KVT_OK);
        ck_assert_int_eq(flow_put(session, 2, 0, bytes + 1, 0), KVT_TOO_LARGE);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}

START_TEST(an_object_of_256_mib_comes_back_equal)
{
        store_and_load_one(256 * MIB);
}
END_TEST

START_TEST(an_object_of_1_gib_comes_back_equal)
{
        store_and_load_one(GIB);
}
END_TEST

/* ---- eviction and limits ---- */

/* Stores three times what the host tier holds. */
static void press(struct wire_client *client, uint64_t first, uint64_t bytes)
{
        uint64_t total = fixture.options.piece_bytes * fixture.options.n_pieces * 3;

        for (uint64_t i = 0; i < total / bytes; i++) {
                struct wire_object object = wire_object(first + i, bytes);

                ck_assert_uint_eq(wire_client_put(client, &object), KVT_WIRE_OK);
        }
}

START_TEST(evict_under_load_never_touches_leased_bytes)
{
        struct wire_client *reader, *writer;
        struct wire_object read[10], written[10];

        daemon_fixture_init(&fixture, NULL);
        reader = open_client();
        writer = open_client();
        for (unsigned i = 0; i < 10; i++) {
                read[i] = wire_object(i, MIB + i);
                ck_assert_uint_eq(wire_client_put(writer, &read[i]), KVT_WIRE_OK);
                written[i] = wire_object(100 + i, 2 * MIB + i);
        }
        ck_assert_uint_eq(wire_client_acquire(reader, 0, NULL, read, 10), KVT_WIRE_OK);
        wire_client_reserve(reader, 0, written, 10);
        for (unsigned i = 0; i < 10; i++) {
                ck_assert_uint_eq(written[i].status, KVT_WIRE_OK);
                wire_client_write(reader, &written[i]);
        }

        press(writer, 1000, MIB);
        press(writer, 2000, 3 * MIB + 4096);

        ck_assert_uint_gt(daemon_number(&fixture, "host.evicted"), 0);
        for (unsigned i = 0; i < 10; i++) {
                ck_assert(wire_client_holds(reader, &read[i]));
                ck_assert(wire_client_holds(reader, &written[i]));
        }
        wire_client_end(reader, WIRE_RELEASE, 0, read, 10);
        wire_client_end(reader, WIRE_COMMIT, 0, written, 10);
        for (unsigned i = 0; i < 10; i++) {
                ck_assert_uint_eq(written[i].status, KVT_WIRE_OK);
                ck_assert_uint_eq(wire_client_get(writer, &written[i]), KVT_WIRE_OK);
        }
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        close_client(reader);
        close_client(writer);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* Objects that take 60 % of the host tier, on NVMe alone. */
static void store_60_percent(struct wire_client *client, struct wire_object *objects,
                             uint64_t first)
{
        for (unsigned i = 0; i < 12; i++) {
                objects[i] = wire_object(first + i, 64 * MIB / 20);
                ck_assert_uint_eq(wire_client_put(client, &objects[i]), KVT_WIRE_OK);
        }
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
}

START_TEST(of_two_sessions_that_want_60_percent_one_is_told_busy)
{
        struct daemon_options options = {.nvme_bytes = 128 * MIB};
        struct wire_client *a, *b;
        struct wire_object of_a[12], of_b[12];
        uint64_t ask_a, ask_b;

        daemon_fixture_init(&fixture, &options);
        a = open_client();
        b = open_client();
        store_60_percent(a, of_a, 100);
        store_60_percent(b, of_b, 200);

        /* Both ask before either hears. */
        ask_a = wire_client_send_acquire(a, 0, 0, of_a, 12);
        ask_b = wire_client_send_acquire(b, 0, 0, of_b, 12);
        uint32_t status_a = wire_client_finish(a, ask_a, NULL, of_a, 12);
        uint32_t status_b = wire_client_finish(b, ask_b, NULL, of_b, 12);

        ck_assert_uint_eq(status_a + status_b, KVT_WIRE_OK + KVT_WIRE_BUSY);
        ck_assert(status_a == KVT_WIRE_OK || status_b == KVT_WIRE_OK);
        for (unsigned i = 0; i < 12; i++)
                ck_assert(wire_client_holds(status_a ? b : a, status_a ? &of_b[i] : &of_a[i]));

        /* The other's turn comes when the first has released. */
        wire_client_end(status_a ? b : a, WIRE_RELEASE, 0, status_a ? of_b : of_a, 12);
        ck_assert_uint_eq(status_a ? wire_client_acquire(a, 0, NULL, of_a, 12)
                                   : wire_client_acquire(b, 0, NULL, of_b, 12),
                          KVT_WIRE_OK);
        close_client(a);
        close_client(b);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(two_writers_together_get_no_more_than_the_lease_share)
{
        struct wire_client *writers[2];
        struct wire_object objects[2][12];
        uint64_t requests[2], granted = 0;

        daemon_fixture_init(&fixture, NULL);
        for (unsigned w = 0; w < 2; w++) {
                writers[w] = open_client();
                for (unsigned i = 0; i < 12; i++)
                        objects[w][i] = wire_object(100 * w + i, 64 * MIB / 20);
        }
        for (unsigned w = 0; w < 2; w++)
                requests[w] = wire_client_send_reserve(writers[w], 0, objects[w], 12);
        for (unsigned w = 0; w < 2; w++) {
                wire_client_finish(writers[w], requests[w], NULL, objects[w], 12);
                for (unsigned i = 0; i < 12; i++) {
                        ck_assert(objects[w][i].status == KVT_WIRE_OK ||
                                  objects[w][i].status == KVT_WIRE_BUSY);
                        if (objects[w][i].status == KVT_WIRE_OK)
                                granted += objects[w][i].bytes;
                }
        }
        ck_assert_uint_le(granted, 64 * MIB * 8 / 10);
        ck_assert_uint_ge(granted, 64 * MIB * 7 / 10);
        for (unsigned w = 0; w < 2; w++)
                close_client(writers[w]);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_boundary_above_the_share_is_too_large_and_says_what_fits)
{
        struct daemon_options options = {.nvme_bytes = 128 * MIB};
        struct wire_object objects[24];
        struct wire_granted granted;
        struct wire_client *client;

        daemon_fixture_init(&fixture, &options);
        client = open_client();
        store_60_percent(client, objects, 100);
        store_60_percent(client, objects + 12, 200);
        ck_assert_uint_eq(wire_client_acquire(client, 0, &granted, objects, 24),
                          KVT_WIRE_TOO_LARGE);
        ck_assert_uint_ge(granted.n_fitting, 14);
        ck_assert_uint_le(granted.n_fitting, 16);
        ck_assert_uint_eq(wire_client_acquire(client, 0, NULL, objects, granted.n_fitting),
                          KVT_WIRE_OK);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- sets ---- */

static struct wire_object chunk(uint64_t number)
{
        return (struct wire_object){
                .number = number, .bytes = TEST_CHUNK_BYTES, .group = TEST_GROUP_CHUNK};
}

static void expect_get(struct wire_client *client, struct wire_object object, uint32_t status)
{
        ck_assert_uint_eq(wire_client_get(client, &object), status);
}

static void reserve_set(struct wire_client *client, uint64_t set, struct wire_object *objects,
                        unsigned n)
{
        wire_client_reserve(client, set, objects, n);
        for (unsigned i = 0; i < n; i++)
                if (objects[i].status == KVT_WIRE_OK)
                        wire_client_write(client, &objects[i]);
                else
                        ck_assert_uint_eq(objects[i].status, KVT_WIRE_ALREADY_HAVE);
}

START_TEST(a_set_is_visible_whole_or_not_at_all)
{
        struct wire_object set[] = {chunk(1), wire_object(1, 3 * MIB)};
        struct wire_client *client, *other;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        other = open_client();

        /* A commit that names one of two publishes none. */
        reserve_set(client, 5, set, 2);
        wire_client_end(client, WIRE_COMMIT, 5, set, 1);
        ck_assert_uint_eq(set[0].status, KVT_WIRE_INVALID);
        expect_get(other, set[0], KVT_WIRE_MISS);
        expect_get(other, set[1], KVT_WIRE_MISS);

        wire_client_end(client, WIRE_COMMIT, 5, set, 2);
        ck_assert_uint_eq(set[0].status, KVT_WIRE_OK);
        ck_assert_uint_eq(set[1].status, KVT_WIRE_OK);
        expect_get(other, set[0], KVT_WIRE_OK);
        expect_get(other, set[1], KVT_WIRE_OK);

        /* Abort of one member ends the whole set. */
        set[0].number = set[1].number = 2;
        reserve_set(client, 6, set, 2);
        wire_client_end(client, WIRE_ABORT, 6, set, 1);
        wire_client_end(client, WIRE_COMMIT, 6, set, 2);
        ck_assert_uint_eq(set[1].status, KVT_WIRE_GONE);
        expect_get(other, set[0], KVT_WIRE_MISS);
        expect_get(other, set[1], KVT_WIRE_MISS);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        close_client(client);
        close_client(other);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_set_is_stale_when_a_member_was_replaced_meanwhile)
{
        struct wire_object set[] = {chunk(1), wire_object(1, MIB)};
        struct wire_object newer = chunk(1);
        struct wire_client *client, *other;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        other = open_client();
        newer.generation = 1;
        newer.flags = WIRE_RESERVE_REPLACE;
        ck_assert_uint_eq(wire_client_put(client, &set[0]), KVT_WIRE_OK);

        reserve_set(client, 7, set, 2);
        ck_assert_uint_eq(set[0].status, KVT_WIRE_ALREADY_HAVE);
        ck_assert_uint_eq(wire_client_put(other, &newer), KVT_WIRE_OK);
        wire_client_end(client, WIRE_COMMIT, 7, &set[1], 1);
        ck_assert_uint_eq(set[1].status, KVT_WIRE_STALE);
        expect_get(other, set[1], KVT_WIRE_MISS);
        expect_get(other, newer, KVT_WIRE_OK);

        /* Nothing is left of it, and the same set passes now. */
        reserve_set(client, 7, set, 2);
        wire_client_end(client, WIRE_COMMIT, 7, &set[1], 1);
        ck_assert_uint_eq(set[1].status, KVT_WIRE_OK);
        expect_get(other, set[1], KVT_WIRE_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        close_client(client);
        close_client(other);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_member_that_lost_the_race_counts_as_committed)
{
        struct wire_object set[] = {chunk(1), wire_object(1, MIB)};
        struct wire_object first = wire_object(1, MIB);
        struct wire_client *client, *other;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        other = open_client();
        reserve_set(client, 8, set, 2);
        ck_assert_uint_eq(wire_client_put(other, &first), KVT_WIRE_OK);
        wire_client_end(client, WIRE_COMMIT, 8, set, 2);
        for (unsigned i = 0; i < 2; i++) {
                ck_assert_uint_eq(set[i].status, KVT_WIRE_OK);
                expect_get(other, set[i], KVT_WIRE_OK);
        }
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        close_client(client);
        close_client(other);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- generations ---- */

START_TEST(readers_keep_the_old_bytes_until_they_release)
{
        struct wire_object old = wire_object(1, 2 * MIB), newer = old;
        struct wire_client *reader, *writer;

        daemon_fixture_init(&fixture, NULL);
        reader = open_client();
        writer = open_client();
        newer.generation = 1;
        newer.flags = WIRE_RESERVE_REPLACE;
        ck_assert_uint_eq(wire_client_put(writer, &old), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(reader, 0, NULL, &old, 1), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_put(writer, &newer), KVT_WIRE_OK);
        expect_get(writer, newer, KVT_WIRE_OK);
        press(writer, 1000, MIB);
        ck_assert(wire_client_holds(reader, &old));
        wire_client_end(reader, WIRE_RELEASE, 0, &old, 1);
        ck_assert_uint_eq(old.status, KVT_WIRE_OK);
        close_client(reader);
        close_client(writer);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(the_first_commit_wins_and_the_later_one_frees_its_bytes)
{
        struct wire_object first = wire_object(1, 2 * MIB), second = first;
        struct wire_client *a, *b;

        daemon_fixture_init(&fixture, NULL);
        a = open_client();
        b = open_client();
        second.generation = 1;
        wire_client_reserve(a, 0, &first, 1);
        wire_client_reserve(b, 0, &second, 1);
        ck_assert_uint_eq(first.status, KVT_WIRE_OK);
        ck_assert_uint_eq(second.status, KVT_WIRE_OK);
        wire_client_write(a, &first);
        wire_client_write(b, &second);
        wire_client_end(b, WIRE_COMMIT, 0, &second, 1);
        wire_client_end(a, WIRE_COMMIT, 0, &first, 1);
        ck_assert_uint_eq(second.status, KVT_WIRE_OK);
        ck_assert_uint_eq(first.status, KVT_WIRE_ALREADY_HAVE);
        expect_get(a, second, KVT_WIRE_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 2 * MIB);
        close_client(a);
        close_client(b);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- partial and waiting acquires ---- */

START_TEST(a_partial_acquire_grants_the_leading_run)
{
        struct wire_object objects[4];
        struct wire_granted granted;
        struct wire_client *client;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        for (unsigned i = 0; i < 4; i++)
                objects[i] = wire_object(i, MIB);
        for (unsigned i = 0; i < 4; i++)
                if (i != 2)
                        ck_assert_uint_eq(wire_client_put(client, &objects[i]), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(client, 0, NULL, objects, 4), KVT_WIRE_MISS);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        ck_assert_uint_eq(wire_client_acquire(client, WIRE_ACQUIRE_PARTIAL, &granted, objects, 4),
                          KVT_WIRE_OK);
        ck_assert_uint_eq(granted.n_granted, 2);
        for (unsigned i = 0; i < 2; i++)
                ck_assert(wire_client_holds(client, &objects[i]));
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 2 * MIB);
        wire_client_end(client, WIRE_RELEASE, 0, objects, 2);
        ck_assert_uint_eq(wire_client_acquire(client, WIRE_ACQUIRE_PARTIAL, NULL, objects + 2, 2),
                          KVT_WIRE_MISS);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_waiting_acquire_ends_at_the_commit)
{
        struct wire_object written = wire_object(1, MIB), wanted = written;
        struct wire_client *writer, *reader;
        uint64_t request;

        daemon_fixture_init(&fixture, NULL);
        writer = open_client();
        reader = open_client();
        wire_client_reserve(writer, 0, &written, 1);
        request = wire_client_send_acquire(reader, WIRE_ACQUIRE_WAIT, FLOW_TIMEOUT_NS, &wanted, 1);
        ck_assert_uint_eq(((const struct wire_granted *)wire_client_receive(reader))->status,
                          KVT_WIRE_PENDING);
        /* It waits without a lease and without space. */
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), MIB);
        wire_client_write(writer, &written);
        wire_client_end(writer, WIRE_COMMIT, 0, &written, 1);
        ck_assert_uint_eq(wire_client_finish(reader, request, NULL, &wanted, 1), KVT_WIRE_OK);
        ck_assert(wire_client_holds(reader, &wanted));
        close_client(writer);
        close_client(reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_waiting_acquire_ends_at_the_abort_of_the_last_reservation)
{
        struct wire_object first = wire_object(1, MIB), second = first, wanted = first;
        struct wire_client *writer, *reader;
        uint64_t request;

        daemon_fixture_init(&fixture, NULL);
        writer = open_client();
        reader = open_client();
        /* What nobody writes is not waited for. */
        request = wire_client_send_acquire(reader, WIRE_ACQUIRE_WAIT, FLOW_TIMEOUT_NS, &wanted, 1);
        ck_assert_uint_eq(wire_client_finish(reader, request, NULL, &wanted, 1), KVT_WIRE_MISS);

        wire_client_reserve(writer, 0, &first, 1);
        wire_client_reserve(writer, 0, &second, 1);
        request = wire_client_send_acquire(reader, WIRE_ACQUIRE_WAIT, FLOW_TIMEOUT_NS, &wanted, 1);
        wire_client_end(writer, WIRE_ABORT, 0, &first, 1);
        ck_assert_uint_eq(((const struct wire_granted *)wire_client_receive(reader))->status,
                          KVT_WIRE_PENDING);
        wire_client_end(writer, WIRE_ABORT, 0, &second, 1);
        ck_assert_uint_eq(wire_client_finish(reader, request, NULL, &wanted, 1), KVT_WIRE_MISS);

        /* A writer that hangs up aborts too. */
        wire_client_reserve(writer, 0, &first, 1);
        request = wire_client_send_acquire(reader, WIRE_ACQUIRE_WAIT, FLOW_TIMEOUT_NS, &wanted, 1);
        ck_assert_uint_eq(((const struct wire_granted *)wire_client_receive(reader))->status,
                          KVT_WIRE_PENDING);
        close_client(writer);
        ck_assert_uint_eq(wire_client_finish(reader, request, NULL, &wanted, 1), KVT_WIRE_MISS);
        close_client(reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_waiting_acquire_ends_at_its_deadline)
{
        struct wire_object written = wire_object(1, MIB), wanted = written;
        struct wire_client *writer, *reader;
        uint64_t request, began_ms, took_ms;

        daemon_fixture_init(&fixture, NULL);
        writer = open_client();
        reader = open_client();
        wire_client_reserve(writer, 0, &written, 1);
        began_ms = daemon_now_ms();
        request = wire_client_send_acquire(reader, WIRE_ACQUIRE_WAIT, 300000000, &wanted, 1);
        ck_assert_uint_eq(wire_client_finish(reader, request, NULL, &wanted, 1), KVT_WIRE_TIMEOUT);
        took_ms = daemon_now_ms() - began_ms;
        ck_assert_uint_ge(took_ms, 290);
        ck_assert_uint_le(took_ms, 5000);
        close_client(writer);
        close_client(reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(int argc, char **argv)
{
        const TTest *const tests[] = {
                bytes_of_every_size_come_back_equal,
                bytes_of_every_size_come_back_equal_from_nvme,
                an_object_of_256_mib_comes_back_equal,
                evict_under_load_never_touches_leased_bytes,
                of_two_sessions_that_want_60_percent_one_is_told_busy,
                two_writers_together_get_no_more_than_the_lease_share,
                a_boundary_above_the_share_is_too_large_and_says_what_fits,
                a_set_is_visible_whole_or_not_at_all,
                a_set_is_stale_when_a_member_was_replaced_meanwhile,
                a_member_that_lost_the_race_counts_as_committed,
                readers_keep_the_old_bytes_until_they_release,
                the_first_commit_wins_and_the_later_one_frees_its_bytes,
                a_partial_acquire_grants_the_leading_run,
                a_waiting_acquire_ends_at_the_commit,
                a_waiting_acquire_ends_at_the_abort_of_the_last_reservation,
                a_waiting_acquire_ends_at_its_deadline,
                NULL,
        };
        const TTest *const long_tests[] = {an_object_of_1_gib_comes_back_equal, NULL};

        return argc > 1 ? flow_run("store_load", long_tests, 300)
                        : flow_run("store_load", tests, 120);
}
