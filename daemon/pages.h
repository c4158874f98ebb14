// SPDX-License-Identifier: Apache-2.0
/*
 * Pages of a chunk that an acquire names, as ranges of bytes.
 *
 * Runs of pages become ranges of the object's bytes, and these tell which checksum pieces
 * a tier has to read. A copy that holds these pieces alone has them packed: there the
 * ranges lie elsewhere. Pure functions; nothing is allocated.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/host_copy.h"
#include "proto/layout.h"
#include "proto/piece_set.h"
#include "proto/wire.h"

struct page_range {
        uint64_t offset; /* in the object's bytes, or in those of a packed copy */
        uint64_t length; /* not 0 */
};

/* What is asked for of one object. None: all of it. */
struct pages {
        struct page_range *ranges; /* ascending, with gaps between; somebody else's memory */
        uint32_t n;
};

/*
 * May these pages be asked for? OK, or INVALID: not a paged group of the layout, the bytes
 * of its pages are not known, or pages beyond the chunk. @runs passed message_check().
 */
uint32_t pages_check(const struct layout *layout, const struct wire_key_item *item,
                     const struct wire_page_run *runs);

/* Fills the item's n_runs ranges. It passed pages_check(). */
void pages_fill(const struct layout *layout, const struct wire_key_item *item,
                const struct wire_page_run *runs, struct page_range *ret_ranges);

/* Bytes of the pages together. */
uint64_t pages_bytes(const struct pages *pages);

/* Do they lie within an object of @raw_bytes? */
bool pages_fit(const struct pages *pages, uint64_t raw_bytes);

/* The pieces of an object of @raw_bytes that they touch. */
struct piece_set pages_pieces(const struct pages *pages, uint64_t raw_bytes);

/* Changes the ranges to where they lie when the copy holds only @pieces of the object. */
void pages_pack(struct pages *pages, const struct piece_set *pieces, uint64_t raw_bytes);

/*
 * Where the pages lie in the arenas, neighbours as one extent. Returns how many extents:
 * at most WIRE_EXTENTS_MAX, as runs and extents of a copy are limited.
 */
uint32_t pages_extents(const struct pages *pages, const struct host_copy *copy,
                       struct wire_extent ret_extents[WIRE_EXTENTS_MAX]);
