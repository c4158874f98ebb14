// SPDX-License-Identifier: Apache-2.0
/*
 * Requests at their edges: many parts, many items, items that mean the same object, and
 * answers that have to wait. Each is answered once, in order, and leaves nothing held.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"
#include "proto/status.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/wire_client.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)

static struct daemon_fixture fixture;

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

static void init_with_nvme(void)
{
        daemon_fixture_init(&fixture, &(struct daemon_options){.nvme_bytes = 64 * MIB});
}

static void expect_nothing_leased(void)
{
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "leases"), 0);
}

static void expect_statuses(const struct wire_object *objects, unsigned n, uint32_t status)
{
        for (unsigned i = 0; i < n; i++)
                ck_assert_uint_eq(objects[i].status, status);
}

static void close_all(struct wire_client *client)
{
        close_client(client);
        daemon_fixture_deinit(&fixture);
}

/* ---- commits that are answered later ---- */

/* Reserves replacements of @n objects that the NVMe tier has, and writes their bytes. */
static void reserve_replacements(struct wire_client *client, struct wire_object *objects,
                                 unsigned n)
{
        for (unsigned i = 0; i < n; i++) {
                objects[i] = wire_object(i, 4 * KIB);
                ck_assert_uint_eq(wire_client_put(client, &objects[i]), KVT_WIRE_OK);
        }
        daemon_wait_written(&fixture);
        for (unsigned i = 0; i < n; i++) {
                objects[i] = wire_object(i, 4 * KIB);
                objects[i].generation = 1;
                objects[i].flags = WIRE_RESERVE_REPLACE;
        }
        wire_client_reserve(client, 0, objects, n);
        for (unsigned i = 0; i < n; i++) {
                ck_assert_uint_eq(objects[i].status, KVT_WIRE_OK);
                wire_client_write(client, &objects[i]);
        }
}

/* Items @first to @first + 1 of a commit of four. */
static void send_half(struct wire_client *client, struct wire_header header, uint32_t first,
                      const struct wire_object *objects)
{
        struct wire_batch batch = {.header = header, .first = first, .total = 4};
        struct message_builder builder;

        batch.header.flags = first ? 0 : WIRE_MORE;
        message_builder_init(&builder, client->out, &batch, sizeof(batch));
        for (unsigned i = first; i < first + 2; i++) {
                struct wire_commit_item item = {.lease = objects[i].lease};

                ck_assert(!message_append(&builder, &item, sizeof(item), 1));
        }
        ck_assert(wire_client_send(client, client->out, builder.length));
}

START_TEST(replacements_in_parts_are_answered_once_each_and_the_end_comes_last)
{
        const struct wire_header *answer;
        struct wire_object objects[4];
        struct wire_client *client;
        struct wire_header header;
        unsigned n_answers[4] = {0};

        init_with_nvme();
        client = open_client();
        /* Two that wait for what they replace, then two that do not. */
        reserve_replacements(client, objects, 2);
        for (unsigned i = 2; i < 4; i++)
                objects[i] = wire_object(i, 4 * KIB);
        wire_client_reserve(client, 0, &objects[2], 2);
        wire_client_write(client, &objects[2]);
        wire_client_write(client, &objects[3]);
        header = wire_client_header(client, WIRE_COMMIT);
        send_half(client, header, 0, objects);
        send_half(client, header, 2, objects);
        do {
                const struct wire_extent *extents;
                struct wire_result_item item;
                struct message_cursor cursor;
                const uint64_t *pieces;

                answer = wire_client_receive(client);
                ck_assert_ptr_nonnull(answer);
                ck_assert_uint_eq(answer->request, header.request);
                message_cursor_init(&cursor, answer);
                while (!message_next_result(&cursor, &item, &extents, &pieces)) {
                        ck_assert_uint_eq(item.status, KVT_WIRE_OK);
                        ck_assert_uint_lt(item.index, 4);
                        n_answers[item.index]++;
                }
        } while (answer->flags & WIRE_MORE);
        for (unsigned i = 0; i < 4; i++) {
                ck_assert_uint_eq(n_answers[i], 1);
                ck_assert_uint_eq(wire_client_get(client, &objects[i]), KVT_WIRE_OK);
        }
        expect_nothing_leased();
        close_all(client);
}
END_TEST

