// SPDX-License-Identifier: Apache-2.0
/* Which pool, which members, whose catalog: what the tier opens, refuses and leaves alone. */
#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/catalog.h"
#include "storage/superblock.h"
#include "tests/support/scratch.h"
#include "tests/unit/storage/nvme_fixture.h"

#define MIB (1u << 20)

static struct nvme_fixture fixture;
static uint64_t most_allocated_bytes;

/* Takes the place of the C library's, to see what it is asked for. */
int fallocate(int fd, int mode, off_t offset, off_t length)
{
        static int (*real)(int, int, off_t, off_t);

        if (!real)
                *(void **)&real = dlsym(RTLD_NEXT, "fallocate");
        if ((uint64_t)(offset + length) > most_allocated_bytes)
                most_allocated_bytes = (uint64_t)(offset + length);
        return real(fd, mode, offset, length);
}

static void set_up(void)
{
        fixture_init(&fixture);
}

static void tear_down(void)
{
        fixture_deinit(&fixture);
}

static struct driver_object store(uint32_t n, uint64_t raw_bytes)
{
        struct driver_object object = driver_object(n, raw_bytes);

        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        return object;
}

static int read_again(struct driver_object *object)
{
        fixture_adopt(&fixture, object);
        return driver_read(&fixture.driver, object);
}

static off_t size_of(const char *path)
{
        struct stat st;

        ck_assert_int_eq(stat(path, &st), 0);
        return st.st_size;
}

static void write_file(const char *path, const void *bytes, size_t length)
{
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, bytes, length), (ssize_t)length);
        close(fd);
}

START_TEST(a_folder_gets_a_data_file)
{
        char path[128];

        fixture.path_list[0] = fixture.folder;
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        fixture_close(&fixture);
        snprintf(path, sizeof(path), "%s/kvtier.data", fixture.folder);
        ck_assert_int_eq(size_of(path), 32 * MIB);
}
END_TEST

START_TEST(content_of_others_is_never_overwritten)
{
        char bytes[6] = "letter", again[6];

        write_file(fixture.paths[0], bytes, sizeof(bytes));
        ck_assert_int_eq(fixture_try_open(&fixture), -EEXIST);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "--format"));
        fixture_peek(&fixture, 0, 0, again, sizeof(again));
        ck_assert_mem_eq(bytes, again, sizeof(bytes));
        ck_assert_int_eq(size_of(fixture.paths[0]), sizeof(bytes));
}
END_TEST

START_TEST(content_behind_zeros_is_never_overwritten)
{
        ck_assert_int_eq(truncate(fixture.folder, 0), -1); /* a folder is not a member's file */
        write_file(fixture.paths[0], "", 0);
        ck_assert_int_eq(truncate(fixture.paths[0], 10 * MIB), 0);
        fixture_poke(&fixture, 0, 5 * MIB, "deep", 4);
        ck_assert_int_eq(fixture_try_open(&fixture), -EEXIST);
}
END_TEST

