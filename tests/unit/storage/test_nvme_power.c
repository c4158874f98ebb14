// SPDX-License-Identifier: Apache-2.0
/*
 * Power loss and device faults, on a file system that keeps un-synced writes apart: data
 * and catalog lie on it together.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/powerfs_client.h"
#include "tests/unit/storage/nvme_fixture.h"

#define SKIP     77
#define N_SYNCED 12u
#define N_LAZY   12u
#define N_ALL    (N_SYNCED + N_LAZY)

static struct nvme_fixture fixture;
static struct powerfs_mount *mount;
static char boot_id[96];
static uint64_t seed;

static void write_boot_id(uint64_t boot)
{
        char text[64];
        int fd = open(boot_id, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        int n = snprintf(text, sizeof(text), "00000000-0000-0000-0000-%012llx\n",
                         (unsigned long long)boot);

        ck_assert_int_eq(write(fd, text, (size_t)n), n);
        close(fd);
}

static void begin(unsigned flags)
{
        ck_assert_int_eq(powerfs_new(flags, &mount), 0);
        fixture_init(&fixture);
        snprintf(fixture.paths[0], sizeof(fixture.paths[0]), "%s/data", mount->mountpoint);
        snprintf(fixture.catalog, sizeof(fixture.catalog), "%s/catalog", mount->mountpoint);
        snprintf(boot_id, sizeof(boot_id), "%s/boot_id", fixture.folder);
        fixture.options.boot_id_path = boot_id;
        write_boot_id(1);
}

static void end(void)
{
        fixture_deinit(&fixture);
        powerfs_free(mount);
}

static void restart_machine(uint64_t boot)
{
        ck_assert_int_eq(powerfs_stop(mount), 0);
        ck_assert_int_eq(powerfs_start(mount), 0);
        write_boot_id(boot);
}

/* With odd seeds every third object; with even ones nothing syncs after driver_sync(). */
static bool is_forgotten(uint32_t i)
{
        return seed % 2 && i < N_SYNCED && i % 3 == 0;
}

static void store_sync_store_cut(struct nvme_fixture *of, struct driver_object *objects)
{
        for (uint32_t i = 0; i < N_SYNCED; i++)
                ck_assert_int_eq(driver_write(&of->driver, &objects[i]), 0);
        ck_assert_int_eq(driver_sync(&of->driver), 0);
        for (uint32_t i = 0; i < N_SYNCED && is_forgotten(0); i += 3)
                ck_assert_int_eq(driver_forget(&of->driver, &objects[i], true), 0);
        for (uint32_t i = N_SYNCED; i < N_ALL; i++)
                ck_assert_int_eq(driver_write(&of->driver, &objects[i]), 0);
        powerfs_cut(mount, seed);
}

/* Every object that came back is read: right bytes or a miss, and how many were right. */
static uint32_t read_survivors(const struct driver_object *objects, uint32_t n)
{
        uint32_t n_right = 0;

        for (uint32_t i = 0; i < fixture.driver.n_found; i++) {
                struct driver_object object = fixture.driver.found[i];
                int r;

                for (uint32_t j = 0; j < n; j++)
                        if (object_key_equal(&objects[j].object.key, &object.object.key))
                                object.seed = objects[j].seed;
                r = driver_read(&fixture.driver, &object);
                ck_assert(r == 0 || r == TIER_E_STALE);
                n_right += r == 0;
        }
        return n_right;
}

START_TEST(a_power_loss_keeps_what_was_synced)
{
        struct driver_object objects[N_ALL];

        seed = (uint64_t)_i + 1;
        begin(0);
        fixture.options.sync_ms = 60000; /* only what is asked for */
        for (uint32_t i = 0; i < N_ALL; i++)
                objects[i] = driver_object(i, 1 + 30011 * i);
        fixture_die_after(&fixture, store_sync_store_cut, objects, N_ALL);
        restart_machine(2);
        fixture_open(&fixture);
        for (uint32_t i = 0; i < N_SYNCED; i++) {
                if (is_forgotten(i)) {
                        ck_assert_ptr_null(driver_find(&fixture.driver, &objects[i]));
                        continue;
                }
                fixture_adopt(&fixture, &objects[i]);
                ck_assert_int_eq(driver_read(&fixture.driver, &objects[i]), 0);
        }
        ck_assert_uint_ge(read_survivors(objects, N_ALL), N_SYNCED - N_SYNCED / 3);
        ck_assert_uint_eq(driver_usage(&fixture.driver).corrupt_total, 0);
        fixture_close(&fixture);
        end();
}
END_TEST

static void close_at_once(struct nvme_fixture *of, struct driver_object *objects)
{
        fixture_close(of);
}

