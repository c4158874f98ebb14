// SPDX-License-Identifier: Apache-2.0
/*
 * Calls over page maps that end otherwise than they began: cancels, deadlines, daemons and
 * processes that die, bytes that are damaged. Whatever comes, after a call's completion
 * nothing touches the engine's memory, and nothing stays leased.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/paged_engine.h"

#define MIB    UINT64_C(0x100000)
#define UNIT   UINT64_C(4096)
#define MANY   40u /* objects of a call whose copy can be caught in the middle: some 15 MiB */
#define ROUNDS 24u

static struct daemon_fixture fixture;

/* States first: they take longest. */
static struct kvt_object objects[MANY];
static uint32_t slots[MANY][SLOTS_MAX];

static void name_many(uint64_t first_number)
{
        for (uint32_t i = 0; i < MANY; i++)
                objects[i] = i < N_STATES ? paged_object(first_number + i, STATE, slots[i], i, 1)
                                          : paged_object(first_number + i, FULL, slots[i],
                                                         (i - N_STATES) * SLOTS_MAX, 1);
}

/* Somewhere within a copy that takes some milliseconds. */
static void wait_a_moment(unsigned round)
{
        struct timespec moment = {.tv_nsec = (long)(round % 12) * 200000};

        nanosleep(&moment, NULL);
}

/* From here on the memory must stay as it is. */
static void take_memory_back(struct paged_engine *engine)
{
        memset(engine->memory, 0x5a, engine->memory_bytes);
}

static void expect_untouched(const struct paged_engine *engine)
{
        /* All bytes are equal when each equals the next. */
        ck_assert_uint_eq(engine->memory[0], 0x5a);
        ck_assert(!memcmp(engine->memory, engine->memory + 1, engine->memory_bytes - 1));
}

typedef enum kvt_status (*move_fn)(struct paged_engine *engine, const struct kvt_call *call,
                                   uint64_t *ret_call);

static enum kvt_status store_many(struct paged_engine *engine, const struct kvt_call *call,
                                  uint64_t *ret_call)
{
        return kvt_store_pages(engine->session, call, engine->map, objects, MANY, ret_call);
}

static enum kvt_status load_many(struct paged_engine *engine, const struct kvt_call *call,
                                 uint64_t *ret_call)
{
        return kvt_load_pages(engine->session, call, engine->map, NULL, objects, MANY, ret_call);
}

static void expect_all(uint32_t status)
{
        for (unsigned i = 0; i < MANY; i++) {
                ck_assert_uint_eq(objects[i].status, status);
                ck_assert_uint_eq(objects[i].lease, 0);
        }
}

static void wait_for_no_leases(void)
{
        daemon_wait_number(&fixture, "host.leased_bytes", 0);
        daemon_wait_number(&fixture, "host.quarantined_bytes", 0);
}

static struct paged_engine begin(uint64_t nvme_bytes)
{
        struct daemon_options options = {.nvme_bytes = nvme_bytes, .n_pieces = 4};
        struct paged_engine engine;

        daemon_fixture_init(&fixture, &options);
        engine = paged_open(fixture.socket);
        return engine;
}

static void end(struct paged_engine *engine)
{
        paged_close(engine);
        wait_for_no_leases();
        daemon_fixture_deinit(&fixture);
}

/* ---- cancel ---- */

/* Both completions, in their order. Returns the call's. */
static struct kvt_completion cancel(struct paged_engine *engine, uint64_t call)
{
        struct kvt_completion completions[2];
        uint64_t cancel_id;
        size_t n = 0;

        ck_assert_int_eq(kvt_cancel(engine->session, NULL, call, &cancel_id), KVT_OK);
        while (n < 2) {
                size_t more = kvt_wait(engine->session, completions + n, 2 - n, FLOW_TIMEOUT_NS);

                ck_assert_uint_ne(more, 0);
                n += more;
        }
        ck_assert_uint_eq(completions[0].call, call);
        ck_assert_uint_eq(completions[1].call, cancel_id);
        ck_assert_int_eq(completions[1].status, KVT_OK);
        return completions[0];
}