START_TEST(a_cancel_is_answered_after_the_commit_that_it_names)
{
        struct wire_cancel cancel = {.target = 0};
        const struct wire_header *answer;
        struct wire_object object;
        struct wire_client *client;
        uint64_t commit;

        init_with_nvme();
        client = open_client();
        reserve_replacements(client, &object, 1);
        commit = wire_client_send_leases(client, WIRE_COMMIT, 0, &object, 1);
        cancel.header = wire_client_header(client, WIRE_CANCEL);
        cancel.header.length = sizeof(cancel);
        cancel.target = commit;
        ck_assert(wire_client_send(client, &cancel, sizeof(cancel)));

        ck_assert_uint_eq(wire_client_finish(client, commit, NULL, &object, 1), KVT_WIRE_OK);
        ck_assert_uint_eq(object.status, KVT_WIRE_OK);
        answer = wire_client_receive(client);
        ck_assert_ptr_nonnull(answer);
        ck_assert_uint_eq(answer->request, cancel.header.request);
        ck_assert_uint_eq(wire_client_get(client, &object), KVT_WIRE_OK);
        close_all(client);
}
END_TEST

START_TEST(a_session_that_goes_before_its_commit_is_answered_is_freed)
{
        struct wire_object objects[4];
        struct wire_client *client;

        init_with_nvme();
        client = open_client();
        reserve_replacements(client, objects, 4);
        /* The last part never comes. */
        send_half(client, wire_client_header(client, WIRE_COMMIT), 0, objects);
        close_client(client);
        daemon_wait_number(&fixture, "sessions", 0);
        client = open_client();
        ck_assert_uint_eq(wire_client_get(client, &objects[0]), KVT_WIRE_OK);
        close_all(client);
}
END_TEST

/* ---- sets ---- */

/* Reserves and writes a set of two objects that nobody has; keeps their leases. */
static void reserve_set(struct wire_client *client, uint64_t set, struct wire_object *objects,
                        uint64_t *ret_leases)
{
        for (unsigned i = 0; i < 2; i++)
                objects[i] = wire_object(10 * set + i, 4 * KIB);
        wire_client_reserve(client, set, objects, 2);
        for (unsigned i = 0; i < 2; i++) {
                ck_assert_uint_eq(objects[i].status, KVT_WIRE_OK);
                ret_leases[i] = objects[i].lease;
                wire_client_write(client, &objects[i]);
        }
}

START_TEST(the_abort_of_a_set_is_ok_once_and_gone_when_it_was_committed)
{
        struct wire_object objects[2];
        struct wire_client *client;
        uint64_t leases[2];

        init_with_nvme();
        client = open_client();
        reserve_set(client, 1, objects, leases);
        wire_client_end(client, WIRE_ABORT, 1, objects, 2);
        expect_statuses(objects, 2, KVT_WIRE_OK);
        reserve_set(client, 2, objects, leases);
        wire_client_end(client, WIRE_COMMIT, 2, objects, 2);
        expect_statuses(objects, 2, KVT_WIRE_OK);
        for (unsigned i = 0; i < 2; i++)
                objects[i].lease = leases[i];
        wire_client_end(client, WIRE_ABORT, 2, objects, 2);
        expect_statuses(objects, 2, KVT_WIRE_GONE);
        expect_nothing_leased();
        close_all(client);
}
END_TEST

