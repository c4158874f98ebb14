// SPDX-License-Identifier: Apache-2.0
/*
 * Covers: which boundaries a croppable blob serves besides its own end.
 *
 * A cover joins one object and one boundary. Several blobs may cover one boundary (a
 * system prompt is covered by every conversation), so a boundary's covers are a doubly
 * linked list; the covers of an object are a set, which also keeps the digests as the
 * writer listed them.
 *
 * The table knows ids only; the index keeps boundaries alive while they are covered. At
 * most as many covers as the index may hold objects, plus those of one blob, exist at a
 * time. Loop thread only.
 */
#pragma once

#include <stdint.h>

#include "daemon/record_pool.h"
#include "proto/key.h"

struct cover {
        uint32_t object;
        uint32_t boundary;
        uint32_t next; /* of the same boundary */
        uint32_t previous;
};

struct cover_set {
        struct digest *digests; /* n_digests, as listed */
        uint32_t *covers;       /* n_covers ids */
        uint32_t n_digests;
        uint32_t n_covers;
};

struct cover_table {
        struct record_pool covers;
        struct cover_set **sets; /* by object id; untouched for all that cover nothing */
        uint64_t objects_max;
};

/* 0 or -ENOMEM. */
int cover_table_init(struct cover_table *table, uint64_t objects_max);
void cover_table_deinit(struct cover_table *table);

/* An empty set with room for @n covers and copies of @digests; NULL without memory. */
struct cover_set *cover_set_new(const struct digest *digests, uint32_t n);
/* NULL is fine. Returns NULL. */
struct cover_set *cover_set_free(struct cover_set *set);

static inline struct cover *cover_table_at(const struct cover_table *table, uint32_t id)
{
        return record_pool_at(&table->covers, id);
}

/* Joins @boundary, whose list begins at @first_cover, to @set of @object. */
void cover_table_join(struct cover_table *table, struct cover_set *set, uint32_t object,
                      uint32_t boundary, uint32_t *first_cover);

/* Undoes one join. */
void cover_table_part(struct cover_table *table, uint32_t cover, uint32_t *first_cover);
