// SPDX-License-Identifier: Apache-2.0
/*
 * Loads: what an acquire or adopt was granted, until every object has arrived.
 *
 * What is in host memory is answered at once; what comes up from below is reported as it
 * arrives or fails. Release ends leases one by one, cancel ends those of a whole load that
 * has not arrived. Loop thread only.
 */
#pragma once

#include <stdint.h>
#include <sys/queue.h>

#include "daemon/host_copy.h"
#include "daemon/pages.h"
#include "daemon/session.h"

struct cache;

/* An object of a granted load that is not there yet. */
struct load_item {
        struct host_copy_waiter waiter;
        struct load *load;
        struct lease *lease; /* NULL: answered */
        struct pages pages;  /* ranges of the copy; none: all of it */
        uint32_t index;
};

/* A granted acquire or adopt with objects on their way. */
struct load {
        TAILQ_ENTRY(load) link; /* of the session */
        struct session *session;
        uint64_t request;
        bool with_checksums;
        struct page_range *ranges; /* that items' pages point to; owned; or NULL */
        uint32_t n_left;
        uint32_t n_items;
        struct load_item items[];
};

/* One object of a load that is about to be granted. */
struct planned {
        struct host_copy *copy;
        struct index_object *object; /* to be promoted; NULL when the copy is there or arriving */
        struct wire_key_item key;
        uint32_t twin;      /* the first item that is served by the same object: itself, mostly */
        struct pages pages; /* that are asked for; none: the whole object */
        struct piece_set pieces; /* that a private copy has; pages are then ranges of it */
        bool is_private;         /* the copy is for this lease alone */
};

struct load_grant {
        uint64_t request;
        const struct planned *planned; /* copies held by the caller */
        uint32_t n;
        uint32_t n_resident; /* leading ones that are in host memory */
        struct grant *grant; /* the leases will refer to it; NULL: pages alone, nothing to adopt */
        struct page_range *ranges; /* that planned pages point to; the load's after success */
        bool with_checksums;
        enum metrics_operation operation;
};

/* Leases every planned copy for the session and answers. 0 or -ENOMEM: nothing is leased. */
int load_grant(struct session *session, const struct load_grant *granted);

/* What a GRANTED message says. */
struct load_decision {
        uint32_t status;
        uint32_t n_granted;
        uint32_t n_resident;
        uint32_t n_fitting;
        const uint8_t *token; /* 16 bytes, or NULL */
};

void load_decide(struct session *session, uint64_t request, const struct load_decision *decision);

void load_adopt(struct session *session, const struct wire_batch *batch);
void load_release(struct session *session, const struct wire_batch *batch);
void load_cancel(struct session *session, const struct wire_cancel *cancel);

/* Answers an acquire or adopt of which nothing was looked at: nothing is granted. */
void load_refuse(struct session *session, uint64_t request, uint32_t status);

/* What is answered for a copy that failed to arrive. */
uint32_t load_failure_status(int failure);

/*
 * Brings all of @object up for somebody who leases nothing yet. OK, and a copy that is ARRIVING;
 * or the wire status of why it does not come.
 */
uint32_t load_promote(struct cache *cache, struct index_object *object,
                      struct host_copy **ret_copy);

/* The socket is gone: nothing is answered any more; leases stay. */
void loads_hang_up(struct session *session);