START_TEST(an_empty_or_merely_allocated_file_is_taken)
{
        int fd = open(fixture.paths[0], O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

        ck_assert_int_eq(fallocate(fd, 0, 0, 8 * MIB), 0);
        close(fd);
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(format_overwrites_what_it_is_told_to)
{
        struct driver_object object;

        write_file(fixture.paths[0], "letter", 6);
        fixture.options.format = true;
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        object = store(1, 65536);
        fixture_close(&fixture);
        fixture.options.format = false;
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        fixture_close(&fixture);
        fixture.options.format = true;
        fixture.options.bytes = 16 * MIB;
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        ck_assert_ptr_null(driver_find(&fixture.driver, &object));
        fixture_close(&fixture);
        ck_assert_int_eq(size_of(fixture.paths[0]), 16 * MIB);
}
END_TEST

START_TEST(two_daemons_on_one_path_are_refused)
{
        struct nvme_options options = fixture.options;
        char catalog[128];
        struct tier *second;
        struct why why = {""};

        fixture_open(&fixture);
        snprintf(catalog, sizeof(catalog), "%s/other", fixture.folder);
        options.catalog_path = catalog;
        options.format = true; /* formatting does not take what is in use either */
        ck_assert_int_eq(nvme_open(&second, &fixture.driver.loop, &options, &why), -EBUSY);
        ck_assert_ptr_nonnull(strstr(why.text, "in use"));
        store(1, 65536);
        fixture_close(&fixture);
}
END_TEST

START_TEST(two_daemons_on_one_catalog_are_refused)
{
        struct nvme_options options = fixture.options;
        const char *other[] = {fixture.paths[1]};
        struct tier *second;
        struct why why = {""};

        fixture_open(&fixture);
        options.paths = other;
        ck_assert_int_eq(nvme_open(&second, &fixture.driver.loop, &options, &why), -EBUSY);
        fixture_close(&fixture);
}
END_TEST

START_TEST(one_path_twice_is_refused)
{
        fixture_set_members(&fixture, 2);
        fixture.path_list[1] = fixture.paths[0];
        ck_assert_int_eq(fixture_try_open(&fixture), -EINVAL);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "twice"));
}
END_TEST

START_TEST(a_lost_catalog_starts_empty_under_a_new_epoch)
{
        struct driver_object old, new;

        fixture_open(&fixture);
        old = store(1, 65536);
        fixture_close(&fixture);
        scratch_remove(fixture.catalog);
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        ck_assert(fixture_was_told(&fixture, "epoch 2"));
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, 0);
        /* The first claims come again; what lies there of the old epoch must not count. */
        new = store(2, 65536);
        ck_assert_uint_eq(new.place.claim, old.place.claim);
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        ck_assert_int_eq(read_again(&new), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(bytes_of_an_older_epoch_are_not_returned)
{
        struct driver_object object;
        uint8_t *old = malloc(69632);
        uint64_t offset, again;
        uint32_t member;

        fixture_open(&fixture);
        object = store(1, 65536);
        fixture_locate(&object, &member, &offset);
        fixture_peek(&fixture, member, offset, old, 69632);
        fixture_close(&fixture);
        scratch_remove(fixture.catalog);
        fixture_open(&fixture);
        object = store(1, 65536);
        fixture_locate(&object, &member, &again);
        ck_assert_uint_eq(offset, again);
        /* The same claim, place, key and generation: only the epoch tells them apart. */
        fixture_poke(&fixture, member, offset, old, 69632);
        ck_assert_int_eq(driver_read(&fixture.driver, &object), TIER_E_CORRUPT);
        free(old);
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_damaged_catalog_is_a_lost_one)
{
        char path[160];

        fixture_open(&fixture);
        store(1, 65536);
        fixture_close(&fixture);
        snprintf(path, sizeof(path), "%s/CURRENT", fixture.catalog);
        write_file(path, "nonsense", 8);
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        ck_assert(fixture_was_told(&fixture, "made anew"));
        store(1, 65536);
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        fixture_close(&fixture);
}
END_TEST

START_TEST(an_older_catalog_counts_as_lost)
{
        char kept[128], command[400];

        snprintf(kept, sizeof(kept), "%s/kept", fixture.folder);
        fixture_open(&fixture);
        store(1, 65536);
        fixture_close(&fixture);
        snprintf(command, sizeof(command), "cp -r %s %s", fixture.catalog, kept);
        ck_assert_int_eq(system(command), 0);
        scratch_remove(fixture.catalog);
        fixture_open(&fixture); /* epoch 2 */
        store(2, 65536);
        fixture_close(&fixture);
        scratch_remove(fixture.catalog);
        ck_assert_int_eq(rename(kept, fixture.catalog), 0);
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        ck_assert(fixture_was_told(&fixture, "epoch 3"));
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_count_entries(&fixture), 0);
}
END_TEST

