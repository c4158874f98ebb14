// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "client/lease.h"

static int compare(const struct kvt__lease *a, const struct kvt__lease *b)
{
        return a->id < b->id ? -1 : a->id > b->id;
}

/* RB_GENERATE_STATIC needs a word that libbsd defines only when it overlays libc. */
RB_GENERATE_INTERNAL(kvt__lease_tree, kvt__lease, link, compare, __attribute__((unused)) static)

/* One allocation: the struct, its segments, their arenas, the checksums. */
static struct kvt__lease *allocate(uint32_t n_segments, uint32_t n_pieces)
{
        struct kvt__lease *lease;
        size_t head = sizeof(*lease) + n_segments * sizeof(lease->segments[0]);
        size_t arenas = n_segments * sizeof(lease->arenas[0]);

        lease = calloc(1, head + arenas + n_pieces * sizeof(lease->pieces[0]));
        if (!lease)
                return NULL;
        lease->n_segments = n_segments;
        lease->n_pieces = n_pieces;
        lease->arenas = (void *)((uint8_t *)lease + head);
        lease->pieces = (void *)((uint8_t *)lease + head + arenas);
        return lease;
}

/* Extents are whole allocation units; segments end where the object ends. */
static int resolve(struct kvt__lease *lease, struct kvt__arena_list *arenas,
                   const struct wire_extent *extents)
{
        uint64_t left = lease->bytes;

        for (uint32_t i = 0; i < lease->n_segments; i++) {
                struct kvt__arena *arena = kvt__arena_find(arenas, extents[i].arena_id);
                uint64_t length = extents[i].length < left ? extents[i].length : left;

                if (!arena || extents[i].offset > arena->mapping->bytes ||
                    extents[i].length > arena->mapping->bytes - extents[i].offset || !length)
                        return KVT__LEASE_E_OUTSIDE;
                lease->arenas[i] = arena;
                lease->segments[i] = (struct kvt_segment){
                        .address = arena->mapping->base + extents[i].offset,
                        .bytes = length,
                        .arena_id = arena->id,
                        .arena_offset = extents[i].offset,
                };
                left -= length;
        }
        return 0;
}

int kvt__lease_new(struct kvt__lease **ret_lease, struct kvt__leases *leases,
                   struct kvt__arena_list *arenas, struct kvt__era *era,
                   const struct wire_result_item *item, const struct wire_extent *extents,
                   const uint64_t *pieces)
{
        struct kvt__lease *lease = allocate(item->n_extents, item->n_pieces);
        int r;

        if (!lease)
                return err_raise(-ENOMEM);
        lease->wire = item->lease;
        lease->bytes = item->bytes;
        if (item->n_pieces)
                memcpy(lease->pieces, pieces, item->n_pieces * sizeof(*pieces));
        r = resolve(lease, arenas, extents);
        if (r) {
                free(lease);
                return r;
        }
        lease->id = ++leases->last_id;
        lease->era = era;
        era->n_leases++;
        for (uint32_t i = 0; i < lease->n_segments; i++)
                lease->arenas[i]->n_leases++;
        RB_INSERT(kvt__lease_tree, &leases->tree, lease);
        *ret_lease = lease;
        return 0;
}

struct kvt__lease *kvt__lease_find(struct kvt__leases *leases, uint64_t id)
{
        struct kvt__lease key = {.id = id};

        return RB_FIND(kvt__lease_tree, &leases->tree, &key);
}

struct kvt__lease *kvt__lease_after(struct kvt__leases *leases, uint64_t id)
{
        struct kvt__lease key = {.id = id + 1};

        return RB_NFIND(kvt__lease_tree, &leases->tree, &key);
}

void kvt__lease_end(struct kvt__leases *leases, struct kvt__lease *lease)
{
        RB_REMOVE(kvt__lease_tree, &leases->tree, lease);
        if (lease->set)
                LIST_REMOVE(lease, set_link);
        lease->era->n_leases--;
        lease->era = NULL;
        for (uint32_t i = 0; i < lease->n_segments; i++)
                lease->arenas[i]->n_leases--;
}

void kvt__lease_join(struct kvt__leases *leases, struct kvt__lease *lease, uint64_t set)
{
        lease->set = set;
        LIST_INSERT_HEAD(&leases->in_sets, lease, set_link);
}

bool kvt__set_writes(const struct kvt__leases *leases, const struct kvt__era *era, uint64_t set)
{
        const struct kvt__lease *lease;

        LIST_FOREACH(lease, &leases->in_sets, set_link)
                if (lease->set == set && lease->era == era && lease->n_segments)
                        return true;
        return false;
}

void kvt__set_end(struct kvt__leases *leases, const struct kvt__era *era, uint64_t set)
{
        struct kvt__lease *lease, *next;

        for (lease = LIST_FIRST(&leases->in_sets); lease; lease = next) {
                next = LIST_NEXT(lease, set_link);
                if (lease->era != era || (set && lease->set != set) || lease->n_segments ||
                    lease->ending)
                        continue;
                lease->is_over = true;
                if (!lease->is_told)
                        continue;
                kvt__lease_end(leases, lease);
                free(lease);
        }
}

void kvt__leases_free(struct kvt__leases *leases)
{
        struct kvt__lease *lease;

        while ((lease = RB_MIN(kvt__lease_tree, &leases->tree))) {
                kvt__lease_end(leases, lease);
                free(lease);
        }
}