static void cancel_many_times(move_fn move, bool is_load)
{
        struct paged_engine engine = begin(0);
        unsigned n_cancelled = 0;

        name_many(1000);
        paged_fill(&engine, objects, MANY, 0);
        if (is_load)
                ck_assert_int_eq(paged_store(&engine, 0, objects, MANY), KVT_OK);
        for (unsigned round = 0; round < ROUNDS; round++) {
                struct kvt_completion completion;
                uint64_t call;

                name_many(1000 + (is_load ? 0 : (round + 1) * MANY));
                ck_assert_int_eq(move(&engine, NULL, &call), KVT_OK);
                wait_a_moment(round);
                completion = cancel(&engine, call);
                take_memory_back(&engine);
                ck_assert(completion.status == KVT_OK || completion.status == KVT_CANCELLED);
                n_cancelled += completion.status == KVT_CANCELLED;
                expect_all(completion.status);
                expect_untouched(&engine);
                wait_for_no_leases();
        }
        ck_assert_uint_gt(n_cancelled, 0);
        expect_untouched(&engine);
        end(&engine);
}

START_TEST(after_a_cancelled_load_nothing_touches_the_pages)
{
        cancel_many_times(load_many, true);
}
END_TEST

START_TEST(after_a_cancelled_store_nothing_stays_leased)
{
        cancel_many_times(store_many, false);
}
END_TEST

START_TEST(a_deadline_ends_a_call_like_a_cancel)
{
        struct paged_engine engine = begin(0);
        struct kvt_call call = paged_options(0, 0);
        unsigned n_timeouts = 0;

        name_many(1000);
        paged_fill(&engine, objects, MANY, 0);
        ck_assert_int_eq(paged_store(&engine, 0, objects, MANY), KVT_OK);
        for (unsigned round = 0; round < ROUNDS; round++) {
                struct kvt_completion completion;
                uint64_t id;

                call.timeout_ns = 1 + round % 12 * 200000;
                ck_assert_int_eq(load_many(&engine, &call, &id), KVT_OK);
                completion = paged_wait(&engine, id);
                take_memory_back(&engine);
                ck_assert(completion.status == KVT_OK || completion.status == KVT_TIMEOUT);
                n_timeouts += completion.status == KVT_TIMEOUT;
                expect_all(completion.status);
                expect_untouched(&engine);
                wait_for_no_leases();
        }
        ck_assert_uint_gt(n_timeouts, 0);
        end(&engine);
}
END_TEST

START_TEST(closing_the_session_stops_the_copying)
{
        struct paged_engine engine = begin(0);

        name_many(1000);
        paged_fill(&engine, objects, MANY, 0);
        ck_assert_int_eq(paged_store(&engine, 0, objects, MANY), KVT_OK);
        for (unsigned round = 0; round < ROUNDS / 4; round++) {
                struct paged_engine other = paged_open(fixture.socket);
                uint64_t call;

                ck_assert_int_eq(load_many(&other, NULL, &call), KVT_OK);
                wait_a_moment(round * 2);
                kvt_close(other.session);
                take_memory_back(&other);
                expect_untouched(&other);
                other.session = NULL;
                paged_close(&other);
                wait_for_no_leases();
        }
        end(&engine);
}
END_TEST

/* ---- death ---- */

/* What a load reports as loaded is there, whenever the daemon died. */
static void expect_loaded_or_unavailable(const struct paged_engine *engine)
{
        for (unsigned i = 0; i < MANY; i++) {
                ck_assert(objects[i].status == KVT_OK || objects[i].status == KVT_UNAVAILABLE);
                if (objects[i].status == KVT_OK)
                        ck_assert(paged_holds(engine, &objects[i], 0));
        }
}

static void kill_many_times(move_fn move, bool is_load)
{
        struct paged_engine engine = begin(0);

        for (unsigned round = 0; round < ROUNDS / 4; round++) {
                struct kvt_call call = paged_options(0, round % 2);
                struct kvt_completion completion;
                uint64_t id;

                name_many(1000 + round * MANY);
                paged_fill(&engine, objects, MANY, 0);
                if (is_load)
                        ck_assert_int_eq(paged_store(&engine, 0, objects, MANY), KVT_OK);
                ck_assert_int_eq(move(&engine, &call, &id), KVT_OK);
                wait_a_moment(round * 2);
                daemon_kill(&fixture);
                completion = paged_wait(&engine, id);
                ck_assert(completion.status == KVT_OK || completion.status == KVT_UNAVAILABLE);
                if (is_load)
                        expect_loaded_or_unavailable(&engine);
                take_memory_back(&engine);
                daemon_start(&fixture);
                flow_wait_attached(engine.session);
                expect_untouched(&engine);
                wait_for_no_leases();
        }
        end(&engine);
}

START_TEST(a_daemon_killed_while_loads_copy_spoils_no_page)
{
        kill_many_times(load_many, true);
}
END_TEST

