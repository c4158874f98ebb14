// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon is killed at random instants, start-up included, while clients store, replace
 * and load. A file shared by all processes of the test holds what may be found for each
 * object: nothing, or a generation from the last answered commit to the last one that was
 * begun.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "proto/status.h"
#include "tests/support/child.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
#include "tests/support/wire_client.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)

#define N_WRITERS 2u
#define N_CLIENTS (N_WRITERS + 1) /* and a reader */
#define N_KEYS    64u             /* each writer has every second one */
/* Commits that may happen while a reader is looking. */
#define AHEAD 64u

struct expected {
        _Atomic uint64_t answered[N_KEYS];
        _Atomic uint64_t begun[N_KEYS];
        _Atomic uint32_t pause;
        _Atomic uint32_t n_paused;
        _Atomic uint32_t stop;
        _Atomic uint64_t n_commits;
        _Atomic uint64_t n_loads;
        uint32_t seed;
};

static struct daemon_fixture fixture;
static struct expected *expected;

static void map_expected(void)
{
        char path[128];
        int fd;

        snprintf(path, sizeof(path), "%s/expected", fixture.folder);
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, sizeof(*expected)), 0);
        expected = mmap(NULL, sizeof(*expected), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(expected, MAP_FAILED);
        close(fd);
}

/* ---- the load ---- */

static void nap(uint64_t us)
{
        struct timespec pause = {.tv_sec = (time_t)(us / 1000000),
                                 .tv_nsec = (long)(us % 1000000) * 1000};

        nanosleep(&pause, NULL);
}

static void obey(void)
{
        if (!atomic_load(&expected->pause))
                return;
        atomic_fetch_add(&expected->n_paused, 1);
        while (atomic_load(&expected->pause) && !atomic_load(&expected->stop))
                nap(1000);
        atomic_fetch_sub(&expected->n_paused, 1);
}

/* From a page to a megabyte and a half, most of them small. */
static uint64_t size_of(uint64_t key)
{
        return key % 8 ? 4096 + key * 3001 : MIB + key * 8191;
}

static void store_one(struct kvt_session *session, uint64_t key)
{
        uint64_t generation = atomic_load(&expected->begun[key]) + 1;
        enum kvt_status status;

        atomic_store(&expected->begun[key], generation);
        status = flow_put(session, key, generation, size_of(key), KVT_REPLACE);
        if (status == KVT_OK) {
                atomic_store(&expected->answered[key], generation);
                atomic_fetch_add(&expected->n_commits, 1);
                return;
        }
        /* What the daemon's death may answer; anything else is a fault. */
        ck_assert_msg(status == KVT_UNAVAILABLE || status == KVT_GONE || status == KVT_BUSY ||
                              status == KVT_DRAINING,
                      "store: %s", kvt_status_name(status));
        nap(2000);
}

static void load_one(struct kvt_session *session, uint64_t key)
{
        uint64_t oldest = atomic_load(&expected->answered[key]), generation = 0;
        uint64_t newest = atomic_load(&expected->begun[key]) + AHEAD;
        enum kvt_status status = flow_get(session, key, oldest, newest, &generation);

        if (status == KVT_OK) {
                ck_assert_uint_le(generation, atomic_load(&expected->begun[key]));
                atomic_fetch_add(&expected->n_loads, 1);
                return;
        }
        ck_assert_msg(status == KVT_UNAVAILABLE || status == KVT_GONE || status == KVT_BUSY ||
                              status == KVT_MISS,
                      "load: %s", kvt_status_name(status));
        if (status != KVT_MISS)
                nap(2000);
}

static void run_client(struct child *self, void *argument)
{
        unsigned role = *(const unsigned *)argument;
        struct kvt_session *session = flow_open_early(fixture.socket);
        unsigned seed = expected->seed + role;

        child_say(self, 1);
        while (!atomic_load(&expected->stop)) {
                uint64_t key = (uint64_t)rand_r(&seed) % N_KEYS;

                obey();
                if (role < N_WRITERS)
                        store_one(session, key - key % N_WRITERS + role);
                else
                        load_one(session, key);
        }
        kvt_close(session);
}

/* ---- verification ---- */

/* Objects that the index says are on NVMe, and their bytes, in whole units. */
static void count_listed(uint64_t *ret_objects, uint64_t *ret_bytes)
{
        json_t *answer = daemon_ask(&fixture, "{\"command\":\"ls\",\"limit\":1000}");
        const json_t *objects = json_object_get(answer, "objects");

        ck_assert(json_is_true(json_object_get(answer, "end")));
        *ret_objects = *ret_bytes = 0;
        for (size_t i = 0; i < json_array_size(objects); i++) {
                const json_t *object = json_array_get(objects, i);

                if (!json_is_true(json_object_get(object, "in_nvme")))
                        continue;
                ++*ret_objects;
                *ret_bytes +=
                        ((uint64_t)json_integer_value(json_object_get(object, "bytes")) + 4095) /
                        4096 * 4096;
        }
        json_decref(answer);
}

