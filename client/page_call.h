// SPDX-License-Identifier: Apache-2.0
/*
 * Calls over page maps: one record that the caller knows, and behind it, one at a time, the
 * calls that the daemon is asked. Those are owned: what they complete with goes to the
 * record and not to the caller.
 *
 *   store:  RESERVE -> copy what is granted, as it is granted -> COMMIT -> done
 *   load:   ACQUIRE or ADOPT -> copy what arrives, as it arrives -> done; RELEASE is sent
 *           and not waited for
 *
 * Leases lie in the record's items until a COMMIT takes them over; whatever ends the call
 * gives back the rest. Once the call is to end early (cancel, deadline, hang-up of a store,
 * a set that cannot be whole) nothing more is copied, and it is done when copier and device
 * have let go of the caller's memory, not before. Under the session's lock.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/call.h"
#include "client/page_device.h"
#include "client/page_map.h"

/* Kinds of records; none of the wire's. */
#define KVT__STORE_PAGES 0xff01u
#define KVT__LOAD_PAGES  0xff02u

struct kvt__page_object {
        TAILQ_ENTRY(kvt__page_object) link; /* of the copier's queue */
        struct kvt__call *call;
        const struct kvt__page_group *group; /* of the map */
        const uint32_t *slots;
        uint32_t n_slots;
        bool is_queued;           /* the copier's */
        struct kvt__page_job job; /* the device's, where that has the pages */
};

struct kvt__page_work {
        struct kvt_page_map *map;
        struct kvt__call *child;  /* that the daemon is asked, or NULL */
        struct kvt__call *commit; /* made at submit, so that it needs no memory later; or NULL */
        uint32_t *slots;          /* of all objects */
        uint32_t n_open;          /* objects that are queued or being copied */
        bool is_granted;          /* no more grants are to come */
        uint32_t n_copying;       /* of these, what copier and device are on */
        void *after, *done;       /* of kvt_call, for the device */
        bool has_cancels;         /* cancels wait for the end */
        enum kvt_status ending;   /* KVT_OK, or why the call ends early */
        atomic_bool stop;         /* tells the copier */
        struct kvt__page_object objects[];
};

/* Of a session that ends with KVT__PAGE_LOST. */
#define KVT__PAGE_LOST_REASON "the context of a GPU is lost, with copies in flight"

bool kvt__page_call_stores(const struct kvt__call *call);

/* An owned call has completed, or got part of its answer. */
void kvt__page_call_step(struct kvt_session *session, struct kvt__call *child);

/* Ends the call early; at once, or when the copier has let go. */
void kvt__page_call_abandon(struct kvt_session *session, struct kvt__call *call,
                            enum kvt_status status);

/* Cancels it. True when it is not done yet: then its end ends the cancels that name it. */
bool kvt__page_call_cancel(struct kvt_session *session, struct kvt__call *call);

/* The connection is lost: a load goes on with what was granted. */
void kvt__page_call_hang_up(struct kvt_session *session, struct kvt__call *call);

/* NULL is fine. */
void kvt__page_work_free(struct kvt__page_work *work);

/* ---- copier and device ---- */

/* Taken from the queue; @ret_list is what to copy. */
void kvt__page_object_begin(struct kvt__page_object *object, struct kvt__page_list *ret_list);
void kvt__page_object_end(struct kvt_session *session, struct kvt__page_object *object,
                          enum kvt__page_end end);
