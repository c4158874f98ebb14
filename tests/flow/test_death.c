// SPDX-License-Identifier: Apache-2.0
/* Sockets that close, processes that die, and what they held: nothing is lost, nothing moves. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/status.h"
#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/wire_client.h"

#define MIB (UINT64_C(1) << 20)

static struct daemon_fixture fixture;

static struct wire_client *open_as(const uint8_t engine_id[16])
{
        struct wire_client *client = calloc(1, sizeof(*client));

        ck_assert_ptr_nonnull(client);
        if (engine_id)
                memcpy(client->engine_id, engine_id, 16);
        wire_client_open(client, fixture.socket);
        return client;
}

static struct wire_client *open_client(void)
{
        return open_as(NULL);
}

static void close_client(struct wire_client *client)
{
        wire_client_close(client);
        free(client);
}

/* Stores three times what the host tier holds, so that every byte that may be reused is. */
static void press(struct wire_client *client, uint64_t first)
{
        uint64_t total = fixture.options.piece_bytes * fixture.options.n_pieces * 3;

        for (uint64_t i = 0; i < total / MIB; i++) {
                struct wire_object object = wire_object(first + i, MIB);

                ck_assert_uint_eq(wire_client_put(client, &object), KVT_WIRE_OK);
        }
}

/* Can a session have 75 % of the host tier? Then nothing of it is lost. */
static void expect_full_capacity(void)
{
        struct wire_client *client = open_client();
        struct wire_object objects[12];
        uint64_t part = fixture.options.piece_bytes * fixture.options.n_pieces / 16;

        for (unsigned i = 0; i < 12; i++)
                objects[i] = wire_object(90000 + i, part);
        wire_client_reserve(client, 0, objects, 12);
        for (unsigned i = 0; i < 12; i++)
                ck_assert_uint_eq(objects[i].status, KVT_WIRE_OK);
        wire_client_end(client, WIRE_ABORT, 0, objects, 12);
        close_client(client);
}

/* ---- dying writers ---- */

static void reserve_half_and_die(struct child *self, void *argument)
{
        struct wire_client *client = open_client();
        struct wire_object objects[8];
        uint64_t first = *(const uint64_t *)argument;

        for (unsigned i = 0; i < 8; i++)
                objects[i] = wire_object(first + i, 4 * MIB);
        wire_client_reserve(client, 0, objects, 8);
        for (unsigned i = 0; i < 8; i++)
                if (objects[i].status)
                        child_say(self, objects[i].status);
        child_say(self, 0);
        child_hear(self); /* is killed here */
}

START_TEST(writers_that_die_before_their_commit_lose_no_capacity)
{
        struct child child;

        daemon_fixture_init(&fixture, NULL);
        for (uint64_t i = 0; i < 30; i++) {
                uint64_t first = i * 100;

                child_start(&child, reserve_half_and_die, &first);
                /* The one before it died at this very moment: its half may come back late. */
                if (child_hear(&child) != 0) {
                        child_kill(&child);
                        daemon_wait_number(&fixture, "host.leased_bytes", 0);
                        continue;
                }
                ck_assert_uint_ge(daemon_number(&fixture, "host.leased_bytes"), 32 * MIB);
                child_kill(&child);
        }
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 0);
        expect_full_capacity();
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- a closed socket of a living process ---- */

static void hang_up_but_live(struct child *self, void *argument)
{
        struct wire_client *client = open_client();
        struct wire_object written = wire_object(1, 8 * MIB), read = wire_object(2, 3 * MIB);

        ck_assert_uint_eq(wire_client_put(client, &read), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(client, 0, NULL, &read, 1), KVT_WIRE_OK);
        wire_client_reserve(client, 0, &written, 1);
        wire_client_write(client, &written);
        wire_client_hang_up(client);
        child_say(self, 1);
        child_hear(self);
        child_say(self, wire_client_holds(client, &written) && wire_client_holds(client, &read));
        child_hear(self);
}