/* Objects of one size come and go over the same space until the power fails. */
static void churn_until_cut(struct nvme_fixture *of, struct driver_object *objects)
{
        bool is_there[N_ALL] = {false};
        int silent = open("/dev/null", O_WRONLY);

        dup2(silent, STDERR_FILENO);
        powerfs_command(mount, "cut-after %u %u", (unsigned)(30 + 17 * seed), (unsigned)seed);
        for (uint32_t step = 0; step < 2000; step++) {
                uint32_t i = (step * 7 + (uint32_t)seed) % N_ALL;
                int r;

                if (is_there[i])
                        r = driver_forget(&of->driver, &objects[i], false);
                else
                        r = driver_write(&of->driver, &objects[i]);
                if (r)
                        return;
                is_there[i] = !is_there[i];
                if (step % 20 == 19 && driver_sync(&of->driver))
                        return;
        }
        ck_abort_msg("the power never failed");
}

START_TEST(a_power_loss_at_any_moment_returns_nothing_wrong)
{
        struct driver_object objects[N_ALL], more = driver_object(900, 500000);

        seed = (uint64_t)_i + 1;
        begin(0);
        for (uint32_t i = 0; i < N_ALL; i++)
                objects[i] = driver_object(i, 200000);
        /* Formatting is not what is cut here. */
        fixture_die_after(&fixture, close_at_once, objects, N_ALL);
        fixture_die_after(&fixture, churn_until_cut, objects, N_ALL);
        restart_machine(2);
        fixture_open(&fixture);
        read_survivors(objects, N_ALL);
        ck_assert_uint_eq(driver_usage(&fixture.driver).corrupt_total, 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &more), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &more), 0);
        fixture_close(&fixture);
        end();
}
END_TEST

START_TEST(a_device_that_refuses_writes_fails_the_one_object)
{
        struct driver_object good = driver_object(1, 100000), bad = driver_object(2, 100000);
        struct tier_usage usage;

        begin(0);
        fixture_open(&fixture);
        ck_assert_int_eq(driver_write(&fixture.driver, &good), 0);
        usage = driver_usage(&fixture.driver);
        ck_assert_int_eq(powerfs_command(mount, "fail-write 0 data"), 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &bad), -EIO);
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, usage.used_bytes);
        ck_assert_uint_gt(driver_usage(&fixture.driver).io_errors_total, 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &good), 0);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &bad), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &bad), 0);
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_open(&fixture), 2);
        fixture_close(&fixture);
        end();
}
END_TEST

START_TEST(a_device_that_refuses_reads_fails_the_one_object)
{
        struct driver_object first = driver_object(1, 100000), second = driver_object(2, 1u << 20);

        begin(0);
        fixture_open(&fixture);
        ck_assert_int_eq(driver_write(&fixture.driver, &first), 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &second), 0);
        ck_assert_int_eq(powerfs_command(mount, "fail-read 700000 data"), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &second), -EIO);
        ck_assert_int_eq(driver_read(&fixture.driver, &first), 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).corrupt_total, 0);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &second), 0);
        fixture_close(&fixture);
        end();
}
END_TEST

/* What ends the catalog: an error of the device, or a full file system. */
static const char *const catalog_faults[] = {"fail-write 0 *.log", "space 0"};
static int catalog_fault;

static void fail_the_catalog(struct nvme_fixture *of, struct driver_object *objects)
{
        uint64_t used;

        ck_assert_int_eq(driver_write(&of->driver, &objects[0]), 0);
        ck_assert_int_eq(driver_sync(&of->driver), 0);
        used = driver_usage(&of->driver).used_bytes;
        ck_assert_int_eq(powerfs_command(mount, "%s", catalog_faults[catalog_fault]), 0);
        ck_assert_int_lt(driver_write(&of->driver, &objects[1]), 0);
        ck_assert_uint_eq(driver_usage(&of->driver).used_bytes, used);
        ck_assert_int_lt(driver_forget(&of->driver, &objects[0], false), 0);
        ck_assert_uint_eq(driver_usage(&of->driver).used_bytes, used);
        ck_assert(driver_usage(&of->driver).degraded);
        ck_assert_int_eq(driver_read(&of->driver, &objects[0]), 0);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        /* Until the next start: stores fail, loads go on, and closing does not hang. */
        ck_assert_int_lt(driver_write(&of->driver, &objects[1]), 0);
        ck_assert_int_eq(driver_read(&of->driver, &objects[0]), 0);
        fixture_close(of);
}

