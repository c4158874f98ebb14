// SPDX-License-Identifier: Apache-2.0
/*
 * What lies on the device is not what was written, or the device fails: a miss each time,
 * counted, never returned, never copied on; and the daemon serves on from host memory.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/status.h"
#include "tests/support/content.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/flow.h"
#include "tests/support/powerfs_client.h"
#include "tests/support/scratch.h"
#include "tests/support/wire_client.h"

#define KIB  UINT64_C(1024)
#define MIB  (UINT64_C(1024) * KIB)
#define UNIT 4096

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

static void put(struct wire_client *client, uint64_t number, uint64_t bytes)
{
        struct wire_object object = wire_object(number, bytes);

        ck_assert_uint_eq(wire_client_put(client, &object), KVT_WIRE_OK);
}

/* OK with the right bytes, or any kind of miss. */
static uint32_t get(struct wire_client *client, uint64_t number)
{
        struct wire_object object = wire_object(number, 0);
        uint32_t status = wire_client_get(client, &object);

        ck_assert_msg(status == KVT_WIRE_OK || status == KVT_WIRE_MISS ||
                              status == KVT_WIRE_CORRUPT || status == KVT_WIRE_IO_ERROR,
                      "get: %s", status_name(status));
        return status;
}

/* It failed once, and is gone now: from the table, the index and every tier. */
static void expect_dropped(struct wire_client *client, uint64_t number)
{
        ck_assert_uint_ne(get(client, number), KVT_WIRE_OK);
        ck_assert_uint_eq(get(client, number), KVT_WIRE_MISS);
}

/* ---- the data file ---- */

/* Where the object's bytes begin; its header is the unit before. */
static off_t find_object(int fd, uint64_t number)
{
        struct stat file;
        uint8_t bytes[64];

        ck_assert_int_eq(fstat(fd, &file), 0);
        for (off_t at = UNIT; at + UNIT <= file.st_size; at += UNIT) {
                ck_assert_int_eq(pread(fd, bytes, sizeof(bytes), at), sizeof(bytes));
                if (content_is(bytes, 0, sizeof(bytes), number, 0))
                        return at;
        }
        ck_abort_msg("object %llu is not on the device", (unsigned long long)number);
        return 0;
}

static void flip(int fd, off_t at)
{
        uint8_t byte;

        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        ck_assert_int_eq(fsync(fd), 0);
}

static void swap(int fd, off_t a, off_t b, size_t bytes)
{
        _cleanup_free_ uint8_t *of_a = malloc(bytes), *of_b = malloc(bytes);

        ck_assert(of_a && of_b);
        ck_assert_int_eq(pread(fd, of_a, bytes, a), (ssize_t)bytes);
        ck_assert_int_eq(pread(fd, of_b, bytes, b), (ssize_t)bytes);
        ck_assert_int_eq(pwrite(fd, of_b, bytes, a), (ssize_t)bytes);
        ck_assert_int_eq(pwrite(fd, of_a, bytes, b), (ssize_t)bytes);
        ck_assert_int_eq(fsync(fd), 0);
}

/* @n objects of 1 MiB, on the device alone. */
static struct wire_client *begin_with(unsigned n, const char *folder)
{
        struct daemon_options options = {.nvme_bytes = 64 * MIB, .nvme_folder = folder};
        struct wire_client *client;

        daemon_fixture_init(&fixture, &options);
        client = open_client();
        for (uint64_t i = 0; i < n; i++)
                put(client, i, MIB);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        return client;
}

