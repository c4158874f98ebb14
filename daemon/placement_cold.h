// SPDX-License-Identifier: Apache-2.0
/*
 * What is to be written down ahead of its eviction from host memory, or to go from NVMe to
 * the pool: a walk from the coldest on.
 *
 * Layouts without states: boundary by boundary, from the old end. Layouts with states: the
 * states in the order in which they will give way, each behind the KV that it makes usable,
 * prefix first; so what a stop halfway leaves below is of use to other states at least. KV
 * that others use too comes only while it has no copy below. What is dead is not worth a
 * write and does not come.
 *
 * Nothing may enter or leave the tier, nor be used, during a walk; what is on its way
 * down may go from the tier below. Loop thread only.
 */
#pragma once

#include <stdint.h>

#include "daemon/placement.h"

/* Boundaries of one chain that are looked at: the rest comes when these are below. */
#define PLACEMENT_COLD_PATH_MAX 1024u

struct placement_cold {
        struct index *index;
        enum index_tier tier;
        uint32_t lru; /* next one of each list */
        uint32_t states[PLACEMENT_PROVEN + 1];
        uint32_t n_states[PLACEMENT_PROVEN + 1]; /* that are left of the list */
        uint32_t path[PLACEMENT_COLD_PATH_MAX];  /* to come, last first; path[0]: the state */
        uint32_t n_path;
};

void placement_cold_begin(struct placement_cold *walk, struct index *index, enum index_tier tier);

/* The next boundary, and what of it; boundary NULL is the end. */
struct placement_victim placement_cold_next(struct placement_cold *walk);
