// SPDX-License-Identifier: Apache-2.0
/*
 * Extent allocator: hands out runs of units of one arena or one data file.
 *
 * Pure arithmetic over the free runs, which are kept in two trees (by position, by size).
 * It knows no keys, files or I/O. Loop thread only.
 *
 * Policy: one run when any fits (the smallest that does, lowest position first), else the
 * largest free runs together, up to the caller's limit, the rest from the smallest run
 * that holds it. More than EXTENT_RUNS_GOOD runs are given only when a thirty-second of
 * all units stays free besides: else the answer is FULL, the caller evicts a little more,
 * and runs stay long (README.md has the figures). Neighbours coalesce on release, so that
 * nothing ever has to be moved.
 *
 * Invariant: the nodes that are not in the trees are at least as many as the releases
 * still owed (one for each run handed out), so release never needs memory. They are
 * reserved by the slab and touched when used: what is resident grows with the largest
 * number of free runs there ever was, not with what is managed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

#define EXTENT_RUNS_GOOD     4u
#define EXTENT_SLACK_DIVISOR 32u /* this part of all units is what long runs may cost */

enum {
        EXTENT_E_FULL = 1, /* too few free units, or in too many pieces: release some, try again */
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

DEFINE_CLEANUP(struct extent_map *, extent_map_free)

/*
 * Allocates @count units (at least 1) in at most @max_runs runs, written to @ret_runs.
 * 0, EXTENT_E_FULL (nothing is allocated then) or -ENOMEM.
 */
int extent_map_alloc(struct extent_map *map, uint64_t count, uint32_t max_runs,
                     struct extent_run *ret_runs, uint32_t *ret_n_runs);

/* Marks a given run as allocated (recovery). 0, EXTENT_E_TAKEN or -ENOMEM. */
int extent_map_take(struct extent_map *map, struct extent_run run);

/*
 * Gives a run back, one call for each run that alloc or take handed out. Every unit of it
 * must be allocated (asserted). Never fails.
 */
void extent_map_release(struct extent_map *map, struct extent_run run);

/*
 * Allows @n_releases calls of release more than there are runs, so that runs can be given
 * back in parts. 0 or -ENOMEM.
 */
int extent_map_allow_parts(struct extent_map *map, uint32_t n_releases);

uint64_t extent_map_free_units(const struct extent_map *map);
uint64_t extent_map_free_runs(const struct extent_map *map);

/* Length of the longest free run, 0 when full. */
uint64_t extent_map_largest(const struct extent_map *map);
