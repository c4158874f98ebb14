// SPDX-License-Identifier: Apache-2.0
/*
 * A set of an object's checksum pieces (proto/checksum.h): what a load of a part touches.
 *
 * The pieces of a set can lie in memory one after another, without those between them;
 * positions there are called packed. Pure functions, no allocation, any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/checksum.h"

/* Piece i is bit i % 64 of word i / 64. All zero: the empty set. */
struct piece_set {
        uint64_t words[CHECKSUM_PIECES_MAX / 64];
};

static inline bool piece_set_has(const struct piece_set *set, uint32_t piece)
{
        return set->words[piece / 64] >> piece % 64 & 1;
}

/*
 * Adds the pieces of an object of @raw_bytes that its bytes [offset, offset + length)
 * touch; @length is not 0, and they lie within the object.
 */
void piece_set_add(struct piece_set *set, uint64_t raw_bytes, uint64_t offset, uint64_t length);

/* Is it not empty, and does an object of @raw_bytes have all these pieces? */
bool piece_set_fits(const struct piece_set *set, uint64_t raw_bytes);

/* Bytes of the pieces together. */
uint64_t piece_set_bytes(const struct piece_set *set, uint64_t raw_bytes);

/* Packed position of the object's byte @offset, whose piece is in the set. */
uint64_t piece_set_position(const struct piece_set *set, uint64_t raw_bytes, uint64_t offset);

/* Bytes of an object, [first, end). */
struct piece_run {
        uint64_t first;
        uint64_t end;
};

/*
 * The next run of neighbouring pieces that begins at byte @from or later (@from: 0, or the
 * end of the run before). False: there is none.
 */
bool piece_set_next(const struct piece_set *set, uint64_t raw_bytes, uint64_t from,
                    struct piece_run *ret_run);
