// SPDX-License-Identifier: Apache-2.0
#include "storage/catalog.h"

_Static_assert(CATALOG_ENTRY_KEY_BYTES <= DATABASE_KEY_MAX, "entries have the longest keys");

/* Only walks and blind writes. */
const struct database_kind catalog_kind = {.noun = "catalog"};

int catalog_load_pool(struct database *catalog, struct catalog_pool *ret_pool, struct why *why)
{
        size_t value_bytes;
        void *value;
        int r = database_get(catalog, CATALOG_POOL_KEY, CATALOG_POOL_KEY_BYTES, &value,
                             &value_bytes, why);

        if (r == DATABASE_E_ABSENT) {
                if (database_is_empty(catalog))
                        return CATALOG_E_ABSENT;
                why_set(why, "the catalog folder holds another program's database");
                return CATALOG_E_FOREIGN;
        }
        if (r) {
                why_prefix(why, "catalog");
                return CATALOG_E_DAMAGED;
        }
        r = catalog_pool_decode(ret_pool, value, value_bytes, why);
        database_value_free(value);
        if (r == CATALOG_ENTRY_E_NEWER)
                return CATALOG_E_NEWER;
        return r ? CATALOG_E_DAMAGED : 0;
}

int catalog_store_pool(struct database *catalog, const struct catalog_pool *pool, struct why *why)
{
        return database_store(catalog, CATALOG_POOL_KEY, CATALOG_POOL_KEY_BYTES, pool,
                              sizeof(*pool), why);
}

void catalog_put(struct database *catalog, struct database_op *op, const struct object_key *key,
                 uint64_t claim, void *value, size_t value_bytes)
{
        uint8_t bytes[CATALOG_ENTRY_KEY_BYTES];

        catalog_entry_key(bytes, key, claim);
        database_put(catalog, op, bytes, sizeof(bytes), value, value_bytes, false);
}

void catalog_delete(struct database *catalog, struct database_op *op, const struct object_key *key,
                    uint64_t claim, bool sync)
{
        uint8_t bytes[CATALOG_ENTRY_KEY_BYTES];

        catalog_entry_key(bytes, key, claim);
        database_delete(catalog, op, bytes, sizeof(bytes), sync);
}

void catalog_put_layout(struct database *catalog, struct database_op *op,
                        const struct tier_layout *layout, void *value, size_t value_bytes)
{
        uint8_t key[CATALOG_LAYOUT_KEY_BYTES];

        catalog_layout_key(key, layout->domain, &layout->id);
        database_put(catalog, op, key, sizeof(key), value, value_bytes, false);
}

void catalog_delete_layout(struct database *catalog, struct database_op *op,
                           const struct tier_layout *layout)
{
        uint8_t key[CATALOG_LAYOUT_KEY_BYTES];

        catalog_layout_key(key, layout->domain, &layout->id);
        database_delete(catalog, op, key, sizeof(key), false);
}

void catalog_put_pool(struct database *catalog, struct database_op *op, struct catalog_pool *record)
{
        database_put(catalog, op, CATALOG_POOL_KEY, CATALOG_POOL_KEY_BYTES, record, sizeof(*record),
                     true);
}
