// SPDX-License-Identifier: Apache-2.0
/*
 * The objects that a boundary needs, as kvt_acquire() takes them: nothing of a window but its
 * trailing chunks, one state, of the shards that are asked for.
 */
#include <string.h>

#include "client/session.h"
#include "proto/layout_span.h"

/* Cells whose objects are wanted, a bit each. */
struct wanted {
        uint64_t cells[KVT__BANKS_MAX];
};

static bool is_wanted(const struct wanted *wanted, int cell)
{
        return wanted->cells[cell / (int)PRESENCE_CELLS_PER_BANK] >>
                       (uint32_t)cell % PRESENCE_CELLS_PER_BANK &
               1;
}

static void want(struct wanted *wanted, int cell)
{
        wanted->cells[cell / (int)PRESENCE_CELLS_PER_BANK] |=
                UINT64_C(1) << (uint32_t)cell % PRESENCE_CELLS_PER_BANK;
}

static bool set_wanted(struct wanted *wanted, const struct kvt__needs *needs,
                       const struct kvt_boundary_query *query)
{
        memset(wanted, 0, sizeof(*wanted));
        if (!query->shards) {
                memcpy(wanted->cells, needs->cells, sizeof(wanted->cells));
                return true;
        }
        for (uint32_t i = 0; i < query->n_shards; i++) {
                if (query->shards[i] >= needs->most_shards)
                        return false;
                for (uint16_t group = 0; group < needs->n_groups; group++) {
                        uint16_t n = needs->groups[group].n_shards;
                        uint16_t shard = layout_shard_of(query->shards[i], n, needs->most_shards);
                        int cell = kvt__needs_cell(needs, group, shard);

                        if (cell >= 0)
                                want(wanted, cell);
                }
        }
        return true;
}

/* Where the list goes; counts what it has no room for, too. */
struct list {
        struct kvt_object *objects;
        size_t max;
        size_t n;
};

static void add(struct list *list, const struct kvt_digest *digest, uint16_t group, uint16_t shard)
{
        if (list->n < list->max)
                list->objects[list->n] =
                        (struct kvt_object){.digest = *digest, .group = group, .shard = shard};
        list->n++;
}

/* What boundary @boundaries needs of boundary @at. */
static void add_boundary(struct list *list, const struct kvt__needs *needs,
                         const struct wanted *wanted, const struct kvt_boundary_query *query,
                         uint32_t at)
{
        for (uint16_t group = 0; group < needs->n_groups; group++) {
                const struct kvt__group_need *need = &needs->groups[group];

                if (need->first_cell < 0 ||
                    at < kvt__part_begin(&needs->parts[need->part], query->boundaries))
                        continue;
                for (uint16_t shard = 0; shard < need->n_shards; shard++)
                        if (is_wanted(wanted, need->first_cell + shard))
                                add(list, &query->digests[at - 1], group, shard);
        }
}

static enum kvt_status fill(struct list *list, const struct kvt__needs *needs,
                            const struct kvt_boundary_query *query)
{
        struct wanted wanted;

        if (!set_wanted(&wanted, needs, query))
                return KVT_INVALID;
        for (uint32_t at = 1; at <= query->boundaries; at++)
                add_boundary(list, needs, &wanted, query, at);
        return list->n > list->max ? KVT_TOO_LARGE : KVT_OK;
}

static bool is_query(const struct kvt_boundary_query *query)
{
        return query && query->size >= sizeof(*query) && query->boundaries && query->digests &&
               !query->n_shards == !query->shards;
}

enum kvt_status kvt_boundary_objects(struct kvt_session *session,
                                     const struct kvt_boundary_query *query,
                                     struct kvt_object *ret_objects, size_t max, size_t *ret_n)
{
        struct list list = {.objects = ret_objects, .max = max};
        enum kvt_status status = KVT_UNAVAILABLE;
        struct kvt__table *table;

        if (!session || !is_query(query) || (!ret_objects && max) || !ret_n)
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        table = kvt__table_enter(&session->tables);
        if (table) {
                status = fill(&list, &table->needs, query);
                kvt__table_leave(table);
        }
        *ret_n = list.n;
        return status;
}