START_TEST(lost_data_under_a_catalog_are_misses)
{
        struct driver_object object;

        fixture_open(&fixture);
        object = store(1, 65536);
        fixture_close(&fixture);
        ck_assert_int_eq(unlink(fixture.paths[0]), 0);
        ck_assert_uint_eq(fixture_open(&fixture), 0);
        ck_assert(fixture_was_told(&fixture, "dropped"));
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, 0);
        ck_assert_int_eq(driver_write(&fixture.driver, &object), 0);
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        fixture_close(&fixture);
}
END_TEST

START_TEST(members_in_another_order_keep_their_objects)
{
        struct driver_object objects[6];

        fixture_set_members(&fixture, 3);
        fixture_open(&fixture);
        for (uint32_t i = 0; i < 6; i++)
                objects[i] = store(i, i < 5 ? 65536 : 12 * MIB);
        fixture_close(&fixture);
        fixture.path_list[0] = fixture.paths[2];
        fixture.path_list[2] = fixture.paths[0];
        ck_assert_uint_eq(fixture_open(&fixture), 6);
        for (uint32_t i = 0; i < 6; i++)
                ck_assert_int_eq(read_again(&objects[i]), 0);
        fixture_close(&fixture);
}
END_TEST

START_TEST(members_with_swapped_contents_keep_their_objects)
{
        struct driver_object object;
        char spare[128];

        snprintf(spare, sizeof(spare), "%s/spare", fixture.folder);
        fixture_set_members(&fixture, 2);
        fixture_open(&fixture);
        object = store(1, 12 * MIB);
        fixture_close(&fixture);
        ck_assert_int_eq(rename(fixture.paths[0], spare), 0);
        ck_assert_int_eq(rename(fixture.paths[1], fixture.paths[0]), 0);
        ck_assert_int_eq(rename(spare, fixture.paths[1]), 0);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        ck_assert_int_eq(read_again(&object), 0);
        fixture_close(&fixture);
}
END_TEST

/* Objects until each member holds one, and a striped one. */
static uint32_t store_on_both(struct driver_object objects[3])
{
        uint32_t members[2];
        uint64_t offset;

        for (uint32_t i = 0; i < 2; i++) {
                objects[i] = store(i, MIB);
                fixture_locate(&objects[i], &members[i], &offset);
        }
        ck_assert_uint_ne(members[0], members[1]);
        objects[2] = store(2, 12 * MIB);
        return members[0];
}

START_TEST(objects_of_a_missing_member_are_misses)
{
        struct driver_object objects[3];
        uint32_t member_of_first;

        fixture_set_members(&fixture, 2);
        fixture_open(&fixture);
        member_of_first = store_on_both(objects);
        fixture_close(&fixture);
        fixture.path_list[0] = fixture.paths[member_of_first];
        fixture.options.n_paths = 1;
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        ck_assert(fixture_was_told(&fixture, "missing"));
        ck_assert(driver_usage(&fixture.driver).degraded);
        ck_assert_int_eq(read_again(&objects[0]), 0);
        ck_assert_ptr_null(driver_find(&fixture.driver, &objects[1]));
        ck_assert_ptr_null(driver_find(&fixture.driver, &objects[2]));
        ck_assert_uint_eq(driver_usage(&fixture.driver).objects, 1);
        fixture_close(&fixture);
}
END_TEST

START_TEST(a_replaced_member_joins_empty)
{
        struct driver_object objects[3], more;
        uint32_t member_of_first;

        fixture_set_members(&fixture, 2);
        fixture_open(&fixture);
        member_of_first = store_on_both(objects);
        fixture_close(&fixture);
        ck_assert_int_eq(unlink(fixture.paths[1 - member_of_first]), 0);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        more = store(7, 12 * MIB);
        fixture_close(&fixture);
        ck_assert_uint_eq(fixture_open(&fixture), 2);
        ck_assert_int_eq(read_again(&objects[0]), 0);
        ck_assert_int_eq(read_again(&more), 0);
        ck_assert_uint_eq(driver_usage(&fixture.driver).degraded, 0);
        fixture_close(&fixture);
}
END_TEST

