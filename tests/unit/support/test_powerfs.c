// SPDX-License-Identifier: Apache-2.0
/*
 * Proves that powerfs loses what it may lose and nothing else. Each claim about loss is
 * tried over a range of seeds, and where two outcomes are allowed both must be seen.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/powerfs_client.h"
#include "tests/unit/support/test_powerfs_rocksdb.h"

#define N_SEEDS 24
#define SECTOR  512
#define MIB     (1 << 20)

static struct powerfs_mount *mount;

static void setup(void)
{
        ck_assert_int_eq(powerfs_new(0, &mount), 0);
}

static void teardown(void)
{
        ck_assert_int_eq(powerfs_stop(mount), 0);
        mount = powerfs_free(mount);
}

static const char *at(const char *name)
{
        static char paths[4][PATH_MAX];
        static unsigned next;
        char *path = paths[next++ % 4];

        snprintf(path, PATH_MAX, "%s/%s", mount->mountpoint, name);
        return path;
}

static void put(const char *name, int flags, int byte, size_t length, off_t offset)
{
        _cleanup_free_ char *bytes = malloc(length);
        _cleanup_fd_ int fd = open(at(name), O_WRONLY | O_CREAT | flags, 0600);

        ck_assert_ptr_nonnull(bytes);
        ck_assert_int_ge(fd, 0);
        memset(bytes, byte, length);
        ck_assert_int_eq(pwrite(fd, bytes, length, offset), length);
}

static void sync_path(const char *name)
{
        _cleanup_fd_ int fd = open(at(name), O_RDONLY);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fsync(fd), 0);
}

/* The byte that the whole file consists of, -1 if absent, -2 if empty, -3 if mixed. */
static int content_of(const char *name)
{
        static unsigned char bytes[MIB];
        _cleanup_fd_ int fd = open(at(name), O_RDONLY);
        ssize_t length;

        if (fd < 0) {
                ck_assert_int_eq(errno, ENOENT);
                return -1;
        }
        length = read(fd, bytes, sizeof(bytes));
        ck_assert_int_ge(length, 0);
        if (!length)
                return -2;
        return memcmp(bytes, bytes + 1, (size_t)length - 1) ? -3 : bytes[0];
}

static void lose_power(uint64_t seed)
{
        ck_assert_int_eq(powerfs_cut(mount, seed), 0);
        ck_assert_int_eq(powerfs_stop(mount), 0);
        ck_assert_int_eq(powerfs_start(mount), 0);
}

START_TEST(synced_data_always_survives)
{
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                put("kept", 0, 'a', 100000, 0);
                put("kept", 0, 'b', 100000, 0);
                sync_path("kept");
                lose_power(seed);
                ck_assert_int_eq(content_of("kept"), 'b');
                ck_assert_int_eq(unlink(at("kept")), 0);
        }
}
END_TEST

START_TEST(data_written_through_o_dsync_always_survives)
{
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                put("kept", O_DSYNC, 'a' + (int)seed, 5000, 0);
                lose_power(seed);
                ck_assert_int_eq(content_of("kept"), 'a' + (int)seed);
        }
}
END_TEST

START_TEST(unsynced_data_may_be_lost_or_kept)
{
        unsigned n_old = 0, n_new = 0, n_mixed = 0;

        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                int content;

                put("file", 0, 'a', 65536, 0);
                sync_path("file");
                put("file", 0, 'b', 65536, 0);
                ck_assert_int_eq(content_of("file"), 'b');
                lose_power(seed);
                content = content_of("file");
                n_old += content == 'a';
                n_new += content == 'b';
                n_mixed += content == -3;
        }
        ck_assert_uint_gt(n_old, 0);
        ck_assert_uint_gt(n_new, 0);
        ck_assert_uint_eq(n_old + n_new + n_mixed, N_SEEDS);
}
END_TEST

