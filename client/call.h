// SPDX-License-Identifier: Apache-2.0
/*
 * Calls in flight, from submit until both sides are done with them: the caller has seen
 * the last completion, and the daemon has sent its last answer.
 *
 * Results wait in the call's record and go to the caller's objects in the moment that
 * kvt_poll() or its kin report them, in the caller's own thread. So a call never writes
 * to memory of a caller who was told that it has ended, and reporting needs no memory.
 * A record whose caller was told TIMEOUT or CANCELLED stays until the daemon's answer and
 * gives back what that grants. Under the session's lock.
 */
#pragma once

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/kvtier.h"
#include "client/lease.h"
#include "client/pins.h"

/* Records of one session; submits are refused above it. */
#define KVT__CALLS_MAX 4096u

struct kvt__item {
        struct kvt__lease *lease; /* granted and not reported yet; or the one to be ended */
        uint64_t generation;
        uint64_t bytes;
        uint64_t stored_ns;
        uint8_t writer_boot_id[16];
        uint32_t status;
        uint32_t live; /* item number of the live'th item on the wire */
        uint32_t next_changed; /* number of the next in the call's list, plus 1 */
        bool is_final;
        bool is_changed; /* since the last report: in that list */
};

struct kvt__page_work;

struct kvt__call {
        RB_ENTRY(kvt__call) by_id;
        RB_ENTRY(kvt__call) by_deadline;
        TAILQ_ENTRY(kvt__call) queue;
        uint64_t id;          /* also the request's id on the wire */
        uint64_t deadline_ns; /* 0: none */
        uint64_t set;
        uint64_t target; /* CANCEL */
        void *user;
        struct kvt_object *objects; /* the caller's */
        uint16_t kind;              /* enum wire_kind */
        uint32_t flags;             /* kvt_call.flags */
        bool is_internal;           /* nobody is told */
        bool is_on_wire;            /* the daemon owes its last answer */
        bool is_done;               /* the last completion is posted */
        bool is_told;               /* and the caller has seen it */
        bool is_queued;
        bool is_decided;  /* GRANTED has come */
        bool is_spread;   /* and its decision is in every item */
        bool is_reported; /* a completion with MORE has been reported */
        bool is_doomed;   /* COMMIT of a set with a dead member: sent as ABORT, GONE */
        uint32_t status;
        uint32_t n_granted, n_resident, n_fitting;
        uint8_t token[16];
        struct digest *digests;  /* FIND that asks a daemon here; else NULL */
        uint32_t n_digests;
        const char *hint;        /* PREFETCH: the caller's, for as long as it is submitted */
        uint32_t mark;           /* MARK: PIN, UNPIN, or 0: reclaim, as each object says */
        struct kvt__pin **pins;  /* MARK: PIN, UNPIN: of each object; else NULL */
        struct kvt__call *owner;      /* completes for this record; NULL: for the caller */
        struct kvt__page_work *pages; /* of calls over page maps; else NULL */
        uint32_t first_changed, last_changed; /* numbers plus 1; 0: none */
        uint32_t n_live; /* items on the wire */
        uint32_t n;
        struct kvt__item items[];
};

RB_HEAD(kvt__call_ids, kvt__call);
RB_HEAD(kvt__call_deadlines, kvt__call);
TAILQ_HEAD(kvt__call_queue, kvt__call);

struct kvt__calls {
        struct kvt__call_ids ids;
        struct kvt__call_deadlines deadlines;
        struct kvt__call_queue ready; /* for kvt_poll(), in order of completion */
        unsigned n_waiters;           /* threads in kvt_wait(): they need no eventfd */
        bool is_signalled;            /* the eventfd is readable */
        uint64_t last_id;
        size_t n;
};

/* Objects whose grants make leases of the caller's. */
bool kvt__kind_grants(uint16_t kind);
/* Those that want stored bytes. */
bool kvt__kind_loads(uint16_t kind);

/* NULL when there is no memory. All items live, none final. */
struct kvt__call *kvt__call_new(uint16_t kind, const struct kvt_call *options,
                                struct kvt_object *objects, size_t n);

/*
 * Items that are to be reported, each once, in the order in which they changed: an answer
 * in many parts costs what is new in each.
 */
void kvt__item_changed(struct kvt__call *call, struct kvt__item *item);
struct kvt__item *kvt__call_next_changed(struct kvt__call *call); /* takes it; NULL: none */

/* Gives it an id and puts it among the calls. */
void kvt__call_insert(struct kvt_session *session, struct kvt__call *call);

/* Takes it out, wherever it is, and frees it with the leases that it has ended. */
void kvt__call_free(struct kvt_session *session, struct kvt__call *call);

struct kvt__call *kvt__call_find(struct kvt_session *session, uint64_t id);

/* Something new for the caller; more follows. */
void kvt__call_post(struct kvt_session *session, struct kvt__call *call);

/* Makes the eventfd say what there is to poll, unless somebody is waiting to do so. */
void kvt__calls_signal(struct kvt_session *session);

/* Ends every lease that the call was granted and nobody knows of; tells the daemon. */
void kvt__call_retract(struct kvt_session *session, struct kvt__call *call);

/* The last completion, with the status that its items make. */
void kvt__call_finish(struct kvt_session *session, struct kvt__call *call);

/*
 * The last completion before the daemon's answer: TIMEOUT, CANCELLED or UNAVAILABLE.
 * What the caller was not told of is given back, to the daemon while there is one.
 */
void kvt__call_abandon(struct kvt_session *session, struct kvt__call *call, enum kvt_status status);

/* The daemon has sent its last answer. Frees the record if the caller is done too. */
void kvt__call_answered(struct kvt_session *session, struct kvt__call *call);

/* Deadlines. Returns the next one, UINT64_MAX if there is none. */
uint64_t kvt__calls_expire(struct kvt_session *session, uint64_t now_ns);

/* Ends everything that waits for the daemon. */
void kvt__calls_hang_up(struct kvt_session *session);

/* Abandons all with CANCELLED: the session closes. */
void kvt__calls_cancel(struct kvt_session *session);

/* Is any record still waiting for an answer? */
bool kvt__calls_on_wire(struct kvt_session *session);

/* The target of cancels that were waiting for it has completed. */
void kvt__calls_end_cancels(struct kvt_session *session, uint64_t target);

void kvt__calls_free(struct kvt_session *session);

/*
 * client/submit.c: returns leases that nobody holds, in one message; no completion. Those of a
 * reservation end their @set; @set 0: what other calls have in it stays.
 */
void kvt__give_back(struct kvt_session *session, uint16_t granted_by, uint64_t set,
                    const uint64_t *wire_leases, uint32_t n);

/* client/submit.c: ends the quarantine of a dead era; no completion. */
void kvt__say_copies_ended(struct kvt_session *session, const struct kvt__era *era);

/* client/submit.c: pins what an earlier connection had pinned; no completion. */
void kvt__pin_again(struct kvt_session *session);

/* client/submit.c: asks the daemon to stop working on @target; no completion. */
void kvt__stop(struct kvt_session *session, const struct kvt__call *target);
