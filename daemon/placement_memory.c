// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "daemon/placement_memory.h"

struct placement_record {
        uint64_t fingerprint;
        uint32_t hash_next;
        uint32_t newer;
        uint32_t older;
        struct placement_past past;
};

int placement_memory_init(struct placement_memory *memory, uint64_t n_max)
{
        void *heads;
        int r;

        *memory = (struct placement_memory){.n_heads = n_max + n_max / 2 + 1};
        r = record_pool_init(&memory->pool, n_max, sizeof(struct placement_record),
                             offsetof(struct placement_record, hash_next));
        if (r < 0)
                return r;
        r = record_array_new(&heads, memory->n_heads, sizeof(uint32_t));
        if (r < 0) {
                record_pool_deinit(&memory->pool);
                return r;
        }
        memory->heads = heads;
        return 0;
}

void placement_memory_deinit(struct placement_memory *memory)
{
        record_array_free(memory->heads, memory->n_heads, sizeof(uint32_t));
        if (memory->pool.records)
                record_pool_deinit(&memory->pool);
        *memory = (struct placement_memory){0};
}

static struct placement_record *record_at(const struct placement_memory *memory, uint32_t id)
{
        return record_pool_at(&memory->pool, id);
}

static uint32_t *head_of(const struct placement_memory *memory, uint64_t fingerprint)
{
        return &memory->heads[((fingerprint >> 32) * memory->n_heads) >> 32];
}

static uint32_t find(const struct placement_memory *memory, uint64_t fingerprint)
{
        uint32_t id = *head_of(memory, fingerprint);

        while (id && record_at(memory, id)->fingerprint != fingerprint)
                id = record_at(memory, id)->hash_next;
        return id;
}

void placement_memory_add(struct placement_memory *memory, uint64_t fingerprint,
                          const struct placement_past *past)
{
        uint32_t *head = head_of(memory, fingerprint);
        uint32_t id = record_pool_take(&memory->pool);

        *record_at(memory, id) = (struct placement_record){
                .fingerprint = fingerprint,
                .hash_next = *head,
                .older = memory->newest,
                .past = *past,
        };
        *head = id;
        if (memory->newest)
                record_at(memory, memory->newest)->newer = id;
        else
                memory->oldest = id;
        memory->newest = id;
}

static void take_out(struct placement_memory *memory, uint32_t id)
{
        struct placement_record *record = record_at(memory, id);
        uint32_t *link = head_of(memory, record->fingerprint);

        while (*link != id)
                link = &record_at(memory, *link)->hash_next;
        *link = record->hash_next;
        if (record->newer)
                record_at(memory, record->newer)->older = record->older;
        else
                memory->newest = record->older;
        if (record->older)
                record_at(memory, record->older)->newer = record->newer;
        else
                memory->oldest = record->newer;
        record_pool_give_back(&memory->pool, id);
}

bool placement_memory_take(struct placement_memory *memory, uint64_t fingerprint,
                           struct placement_past *ret_past)
{
        uint32_t id = find(memory, fingerprint);

        if (!id)
                return false;
        *ret_past = record_at(memory, id)->past;
        take_out(memory, id);
        return true;
}

const struct placement_past *placement_memory_find(const struct placement_memory *memory,
                                                   uint64_t fingerprint)
{
        uint32_t id = find(memory, fingerprint);

        return id ? &record_at(memory, id)->past : NULL;
}

uint64_t placement_memory_forget(struct placement_memory *memory)
{
        uint64_t fingerprint;

        assert(memory->oldest);
        fingerprint = record_at(memory, memory->oldest)->fingerprint;
        take_out(memory, memory->oldest);
        return fingerprint;
}
