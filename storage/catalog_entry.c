// SPDX-License-Identifier: Apache-2.0
#include <endian.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>

#include "proto/layout.h"
#include "storage/catalog_entry.h"

void catalog_entry_key(uint8_t ret_key[CATALOG_ENTRY_KEY_BYTES], const struct object_key *key,
                       uint64_t claim)
{
        uint64_t big_endian = htobe64(claim);

        ret_key[0] = CATALOG_ENTRY_PREFIX;
        memcpy(ret_key + 1, key, sizeof(*key));
        memcpy(ret_key + 1 + sizeof(*key), &big_endian, sizeof(big_endian));
}

size_t catalog_entry_bytes(const struct catalog_entry *entry)
{
        return sizeof(struct catalog_entry_head) +
               entry->n_extents * sizeof(struct segment_extent) +
               entry->object.n_covers * sizeof(struct digest);
}

static uint64_t value_checksum(const struct catalog_entry_head *head, const void *rest,
                               size_t rest_bytes)
{
        struct catalog_entry_head copy = *head;
        XXH3_state_t state;

        copy.checksum = 0;
        XXH3_64bits_reset(&state);
        XXH3_64bits_update(&state, &copy, sizeof(copy));
        XXH3_64bits_update(&state, rest, rest_bytes);
        return XXH3_64bits_digest(&state);
}

static uint32_t object_flags(const struct tier_object *object)
{
        return (object->parent_unknown ? SEGMENT_PARENT_UNKNOWN : 0) |
               (object->croppable ? SEGMENT_CROPPABLE : 0);
}

void catalog_entry_encode(void *value, const struct catalog_entry *entry)
{
        const struct tier_object *object = &entry->object;
        struct catalog_entry_head head = {
                .version = CATALOG_VERSION,
                .flags = object_flags(object),
                .epoch = entry->epoch,
                .generation = object->generation,
                .raw_bytes = object->raw_bytes,
                .stored_bytes = entry->stored_bytes,
                .committed_ns = object->committed_ns,
                .parent = object->parent,
                .boundary_tokens = object->boundary_tokens,
                .codec = encoding_number(entry->encoding),
                .cell = object->cell,
                .n_extents = entry->n_extents,
                .n_covers = object->n_covers,
        };
        uint8_t *rest = (uint8_t *)value + sizeof(head);
        size_t extents_bytes = entry->n_extents * sizeof(entry->extents[0]);

        memcpy(head.writer_boot_id, object->writer_boot_id, sizeof(head.writer_boot_id));
        memcpy(rest, entry->extents, extents_bytes);
        if (object->n_covers)
                memcpy(rest + extents_bytes, object->covers,
                       object->n_covers * sizeof(struct digest));
        head.checksum = value_checksum(&head, rest, catalog_entry_bytes(entry) - sizeof(head));
        memcpy(value, &head, sizeof(head));
}

/* What is encoded takes fewer units than what is not: that is how a place tells. */
static bool lengths_are_sane(const struct catalog_entry_head *head)
{
        if (!head->raw_bytes || !head->stored_bytes || head->raw_bytes > UINT64_MAX / 2)
                return false;
        return head->codec ? segment_units(head->stored_bytes) < segment_units(head->raw_bytes)
                           : head->stored_bytes == head->raw_bytes;
}

static bool head_is_sane(const struct catalog_entry_head *head, size_t rest_bytes)
{
        return head->n_extents && head->n_extents <= SEGMENT_EXTENTS_MAX &&
               head->n_covers <= TIER_COVERS_MAX &&
               rest_bytes == head->n_extents * sizeof(struct segment_extent) +
                                     head->n_covers * sizeof(struct digest) &&
               !(head->flags & ~(uint32_t)SEGMENT_FLAGS_ALL) && head->epoch &&
               encoding_is_known(encoding_from_number(head->codec)) && lengths_are_sane(head) &&
               head->cell < LAYOUT_CELLS_MAX;
}

/* Of some layout: the index has tables of these sizes. */
static bool key_is_sane(const struct object_key *key)
{
        return key->group < LAYOUT_GROUPS_MAX && key->shard < LAYOUT_SHARDS_MAX;
}