/* Makes a pool of one member at path d with a catalog of its own. */
static void make_other_pool(void)
{
        struct nvme_options options = fixture.options;
        const char *path = fixture.paths[3];
        char catalog[128];
        struct tier *tier;
        struct driver *driver = &fixture.driver;

        snprintf(catalog, sizeof(catalog), "%s/other", fixture.folder);
        options.paths = &path;
        options.n_paths = 1;
        options.bytes = 32 * MIB;
        options.catalog_path = catalog;
        options.format = true; /* formatting does not take what is in use either */
        ck_assert_int_eq(nvme_open(&tier, &driver->loop, &options, &fixture.why), 0);
        driver_attach(driver, tier);
        driver_recover(driver);
        store(9, 65536);
        driver_close(driver);
}

START_TEST(a_member_of_another_pool_is_left_alone)
{
        struct driver_object objects[3];
        uint8_t before[4096], after[4096];
        uint32_t member_of_first;

        make_other_pool();
        fixture_set_members(&fixture, 2);
        fixture_open(&fixture);
        member_of_first = store_on_both(objects);
        fixture_close(&fixture);
        fixture_peek(&fixture, 3, 0, before, sizeof(before));
        fixture.path_list[1 - member_of_first] = fixture.paths[3];
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        ck_assert(fixture_was_told(&fixture, "another pool"));
        ck_assert_int_eq(read_again(&objects[0]), 0);
        store(5, 12 * MIB);
        fixture_close(&fixture);
        fixture_peek(&fixture, 3, 0, after, sizeof(after));
        ck_assert_mem_eq(before, after, sizeof(before));
}
END_TEST

START_TEST(a_pool_with_the_catalog_of_another_is_refused)
{
        make_other_pool();
        fixture_open(&fixture);
        store(1, 65536);
        fixture_close(&fixture);
        fixture.path_list[0] = fixture.paths[3];
        ck_assert_int_lt(fixture_try_open(&fixture), 0);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "catalog"));
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "--format"));
}
END_TEST

START_TEST(a_member_of_a_newer_format_is_refused)
{
        uint32_t version = 12;

        fixture_open(&fixture);
        fixture_close(&fixture);
        fixture_poke(&fixture, 0, 8, &version, sizeof(version));
        ck_assert_int_eq(fixture_try_open(&fixture), -EPROTONOSUPPORT);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "12"));
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "up to 1"));
        ck_assert_ptr_nonnull(strstr(fixture.why.text, fixture.paths[0]));
}
END_TEST

START_TEST(a_catalog_of_a_newer_format_is_refused)
{
        struct catalog_pool pool;
        struct database *catalog;

        fixture_open(&fixture);
        fixture_close(&fixture);
        catalog = fixture_open_catalog(&fixture);
        ck_assert_int_eq(catalog_load_pool(catalog, &pool, NULL), 0);
        pool.version = 31;
        ck_assert_int_eq(catalog_store_pool(catalog, &pool, NULL), 0);
        fixture_close_catalog(&fixture, catalog);
        ck_assert_int_eq(fixture_try_open(&fixture), -EPROTONOSUPPORT);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "31"));
}
END_TEST

START_TEST(one_damaged_superblock_is_made_up_for_by_the_other)
{
        struct driver_object object;

        fixture_open(&fixture);
        object = store(1, 65536);
        fixture_close(&fixture);
        fixture_flip(&fixture, 0, 100);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        ck_assert_int_eq(read_again(&object), 0);
        fixture_close(&fixture);
        fixture_flip(&fixture, 0, 100);
        fixture_flip(&fixture, 0, SUPERBLOCK_COPY_BYTES + 50);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        fixture_close(&fixture);
}
END_TEST

START_TEST(two_damaged_superblocks_are_refused)
{
        fixture_open(&fixture);
        fixture_close(&fixture);
        fixture_flip(&fixture, 0, 100);
        fixture_flip(&fixture, 0, SUPERBLOCK_COPY_BYTES + 100);
        ck_assert_int_lt(fixture_try_open(&fixture), 0);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "damaged"));
}
END_TEST