START_TEST(a_closed_socket_leaves_extents_untouched_until_the_process_exits)
{
        struct wire_client *other;
        struct child child;

        daemon_fixture_init(&fixture, NULL);
        child_start(&child, hang_up_but_live, NULL);
        ck_assert_uint_eq(child_hear(&child), 1);
        daemon_wait_number(&fixture, "quarantined", 1);
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 11 * MIB);

        other = open_client();
        press(other, 1000);
        child_say(&child, 1);
        ck_assert_uint_eq(child_hear(&child), 1);
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 11 * MIB);

        child_say(&child, 1);
        child_join(&child);
        daemon_wait_number(&fixture, "quarantined", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        close_client(other);
        expect_full_capacity();
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- adopted leases ---- */

static const uint8_t engine[16] = "one engine";

static void acquire_for_a_worker(struct child *self, void *argument)
{
        struct wire_object *objects = argument;
        struct wire_client *client = open_as(engine);
        struct wire_granted granted;
        uint64_t words[2];

        ck_assert_uint_eq(wire_client_acquire(client, 0, &granted, objects, 4), KVT_WIRE_OK);
        memcpy(words, granted.token, sizeof(words));
        child_say(self, words[0]);
        child_say(self, words[1]);
        child_hear(self); /* is killed here */
}

START_TEST(a_worker_keeps_its_adopted_lease_when_the_scheduler_is_killed)
{
        struct wire_object objects[4];
        struct wire_client *worker, *other, *stranger;
        struct child scheduler;
        uint64_t token[2];

        daemon_fixture_init(&fixture, NULL);
        other = open_client();
        for (unsigned i = 0; i < 4; i++) {
                objects[i] = wire_object(i, 3 * MIB);
                ck_assert_uint_eq(wire_client_put(other, &objects[i]), KVT_WIRE_OK);
        }
        child_start(&scheduler, acquire_for_a_worker, objects);
        token[0] = child_hear(&scheduler);
        token[1] = child_hear(&scheduler);

        /* Another engine may not adopt it. */
        stranger = open_as((const uint8_t *)"another engine ");
        ck_assert_uint_eq(wire_client_adopt(stranger, (uint8_t *)token, objects, 4), KVT_WIRE_GONE);
        worker = open_as(engine);
        ck_assert_uint_eq(wire_client_adopt(worker, (uint8_t *)token, objects, 4), KVT_WIRE_OK);
        child_kill(&scheduler);
        press(other, 1000);
        for (unsigned i = 0; i < 4; i++)
                ck_assert(wire_client_holds(worker, &objects[i]));
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 12 * MIB);

        /* The token lives as long as one lease of its acquire, and no longer. */
        wire_client_end(worker, WIRE_RELEASE, 0, objects, 3);
        ck_assert_uint_eq(wire_client_adopt(worker, (uint8_t *)token, &objects[3], 1), KVT_WIRE_OK);
        close_client(worker);
        close_client(stranger);
        close_client(other);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_token_is_gone_with_the_last_lease)
{
        struct wire_object object = wire_object(1, MIB);
        struct wire_granted granted;
        struct wire_client *a, *b;

        daemon_fixture_init(&fixture, NULL);
        a = open_as(engine);
        b = open_as(engine);
        ck_assert_uint_eq(wire_client_put(a, &object), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(a, 0, &granted, &object, 1), KVT_WIRE_OK);
        wire_client_end(a, WIRE_RELEASE, 0, &object, 1);
        /* The object is still stored: adopt must not look it up afresh. */
        ck_assert_uint_eq(wire_client_adopt(b, granted.token, &object, 1), KVT_WIRE_GONE);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        close_client(a);
        close_client(b);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- a forked child that keeps the socket ---- */

static void fork_a_socket_keeper(struct child *self, void *argument)
{
        struct wire_client *client = open_client();
        struct wire_object object = wire_object(1, 8 * MIB);
        pid_t keeper;

        wire_client_reserve(client, 0, &object, 1);
        ck_assert_uint_eq(object.status, KVT_WIRE_OK);
        keeper = fork();
        if (!keeper) {
                for (;;)
                        pause();
        }
        child_say(self, (uint64_t)keeper);
        child_hear(self); /* is killed here */
}

START_TEST(a_forked_child_with_the_socket_keeps_no_lease_of_its_dead_parent)
{
        struct child parent;
        pid_t keeper;

        daemon_fixture_init(&fixture, NULL);
        /* The keeper becomes ours when its parent dies, so that we can end it. */
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        child_start(&parent, fork_a_socket_keeper, NULL);
        keeper = (pid_t)child_hear(&parent);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 8 * MIB);

        child_kill(&parent);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 0);
        ck_assert_int_eq(kill(keeper, 0), 0);
        daemon_wait_log(&fixture, "session_closed", "reason=death");

        ck_assert_int_eq(kill(keeper, SIGKILL), 0);
        ck_assert_int_eq(waitpid(keeper, NULL, 0), keeper);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- the ids of an earlier run ---- */

