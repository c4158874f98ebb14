// SPDX-License-Identifier: Apache-2.0
/*
 * Extent allocator: hands out runs of units of one arena or one data file.
 *
 * Pure arithmetic over the free runs, which are kept in two trees (by position, by size);
 * memory grows with the number of free runs, not with the size of what is managed. It
 * knows no keys, files or I/O. Loop thread only.
 *
 * Policy: one run when any fits (the smallest that does, lowest position first), else the
 * largest free runs together, up to the caller's limit. Neighbours coalesce on free, so
 * that nothing ever has to be moved.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
        EXTENT_E_FULL = 1, /* fewer free units than asked for, or in too many pieces */
        EXTENT_E_TAKEN,    /* extent_map_take(): some unit of the run is in use or outside */
};

struct extent_run {
        uint64_t first; /* unit */
        uint64_t count; /* units, at least 1 */
};

struct extent_map;

/* A map of @n_units units, all free. Returns 0 or -ENOMEM. */
int extent_map_new(struct extent_map **ret_map, uint64_t n_units);

/* NULL is fine. Runs still allocated are forgotten with it. Returns NULL. */
struct extent_map *extent_map_free(struct extent_map *map);

/*
 * Allocates @count units (at least 1) in at most @max_runs runs, written to @ret_runs.
 * 0, EXTENT_E_FULL (nothing is allocated then) or -ENOMEM.
 */
int extent_map_alloc(struct extent_map *map, uint64_t count, uint32_t max_runs,
                     struct extent_run *ret_runs, uint32_t *ret_n_runs);

/* Marks a given run as allocated (recovery). 0, EXTENT_E_TAKEN or -ENOMEM. */
int extent_map_take(struct extent_map *map, struct extent_run run);

/*
 * Gives a run back, whole or a part of what was allocated. Every unit of it must be
 * allocated (asserted). Never fails: the memory for the bookkeeping is held in reserve.
 */
void extent_map_release(struct extent_map *map, struct extent_run run);

uint64_t extent_map_units(const struct extent_map *map);
uint64_t extent_map_free_units(const struct extent_map *map);

/* Length of the longest free run, 0 when full. */
uint64_t extent_map_largest(const struct extent_map *map);
