// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "daemon/pages.h"
#include "proto/status.h"

_Static_assert(WIRE_RUNS_MAX + HOST_EXTENTS_MAX <= WIRE_EXTENTS_MAX,
               "each run and each extent of a copy can begin one extent of a result");

/* Of a page in the object; 0: the layout does not tell. */
static uint64_t page_bytes(const struct layout *layout, const struct wire_key_item *item)
{
        const struct layout_row *row = layout_row(layout, item->group, item->shard);

        return row ? layout_stored_page_bytes(&layout->groups[item->group], row) : 0;
}

uint32_t pages_check(const struct layout *layout, const struct wire_key_item *item,
                     const struct wire_page_run *runs)
{
        const struct wire_page_run *last = &runs[item->n_runs - 1];
        const struct layout_group *group;

        if (layout_cell(layout, item->group, item->shard) < 0)
                return KVT_WIRE_INVALID;
        group = &layout->groups[item->group];
        if (group->kind == LAYOUT_STATE || !group->page_tokens || !page_bytes(layout, item))
                return KVT_WIRE_INVALID;
        if ((uint64_t)last->first_page + last->n_pages > layout->chunk_tokens / group->page_tokens)
                return KVT_WIRE_INVALID;
        return KVT_WIRE_OK;
}

void pages_fill(const struct layout *layout, const struct wire_key_item *item,
                const struct wire_page_run *runs, struct page_range *ret_ranges)
{
        uint64_t bytes = page_bytes(layout, item);

        for (uint32_t i = 0; i < item->n_runs; i++)
                ret_ranges[i] =
                        (struct page_range){runs[i].first_page * bytes, runs[i].n_pages * bytes};
}

uint64_t pages_bytes(const struct pages *pages)
{
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < pages->n; i++)
                bytes += pages->ranges[i].length;
        return bytes;
}

bool pages_fit(const struct pages *pages, uint64_t raw_bytes)
{
        const struct page_range *last = pages->n ? &pages->ranges[pages->n - 1] : NULL;

        return !last || last->offset + last->length <= raw_bytes;
}

struct piece_set pages_pieces(const struct pages *pages, uint64_t raw_bytes)
{
        struct piece_set pieces = {{0}};

        for (uint32_t i = 0; i < pages->n; i++)
                piece_set_add(&pieces, raw_bytes, pages->ranges[i].offset, pages->ranges[i].length);
        return pieces;
}

void pages_pack(struct pages *pages, const struct piece_set *pieces, uint64_t raw_bytes)
{
        for (uint32_t i = 0; i < pages->n; i++)
                pages->ranges[i].offset =
                        piece_set_position(pieces, raw_bytes, pages->ranges[i].offset);
}

/* Appends a run of bytes, or lengthens the one before when it goes on there. */
static uint32_t append(struct wire_extent *extents, uint32_t n, const struct wire_extent *next)
{
        struct wire_extent *last = n ? &extents[n - 1] : NULL;

        if (last && last->arena_id == next->arena_id && last->offset + last->length == next->offset)
                last->length += next->length;
        else
                extents[n++] = *next;
        return n;
}

uint32_t pages_extents(const struct pages *pages, const struct host_copy *copy,
                       struct wire_extent ret_extents[WIRE_EXTENTS_MAX])
{
        const struct host_extent *extent = copy->extents;
        uint64_t start = 0; /* of the extent, in the copy */
        uint32_t n = 0;

        for (uint32_t i = 0; i < pages->n; i++) {
                uint64_t at = pages->ranges[i].offset, end = at + pages->ranges[i].length;

                while (at < end) {
                        struct wire_extent next;

                        assert(extent < copy->extents + copy->n_extents);
                        if (at >= start + extent->length) {
                                start += extent++->length;
                                continue;
                        }
                        next = (struct wire_extent){
                                .arena_id = extent->arena_id,
                                .offset = extent->offset + (at - start),
                                .length = start + extent->length - at,
                        };
                        if (next.length > end - at)
                                next.length = end - at;
                        n = append(ret_extents, n, &next);
                        at += next.length;
                }
        }
        return n;
}