/* What is on the disk after the cut is a or b in every sector, never half of one. */
START_TEST(torn_writes_tear_between_sectors)
{
        static unsigned char bytes[64 * SECTOR];
        unsigned n_torn = 0;

        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                _cleanup_fd_ int fd = -1;
                unsigned n_new = 0;

                put("file", 0, 'a', sizeof(bytes), 0);
                sync_path("file");
                put("file", 0, 'b', sizeof(bytes), 0);
                lose_power(seed);
                fd = open(at("file"), O_RDONLY);
                ck_assert_int_eq(read(fd, bytes, sizeof(bytes)), sizeof(bytes));
                for (size_t i = 0; i < sizeof(bytes); i += SECTOR) {
                        ck_assert(bytes[i] == 'a' || bytes[i] == 'b');
                        ck_assert_int_eq(memcmp(bytes + i, bytes + i + 1, SECTOR - 1), 0);
                        n_new += bytes[i] == 'b';
                }
                n_torn += n_new > 0 && n_new < 64;
        }
        ck_assert_uint_gt(n_torn, 0);
}
END_TEST

START_TEST(unsynced_writes_are_reordered)
{
        unsigned n_second_only = 0;

        for (uint64_t seed = 0; seed < 3 * N_SEEDS; seed++) {
                put("file", 0, 'a', 2 * SECTOR, 0);
                sync_path("file");
                put("file", 0, 'b', SECTOR, 0);
                put("file", 0, 'c', SECTOR, SECTOR);
                lose_power(seed);
                {
                        _cleanup_fd_ int fd = open(at("file"), O_RDONLY);
                        char bytes[2 * SECTOR];

                        ck_assert_int_eq(read(fd, bytes, sizeof(bytes)), sizeof(bytes));
                        n_second_only += bytes[0] == 'a' && bytes[SECTOR] == 'c';
                }
        }
        ck_assert_uint_gt(n_second_only, 0);
}
END_TEST

/* The middle one of three versions can come back, which only before-images can give. */
START_TEST(any_unsynced_version_may_come_back)
{
        unsigned n_middle = 0;

        for (uint64_t seed = 0; seed < 3 * N_SEEDS; seed++) {
                put("file", 0, 'a', SECTOR, 0);
                sync_path("file");
                put("file", 0, 'b', SECTOR, 0);
                put("file", 0, 'c', SECTOR, 0);
                lose_power(seed);
                n_middle += content_of("file") == 'b';
        }
        ck_assert_uint_gt(n_middle, 0);
}
END_TEST

/* A sector goes to the disk whole, with all that was written to it before. */
START_TEST(part_of_a_sector_never_survives_without_the_older_part)
{
        unsigned n_second = 0;

        for (uint64_t seed = 0; seed < 3 * N_SEEDS; seed++) {
                _cleanup_fd_ int fd = -1;
                char bytes[SECTOR];

                put("file", 0, 'a', SECTOR, 0);
                sync_path("file");
                put("file", 0, 'b', 100, 0);
                put("file", 0, 'c', SECTOR - 100, 100);
                lose_power(seed);
                fd = open(at("file"), O_RDONLY);
                ck_assert_int_eq(read(fd, bytes, sizeof(bytes)), sizeof(bytes));
                if (bytes[100] == 'c')
                        ck_assert_int_eq(bytes[0], 'b');
                n_second += bytes[100] == 'c';
        }
        ck_assert_uint_gt(n_second, 0);
}
END_TEST

/* A write made after a sync of an earlier one never survives without it. */
START_TEST(sync_orders_writes)
{
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                put("first", 0, 'a' + (int)seed, 4096, 0);
                sync_path("first");
                put("second", 0, 'a' + (int)seed, 4096, 0);
                lose_power(seed);
                if (content_of("second") == 'a' + (int)seed)
                        ck_assert_int_eq(content_of("first"), 'a' + (int)seed);
                ck_assert_int_eq(content_of("first"), 'a' + (int)seed);
        }
}
END_TEST

START_TEST(unsynced_truncate_is_lost_or_kept_whole)
{
        unsigned n_long = 0, n_short = 0;

        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                struct stat status;

                put("file", 0, 'a', 10000, 0);
                sync_path("file");
                ck_assert_int_eq(truncate(at("file"), 3000), 0);
                lose_power(seed);
                ck_assert_int_eq(stat(at("file"), &status), 0);
                ck_assert(status.st_size == 10000 || status.st_size == 3000);
                ck_assert_int_eq(content_of("file"), 'a');
                n_long += status.st_size == 10000;
                n_short += status.st_size == 3000;
        }
        ck_assert_uint_gt(n_long, 0);
        ck_assert_uint_gt(n_short, 0);
}
END_TEST

