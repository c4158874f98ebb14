// SPDX-License-Identifier: Apache-2.0
/*
 * Removal: kvtierctl evict and clear, which may concern a million objects.
 *
 * It works in slices, one a turn of the loop, and lets only so many deletes queue up in
 * the tier below, so that sessions are served meanwhile. What is stored while it runs may
 * stay. One removal runs at a time; it ends early with the session that asked for it, or
 * when the daemon stops. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct daemon;
struct session;

struct removal_result {
        uint64_t objects;
        uint64_t bytes;
        uint64_t kept; /* leased or in use */
};

struct removal_request {
        struct session *session;
        uint64_t request;
        uint16_t layout;
        bool host; /* from these tiers */
        bool nvme;
        void (*on_end)(struct session *session, uint64_t request,
                       const struct removal_result *result);
};

/* 0, -EBUSY (one runs already) or -ENOMEM. @on_end comes later. */
int removal_start(struct daemon *daemon, const struct removal_request *request);

/* Does the next slice, if there is any; called after each turn of the loop. */
void removal_go_on(struct daemon *daemon);

/* Ends without an answer. */
void removal_cancel(struct daemon *daemon);
/* The session that asked is going: as removal_cancel() if it is its removal. */
void removal_session_gone(struct daemon *daemon, const struct session *session);
