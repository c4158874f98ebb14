// SPDX-License-Identifier: Apache-2.0
/*
 * How the bytes of an object are stored below host memory so that they take less room:
 * lossless, chosen for each group, and not seen by engines. (What engines ask for is the
 * lossy codec of a layout, proto/codec.h; it works on pages before they become objects.)
 *
 * An object is encoded piece by piece (proto/checksum.h), each by itself, so that a load of
 * a part reads and decodes only the pieces it touches. A piece is cut into byte planes: byte
 * i goes to plane i % n, n being the length of a number; the bytes of one plane look alike
 * (signs and exponents) or are noise (mantissas). Each plane is compressed by itself; one
 * that hardly shrinks is kept as it is, which costs nothing to decode. The stored form:
 *
 *   piece = as it is, when its stored length is its raw length; else
 *           stored length of each plane, u32 little-endian, n times | the planes
 *   plane = as it is, when its stored length is its raw length; else an LZ4 block, or a
 *           Zstandard frame
 *   object = the pieces in order, nothing between them
 *
 * An object that does not shrink by a sixteenth of its length (ENCODING_GAIN_MIN) is stored
 * raw.
 *
 * The stored form has checksums of its own, one for each piece, checked before anything is
 * decoded; those of the raw bytes are the caller's to check afterwards. Whatever the bytes
 * are, a decoder never reads or writes beyond the buffers it was given.
 *
 * Pure functions but for the scratch memory; any thread, one scratch for each at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "proto/checksum.h"
#include "proto/piece_set.h"

struct encoding_scratch;

#define ENCODING_PLANES_MAX 4u
#define ENCODING_GAIN_MIN   16u /* a sixteenth */

enum {
        ENCODING_E_RAW = 1, /* encode: the object does not shrink enough; store it raw */
        ENCODING_E_DAMAGED, /* decode: a checksum, a length or a code is wrong */
};

/* Numbers are on disk and in the pool: append only. */
enum encoding_kind {
        ENCODING_RAW = 0,
        ENCODING_LZ4 = 1, /* one plane: the bytes as they lie */
        ENCODING_PLANES_LZ4 = 2,
        ENCODING_PLANES_ZSTD = 3,
        ENCODING_KINDS,
};

/* What is to be done, or was done, with an object. All zero: stored raw. */
struct encoding {
        uint8_t kind;          /* enum encoding_kind */
        uint8_t element_bytes; /* of a number: 1, 2 or 4; 0 exactly when kind is RAW */
};

/*
 * What is kept beside the stored form, in a tier's header of the object. n_pieces follows
 * from the raw length; for RAW it is 0.
 */
struct encoding_table {
        struct encoding encoding;
        uint32_t n_pieces;
        uint64_t stored_bytes;                   /* of the pieces together */
        uint64_t checksums[CHECKSUM_PIECES_MAX]; /* XXH3-64 of each stored piece */
        uint32_t lengths[CHECKSUM_PIECES_MAX];   /* of each stored piece */
};

/* "off", "lz4", "planes-lz4", "planes-zstd": the words of the config; "unknown". */
const char *encoding_name(uint8_t kind);

/* The kind of that name, or -1. */
int encoding_kind_of(const char *name);

/* Of numbers of @number_bytes: 2 or 4, anything else is taken as bytes. RAW stays RAW. */
struct encoding encoding_of(enum encoding_kind kind, uint32_t number_bytes);

/* The two bytes as one number, for headers, and back; any number may come in. */
static inline uint16_t encoding_number(struct encoding encoding)
{
        return (uint16_t)(encoding.kind | encoding.element_bytes << 8);
}

static inline struct encoding encoding_from_number(uint16_t number)
{
        return (struct encoding){.kind = number & 0xff, .element_bytes = (uint8_t)(number >> 8)};
}

/* Is it one that this program can decode (or RAW)? */
bool encoding_is_known(struct encoding encoding);

/* Is @table, which came from outside, one that an object of @raw_bytes can have? Not RAW. */
bool encoding_table_is_sane(const struct encoding_table *table, uint64_t raw_bytes);

/*
 * The table as bytes, for headers of variable length: n_pieces checksums (u64), then
 * n_pieces lengths (u32), little-endian. At most ENCODING_TABLE_BYTES_MAX.
 */
#define ENCODING_TABLE_BYTES_MAX (CHECKSUM_PIECES_MAX * 12u)
size_t encoding_table_bytes(const struct encoding_table *table);
void encoding_table_put(const struct encoding_table *table, uint8_t *bytes);
/*
 * Takes it out again for an object of @raw_bytes that was stored as @encoding (as
 * encoding_number()) in @stored_bytes. False: these are not such a table, see
 * encoding_table_is_sane(). Untrusted bytes.
 */
bool encoding_table_get(const uint8_t *bytes, size_t length, uint32_t encoding, uint64_t raw_bytes,
                        uint64_t stored_bytes, struct encoding_table *ret_table);

/* Where the stored form of @piece begins in that of the object; @piece may be n_pieces. */
uint64_t encoding_offset(const struct encoding_table *table, uint32_t piece);

/*
 * Bytes [first, end) of the stored form that the next run of neighbouring pieces of @pieces
 * takes; as piece_set_next(), which @ret_raw (may be NULL) has the result of. False: none.
 */
bool encoding_next_run(const struct encoding_table *table, const struct piece_set *pieces,
                       uint64_t raw_bytes, uint64_t raw_from, struct piece_run *ret_raw,
                       struct piece_run *ret_stored);

struct encoding_scratch *encoding_scratch_new(void);
struct encoding_scratch *encoding_scratch_free(struct encoding_scratch *scratch);

/*
 * Encodes the object of @raw_bytes in @segments (their lengths add up to that or more) to
 * @stored, which has room for @raw_bytes. 0, ENCODING_E_RAW (then @ret_table is not
 * touched, and @stored holds nothing of use) or -ENOMEM. @encoding is not RAW.
 */
int encoding_encode(struct encoding_scratch *scratch, struct encoding encoding,
                    const struct iovec *segments, size_t n_segments, uint64_t raw_bytes,
                    uint8_t *stored, struct encoding_table *ret_table);

/*
 * Checks and decodes the pieces of @pieces (NULL: all) of an object of @raw_bytes. @stored
 * is where its stored form begins; only the bytes of these pieces are looked at, the rest
 * need not have been read. They come to lie in @segments one after another, as for
 * tier_read. @table is sane. 0, ENCODING_E_DAMAGED (the segments may hold anything) or
 * -ENOMEM.
 */
int encoding_decode(struct encoding_scratch *scratch, const struct encoding_table *table,
                    uint64_t raw_bytes, const struct piece_set *pieces, const uint8_t *stored,
                    const struct iovec *segments, size_t n_segments);
