// SPDX-License-Identifier: Apache-2.0
/*
 * The records of the index: a boundary of the prefix tree and an object on it. They refer
 * to each other by 32-bit ids and never move (index.h).
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/key.h"
#include "storage/tier.h"

#define INDEX_NONE 0u /* id 0 is never a record */

/* Tiers that have an eviction order over boundaries. */
enum index_tier {
        INDEX_HOST,
        INDEX_NVME,
        INDEX_REMOTE, /* of what this node wrote to the pool; others' is theirs to evict */
        INDEX_N_TIERS,
};

/* index_boundary.flags */
#define INDEX_PARENT_UNKNOWN (1u << 0)
#define INDEX_IN_HOST        (1u << 1) /* on the host order (placement.h) */
#define INDEX_IN_NVME        (1u << 2)
#define INDEX_BYTES_HOST     (1u << 3) /* an object of it is in the host tier */
#define INDEX_BYTES_NVME     (1u << 4)
#define INDEX_TOKENS_UNKNOWN (1u << 5) /* has no parent then; boundary_tokens is below */
#define INDEX_IN_USE         (1u << 6)
#define INDEX_IN_REMOTE      (1u << 7)
#define INDEX_BYTES_REMOTE   (1u << 8) /* this node's own */
#define INDEX_SEEN_TWICE     (1u << 9) /* stored, and stored or read again since */

#define INDEX_NEVER UINT32_MAX /* touched_s of what was never touched */

/* One cache line; the links of the eviction orders lie apart (placement.h). */
struct index_boundary {
        struct digest digest;
        uint32_t parent; /* boundary, or INDEX_NONE: a root or unknown */
        uint32_t hash_next;
        uint16_t layout; /* index_layout() */
        uint16_t flags;
        /*
         * Larger than the parent's, always: so no claim of a client can close a circle.
         * While unknown: the smallest of the children's, or 0 without children.
         */
        uint32_t boundary_tokens;
        uint32_t first_object;
        uint32_t first_cover;
        uint32_t n_children; /* in the tree */
        uint32_t touched_s;  /* monotonic seconds of the last touch of the whole chain */
};

_Static_assert(sizeof(struct index_boundary) == 64, "one boundary a cache line");

/* Where the prefill that stored a state began, and why it did; for placement. */
struct index_origin {
        bool is_known;         /* else both are guessed */
        bool is_branch;        /* stored because prompts branch here (match's hint) */
        uint32_t began_tokens; /* the boundary from which it went on; 0: from nothing */
};

/* index_object.flags */
#define INDEX_CROPPABLE     (1u << 0)
#define INDEX_WRITING       (1u << 1) /* a write to NVMe of this generation is under way */
#define INDEX_READING       (1u << 2) /* a promotion is under way */
#define INDEX_PINNED_HOST   (1u << 3) /* its bytes there are protected (pin_table.h) */
#define INDEX_PINNED_NVME   (1u << 4)
#define INDEX_PINNED_REMOTE (1u << 5)
#define INDEX_REMOTE_HERE   (1u << 6) /* it is in the remote tier, at index_place() */
#define INDEX_REMOTE_OWN    (1u << 7) /* ... and this node wrote it */
#define INDEX_WRITING_POOL  (1u << 8) /* as INDEX_WRITING, to the remote tier */

struct index_object {
        uint32_t boundary;
        uint32_t next; /* object of the same boundary */
        uint16_t group;
        uint16_t shard;
        uint16_t cell;
        uint16_t flags;
        uint32_t raw_bytes;
        uint32_t host; /* host copy's id (daemon/host_copy.h), or INDEX_NONE */
        uint64_t generation;
        struct tier_place place; /* NVMe; claim 0: not there */
};

static inline bool index_object_is_in(const struct index_object *object, enum index_tier tier)
{
        switch (tier) {
        case INDEX_HOST:
                return object->host != INDEX_NONE;
        case INDEX_NVME:
                return object->place.claim != 0;
        default:
                return object->flags & INDEX_REMOTE_HERE;
        }
}

/* Is it there, and this node's: in the tier's order, to be evicted and pinned? */
static inline bool index_object_is_ours(const struct index_object *object, enum index_tier tier)
{
        return tier == INDEX_REMOTE ? object->flags & INDEX_REMOTE_OWN
                                    : index_object_is_in(object, tier);
}

static inline bool index_object_is_nowhere(const struct index_object *object)
{
        return object->host == INDEX_NONE && !object->place.claim &&
               !(object->flags & INDEX_REMOTE_HERE);
}

/* Others' alone: what the node knows of it is all that it costs, and all that it can drop. */
static inline bool index_object_is_foreign(const struct index_object *object)
{
        return object->host == INDEX_NONE && !object->place.claim &&
               (object->flags & (INDEX_REMOTE_HERE | INDEX_REMOTE_OWN)) == INDEX_REMOTE_HERE;
}