static uint32_t fill(uint32_t first)
{
        uint32_t n = 0;

        for (;;) {
                struct driver_object object = driver_object(first + n, MIB);
                int r = driver_write(&fixture.driver, &object);

                if (r == TIER_E_FULL)
                        return n;
                ck_assert_int_eq(r, 0);
                n++;
        }
}

START_TEST(the_cap_holds_over_restarts)
{
        struct tier_usage usage;

        fixture_set_members(&fixture, 2);
        fixture.options.bytes = 32 * MIB;
        fixture_open(&fixture);
        ck_assert_uint_ge(fill(0), 28);
        for (uint32_t i = 0; i < 64; i++) {
                struct driver_object object = driver_object(1000 + i, MIB);

                ck_assert_int_eq(driver_write(&fixture.driver, &object), TIER_E_FULL);
        }
        usage = driver_usage(&fixture.driver);
        ck_assert_uint_le(usage.used_bytes, usage.capacity_bytes);
        ck_assert_uint_le(usage.capacity_bytes, 32 * MIB);
        fixture_close(&fixture);
        fixture_open(&fixture);
        ck_assert_uint_eq(driver_usage(&fixture.driver).used_bytes, usage.used_bytes);
        ck_assert_uint_eq(fill(5000), 0);
        fixture_close(&fixture);
        ck_assert_int_le(size_of(fixture.paths[0]) + size_of(fixture.paths[1]), 32 * MIB);
}
END_TEST

START_TEST(a_smaller_cap_than_the_files_is_refused_with_the_remedy)
{
        fixture_open(&fixture);
        fixture_close(&fixture);
        fixture.options.bytes = 16 * MIB;
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "33554432"));
        ck_assert_int_eq(fixture_try_open(&fixture), -EINVAL);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "33554432"));
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "--format"));
}
END_TEST

START_TEST(a_larger_cap_grows_the_files)
{
        struct driver_object object;
        uint64_t capacity;

        fixture_open(&fixture);
        object = store(1, MIB);
        capacity = driver_usage(&fixture.driver).capacity_bytes;
        fixture_close(&fixture);
        fixture.options.bytes = 48 * MIB;
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        ck_assert_uint_eq(driver_usage(&fixture.driver).capacity_bytes, capacity + 16 * MIB);
        ck_assert_int_eq(read_again(&object), 0);
        ck_assert_uint_ge(fill(100), 45);
        fixture_close(&fixture);
        ck_assert_uint_ge(fixture_open(&fixture), 46);
        fixture_close(&fixture);
}
END_TEST

START_TEST(another_path_grows_the_pool)
{
        struct driver_object object;

        fixture_open(&fixture);
        object = store(1, MIB);
        fixture_close(&fixture);
        fixture_set_members(&fixture, 2);
        ck_assert_uint_eq(fixture_open(&fixture), 1);
        ck_assert_int_eq(read_again(&object), 0);
        ck_assert_uint_ge(fill(100), 58);
        fixture_close(&fixture);
}
END_TEST

START_TEST(too_small_a_share_is_refused)
{
        fixture.options.bytes = 1 * MIB;
        ck_assert_int_eq(fixture_try_open(&fixture), -EINVAL);
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -EINVAL);
}
END_TEST

START_TEST(check_agrees_with_open_and_changes_nothing)
{
        fixture_set_members(&fixture, 2);
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), 0);
        ck_assert_int_eq(access(fixture.paths[0], F_OK), -1);
        ck_assert_int_eq(access(fixture.catalog, F_OK), -1);
        fixture_open(&fixture);
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), 0); /* in use: fine */
        fixture_close(&fixture);
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), 0);
        fixture.options.catalog_path = fixture.folder; /* the data files lie there */
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -EEXIST);
        fixture.options.catalog_path = fixture.catalog;
        write_file(fixture.paths[0], "letter", 6);
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -EEXIST);
}
END_TEST

