// SPDX-License-Identifier: Apache-2.0
/*
 * Leases: a session's rights on host copies; and grants, which tie the leases of one
 * acquire together so that other sessions of the engine can adopt them.
 *
 * A lease belongs to one session until it ends: by commit, abort or release, by the
 * statement that copies have ended, or by the death of the process. A session whose
 * socket is gone keeps its leases (quarantine); nobody can use them by id any more.
 *
 * Three kinds: WRITE (a reservation, with what is to be published), READ (an acquire or
 * adopt), HAVE (a member of a set that was stored already; holds its host copy, if any).
 *
 * Ids are never repeated within a run of the daemon. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"
#include "base/tree.h"
#include "daemon/host_copy.h"
#include "daemon/index.h"
#include "proto/wire.h"

struct session;
struct lease;
struct grant;
struct load_item;
struct lease_set;
struct drop_ring;

enum lease_kind {
        LEASE_WRITE,
        LEASE_READ,
        LEASE_HAVE,
};

/* How far the bytes of a remote session's reservation have come. */
enum lease_fill {
        LEASE_EMPTY,
        LEASE_FILLING,
        LEASE_FILLED,
        LEASE_UNFILLABLE, /* they did not come */
};

/* What a remote session's lease on pages is for: where they lie. */
struct lease_pages {
        uint32_t n;
        uint64_t bytes;
        struct wire_extent extents[];
};

struct lease {
        uint64_t id;
        enum lease_kind kind;
        struct session *session;
        struct host_copy *copy;  /* HAVE: NULL when it was not in the host tier */
        TAILQ_ENTRY(lease) link; /* of the session */
        uint64_t since_ns;       /* monotonic */
        bool is_retired;         /* the session has hung up: quarantine */
        /* WRITE */
        struct index_new_object entry;
        struct digest *covers; /* owned: entry.covers */
        enum lease_fill fill;
        uint32_t fill_status; /* UNFILLABLE: what its commit is answered */
        bool replace;
        bool is_reserved;     /* node is in use: somebody may wait for the commit */
        bool is_settled;      /* committed or refused: its end needs no explanation */
        RB_ENTRY(lease) node; /* reservations by key */
        /* WRITE, HAVE */
        struct lease_set *set;
        LIST_ENTRY(lease) set_link;
        uint64_t have_generation;
        bool named; /* by the commit that is being checked */
        /* READ */
        struct lease_pages *pages; /* owned; NULL: the whole copy */
        struct grant *grant;
        struct load_item *loading; /* not there yet: the answer that waits for it */
};

RB_HEAD(reservation_tree, lease);
RB_HEAD(grant_tree, grant);

struct grant_member {
        struct host_copy *copy; /* leased by the grant itself */
        struct digest boundary; /* as it was asked for */
        uint16_t group;
        uint16_t shard;
};

/* Lives as long as one lease refers to it. */
struct grant {
        uint8_t token[16];
        uint8_t engine_id[16];
        uint32_t domain;
        uint16_t layout;
        uint32_t n_leases;
        uint32_t n_retired; /* of these: in quarantine */
        uint32_t n_members;
        struct grant_member *members;
        uint32_t *order; /* members by key; made when it is needed, else NULL */
        RB_ENTRY(grant) node;
};

struct leases {
        struct lease **slots; /* by the low bits of the id, minus 1 */
        uint32_t n_slots;
        uint32_t *free_slots;
        uint32_t n_free;
        uint64_t sequence; /* the high bits of the next id */
        struct reservation_tree reservations;
        struct grant_tree grants;
        struct host_copies *copies; /* borrowed */
        struct drop_ring *drops;    /* borrowed; NULL: reservations end without a note */
};

void leases_init(struct leases *leases, struct host_copies *copies);
void leases_deinit(struct leases *leases); /* no lease is left: asserted */

/* Leases @copy (NULL only for HAVE) for @session. 0 or -ENOMEM. */
int lease_new(struct leases *leases, struct session *session, enum lease_kind kind,
              struct host_copy *copy, struct lease **ret_lease);

/* The session's own lease of this id, or NULL. */
struct lease *lease_find(struct leases *leases, const struct session *session, uint64_t id);

/*
 * Ends a lease: takes it out of its set, reservation tree and grant, gives its hold on
 * the copy back. An unpublished WRITE copy is gone with it.
 */
void lease_end(struct leases *leases, struct lease *lease);

/* Makes a WRITE lease's key known as reserved. entry must be set. */
void lease_enter_reservation(struct leases *leases, struct lease *lease);
/*
 * The session has hung up: the bytes stay untouchable, but the lease will never be
 * committed, nor adopted from. True when somebody may have waited for its commit.
 */
bool lease_retire(struct leases *leases, struct lease *lease);
/* Is anybody writing this object now? */
bool lease_is_reserved(struct leases *leases, uint16_t layout, const struct digest *digest,
                       uint16_t group, uint16_t shard);

/* A grant with room for @n_members members, none set, no lease yet. 0 or -ENOMEM. */
int grant_new(struct leases *leases, const uint8_t engine_id[16], uint32_t domain, uint16_t layout,
              uint32_t n_members, struct grant **ret_grant);
/* Sets the next member; leases the copy for the grant. */
void grant_add_member(struct leases *leases, struct grant *grant, struct host_copy *copy,
                      const struct digest *boundary, uint16_t group, uint16_t shard);
/* NULL when no session that is still there holds a lease of that acquire. */
struct grant *grant_find(struct leases *leases, const uint8_t token[16]);
/* The member of this key, or NULL. *@position is where it is looked for first, and moves on. */
const struct grant_member *grant_find_member(struct grant *grant, const struct wire_key_item *key,
                                             uint32_t *position);
void grant_attach_lease(struct grant *grant, struct lease *lease);
/* Frees a grant that no lease refers to (yet). */
void grant_free_unused(struct leases *leases, struct grant *grant);
