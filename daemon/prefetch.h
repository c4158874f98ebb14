// SPDX-License-Identifier: Apache-2.0
/*
 * Prefetch: objects that a request will acquire soon come into host memory while it waits in
 * the engine's queue.
 *
 * What lies in a lower tier is promoted by the ordinary transfer (daemon/transfer.h), what is in
 * none is asked of the peer that the hint names (daemon/peer_read.h), at once. Nothing is leased:
 * what has come up stays as long as anything else that was just touched. So that prefetches take
 * the device from no acquire, only so many of their bytes move at a time; and one that asks for
 * more than can be leased would evict its own beginning: that part is TOO_LARGE.
 *
 * A request is answered once, when each of its objects is here or will not be. One that is
 * cancelled, or whose session goes, starts nothing more; what moves comes to its end.
 * Loop thread only.
 */
#pragma once

#include <stdint.h>
#include <sys/queue.h>

#include "proto/wire.h"

struct daemon;
struct prefetch;
struct session;

struct prefetches {
        TAILQ_HEAD(, prefetch) list; /* oldest first */
        uint32_t n_items;            /* of all of them */
        uint64_t moving_bytes;       /* on their way on behalf of prefetches */
};

void prefetches_init(struct prefetches *prefetches);

/* A PREFETCH message. */
void prefetch_request(struct session *session, const struct wire_batch *batch);

/* Starts what may be started now; called after each turn of the loop. */
void prefetches_go_on(struct daemon *daemon);

/* Answers the request of that number, if it is one of these: CANCELLED where nothing is known. */
void prefetch_cancel(struct session *session, uint64_t target);

/* The session has hung up. */
void prefetches_hang_up(struct session *session);