static void check_books(void)
{
        uint64_t objects, bytes;

        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.stale"), 0);
        ck_assert_uint_le(daemon_number(&fixture, "nvme.used_bytes"), fixture.options.nvme_bytes);
        ck_assert_uint_eq(daemon_number(&fixture, "host.leased_bytes"), 0);
        count_listed(&objects, &bytes);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), objects);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.payload_bytes"), bytes);
}

/* The load rests; what is found is held against the file, object by object. */
static unsigned check_objects(void)
{
        struct wire_client *client = calloc(1, sizeof(*client));
        unsigned n = 0;

        ck_assert_ptr_nonnull(client);
        wire_client_open(client, fixture.socket);
        for (uint64_t key = 0; key < N_KEYS; key++) {
                uint64_t generation = atomic_load(&expected->begun[key]);
                struct wire_object object = wire_object(key, 0);

                if (wire_client_acquire(client, 0, NULL, &object, 1) || object.status)
                        continue;
                n++;
                ck_assert_uint_eq(object.bytes, size_of(key));
                object.generation = generation;
                while (!wire_client_holds(client, &object)) {
                        ck_assert_msg(object.generation > atomic_load(&expected->answered[key]),
                                      "object %" PRIu64 " is older than it may be", key);
                        object.generation--;
                }
                wire_client_end(client, WIRE_RELEASE, 0, &object, 1);
        }
        wire_client_close(client);
        free(client);
        return n;
}

static void verify_all(void)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;

        atomic_store(&expected->pause, 1);
        while (atomic_load(&expected->n_paused) < N_CLIENTS) {
                ck_assert_msg(daemon_now_ms() < deadline, "a client hangs");
                daemon_pause();
        }
        check_books();
        check_objects();
        /* Also what lies on the device alone. */
        daemon_evict(&fixture, "host");
        ck_assert_uint_gt(check_objects(), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        atomic_store(&expected->pause, 0);
}

/* An instant in start-up, or one in the middle of the load. */
static void wait_for_a_random_instant(unsigned *seed)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;
        uint64_t goal = atomic_load(&expected->n_commits) + 1 + (uint64_t)rand_r(seed) % 40;

        if (rand_r(seed) % 4) {
                while (atomic_load(&expected->n_commits) < goal) {
                        ck_assert_msg(daemon_now_ms() < deadline, "the clients are not served");
                        daemon_expect_alive(&fixture);
                        nap(1000);
                }
        }
        nap((uint64_t)rand_r(seed) % 50000);
}