START_TEST(unsynced_growth_reads_as_written_or_as_zeros)
{
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                static unsigned char bytes[20000];
                _cleanup_fd_ int fd = -1;
                ssize_t length;

                put("file", O_TRUNC, 'a', 1000, 0);
                sync_path("file");
                put("file", 0, 'b', 9000, 1000);
                put("file", 0, 'c', 9000, 10000);
                lose_power(seed);
                fd = open(at("file"), O_RDONLY);
                length = read(fd, bytes, sizeof(bytes));
                ck_assert_int_ge(length, 1000);
                for (ssize_t i = 0; i < length; i++) {
                        int written = i < 1000 ? 'a' : i < 10000 ? 'b' : 'c';

                        ck_assert(bytes[i] == written || (i >= 1000 && !bytes[i]));
                }
        }
}
END_TEST

START_TEST(sync_of_a_file_keeps_its_name)
{
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                ck_assert_int_eq(mkdir(at("folder"), 0700), 0);
                put("folder/file", 0, 'a', 10, 0);
                sync_path("folder/file");
                lose_power(seed);
                ck_assert_int_eq(content_of("folder/file"), 'a');
                ck_assert_int_eq(unlink(at("folder/file")), 0);
                ck_assert_int_eq(rmdir(at("folder")), 0);
        }
}
END_TEST

START_TEST(unsynced_names_may_be_lost_or_kept)
{
        unsigned n_created = 0, n_removed = 0;

        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                put("old", 0, 'a', 10, 0);
                sync_path("old");
                put("new", 0, 'b', 10, 0);
                ck_assert_int_eq(unlink(at("old")), 0);
                ck_assert_int_eq(content_of("old"), -1);
                lose_power(seed);
                n_created += content_of("new") != -1;
                n_removed += content_of("old") == -1;
                unlink(at("new"));
        }
        ck_assert_uint_gt(n_created, 0);
        ck_assert_uint_lt(n_created, N_SEEDS);
        ck_assert_uint_gt(n_removed, 0);
        ck_assert_uint_lt(n_removed, N_SEEDS);
}
END_TEST

START_TEST(unsynced_rename_leaves_old_or_new)
{
        unsigned n_old = 0, n_new = 0;

        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                int content;

                put("target", 0, 'o', 10, 0);
                sync_path("target");
                put("target.new", 0, 'n', 10, 0);
                sync_path("target.new");
                ck_assert_int_eq(rename(at("target.new"), at("target")), 0);
                lose_power(seed);
                content = content_of("target");
                ck_assert(content == 'o' || content == 'n');
                ck_assert_int_eq(content_of("target.new"), content == 'o' ? 'n' : -1);
                n_old += content == 'o';
                n_new += content == 'n';
        }
        ck_assert_uint_gt(n_old, 0);
        ck_assert_uint_gt(n_new, 0);
}
END_TEST

START_TEST(rename_survives_sync_of_its_directory)
{
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                put("target", 0, 'o', 10, 0);
                sync_path("target");
                put("target.new", 0, 'n', 10, 0);
                sync_path("target.new");
                ck_assert_int_eq(rename(at("target.new"), at("target")), 0);
                sync_path(".");
                lose_power(seed);
                ck_assert_int_eq(content_of("target"), 'n');
                ck_assert_int_eq(content_of("target.new"), -1);
        }
}
END_TEST

START_TEST(moved_directories_stay_reachable)
{
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                ck_assert_int_eq(mkdir(at("a"), 0700), 0);
                ck_assert_int_eq(mkdir(at("a/b"), 0700), 0);
                put("a/b/file", 0, 'x', 10, 0);
                sync_path("a/b/file");
                ck_assert_int_eq(rename(at("a/b"), at("b")), 0);
                ck_assert_int_eq(rename(at("a"), at("b/a")), 0);
                lose_power(seed);
                if (content_of("a/b/file") == 'x') {
                        ck_assert_int_eq(rename(at("a/b"), at("b")), 0);
                        ck_assert_int_eq(rmdir(at("a")), 0);
                } else if (rmdir(at("a"))) {
                        ck_assert_int_eq(rmdir(at("b/a")), 0);
                }
                ck_assert_int_eq(content_of("b/file"), 'x');
                ck_assert_int_eq(unlink(at("b/file")), 0);
                ck_assert_int_eq(rmdir(at("b")), 0);
                sync_path(".");
        }
}
END_TEST

