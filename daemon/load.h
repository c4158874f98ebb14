// SPDX-License-Identifier: Apache-2.0
/*
 * The load side of a session: acquire, adopt, release, cancel.
 *
 * An acquire is decided at once: it gets all the space that its objects need, with a lease
 * on each, or holds nothing and says why (BUSY, TOO_LARGE, MISS). What is in host memory is
 * answered at once; what comes up from below is reported as it arrives. With WAIT, an
 * acquire whose missing objects are all reserved by somebody stays undecided, holding
 * nothing, until they are committed, the last reservation is aborted, or its time is up.
 * Loop thread only.
 */
#pragma once

#include <stdint.h>
#include <sys/queue.h>

#include "daemon/assembly.h"
#include "daemon/host_copy.h"
#include "daemon/session.h"

/* An object of a granted load that is not there yet. */
struct load_item {
        struct host_copy_waiter waiter;
        struct load *load;
        struct lease *lease; /* NULL: answered */
        uint32_t index;
};

/* A granted acquire or adopt with objects on their way. */
struct load {
        TAILQ_ENTRY(load) link; /* of the session */
        struct session *session;
        uint64_t request;
        bool with_checksums;
        uint32_t n_left;
        uint32_t n_items;
        struct load_item items[];
};

/* An acquire that waits for reservations; undecided. */
struct waiting_load {
        TAILQ_ENTRY(waiting_load) link; /* of the session */
        struct session *session;
        struct assembly *acquire;
        uint64_t deadline_ns;
        bool is_ripe; /* something it may wait for has changed */
};

void load_acquire(struct session *session, const struct wire_batch *batch);
void load_adopt(struct session *session, const struct wire_batch *batch);
void load_release(struct session *session, const struct wire_batch *batch);
void load_cancel(struct session *session, const struct wire_cancel *cancel);

/* Answers an acquire or adopt of which nothing was looked at: nothing is granted. */
void load_refuse(struct session *session, uint64_t request, uint32_t status);

/* A reservation of this object was committed or given up: whoever waits looks again. */
void loads_reservation_ended(struct daemon *daemon, const struct index_new_object *entry);

/* Decides waiting acquires that are ripe or late. Called after each turn of the loop. */
void loads_retry(struct daemon *daemon);

/* The socket is gone: nothing is answered any more; leases stay. */
void loads_hang_up(struct session *session);
/* The session's leases are about to end. */
void loads_end_session(struct session *session);
