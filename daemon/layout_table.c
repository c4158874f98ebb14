// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/cleanup.h"
#include "daemon/encoding_choice.h"
#include "daemon/layout_table.h"
#include "daemon/record_pool.h"

#define HEADS 4096u

int layout_table_init(struct layout_table *table, uint64_t hash_seed)
{
        void *entries, *heads;
        int r;

        r = record_array_new(&entries, LAYOUT_TABLE_MAX + 1, sizeof(struct layout_entry));
        if (r < 0)
                return r;
        r = record_array_new(&heads, HEADS, sizeof(uint32_t));
        if (r < 0) {
                record_array_free(entries, LAYOUT_TABLE_MAX + 1, sizeof(struct layout_entry));
                return r;
        }
        *table = (struct layout_table){
                .entries = entries,
                .heads = heads,
                .hash_seed = hash_seed,
        };
        return 0;
}

static void drop_encoding(struct layout_table *table, struct layout_entry *entry)
{
        table->encodings_bytes -= entry->encoding_bytes;
        free(steal_ptr(entry->encoding));
        entry->encoding_bytes = 0;
}

void layout_table_deinit(struct layout_table *table)
{
        for (uint32_t i = 1; i <= table->n; i++) {
                drop_encoding(table, &table->entries[i]);
                free(table->entries[i].use);
        }
        record_array_free(table->heads, HEADS, sizeof(uint32_t));
        record_array_free(table->entries, LAYOUT_TABLE_MAX + 1, sizeof(struct layout_entry));
        *table = (struct layout_table){0};
}

static uint32_t *head_of(const struct layout_table *table, uint32_t domain,
                         const struct digest *id)
{
        return &table->heads[XXH3_64bits_withSeed(id, sizeof(*id), table->hash_seed + domain) %
                             HEADS];
}

uint16_t layout_table_find(const struct layout_table *table, uint32_t domain,
                           const struct digest *id)
{
        for (uint32_t i = *head_of(table, domain, id); i; i = table->entries[i].hash_next)
                if (table->entries[i].domain == domain && digest_equal(&table->entries[i].id, id))
                        return (uint16_t)i;
        return 0;
}

int layout_table_number(struct layout_table *table, uint32_t domain, const struct digest *id,
                        uint64_t presence_key, uint16_t *ret_number)
{
        uint16_t known = layout_table_find(table, domain, id);
        uint32_t *head = head_of(table, domain, id);
        struct layout_entry *entry;

        if (known) {
                *ret_number = known;
                return 0;
        }
        if (table->n == LAYOUT_TABLE_MAX)
                return LAYOUT_TABLE_E_FULL;
        entry = &table->entries[++table->n];
        entry->id = *id;
        entry->domain = domain;
        entry->hash_next = *head;
        for (uint32_t bank = 0; bank < LAYOUT_TABLE_BANKS; bank++)
                entry->seeds[bank] = presence_seed(presence_key, domain, id, bank);
        *head = table->n;
        *ret_number = (uint16_t)table->n;
        return 0;
}

struct layout_entry *layout_table_at(const struct layout_table *table, uint16_t number)
{
        assert(number > 0 && number <= table->n);
        return &table->entries[number];
}

/* Is there room for @length more bytes, if need be by what layouts without objects had? */
static bool make_room(struct layout_table *table, size_t length)
{
        for (uint32_t i = 1; i <= table->n; i++) {
                if (table->encodings_bytes + length <= LAYOUT_TABLE_ENCODINGS_MAX)
                        return true;
                if (!table->entries[i].objects)
                        drop_encoding(table, &table->entries[i]);
        }
        return table->encodings_bytes + length <= LAYOUT_TABLE_ENCODINGS_MAX;
}

static uint32_t state_groups_of(const struct layout *layout)
{
        uint32_t groups = 0;

        for (uint16_t g = 0; g < layout->n_groups; g++)
                if (layout->groups[g].kind == LAYOUT_STATE)
                        groups |= 1u << g;
        return groups;
}

/* Of a window only the trailing chunks are there. */
static uint32_t kv_tokens_of(const struct layout *layout)
{
        for (uint16_t g = 0; g < layout->n_groups; g++) {
                uint8_t kind = layout->groups[g].kind;

                if (kind == LAYOUT_ATTENTION || kind == LAYOUT_INDEX || kind == LAYOUT_COMPRESSED)
                        return layout->chunk_tokens;
        }
        return 0;
}

int layout_table_describe(struct layout_table *table, uint16_t number, const uint8_t *encoding,
                          size_t length)
{
        struct layout_entry *entry = layout_table_at(table, number);
        struct layout layout;
        struct digest id;
        struct why why;

        if (entry->encoding)
                return 0;
        if (layout_decode(&layout, encoding, length, &why))
                return err_raise(-EINVAL);
        if (layout_id(&id, encoding, length))
                return err_raise(-ENOMEM);
        if (!digest_equal(&id, &entry->id))
                return err_raise(-EINVAL);
        entry->state_groups = state_groups_of(&layout);
        entry->kv_tokens = kv_tokens_of(&layout);
        for (uint16_t g = 0; g < layout.n_groups; g++) {
                entry->group_kinds[g] = layout.groups[g].kind;
                entry->number_bytes[g] = encoding_choice_number_bytes(&layout, g);
        }
        entry->is_known = true;
        if (!make_room(table, length))
                return LAYOUT_TABLE_E_FULL;
        entry->encoding = malloc(length);
        if (!entry->encoding)
                return err_raise(-ENOMEM);
        memcpy(entry->encoding, encoding, length);
        entry->encoding_bytes = (uint32_t)length;
        table->encodings_bytes += length;
        return 0;
}
