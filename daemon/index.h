// SPDX-License-Identifier: Apache-2.0
/*
 * The index: which objects exist, in which tiers, and the tree of boundaries they hang on.
 *
 * A boundary is a node of the prefix tree: one layout, one digest, a parent. Its objects
 * are one per (group, shard). A boundary exists while it has an object, a cover (a
 * croppable blob that serves it) or a child; one that exists for its children alone is a
 * placeholder, so that the tree keeps its edges whatever order things come in.
 *
 * Memory is the point: a million objects must cost at most 200 bytes each with their
 * presence entries, so records refer to each other by 32-bit ids into arrays that are
 * reserved once for index.objects_max and touched as they fill. Records never move:
 * pointers stay valid until the record is removed. Places in the remote tier lie apart:
 * without one they cost nothing.
 *
 * Presence: index_publish() writes a boundary's bits to the presence table after every
 * change of what is present or resident; the functions here that change either call it.
 *
 * Equality is always by the full key. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/index_record.h"
#include "proto/presence_table.h"
#include "proto/key.h"
#include "storage/tier.h"

enum {
        INDEX_E_FULL = 1, /* index.objects_max is reached: evict, then try again */
};

struct index;
struct layout_entry;
struct placement_order;
struct pin_table;

/*
 * An empty index for at most @objects_max objects (and as many boundaries, plus those that
 * one blob may cover), publishing to @table (borrowed; NULL: nowhere). 0, -ENOMEM or, when
 * 32-bit ids do not reach, -EINVAL.
 */
int index_new(struct index **ret_index, uint64_t objects_max, struct presence_table *table);
/* Frees the records. What they refer to (host copies, places) is the owner's business. */
struct index *index_free(struct index *index);

/*
 * The number of a (domain, layout id), entered when it is new; numbers stay for the life
 * of the index. 0 or INDEX_E_FULL (65,535 layouts).
 */
int index_layout(struct index *index, uint32_t domain, const struct digest *layout_id,
                 uint16_t *ret_layout);
uint16_t index_find_layout(const struct index *index, uint32_t domain,
                           const struct digest *layout_id); /* 0: it is not known */
const struct digest *index_layout_id(const struct index *index, uint16_t layout);
uint32_t index_layout_domain(const struct index *index, uint16_t layout);
uint32_t index_n_layouts(const struct index *index); /* numbers are 1 .. n */
/* All that is known of a layout (daemon/layout_table.h): encoding, state groups. */
struct layout_entry *index_layout_at(const struct index *index, uint16_t layout);
/* Takes a copy of its encoding: see layout_table_describe(). */
int index_describe_layout(struct index *index, uint16_t layout, const uint8_t *encoding,
                          size_t length);

/* Ids and records. at() asserts that the id is in use. */
struct index_boundary *index_boundary_at(struct index *index, uint32_t id);
struct index_object *index_object_at(struct index *index, uint32_t id);
uint32_t index_boundary_id(const struct index *index, const struct index_boundary *boundary);
uint32_t index_object_id(const struct index *index, const struct index_object *object);
/* Names it in the presence table and in placement's memory. */
uint64_t index_fingerprint(const struct index *index, uint16_t layout,
                           const struct digest *digest);

/* NULL when there is none. */
struct index_boundary *index_find_boundary(struct index *index, uint16_t layout,
                                           const struct digest *digest);
struct index_object *index_find_object(struct index *index, struct index_boundary *boundary,
                                       uint16_t group, uint16_t shard);
/* The object of exactly this key, or a croppable one of (group, shard) that covers it. */
struct index_object *index_find_serving(struct index *index, struct index_boundary *boundary,
                                        uint16_t group, uint16_t shard);

struct index_new_object {
        uint16_t layout;
        uint16_t group;
        uint16_t shard;
        uint16_t cell;
        struct digest digest;
        struct digest parent; /* zeros: root */
        bool parent_unknown;
        bool croppable;
        uint32_t boundary_tokens;
        uint32_t raw_bytes;
        uint64_t generation;
        const struct digest *covers; /* croppable; copied */
        uint32_t n_covers;
        struct index_origin origin; /* not kept: for placement_stored() */
};

