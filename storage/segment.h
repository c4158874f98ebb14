// SPDX-License-Identifier: Apache-2.0
/*
 * The header in front of each object's bytes on disk: everything needed to tell whether
 * what lies there is what the catalog says, so that a read is verified against itself.
 *
 * Encode, decode, validate: pure functions, no I/O, callable from any thread. Bytes that
 * come from the disk are never trusted: segment_check() looks at each field before anyone
 * uses it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/checksum.h"
#include "proto/key.h"
#include "storage/encoding.h"

#define SEGMENT_UNIT_BYTES   4096u /* allocation unit: offsets and lengths are multiples */
#define SEGMENT_HEADER_BYTES 4096u
#define SEGMENT_EXTENTS_MAX  16u
#define SEGMENT_MEMBERS_MAX  64u
#define SEGMENT_VERSION      1u
#define SEGMENT_MAGIC        "KVTIEROB"

enum {
        SEGMENT_E_DAMAGED = 1, /* not a header, or its checksum or a field is wrong */
        SEGMENT_E_NEWER,       /* a format or a refuse flag that this program does not know */
};

enum segment_flags {
        SEGMENT_PARENT_UNKNOWN = 1u << 0,
        SEGMENT_CROPPABLE = 1u << 1,
        SEGMENT_FLAGS_ALL = SEGMENT_PARENT_UNKNOWN | SEGMENT_CROPPABLE,
};

/* A run of units on one member. On disk in headers and in the catalog. */
struct segment_extent {
        uint64_t first; /* unit */
        uint32_t count; /* units */
        uint32_t member;
};

_Static_assert(sizeof(struct segment_extent) == 16, "segment_extent is on disk");

/* On disk, little-endian; written once with the object's bytes, never changed. */
struct segment_header {
        uint8_t magic[8];
        uint32_t version;
        uint32_t header_bytes; /* SEGMENT_HEADER_BYTES: what the checksum covers */
        uint64_t checksum;     /* XXH3-64 of the header with this field zero */
        uint8_t pool_uuid[16];
        uint64_t epoch;
        uint64_t own_offset; /* bytes from the start of the member */
        uint32_t own_member;
        uint32_t n_extents;
        uint64_t claim;
        uint64_t generation;
        struct object_key key;
        struct digest parent;
        uint32_t boundary_tokens;
        uint32_t flags; /* enum segment_flags */
        uint64_t raw_bytes;
        uint64_t stored_bytes;
        uint32_t codec; /* encoding_number(); 0: stored raw */
        uint32_t n_covers;
        uint8_t covers_sha256[32]; /* of the digests that the catalog lists; else zeros */
        uint64_t committed_ns;
        uint8_t writer_boot_id[16];
        uint64_t refuse_flags; /* unknown bit: the object reads as a miss */
        uint64_t readonly_flags;
        uint64_t ignore_flags;
        uint32_t piece_bytes;
        uint32_t n_pieces;
        uint64_t checksum_total;
        struct segment_extent extents[SEGMENT_EXTENTS_MAX]; /* the first begins with this header */
        uint64_t pieces[CHECKSUM_PIECES_MAX];
        uint64_t stored_checksums[CHECKSUM_PIECES_MAX]; /* of encoded pieces; stored raw: zeros */
        uint32_t stored_lengths[CHECKSUM_PIECES_MAX];
        uint8_t reserved[SEGMENT_HEADER_BYTES - 3128]; /* zero */
};

