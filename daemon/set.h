// SPDX-License-Identifier: Apache-2.0
/*
 * Sets: what one session writes of one boundary, to be published whole or not at all.
 *
 * A set exists while it has a member: a lease that writes, or one that holds what was
 * stored already. It ends by its commit, its abort, its session's end, or at once when no
 * member needs writing. Loop thread only.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/tree.h"
#include "daemon/lease.h"

enum {
        SET_E_FULL = 1, /* more members than one commit could name */
};

struct lease_set {
        RB_ENTRY(lease_set) node; /* of the session */
        struct session *session;
        uint64_t id; /* the session's number */
        uint32_t n_write;
        uint32_t n_have;
        LIST_HEAD(, lease) members;
};

/* NULL when there is none. */
struct lease_set *set_find(struct session *session, uint64_t id);

/* Makes a WRITE or HAVE lease a member of its session's set. 0, SET_E_FULL or -ENOMEM. */
int set_join(struct lease *lease, uint64_t id);

/* By lease_end(): frees the set with its last member. */
void set_leave(struct lease *lease);

/* Ends the leases of all members, and with them the set. */
void set_end(struct leases *leases, struct lease_set *set);