START_TEST(a_daemon_killed_while_stores_copy_leaves_the_session_fit)
{
        kill_many_times(store_many, false);
}
END_TEST

START_TEST(while_the_daemon_is_away_a_call_is_refused_at_once)
{
        struct paged_engine engine = begin(0);
        struct kvt_session_info info = {.size = sizeof(info), .attached = 1};
        uint64_t call;

        daemon_kill(&fixture);
        while (info.attached) {
                ck_assert_int_eq(kvt_session_info(engine.session, &info), KVT_OK);
                daemon_pause();
        }
        name_many(1000);
        ck_assert_int_eq(store_many(&engine, NULL, &call), KVT_UNAVAILABLE);
        ck_assert_int_eq(load_many(&engine, NULL, &call), KVT_UNAVAILABLE);
        daemon_start(&fixture);
        flow_wait_attached(engine.session);
        paged_fill(&engine, objects, MANY, 0);
        ck_assert_int_eq(paged_store(&engine, 0, objects, MANY), KVT_OK);
        end(&engine);
}
END_TEST

/* ---- other processes ---- */

static void adopt_twice(struct child *self, void *argument)
{
        struct kvt_object loaded[N_GROUPS];
        uint32_t places[N_GROUPS][SLOTS_MAX];
        struct paged_engine engine;
        uint64_t token[2];

        token[0] = child_hear(self);
        token[1] = child_hear(self);
        engine = paged_open(fixture.socket);
        paged_boundary(1, loaded, places, 601, -3);
        ck_assert_int_eq(paged_load(&engine, 0, (const uint8_t *)token, loaded, N_GROUPS).status,
                         KVT_OK);
        paged_expect(&engine, loaded, N_GROUPS, 0);
        child_say(self, 1);
        child_hear(self);

        /* The scheduler has released: what it had acquired may be another's by now. */
        ck_assert_int_eq(paged_load(&engine, 0, (const uint8_t *)token, loaded, N_GROUPS).status,
                         KVT_GONE);
        child_say(self, 1);
        child_hear(self);
        paged_close(&engine);
}

START_TEST(a_worker_in_another_process_loads_what_the_scheduler_acquired)
{
        struct kvt_object stored[N_GROUPS];
        uint32_t places[N_GROUPS][SLOTS_MAX];
        struct kvt_call call = paged_options(0, 0);
        struct kvt_completion completion;
        struct paged_engine engine;
        struct child worker;
        uint64_t token[2], id;

        daemon_fixture_init(&fixture, NULL);
        child_start(&worker, adopt_twice, NULL);
        engine = paged_open(fixture.socket);
        paged_boundary(1, stored, places, 0, 1);
        paged_fill(&engine, stored, N_GROUPS, 0);
        ck_assert_int_eq(paged_store(&engine, 1, stored, N_GROUPS), KVT_OK);
        ck_assert_int_eq(kvt_acquire(engine.session, &call, stored, N_GROUPS, &id), KVT_OK);
        completion = paged_wait(&engine, id);
        ck_assert_int_eq(completion.status, KVT_OK);
        memcpy(token, completion.token, sizeof(token));
        child_say(&worker, token[0]);
        child_say(&worker, token[1]);
        ck_assert_uint_eq(child_hear(&worker), 1);
        ck_assert_int_eq(kvt_release(engine.session, &call, stored, N_GROUPS, &id), KVT_OK);
        ck_assert_int_eq(paged_wait(&engine, id).status, KVT_OK);
        child_say(&worker, 1);
        ck_assert_uint_eq(child_hear(&worker), 1);
        child_say(&worker, 1);
        child_join(&worker);
        end(&engine);
}
END_TEST

START_TEST(in_a_forked_child_the_copying_is_the_parents_alone)
{
        struct paged_engine engine = begin(0);
        struct kvt_call call = paged_options(0, 0);
        uint64_t id;
        int status;
        pid_t pid;

        name_many(1000);
        paged_fill(&engine, objects, MANY, 0);
        ck_assert_int_eq(paged_store(&engine, 0, objects, MANY), KVT_OK);
        memset(engine.memory, 0, engine.memory_bytes);
        ck_assert_int_eq(load_many(&engine, &call, &id), KVT_OK);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid) {
                bool is_right = load_many(&engine, &call, &id) == KVT_FORKED;

                paged_close(&engine);
                _exit(is_right ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status) && !WEXITSTATUS(status));
        ck_assert_int_eq(paged_wait(&engine, id).status, KVT_OK);
        paged_expect(&engine, objects, MANY, 0);
        end(&engine);
}
END_TEST