START_TEST(ids_of_the_daemons_former_run_are_gone)
{
        struct wire_object written = wire_object(1, MIB), read = wire_object(2, MIB);
        struct wire_object again = wire_object(3, MIB);
        struct wire_welcome current;
        struct wire_granted granted;
        struct wire_client *old, *client;

        daemon_fixture_init(&fixture, NULL);
        old = open_as(engine);
        ck_assert_uint_eq(wire_client_put(old, &read), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(old, 0, &granted, &read, 1), KVT_WIRE_OK);
        wire_client_reserve(old, 0, &written, 1);
        wire_client_write(old, &written);
        daemon_kill(&fixture);
        daemon_start(&fixture);

        client = open_as(engine);
        /* The same lease numbers are given out again, to somebody else's object. */
        wire_client_reserve(client, 0, &again, 1);
        ck_assert_uint_eq(again.status, KVT_WIRE_OK);

        current = client->welcome;
        client->welcome = old->welcome;
        wire_client_end(client, WIRE_COMMIT, 0, &written, 1);
        ck_assert_uint_eq(written.status, KVT_WIRE_GONE);
        wire_client_end(client, WIRE_RELEASE, 0, &read, 1);
        ck_assert_uint_eq(read.status, KVT_WIRE_GONE);
        ck_assert_uint_eq(wire_client_adopt(client, granted.token, &read, 1), KVT_WIRE_GONE);

        /* The same session id under the old boot id, and the other way round. */
        memcpy(client->welcome.boot_id, current.boot_id, sizeof(current.boot_id));
        client->welcome.session = current.session + 1;
        wire_client_end(client, WIRE_COMMIT, 0, &again, 1);
        ck_assert_uint_eq(again.status, KVT_WIRE_GONE);

        client->welcome = current;
        ck_assert_uint_eq(wire_client_adopt(client, granted.token, &read, 1), KVT_WIRE_GONE);
        wire_client_write(client, &again);
        wire_client_end(client, WIRE_COMMIT, 0, &again, 1);
        ck_assert_uint_eq(again.status, KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_get(client, &again), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_get(client, &written), KVT_WIRE_MISS);
        close_client(old);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_lease_of_another_session_is_gone)
{
        struct wire_object written = wire_object(1, MIB), read = wire_object(2, MIB);
        struct wire_client *owner, *thief;

        daemon_fixture_init(&fixture, NULL);
        owner = open_as(engine);
        thief = open_as(engine);
        ck_assert_uint_eq(wire_client_put(owner, &read), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(owner, 0, NULL, &read, 1), KVT_WIRE_OK);
        wire_client_reserve(owner, 0, &written, 1);
        wire_client_end(thief, WIRE_RELEASE, 0, &read, 1);
        ck_assert_uint_eq(read.status, KVT_WIRE_GONE);
        wire_client_end(thief, WIRE_COMMIT, 0, &written, 1);
        ck_assert_uint_eq(written.status, KVT_WIRE_GONE);
        wire_client_end(thief, WIRE_ABORT, 0, &written, 1);
        ck_assert_uint_eq(written.status, KVT_WIRE_GONE);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 2 * MIB);
        close_client(owner);
        close_client(thief);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- statements and kicks ---- */

static uint32_t state_that_copies_ended(struct wire_client *client, const uint8_t secret[16])
{
        struct wire_copies_ended message = {.header =
                                                    wire_client_header(client, WIRE_COPIES_ENDED)};
        struct wire_object answer = {0};

        message.header.length = sizeof(message);
        memcpy(message.secret, secret, sizeof(message.secret));
        ck_assert(wire_client_send(client, &message, sizeof(message)));
        wire_client_finish(client, message.header.request, NULL, &answer, 1);
        return answer.status;
}

