// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/page_call.h"
#include "client/session.h"

static int compare_ids(const struct kvt__call *a, const struct kvt__call *b)
{
        return a->id < b->id ? -1 : a->id > b->id;
}

static int compare_deadlines(const struct kvt__call *a, const struct kvt__call *b)
{
        if (a->deadline_ns != b->deadline_ns)
                return a->deadline_ns < b->deadline_ns ? -1 : 1;
        return compare_ids(a, b);
}

/* RB_GENERATE_STATIC needs a word that libbsd defines only when it overlays libc. */
RB_GENERATE_INTERNAL(kvt__call_ids, kvt__call, by_id, compare_ids, __attribute__((unused)) static)
RB_GENERATE_INTERNAL(kvt__call_deadlines, kvt__call, by_deadline, compare_deadlines,
                     __attribute__((unused)) static)

bool kvt__kind_grants(uint16_t kind)
{
        return kind == WIRE_RESERVE || kind == WIRE_ACQUIRE || kind == WIRE_ADOPT;
}

bool kvt__kind_loads(uint16_t kind)
{
        return kind == WIRE_ACQUIRE || kind == WIRE_ADOPT || kind == WIRE_PREFETCH;
}

static bool kind_ends(uint16_t kind)
{
        return kind == WIRE_COMMIT || kind == WIRE_ABORT || kind == WIRE_RELEASE;
}

struct kvt__call *kvt__call_new(uint16_t kind, const struct kvt_call *options,
                                struct kvt_object *objects, size_t n)
{
        struct kvt__call *call = calloc(1, sizeof(*call) + n * sizeof(call->items[0]));

        if (!call)
                return NULL;
        call->kind = kind;
        call->objects = objects;
        call->n = call->n_live = (uint32_t)n;
        for (uint32_t i = 0; i < call->n; i++)
                call->items[i].live = i;
        if (options) {
                call->flags = options->flags;
                call->set = options->set;
                call->user = options->user;
                if (options->timeout_ns) {
                        uint64_t now = kvt__now_ns();

                        call->deadline_ns = options->timeout_ns < UINT64_MAX - now
                                                    ? now + options->timeout_ns
                                                    : UINT64_MAX;
                }
        }
        return call;
}

void kvt__item_changed(struct kvt__call *call, struct kvt__item *item)
{
        uint32_t number = (uint32_t)(item - call->items) + 1;

        if (item->is_changed)
                return;
        item->is_changed = true;
        item->next_changed = 0;
        if (call->last_changed)
                call->items[call->last_changed - 1].next_changed = number;
        else
                call->first_changed = number;
        call->last_changed = number;
}

struct kvt__item *kvt__call_next_changed(struct kvt__call *call)
{
        struct kvt__item *item;

        if (!call->first_changed)
                return NULL;
        item = &call->items[call->first_changed - 1];
        call->first_changed = item->next_changed;
        if (!call->first_changed)
                call->last_changed = 0;
        item->is_changed = false;
        return item;
}

void kvt__call_insert(struct kvt_session *session, struct kvt__call *call)
{
        call->id = ++session->calls.last_id;
        session->calls.n++;
        RB_INSERT(kvt__call_ids, &session->calls.ids, call);
        if (!call->deadline_ns)
                return;
        RB_INSERT(kvt__call_deadlines, &session->calls.deadlines, call);
        if (call->deadline_ns < session->sleeping_until_ns)
                kvt__session_wake(session);
}

static void stop_clock(struct kvt_session *session, struct kvt__call *call)
{
        if (call->deadline_ns)
                RB_REMOVE(kvt__call_deadlines, &session->calls.deadlines, call);
        call->deadline_ns = 0;
}

static void unqueue(struct kvt_session *session, struct kvt__call *call)
{
        if (call->is_queued)
                TAILQ_REMOVE(&session->calls.ready, call, queue);
        call->is_queued = false;
}

void kvt__call_free(struct kvt_session *session, struct kvt__call *call)
{
        stop_clock(session, call);
        unqueue(session, call);
        RB_REMOVE(kvt__call_ids, &session->calls.ids, call);
        session->calls.n--;
        for (uint32_t i = 0; i < call->n && kind_ends(call->kind); i++)
                if (call->items[i].lease && !call->items[i].lease->era)
                        free(call->items[i].lease);
        kvt__pins_free_spare(call->pins, call->n);
        kvt__page_work_free(call->pages);
        free(call->digests);
        free(call);
}