START_TEST(same_seed_gives_same_survivors)
{
        int content[2];

        for (int i = 0; i < 2; i++) {
                struct powerfs_state state;

                put("file", 0, 'a', 65536, 0);
                sync_path("file");
                for (int j = 0; j < 16; j++)
                        put("file", 0, 'b', 4096, j * 4096);
                ck_assert_int_eq(powerfs_cut(mount, 7), 0);
                ck_assert_int_eq(powerfs_get_state(mount, &state), 0);
                content[i] =
                        (int)state.n_kept * 10000 + (int)state.n_lost * 100 + (int)state.n_torn;
                ck_assert_int_eq(powerfs_stop(mount), 0);
                ck_assert_int_eq(powerfs_start(mount), 0);
                ck_assert_int_eq(unlink(at("file")), 0);
        }
        ck_assert_int_eq(content[0], content[1]);
}
END_TEST

START_TEST(everything_fails_without_power)
{
        _cleanup_fd_ int fd = -1;
        struct powerfs_state state;
        char byte = 'x';

        put("file", 0, 'a', 4096, 0);
        sync_path("file");
        fd = open(at("file"), O_RDWR);
        ck_assert_int_eq(read(fd, &byte, 1), 1);
        ck_assert_int_eq(powerfs_cut(mount, 1), 0);
        ck_assert_int_eq(powerfs_get_state(mount, &state), 0);
        ck_assert(!state.is_on);
        ck_assert_int_eq(pread(fd, &byte, 1, 0), -1);
        ck_assert_int_eq(errno, EIO);
        ck_assert_int_eq(pwrite(fd, &byte, 1, 0), -1);
        ck_assert_int_eq(errno, EIO);
        ck_assert_int_eq(fdatasync(fd), -1);
        ck_assert_int_eq(errno, EIO);
        ck_assert_int_eq(open(at("file"), O_RDONLY), -1);
        ck_assert_int_eq(errno, EIO);
        ck_assert_int_eq(mkdir(at("folder"), 0700), -1);
        ck_assert_int_eq(errno, EIO);
}
END_TEST

START_TEST(power_fails_at_a_chosen_change)
{
        struct powerfs_state state;

        put("file", 0, 'a', 4096, 0);
        sync_path("file");
        ck_assert_int_eq(powerfs_command(mount, "cut-after 2 5"), 0);
        put("file", 0, 'b', 4096, 0);
        ck_assert_int_eq(powerfs_get_state(mount, &state), 0);
        ck_assert(state.is_on);
        ck_assert_int_eq(truncate(at("file"), 0), -1);
        ck_assert_int_eq(powerfs_get_state(mount, &state), 0);
        ck_assert(!state.is_on);
}
END_TEST

START_TEST(orderly_unmount_keeps_everything)
{
        put("file", 0, 'a', 4096, 0);
        ck_assert_int_eq(mkdir(at("folder"), 0750), 0);
        put("folder/file", 0, 'b', 4096, 0);
        ck_assert_int_eq(rename(at("file"), at("folder/moved")), 0);
        ck_assert_int_eq(powerfs_stop(mount), 0);
        ck_assert_int_eq(powerfs_start(mount), 0);
        ck_assert_int_eq(content_of("file"), -1);
        ck_assert_int_eq(content_of("folder/moved"), 'a');
        ck_assert_int_eq(content_of("folder/file"), 'b');
}
END_TEST

START_TEST(injected_faults_hit_and_heal)
{
        _cleanup_fd_ int fd = -1, other = -1;
        char bytes[4096] = {0};

        put("data", 0, 'a', 65536, 0);
        put("other", 0, 'a', 65536, 0);
        fd = open(at("data"), O_RDWR);
        other = open(at("other"), O_RDWR);
        ck_assert_int_eq(powerfs_command(mount, "fail-read 8192 dat*"), 0);
        ck_assert_int_eq(powerfs_command(mount, "fail-write 16384 dat*"), 0);
        ck_assert_int_eq(powerfs_command(mount, "fail-sync dat*"), 0);
        ck_assert_int_eq(pread(fd, bytes, 4096, 4096), 4096);
        ck_assert_int_eq(pread(other, bytes, 4096, 8192), 4096);
        ck_assert_int_eq(pread(fd, bytes, 4096, 8192), -1);
        ck_assert_int_eq(errno, EIO);
        ck_assert_int_eq(pwrite(fd, bytes, 4096, 8192), 4096);
        ck_assert_int_eq(pwrite(fd, bytes, 4096, 16384), -1);
        ck_assert_int_eq(errno, EIO);
        ck_assert_int_eq(fdatasync(other), 0);
        ck_assert_int_eq(fdatasync(fd), -1);
        ck_assert_int_eq(errno, EIO);
        ck_assert_int_eq(powerfs_command(mount, "heal"), 0);
        ck_assert_int_eq(pread(fd, bytes, 4096, 8192), 4096);
        ck_assert_int_eq(pwrite(fd, bytes, 4096, 16384), 4096);
        ck_assert_int_eq(fdatasync(fd), 0);
}
END_TEST

