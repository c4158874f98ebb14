// SPDX-License-Identifier: Apache-2.0
/*
 * One layout from what several processes of an engine know of it. Each names all groups,
 * and rows for the shards it knows; everything that two of them say must agree.
 *
 * Pure functions, no allocation, any thread.
 */
#pragma once

#include "proto/layout.h"

enum {
        LAYOUT_MERGE_E_CONFLICT = 1,
};

/* The first thing in which two layouts contradict each other. */
struct layout_conflict {
        const char *field; /* "model", "page_bytes", "tensors"... */
        int group;         /* -1: a field of the whole layout */
        int shard;         /* -1: a field of the whole group */
        char ours[72];     /* both values, for people */
        char theirs[72];
};

/*
 * Adds to @layout the rows and the chunk_tokens that only @other has; is_partial then says
 * whether any are missing still. Both are valid; strings and tensors go on pointing into
 * the encoding they came from. 0; LAYOUT_MERGE_E_CONFLICT with @ret_conflict, or -ENOSPC
 * (more than LAYOUT_ROWS_MAX rows): @layout is untouched.
 */
int layout_merge(struct layout *layout, const struct layout *other,
                 struct layout_conflict *ret_conflict);

/* 'group 2 "kv", shard 3: page_bytes': the beginning of a sentence on who says what. */
void layout_conflict_place(const struct layout_conflict *conflict, const struct layout *layout,
                           struct why *ret_place);
