// SPDX-License-Identifier: Apache-2.0
/*
 * Copying the pages of groups with a codec (proto/codec.h), which are other bytes in objects
 * than in the engine's memory: the walk over their tiles, for whoever converts, and the copy
 * by the processor.
 *
 * Codes and scales of a page lie apart in the object, and segments end where they like: so the
 * processor has some tiles at a time go through a buffer that the first level of cache holds.
 * Pure but for the copy; any thread.
 */
#pragma once

#include "client/page_copy.h"

/* Tiles that lie together in the engine's memory, and where they are in the object. */
struct kvt__tile_run {
        uint8_t *page;
        uint64_t n_tiles;
        uint64_t codes, scales; /* offsets of the first */
        uint32_t pad_bytes;     /* behind the scales: of the last run of a page */
};

/* The next tile. */
struct kvt__tile_walk {
        struct kvt__page_list list;
        uint32_t tile_numbers, scale_bytes;
        uint64_t page_tiles;
        uint32_t slot, view, row;
        uint64_t row_tile;   /* in the row */
        uint64_t tile;       /* in the page */
        uint64_t page_start; /* in the object */
};

void kvt__tile_walk_init(struct kvt__tile_walk *ret_walk, const struct kvt__page_list *list);

/* At most @most tiles. False when all have been walked over. */
bool kvt__tile_walk_next(struct kvt__tile_walk *walk, uint64_t most, struct kvt__tile_run *ret_run);

/* A place in an object's segments, which only moves on: {segments, 0} at first. */
struct kvt__object_place {
        const struct kvt_segment *segment;
        uint64_t start; /* of the segment in the object */
};

/* Moves on to byte @at, which the object has. @ret_bytes: how many lie together from there on. */
uint8_t *kvt__object_at(struct kvt__object_place *place, uint64_t at, uint64_t *ret_bytes);

/* As kvt__page_copy(), for a group with a codec. */
bool kvt__page_codec_copy(const struct kvt__page_list *list, bool is_store,
                          const atomic_bool *stop);
