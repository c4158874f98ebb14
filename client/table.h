// SPDX-License-Identifier: Apache-2.0
/*
 * The presence table as this process maps it, and how match may read it without a lock.
 *
 * The session's thread maps one table per connection and shows it to readers through one
 * atomic pointer; NULL there makes every match a miss. A reader counts itself in the
 * table, then looks at the pointer again: what it still finds there stays mapped until it
 * has left. A retired table is unmapped once its count is seen at zero; its struct is
 * used again but freed only with the session, since a late reader may still count itself
 * in it. All but enter and leave: session's thread, under the session's lock.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"
#include "client/found.h"
#include "client/need.h"
#include "proto/layout.h"
#include "proto/presence.h"

struct kvt__table {
        SLIST_ENTRY(kvt__table) link;
        struct presence_view view;
        void *base; /* NULL: not mapped */
        uint64_t bytes;
        uint64_t seeds[KVT__BANKS_MAX];
        struct kvt__needs needs;
        struct kvt__found *found; /* of an engine that spans nodes; NULL: of none */
        _Atomic uint32_t readers;
};

SLIST_HEAD(kvt__table_list, kvt__table);

struct kvt__tables {
        _Atomic(struct kvt__table *) shown;
        struct kvt__table *current;
        struct kvt__table_list retired; /* still mapped: a reader was inside */
        struct kvt__table_list unused;
};

/* Maps the table behind @fd as the current one, not shown yet. 0, or an error in @why. */
int kvt__table_map(struct kvt__tables *tables, int fd, uint64_t bytes, struct why *why);

/*
 * What the attached layout means for the current table. @found (or NULL) is the table's from now
 * on. Before the first show.
 */
void kvt__table_set_layout(struct kvt__tables *tables, const struct layout *layout,
                           const struct digest *layout_id, uint32_t domain,
                           struct kvt__found *found);

/*
 * Any thread: presence_lookup_block() of banks @bank to @bank + @n_banks, as far as it is true of
 * the whole engine.
 */
void kvt__table_look_up(const struct kvt__table *table, uint32_t bank, uint32_t n_banks,
                        const struct digest *boundaries, uint32_t n,
                        struct presence_block *ret_block);

void kvt__table_show(struct kvt__tables *tables);
void kvt__table_hide(struct kvt__tables *tables);

/* Is the writer of the current table alive at @now_ns? */
bool kvt__table_is_fresh(const struct kvt__tables *tables, uint64_t now_ns);

/* Hides and retires the current table. */
void kvt__table_retire(struct kvt__tables *tables);

/* Unmaps retired tables that nobody reads. */
void kvt__tables_sweep(struct kvt__tables *tables);

/* No reader is left. @inherited: this process never mapped them. */
void kvt__tables_free(struct kvt__tables *tables, bool inherited);

/* Any thread: the table to read, or NULL for "everything misses". */
static inline struct kvt__table *kvt__table_enter(struct kvt__tables *tables)
{
        struct kvt__table *table = atomic_load(&tables->shown);

        if (!table)
                return NULL;
        /* Ordered before the second look; pairs with retire's store, then load of readers. */
        atomic_fetch_add(&table->readers, 1);
        if (atomic_load(&tables->shown) == table)
                return table;
        atomic_fetch_sub(&table->readers, 1);
        return NULL;
}

static inline void kvt__table_leave(struct kvt__table *table)
{
        atomic_fetch_sub_explicit(&table->readers, 1, memory_order_release);
}

/* Does the writer say that the table may be believed? */
static inline bool kvt__table_is_serving(const struct kvt__table *table)
{
        uint32_t state = atomic_load_explicit(&table->view.header->state, memory_order_relaxed);

        return state == PRESENCE_SERVING || state == PRESENCE_DRAINING;
}
