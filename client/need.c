// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "client/need.h"

/*
 * The token after the boundary sees window_tokens - 1 before it; but an engine that has
 * everything computes the last token again, from one token earlier: a whole window.
 */
static uint32_t chunks_needed(const struct layout *layout, const struct layout_group *group)
{
        if (group->kind == LAYOUT_STATE)
                return 1;
        if (group->kind != LAYOUT_WINDOW)
                return KVT__ALL_CHUNKS;
        return (uint32_t)(((uint64_t)group->window_tokens + layout->chunk_tokens - 1) /
                          layout->chunk_tokens);
}

/* The number of the part that has @n_chunks, made when there is none. */
static uint32_t find_part(struct kvt__needs *needs, uint32_t n_chunks, bool is_state)
{
        for (uint32_t i = 0; i < needs->n_parts; i++)
                if (needs->parts[i].n_chunks == n_chunks && needs->parts[i].is_state == is_state)
                        return i;
        needs->parts[needs->n_parts] = (struct kvt__part){
                .n_chunks = n_chunks,
                .is_state = is_state,
                .history = KVT__NO_HISTORY,
        };
        return needs->n_parts++;
}

static void set_groups(struct kvt__needs *needs, const struct layout *layout)
{
        needs->n_groups = layout->n_groups;
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                const struct layout_group *group = &layout->groups[i];
                struct kvt__group_need *need = &needs->groups[i];

                *need = (struct kvt__group_need){
                        .first_cell = (int16_t)layout_cell(layout, i, 0),
                        .n_shards = group->n_shards,
                };
                if (group->n_shards > needs->most_shards)
                        needs->most_shards = group->n_shards;
                if (need->first_cell < 0)
                        continue;
                need->part = find_part(needs, chunks_needed(layout, group),
                                       group->kind == LAYOUT_STATE);
                if (group->kind == LAYOUT_STATE)
                        needs->has_state = true;
                else
                        needs->has_paged = true;
        }
}

/* Cells come in order, so that only the cost before can be the same. */
static void add_cell(struct kvt__needs *needs, struct kvt__part *part, uint32_t cell,
                     uint64_t bytes)
{
        struct kvt__cost *cost = &needs->costs[part->first_cost + part->n_costs];
        uint32_t bank = cell / PRESENCE_CELLS_PER_BANK;
        uint64_t bit = UINT64_C(1) << cell % PRESENCE_CELLS_PER_BANK;

        part->n_cells++;
        part->cells[bank] |= bit;
        part->bytes += bytes;
        needs->cells[bank] |= bit;
        if (!bytes) {
                part->is_variable = true;
        } else if (part->n_costs && cost[-1].bank == bank && cost[-1].bytes == bytes) {
                cost[-1].cells |= bit;
        } else {
                *cost = (struct kvt__cost){.cells = bit, .bytes = bytes, .bank = bank};
                part->n_costs++;
        }
}

static void add_groups(struct kvt__needs *needs, const struct layout *layout, uint32_t part)
{
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                const struct kvt__group_need *need = &needs->groups[i];

                if (need->first_cell < 0 || need->part != part)
                        continue;
                for (uint16_t shard = 0; shard < need->n_shards; shard++)
                        add_cell(needs, &needs->parts[part], (uint32_t)need->first_cell + shard,
                                 layout_object_bytes(layout, i, shard));
        }
}

/* Windows too long for what is left of the history do without. */
static void set_histories(struct kvt__needs *needs)
{
        uint32_t used = 0;

        for (uint32_t i = 0; i < needs->n_parts; i++) {
                struct kvt__part *part = &needs->parts[i];

                if (part->n_chunks > KVT__HISTORY_MAX - used)
                        continue;
                part->history = used;
                used += part->n_chunks;
        }
}

void kvt__needs_init(struct kvt__needs *ret_needs, const struct layout *layout)
{
        struct kvt__needs *needs = ret_needs;
        uint16_t n_costs = 0;

        memset(needs, 0, sizeof(*needs));
        needs->chunk_tokens = layout->chunk_tokens;
        needs->n_cells = layout_n_cells(layout);
        needs->n_banks = (needs->n_cells + PRESENCE_CELLS_PER_BANK - 1) / PRESENCE_CELLS_PER_BANK;
        set_groups(needs, layout);
        for (uint32_t i = 0; i < needs->n_parts; i++) {
                needs->parts[i].first_cost = n_costs;
                add_groups(needs, layout, i);
                n_costs = (uint16_t)(n_costs + needs->parts[i].n_costs);
        }
        set_histories(needs);
}

int kvt__needs_cell(const struct kvt__needs *needs, uint16_t group, uint16_t shard)
{
        if (group >= needs->n_groups || needs->groups[group].first_cell < 0 ||
            shard >= needs->groups[group].n_shards)
                return -1;
        return needs->groups[group].first_cell + shard;
}
