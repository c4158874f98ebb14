// SPDX-License-Identifier: Apache-2.0
/*
 * Arrays that are reserved once at their largest size and become memory as they are
 * touched, and pools of fixed-size records in them that go by 32-bit ids.
 *
 * A record never moves, so pointers stay valid while it is in use. Ids begin at 1 and are
 * handed out densely, freed ones first (last freed, first used): what is stored together
 * lies together. A free record is all zeros but for its link.
 *
 * Loop thread only.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* @n zeroed elements, none of them in memory yet; huge pages where there are any. */
int record_array_new(void **ret_array, uint64_t n, size_t element_bytes);
/* NULL is fine; @n and @element_bytes as they were. */
void record_array_free(void *array, uint64_t n, size_t element_bytes);

struct record_pool {
        uint8_t *records;
        size_t record_bytes;
        size_t link_offset; /* of a uint32_t in the record that links free ones */
        uint32_t n_max;
        uint32_t highest; /* id ever in use */
        uint32_t first_free;
        uint32_t n_used;
};

/* 0, or -ENOMEM; -EINVAL when ids of 32 bits do not reach. */
int record_pool_init(struct record_pool *pool, uint64_t n_max, size_t record_bytes,
                     size_t link_offset);
void record_pool_deinit(struct record_pool *pool);

/* The id of a zeroed record. There must be a free one (record_pool_n_free). */
uint32_t record_pool_take(struct record_pool *pool);
void record_pool_give_back(struct record_pool *pool, uint32_t id);

static inline uint32_t record_pool_n_free(const struct record_pool *pool)
{
        return pool->n_max - pool->n_used;
}

static inline void *record_pool_at(const struct record_pool *pool, uint32_t id)
{
        assert(id > 0 && id <= pool->highest);
        return pool->records + (size_t)id * pool->record_bytes;
}

static inline uint32_t record_pool_id(const struct record_pool *pool, const void *record)
{
        return (uint32_t)((size_t)((const uint8_t *)record - pool->records) / pool->record_bytes);
}