static void kill_at_random_instants(unsigned n_kills)
{
        struct daemon_options options = {.piece_bytes = 16 * MIB, .nvme_bytes = 48 * MIB};
        struct child clients[N_CLIENTS];
        unsigned roles[N_CLIENTS], seed = (unsigned)time(NULL);

        daemon_fixture_init(&fixture, &options);
        map_expected();
        expected->seed = seed;
        fprintf(stderr, "crash_loop: seed %u\n", seed);
        for (unsigned i = 0; i < N_CLIENTS; i++) {
                roles[i] = i;
                child_start(&clients[i], run_client, &roles[i]);
                child_hear(&clients[i]);
        }
        for (unsigned i = 0; i < n_kills; i++) {
                wait_for_a_random_instant(&seed);
                daemon_kill(&fixture);
                daemon_launch(&fixture);
                if (i % 5 == 4) {
                        daemon_wait_ready(&fixture);
                        verify_all();
                }
        }
        daemon_wait_ready(&fixture);
        verify_all();
        atomic_store(&expected->stop, 1);
        for (unsigned i = 0; i < N_CLIENTS; i++)
                child_join(&clients[i]);
        ck_assert_uint_gt(atomic_load(&expected->n_commits), n_kills);
        ck_assert_uint_gt(atomic_load(&expected->n_loads), n_kills);

        daemon_wait_written(&fixture);
        daemon_evict(&fixture, NULL);
        daemon_wait_number(&fixture, "nvme.used_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 0);
        munmap(expected, sizeof(*expected));
        daemon_fixture_deinit(&fixture);
}

START_TEST(kills_at_25_random_instants_leave_nothing_wrong)
{
        kill_at_random_instants(25);
}
END_TEST

START_TEST(kills_at_200_random_instants_leave_nothing_wrong)
{
        kill_at_random_instants(200);
}
END_TEST

/* ---- clients in mid-write ---- */

struct switch_word {
        _Atomic uint32_t is_on;
};

static void write_on_under_an_old_lease(struct child *self, void *argument)
{
        struct wire_client *client = calloc(1, sizeof(*client));
        struct wire_object object = wire_object(1, 12 * MIB);
        struct switch_word *go_on = argument;

        ck_assert_ptr_nonnull(client);
        wire_client_open(client, fixture.socket);
        wire_client_reserve(client, 0, &object, 1);
        ck_assert_uint_eq(object.status, KVT_WIRE_OK);
        child_say(self, 1);
        while (atomic_load(&go_on->is_on)) {
                wire_client_write(client, &object);
                object.generation++;
        }
        /* It notices at last, lets go, and is served again. */
        wire_client_wait_hang_up(client);
        wire_client_close(client);
        wire_client_open(client, fixture.socket);
        object = wire_object(1, 12 * MIB);
        child_say(self, wire_client_put(client, &object));
        wire_client_close(client);
        free(client);
}

START_TEST(a_client_that_writes_on_under_an_old_lease_alters_no_newer_object)
{
        struct switch_word *go_on = mmap(NULL, sizeof(*go_on), PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct kvt_session *session;
        struct child writers[2];

        daemon_fixture_init(&fixture, NULL);
        atomic_store(&go_on->is_on, 1);
        for (unsigned i = 0; i < 2; i++) {
                child_start(&writers[i], write_on_under_an_old_lease, go_on);
                child_hear(&writers[i]);
        }
        daemon_kill(&fixture);
        daemon_start(&fixture); /* with all its memory, while the old arenas live on */
        session = flow_open(fixture.socket);
        for (uint64_t i = 0; i < 40; i++)
                ck_assert_int_eq(flow_put(session, 100 + i, 0, MIB, 0), KVT_OK);
        for (unsigned round = 0; round < 10; round++)
                for (uint64_t i = 0; i < 40; i++)
                        ck_assert_int_eq(flow_get(session, 100 + i, 0, 0, NULL), KVT_OK);
        ck_assert_int_eq(flow_get(session, 1, 0, 0, NULL), KVT_MISS);
        atomic_store(&go_on->is_on, 0);
        for (unsigned i = 0; i < 2; i++) {
                uint64_t status = child_hear(&writers[i]);

                ck_assert(status == KVT_WIRE_OK || status == KVT_WIRE_ALREADY_HAVE);
                child_join(&writers[i]);
        }
        ck_assert_int_eq(flow_get(session, 1, 0, 0, NULL), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.ready_bytes"), 64 * MIB);
        kvt_close(session);
        munmap(go_on, sizeof(*go_on));
        daemon_fixture_deinit(&fixture);
}
END_TEST

static enum kvt_status call_one(struct kvt_session *session,
                                enum kvt_status (*submit)(struct kvt_session *,
                                                          const struct kvt_call *,
                                                          struct kvt_object *, size_t, uint64_t *),
                                struct kvt_object *object)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        enum kvt_status status;
        uint64_t id;

        status = submit(session, &call, object, 1, &id);
        if (status)
                return status;
        ck_assert_int_eq(kvt_wait_call(session, id, &completion, FLOW_TIMEOUT_NS), KVT_OK);
        return completion.status ? completion.status : (enum kvt_status)object->status;
}

START_TEST(the_library_commits_nothing_under_an_old_lease)
{
        struct kvt_object object = {.group = TEST_GROUP_STATE,
                                    .bytes = 8 * MIB,
                                    .flags = KVT_PARENT_UNKNOWN,
                                    .boundary_tokens = TEST_CHUNK_TOKENS};
        struct kvt_session *session;
        struct digest digest;
        enum kvt_status status;
        void *address;

        daemon_fixture_init(&fixture, NULL);
        session = flow_open(fixture.socket);
        content_digest(&digest, 1);
        memcpy(object.digest.bytes, digest.bytes, sizeof(digest.bytes));
        ck_assert_int_eq(call_one(session, kvt_reserve, &object), KVT_OK);
        address = object.segments[0].address;
        daemon_kill(&fixture);
        memset(address, 1, object.segments[0].bytes);
        daemon_start(&fixture);
        flow_wait_attached(session);
        /* The bytes are still mapped, at the same place, and lead nowhere. */
        memset(address, 2, object.segments[0].bytes);
        status = call_one(session, kvt_commit, &object);
        ck_assert(status == KVT_GONE || status == KVT_UNAVAILABLE);
        ck_assert_int_eq(flow_get(session, 1, 0, 0, NULL), KVT_MISS);
        ck_assert_int_eq(flow_put(session, 1, 0, 8 * MIB, 0), KVT_OK);
        ck_assert_int_eq(flow_get(session, 1, 0, 0, NULL), KVT_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 8 * MIB);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(int argc, char **argv)
{
        const TTest *const tests[] = {
                kills_at_25_random_instants_leave_nothing_wrong,
                a_client_that_writes_on_under_an_old_lease_alters_no_newer_object,
                the_library_commits_nothing_under_an_old_lease,
                NULL,
        };
        const TTest *const long_tests[] = {kills_at_200_random_instants_leave_nothing_wrong, NULL};

        return argc > 1 ? flow_run("crash_loop", long_tests, 800)
                        : flow_run("crash_loop", tests, 200);
}
