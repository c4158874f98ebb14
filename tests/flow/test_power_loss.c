// SPDX-License-Identifier: Apache-2.0
/*
 * The power fails under data and catalog both, by a file system that forgets a random part
 * of what was not synced. What comes back is right or a miss; what was stored longer than
 * nvme.sync_ms ago comes back; what was replaced does not.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>

#include "proto/status.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/powerfs_client.h"
#include "tests/support/wire_client.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)

#define N_KEYS 48u

static struct daemon_fixture fixture;
static struct powerfs_mount *disk;

/* What may be found for each object: nothing, or a generation in between. */
static struct {
        uint64_t oldest; /* the last answered commit */
        uint64_t newest; /* the last begun */
        bool is_due;     /* it has been there for long enough to be sure */
} expected[N_KEYS];

/*
 * The daemon knows a power loss by the kernel's boot id. In a mount namespace of this
 * test's own, a file of ours stands in its place.
 */
#define KERNEL_BOOT_ID "/proc/sys/kernel/random/boot_id"

static void set_boot_id(unsigned number)
{
        char path[128];
        FILE *file;

        snprintf(path, sizeof(path), "%s/boot_id", disk->scratch);
        file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        fprintf(file, "00000000-0000-4000-8000-%012u\n", number);
        ck_assert_int_eq(fclose(file), 0);
        if (!number)
                ck_assert_int_eq(mount(path, KERNEL_BOOT_ID, NULL, MS_BIND, NULL), 0);
}

static void begin(uint64_t nvme_bytes)
{
        static const char *const overrides[] = {"nvme.sync_ms=100", NULL};
        struct daemon_options options = {.piece_bytes = 16 * MIB, .overrides = overrides};

        ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
        ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
        ck_assert_int_eq(powerfs_new(0, &disk), 0);
        set_boot_id(0);
        options.nvme_bytes = nvme_bytes;
        options.nvme_folder = disk->mountpoint;
        daemon_fixture_init(&fixture, &options);
}

static void end(void)
{
        daemon_stop(&fixture);
        ck_assert_int_eq(umount(KERNEL_BOOT_ID), 0);
        disk = powerfs_free(disk);
        daemon_fixture_deinit(&fixture);
}

static void lose_power(uint64_t seed)
{
        static unsigned n_boots;

        set_boot_id(++n_boots);
        ck_assert_int_eq(powerfs_cut(disk, seed), 0);
        daemon_kill(&fixture);
        ck_assert_int_eq(powerfs_stop(disk), 0);
        ck_assert_int_eq(powerfs_start(disk), 0);
        daemon_start(&fixture);
}

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

static uint64_t size_of(uint64_t key)
{
        return key % 6 ? 4096 + key * 5003 : MIB + key * 8191;
}

static void store(struct wire_client *client, uint64_t key)
{
        struct wire_object object = wire_object(key, size_of(key));

        object.generation = ++expected[key].newest;
        object.flags = WIRE_RESERVE_REPLACE;
        expected[key].is_due = false;
        ck_assert_uint_eq(wire_client_put(client, &object), KVT_WIRE_OK);
        expected[key].oldest = expected[key].newest;
}

/* The generation found, 0 for none. */
static uint64_t load(struct wire_client *client, uint64_t key)
{
        struct wire_object object = wire_object(key, 0);

        if (wire_client_acquire(client, 0, NULL, &object, 1) || object.status)
                return 0;
        ck_assert_uint_eq(object.bytes, size_of(key));
        for (object.generation = expected[key].newest; !wire_client_holds(client, &object);)
                ck_assert_msg(--object.generation >= expected[key].oldest,
                              "object %" PRIu64 " is not of generation %" PRIu64 " to %" PRIu64,
                              key, expected[key].oldest, expected[key].newest);
        wire_client_end(client, WIRE_RELEASE, 0, &object, 1);
        return object.generation;
}

static void check_all(void)
{
        struct wire_client *client = open_client();

        ck_assert_uint_le(daemon_number(&fixture, "nvme.used_bytes"), fixture.options.nvme_bytes);
        for (uint64_t key = 0; key < N_KEYS; key++) {
                uint64_t generation = load(client, key);

                ck_assert_msg(generation || !expected[key].is_due,
                              "object %" PRIu64 " was synced, and is lost", key);
                /* Whatever is there now stays; what is not will not come back. */
                if (!generation)
                        expected[key].oldest = expected[key].newest + 1;
        }
        /* What a power loss spoils is stale, never corrupt. */
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 0);
        close_client(client);
}

