// SPDX-License-Identifier: Apache-2.0
/*
 * Leases: what this process may read or write, and under which connection it was granted.
 *
 * An era is one connection's session with the daemon. When the connection is lost its era
 * is dead: the daemon keeps the era's leases in quarantine, the bytes stay mapped here,
 * and the caller ends each lease as if nothing had happened. When the last one has ended,
 * the session tells the daemon so by the era's secret.
 *
 * Callers know a lease by a number of this library, never by the daemon's, which a later
 * daemon may use again.
 *
 * A member of a set that was stored already is held, not written: its lease has no bytes
 * and ends with the set, whether the caller names it or not. One that the caller has not
 * been told of yet is only marked: whoever reports it finds it over. Under the session's
 * lock.
 */
#pragma once

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/arena.h"
#include "client/kvtier.h"
#include "proto/wire.h"

struct kvt__era {
        TAILQ_ENTRY(kvt__era) link;
        uint64_t session;
        uint8_t boot_id[16];
        uint8_t secret[16];
        uint64_t n_leases;
        bool dead;
};

TAILQ_HEAD(kvt__era_list, kvt__era);

struct kvt__lease {
        RB_ENTRY(kvt__lease) link;
        uint64_t id;   /* the caller's name for it */
        uint64_t wire; /* the daemon's */
        struct kvt__era *era;
        bool ending; /* a commit, abort or release names it */
        bool writes; /* reserved: ends by commit or abort */
        bool is_told;
        bool is_over; /* held for a set that has ended */
        uint64_t set; /* 0: none */
        LIST_ENTRY(kvt__lease) set_link;
        uint64_t bytes;
        uint32_t n_segments;
        uint32_t n_pieces;
        struct kvt__arena **arenas; /* of each segment */
        uint64_t *pieces;
        struct kvt_segment segments[];
};

RB_HEAD(kvt__lease_tree, kvt__lease);

struct kvt__leases {
        struct kvt__lease_tree tree;
        LIST_HEAD(, kvt__lease) in_sets; /* few: sets are short */
        uint64_t last_id;
};

enum {
        KVT__LEASE_E_OUTSIDE = 1, /* an extent lies in no announced arena */
};

/*
 * Registers what a RESULT granted. 0, KVT__LEASE_E_OUTSIDE, or -ENOMEM. Belongs to the
 * tree until kvt__lease_end(), then to the caller.
 */
int kvt__lease_new(struct kvt__lease **ret_lease, struct kvt__leases *leases,
                   struct kvt__arena_list *arenas, struct kvt__era *era,
                   const struct wire_result_item *item, const struct wire_extent *extents,
                   const uint64_t *pieces);

struct kvt__lease *kvt__lease_find(struct kvt__leases *leases, uint64_t id);

/* The lease with the lowest id above @id, or NULL: to walk them all from 0. */
struct kvt__lease *kvt__lease_after(struct kvt__leases *leases, uint64_t id);

/* Takes it out of the tree, its era and its arenas. The memory is freed by free(). */
void kvt__lease_end(struct kvt__leases *leases, struct kvt__lease *lease);

/* Makes it a member. @set is not 0. */
void kvt__lease_join(struct kvt__leases *leases, struct kvt__lease *lease, uint64_t set);

/* Is any member of the set to be written? */
bool kvt__set_writes(const struct kvt__leases *leases, const struct kvt__era *era, uint64_t set);

/* Ends and frees what was held for a set of @era; of all its sets when @set is 0. */
void kvt__set_end(struct kvt__leases *leases, const struct kvt__era *era, uint64_t set);

/* Ends and frees all. */
void kvt__leases_free(struct kvt__leases *leases);
