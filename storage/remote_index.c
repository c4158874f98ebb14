// SPDX-License-Identifier: Apache-2.0
#include <endian.h>
#include <string.h>
#include <xxhash.h>

#include "storage/remote_index.h"

const struct database_kind remote_index_kind = {
        .noun = "index of the pool",
        .is_looked_up = true,
};

void remote_index_entry_key(uint8_t ret_key[REMOTE_INDEX_ENTRY_KEY_BYTES],
                            const struct object_key *key, uint64_t claim)
{
        uint64_t big_endian = htobe64(claim);

        ret_key[0] = REMOTE_INDEX_ENTRY;
        memcpy(ret_key + 1, key, sizeof(*key));
        memcpy(ret_key + 1 + sizeof(*key), &big_endian, sizeof(big_endian));
}

uint64_t remote_index_claim_of(const void *key, size_t key_bytes)
{
        uint64_t big_endian;

        if (key_bytes != REMOTE_INDEX_ENTRY_KEY_BYTES)
                return 0;
        memcpy(&big_endian, (const uint8_t *)key + 1 + sizeof(struct object_key),
               sizeof(big_endian));
        return be64toh(big_endian);
}

void remote_index_number_key(uint8_t ret_key[REMOTE_INDEX_NUMBER_BYTES], char prefix,
                             uint64_t number)
{
        uint64_t big_endian = htobe64(number);

        ret_key[0] = (uint8_t)prefix;
        memcpy(ret_key + 1, &big_endian, sizeof(big_endian));
}

bool remote_index_number_of(const void *key, size_t key_bytes, uint64_t *ret_number)
{
        uint64_t big_endian;

        if (key_bytes != REMOTE_INDEX_NUMBER_BYTES)
                return false;
        memcpy(&big_endian, (const uint8_t *)key + 1, sizeof(big_endian));
        *ret_number = be64toh(big_endian);
        return true;
}

size_t remote_index_entry_bytes(const struct bundle_part *part)
{
        return sizeof(struct remote_index_entry) + bundle_part_bytes(part);
}

void remote_index_entry_encode(void *value, const struct bundle_id *bundle, uint32_t number,
                               bool is_learned, const struct bundle_part *part)
{
        struct remote_index_entry entry = {
                .number = bundle->number,
                .part = number,
                .flags = is_learned,
        };

        memcpy(entry.node, bundle->node, sizeof(entry.node));
        memcpy(value, &entry, sizeof(entry));
        bundle_part_encode((uint8_t *)value + sizeof(entry), part);
}

int remote_index_entry_decode(const void *value, size_t value_bytes,
                              struct remote_index_entry *ret_entry, struct bundle_part *ret_part)
{
        size_t record_bytes;

        if (value_bytes < sizeof(*ret_entry))
                return err_raise(-EINVAL);
        memcpy(ret_entry, value, sizeof(*ret_entry));
        if (ret_entry->part >= BUNDLE_PARTS_MAX || ret_entry->flags > 1 || !ret_entry->number ||
            bundle_part_decode(ret_part, (const uint8_t *)value + sizeof(*ret_entry),
                               value_bytes - sizeof(*ret_entry), &record_bytes, NULL) ||
            record_bytes != value_bytes - sizeof(*ret_entry))
                return err_raise(-EINVAL);
        return 0;
}

static uint64_t meta_checksum(const struct remote_index_meta *meta)
{
        struct remote_index_meta copy = *meta;

        copy.checksum = 0;
        return XXH3_64bits(&copy, sizeof(copy));
}

void remote_index_meta_seal(struct remote_index_meta *meta)
{
        meta->version = REMOTE_INDEX_VERSION;
        meta->checksum = meta_checksum(meta);
}

int remote_index_meta_decode(struct remote_index_meta *ret_meta, const void *value,
                             size_t value_bytes, struct why *why)
{
        struct remote_index_meta meta;

        if (value_bytes == sizeof(meta)) {
                memcpy(&meta, value, sizeof(meta));
                if (meta.version == REMOTE_INDEX_VERSION && meta.checksum == meta_checksum(&meta) &&
                    meta.next_bundle && meta.next_segment &&
                    meta.first_segment <= meta.next_segment) {
                        *ret_meta = meta;
                        return 0;
                }
        }
        why_set(why, "its first record is damaged, or of another version than %u",
                REMOTE_INDEX_VERSION);
        return DATABASE_E_DAMAGED;
}
