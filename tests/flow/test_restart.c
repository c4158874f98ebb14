// SPDX-License-Identifier: Apache-2.0
/* What a stop, a kill and a start keep, lose, and never bring back. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/status.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/flow_session.h"
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

/* 40 objects of some 500 KiB, no two of a size. */
#define N_OBJECTS 40u

static uint64_t size_of(uint64_t number)
{
        return 480 * KIB + number * 1237;
}

static void put_all(struct kvt_session *session)
{
        for (uint64_t i = 0; i < N_OBJECTS; i++)
                ck_assert_int_eq(flow_put(session, i, 0, size_of(i), 0), KVT_OK);
}

static unsigned get_all(struct kvt_session *session)
{
        unsigned n = 0;

        for (uint64_t i = 0; i < N_OBJECTS; i++) {
                enum kvt_status status = flow_get(session, i, 0, 0, NULL);

                ck_assert(status == KVT_OK || status == KVT_MISS);
                n += status == KVT_OK;
        }
        return n;
}

/* ---- stop ---- */

static void expect_kept_by_stop(const char *write, unsigned expected)
{
        struct daemon_options options = {.nvme_bytes = 64 * MIB, .nvme_write = write};
        struct kvt_session *session;

        daemon_fixture_init(&fixture, &options);
        session = flow_open(fixture.socket);
        put_all(session);
        daemon_stop(&fixture);
        ck_assert_int_eq(flow_put(session, 100, 0, 4096, 0), KVT_UNAVAILABLE);
        ck_assert(!flow_is_present(session, 1));
        daemon_start(&fixture);
        flow_wait_attached(session);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), expected);
        ck_assert_uint_eq(get_all(session), expected);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}

START_TEST(a_stop_writes_down_everything_under_store)
{
        expect_kept_by_stop("store", N_OBJECTS);
}
END_TEST

START_TEST(a_stop_writes_down_everything_under_cold)
{
        expect_kept_by_stop("cold", N_OBJECTS);
}
END_TEST

START_TEST(a_stop_writes_down_nothing_under_off)
{
        expect_kept_by_stop("off", 0);
}
END_TEST

