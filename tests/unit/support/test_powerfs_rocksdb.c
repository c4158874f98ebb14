// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <fcntl.h>
#include <limits.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/powerfs_client.h"
#include "tests/unit/support/test_powerfs_rocksdb.h"

/* More than the latest cut can need: how many changes a round makes depends on background work. */
#define N_ROUNDS 1000

static rocksdb_t *open_database(const char *path)
{
        rocksdb_options_t *options = rocksdb_options_create();
        char *error = NULL;
        rocksdb_t *db;

        rocksdb_options_set_create_if_missing(options, 1);
        /* Small, so that flushes, new WALs and compactions happen within the test. */
        rocksdb_options_set_write_buffer_size(options, 64 << 10);
        rocksdb_options_set_level0_file_num_compaction_trigger(options, 2);
        db = rocksdb_open(options, path, &error);
        ck_assert_msg(!error, "open: %s", error);
        rocksdb_options_destroy(options);
        return db;
}

/* The value also tells the round, so that an older version would be noticed. */
static void fill(char key[static 32], char value[static 1024], uint64_t seed, int round, int slot)
{
        snprintf(key, 32, "key-%d-%d", slot, round % 10);
        memset(value, 'v', 1024);
        snprintf(value, 1024, "%llu/%d/%d", (unsigned long long)seed, round, slot);
}

/* Puts until the power fails; each synced round is told to @report_fd. */
static void put_rounds(rocksdb_t *db, uint64_t seed, int report_fd)
{
        rocksdb_writeoptions_t *sync = rocksdb_writeoptions_create();
        rocksdb_writeoptions_t *lazy = rocksdb_writeoptions_create();
        char key[32], value[1024], *error = NULL;

        rocksdb_writeoptions_set_sync(sync, 1);
        for (int round = 0; round < N_ROUNDS; round++) {
                for (int slot = 0; slot < 8; slot++) {
                        fill(key, value, seed, round, slot);
                        rocksdb_put(db, slot == 7 ? sync : lazy, key, strlen(key), value,
                                    sizeof(value), &error);
                        if (error)
                                return;
                }
                if (write(report_fd, "+", 1) != 1)
                        return;
        }
}

/*
 * Works until power is lost, in a process of its own that is never closed in order:
 * builds of RocksDB with assertions abort when they meet a failed file again. Returns how
 * many rounds were acknowledged as synced.
 */
static int work_until_cut(struct powerfs_mount *mount, const char *path, uint64_t seed)
{
        int pipe_fds[2], n_synced = 0;
        char byte;
        pid_t pid;

        ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid) {
                rocksdb_t *db = open_database(path);
                int silent = open("/dev/null", O_WRONLY);

                dup2(silent, STDERR_FILENO);
                powerfs_command(mount, "cut-after %d %d", 20 + (int)seed * 13, (int)seed);
                put_rounds(db, seed, pipe_fds[1]);
                _exit(0);
        }
        close(pipe_fds[1]);
        while (read(pipe_fds[0], &byte, 1) == 1)
                n_synced++;
        close(pipe_fds[0]);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        return n_synced;
}

static void check_round(rocksdb_t *db, rocksdb_readoptions_t *options, uint64_t seed, int round)
{
        char key[32], value[1024], *error = NULL, *found;
        unsigned long long found_seed;
        int found_round, found_slot;
        size_t length;

        for (int slot = 0; slot < 8; slot++) {
                fill(key, value, seed, round, slot);
                found = rocksdb_get(db, options, key, strlen(key), &length, &error);
                ck_assert_msg(!error, "get: %s", error);
                ck_assert_msg(found, "seed %llu lost %s", (unsigned long long)seed, key);
                ck_assert_uint_eq(length, sizeof(value));
                ck_assert_int_eq(
                        sscanf(found, "%llu/%d/%d", &found_seed, &found_round, &found_slot), 3);
                ck_assert_uint_eq(found_seed, seed);
                ck_assert_int_eq(found_slot, slot);
                /* A later round may have arrived as well, but never an earlier one. */
                ck_assert_int_ge(found_round, round);
                rocksdb_free(found);
        }
}

void check_rocksdb_survives(struct powerfs_mount *mount, uint64_t seed)
{
        rocksdb_readoptions_t *read_options = rocksdb_readoptions_create();
        char path[PATH_MAX];
        struct powerfs_state state;
        rocksdb_t *db;
        int n_synced;

        snprintf(path, sizeof(path), "%s/db", mount->mountpoint);
        n_synced = work_until_cut(mount, path, seed);
        ck_assert_int_eq(powerfs_get_state(mount, &state), 0);
        ck_assert(!state.is_on);
        ck_assert_int_lt(n_synced, N_ROUNDS);
        ck_assert_int_eq(powerfs_stop(mount), 0);
        ck_assert_int_eq(powerfs_start(mount), 0);

        db = open_database(path);
        for (int round = n_synced > 10 ? n_synced - 10 : 0; round < n_synced; round++)
                check_round(db, read_options, seed, round);
        rocksdb_close(db);
        rocksdb_readoptions_destroy(read_options);
}
