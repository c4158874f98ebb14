// SPDX-License-Identifier: Apache-2.0
/*
 * What the index of the remote tier keeps, in a database (database.h): keys and values as
 * bytes, little-endian but for numbers in keys. Encode, decode, validate: pure functions.
 *
 *   'm'                      remote_index_meta
 *   'o' object key, claim    remote_index_entry, then the part's record (bundle.h)
 *   'b' number               remote_index_bundle: an own bundle with entries
 *   'p' number               remote_index_bundle: an own one that is to be removed, or whose
 *                            put has not ended: what a crash leaves is removed
 *   'j' sequence             records for our journal that are not in the pool yet: a sealed
 *                            segment (journal.h) numbered by the sequence
 *   'n' node                 remote_index_node, then n_positions of remote_index_position
 *   'r' object key           remote_index_replaced
 *   'l' domain, layout id    as in the catalog (catalog_layout.h)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "storage/bundle.h"
#include "storage/database.h"

#define REMOTE_INDEX_VERSION         1u
#define REMOTE_INDEX_META            'm'
#define REMOTE_INDEX_ENTRY           'o'
#define REMOTE_INDEX_BUNDLE          'b'
#define REMOTE_INDEX_CONDEMNED       'p'
#define REMOTE_INDEX_PENDING         'j'
#define REMOTE_INDEX_NODE            'n'
#define REMOTE_INDEX_REPLACED        'r'
#define REMOTE_INDEX_ENTRY_KEY_BYTES 81u
#define REMOTE_INDEX_NUMBER_BYTES    9u  /* prefix and a number */
#define REMOTE_INDEX_NODE_BYTES      17u /* prefix and a node */

extern const struct database_kind remote_index_kind;

#define REMOTE_META_REBUILDING 1u /* what it should know is still being read from the pool */
#define REMOTE_META_MISSED     2u /* tier.h's on_missed is due: not all has gone yet that has to */
#define REMOTE_META_LEAVING    4u /* on_vanished is due, of all that is remembered as replaced */

struct remote_index_meta {
        uint32_t version;
        uint32_t flags;    /* REMOTE_META_* */
        uint64_t checksum; /* XXH3-64 of the record with this field zero */
        uint8_t node[16];
        uint64_t next_bundle;   /* none of this number or above was ever put */
        uint64_t first_segment; /* of our journal in the pool; 0: it has none */
        uint64_t next_segment;
};

_Static_assert(sizeof(struct remote_index_meta) == 56, "remote_index_meta is on disk");
_Static_assert(offsetof(struct remote_index_meta, node) == 16, "meta layout");
_Static_assert(offsetof(struct remote_index_meta, next_bundle) == 32, "meta layout");
_Static_assert(offsetof(struct remote_index_meta, next_segment) == 48, "meta layout");

struct remote_index_entry {
        uint8_t node[16]; /* of the bundle */
        uint64_t number;
        uint32_t part;
        uint32_t flags; /* 1: learned from a journal */
};

_Static_assert(sizeof(struct remote_index_entry) == 32, "remote_index_entry is on disk");

struct remote_index_bundle {
        uint64_t bytes; /* in the pool */
};

_Static_assert(sizeof(struct remote_index_bundle) == 8, "remote_index_bundle is on disk");

struct remote_index_node {
        uint64_t read_to; /* segments of its journal up to this one have been read */
        uint64_t floor;
        uint64_t gap_at; /* until a snapshot is read: the first that went unread; 0: none */
        uint32_t n_positions;
        uint32_t reserved; /* zero */
};

_Static_assert(sizeof(struct remote_index_node) == 32, "remote_index_node is on disk");

struct remote_index_position {
        uint8_t node[16];
        uint64_t number;
};

_Static_assert(sizeof(struct remote_index_position) == 24, "remote_index_position is on disk");

struct remote_index_replaced {
        uint8_t node[16];
        uint64_t number; /* of the segment; UINT64_MAX: pending */
        uint64_t checksum_total;
};

_Static_assert(sizeof(struct remote_index_replaced) == 32, "remote_index_replaced is on disk");

void remote_index_entry_key(uint8_t ret_key[REMOTE_INDEX_ENTRY_KEY_BYTES],
                            const struct object_key *key, uint64_t claim);
/* @prefix and the number, big-endian. */
void remote_index_number_key(uint8_t ret_key[REMOTE_INDEX_NUMBER_BYTES], char prefix,
                             uint64_t number);
bool remote_index_number_of(const void *key, size_t key_bytes, uint64_t *ret_number);

/* The value of an entry: remote_index_entry_bytes() of them. */
size_t remote_index_entry_bytes(const struct bundle_part *part);
void remote_index_entry_encode(void *value, const struct bundle_id *bundle, uint32_t number,
                               bool is_learned, const struct bundle_part *part);
/* 0 or -EINVAL. Pointers of @ret_part point into @value. */
int remote_index_entry_decode(const void *value, size_t value_bytes,
                              struct remote_index_entry *ret_entry, struct bundle_part *ret_part);
uint64_t remote_index_claim_of(const void *key, size_t key_bytes); /* 0: no such key */

void remote_index_meta_seal(struct remote_index_meta *meta);
/* 0, or DATABASE_E_DAMAGED with @why. */
int remote_index_meta_decode(struct remote_index_meta *ret_meta, const void *value,
                             size_t value_bytes, struct why *why);