START_TEST(a_stop_says_so_and_leaves_leased_bytes_alone)
{
        struct wire_object stored = wire_object(1, MIB);
        struct wire_client *client, *refused;

        daemon_fixture_init(&fixture, NULL);
        client = open_client();
        refused = calloc(1, sizeof(*refused));
        ck_assert_ptr_nonnull(refused);
        ck_assert_uint_eq(wire_client_put(client, &stored), KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_acquire(client, 0, NULL, &stored, 1), KVT_WIRE_OK);
        daemon_stop(&fixture);
        /* The lease was no reason to wait, and its bytes are still the reader's. */
        ck_assert(wire_client_holds(client, &stored));
        wire_client_wait_hang_up(client);
        ck_assert_uint_eq(client->bye.status, KVT_WIRE_DRAINING);
        ck_assert(!wire_client_connect(refused, fixture.socket));
        close_client(client);
        free(refused);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- kill ---- */

START_TEST(a_kill_keeps_everything_that_had_a_catalog_entry)
{
        struct daemon_options options = {.nvme_bytes = 64 * MIB};
        struct kvt_session *session;

        daemon_fixture_init(&fixture, &options);
        session = flow_open(fixture.socket);
        put_all(session);
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.objects"), N_OBJECTS);
        /* These may or may not make it. */
        for (uint64_t i = 100; i < 120; i++)
                ck_assert_int_eq(flow_put(session, i, 0, MIB, 0), KVT_OK);
        daemon_kill(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(session);
        ck_assert_uint_eq(get_all(session), N_OBJECTS);
        for (uint64_t i = 100; i < 120; i++) {
                enum kvt_status status = flow_get(session, i, 0, 0, NULL);

                ck_assert(status == KVT_OK || status == KVT_MISS);
        }
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/*
 * Commits generation 1 over generation 0, whose bytes are in @stage at that moment, kills
 * the daemon right after the answer and looks at what the next one has.
 */
enum stage {
        STAGE_WRITING_DOWN,
        STAGE_WRITTEN,
        STAGE_PROMOTING,
};

static void bring_to(enum stage stage, struct wire_client *reader, struct wire_object *old)
{
        if (stage == STAGE_WRITING_DOWN)
                return;
        daemon_wait_written(&fixture);
        if (stage == STAGE_WRITTEN)
                return;
        daemon_evict(&fixture, "host");
        wire_client_send_acquire(reader, 0, 0, old, 1);
}

static void replace_and_kill(enum stage stage, uint64_t number)
{
        struct wire_object old = wire_object(number, 8 * MIB), newer = old;
        struct wire_client *writer, *reader;
        uint32_t status;

        newer.generation = 1;
        newer.flags = WIRE_RESERVE_REPLACE;
        writer = open_client();
        reader = open_client();
        wire_client_reserve(writer, 0, &newer, 1);
        ck_assert_uint_eq(newer.status, KVT_WIRE_OK);
        wire_client_write(writer, &newer);
        ck_assert_uint_eq(wire_client_put(reader, &old), KVT_WIRE_OK);
        bring_to(stage, reader, &old);
        wire_client_end(writer, WIRE_COMMIT, 0, &newer, 1);
        ck_assert_uint_eq(newer.status, KVT_WIRE_OK);
        daemon_kill(&fixture);
        close_client(writer);
        close_client(reader);
        daemon_start(&fixture);

        reader = open_client();
        status = wire_client_get(reader, &newer); /* fails on generation 0 */
        ck_assert(status == KVT_WIRE_OK || status == KVT_WIRE_MISS);
        close_client(reader);
}

static void expect_no_return(enum stage stage)
{
        static const char *const overrides[] = {"nvme.sync_ms=100", NULL};
        struct daemon_options options = {.nvme_bytes = 128 * MIB, .overrides = overrides};

        daemon_fixture_init(&fixture, &options);
        for (uint64_t i = 0; i < 5; i++)
                replace_and_kill(stage, i);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        daemon_fixture_deinit(&fixture);
}

START_TEST(replaced_bytes_never_return_when_they_were_being_written_down)
{
        expect_no_return(STAGE_WRITING_DOWN);
}
END_TEST

START_TEST(replaced_bytes_never_return_when_they_were_written_down)
{
        expect_no_return(STAGE_WRITTEN);
}
END_TEST

START_TEST(replaced_bytes_never_return_when_they_were_being_promoted)
{
        expect_no_return(STAGE_PROMOTING);
}
END_TEST

/* Many at once, at every instant of their way down. */
#define N_REPLACED 40u

static void replace_many_and_kill(uint64_t first, unsigned delay_us)
{
        struct timespec pause = {.tv_nsec = (long)delay_us * 1000};
        struct wire_object old[N_REPLACED], newer[N_REPLACED];
        struct wire_client *client = open_client();

        for (unsigned i = 0; i < N_REPLACED; i++) {
                old[i] = newer[i] = wire_object(first + i, 64 * KIB);
                newer[i].flags = WIRE_RESERVE_REPLACE;
                newer[i].generation = 1;
        }
        wire_client_reserve(client, 0, newer, N_REPLACED);
        for (unsigned i = 0; i < N_REPLACED; i++)
                wire_client_write(client, &newer[i]);
        for (unsigned i = 0; i < N_REPLACED; i++)
                ck_assert_uint_eq(wire_client_put(client, &old[i]), KVT_WIRE_OK);
        nanosleep(&pause, NULL);
        wire_client_end(client, WIRE_COMMIT, 0, newer, N_REPLACED);
        for (unsigned i = 0; i < N_REPLACED; i++)
                ck_assert_uint_eq(newer[i].status, KVT_WIRE_OK);
        daemon_kill(&fixture);
        close_client(client);
        daemon_start(&fixture);

        client = open_client();
        for (unsigned i = 0; i < N_REPLACED; i++) {
                uint32_t status = wire_client_get(client, &newer[i]); /* fails on generation 0 */

                ck_assert(status == KVT_WIRE_OK || status == KVT_WIRE_MISS);
        }
        close_client(client);
}

START_TEST(many_replaced_objects_never_return)
{
        struct daemon_options options = {.nvme_bytes = 64 * MIB};

        daemon_fixture_init(&fixture, &options);
        for (unsigned i = 0; i < 8; i++)
                replace_many_and_kill(1000 * (i + 1), i * 500);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* A reader that was promised the old generation gets it, and nobody after it does. */
START_TEST(a_promotion_of_a_replaced_generation_serves_only_who_waited)
{
        struct daemon_options options = {.nvme_bytes = 128 * MIB};
        struct wire_object old = wire_object(1, 8 * MIB), newer = old;
        struct wire_client *writer, *reader;
        uint64_t request;

        daemon_fixture_init(&fixture, &options);
        writer = open_client();
        reader = open_client();
        newer.generation = 1;
        newer.flags = WIRE_RESERVE_REPLACE;
        ck_assert_uint_eq(wire_client_put(writer, &old), KVT_WIRE_OK);
        wire_client_reserve(writer, 0, &newer, 1);
        wire_client_write(writer, &newer);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        request = wire_client_send_acquire(reader, 0, 0, &old, 1);
        wire_client_end(writer, WIRE_COMMIT, 0, &newer, 1);
        ck_assert_uint_eq(newer.status, KVT_WIRE_OK);
        ck_assert_uint_eq(wire_client_finish(reader, request, NULL, &old, 1), KVT_WIRE_OK);
        /* The commit came first, the acquire came first and was served, or it was too late. */
        if (old.status == KVT_WIRE_OK)
                ck_assert(wire_client_holds(reader, &old) || wire_client_holds(reader, &newer));
        ck_assert_uint_eq(wire_client_get(writer, &newer), KVT_WIRE_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        ck_assert_uint_eq(wire_client_get(writer, &newer), KVT_WIRE_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "objects"), 1);
        close_client(writer);
        close_client(reader);
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- caps ---- */

static uint64_t allocated_bytes(const char *path)
{
        DIR *folder = opendir(path);
        uint64_t bytes = 0;

        ck_assert_ptr_nonnull(folder);
        for (struct dirent *entry; (entry = readdir(folder));) {
                char name[512];
                struct stat file;

                snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
                if (entry->d_name[0] != '.' && !stat(name, &file))
                        bytes += (uint64_t)file.st_blocks * 512;
        }
        closedir(folder);
        return bytes;
}

static void expect_within_cap(void)
{
        uint64_t cap = fixture.options.nvme_bytes;

        ck_assert_uint_le(daemon_number(&fixture, "nvme.used_bytes"), cap);
        ck_assert_uint_le(daemon_number(&fixture, "nvme.capacity_bytes"), cap);
        ck_assert_uint_le(allocated_bytes(fixture.nvme), cap + 4096);
        ck_assert_uint_le(daemon_number(&fixture, "host.used_bytes"), 64 * MIB);
}

static void write_megabytes(struct kvt_session *session, uint64_t first, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++) {
                enum kvt_status status = flow_put(session, first + i, 0, MIB, 0);

                ck_assert_int_eq(status, KVT_OK);
                if (i % 16 == 0)
                        expect_within_cap();
        }
        daemon_wait_number(&fixture, "nvme.queued_writes", 0);
        expect_within_cap();
}

START_TEST(the_cap_holds_across_restarts)
{
        struct daemon_options options = {.nvme_bytes = 64 * MIB};
        struct kvt_session *session;

        daemon_fixture_init(&fixture, &options);
        session = flow_open(fixture.socket);
        write_megabytes(session, 0, 3 * 64);
        ck_assert_uint_ge(daemon_number(&fixture, "nvme.used_bytes"), 48 * MIB);
        daemon_stop(&fixture);
        ck_assert_uint_le(allocated_bytes(fixture.nvme), 64 * MIB + 4096);
        daemon_start(&fixture);
        flow_wait_attached(session);
        expect_within_cap();
        write_megabytes(session, 1000, 64);
        daemon_kill(&fixture);
        daemon_start(&fixture);
        flow_wait_attached(session);
        expect_within_cap();
        write_megabytes(session, 2000, 64);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);

        /* Nothing of it leaks: cleared, the tier is empty. */
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, NULL);
        daemon_wait_number(&fixture, "objects", 0);
        daemon_wait_number(&fixture, "nvme.used_bytes", 0);
        ck_assert_uint_eq(daemon_number(&fixture, "host.used_bytes"), 0);
        kvt_close(session);
        daemon_fixture_deinit(&fixture);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_stop_writes_down_everything_under_store,
                a_stop_writes_down_everything_under_cold,
                a_stop_writes_down_nothing_under_off,
                a_stop_says_so_and_leaves_leased_bytes_alone,
                a_kill_keeps_everything_that_had_a_catalog_entry,
                replaced_bytes_never_return_when_they_were_being_written_down,
                replaced_bytes_never_return_when_they_were_written_down,
                replaced_bytes_never_return_when_they_were_being_promoted,
                many_replaced_objects_never_return,
                a_promotion_of_a_replaced_generation_serves_only_who_waited,
                the_cap_holds_across_restarts,
                NULL,
        };

        return flow_run("restart", tests, 120);
}