START_TEST(space_runs_out_where_files_grow)
{
        _cleanup_fd_ int fd = open(at("file"), O_RDWR | O_CREAT, 0600);
        char bytes[4096] = {0};

        ck_assert_int_eq(powerfs_command(mount, "space 10000"), 0);
        ck_assert_int_eq(pwrite(fd, bytes, 4096, 0), 4096);
        ck_assert_int_eq(fallocate(fd, 0, 4096, 4096), 0);
        ck_assert_int_eq(fallocate(fd, 0, 8192, 4096), -1);
        ck_assert_int_eq(errno, ENOSPC);
        ck_assert_int_eq(pwrite(fd, bytes, 4096, 8192), -1);
        ck_assert_int_eq(errno, ENOSPC);
        ck_assert_int_eq(pwrite(fd, bytes, 4096, 4096), 4096);
}
END_TEST

START_TEST(direct_io_locks_and_mappings_work)
{
        _cleanup_fd_ int fd = open(at("file"), O_RDWR | O_CREAT | O_DIRECT, 0600);
        _cleanup_fd_ int second = open(at("file"), O_RDWR | O_DIRECT);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        char *bytes, *mapping;

        ck_assert_int_eq(posix_memalign((void **)&bytes, 4096, 4 * MIB), 0);
        memset(bytes, 'd', 4 * MIB);
        ck_assert_int_eq(fallocate(fd, 0, 0, 8 * MIB), 0);
        ck_assert_int_eq(pwrite(fd, bytes, 4 * MIB, 512), 4 * MIB);
        ck_assert_int_eq(pwrite(fd, bytes, 512, 100), -1);
        ck_assert_int_eq(errno, EINVAL);
        memset(bytes, 0, 4 * MIB);
        ck_assert_int_eq(pread(second, bytes, 4 * MIB, 512), 4 * MIB);
        ck_assert(bytes[0] == 'd' && !memcmp(bytes, bytes + 1, 4 * MIB - 1));
        mapping = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE, fd, 0);
        ck_assert_ptr_ne(mapping, MAP_FAILED);
        ck_assert_int_eq(mapping[511], 0);
        ck_assert_int_eq(mapping[512], 'd');
        ck_assert_int_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
        ck_assert_int_eq(fcntl(second, F_OFD_SETLK, &lock), -1);
        ck_assert_int_eq(errno, EAGAIN);
        munmap(mapping, MIB);
        free(bytes);
}
END_TEST

START_TEST(io_uring_with_registered_files_and_buffers_works)
{
        _cleanup_fd_ int fd = open(at("file"), O_RDWR | O_CREAT | O_DIRECT, 0600);
        struct io_uring_cqe *cqe;
        struct io_uring_sqe *sqe;
        struct io_uring ring;
        struct iovec memory = {.iov_len = 2 * MIB};
        char *bytes;

        ck_assert_int_eq(posix_memalign(&memory.iov_base, 4096, memory.iov_len), 0);
        bytes = memory.iov_base;
        memset(bytes, 'u', MIB);
        memset(bytes + MIB, 0, MIB);
        ck_assert_int_eq(io_uring_queue_init(8, &ring, 0), 0);
        ck_assert_int_eq(io_uring_register_files(&ring, &fd, 1), 0);
        ck_assert_int_eq(io_uring_register_buffers(&ring, &memory, 1), 0);
        for (int step = 0; step < 3; step++) {
                sqe = io_uring_get_sqe(&ring);
                if (step == 0)
                        io_uring_prep_write_fixed(sqe, 0, bytes, MIB, 4096, 0);
                else if (step == 1)
                        io_uring_prep_fsync(sqe, 0, IORING_FSYNC_DATASYNC);
                else
                        io_uring_prep_read_fixed(sqe, 0, bytes + MIB, MIB, 4096, 0);
                sqe->flags |= IOSQE_FIXED_FILE;
                ck_assert_int_eq(io_uring_submit_and_wait(&ring, 1), 1);
                ck_assert_int_eq(io_uring_wait_cqe(&ring, &cqe), 0);
                ck_assert_int_eq(cqe->res, step == 1 ? 0 : MIB);
                io_uring_cqe_seen(&ring, cqe);
        }
        ck_assert_int_eq(memcmp(bytes, bytes + MIB, MIB), 0);
        io_uring_queue_exit(&ring);
        free(memory.iov_base);
        lose_power(3);
        ck_assert_int_eq(content_of("file"), -3);
}
END_TEST

