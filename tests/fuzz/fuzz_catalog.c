// SPDX-License-Identifier: Apache-2.0
/*
 * Any catalog value, as entry, as layout and as pool record. Bit 0 of the first byte puts the
 * checksum right first; an accepted entry encodes to the same bytes again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "proto/layout.h"
#include "storage/catalog_entry.h"
#include "storage/catalog_layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

/* All values have their checksum at offset 8, over themselves with that field zero. */
static void seal(uint8_t *value, size_t bytes)
{
        uint64_t checksum = 0;

        if (bytes < 16)
                return;
        memcpy(value + 8, &checksum, sizeof(checksum));
        checksum = XXH3_64bits(value, bytes);
        memcpy(value + 8, &checksum, sizeof(checksum));
}

static void check_entry(const uint8_t *key, const uint8_t *value, size_t bytes)
{
        struct catalog_entry entry;
        uint8_t *again;

        if (catalog_entry_decode(&entry, key, CATALOG_ENTRY_KEY_BYTES, value, bytes))
                return;
        REQUIRE(entry.n_extents && entry.n_extents <= SEGMENT_EXTENTS_MAX);
        REQUIRE(entry.object.n_covers <= TIER_COVERS_MAX);
        REQUIRE(catalog_entry_bytes(&entry) == bytes);
        again = malloc(bytes);
        REQUIRE(again);
        catalog_entry_encode(again, &entry);
        REQUIRE(!memcmp(again, value, bytes));
        free(again);
}

static void check_layout(const uint8_t *value, size_t bytes)
{
        const size_t head = sizeof(struct catalog_layout_head);
        uint8_t key[CATALOG_LAYOUT_KEY_BYTES];
        struct tier_layout layout;
        struct digest id = {{0}};

        if (bytes >= head)
                REQUIRE(!layout_id(&id, value + head, bytes - head));
        catalog_layout_key(key, 0, &id);
        if (catalog_layout_decode(&layout, key, sizeof(key), value, bytes))
                return;
        REQUIRE(layout.length == bytes - head && layout.length <= LAYOUT_BYTES_MAX);
        REQUIRE(!memcmp(layout.encoding, value + head, layout.length));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint8_t key[CATALOG_ENTRY_KEY_BYTES] = {CATALOG_ENTRY_PREFIX};
        size_t bytes = size ? size - 1 : 0;
        uint8_t *value = malloc(bytes ? bytes : 1);
        struct catalog_pool pool;
        struct why why = {""};

        REQUIRE(value);
        if (bytes)
                memcpy(value, data + 1, bytes);
        if (size && data[0] & 1)
                seal(value, bytes);
        key[CATALOG_ENTRY_KEY_BYTES - 1] = 1;
        check_entry(key, value, bytes);
        check_layout(value, bytes);
        if (catalog_pool_decode(&pool, value, bytes, &why))
                REQUIRE(*why.text);
        else
                REQUIRE(pool.n_members && pool.n_members <= SEGMENT_MEMBERS_MAX);
        free(value);
        return 0;
}
