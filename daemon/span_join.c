// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/span_join.h"
#include "proto/presence.h"

uint32_t span_join_n_banks(const struct layout *layout)
{
        uint32_t n = layout_n_cells(layout);

        return n ? (n + PRESENCE_CELLS_PER_BANK - 1) / PRESENCE_CELLS_PER_BANK : 1;
}

int span_join_init(struct span_join *join, const struct layout *layout, uint32_t n)
{
        *join = (struct span_join){
                .layout = layout,
                .known.n_shards = layout_most_shards(layout),
                .n = n,
                .n_banks = span_join_n_banks(layout),
        };
        join->bits = calloc((size_t)n * join->n_banks, sizeof(*join->bits));
        return join->bits ? 0 : err_raise(-ENOMEM);
}

void span_join_deinit(struct span_join *join)
{
        free(steal_ptr(join->bits));
}

/* Of @ours, cells that nobody had told of are taken as they are. */
static uint64_t meet(uint64_t so_far, uint64_t theirs, uint64_t known, uint64_t ours)
{
        return (so_far & ~ours) | (theirs & ours & (so_far | ~known));
}

void span_join_add(struct span_join *join, const struct layout_span *span,
                   const struct peer_found_bits *bits)
{
        uint64_t cells[LAYOUT_CELL_WORDS];

        layout_span_cells(span, join->layout, cells);
        for (uint32_t i = 0; i < join->n * join->n_banks; i++) {
                uint32_t bank = i % join->n_banks;
                struct peer_found_bits *both = &join->bits[i];

                both->present =
                        meet(both->present, bits[i].present, join->cells[bank], cells[bank]);
                both->resident =
                        meet(both->resident, bits[i].resident, join->cells[bank], cells[bank]);
        }
        for (uint32_t i = 0; i < LAYOUT_CELL_WORDS; i++)
                join->cells[i] |= cells[i];
        for (uint32_t i = 0; i < LAYOUT_SPAN_WORDS; i++)
                join->known.shards[i] |= span->shards[i];
}

bool span_join_is_whole(const struct span_join *join)
{
        return layout_span_is_whole(&join->known);
}

const struct peer_found_bits *span_join_at(const struct span_join *join, uint32_t i)
{
        return span_join_is_whole(join) ? &join->bits[i * join->n_banks] : NULL;
}
