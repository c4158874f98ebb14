// SPDX-License-Identifier: Apache-2.0
/*
 * Reporting: from the records of calls to completions and to the caller's objects, in the
 * caller's own thread.
 */
#include <stdlib.h>
#include <string.h>

#include "client/page_call.h"
#include "client/session.h"

#define NS_PER_SECOND UINT64_C(1000000000)
#define NS_MAX        (NS_PER_SECOND * 3600 * 24 * 365 * 100)

static void forget_lease(struct kvt_object *object)
{
        object->lease = 0;
        object->segments = NULL;
        object->n_segments = 0;
}

/* The lease that the caller is to be told of, or NULL. */
static struct kvt__lease *lease_to_tell(struct kvt_session *session, struct kvt__item *item)
{
        struct kvt__lease *lease = item->lease;

        /* From here on it is the caller's, who ends it. */
        item->lease = NULL;
        if (!lease || !lease->is_over) {
                if (lease)
                        lease->is_told = true;
                return lease;
        }
        kvt__lease_end(&session->leases, lease);
        free(lease);
        return NULL;
}

static void write_granted(struct kvt_session *session, struct kvt_object *object,
                          struct kvt__call *call, struct kvt__item *item)
{
        struct kvt__lease *lease = lease_to_tell(session, item);

        object->generation = item->generation;
        object->stored_ns = item->stored_ns;
        memcpy(object->writer_boot_id, item->writer_boot_id, sizeof(object->writer_boot_id));
        if (call->kind != WIRE_RESERVE && item->bytes)
                object->bytes = item->bytes;
        if (!lease) {
                forget_lease(object);
                return;
        }
        object->lease = lease->id;
        object->segments = lease->n_segments ? lease->segments : NULL;
        object->n_segments = lease->n_segments;
}

static void write_moved(struct kvt_object *object, const struct kvt__call *call,
                        const struct kvt__item *item)
{
        object->generation = item->generation;
        object->stored_ns = item->stored_ns;
        memcpy(object->writer_boot_id, item->writer_boot_id, sizeof(object->writer_boot_id));
        if (!kvt__page_call_stores(call) && item->bytes)
                object->bytes = item->bytes;
        forget_lease(object);
}

static void write_objects(struct kvt_session *session, struct kvt__call *call)
{
        struct kvt__item *item;

        while ((item = kvt__call_next_changed(call))) {
                struct kvt_object *object = &call->objects[item - call->items];

                object->status = item->status;
                if (kvt__kind_grants(call->kind))
                        write_granted(session, object, call, item);
                else if (call->pages)
                        write_moved(object, call, item);
                else if (call->kind != WIRE_MARK && item->status != KVT_INVALID)
                        forget_lease(object);
        }
}

static void report(struct kvt_session *session, struct kvt__call *call,
                   struct kvt_completion *ret_completion)
{
        *ret_completion = (struct kvt_completion){
                .call = call->id,
                .user = call->user,
                .status = call->status,
                .flags = call->is_done ? 0 : KVT_COMPLETION_MORE,
                .n_granted = call->n_granted,
                .n_resident = call->n_resident,
                .n_fitting = call->n_fitting,
        };
        if (call->kind == WIRE_ACQUIRE && call->is_decided)
                memcpy(ret_completion->token, call->token, sizeof(ret_completion->token));
        write_objects(session, call);
        if (!call->is_done) {
                call->is_reported = true;
                return;
        }
        call->is_told = true;
        if (!call->is_on_wire)
                kvt__call_free(session, call);
}

static size_t poll_locked(struct kvt_session *session, struct kvt_completion *ret_completions,
                          size_t max)
{
        struct kvt__call *call;
        size_t n = 0;

        while (n < max && (call = TAILQ_FIRST(&session->calls.ready))) {
                TAILQ_REMOVE(&session->calls.ready, call, queue);
                call->is_queued = false;
                report(session, call, &ret_completions[n++]);
        }
        kvt__calls_signal(session);
        return n;
}

size_t kvt_poll(struct kvt_session *session, struct kvt_completion *ret_completions, size_t max)
{
        size_t n;

        if (!session || !ret_completions || kvt__is_forked(session))
                return 0;
        pthread_mutex_lock(&session->lock);
        n = poll_locked(session, ret_completions, max);
        pthread_mutex_unlock(&session->lock);
        return n;
}

static uint64_t deadline(uint64_t timeout_ns)
{
        return kvt__now_ns() + (timeout_ns < NS_MAX ? timeout_ns : NS_MAX);
}

/* False once @until_ns has passed. */
static bool wait_change(struct kvt_session *session, uint64_t until_ns)
{
        struct timespec until = {
                .tv_sec = (time_t)(until_ns / NS_PER_SECOND),
                .tv_nsec = (long)(until_ns % NS_PER_SECOND),
        };

        return !pthread_cond_timedwait(&session->changed, &session->lock, &until);
}

size_t kvt_wait(struct kvt_session *session, struct kvt_completion *ret_completions, size_t max,
                uint64_t timeout_ns)
{
        uint64_t until = deadline(timeout_ns);
        size_t n;

        if (!session || !ret_completions || !max || kvt__is_forked(session))
                return 0;
        pthread_mutex_lock(&session->lock);
        session->calls.n_waiters++;
        do
                n = poll_locked(session, ret_completions, max);
        while (!n && wait_change(session, until));
        session->calls.n_waiters--;
        /* What is left is for others, who may be polling the eventfd. */
        kvt__calls_signal(session);
        pthread_mutex_unlock(&session->lock);
        return n;
}

enum kvt_status kvt_wait_call(struct kvt_session *session, uint64_t id,
                              struct kvt_completion *ret_completion, uint64_t timeout_ns)
{
        uint64_t until = deadline(timeout_ns);
        enum kvt_status status = KVT_TIMEOUT;
        struct kvt__call *call;

        if (!session || !ret_completion)
                return KVT_INVALID;
        if (kvt__is_forked(session))
                return KVT_FORKED;
        pthread_mutex_lock(&session->lock);
        do {
                call = kvt__call_find(session, id);
                if (!call || call->is_internal || call->is_told || !(call->flags & KVT_CALL_WAITED))
                        status = KVT_INVALID;
                else if (call->is_done)
                        status = KVT_OK;
        } while (status == KVT_TIMEOUT && wait_change(session, until));
        if (status == KVT_OK)
                report(session, call, ret_completion);
        pthread_mutex_unlock(&session->lock);
        return status;
}

int kvt_fd(struct kvt_session *session)
{
        return session && !kvt__is_forked(session) ? session->ready_fd : -1;
}
