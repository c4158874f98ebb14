// SPDX-License-Identifier: Apache-2.0
/*
 * The catalog: what of the NVMe tier survives a restart, in a database (database.h, whose
 * functions open, close and walk it). Here is what its keys and values mean.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "storage/catalog_entry.h"
#include "storage/catalog_layout.h"
#include "storage/database.h"

extern const struct database_kind catalog_kind;

enum {
        CATALOG_E_ABSENT = 1, /* no pool record: a new catalog */
        CATALOG_E_DAMAGED,    /* cannot be read: to be treated as lost */
        CATALOG_E_FOREIGN,    /* holds something else: not to be overwritten */
        CATALOG_E_NEWER,      /* of a newer format */
};

/* Reads the pool record. 0, CATALOG_E_X or a negative errno. */
int catalog_load_pool(struct database *catalog, struct catalog_pool *ret_pool, struct why *why);

/* Writes the pool record durably, blocking: for the time of opening. */
int catalog_store_pool(struct database *catalog, const struct catalog_pool *pool, struct why *why);

/* Queue operations. @value becomes the catalog's. */
void catalog_put(struct database *catalog, struct database_op *op, const struct object_key *key,
                 uint64_t claim, void *value, size_t value_bytes);
void catalog_delete(struct database *catalog, struct database_op *op, const struct object_key *key,
                    uint64_t claim, bool sync);
/* Queue what is kept of a layout; @value (from catalog_layout_encode()) becomes the catalog's. */
void catalog_put_layout(struct database *catalog, struct database_op *op,
                        const struct tier_layout *layout, void *value, size_t value_bytes);
void catalog_delete_layout(struct database *catalog, struct database_op *op,
                           const struct tier_layout *layout);
/* Queues the (sealed) pool record, durably. @record is malloc'd and becomes the catalog's. */
void catalog_put_pool(struct database *catalog, struct database_op *op,
                      struct catalog_pool *record);
