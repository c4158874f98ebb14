// SPDX-License-Identifier: Apache-2.0
/*
 * How much memory this process may take: the smallest of RAM (or the huge page pool) and
 * what each cgroup above it leaves, versions 1 and 2. What cannot be read bounds nothing.
 * Any thread.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct memory_bound {
        uint64_t bytes;
        char source[192]; /* what set it, for messages: a file */
};

struct memory_bounds {
        struct memory_bound limit; /* whatever others hold: for checks of the configuration */
        struct memory_bound free;  /* now, page cache that can be dropped included */
};

/*
 * Reads the bounds on pages of @page_bytes (4096, or a huge page size). @root goes before
 * each path, "" for the machine's own. 0 or -EIO when there is no figure of RAM at all.
 */
int memory_read(struct memory_bounds *ret_bounds, uint64_t page_bytes, const char *root);