struct kvt__call *kvt__call_find(struct kvt_session *session, uint64_t id)
{
        struct kvt__call key = {.id = id};

        return RB_FIND(kvt__call_ids, &session->calls.ids, &key);
}

void kvt__calls_signal(struct kvt_session *session)
{
        struct kvt__calls *calls = &session->calls;
        bool signal = !TAILQ_EMPTY(&calls->ready) && !calls->n_waiters;
        uint64_t count = 1;
        ssize_t done = sizeof(count);

        /* An eventfd that no one looks at would cost as much as the message itself. */
        if (signal && !calls->is_signalled)
                done = write(session->ready_fd, &count, sizeof(count));
        else if (TAILQ_EMPTY(&calls->ready) && calls->is_signalled)
                done = read(session->ready_fd, &count, sizeof(count));
        else
                return;
        calls->is_signalled = done > 0 ? signal : calls->is_signalled;
}

void kvt__call_post(struct kvt_session *session, struct kvt__call *call)
{
        if (call->is_internal || call->is_told)
                return;
        if (call->owner) {
                kvt__page_call_step(session, call);
                return;
        }
        pthread_cond_broadcast(&session->changed);
        if (call->is_queued || call->flags & KVT_CALL_WAITED)
                return;
        TAILQ_INSERT_TAIL(&session->calls.ready, call, queue);
        call->is_queued = true;
        kvt__calls_signal(session);
}

/*
 * Drops a lease that the caller was never told of. Returns what the daemon calls it, or 0
 * when it belongs to another connection or a set that has ended.
 */
static uint64_t drop_lease(struct kvt_session *session, struct kvt__item *item)
{
        struct kvt__lease *lease = item->lease;
        uint64_t wire = lease->era == session->era && !lease->is_over ? lease->wire : 0;

        kvt__lease_end(&session->leases, lease);
        free(lease);
        item->lease = NULL;
        return wire;
}

/* By which kind of call its leases were granted. */
static uint16_t granting_kind(const struct kvt__call *call)
{
        if (!call->pages)
                return call->kind;
        return kvt__page_call_stores(call) ? WIRE_RESERVE : WIRE_ACQUIRE;
}

void kvt__call_retract(struct kvt_session *session, struct kvt__call *call)
{
        bool is_up = session->phase == KVT__UP && !session->broken;
        uint16_t kind = granting_kind(call);
        uint64_t wires[256];
        uint32_t n = 0;

        for (uint32_t i = 0; i < call->n; i++) {
                if (!call->items[i].lease)
                        continue;
                wires[n] = drop_lease(session, &call->items[i]);
                n += is_up && wires[n];
                if (n == sizeof(wires) / sizeof(wires[0])) {
                        kvt__give_back(session, kind, 0, wires, n);
                        n = 0;
                }
        }
        if (n)
                kvt__give_back(session, kind, 0, wires, n);
}

static void set_final(struct kvt__call *call, struct kvt__item *item, enum kvt_status status)
{
        item->status = status;
        item->is_final = true;
        kvt__item_changed(call, item);
}

/* The first status that says that something did not go as asked. */
static uint32_t worst_status(const struct kvt__call *call)
{
        bool reads = call->kind == WIRE_ACQUIRE || call->kind == WIRE_ADOPT ||
                     call->kind == KVT__LOAD_PAGES;
        uint32_t n = reads && call->is_decided ? call->n_granted : call->n;

        if (call->status != KVT_OK)
                return call->status;
        for (uint32_t i = 0; i < n && i < call->n; i++)
                if (call->items[i].status != KVT_OK &&
                    (reads || call->items[i].status != KVT_ALREADY_HAVE))
                        return call->items[i].status;
        return KVT_OK;
}

static void done(struct kvt_session *session, struct kvt__call *call)
{
        stop_clock(session, call);
        call->is_done = true;
        kvt__call_post(session, call);
}

void kvt__call_finish(struct kvt_session *session, struct kvt__call *call)
{
        call->status = worst_status(call);
        if (kvt__kind_grants(call->kind) && !call->is_reported &&
            (call->status == KVT_TIMEOUT || call->status == KVT_CANCELLED)) {
                kvt__call_retract(session, call);
                for (uint32_t i = 0; i < call->n; i++)
                        set_final(call, &call->items[i], call->status);
        }
        done(session, call);
}