/* ---- what engines rely on ---- */

START_TEST(completions_come_through_the_eventfd_once_each)
{
        struct paged_engine engine = begin(0);
        struct pollfd ready = {.fd = kvt_fd(engine.session), .events = POLLIN};
        struct kvt_call call = {.size = sizeof(call), .user = &call};
        struct kvt_completion completions[4];
        uint64_t id;

        name_many(1000);
        paged_fill(&engine, objects, MANY, 0);
        ck_assert_int_eq(store_many(&engine, &call, &id), KVT_OK);
        ck_assert_int_eq(poll(&ready, 1, (int)DAEMON_PATIENCE_MS), 1);
        ck_assert_uint_eq(kvt_poll(engine.session, completions, 4), 1);
        ck_assert_uint_eq(completions[0].call, id);
        ck_assert_ptr_eq(completions[0].user, &call);
        ck_assert_int_eq(completions[0].status, KVT_OK);
        expect_all(KVT_OK);
        ck_assert_int_eq(poll(&ready, 1, 0), 0);
        ck_assert_uint_eq(kvt_poll(engine.session, completions, 4), 0);
        end(&engine);
}
END_TEST

START_TEST(a_map_may_be_freed_while_its_calls_are_in_flight)
{
        struct paged_engine engine = begin(0);
        struct kvt_call call = paged_options(0, 0);
        uint64_t id;

        name_many(1000);
        paged_fill(&engine, objects, MANY, 0);
        ck_assert_int_eq(store_many(&engine, &call, &id), KVT_OK);
        kvt_page_map_free(engine.map);
        engine.map = NULL;
        ck_assert_int_eq(paged_wait(&engine, id).status, KVT_OK);
        expect_all(KVT_OK);
        end(&engine);
}
END_TEST

/* ---- damage ---- */

static void flip_on_device(const struct kvt_object *object)
{
        uint8_t *content = paged_content(object, 0);
        int fd = daemon_open_data(&fixture);
        uint8_t bytes[64];
        struct stat file;
        bool found = false;

        ck_assert_int_eq(fstat(fd, &file), 0);
        for (off_t at = (off_t)UNIT; !found && at < file.st_size; at += (off_t)UNIT) {
                ck_assert_int_eq(pread(fd, bytes, sizeof(bytes), at), sizeof(bytes));
                found = !memcmp(bytes, content, sizeof(bytes));
                if (!found)
                        continue;
                bytes[5] ^= 0x10;
                ck_assert_int_eq(pwrite(fd, bytes, sizeof(bytes), at), sizeof(bytes));
                ck_assert_int_eq(fsync(fd), 0);
        }
        ck_assert_msg(found, "the object is not on the device");
        close(fd);
        free(content);
}

START_TEST(of_a_load_with_a_damaged_object_the_others_are_loaded)
{
        struct paged_engine engine = begin(128 * MIB);
        struct kvt_object loaded[N_GROUPS];
        uint32_t places[N_GROUPS][SLOTS_MAX];

        paged_boundary(1, loaded, places, 0, 1);
        paged_fill(&engine, loaded, N_GROUPS, 0);
        ck_assert_int_eq(paged_store(&engine, 0, loaded, N_GROUPS), KVT_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        flip_on_device(&loaded[WINDOW]);
        paged_boundary(1, loaded, places, 300, 1);
        ck_assert_int_eq(paged_load(&engine, 0, NULL, loaded, N_GROUPS).status, KVT_CORRUPT);
        ck_assert_int_eq(loaded[WINDOW].status, KVT_CORRUPT);
        paged_expect(&engine, &loaded[FULL], 1, 0);
        paged_expect(&engine, &loaded[STATE], 1, 0);
        end(&engine);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                after_a_cancelled_load_nothing_touches_the_pages,
                after_a_cancelled_store_nothing_stays_leased,
                a_deadline_ends_a_call_like_a_cancel,
                closing_the_session_stops_the_copying,
                a_daemon_killed_while_loads_copy_spoils_no_page,
                a_daemon_killed_while_stores_copy_leaves_the_session_fit,
                while_the_daemon_is_away_a_call_is_refused_at_once,
                a_worker_in_another_process_loads_what_the_scheduler_acquired,
                in_a_forked_child_the_copying_is_the_parents_alone,
                completions_come_through_the_eventfd_once_each,
                a_map_may_be_freed_while_its_calls_are_in_flight,
                of_a_load_with_a_damaged_object_the_others_are_loaded,
                NULL,
        };

        return flow_run("page_endings", tests, 120);
}
