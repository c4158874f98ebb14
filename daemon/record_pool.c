// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <sys/mman.h>

#include "daemon/record_pool.h"

#define HUGE_PAGE_BYTES (2u << 20)

static size_t array_bytes(uint64_t n, size_t element_bytes)
{
        size_t bytes = (size_t)n * element_bytes;

        /* Whole huge pages, where they do not outweigh the array. */
        if (bytes >= 4 * (size_t)HUGE_PAGE_BYTES)
                bytes = (bytes + HUGE_PAGE_BYTES - 1) & ~(size_t)(HUGE_PAGE_BYTES - 1);
        return bytes;
}

int record_array_new(void **ret_array, uint64_t n, size_t element_bytes)
{
        size_t bytes = array_bytes(n, element_bytes);
        void *array = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (array == MAP_FAILED)
                return err_raise(-ENOMEM);
        /* Fewer TLB misses in what is used at random. Without huge pages it works as well. */
        if (bytes >= 4 * (size_t)HUGE_PAGE_BYTES)
                madvise(array, bytes, MADV_HUGEPAGE);
        /* Of no use in a core: gigabytes of it, and other tenants' digests. */
        madvise(array, bytes, MADV_DONTDUMP);
        *ret_array = array;
        return 0;
}

void record_array_free(void *array, uint64_t n, size_t element_bytes)
{
        if (array)
                munmap(array, array_bytes(n, element_bytes));
}

int record_pool_init(struct record_pool *pool, uint64_t n_max, size_t record_bytes,
                     size_t link_offset)
{
        void *records = NULL;
        int r;

        if (n_max >= UINT32_MAX)
                return err_raise(-EINVAL);
        r = record_array_new(&records, n_max + 1, record_bytes);
        if (r < 0)
                return r;
        *pool = (struct record_pool){
                .records = records,
                .record_bytes = record_bytes,
                .link_offset = link_offset,
                .n_max = (uint32_t)n_max,
        };
        return 0;
}

void record_pool_deinit(struct record_pool *pool)
{
        record_array_free(pool->records, (uint64_t)pool->n_max + 1, pool->record_bytes);
        *pool = (struct record_pool){0};
}

static uint32_t *link_of(const struct record_pool *pool, uint32_t id)
{
        return (uint32_t *)(void *)((uint8_t *)record_pool_at(pool, id) + pool->link_offset);
}

uint32_t record_pool_take(struct record_pool *pool)
{
        uint32_t id = pool->first_free;

        assert(pool->n_used < pool->n_max);
        pool->n_used++;
        if (!id)
                return ++pool->highest;
        pool->first_free = *link_of(pool, id);
        *link_of(pool, id) = 0;
        return id;
}

void record_pool_give_back(struct record_pool *pool, uint32_t id)
{
        memset(record_pool_at(pool, id), 0, pool->record_bytes);
        *link_of(pool, id) = pool->first_free;
        pool->first_free = id;
        pool->n_used--;
}
