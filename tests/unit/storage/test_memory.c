// SPDX-License-Identifier: Apache-2.0
/* Bounds on memory, read from a made-up machine below a folder. */
#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "storage/memory.h"

#define MIB (1ull << 20)

static char root[] = "/tmp/kvtier-memory-XXXXXX";

/* Writes a file of the made-up machine, with the folders above it. */
static void put(const char *path, const char *text)
{
        char full[512];
        FILE *file;

        snprintf(full, sizeof(full), "%s%s", root, path);
        for (char *slash = strchr(full + sizeof(root), '/'); slash;
             slash = strchr(slash + 1, '/')) {
                *slash = '\0';
                ck_assert(mkdir(full, 0700) == 0 || errno == EEXIST);
                *slash = '/';
        }
        file = fopen(full, "we");
        ck_assert_ptr_nonnull(file);
        fputs(text, file);
        ck_assert_int_eq(fclose(file), 0);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place)
{
        (void)status;
        (void)type;
        (void)place;
        return remove(path);
}

static void set_up(void)
{
        ck_assert_ptr_nonnull(mkdtemp(root));
        put("/proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n");
}

static void tear_down(void)
{
        nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct memory_bounds read_bounds(uint64_t page_bytes)
{
        struct memory_bounds bounds;

        ck_assert_int_eq(memory_read(&bounds, page_bytes, root), 0);
        return bounds;
}

static void assert_bounds(struct memory_bounds bounds, uint64_t limit_mib, uint64_t free_mib)
{
        ck_assert_uint_eq(bounds.limit.bytes / MIB, limit_mib);
        ck_assert_uint_eq(bounds.free.bytes / MIB, free_mib);
}

START_TEST(ram_alone_bounds_where_no_cgroup_does)
{
        struct memory_bounds bounds = read_bounds(4096);

        assert_bounds(bounds, 8192, 4096);
        ck_assert_ptr_nonnull(strstr(bounds.limit.source, "MemTotal"));
}
END_TEST

START_TEST(a_machine_that_tells_nothing_is_a_failure)
{
        struct memory_bounds bounds = {.limit.bytes = 7};

        ck_assert_int_eq(memory_read(&bounds, 4096, "/nonexistent"), -EIO);
        ck_assert_uint_eq(bounds.limit.bytes, 7);
}
END_TEST

#define V1_MOUNT "32 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"

START_TEST(version_1_leaves_its_limit_less_what_is_used)
{
        put("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n");
        put("/proc/self/mountinfo", V1_MOUNT);
        put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1073741824\n");
        put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "536870912\n");
        put("/sys/fs/cgroup/memory/a/b/memory.stat",
            "inactive_file 1\ntotal_inactive_file 134217728\n");
        put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_bounds(read_bounds(4096), 1024, 640);
}
END_TEST

START_TEST(the_tightest_level_above_counts)
{
        struct memory_bounds bounds;

        put("/proc/self/cgroup", "0::/a/b\n");
        put("/proc/self/mountinfo", "9 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        put("/sys/fs/cgroup/a/b/memory.max", "max\n");
        put("/sys/fs/cgroup/a/b/memory.current", "1\n");
        put("/sys/fs/cgroup/a/memory.max", "2147483648\n");
        put("/sys/fs/cgroup/a/memory.current", "3221225472\n");
        bounds = read_bounds(4096);
        assert_bounds(bounds, 2048, 0);
        ck_assert_str_eq(bounds.free.source, "/sys/fs/cgroup/a/memory.max");
}
END_TEST

START_TEST(a_container_sees_its_own_folder_at_the_mount)
{
        put("/proc/self/cgroup", "4:memory:/docker/abc\n");
        put("/proc/self/mountinfo",
            "32 31 0:29 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
        put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
        put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
        assert_bounds(read_bounds(4096), 512, 512);
}
END_TEST

START_TEST(huge_pages_are_bounded_by_their_pool_and_their_cgroup)
{
        put("/proc/self/cgroup", "3:hugetlb:/a\n");
        put("/proc/self/mountinfo",
            "32 31 0:29 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n");
        assert_bounds(read_bounds(2 * MIB), 0, 0);
        put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
        put("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500\n");
        put("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "100\n");
        assert_bounds(read_bounds(2 * MIB), 1024, 800);
        put("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "268435456\n");
        put("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.usage_in_bytes", "67108864\n");
        assert_bounds(read_bounds(2 * MIB), 256, 192);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/memory");
        TCase *tcase = tcase_create("memory");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, ram_alone_bounds_where_no_cgroup_does);
        tcase_add_test(tcase, a_machine_that_tells_nothing_is_a_failure);
        tcase_add_test(tcase, version_1_leaves_its_limit_less_what_is_used);
        tcase_add_test(tcase, the_tightest_level_above_counts);
        tcase_add_test(tcase, a_container_sees_its_own_folder_at_the_mount);
        tcase_add_test(tcase, huge_pages_are_bounded_by_their_pool_and_their_cgroup);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