START_TEST(a_catalog_that_refuses_writes_stores_nothing_and_frees_nothing)
{
        struct driver_object objects[2] = {driver_object(1, 100000), driver_object(2, 100000)};

        begin(_i ? POWERFS_NO_FALLOCATE : 0); /* RocksDB's log has no room ahead then */
        catalog_fault = _i;
        fixture_die_after(&fixture, fail_the_catalog, objects, 2);
        ck_assert_uint_ge(fixture_open(&fixture), 1);
        fixture_adopt(&fixture, &objects[0]);
        ck_assert_int_eq(driver_read(&fixture.driver, &objects[0]), 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &objects[1]), 0);
        fixture_close(&fixture);
        end();
}
END_TEST

START_TEST(a_sync_that_fails_is_reported_and_tried_again)
{
        struct driver_object object = driver_object(1, 100000);

        begin(0);
        fixture_open(&fixture);
        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        ck_assert_int_eq(powerfs_command(mount, "fail-sync data"), 0);
        ck_assert_int_lt(driver_sync(&fixture.driver), 0);
        ck_assert_uint_gt(driver_usage(&fixture.driver).io_errors_total, 0);
        ck_assert(driver_usage(&fixture.driver).is_unsynced);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        for (unsigned turns = 0; driver_usage(&fixture.driver).is_unsynced; turns++) {
                ck_assert_uint_lt(turns, 1000);
                uv_run(&fixture.driver.loop, UV_RUN_ONCE);
        }
        fixture_close(&fixture);
        end();
}
END_TEST

START_TEST(what_a_failed_sync_may_have_lost_is_suspect_for_good)
{
        struct driver_object before = driver_object(1, 65536), after = driver_object(2, 65536);
        uint64_t offset;
        uint32_t member;

        begin(0);
        fixture_open(&fixture);
        ck_assert_int_eq(driver_write(&fixture.driver, &before), 0);
        ck_assert_int_eq(powerfs_command(mount, "fail-sync data"), 0);
        ck_assert_int_lt(driver_sync(&fixture.driver), 0);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        ck_assert_int_eq(driver_sync(&fixture.driver), 0);
        ck_assert_ptr_nonnull(strstr(driver_usage(&fixture.driver).degraded_reason, "sync"));
        ck_assert_int_eq(driver_write(&fixture.driver, &after), 0);
        fixture_locate(&before, &member, &offset);
        fixture_flip(&fixture, member, offset + 5000);
        fixture_locate(&after, &member, &offset);
        fixture_flip(&fixture, member, offset + 5000);
        for (unsigned run = 0; run < 2; run++) {
                ck_assert_int_eq(driver_read(&fixture.driver, &before), TIER_E_STALE);
                ck_assert_int_eq(driver_read(&fixture.driver, &after), TIER_E_CORRUPT);
                fixture_close(&fixture);
                fixture_open(&fixture);
                fixture_adopt(&fixture, &before);
                fixture_adopt(&fixture, &after);
        }
        fixture_close(&fixture);
        end();
}
END_TEST

START_TEST(space_that_cannot_be_allocated_ahead_is_said_and_its_end_is_survived)
{
        struct driver_object first = driver_object(1, 4u << 20),
                             second = driver_object(2, 8u << 20);

        begin(POWERFS_NO_FALLOCATE);
        fixture_open(&fixture);
        ck_assert(fixture_was_told(&fixture, "preallocate"));
        ck_assert(driver_usage(&fixture.driver).degraded);
        ck_assert_int_eq(driver_write(&fixture.driver, &first), 0);
        ck_assert_int_eq(powerfs_command(mount, "fail-write %u data", 6u << 20), 0);
        ck_assert_int_lt(driver_write(&fixture.driver, &second), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &first), 0);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &second), 0);
        fixture_close(&fixture);
        end();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/nvme power");
        TCase *tcase = tcase_create("power");
        SRunner *runner = srunner_create(suite);
        const char *reason;
        int failed;

        if (!powerfs_is_available(&reason)) {
                printf("skipped: %s\n", reason);
                return SKIP;
        }
        tcase_set_timeout(tcase, 30);
        tcase_add_loop_test(tcase, a_power_loss_keeps_what_was_synced, 0, 4);
        tcase_add_loop_test(tcase, a_power_loss_at_any_moment_returns_nothing_wrong, 0, 8);
        tcase_add_test(tcase, a_device_that_refuses_writes_fails_the_one_object);
        tcase_add_test(tcase, a_device_that_refuses_reads_fails_the_one_object);
        tcase_add_loop_test(tcase, a_catalog_that_refuses_writes_stores_nothing_and_frees_nothing,
                            0, 2);
        tcase_add_test(tcase, a_sync_that_fails_is_reported_and_tried_again);
        tcase_add_test(tcase, what_a_failed_sync_may_have_lost_is_suspect_for_good);
        tcase_add_test(tcase, space_that_cannot_be_allocated_ahead_is_said_and_its_end_is_survived);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
