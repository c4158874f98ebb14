// SPDX-License-Identifier: Apache-2.0
/*
 * Real devices that fail: a loop device with ext4 that is too small, that loses its
 * blocks, and a block device as a member. Needs root and loop devices; skipped without.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/scratch.h"
#include "tests/unit/storage/nvme_fixture.h"

#define MIB  (1u << 20)
#define SKIP 77

static char folder[64], image[80], mounted[80], device[64];
static struct nvme_fixture fixture;

__attribute__((format(printf, 1, 2))) static int run(const char *format, ...)
{
        char command[512];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(command, sizeof(command), format, arguments);
        va_end(arguments);
        return system(command);
}

/* Attaches a new image of @mib to a loop device. */
static bool attach_loop(uint32_t mib)
{
        char command[256];
        FILE *pipe;

        snprintf(image, sizeof(image), "%s/image", folder);
        snprintf(mounted, sizeof(mounted), "%s/mounted", folder);
        snprintf(command, sizeof(command), "truncate -s %uM %s && losetup -f --show %s 2>&1", mib,
                 image, image);
        pipe = popen(command, "r");
        if (!pipe || !fgets(device, sizeof(device), pipe))
                device[0] = '\0';
        if (pipe)
                pclose(pipe);
        device[strcspn(device, "\n")] = '\0';
        return !strncmp(device, "/dev/loop", 9);
}

/* Outside of the forked tests, so that nothing stays behind when one of them fails. */
static void make_file_system(void)
{
        scratch_make(folder, sizeof(folder));
        if (!attach_loop(64) || run("mkfs.ext4 -q -m 0 %s && mkdir %s && mount %s %s", device,
                                    mounted, device, mounted))
                abort();
}

static void remove_file_system(void)
{
        scratch_unmount(mounted);
        run("losetup -d %s", device);
        scratch_remove(folder);
}

static void make_device(void)
{
        scratch_make(folder, sizeof(folder));
        if (!attach_loop(64))
                abort();
}

static void remove_device(void)
{
        run("losetup -d %s", device);
        scratch_remove(folder);
}

/* The ring of the test before lets go of its data file a little after that test's end. */
static void wait_for_room(void)
{
        char command[256];

        snprintf(command, sizeof(command),
                 "test $(($(stat -f -c '%%a * %%S' %s))) -ge $((48 << 20))", mounted);
        ck_assert_int_eq(scratch_run_patiently(command), 0);
}

/* The data file on the mounted file system, the catalog beside it on the machine's own. */
static void set_up(void)
{
        wait_for_room();
        fixture_init(&fixture);
        snprintf(fixture.paths[0], sizeof(fixture.paths[0]), "%s/data", mounted);
}

static void tear_down(void)
{
        unlink(fixture.paths[0]);
        fixture_deinit(&fixture);
}

START_TEST(a_pool_larger_than_the_file_system_is_refused)
{
        fixture.options.bytes = 128 * MIB;
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -ENOSPC);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "134217728"));
        ck_assert_int_eq(fixture_try_open(&fixture), -ENOSPC);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "134217728"));
        /* What the attempt had allocated is free again, and the right size is taken. */
        fixture.options.bytes = 32 * MIB;
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_full_file_system_does_not_touch_allocated_space)
{
        struct driver_object object = driver_object(1, 8 * MIB);

        fixture_open(&fixture);
        run("dd if=/dev/zero of=%s/filler bs=1M 2>/dev/null", mounted);
        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
        ck_assert_int_eq(driver_sync(&fixture.driver), 0);
        fixture_close(&fixture);
        run("rm %s/filler", mounted);
}
END_TEST