_Static_assert(sizeof(struct segment_header) == SEGMENT_HEADER_BYTES, "segment_header is on disk");
_Static_assert(offsetof(struct segment_header, checksum) == 16, "segment_header layout");
_Static_assert(offsetof(struct segment_header, pool_uuid) == 24, "segment_header layout");
_Static_assert(offsetof(struct segment_header, epoch) == 40, "segment_header layout");
_Static_assert(offsetof(struct segment_header, own_offset) == 48, "segment_header layout");
_Static_assert(offsetof(struct segment_header, own_member) == 56, "segment_header layout");
_Static_assert(offsetof(struct segment_header, n_extents) == 60, "segment_header layout");
_Static_assert(offsetof(struct segment_header, claim) == 64, "segment_header layout");
_Static_assert(offsetof(struct segment_header, generation) == 72, "segment_header layout");
_Static_assert(offsetof(struct segment_header, key) == 80, "segment_header layout");
_Static_assert(offsetof(struct segment_header, parent) == 152, "segment_header layout");
_Static_assert(offsetof(struct segment_header, boundary_tokens) == 184, "segment_header layout");
_Static_assert(offsetof(struct segment_header, flags) == 188, "segment_header layout");
_Static_assert(offsetof(struct segment_header, raw_bytes) == 192, "segment_header layout");
_Static_assert(offsetof(struct segment_header, stored_bytes) == 200, "segment_header layout");
_Static_assert(offsetof(struct segment_header, codec) == 208, "segment_header layout");
_Static_assert(offsetof(struct segment_header, n_covers) == 212, "segment_header layout");
_Static_assert(offsetof(struct segment_header, covers_sha256) == 216, "segment_header layout");
_Static_assert(offsetof(struct segment_header, committed_ns) == 248, "segment_header layout");
_Static_assert(offsetof(struct segment_header, writer_boot_id) == 256, "segment_header layout");
_Static_assert(offsetof(struct segment_header, refuse_flags) == 272, "segment_header layout");
_Static_assert(offsetof(struct segment_header, piece_bytes) == 296, "segment_header layout");
_Static_assert(offsetof(struct segment_header, n_pieces) == 300, "segment_header layout");
_Static_assert(offsetof(struct segment_header, checksum_total) == 304, "segment_header layout");
_Static_assert(offsetof(struct segment_header, extents) == 312, "segment_header layout");
_Static_assert(offsetof(struct segment_header, pieces) == 568, "segment_header layout");
_Static_assert(offsetof(struct segment_header, stored_checksums) == 1592, "segment_header layout");
_Static_assert(offsetof(struct segment_header, stored_lengths) == 2616, "segment_header layout");
_Static_assert(offsetof(struct segment_header, reserved) == 3128, "segment_header layout");

/* Units that an object of @stored_bytes takes, its header included. */
static inline uint64_t segment_units(uint64_t stored_bytes)
{
        return (SEGMENT_HEADER_BYTES + stored_bytes + SEGMENT_UNIT_BYTES - 1) / SEGMENT_UNIT_BYTES;
}

/* Can these be the extents of an object of @stored_bytes? Offsets fit 64 bits, too. */
bool segment_extents_are_sane(const struct segment_extent *extents, uint32_t n_extents,
                              uint64_t stored_bytes);

/* Is every byte zero? For reserved fields of all disk formats. */
bool segment_is_zero(const void *bytes, size_t length);

/* XXH3-64 of @length bytes with the 8 at @at, where it is to stand, taken as zero: the same. */
uint64_t segment_checksum(const void *bytes, size_t length, size_t at);

/*
 * Completes magic, version, lengths, own offset and member (those of the first extent)
 * and checksum of @header, whose other fields the caller has set (reserved: zero).
 */
void segment_seal(struct segment_header *header);

/* Puts @checksums into @header, and takes them out again. */
void segment_set_checksums(struct segment_header *header, const struct checksum_list *checksums);
void segment_get_checksums(const struct segment_header *header,
                           struct checksum_list *ret_checksums);

/* Puts how the object is stored into @header (stored_bytes, too), and takes it out again. */
void segment_set_encoding(struct segment_header *header, const struct encoding_table *table);
void segment_get_encoding(const struct segment_header *header, struct encoding_table *ret_table);

/*
 * Is @header, as read from the disk, a header of this program with fields that can be
 * true? 0 or SEGMENT_E_X, @why (may be NULL) says what is wrong. Whether it is the header
 * one was looking for is the caller's to compare.
 */
int segment_check(const struct segment_header *header, struct why *why);