START_TEST(a_flipped_bit_anywhere_in_an_object_is_a_miss)
{
        static const off_t places[] = {0, 300000, MIB - 1, -UNIT, -UNIT + 100, -UNIT + 2000};
        enum { N = sizeof(places) / sizeof(places[0]) };
        struct wire_client *client = begin_with(N + 1, NULL);
        _cleanup_fd_ int fd = daemon_open_data(&fixture);

        for (unsigned i = 0; i < N; i++)
                flip(fd, find_object(fd, i) + places[i]);
        for (unsigned i = 0; i < N; i++)
                expect_dropped(client, i);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), N);
        ck_assert_uint_eq(daemon_number(&fixture, "host.objects"), 0);
        ck_assert_uint_eq(get(client, N), KVT_WIRE_OK);
        daemon_wait_number(&fixture, "nvme.objects", 1);

        /* It may be stored again, and a restart brings nothing back. */
        put(client, 0, MIB);
        close_client(client);
        daemon_stop(&fixture);
        daemon_start(&fixture);
        client = open_client();
        ck_assert_uint_eq(get(client, 0), KVT_WIRE_OK);
        for (unsigned i = 1; i < N; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_MISS);
        close_client(client);
        close(steal_fd(&fd));
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(bits_flipped_while_the_daemon_was_down_are_misses)
{
        struct wire_client *client = begin_with(4, NULL);
        _cleanup_fd_ int fd = daemon_open_data(&fixture);

        close_client(client);
        daemon_stop(&fixture);
        flip(fd, find_object(fd, 0) + 77);
        flip(fd, find_object(fd, 1) - UNIT + 24);
        daemon_start(&fixture);
        client = open_client();
        expect_dropped(client, 0);
        expect_dropped(client, 1);
        ck_assert_uint_eq(get(client, 2), KVT_WIRE_OK);
        ck_assert_uint_eq(get(client, 3), KVT_WIRE_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 2);
        close_client(client);
        close(steal_fd(&fd));
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(swapped_objects_are_misses)
{
        struct wire_client *client = begin_with(5, NULL);
        _cleanup_fd_ int fd = daemon_open_data(&fixture);

        /* Whole, with their headers; and their bytes under each other's header. */
        swap(fd, find_object(fd, 0) - UNIT, find_object(fd, 1) - UNIT, UNIT + MIB);
        swap(fd, find_object(fd, 2), find_object(fd, 3), MIB);
        for (uint64_t i = 0; i < 4; i++)
                expect_dropped(client, i);
        ck_assert_uint_eq(get(client, 4), KVT_WIRE_OK);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt"), 4);
        close_client(client);
        close(steal_fd(&fd));
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(verify_finds_and_drops_what_is_corrupt)
{
        struct wire_client *client = begin_with(8, NULL);
        _cleanup_fd_ int fd = daemon_open_data(&fixture);

        flip(fd, find_object(fd, 3));
        flip(fd, find_object(fd, 5) + MIB - 5000);
        ck_assert_uint_eq(daemon_verify(&fixture), 2);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        for (uint64_t i = 0; i < 8; i++)
                ck_assert_uint_eq(get(client, i), i == 3 || i == 5 ? KVT_WIRE_MISS : KVT_WIRE_OK);
        close_client(client);
        close(steal_fd(&fd));
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_truncated_file_costs_the_objects_behind_its_end)
{
        struct wire_client *client = begin_with(20, NULL);
        _cleanup_fd_ int fd = daemon_open_data(&fixture);
        unsigned n_ok = 0, n_again = 0;
        struct stat file;

        ck_assert_int_eq(fstat(fd, &file), 0);
        ck_assert_int_eq(ftruncate(fd, find_object(fd, 9) + 300 * 1024), 0);
        for (uint64_t i = 0; i < 20; i++)
                n_ok += get(client, i) == KVT_WIRE_OK;
        ck_assert_uint_gt(n_ok, 0);
        ck_assert_uint_lt(n_ok, 20);
        for (uint64_t i = 0; i < 20; i++)
                n_again += get(client, i) == KVT_WIRE_OK;
        ck_assert_uint_eq(n_again, n_ok);
        ck_assert_uint_eq(daemon_number(&fixture, "nvme.corrupt") +
                                  daemon_number(&fixture, "nvme.io_errors"),
                          20 - n_ok);
        /* Served on. */
        put(client, 100, MIB);
        ck_assert_uint_eq(get(client, 100), KVT_WIRE_OK);
        close_client(client);
        close(steal_fd(&fd));
        daemon_fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_file_truncated_while_the_daemon_was_down_is_refused_or_read_as_misses)
{
        struct wire_client *client = begin_with(20, NULL);
        _cleanup_fd_ int fd = daemon_open_data(&fixture);
        off_t end = find_object(fd, 9);

        close_client(client);
        daemon_stop(&fixture);
        ck_assert_int_eq(ftruncate(fd, end), 0);
        close(steal_fd(&fd));
        daemon_launch(&fixture);
        /* It says so, whichever way it goes on. */
        if (daemon_wait_outcome(&fixture)) {
                client = open_client();
                for (uint64_t i = 0; i < 20; i++)
                        get(client, i);
                put(client, 100, MIB);
                ck_assert_uint_eq(get(client, 100), KVT_WIRE_OK);
                close_client(client);
        } else {
                ck_assert(daemon_has_logged(&fixture, "start_failed", fixture.nvme));
        }
        daemon_fixture_deinit(&fixture);
}
END_TEST

/* ---- two daemons ---- */

START_TEST(a_second_daemon_on_the_same_path_is_refused)
{
        struct wire_client *client = begin_with(4, NULL);
        struct daemon_fixture second;
        char paths[160], catalog[160];
        const char *overrides[] = {paths, NULL, NULL};
        struct daemon_options options = {.nvme_bytes = 64 * MIB, .overrides = overrides};

        daemon_fixture_prepare(&second, &options);
        snprintf(paths, sizeof(paths), "nvme.paths=%s", fixture.nvme);
        snprintf(catalog, sizeof(catalog), "nvme.catalog=%s", fixture.catalog);
        /* With a catalog of its own, then with everything of the first. */
        for (unsigned i = 0; i < 2; i++) {
                daemon_launch(&second);
                ck_assert_int_eq(daemon_wait_end(&second), 1);
                ck_assert(daemon_has_logged(&second, "start_failed", "in use by another daemon"));
                overrides[1] = catalog;
        }
        for (uint64_t i = 0; i < 4; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_OK);
        put(client, 100, MIB);
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        close_client(client);
        daemon_fixture_deinit(&fixture);
        second.n_fds = fixture.n_fds;
        daemon_fixture_deinit(&second);
}
END_TEST

/* ---- a file system that is full ---- */

/* A loop device with a file system of @mib MiB on @folder, gone with this process. */
static bool mount_loop(const char *folder, unsigned mib)
{
        char command[1024];

        /* The mount is seen here and in the daemon alone. */
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
                return false;
        snprintf(command, sizeof(command),
                 "truncate -s %uM %s.img && mkfs.ext4 -q -m 0 -O ^has_journal %s.img && "
                 "mkdir -p %s && mount -o loop %s.img %s 2>/dev/null",
                 mib, folder, folder, folder, folder, folder);
        return !system(command);
}

static void fill_up(const char *folder)
{
        static uint8_t block[65536];
        char path[256];
        int fd;

        snprintf(path, sizeof(path), "%s/ballast", folder);
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        ck_assert_int_ge(fd, 0);
        for (size_t bytes = sizeof(block); bytes;)
                if (write(fd, block, bytes) < (ssize_t)bytes)
                        bytes /= 2;
        close(fd);
}

static void put_and_get_small(struct wire_client *client, uint64_t n)
{
        for (uint64_t i = 100; i < 100 + n; i++)
                put(client, i, 4096);
        for (uint64_t i = 100; i < 100 + n; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_OK);
}

static void expect_right_or_missing(struct wire_client *client, uint64_t n)
{
        static uint64_t fresh = 9000;

        fresh++;
        for (uint64_t i = 0; i < 4; i++)
                get(client, i);
        for (uint64_t i = 100; i < 100 + n; i++)
                get(client, i);
        put(client, fresh, MIB);
        ck_assert_uint_eq(get(client, fresh), KVT_WIRE_OK);
}

static void work_on_a_full_file_system(const char *folder)
{
        struct daemon_options options = {.nvme_bytes = 32 * MIB, .nvme_folder = folder};
        struct wire_client *client;
        char ballast[128];

        daemon_fixture_init(&fixture, &options);
        client = open_client();
        for (uint64_t i = 0; i < 4; i++)
                put(client, i, MIB);
        daemon_wait_written(&fixture);
        fill_up(folder);
        put_and_get_small(client, 3000);
        daemon_evict(&fixture, "host");
        expect_right_or_missing(client, 3000);
        close_client(client);

        /* Killed and started while it is full, it serves or says why it cannot. */
        daemon_kill(&fixture);
        daemon_launch(&fixture);
        if (daemon_wait_outcome(&fixture)) {
                client = open_client();
                expect_right_or_missing(client, 3000);
                close_client(client);
                daemon_kill(&fixture);
        } else {
                ck_assert(daemon_has_logged(&fixture, "start_failed", "reason="));
        }

        /* With room again, what is there is right. */
        snprintf(ballast, sizeof(ballast), "%s/ballast", folder);
        ck_assert_int_eq(unlink(ballast), 0);
        daemon_start(&fixture);
        client = open_client();
        expect_right_or_missing(client, 3000);
        daemon_wait_written(&fixture);
        ck_assert_uint_eq(daemon_verify(&fixture), 0);
        close_client(client);
        daemon_fixture_deinit(&fixture);
}

START_TEST(a_full_file_system_leaves_objects_in_host_memory)
{
        char folder[96], scratch[] = "/var/tmp/kvtier-test-loop-XXXXXX";

        ck_assert_ptr_nonnull(mkdtemp(scratch));
        snprintf(folder, sizeof(folder), "%s/full", scratch);
        if (mount_loop(folder, 96)) {
                work_on_a_full_file_system(folder);
                ck_assert_int_eq(scratch_unmount(folder), 0);
        } else {
                fprintf(stderr, "skipped: no loop device can be mounted here\n");
        }
        scratch_remove(scratch);
}
END_TEST

START_TEST(a_tier_larger_than_its_file_system_is_refused_at_start)
{
        char folder[96], scratch[] = "/var/tmp/kvtier-test-loop-XXXXXX";
        struct daemon_options options = {.nvme_bytes = 128 * MIB, .nvme_folder = folder};

        ck_assert_ptr_nonnull(mkdtemp(scratch));
        snprintf(folder, sizeof(folder), "%s/small", scratch);
        if (mount_loop(folder, 64)) {
                daemon_fixture_prepare(&fixture, &options);
                daemon_launch(&fixture);
                ck_assert_int_gt(daemon_wait_end(&fixture), 0);
                ck_assert(daemon_has_logged(&fixture, "nvme", "bytes"));
                daemon_fixture_deinit(&fixture);
                ck_assert_int_eq(scratch_unmount(folder), 0);
        } else {
                fprintf(stderr, "skipped: no loop device can be mounted here\n");
        }
        scratch_remove(scratch);
}
END_TEST

/* ---- a device that fails ---- */

static struct powerfs_mount *start_powerfs(void)
{
        struct powerfs_mount *mount = NULL;
        const char *reason;

        if (!powerfs_is_available(&reason)) {
                fprintf(stderr, "skipped: %s\n", reason);
                return NULL;
        }
        ck_assert_int_eq(powerfs_new(0, &mount), 0);
        return mount;
}

/* The fixture looks for leftovers, of which the mount's server is none. */
static void end_powerfs(struct powerfs_mount *mount)
{
        daemon_stop(&fixture);
        powerfs_free(mount);
        daemon_fixture_deinit(&fixture);
}

START_TEST(reads_that_fail_are_misses_and_counted)
{
        struct powerfs_mount *mount = start_powerfs();
        struct wire_client *client;

        if (!mount)
                return;
        client = begin_with(6, mount->mountpoint);
        ck_assert_int_eq(powerfs_command(mount, "fail-read 0 *"), 0);
        for (uint64_t i = 0; i < 3; i++)
                ck_assert_uint_ne(get(client, i), KVT_WIRE_OK);
        ck_assert_uint_ge(daemon_number(&fixture, "nvme.io_errors"), 3);
        put(client, 100, MIB);
        ck_assert_uint_eq(get(client, 100), KVT_WIRE_OK);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        for (uint64_t i = 3; i < 6; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_OK);
        close_client(client);
        end_powerfs(mount);
}
END_TEST

START_TEST(objects_whose_write_failed_stay_in_host_memory_alone)
{
        struct powerfs_mount *mount = start_powerfs();
        struct wire_client *client;

        if (!mount)
                return;
        client = begin_with(3, mount->mountpoint);
        ck_assert_int_eq(powerfs_command(mount, "fail-write 0 *"), 0);
        for (uint64_t i = 100; i < 110; i++)
                put(client, i, MIB);
        for (uint64_t i = 100; i < 110; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_OK);
        daemon_wait_written(&fixture);
        daemon_evict(&fixture, "host");
        for (uint64_t i = 100; i < 110; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_MISS);
        ck_assert_uint_ge(daemon_number(&fixture, "nvme.io_errors"), 1);
        put(client, 200, MIB);
        ck_assert_uint_eq(get(client, 200), KVT_WIRE_OK);
        for (uint64_t i = 0; i < 3; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_OK);
        close_client(client);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        end_powerfs(mount);
}
END_TEST

START_TEST(a_catalog_that_cannot_be_written_leaves_objects_in_host_memory)
{
        struct powerfs_mount *mount = start_powerfs();
        struct wire_client *client;

        if (!mount)
                return;
        client = begin_with(3, mount->mountpoint);
        ck_assert_int_eq(powerfs_command(mount, "fail-write 0 *.log"), 0);
        put_and_get_small(client, 3000);
        daemon_evict(&fixture, "host");
        ck_assert(daemon_number(&fixture, "nvme.degraded") ||
                  daemon_number(&fixture, "nvme.io_errors"));
        expect_right_or_missing(client, 3000);
        close_client(client);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        daemon_kill(&fixture);
        daemon_start(&fixture);
        client = open_client();
        for (uint64_t i = 0; i < 3; i++)
                ck_assert_uint_eq(get(client, i), KVT_WIRE_OK);
        expect_right_or_missing(client, 3000);
        close_client(client);
        end_powerfs(mount);
}
END_TEST

int main(void)
{
        const TTest *const tests[] = {
                a_flipped_bit_anywhere_in_an_object_is_a_miss,
                bits_flipped_while_the_daemon_was_down_are_misses,
                swapped_objects_are_misses,
                verify_finds_and_drops_what_is_corrupt,
                a_truncated_file_costs_the_objects_behind_its_end,
                a_file_truncated_while_the_daemon_was_down_is_refused_or_read_as_misses,
                a_second_daemon_on_the_same_path_is_refused,
                a_full_file_system_leaves_objects_in_host_memory,
                a_tier_larger_than_its_file_system_is_refused_at_start,
                reads_that_fail_are_misses_and_counted,
                objects_whose_write_failed_stay_in_host_memory_alone,
                a_catalog_that_cannot_be_written_leaves_objects_in_host_memory,
                NULL,
        };

        return flow_run("disk_faults", tests, 180);
}