START_TEST(an_abort_of_members_leaves_the_set_to_the_others)
{
        struct wire_object objects[] = {wire_object(1, 4 * KIB), wire_object(2, 4 * KIB)};
        struct wire_batch batch = {.set = 7, .flags = WIRE_ABORT_MEMBERS, .total = 1};
        struct message_builder builder;
        struct wire_client *client;
        _Alignas(8) uint8_t packet[128];

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        wire_client_reserve(client, 7, objects, 2);
        batch.header = wire_client_header(client, WIRE_ABORT);
        message_builder_init(&builder, packet, &batch, sizeof(batch));
        ck_assert(!message_append(&builder, &objects[1].lease, sizeof(objects[1].lease), 1));
        ck_assert(wire_client_send(client, packet, builder.length));
        wire_client_finish(client, batch.header.request, NULL, &objects[1], 1);
        ck_assert_uint_eq(objects[1].status, KVT_WIRE_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "leases"), 1);
        wire_client_write(client, &objects[0]);
        wire_client_end(client, WIRE_COMMIT, 7, objects, 1);
        ck_assert_uint_eq(objects[0].status, KVT_WIRE_OK);
        expect_nothing_leased();
        ck_assert_uint_eq(wire_client_get(client, &objects[0]), KVT_WIRE_OK);
        close_all(client);
}
END_TEST

START_TEST(a_commit_that_names_what_has_ended_ends_the_set)
{
        struct wire_object objects[] = {wire_object(1, 4 * KIB), wire_object(2, 4 * KIB)};
        struct wire_object ended;
        struct wire_client *client;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        wire_client_reserve(client, 7, &objects[0], 1);
        ended = objects[0];
        wire_client_end(client, WIRE_ABORT, 7, &ended, 1);
        ck_assert_uint_eq(ended.status, KVT_WIRE_OK);
        wire_client_reserve(client, 7, &objects[1], 1);
        wire_client_write(client, &objects[1]);
        wire_client_end(client, WIRE_COMMIT, 7, objects, 2);
        expect_statuses(objects, 2, KVT_WIRE_GONE);
        expect_nothing_leased();
        close_all(client);
}
END_TEST

/* ---- acquire and adopt ---- */