START_TEST(a_device_that_lost_its_blocks_fails_reads_and_serves_on)
{
        struct driver_object objects[24];
        struct tier_usage usage;
        uint32_t n_failed = 0;

        fixture_open(&fixture);
        for (uint32_t i = 0; i < 24; i++) {
                objects[i] = driver_object(i, MIB);
                ck_assert_int_eq(driver_write(&fixture.driver, &objects[i]), 0);
        }
        ck_assert_int_eq(driver_sync(&fixture.driver), 0);
        ck_assert_int_eq(run("truncate -s 24M %s && losetup -c %s", image, device), 0);
        for (uint32_t i = 0; i < 24; i++)
                n_failed += driver_read(&fixture.driver, &objects[i]) != 0;
        ck_assert_uint_gt(n_failed, 0);
        usage = driver_usage(&fixture.driver);
        ck_assert_uint_gt(usage.io_errors_total + usage.corrupt_total, 0);
        ck_assert_uint_eq(usage.queued_reads, 0);
        /* The failed ones can be forgotten, and the tier goes on. */
        for (uint32_t i = 0; i < 24; i++)
                ck_assert_int_eq(driver_forget(&fixture.driver, &objects[i], false), 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, 0);
        ck_assert_int_eq(run("truncate -s 64M %s && losetup -c %s", image, device), 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &objects[0]), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &objects[0]), 0);
        fixture_close(&fixture);
}
END_TEST

static void set_up_device(void)
{
        fixture_init(&fixture);
        fixture.path_list[0] = device;
        snprintf(fixture.paths[0], sizeof(fixture.paths[0]), "%s", device);
}

static void tear_down_device(void)
{
        fixture_deinit(&fixture);
}

START_TEST(a_block_device_is_a_member)
{
        struct driver_object object = driver_object(1, 9 * MIB);
        struct nvme_options options;
        struct tier *second;
        char catalog[128];

        fixture.options.bytes = 48 * MIB;
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        ck_assert_uint_le(driver_usage(&fixture.driver).capacity_bytes, 48 * MIB);
        ck_assert(!driver_usage(&fixture.driver).degraded);
        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        options = fixture.options;
        snprintf(catalog, sizeof(catalog), "%s/other", fixture.folder);
        options.catalog_path = catalog;
        ck_assert_int_eq(nvme_open(&second, &fixture.driver.loop, &options, &fixture.why), -EBUSY);
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        fixture_adopt(&fixture, &object);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_block_device_with_a_file_system_is_refused)
{
        char bytes[2048], again[2048], make[512];

        snprintf(make, sizeof(make),
                 "wipefs -qa %s; dd if=/dev/zero of=%s bs=1M count=1 2>/dev/null; "
                 "mkfs.ext4 -q -F %s",
                 device, device, device);
        ck_assert_int_eq(scratch_run_patiently(make), 0);
        fixture_peek(&fixture, 0, 0, bytes, sizeof(bytes));
        ck_assert_int_eq(fixture_try_open(&fixture), -EEXIST);
        fixture_peek(&fixture, 0, 0, again, sizeof(again));
        ck_assert_mem_eq(bytes, again, sizeof(bytes));
        fixture.options.format = true;
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        fixture_close(&fixture);
}
END_TEST

static bool has_loop_devices(void)
{
        bool works;

        scratch_make(folder, sizeof(folder));
        works = !geteuid() && attach_loop(4);
        if (works)
                run("losetup -d %s", device);
        scratch_remove(folder);
        return works;
}

int main(void)
{
        Suite *suite = suite_create("storage/nvme device");
        TCase *files = tcase_create("file system"), *blocks = tcase_create("block device");
        SRunner *runner = srunner_create(suite);
        int failed;

        if (!has_loop_devices()) {
                puts("skipped: no loop device can be set up here (root is needed)");
                return SKIP;
        }
        tcase_add_unchecked_fixture(files, make_file_system, remove_file_system);
        tcase_add_checked_fixture(files, set_up, tear_down);
        tcase_set_timeout(files, 30);
        tcase_add_test(files, a_pool_larger_than_the_file_system_is_refused);
        tcase_add_test(files, a_full_file_system_does_not_touch_allocated_space);
        tcase_add_test(files, a_device_that_lost_its_blocks_fails_reads_and_serves_on);
        suite_add_tcase(suite, files);
        tcase_add_unchecked_fixture(blocks, make_device, remove_device);
        tcase_add_checked_fixture(blocks, set_up_device, tear_down_device);
        tcase_set_timeout(blocks, 30);
        tcase_add_test(blocks, a_block_device_is_a_member);
        tcase_add_test(blocks, a_block_device_with_a_file_system_is_refused);
        suite_add_tcase(suite, blocks);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
