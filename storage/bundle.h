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
#define BUNDLE_HEADER_MAX (4u << 20)
#define BUNDLE_BYTES_MAX  (64u << 20) /* of a whole bundle; what is larger goes alone */

enum {
        BUNDLE_E_DAMAGED = 1, /* magic, length, checksum or a field is wrong */
        BUNDLE_E_NEWER,       /* a version or refuse flag that this program does not know */
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

/* "bundle/<node in hex>/<number, 16 hex digits>" */
void bundle_name(char ret_name[POOL_NAME_MAX], const struct bundle_id *id);
bool bundle_name_parse(const char *name, struct bundle_id *ret_id);

/* Bytes of a part's record, and the record: at most BUNDLE_HEADER_MAX. */
size_t bundle_part_bytes(const struct bundle_part *part);
void bundle_part_encode(void *record, const struct bundle_part *part);
/*
 * Decodes the record that begins at @record, of at most @length bytes; *@ret_bytes: its own
 * length. Pointers of @ret_part point into @record. 0 or BUNDLE_E_X.
 */
int bundle_part_decode(struct bundle_part *ret_part, const void *record, size_t length,
                       size_t *ret_bytes, struct why *why);

/*
 * Bytes of the header for @n_parts, whose offsets bundle_place() has set; and the header.
 */
size_t bundle_header_bytes(const struct bundle_part *parts, uint32_t n_parts);
/* Sets each part's offset from the stored_bytes; returns the bytes of the whole bundle. */
uint64_t bundle_place(struct bundle_part *parts, uint32_t n_parts);
void bundle_header_encode(void *header, const struct bundle_id *id, const struct bundle_part *parts,
                          uint32_t n_parts);

/*
 * Looks at a header as read from the pool; *@ret_n_parts and *@ret_header_bytes from its
 * head, of which the first BUNDLE_HEAD_BYTES are enough to know both.
 */
#define BUNDLE_HEAD_BYTES 64u
int bundle_head_decode(const void *bytes, size_t length, struct bundle_id *ret_id,
                       uint32_t *ret_n_parts, uint32_t *ret_header_bytes, struct why *why);
/* The whole header; @on_part for each part, false ends it early. 0 or BUNDLE_E_X. */
int bundle_header_decode(const void *bytes, size_t length,
                         bool (*on_part)(void *user, const struct bundle_part *part), void *user,
                         struct why *why);
