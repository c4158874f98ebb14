// SPDX-License-Identifier: Apache-2.0
/*
 * powerfs BACKING MOUNTPOINT: a file system whose power can be cut.
 *
 * Reads see everything at once; only what was synced is sure to survive. What counts as
 * a sync: fsync and fdatasync of a file (its data, and the names it was created under;
 * fsync also its renames), fsync of a directory (its names), writes through O_SYNC,
 * O_DSYNC or RWF_DSYNC, and an orderly unmount. sync, syncfs and sync_file_range are not
 * forwarded by FUSE and promise nothing here.
 *
 * Commands are lines written to the file .powerfs-control in the root, which no listing
 * shows; reading it tells the state:
 *
 *   cut SEED                lose power now; everything fails with EIO from then on
 *   cut-after N SEED        lose power before the Nth change from now
 *   fail-read OFFSET [GLOB] reads that reach OFFSET or beyond fail with EIO, in files
 *   fail-write OFFSET [GLOB] whose name matches GLOB; likewise writes and allocations
 *   fail-sync [GLOB]        fsync and fdatasync fail with EIO
 *   space BYTES             files may grow by BYTES more, then ENOSPC
 *   heal                    ends all of these faults
 *
 * One thread serves all requests, so that nothing here needs a lock. File contents are
 * never cached by the kernel, since a cached page would outlive the loss of power; this
 * excludes writable shared mappings.
 */
#include <argp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/support/powerfs_operations.h"

static const struct argp_option options[] = {
        {"ready-fd", 'r', "FD", 0, "Write one byte to FD once mounted", 0},
        {"no-fallocate", 'n', NULL, 0, "fallocate answers EOPNOTSUPP", 0},
        {0},
};

static error_t on_argument(int key, char *argument, struct argp_state *state)
{
        struct powerfs *fs = state->input;

        switch (key) {
        case 'r':
                fs->ready_fd = atoi(argument);
                return 0;
        case 'n':
                fs->no_fallocate = true;
                return 0;
        case ARGP_KEY_ARG:
                if (state->arg_num > 1)
                        return ARGP_ERR_UNKNOWN;
                *(state->arg_num ? &fs->mountpoint : &fs->backing) = argument;
                return 0;
        case ARGP_KEY_END:
                if (state->arg_num < 2)
                        argp_usage(state);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

/* Freed before-images are reused: a first touch of fresh memory costs more than the copy. */
static void tune(void)
{
        struct rlimit limit;

        mallopt(M_MMAP_THRESHOLD, 1 << 30);
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
        mallopt(M_TOP_PAD, 16 << 20);
        if (!getrlimit(RLIMIT_NOFILE, &limit)) {
                limit.rlim_cur = limit.rlim_max;
                setrlimit(RLIMIT_NOFILE, &limit);
        }
}

int main(int argc, char **argv)
{
        static const struct argp argp = {
                options,
                on_argument,
                "BACKING MOUNTPOINT",
                "Serves BACKING at MOUNTPOINT as a file system whose power can be cut.",
                NULL,
                NULL,
                NULL};
        struct powerfs fs = {.ready_fd = -1};
        int r;

        if (argp_parse(&argp, argc, argv, 0, NULL, &fs))
                return EXIT_FAILURE;
        tune();
        r = tree_open(&fs.tree, fs.backing);
        if (r) {
                fprintf(stderr, "powerfs: %s: %s\n", fs.backing, strerror(-r));
        } else if (powerfs_serve(&fs) < 0) {
                r = -1;
        } else if (!fs.is_down) {
                r = tree_sync_all(&fs.tree);
                if (!r)
                        r = tree_write(&fs.tree);
                if (r)
                        fprintf(stderr, "powerfs: unmount: %s\n", strerror(-r));
        }
        tree_close(&fs.tree);
        free(fs.buffer);
        return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
