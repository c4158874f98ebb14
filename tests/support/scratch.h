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

/* Removes the folder and all in it. */
void scratch_remove(const char *path);
