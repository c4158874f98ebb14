// SPDX-License-Identifier: Apache-2.0
/*
 * A powerfs mount for one test: a scratch directory with the backing files, and a process
 * that serves them. After powerfs_cut() everything on the mount fails with EIO; stop and
 * start it to see what survived. Not thread-safe; dies with the thread that started it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

enum powerfs_flag {
        POWERFS_NO_FALLOCATE = 1u << 0,
};

/* @mountpoint and @backing are absolute; @pid is 0 while nothing is mounted. */
struct powerfs_mount {
        char scratch[64];
        char backing[80];
        char mountpoint[80];
        unsigned flags;
        pid_t pid;
};

/* What the control file tells. */
struct powerfs_state {
        bool is_on;
        uint64_t n_changes;
        uint64_t n_unsynced_writes;
        unsigned n_unsynced_names;
        unsigned n_kept;
        unsigned n_lost;
        unsigned n_torn;
};

/* Whether this machine can mount it; if not, *@ret_reason says why (static storage). */
bool powerfs_is_available(const char **ret_reason);

/* Makes the directories and mounts. All return 0 or a negative errno. */
int powerfs_new(unsigned flags, struct powerfs_mount **ret_mount);
int powerfs_start(struct powerfs_mount *mount);

/* Unmounts, in order unless the power is off: then only what survived is left. */
int powerfs_stop(struct powerfs_mount *mount);

/* Writes one line to the control file; powerfs.c lists the commands. */
int powerfs_command(struct powerfs_mount *mount, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/* Loses power. The same seed after the same operations gives the same survivors. */
int powerfs_cut(struct powerfs_mount *mount, uint64_t seed);
int powerfs_get_state(struct powerfs_mount *mount, struct powerfs_state *ret_state);

/* Stops it and removes its directories. Accepts NULL, returns NULL. */
struct powerfs_mount *powerfs_free(struct powerfs_mount *mount);

DEFINE_CLEANUP(struct powerfs_mount *, powerfs_free)
