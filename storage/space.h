// SPDX-License-Identifier: Apache-2.0
/*
 * Space on the members of a pool: which of them an object goes to, in which extents, and
 * how a tier_place names them.
 *
 * An object above the stripe is split over the usable members; a smaller one lies on one,
 * that with the fewest bytes in flight, then the most free. Only when no member has room
 * is an object spread over what is free anywhere. Arithmetic only, no I/O. Loop thread
 * only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"
#include "storage/extent.h"
#include "storage/segment.h"
#include "storage/tier.h"

enum {
        SPACE_E_FULL = 1, /* too little room, or in too many pieces */
        SPACE_E_TAKEN,    /* the extent is in use, or outside of its member */
};

struct space_extents {
        uint32_t n;
        struct segment_extent at[SEGMENT_EXTENTS_MAX];
};

struct space_member {
        struct extent_map *map;   /* NULL: missing */
        uint64_t bytes_in_flight; /* kept by who does the I/O */
};

struct space_list; /* extents of an object that needs more than one */

struct space {
        struct space_member members[SEGMENT_MEMBERS_MAX];
        uint32_t n_members;
        uint64_t stripe_units; /* objects above are split */
        uint64_t used_units;
        uint64_t total_units;
        LIST_HEAD(, space_list) lists;
};

void space_init(struct space *space, uint64_t stripe_units);
void space_deinit(struct space *space);

/* Adds member @index of @n_units, of which the first @n_reserved are not given out. */
int space_add_member(struct space *space, uint32_t index, uint64_t n_units, uint64_t n_reserved);

/* 0, SPACE_E_FULL (nothing is taken then) or -ENOMEM. */
int space_alloc(struct space *space, uint64_t n_units, struct space_extents *ret_extents);

void space_release(struct space *space, const struct space_extents *extents);

/*
 * Gives back what @extents have beyond their first @n_units (at least 1, and no more than
 * they have). 0 or -ENOMEM; then nothing has changed.
 */
int space_trim(struct space *space, struct space_extents *extents, uint64_t n_units);

/* Marks extents as used (recovery): all or none. 0, SPACE_E_TAKEN or -ENOMEM. */
int space_take(struct space *space, const struct space_extents *extents);

/*
 * Makes the place for an object in @extents. 0 or -ENOMEM. A place with several extents
 * holds memory until space_forget_place().
 */
int space_make_place(struct space *space, uint64_t claim, const struct space_extents *extents,
                     struct tier_place *ret_place);
void space_extents_of(struct tier_place place, struct space_extents *ret_extents);
void space_forget_place(struct tier_place place);
