// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/arena.h"
#include "client/table.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define TABLE_SEALS       (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE)
#define STALE_BEATS       5
#define STALE_NS_AT_LEAST UINT64_C(1000000000)

static struct kvt__table *table_new(struct kvt__tables *tables)
{
        struct kvt__table *table = SLIST_FIRST(&tables->unused);

        if (!table)
                return calloc(1, sizeof(*table));
        SLIST_REMOVE_HEAD(&tables->unused, link);
        return table;
}

int kvt__table_map(struct kvt__tables *tables, int fd, uint64_t bytes, struct why *why)
{
        struct kvt__table *table = table_new(tables);
        int r;

        if (!table) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        r = kvt__map_sealed(&table->base, fd, bytes, PROT_READ, TABLE_SEALS, "the presence table",
                            why);
        if (r) {
                SLIST_INSERT_HEAD(&tables->unused, table, link);
                return r;
        }
        table->bytes = bytes;
        r = presence_view_init(&table->view, table->base, bytes);
        if (r) {
                munmap(table->base, bytes);
                table->base = NULL;
                SLIST_INSERT_HEAD(&tables->unused, table, link);
                why_set(why, "the presence table has a format that this library does not know");
                return r;
        }
        kvt__table_retire(tables);
        tables->current = table;
        return 0;
}

void kvt__table_set_layout(struct kvt__tables *tables, const struct layout *layout,
                           const struct digest *layout_id, uint32_t domain,
                           struct kvt__found *found)
{
        struct kvt__table *table = tables->current;

        table->found = found;
        kvt__needs_init(&table->needs, layout);
        for (uint32_t bank = 0; bank < table->needs.n_banks; bank++)
                table->seeds[bank] =
                        presence_seed(table->view.header->hash_key, domain, layout_id, bank);
}

void kvt__table_look_up(const struct kvt__table *table, uint32_t bank, uint32_t n_banks,
                        const struct digest *boundaries, uint32_t n,
                        struct presence_block *ret_block)
{
        presence_lookup_block(&table->view, table->seeds + bank, n_banks, boundaries, n,
                              ret_block);
        if (table->found)
                kvt__found_narrow(table->found, bank, n_banks, n, ret_block);
}

void kvt__table_show(struct kvt__tables *tables)
{
        if (atomic_load_explicit(&tables->shown, memory_order_relaxed) != tables->current)
                atomic_store(&tables->shown, tables->current);
}

void kvt__table_hide(struct kvt__tables *tables)
{
        atomic_store(&tables->shown, NULL);
}

bool kvt__table_is_fresh(const struct kvt__tables *tables, uint64_t now_ns)
{
        const struct presence_header *header;
        uint64_t beat, limit;

        if (!tables->current)
                return false;
        header = tables->current->view.header;
        beat = atomic_load_explicit(&header->heartbeat_ns, memory_order_relaxed);
        limit = header->heartbeat_period_ns > UINT64_MAX / STALE_BEATS
                        ? UINT64_MAX
                        : header->heartbeat_period_ns * STALE_BEATS;
        if (limit < STALE_NS_AT_LEAST)
                limit = STALE_NS_AT_LEAST;
        return beat >= now_ns || now_ns - beat <= limit;
}

static void unmap(struct kvt__tables *tables, struct kvt__table *table)
{
        munmap(table->base, table->bytes);
        table->base = NULL;
        table->found = kvt__found_free(table->found);
        SLIST_INSERT_HEAD(&tables->unused, table, link);
}

void kvt__table_retire(struct kvt__tables *tables)
{
        struct kvt__table *table = tables->current;

        kvt__table_hide(tables);
        if (!table)
                return;
        tables->current = NULL;
        SLIST_INSERT_HEAD(&tables->retired, table, link);
        kvt__tables_sweep(tables);
}

void kvt__tables_sweep(struct kvt__tables *tables)
{
        struct kvt__table_list busy = SLIST_HEAD_INITIALIZER(busy);

        while (!SLIST_EMPTY(&tables->retired)) {
                struct kvt__table *table = SLIST_FIRST(&tables->retired);

                SLIST_REMOVE_HEAD(&tables->retired, link);
                /* Pairs with the reader's add before its second look, and with its leave. */
                if (atomic_load(&table->readers))
                        SLIST_INSERT_HEAD(&busy, table, link);
                else
                        unmap(tables, table);
        }
        tables->retired = busy;
}

void kvt__tables_free(struct kvt__tables *tables, bool inherited)
{
        struct kvt__table *table;

        kvt__table_hide(tables);
        if (tables->current)
                SLIST_INSERT_HEAD(&tables->retired, tables->current, link);
        tables->current = NULL;
        while ((table = SLIST_FIRST(&tables->retired))) {
                SLIST_REMOVE_HEAD(&tables->retired, link);
                if (!inherited)
                        munmap(table->base, table->bytes);
                kvt__found_free(table->found);
                free(table);
        }
        while ((table = SLIST_FIRST(&tables->unused))) {
                SLIST_REMOVE_HEAD(&tables->unused, link);
                free(table);
        }
}
