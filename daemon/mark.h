// SPDX-License-Identifier: Apache-2.0
/*
 * Marks: what engines and kvtierctl say about boundaries. Reclaim: no longer wanted, goes
 * at once and from every tier. Pin: stays where it is (pin_table.h).
 *
 * A request is a job; jobs are done one after another, in slices, one slice a turn of the
 * loop, and with only so many deletes queued in the tier below. They wait for the end of
 * recovery. A slice ends with what uses it up: a pin goes to the root in one. What is
 * reclaimed leaves the index in that turn; who holds a lease on it, or writes it down,
 * keeps the bytes until he lets go.
 *
 * Below: the tree has no lists of children. One walk over all boundaries asks each whether
 * a named one is above it, and notes the answer, so that every edge is looked at once.
 * Prefix: from the boundary upwards, until something else hangs on one, pins or leases it.
 *
 * A session's pins end with it, its reclaims are done to their end. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"
#include "daemon/pin_set.h"
#include "proto/wire.h"

struct daemon;
struct session;
struct mark_job;

struct marks {
        TAILQ_HEAD(, mark_job) jobs; /* the first one is being done */
        uint32_t n_items;            /* of all of them */
        struct pin_set admin_pins;   /* kvtierctl's */
};

struct mark_result {
        uint32_t status;         /* the first that is not OK */
        uint64_t objects, bytes; /* reclaimed */
        uint64_t kept;           /* to be reclaimed, but pinned */
};

void marks_init(struct marks *marks);

/* A MARK message. */
void mark_request(struct session *session, const struct wire_batch *batch);

/*
 * The same for kvtierctl, whose pins are the daemon's: one boundary, @flags as in
 * wire_mark_item. 0, -EBUSY (too many wait) or -ENOMEM; @on_end comes later unless the
 * session goes.
 */
int mark_by_admin(struct session *session, uint64_t request, uint16_t layout,
                  const struct digest *digest, uint32_t flags,
                  void (*on_end)(struct session *session, uint64_t request,
                                 const struct mark_result *result));

/* Does the next slice, if there is any; called after each turn of the loop. */
void marks_go_on(struct daemon *daemon);

/* Ends the request of that number, if it is one of these; its answer is sent. */
void mark_cancel(struct session *session, uint64_t target);

/* The session has hung up. */
void marks_hang_up(struct session *session);

/* `kvtierctl clear`: pins on the layout's boundaries end, whosever they are. */
void marks_clear_layout(struct daemon *daemon, uint16_t layout);

/* The daemon stops: what is left is not done, and nothing is pinned any more. */
void marks_deinit(struct daemon *daemon);
