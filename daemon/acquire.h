// SPDX-License-Identifier: Apache-2.0
/*
 * Acquire: the decision to lease objects for reading.
 *
 * It is decided at once: it gets all the space that its objects need, with a lease on
 * each, or holds nothing and says why (BUSY, TOO_LARGE, MISS). With WAIT, an acquire whose
 * missing objects are all reserved by somebody, or on their way from a peer, stays undecided,
 * holding nothing, until they are there, the last of them is given up, or its time is over.
 * daemon/load.c grants what was decided. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "daemon/session.h"

struct assembly;

/* An acquire that waits for reservations; undecided. */
struct waiting_acquire {
        TAILQ_ENTRY(waiting_acquire) link; /* of the session */
        struct session *session;
        struct assembly *acquire;
        uint64_t deadline_ns;
        uint64_t seen;    /* daemon.n_reservations_ended at the last look */
        uint32_t n_found; /* leading items that existed then */
};

void acquire_request(struct session *session, const struct wire_batch *batch);

/* A reservation was committed or given up: whoever waits looks again after this turn. */
void acquires_reservation_ended(struct daemon *daemon);

/* Decides waiting acquires that are ripe or late. Called after each turn of the loop. */
void acquires_retry(struct daemon *daemon);

/* Answers CANCELLED to the waiting acquire of this request, if there is one. */
void acquire_cancel_waiting(struct session *session, uint64_t request);

/* The socket is gone: nothing is answered any more. */
void acquires_hang_up(struct session *session);