static void fill_object(struct tier_object *object, const struct catalog_entry_head *head,
                        const uint8_t *key, const void *covers)
{
        memset(object, 0, sizeof(*object));
        memcpy(&object->key, key + 1, sizeof(object->key));
        object->parent = head->parent;
        object->parent_unknown = head->flags & SEGMENT_PARENT_UNKNOWN;
        object->croppable = head->flags & SEGMENT_CROPPABLE;
        object->boundary_tokens = head->boundary_tokens;
        object->cell = head->cell;
        object->generation = head->generation;
        object->raw_bytes = head->raw_bytes;
        object->committed_ns = head->committed_ns;
        memcpy(object->writer_boot_id, head->writer_boot_id, sizeof(object->writer_boot_id));
        object->n_covers = head->n_covers;
        object->covers = head->n_covers ? covers : NULL;
}

int catalog_entry_decode(struct catalog_entry *ret_entry, const void *key, size_t key_bytes,
                         const void *value, size_t value_bytes)
{
        const uint8_t *key_at = key,
                      *rest = (const uint8_t *)value + sizeof(struct catalog_entry_head);
        struct catalog_entry_head head;
        struct catalog_entry entry;
        size_t rest_bytes, extents_bytes;

        if (key_bytes != CATALOG_ENTRY_KEY_BYTES || key_at[0] != CATALOG_ENTRY_PREFIX ||
            value_bytes < sizeof(head))
                return CATALOG_ENTRY_E_DAMAGED;
        memcpy(&head, value, sizeof(head));
        rest_bytes = value_bytes - sizeof(head);
        if (head.version > CATALOG_VERSION)
                return CATALOG_ENTRY_E_NEWER;
        if (!head.version || head.checksum != value_checksum(&head, rest, rest_bytes) ||
            !head_is_sane(&head, rest_bytes))
                return CATALOG_ENTRY_E_DAMAGED;

        memcpy(&entry.claim, key_at + 1 + sizeof(struct object_key), sizeof(entry.claim));
        entry.claim = be64toh(entry.claim);
        entry.epoch = head.epoch;
        entry.stored_bytes = head.stored_bytes;
        entry.encoding = encoding_from_number(head.codec);
        entry.n_extents = head.n_extents;
        extents_bytes = head.n_extents * sizeof(entry.extents[0]);
        memset(entry.extents, 0, sizeof(entry.extents));
        memcpy(entry.extents, rest, extents_bytes);
        fill_object(&entry.object, &head, key_at, rest + extents_bytes);
        if (!entry.claim || !key_is_sane(&entry.object.key) ||
            !segment_extents_are_sane(entry.extents, entry.n_extents, head.stored_bytes))
                return CATALOG_ENTRY_E_DAMAGED;
        *ret_entry = entry;
        return 0;
}

static uint64_t pool_checksum(const struct catalog_pool *pool)
{
        struct catalog_pool copy = *pool;

        copy.checksum = 0;
        return XXH3_64bits(&copy, sizeof(copy));
}

void catalog_pool_seal(struct catalog_pool *pool)
{
        pool->version = CATALOG_VERSION;
        pool->checksum = pool_checksum(pool);
}

int catalog_pool_decode(struct catalog_pool *ret_pool, const void *value, size_t value_bytes,
                        struct why *why)
{
        struct catalog_pool pool;
        uint32_t version;

        if (value_bytes < sizeof(version)) {
                why_set(why, "the catalog's pool record is cut short");
                return CATALOG_ENTRY_E_DAMAGED;
        }
        memcpy(&version, value, sizeof(version));
        if (version > CATALOG_VERSION) {
                why_set(why, "catalog format %u; this program knows up to %u", version,
                        CATALOG_VERSION);
                return CATALOG_ENTRY_E_NEWER;
        }
        if (value_bytes != sizeof(pool)) {
                why_set(why, "the catalog's pool record has a wrong length");
                return CATALOG_ENTRY_E_DAMAGED;
        }
        memcpy(&pool, value, sizeof(pool));
        if (!version || pool.checksum != pool_checksum(&pool) || !pool.n_members ||
            pool.n_members > SEGMENT_MEMBERS_MAX || pool.unit_bytes != SEGMENT_UNIT_BYTES ||
            !pool.epoch || pool.clean > 1) {
                why_set(why, "the catalog's pool record is damaged");
                return CATALOG_ENTRY_E_DAMAGED;
        }
        *ret_pool = pool;
        return 0;
}
