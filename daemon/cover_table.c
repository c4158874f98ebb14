// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "daemon/cover_table.h"
#include "storage/tier.h"

int cover_table_init(struct cover_table *table, uint64_t objects_max)
{
        void *sets;
        int r;

        r = record_pool_init(&table->covers, objects_max + TIER_COVERS_MAX, sizeof(struct cover),
                             offsetof(struct cover, next));
        if (r < 0)
                return r;
        r = record_array_new(&sets, objects_max + 1, sizeof(struct cover_set *));
        if (r < 0) {
                record_pool_deinit(&table->covers);
                return r;
        }
        table->sets = sets;
        table->objects_max = objects_max;
        return 0;
}

void cover_table_deinit(struct cover_table *table)
{
        record_array_free(table->sets, table->objects_max + 1, sizeof(struct cover_set *));
        record_pool_deinit(&table->covers);
}

struct cover_set *cover_set_new(const struct digest *digests, uint32_t n)
{
        size_t bytes = sizeof(struct cover_set) + n * (sizeof(struct digest) + sizeof(uint32_t));
        struct cover_set *set = calloc(1, bytes);

        if (!set)
                return NULL;
        set->covers = (uint32_t *)(void *)(set + 1);
        set->digests = (struct digest *)(void *)(set->covers + n);
        set->n_digests = n;
        memcpy(set->digests, digests, n * sizeof(*digests));
        return set;
}

struct cover_set *cover_set_free(struct cover_set *set)
{
        free(set);
        return NULL;
}

void cover_table_join(struct cover_table *table, struct cover_set *set, uint32_t object,
                      uint32_t boundary, uint32_t *first_cover)
{
        uint32_t id = record_pool_take(&table->covers);
        struct cover *cover = cover_table_at(table, id);

        *cover = (struct cover){.object = object, .boundary = boundary, .next = *first_cover};
        if (cover->next)
                cover_table_at(table, cover->next)->previous = id;
        *first_cover = id;
        set->covers[set->n_covers++] = id;
}

void cover_table_part(struct cover_table *table, uint32_t id, uint32_t *first_cover)
{
        struct cover *cover = cover_table_at(table, id);

        if (cover->previous)
                cover_table_at(table, cover->previous)->next = cover->next;
        else
                *first_cover = cover->next;
        if (cover->next)
                cover_table_at(table, cover->next)->previous = cover->previous;
        record_pool_give_back(&table->covers, id);
}
