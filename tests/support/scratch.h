// SPDX-License-Identifier: Apache-2.0
/*
 * A folder of its own for a test, on a real file system (/var/tmp: /tmp may be a tmpfs).
 */
#pragma once

#include <stddef.h>

/* Makes a new folder and writes its path to @ret_path. Ends the process on failure. */
void scratch_make(char *ret_path, size_t size);

/* The same below @parent. */
void scratch_make_in(const char *parent, char *ret_path, size_t size);

/*
 * Unmounts what is mounted at @path. The kernel takes io_uring's hold on files away some
 * time after the process that had the ring has ended, and another test's mount namespace may
 * hold a copy: "busy" is asked again for up to thirty seconds. 0 or a negative errno.
 */
int scratch_unmount(const char *path);

/* Runs a shell command until it succeeds, for the same reason and time. Its status. */
int scratch_run_patiently(const char *command);

/* Removes the folder and all in it. */
void scratch_remove(const char *path);