START_TEST(fallocate_can_be_absent)
{
        _cleanup_(powerfs_freep) struct powerfs_mount *plain = NULL;
        _cleanup_fd_ int fd = -1;
        char path[PATH_MAX];

        ck_assert_int_eq(powerfs_new(POWERFS_NO_FALLOCATE, &plain), 0);
        snprintf(path, sizeof(path), "%s/file", plain->mountpoint);
        fd = open(path, O_RDWR | O_CREAT, 0600);
        ck_assert_int_eq(fallocate(fd, 0, 0, 4096), -1);
        ck_assert_int_eq(errno, EOPNOTSUPP);
}
END_TEST

/* A test each seed: RocksDB's threads must not exist yet when its worker is forked. */
START_TEST(rocksdb_keeps_what_it_synced)
{
        check_rocksdb_survives(mount, (uint64_t)_i);
}
END_TEST

static Suite *powerfs_suite(void)
{
        Suite *suite = suite_create("powerfs");
        TCase *data = tcase_create("data"), *names = tcase_create("names");
        TCase *mounts = tcase_create("mounts");
        TCase *cases[] = {data, names, mounts};

        for (size_t i = 0; i < 3; i++) {
                tcase_add_checked_fixture(cases[i], setup, teardown);
                tcase_set_timeout(cases[i], 60);
                suite_add_tcase(suite, cases[i]);
        }
        tcase_add_test(data, synced_data_always_survives);
        tcase_add_test(data, data_written_through_o_dsync_always_survives);
        tcase_add_test(data, unsynced_data_may_be_lost_or_kept);
        tcase_add_test(data, torn_writes_tear_between_sectors);
        tcase_add_test(data, unsynced_writes_are_reordered);
        tcase_add_test(data, any_unsynced_version_may_come_back);
        tcase_add_test(data, part_of_a_sector_never_survives_without_the_older_part);
        tcase_add_test(data, sync_orders_writes);
        tcase_add_test(data, unsynced_truncate_is_lost_or_kept_whole);
        tcase_add_test(data, unsynced_growth_reads_as_written_or_as_zeros);
        tcase_add_test(names, sync_of_a_file_keeps_its_name);
        tcase_add_test(names, unsynced_names_may_be_lost_or_kept);
        tcase_add_test(names, unsynced_rename_leaves_old_or_new);
        tcase_add_test(names, rename_survives_sync_of_its_directory);
        tcase_add_test(names, moved_directories_stay_reachable);
        tcase_add_test(mounts, same_seed_gives_same_survivors);
        tcase_add_test(mounts, everything_fails_without_power);
        tcase_add_test(mounts, power_fails_at_a_chosen_change);
        tcase_add_test(mounts, orderly_unmount_keeps_everything);
        tcase_add_test(mounts, injected_faults_hit_and_heal);
        tcase_add_test(mounts, space_runs_out_where_files_grow);
        tcase_add_test(mounts, direct_io_locks_and_mappings_work);
        tcase_add_test(mounts, io_uring_with_registered_files_and_buffers_works);
        tcase_add_test(mounts, fallocate_can_be_absent);
        tcase_add_loop_test(mounts, rocksdb_keeps_what_it_synced, 0, 20);
        return suite;
}

int main(void)
{
        const char *reason;
        SRunner *runner;
        int n_failed;

        if (!powerfs_is_available(&reason)) {
                printf("skipped: %s\n", reason);
                return 77;
        }
        runner = srunner_create(powerfs_suite());
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
