// SPDX-License-Identifier: Apache-2.0
/*
 * Piece checksums: XXH3-64 of each piece of an object's raw bytes, and one total over
 * the pieces, the key and the raw length. Nothing local enters, so that the list travels
 * with the object between tiers and nodes.
 *
 * A piece is 256 KiB; objects above 32 MiB have larger ones, so that there are never more
 * than CHECKSUM_PIECES_MAX. Pure functions, callable from any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/key.h"

struct piece_set;

#define CHECKSUM_PIECE_BYTES (256u << 10)
#define CHECKSUM_PIECES_MAX  128u

struct checksum_list {
        uint64_t total;       /* over pieces, key and raw length */
        uint64_t raw_bytes;   /* length of the object */
        uint32_t piece_bytes; /* all pieces but the last have this length */
        uint32_t n_pieces;
        uint64_t pieces[CHECKSUM_PIECES_MAX];
};

/* Bytes of an object that lie one after another in memory. */
struct checksum_segment {
        const void *bytes;
        uint64_t length;
};

/*
 * Length of the pieces of an object of @raw_bytes: CHECKSUM_PIECE_BYTES, or the smallest
 * multiple of it that needs at most CHECKSUM_PIECES_MAX pieces.
 */
uint32_t checksum_piece_bytes(uint64_t raw_bytes);

/* Number of pieces of an object of @raw_bytes (at least 1 byte). */
uint32_t checksum_n_pieces(uint64_t raw_bytes);

/* Fills @ret_list from the object's bytes, whose lengths add up to @raw_bytes. */
void checksum_compute(struct checksum_list *ret_list, const struct object_key *key,
                      uint64_t raw_bytes, const struct checksum_segment *segments,
                      size_t n_segments);

/* The total that belongs to @list's pieces under @key. */
uint64_t checksum_total(const struct checksum_list *list, const struct object_key *key);

/*
 * Index of the first piece of @segments that differs from @list, or -1 when all agree.
 * The caller has checked @list->total by checksum_total().
 */
int checksum_first_mismatch(const struct checksum_list *list,
                            const struct checksum_segment *segments, size_t n_segments);

/* The same for the pieces of @set alone, which lie in @segments one after another. */
int checksum_first_mismatch_in(const struct checksum_list *list, const struct piece_set *set,
                               const struct checksum_segment *segments, size_t n_segments);

/* Is the shape (piece length, number of pieces) the one that @list->raw_bytes demands? */
int checksum_list_is_sane(const struct checksum_list *list);
