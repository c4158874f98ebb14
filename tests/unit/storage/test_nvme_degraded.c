// SPDX-License-Identifier: Apache-2.0
/* Machines that lack something: the tier works, says so once, and shows it. */
#include <check.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/storage/nvme_fixture.h"

#define NOBODY 65534

static struct nvme_fixture fixture;

static void set_up(void)
{
        fixture_init(&fixture);
}

static void tear_down(void)
{
        fixture_deinit(&fixture);
}

static void store_and_load(void)
{
        struct driver_object object = driver_object(1, 3u << 20);

        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), 0);
}

START_TEST(degraded_ways_are_said_once_and_shown)
{
        struct tier_usage usage;

        fixture.options.force = NVME_FORCE_BUFFERED | NVME_FORCE_THREADS;
        fixture_set_members(&fixture, 2);
        fixture_open(&fixture);
        ck_assert_uint_eq(fixture.n_notices, 2);
        ck_assert(fixture_was_told(&fixture, "io_uring"));
        ck_assert(fixture_was_told(&fixture, "O_DIRECT"));
        usage = driver_usage(&fixture.driver);
        ck_assert(usage.degraded);
        ck_assert_ptr_nonnull(strstr(usage.degraded_reason, "thread pool"));
        ck_assert_ptr_nonnull(strstr(usage.degraded_reason, "O_DIRECT"));
        fixture_close(&fixture);
        fixture.options.force = NVME_FORCE_UNREGISTERED;
        fixture_open(&fixture);
        ck_assert(fixture_was_told(&fixture, "memlock"));
        ck_assert(driver_usage(&fixture.driver).degraded);
        fixture_close(&fixture);
        fixture.options.force = 0;
        fixture_open(&fixture);
        ck_assert_uint_eq(fixture.n_notices, 0);
        ck_assert(!driver_usage(&fixture.driver).degraded);
        fixture_close(&fixture);
}
END_TEST

/* As the default profiles of container engines do: io_uring_setup() answers @error. */
static void forbid_io_uring(int error)
{
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {.len = 4, .filter = filter};

        ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

START_TEST(without_io_uring_a_thread_pool_does_the_work)
{
        const int errors[] = {ENOSYS, EPERM};

        forbid_io_uring(errors[_i]);
        fixture_open(&fixture);
        ck_assert_uint_eq(fixture.n_notices, 1);
        ck_assert(fixture_was_told(&fixture, "io_uring is not available"));
        ck_assert(fixture_was_told(&fixture, strerror(errors[_i])));
        ck_assert_ptr_nonnull(strstr(driver_usage(&fixture.driver).degraded_reason, "thread pool"));
        store_and_load();
        fixture_close(&fixture);
}
END_TEST

START_TEST(under_a_memlock_limit_memory_is_used_unregistered)
{
        const struct rlimit limit = {4u << 20, 4u << 20}; /* the arena has 24 MiB */

        ck_assert_int_eq(chown(fixture.folder, NOBODY, NOBODY), 0);
        ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
        ck_assert_int_eq(setresuid(NOBODY, NOBODY, NOBODY), 0);
        fixture_open(&fixture);
        ck_assert_uint_eq(fixture.n_notices, 1);
        ck_assert(fixture_was_told(&fixture, "memlock"));
        ck_assert_ptr_nonnull(
                strstr(driver_usage(&fixture.driver).degraded_reason, "not registered"));
        store_and_load();
        fixture_close(&fixture);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/nvme degraded");
        TCase *tcase = tcase_create("degraded");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, degraded_ways_are_said_once_and_shown);
        tcase_add_loop_test(tcase, without_io_uring_a_thread_pool_does_the_work, 0, 2);
        if (geteuid())
                puts("without root: the memlock limit is not tried");
        else
                tcase_add_test(tcase, under_a_memlock_limit_memory_is_used_unregistered);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