/*
 * Enters an object, which must not exist yet, with its boundary, placeholder parent and
 * covers (at most TIER_COVERS_MAX) as needed; in no tier yet, so nothing is published.
 * 0, INDEX_E_FULL, -ENOMEM. What is known of a boundary stays: a later object can add a
 * parent or a token count that was unknown, not change one. A parent that is not nearer
 * to the root than its child, by boundary_tokens, is taken for unknown; so is one that
 * comes with 0 tokens.
 */
int index_add(struct index *index, const struct index_new_object *object,
              struct index_object **ret_object);

/* Removes an object that is in no tier (asserted) and what boundaries nothing holds then. */
void index_remove(struct index *index, struct index_object *object);

/*
 * Sets where an object is, once its bytes are complete there; INDEX_NONE or claim 0: no
 * longer. They keep the boundary's place in each tier's order and the presence bits.
 */
void index_set_host(struct index *index, struct index_object *object, uint32_t host);
void index_set_place(struct index *index, struct index_object *object, struct tier_place place);
/* @own: this node wrote it. */
void index_set_remote(struct index *index, struct index_object *object, struct tier_place place,
                      bool own);
/* Where it is below host memory; claim 0: not there. */
struct tier_place index_place(const struct index *index, const struct index_object *object,
                              enum index_tier tier);

/* One that index_object_is_foreign(), in rounds, in @steps records; or NULL. Is there mostly? */
struct index_object *index_find_foreign(struct index *index, uint32_t steps);
bool index_expects_foreign(const struct index *index, uint32_t steps);

/*
 * For placement: what the presence table says of a boundary's children has changed; a
 * boundary that is gone is not remembered any more.
 */
void index_publish_branch(struct index *index, const struct index_boundary *boundary);
void index_publish_forgotten(struct index *index, uint64_t fingerprint);

/*
 * Asks the cache for what finding and touching these boundaries will read and, with
 * @publish, what changing their presence will. Worth it from two on: the misses of a batch
 * overlap, where else each would be waited for. @digests: the first of @n, each @stride
 * bytes after the one before (they may be members of larger records).
 */
void index_prefetch(const struct index *index, uint16_t layout, const struct digest *digests,
                    size_t stride, size_t n, bool publish);

/* Full key of an object. */
void index_key(const struct index *index, const struct index_object *object,
               struct object_key *ret_key);

/* The covers of a croppable object: digests, valid until it is removed. */
const struct digest *index_covers(const struct index *index, const struct index_object *object,
                                  uint32_t *ret_n);

/*
 * Walks all objects in id order: returns the first object with an id above @after
 * (INDEX_NONE to begin), NULL at the end. Objects may be added and removed between calls.
 */
struct index_object *index_next_object(struct index *index, uint32_t after);

/*
 * The same walk in slices: looks at no more than *@steps records, of which it takes off
 * what it used, from the one after *@position on (INDEX_NONE to begin). NULL: the steps
 * are used up, or the end is reached.
 */
struct index_object *index_scan(struct index *index, uint32_t *position, uint32_t *steps);
bool index_scan_has_ended(const struct index *index, uint32_t position);

/*
 * A walk over all boundaries, in slices likewise, but from the highest id down: most children
 * come before their parents. @notes: a byte for each boundary by its id, index_boundaries_max()
 * + 1 of them, for whoever walks in many turns; that of a new boundary is cleared. NULL ends it.
 */
struct index_boundary *index_scan_boundaries(struct index *index, uint32_t *position,
                                             uint32_t *steps);
bool index_boundaries_have_ended(uint32_t position);
uint64_t index_boundaries_max(const struct index *index);
void index_set_notes(struct index *index, uint8_t *notes);

/* Objects of a layout, in whatever tiers, and their raw bytes. */
void index_layout_usage(const struct index *index, uint16_t layout, uint64_t *ret_objects,
                        uint64_t *ret_bytes);

struct index_usage {
        uint64_t objects, boundaries, objects_max;
        uint64_t bytes_in[INDEX_N_TIERS]; /* raw bytes of objects there */
        uint64_t objects_in[INDEX_N_TIERS];
        uint64_t foreign_objects; /* in the remote tier alone, and another node's */
};
void index_usage(const struct index *index, struct index_usage *ret_usage);

/* The eviction orders of this index, for placement.c. */
struct placement_order *index_order(struct index *index);

/* The pins on it (pin_table.h), and the end of one: boundaries that nothing needs go. */
struct pin_table *index_pins(struct index *index);
void index_unpin(struct index *index, struct index_boundary *boundary);