static void wait_until_synced(void)
{
        daemon_wait_synced(&fixture);
        for (uint64_t key = 0; key < N_KEYS; key++)
                expected[key].is_due =
                        expected[key].newest && expected[key].oldest <= expected[key].newest;
}

static void lose_power_again_and_again(unsigned rounds)
{
        unsigned seed = (unsigned)time(NULL);

        fprintf(stderr, "power_loss: seed %u\n", seed);
        begin(64 * MIB);
        for (unsigned round = 0; round < rounds; round++) {
                struct wire_client *client = open_client();

                for (unsigned i = 0; i < 40; i++)
                        store(client, (uint64_t)rand_r(&seed) % N_KEYS);
                if (round % 2)
                        wait_until_synced();
                for (unsigned i = (unsigned)rand_r(&seed) % 40; i; i--)
                        store(client, (uint64_t)rand_r(&seed) % N_KEYS);
                close_client(client);
                lose_power((uint64_t)rand_r(&seed));
                check_all();
                /* An object that is missing now may be stored afresh. */
                for (uint64_t key = 0; key < N_KEYS; key++)
                        expected[key].is_due = false;
        }
        end();
}

START_TEST(power_losses_cost_only_what_was_not_synced)
{
        lose_power_again_and_again(12);
}
END_TEST

START_TEST(many_power_losses_cost_only_what_was_not_synced)
{
        lose_power_again_and_again(120);
}
END_TEST

START_TEST(space_that_is_reused_around_a_power_loss_gives_no_wrong_bytes)
{
        unsigned seed = (unsigned)time(NULL);

        fprintf(stderr, "power_loss: seed %u\n", seed);
        begin(16 * MIB); /* objects push each other out all the time */
        for (unsigned round = 0; round < 8; round++) {
                struct wire_client *client = open_client();

                for (unsigned i = 0; i < 60; i++)
                        store(client, (uint64_t)rand_r(&seed) % N_KEYS);
                close_client(client);
                lose_power((uint64_t)rand_r(&seed));
                check_all();
        }
        end();
}
END_TEST

/* Nothing here syncs but the tier's own clock. */
START_TEST(what_is_older_than_sync_ms_survives)
{
        struct wire_client *client;
        uint64_t n_objects = 0;

        begin(64 * MIB);
        for (unsigned round = 0; round < 5; round++) {
                client = open_client();
                for (unsigned i = 0; i < 10; i++) {
                        struct wire_object object = wire_object(1000 + n_objects++, 300 * KIB);

                        ck_assert_uint_eq(wire_client_put(client, &object), KVT_WIRE_OK);
                }
                daemon_wait_synced(&fixture);
                close_client(client);
                lose_power(round);
                client = open_client();
                for (uint64_t i = 0; i < n_objects; i++) {
                        struct wire_object object = wire_object(1000 + i, 0);

                        ck_assert_msg(!wire_client_get(client, &object),
                                      "object %" PRIu64 " of %" PRIu64 " is lost", i, n_objects);
                }
                close_client(client);
        }
        end();
}
END_TEST

START_TEST(replaced_bytes_do_not_return_after_a_power_loss)
{
        begin(64 * MIB);
        for (unsigned round = 0; round < 8; round++) {
                struct wire_client *client = open_client();

                for (uint64_t key = 0; key < 8; key++)
                        store(client, key);
                daemon_wait_synced(&fixture); /* the old entries would survive */
                /* The answer is a promise: the old entry is durably gone. */
                for (uint64_t key = 0; key < 8; key++)
                        store(client, key);
                close_client(client);
                lose_power(round);
                check_all();
        }
        end();
}
END_TEST

int main(int argc, char **argv)
{
        const TTest *const tests[] = {
                power_losses_cost_only_what_was_not_synced,
                what_is_older_than_sync_ms_survives,
                space_that_is_reused_around_a_power_loss_gives_no_wrong_bytes,
                replaced_bytes_do_not_return_after_a_power_loss,
                NULL,
        };
        const TTest *const long_tests[] = {many_power_losses_cost_only_what_was_not_synced, NULL};
        const char *reason;

        if (!powerfs_is_available(&reason)) {
                fprintf(stderr, "%s\n", reason);
                return 77;
        }
        return argc > 1 ? flow_run("power_loss", long_tests, 800)
                        : flow_run("power_loss", tests, 200);
}
