// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "proto/layout_span.h"

static bool has_bit(const uint64_t *words, uint32_t bit)
{
        return words[bit / 64] >> bit % 64 & 1;
}

static void set_bit(uint64_t *words, uint32_t bit)
{
        words[bit / 64] |= UINT64_C(1) << bit % 64;
}

uint16_t layout_most_shards(const struct layout *layout)
{
        uint16_t most = 1;

        for (uint16_t i = 0; i < layout->n_groups; i++)
                if (layout->groups[i].n_shards > most)
                        most = layout->groups[i].n_shards;
        return most;
}

void layout_span_init(struct layout_span *ret_span, const struct layout *layout,
                      const uint16_t *shards, uint32_t n)
{
        *ret_span = (struct layout_span){.n_shards = layout_most_shards(layout)};
        for (uint16_t i = 0; !n && i < ret_span->n_shards; i++)
                set_bit(ret_span->shards, i);
        for (uint32_t i = 0; i < n; i++)
                if (shards[i] < ret_span->n_shards)
                        set_bit(ret_span->shards, shards[i]);
}

uint32_t layout_span_count(const struct layout_span *span)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < LAYOUT_SPAN_WORDS; i++)
                n += (uint32_t)__builtin_popcountll(span->shards[i]);
        return n;
}

bool layout_span_is_whole(const struct layout_span *span)
{
        return layout_span_count(span) == span->n_shards;
}

bool layout_spans_equal(const struct layout_span *a, const struct layout_span *b)
{
        return a->n_shards == b->n_shards && !memcmp(a->shards, b->shards, sizeof(a->shards));
}

bool layout_span_has(const struct layout_span *span, const struct layout *layout, uint16_t group,
                     uint16_t shard)
{
        uint32_t n = layout->groups[group].n_shards, most = span->n_shards;
        uint32_t first = (shard * most + n - 1) / n, end = ((shard + 1) * most + n - 1) / n;

        for (uint32_t i = first; i < end; i++)
                if (has_bit(span->shards, i))
                        return true;
        return false;
}

void layout_span_cells(const struct layout_span *span, const struct layout *layout,
                       uint64_t ret_cells[LAYOUT_CELL_WORDS])
{
        memset(ret_cells, 0, LAYOUT_CELL_WORDS * sizeof(ret_cells[0]));
        for (uint16_t group = 0; group < layout->n_groups; group++) {
                int first = layout_cell(layout, group, 0);

                for (uint16_t i = 0; first >= 0 && i < span->n_shards; i++)
                        if (has_bit(span->shards, i))
                                set_bit(ret_cells,
                                        (uint32_t)first +
                                                layout_shard_of(i, layout->groups[group].n_shards,
                                                                span->n_shards));
        }
}
