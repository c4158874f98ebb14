// SPDX-License-Identifier: Apache-2.0
/*
 * Requests of the library, as long as an answer is to come. A cancel whose target is not done
 * here, though it is at the daemon, waits in the target and is answered behind it.
 * The bridge's thread only.
 */
#pragma once

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/outbox.h"
#include "proto/digest.h"

struct kvt__bridge;

struct bridge_request {
        RB_ENTRY(bridge_request) link;
        uint64_t id;
        uint16_t kind;
        bool is_answered;  /* by the daemon, to the end */
        bool is_held;      /* COMMIT: not sent yet */
        bool goes_on;      /* COMMIT: its set */
        bool is_members;   /* ABORT: not of their sets */
        uint32_t n_moving; /* batches */
        uint32_t failure;  /* COMMIT: of batches that the daemon was not told of; FIND */
        uint32_t n;        /* of the request */
        uint64_t set;
        uint64_t turn;                         /* when it went to the daemon: later is more */
        uint64_t target;                       /* CANCEL */
        STAILQ_HEAD(, bridge_request) cancels; /* of this, answered when it ends; owned */
        STAILQ_ENTRY(bridge_request) cancel_link;
        uint64_t *leases;        /* COMMIT, ABORT, RELEASE: by index */
        struct digest *digests;  /* FIND: by index */
        struct kvt__outbox held; /* COMMIT: its parts, and a CANCEL behind them */
};

RB_HEAD(bridge_requests, bridge_request);

struct bridge_request *bridge_request_find(struct kvt__bridge *bridge, uint64_t id);
/* The one of that id, or a new one. NULL: out of memory; the connection has failed. */
struct bridge_request *bridge_request_get(struct kvt__bridge *bridge, uint64_t id, uint16_t kind,
                                          uint32_t n);
/* @cancel is answered by bridge_request_end() of @target. */
void bridge_request_cancel_after(struct kvt__bridge *bridge, struct bridge_request *cancel,
                                 struct bridge_request *target);
/* Answered in full: sends the answers to the cancels that wait for it, and frees it. */
void bridge_request_end(struct kvt__bridge *bridge, struct bridge_request *request);
void bridge_requests_free(struct kvt__bridge *bridge);
