// SPDX-License-Identifier: Apache-2.0
/*
 * Bundles: objects of one prompt in one object of the pool. A header lists the parts; their
 * stored bytes follow one after another, without gaps.
 *
 *     head, part_head[n_parts] each followed by what belongs to it, then the parts' bytes
 *
 * A part's record is all that a node needs to find, read and verify it: the same bytes
 * stand in the bundle's header, in the journal that announces the bundle (journal.h) and,
 * as the value, in the index of each node.
 *
 * Encode, decode, validate: pure functions, no I/O, any thread. What comes from the pool
 * was written by other machines and is never trusted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/checksum.h"
#include "proto/key.h"
#include "storage/pool.h"
#include "storage/tier.h"

#define BUNDLE_MAGIC      "KVTIERBU"
#define BUNDLE_VERSION    1u
#define BUNDLE_PARTS_MAX  1024u
#define BUNDLE_HEADER_MAX (4u << 20)      /* head and records; no record is longer either */
#define BUNDLE_BYTES_MAX  POOL_OBJECT_MAX /* of a whole bundle: a part that fits none stays out */
#define BUNDLE_TABLE_MAX  4096u           /* bytes of an encoding table */

enum {
        BUNDLE_E_DAMAGED = 1, /* length, checksum or a field is wrong */
};

/* Who wrote a bundle and which one it was: its name in the pool. */
struct bundle_id {
        uint8_t node[16];
        uint64_t number; /* of this node, rising, never used twice */
};

/* A part in memory. */
struct bundle_part {
        struct tier_object object;      /* covers: borrowed; generation: the writer's own number */
        struct checksum_list checksums; /* of the raw bytes */
        uint64_t offset;                /* of its bytes, from the start of the bundle */
        uint64_t stored_bytes;
        uint32_t encoding;             /* storage/encoding.h; 0: raw */
        uint32_t encoding_bytes;       /* length of @encoding_table */
        const uint8_t *encoding_table; /* what decoding needs beside the bytes; borrowed */
};

#define BUNDLE_HEAD_BYTES 64u
#define BUNDLE_PART_BYTES 216u

/* Begins each bundle, little-endian; written once with the bundle, never changed. */
struct bundle_head {
        uint8_t magic[8];
        uint32_t version;
        uint32_t header_bytes; /* head and records: what the checksum covers */
        uint64_t checksum;     /* XXH3-64 of these with this field zero */
        uint8_t node[16];
        uint64_t number;
        uint32_t n_parts;
        uint32_t refuse_flags; /* unknown bit: the bundle reads as a miss */
        uint32_t ignore_flags;
        uint32_t reserved; /* zero */
};

_Static_assert(sizeof(struct bundle_head) == BUNDLE_HEAD_BYTES, "bundle_head is in the pool");
_Static_assert(offsetof(struct bundle_head, checksum) == 16, "bundle_head layout");
_Static_assert(offsetof(struct bundle_head, node) == 24, "bundle_head layout");
_Static_assert(offsetof(struct bundle_head, number) == 40, "bundle_head layout");
_Static_assert(offsetof(struct bundle_head, n_parts) == 48, "bundle_head layout");
_Static_assert(offsetof(struct bundle_head, refuse_flags) == 52, "bundle_head layout");
_Static_assert(offsetof(struct bundle_head, ignore_flags) == 56, "bundle_head layout");

/*
 * Begins each record, little-endian. Behind it n_pieces checksums of 8 bytes, n_covers
 * digests, the encoding table, and zeros up to a multiple of 8.
 */
struct bundle_part_head {
        uint32_t record_bytes; /* with what follows: what the checksum covers */
        uint32_t flags;        /* enum segment_flags */
        uint64_t checksum;     /* XXH3-64 of the record with this field zero */
        struct object_key key;
        struct digest parent;
        uint64_t generation;
        uint64_t raw_bytes;
        uint64_t stored_bytes;
        uint64_t offset;
        uint64_t committed_ns;
        uint8_t writer_boot_id[16];
        uint64_t checksum_total; /* over pieces, key and raw length */
        uint32_t boundary_tokens;
        uint16_t cell;
        uint16_t reserved; /* zero */
        uint32_t piece_bytes;
        uint32_t n_pieces;
        uint32_t n_covers;
        uint32_t encoding;
        uint32_t encoding_bytes;
        uint32_t reserved2; /* zero */
};

_Static_assert(sizeof(struct bundle_part_head) == BUNDLE_PART_BYTES,
               "a part's head is in the pool");
_Static_assert(offsetof(struct bundle_part_head, checksum) == 8, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, key) == 16, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, parent) == 88, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, generation) == 120, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, raw_bytes) == 128, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, stored_bytes) == 136, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, offset) == 144, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, committed_ns) == 152, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, writer_boot_id) == 160, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, checksum_total) == 176, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, boundary_tokens) == 184,
               "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, cell) == 188, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, piece_bytes) == 192, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, n_pieces) == 196, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, n_covers) == 200, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, encoding) == 204, "bundle_part_head layout");
_Static_assert(offsetof(struct bundle_part_head, encoding_bytes) == 208, "bundle_part_head layout");

/* "bundle/NODE/NUMBER" (pool_name.h). */
void bundle_name(char ret_name[POOL_NAME_MAX], const struct bundle_id *id);
bool bundle_name_parse(const char *name, struct bundle_id *ret_id);

/*
 * Bytes of a part's record, and the record. The part is right: its encoding table has at
 * most BUNDLE_TABLE_MAX bytes, its checksums have their total, it has an offset.
 */
size_t bundle_part_bytes(const struct bundle_part *part);
void bundle_part_encode(void *record, const struct bundle_part *part);
/*
 * Decodes the record that begins at @record, of at most @length bytes; *@ret_bytes: its own
 * length. Pointers of @ret_part point into @record, which need not be aligned. Whatever
 * stands in a part that is accepted, its bytes lie within a bundle of BUNDLE_BYTES_MAX, and
 * its raw length is at most LAYOUT_OBJECT_MAX. 0 or BUNDLE_E_DAMAGED.
 */
int bundle_part_decode(struct bundle_part *ret_part, const void *record, size_t length,
                       size_t *ret_bytes, struct why *why);

/* Bytes of the header for @n_parts: the caller keeps them to BUNDLE_HEADER_MAX. */
size_t bundle_header_bytes(const struct bundle_part *parts, uint32_t n_parts);
/* Sets each part's offset from the stored_bytes; returns the bytes of the whole bundle. */
uint64_t bundle_place(struct bundle_part *parts, uint32_t n_parts);
/*
 * The header, of 1 to BUNDLE_PARTS_MAX parts that bundle_place() has placed. It is for whoever has
 * nothing but a bundle: readers go by the records in the index, and never look at it.
 */
void bundle_header_encode(void *header, const struct bundle_id *id, const struct bundle_part *parts,
                          uint32_t n_parts);
