// SPDX-License-Identifier: Apache-2.0
/*
 * Removal: kvtierctl evict and clear, of one boundary or of a layout, which may have a
 * million objects.
 *
 * That of a boundary is done at once. That of a layout works in slices, one a turn of the
 * loop, and lets only so many deletes queue up in the tier below, so that sessions are
 * served meanwhile. What is stored while it runs may stay. One of those runs at a time; it
 * ends early with the session that asked for it, or when the daemon stops. Loop thread
 * only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"

#define REMOVAL_ANY (-1)

struct daemon;
struct session;

struct removal_result {
        uint64_t objects;
        uint64_t bytes;
        uint64_t kept; /* leased, in use or pinned */
};

struct removal_request {
        struct session *session;
        uint64_t request;
        uint16_t layout; /* of a boundary: 0 stands for every layout */
        bool is_of_boundary;
        struct digest digest; /* of that boundary */
        int32_t group;        /* of its objects, or REMOVAL_ANY */
        int32_t shard;
        bool host; /* from this tier, or from all three */
        bool nvme;
        bool remote;
        void (*on_end)(struct session *session, uint64_t request,
                       const struct removal_result *result);
};

/* The removal of one boundary; on_end is not called. */
void removal_of_boundary(struct daemon *daemon, const struct removal_request *request,
                         struct removal_result *ret_result);

/* That of a layout: 0, -EBUSY (one runs already) or -ENOMEM. @on_end comes later. */
int removal_start(struct daemon *daemon, const struct removal_request *request);

/* Does the next slice, if there is any; called after each turn of the loop. */
void removal_go_on(struct daemon *daemon);

/* Ends without an answer. */
void removal_cancel(struct daemon *daemon);
/* The session that asked is going: as removal_cancel() if it is its removal. */
void removal_session_gone(struct daemon *daemon, const struct session *session);
