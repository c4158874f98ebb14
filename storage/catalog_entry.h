// SPDX-License-Identifier: Apache-2.0
/*
 * What the catalog keeps: one entry for each object, and one record about the pool. These
 * are the keys and values in RocksDB, as bytes. Encode, decode, validate: pure functions.
 *
 * An entry's key is the object's key followed by the claim (big-endian, so that entries of
 * one object follow each other in the order of their claims). With the claim in the key
 * each entry is written once and deleted once: a late delete of an older generation can
 * never hit the newer one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"
#include "storage/segment.h"
#include "storage/tier.h"

#define CATALOG_VERSION         1u
#define CATALOG_ENTRY_KEY_BYTES 81u /* 'o', object key, claim */
#define CATALOG_ENTRY_PREFIX    'o'
#define CATALOG_POOL_KEY        "mpool"
#define CATALOG_POOL_KEY_BYTES  5u

enum {
        CATALOG_ENTRY_E_DAMAGED = 1, /* wrong length, checksum or field */
        CATALOG_ENTRY_E_NEWER,       /* a version that this program does not know */
};

/* Head of an entry's value, little-endian; n_extents segment_extents follow, then
 * n_covers digests. */
struct catalog_entry_head {
        uint32_t version;
        uint32_t flags;    /* enum segment_flags */
        uint64_t checksum; /* XXH3-64 of the value with this field zero */
        uint64_t epoch;
        uint64_t generation;
        uint64_t raw_bytes;
        uint64_t stored_bytes;
        uint64_t committed_ns;
        uint8_t writer_boot_id[16];
        struct digest parent;
        uint32_t boundary_tokens;
        uint16_t codec; /* encoding_number(); 0: stored raw */
        uint16_t cell; /* of the layout: group and shard */
        uint32_t n_extents;
        uint32_t n_covers;
};

_Static_assert(sizeof(struct catalog_entry_head) == 120, "catalog_entry_head is on disk");
_Static_assert(offsetof(struct catalog_entry_head, checksum) == 8, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, epoch) == 16, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, generation) == 24, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, raw_bytes) == 32, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, stored_bytes) == 40, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, committed_ns) == 48, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, writer_boot_id) == 56, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, parent) == 72, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, boundary_tokens) == 104, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, codec) == 108, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, cell) == 110, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, n_extents) == 112, "entry layout");
_Static_assert(offsetof(struct catalog_entry_head, n_covers) == 116, "entry layout");

/* An entry in memory. */
struct catalog_entry {
        struct tier_object object; /* covers: borrowed */
        uint64_t claim;
        uint64_t epoch;
        uint64_t stored_bytes;
        struct encoding encoding;
        uint32_t n_extents;
        struct segment_extent extents[SEGMENT_EXTENTS_MAX];
};

void catalog_entry_key(uint8_t ret_key[CATALOG_ENTRY_KEY_BYTES], const struct object_key *key,
                       uint64_t claim);

size_t catalog_entry_bytes(const struct catalog_entry *entry);

/* Writes catalog_entry_bytes(@entry) bytes to @value. */
void catalog_entry_encode(void *value, const struct catalog_entry *entry);

/*
 * 0 or CATALOG_ENTRY_E_X. object.covers of @ret_entry points into @value, which must be
 * aligned for it (any address is: digests are bytes).
 */
int catalog_entry_decode(struct catalog_entry *ret_entry, const void *key, size_t key_bytes,
                         const void *value, size_t value_bytes);

/* The record about the pool, little-endian; one, always rewritten whole. */
struct catalog_pool {
        uint32_t version;
        uint32_t n_members;
        uint64_t checksum; /* XXH3-64 of the record with this field zero */
        uint8_t pool_uuid[16];
        uint64_t epoch;
        uint64_t claim_limit;       /* claims below may be in use; none above is */
        uint64_t suspect_claim;     /* those of lower claims may lack bytes: a power loss,
                                       a sync that failed */
        uint8_t kernel_boot_id[16]; /* of the machine's run that last opened the pool */
        uint32_t clean;             /* 1: closed in order */
        uint32_t unit_bytes;
        uint8_t member_uuids[SEGMENT_MEMBERS_MAX][16];
};

_Static_assert(sizeof(struct catalog_pool) == 80 + 16 * SEGMENT_MEMBERS_MAX,
               "catalog_pool is on disk");
_Static_assert(offsetof(struct catalog_pool, checksum) == 8, "pool layout");
_Static_assert(offsetof(struct catalog_pool, pool_uuid) == 16, "pool layout");
_Static_assert(offsetof(struct catalog_pool, epoch) == 32, "pool layout");
_Static_assert(offsetof(struct catalog_pool, claim_limit) == 40, "pool layout");
_Static_assert(offsetof(struct catalog_pool, suspect_claim) == 48, "pool layout");
_Static_assert(offsetof(struct catalog_pool, kernel_boot_id) == 56, "pool layout");
_Static_assert(offsetof(struct catalog_pool, clean) == 72, "pool layout");
_Static_assert(offsetof(struct catalog_pool, unit_bytes) == 76, "pool layout");
_Static_assert(offsetof(struct catalog_pool, member_uuids) == 80, "pool layout");

/* Completes version and checksum. */
void catalog_pool_seal(struct catalog_pool *pool);

/* 0 or CATALOG_ENTRY_E_X; @why (may be NULL) says what is wrong. */
int catalog_pool_decode(struct catalog_pool *ret_pool, const void *value, size_t value_bytes,
                        struct why *why);