START_TEST(check_adds_up_what_paths_on_one_file_system_want)
{
        struct statvfs fs;
        uint64_t free_bytes;

        fixture_set_members(&fixture, 2);
        ck_assert_int_eq(statvfs(fixture.folder, &fs), 0);
        free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        fixture.options.bytes = free_bytes / 2 / MIB * MIB;
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), 0);
        /* Each alone would have room. */
        fixture.options.bytes = free_bytes / 2 * 3 / MIB * MIB;
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -ENOSPC);
}
END_TEST

START_TEST(room_is_not_found_out_by_taking_it)
{
        fixture_open(&fixture);
        fixture_close(&fixture);
        ck_assert_uint_ge(most_allocated_bytes, 16 * MIB);
        most_allocated_bytes = 0;
        fixture.options.bytes = 8ull << 40;
        ck_assert_int_eq(fixture_try_open(&fixture), -ENOSPC);
        ck_assert_uint_eq(most_allocated_bytes, 0);
}
END_TEST

START_TEST(check_says_what_would_be_right)
{
        fixture.options.bytes = 8ull << 40;
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -ENOSPC);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "room for"));
        ck_assert_int_eq(fixture_try_open(&fixture), -ENOSPC);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "room for"));
        fixture.options.bytes = 32 * MIB;
        fixture.path_list[0] = "/nowhere/at/all";
        ck_assert_int_eq(nvme_check(&fixture.options, &fixture.why), -ENOENT);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "/nowhere/at"));
        ck_assert_int_lt(fixture_try_open(&fixture), 0);
        ck_assert_ptr_nonnull(strstr(fixture.why.text, "/nowhere/at/all"));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/nvme pool");
        TCase *tcase = tcase_create("pool");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, a_folder_gets_a_data_file);
        tcase_add_test(tcase, content_of_others_is_never_overwritten);
        tcase_add_test(tcase, content_behind_zeros_is_never_overwritten);
        tcase_add_test(tcase, an_empty_or_merely_allocated_file_is_taken);
        tcase_add_test(tcase, format_overwrites_what_it_is_told_to);
        tcase_add_test(tcase, two_daemons_on_one_path_are_refused);
        tcase_add_test(tcase, two_daemons_on_one_catalog_are_refused);
        tcase_add_test(tcase, one_path_twice_is_refused);
        tcase_add_test(tcase, a_lost_catalog_starts_empty_under_a_new_epoch);
        tcase_add_test(tcase, bytes_of_an_older_epoch_are_not_returned);
        tcase_add_test(tcase, a_damaged_catalog_is_a_lost_one);
        tcase_add_test(tcase, an_older_catalog_counts_as_lost);
        tcase_add_test(tcase, lost_data_under_a_catalog_are_misses);
        tcase_add_test(tcase, members_in_another_order_keep_their_objects);
        tcase_add_test(tcase, members_with_swapped_contents_keep_their_objects);
        tcase_add_test(tcase, objects_of_a_missing_member_are_misses);
        tcase_add_test(tcase, a_replaced_member_joins_empty);
        tcase_add_test(tcase, a_member_of_another_pool_is_left_alone);
        tcase_add_test(tcase, a_pool_with_the_catalog_of_another_is_refused);
        tcase_add_test(tcase, a_member_of_a_newer_format_is_refused);
        tcase_add_test(tcase, a_catalog_of_a_newer_format_is_refused);
        tcase_add_test(tcase, one_damaged_superblock_is_made_up_for_by_the_other);
        tcase_add_test(tcase, two_damaged_superblocks_are_refused);
        tcase_add_test(tcase, the_cap_holds_over_restarts);
        tcase_add_test(tcase, a_smaller_cap_than_the_files_is_refused_with_the_remedy);
        tcase_add_test(tcase, a_larger_cap_grows_the_files);
        tcase_add_test(tcase, another_path_grows_the_pool);
        tcase_add_test(tcase, too_small_a_share_is_refused);
        tcase_add_test(tcase, check_agrees_with_open_and_changes_nothing);
        tcase_add_test(tcase, check_adds_up_what_paths_on_one_file_system_want);
        tcase_add_test(tcase, room_is_not_found_out_by_taking_it);
        tcase_add_test(tcase, check_says_what_would_be_right);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