START_TEST(copies_ended_frees_the_leases_of_the_one_session_it_names)
{
        struct wire_object objects[2] = {wire_object(1, 4 * MIB), wire_object(2, 6 * MIB)};
        struct wire_client *earlier[2], *client;
        uint8_t wrong[16] = {1};

        daemon_fixture_init(&fixture, NULL);
        for (unsigned i = 0; i < 2; i++) {
                earlier[i] = open_client();
                wire_client_reserve(earlier[i], 0, &objects[i], 1);
                wire_client_write(earlier[i], &objects[i]);
                wire_client_hang_up(earlier[i]);
        }
        daemon_wait_number(&fixture, "quarantined", 2);
        client = open_client();
        ck_assert_uint_eq(state_that_copies_ended(client, wrong), KVT_WIRE_GONE);
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 10 * MIB);
        ck_assert_uint_eq(state_that_copies_ended(client, earlier[0]->welcome.secret), KVT_WIRE_OK);
        daemon_wait_number(&fixture, "quarantined", 1);
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 6 * MIB);
        press(client, 1000);
        ck_assert(!wire_client_holds(earlier[0], &objects[0]));
        ck_assert(wire_client_holds(earlier[1], &objects[1]));

        /* Nobody ends his own session with it, and nothing is ended twice. */
        ck_assert_uint_eq(state_that_copies_ended(client, client->welcome.secret), KVT_WIRE_GONE);
        ck_assert_uint_eq(state_that_copies_ended(client, earlier[0]->welcome.secret),
                          KVT_WIRE_GONE);
        for (unsigned i = 0; i < 2; i++)
                close_client(earlier[i]);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}
END_TEST

static void hold_until_kicked(struct child *self, void *argument)
{
        struct wire_client *client = open_client();
        struct wire_object object = wire_object(1, 8 * MIB);

        wire_client_reserve(client, 0, &object, 1);
        wire_client_write(client, &object);
        child_say(self, client->welcome.session);
        wire_client_wait_hang_up(client);
        child_say(self, 1);
        child_hear(self);
        child_say(self, wire_client_holds(client, &object));
        child_hear(self);
}

START_TEST(a_kicked_sessions_leases_go_into_quarantine)
{
        struct wire_client *other;
        struct child child;
        char command[96];
        json_t *answer;

        daemon_fixture_init(&fixture, NULL);
        child_start(&child, hold_until_kicked, NULL);
        snprintf(command, sizeof(command), "{\"command\":\"kick\",\"session\":%" PRIu64 "}",
                 child_hear(&child));
        answer = daemon_ask(&fixture, command);
        ck_assert(json_is_true(json_object_get(answer, "ok")));
        json_decref(answer);
        ck_assert_uint_eq(child_hear(&child), 1);
        daemon_wait_log(&fixture, "session_closed", "reason=kicked");
        ck_assert_uint_eq(daemon_number(&fixture, "host.quarantined_bytes"), 8 * MIB);

        other = open_client();
        press(other, 1000);
        child_say(&child, 1);
        ck_assert_uint_eq(child_hear(&child), 1);
        child_say(&child, 1);
        child_join(&child);
        daemon_wait_number(&fixture, "host.leased_bytes", 0);

        answer = daemon_ask(&fixture, command);
        ck_assert(json_is_false(json_object_get(answer, "ok")));
        json_decref(answer);
        close_client(other);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                writers_that_die_before_their_commit_lose_no_capacity,
                a_closed_socket_leaves_extents_untouched_until_the_process_exits,
                a_worker_keeps_its_adopted_lease_when_the_scheduler_is_killed,
                a_token_is_gone_with_the_last_lease,
                a_forked_child_with_the_socket_keeps_no_lease_of_its_dead_parent,
                ids_of_the_daemons_former_run_are_gone,
                a_lease_of_another_session_is_gone,
                copies_ended_frees_the_leases_of_the_one_session_it_names,
                a_kicked_sessions_leases_go_into_quarantine,
                NULL,
        };

        return flow_run("death", tests, 120);
}
