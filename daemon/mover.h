// SPDX-License-Identifier: Apache-2.0
/*
 * The bytes of remote sessions: PUT reads those of a reservation out of the client's memory,
 * FETCH writes those of a lease into it, by RDMA, from and to the copies themselves.
 *
 * What the client says of its memory is never believed: its device refuses whatever it has not
 * granted, which ends the connection, and the daemon moves just the bytes of the lease. A
 * reservation is filled once: what it holds cannot change behind its commit.
 *
 * At most MOVER_FLIGHT objects of a session are on the way at a time, in the order of the
 * requests, so that the deadline of each is for its own bytes. A request is answered when all
 * of its part's objects are done. Objects of requests that are not answered yet are at most as
 * many as the session may have leases: BUSY beyond. A move holds its copy, not its lease: leases
 * may end under it. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

#define MOVER_FLIGHT 8u

/* PUT and FETCH. */
void mover_request(struct session *session, const struct wire_batch *batch);

/* The session ends: what has not begun never will. */
void mover_hang_up(struct session *session);