START_TEST(an_object_named_many_times_is_promoted_once)
{
        enum { N = 400 };
        struct wire_object *objects = calloc(N, sizeof(*objects));
        struct wire_client *client;

        init_with_nvme();
        client = open_client();
        objects[0] = wire_object(1, MIB);
        ck_assert_uint_eq(wire_client_put(client, &objects[0]), KVT_WIRE_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        for (unsigned i = 0; i < N; i++)
                objects[i] = wire_object(1, 0);
        /* Four hundred times a MiB is more than there is memory. */
        ck_assert_uint_eq(wire_client_acquire(client, 0, NULL, objects, N), KVT_WIRE_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), MIB);
        for (unsigned i = 0; i < N; i++) {
                ck_assert_uint_eq(objects[i].status, KVT_WIRE_OK);
                ck_assert(wire_client_holds(client, &objects[i]));
        }
        wire_client_end(client, WIRE_RELEASE, 0, objects, N);
        expect_nothing_leased();
        close_client(client);
        free(objects);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(an_adopt_may_name_objects_in_any_order)
{
        enum { N = 300 };
        struct wire_object *objects = calloc(N, sizeof(*objects));
        struct wire_object *adopted = calloc(N, sizeof(*adopted));
        struct wire_client *client, *other;
        struct wire_granted granted;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        other = open_client();
        for (unsigned i = 0; i < N; i++) {
                objects[i] = wire_object(i, 4 * KIB);
                ck_assert_uint_eq(wire_client_put(client, &objects[i]), KVT_WIRE_OK);
                adopted[N - 1 - i] = wire_object(i, 0);
        }
        ck_assert_uint_eq(wire_client_acquire(client, 0, &granted, objects, N), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_adopt(other, granted.token, adopted, N), KVT_WIRE_OK);
        for (unsigned i = 0; i < N; i++)
                ck_assert(wire_client_holds(other, &adopted[i]));

        /* What only a quarantined session still holds is adopted by nobody. */
        wire_client_end(other, WIRE_RELEASE, 0, adopted, N);
        wire_client_hang_up(client);
        daemon_wait_log(&fixture, "session_closed", "leases=300");
        ck_assert_uint_eq(wire_client_adopt(other, granted.token, adopted, N), KVT_WIRE_GONE);
        ck_assert_uint_gt(daemon_number(&fixture, "host.leased_bytes"), 0);
        close_client(client);
        close_client(other);
        free(objects);
        free(adopted);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(no_session_has_more_than_256_acquires_waiting)
{
        struct wire_object object = wire_object(1, 4 * KIB);
        const struct wire_header *answer;
        struct wire_client *client;
        uint64_t first = 0;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        wire_client_reserve(client, 0, &object, 1);
        for (unsigned i = 0; i <= 256; i++) {
                uint64_t request =
                        wire_client_send_acquire(client, WIRE_ACQUIRE_WAIT, UINT64_MAX, &object, 1);

                first = first ? first : request;
                answer = wire_client_receive(client);
                ck_assert_uint_eq(answer->request, request);
                ck_assert_uint_eq(((const struct wire_granted *)answer)->status,
                                  i < 256 ? KVT_WIRE_PENDING : KVT_WIRE_REFUSED);
        }
        answer = wire_client_receive(client); /* the end of the refusal */
        ck_assert_uint_eq(answer->kind, WIRE_RESULT);
        /* They are served all the same. */
        wire_client_write(client, &object);
        wire_client_send_leases(client, WIRE_COMMIT, 0, &object, 1);
        do {
                answer = wire_client_receive(client);
                ck_assert_ptr_nonnull(answer);
        } while (answer->kind != WIRE_GRANTED);
        ck_assert_uint_eq(answer->request, first);
        ck_assert_uint_eq(((const struct wire_granted *)answer)->status, KVT_WIRE_OK);
        close_all(client);
}
END_TEST

/* ---- removal ---- */

START_TEST(a_clear_of_many_slices_drops_all_but_what_is_leased)
{
        enum { N = 3000 };
        struct wire_object *objects = calloc(N, sizeof(*objects));
        struct wire_client *client;

        init_with_nvme();
        client = open_client();
        for (unsigned i = 0; i < N; i++) {
                objects[i] = wire_object(i, 4 * KIB);
                ck_assert_uint_eq(wire_client_put(client, &objects[i]), KVT_WIRE_OK);
        }
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(wire_client_acquire(client, 0, NULL, &objects[7], 1), KVT_WIRE_OK);
        daemon_evict(&fixture, NULL);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 1);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 1);
        daemon_wait_number(&fixture, "nvme.objects", 1);
        ck_assert(wire_client_holds(client, &objects[7]));
        wire_client_end(client, WIRE_RELEASE, 0, &objects[7], 1);
        ck_assert_uint_eq(wire_client_get(client, &objects[8]), KVT_WIRE_MISS);
        daemon_evict(&fixture, NULL);
        daemon_wait_number(&fixture, "nvme.used_bytes", 0);
        close_client(client);
        free(objects);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                replacements_in_parts_are_answered_once_each_and_the_end_comes_last,
                a_cancel_is_answered_after_the_commit_that_it_names,
                a_session_that_goes_before_its_commit_is_answered_is_freed,
                the_abort_of_a_set_is_ok_once_and_gone_when_it_was_committed,
                an_abort_of_members_leaves_the_set_to_the_others,
                a_commit_that_names_what_has_ended_ends_the_set,
                an_object_named_many_times_is_promoted_once,
                an_adopt_may_name_objects_in_any_order,
                no_session_has_more_than_256_acquires_waiting,
                a_clear_of_many_slices_drops_all_but_what_is_leased,
                NULL,
        };

        return flow_run("requests", tests, 120);
}