void kvt__call_abandon(struct kvt_session *session, struct kvt__call *call, enum kvt_status status)
{
        bool keeps = call->is_reported;

        if (call->pages) {
                stop_clock(session, call);
                kvt__page_call_abandon(session, call, status);
                return;
        }
        if (kvt__kind_grants(call->kind) && !keeps)
                kvt__call_retract(session, call);
        for (uint32_t i = 0; i < call->n; i++) {
                struct kvt__item *item = &call->items[i];

                if (!item->is_final || (kvt__kind_grants(call->kind) && !keeps))
                        set_final(call, item, status);
        }
        call->status = status;
        done(session, call);
}

void kvt__call_answered(struct kvt_session *session, struct kvt__call *call)
{
        call->is_on_wire = false;
        pthread_cond_broadcast(&session->changed); /* kvt_close() waits for the last answer */
        if (call->is_internal || call->is_told)
                kvt__call_free(session, call);
}

/* A cancel that runs out of time still completes after its target. */
static void expire(struct kvt_session *session, struct kvt__call *call)
{
        struct kvt__call *target =
                call->kind == WIRE_CANCEL ? kvt__call_find(session, call->target) : NULL;

        if (target && !target->is_done)
                kvt__call_abandon(session, target, KVT_CANCELLED);
        kvt__call_abandon(session, call, KVT_TIMEOUT);
        if (kvt__kind_grants(call->kind) || call->kind == WIRE_PREFETCH)
                kvt__stop(session, call);
}

uint64_t kvt__calls_expire(struct kvt_session *session, uint64_t now_ns)
{
        struct kvt__call *call;

        while ((call = RB_MIN(kvt__call_deadlines, &session->calls.deadlines))) {
                if (call->deadline_ns > now_ns)
                        return call->deadline_ns;
                expire(session, call);
        }
        return UINT64_MAX;
}

static void hang_up(struct kvt_session *session, struct kvt__call *call)
{
        for (uint32_t i = 0; i < call->n && kind_ends(call->kind); i++) {
                struct kvt__lease *lease = call->items[i].lease;

                if (lease && lease->era)
                        kvt__lease_end(&session->leases, lease);
        }
        if (!call->is_done && !call->is_internal)
                kvt__call_abandon(session, call, KVT_UNAVAILABLE);
        kvt__call_answered(session, call);
}

void kvt__calls_hang_up(struct kvt_session *session)
{
        struct kvt__call *call, *next;

        for (call = RB_MIN(kvt__call_ids, &session->calls.ids); call; call = next) {
                next = RB_NEXT(kvt__call_ids, &session->calls.ids, call);
                if (call->is_on_wire)
                        hang_up(session, call);
                else if (call->pages)
                        kvt__page_call_hang_up(session, call);
        }
}

void kvt__calls_cancel(struct kvt_session *session)
{
        uint64_t last = session->calls.last_id;
        struct kvt__call *call;

        /* Stopping a call adds records of its own, behind the last. */
        RB_FOREACH(call, kvt__call_ids, &session->calls.ids) {
                if (call->id > last)
                        break;
                if (call->is_done || call->is_internal)
                        continue;
                call->is_reported = false;
                kvt__call_abandon(session, call, KVT_CANCELLED);
                if (kvt__kind_grants(call->kind) || call->kind == WIRE_PREFETCH)
                        kvt__stop(session, call);
        }
}

bool kvt__calls_on_wire(struct kvt_session *session)
{
        struct kvt__call *call;

        RB_FOREACH(call, kvt__call_ids, &session->calls.ids)
                if (call->is_on_wire)
                        return true;
        return false;
}

void kvt__calls_end_cancels(struct kvt_session *session, uint64_t target)
{
        struct kvt__call *call;

        RB_FOREACH(call, kvt__call_ids, &session->calls.ids)
                if (call->kind == WIRE_CANCEL && call->target == target && !call->is_done)
                        kvt__call_finish(session, call);
}

void kvt__calls_free(struct kvt_session *session)
{
        struct kvt__call *call;

        while ((call = RB_MIN(kvt__call_ids, &session->calls.ids)))
                kvt__call_free(session, call);
}
