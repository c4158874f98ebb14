// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "client/page_call.h"
#include "client/session.h"
#include "client/submit.h"

bool kvt__page_call_stores(const struct kvt__call *call)
{
        return call->kind == KVT__STORE_PAGES;
}

void kvt__page_work_free(struct kvt__page_work *work)
{
        if (!work)
                return;
        kvt__page_map_unref(work->map);
        free(work->commit);
        free(work->slots);
        free(work);
}

/* ---- the end ---- */

static void let_go_of_child(struct kvt__call *call)
{
        struct kvt__call *child = call->pages->child;

        if (!child)
                return;
        child->owner = NULL;
        child->is_told = true;
        call->pages->child = NULL;
}

static void finish(struct kvt_session *session, struct kvt__call *call)
{
        kvt__call_retract(session, call);
        kvt__call_finish(session, call);
        if (call->pages->has_cancels)
                kvt__calls_end_cancels(session, call->id);
        kvt__session_settle(session);
}

/* After CANCELLED and TIMEOUT nothing of the call counts; else what failed by itself does. */
static void finish_early(struct kvt_session *session, struct kvt__call *call)
{
        enum kvt_status status = call->pages->ending;
        bool is_void = status == KVT_CANCELLED || status == KVT_TIMEOUT;

        for (uint32_t i = 0; i < call->n; i++) {
                struct kvt__item *item = &call->items[i];

                if (is_void || !item->is_final || item->status == KVT_OK)
                        item->status = status;
                item->is_final = true;
                kvt__item_changed(call, item);
        }
        call->status = status;
        finish(session, call);
}

static void unqueue_objects(struct kvt_session *session, struct kvt__call *call)
{
        struct kvt__page_work *work = call->pages;

        for (uint32_t i = 0; i < call->n && work->n_open; i++) {
                if (!work->objects[i].is_queued)
                        continue;
                kvt__copier_remove(session, &work->objects[i]);
                work->objects[i].is_queued = false;
                work->n_open--;
        }
}

static void stop_child(struct kvt_session *session, struct kvt__call *call, enum kvt_status status)
{
        struct kvt__call *child = call->pages->child;

        let_go_of_child(call);
        /* A commit that is under way ends its leases when it is answered. */
        if (!child || !kvt__kind_grants(child->kind) || child->is_done)
                return;
        /* What it still holds was never taken over: nobody else will give it back. */
        child->is_reported = false;
        kvt__call_abandon(session, child, status);
        kvt__stop(session, child);
}

void kvt__page_call_abandon(struct kvt_session *session, struct kvt__call *call,
                            enum kvt_status status)
{
        struct kvt__page_work *work = call->pages;

        if (call->is_done || work->ending != KVT_OK)
                return;
        work->ending = status;
        atomic_store_explicit(&work->stop, true, memory_order_relaxed);
        unqueue_objects(session, call);
        stop_child(session, call, status);
        if (!work->n_copying)
                finish_early(session, call);
}

bool kvt__page_call_cancel(struct kvt_session *session, struct kvt__call *call)
{
        if (!call->is_done)
                kvt__call_abandon(session, call, KVT_CANCELLED);
        call->pages->has_cancels = !call->is_done;
        return !call->is_done;
}

void kvt__page_call_hang_up(struct kvt_session *session, struct kvt__call *call)
{
        if (kvt__page_call_stores(call))
                kvt__page_call_abandon(session, call, KVT_UNAVAILABLE);
}

/* ---- forward ---- */

/* Of a set that lacks a member nothing is stored. */
static bool is_broken_set(const struct kvt__call *call)
{
        return kvt__page_call_stores(call) && call->set && call->status != KVT_OK;
}

/* Copied, or held for the set. The lease of one that does not fit its slots is given back. */
static bool is_to_commit(const struct kvt__item *item)
{
        return item->lease && (item->status == KVT_OK || item->status == KVT_ALREADY_HAVE);
}

static void commit(struct kvt_session *session, struct kvt__call *call)
{
        struct kvt__call *child = call->pages->commit;

        call->pages->commit = NULL;
        child->n_live = 0;
        for (uint32_t i = 0; i < call->n; i++) {
                struct kvt__lease *lease = call->items[i].lease;

                child->items[i].is_final = !is_to_commit(&call->items[i]);
                if (child->items[i].is_final)
                        continue;
                call->items[i].lease = NULL;
                lease->ending = true;
                child->items[i].lease = lease;
                child->items[child->n_live++].live = i;
        }
        call->pages->child = child;
        child->owner = call;
        kvt__call_insert(session, child);
        kvt__send_call(session, child, 0);
}

static bool holds_writes(const struct kvt__call *call)
{
        for (uint32_t i = 0; i < call->n; i++)
                if (call->items[i].lease && call->items[i].status == KVT_OK)
                        return true;
        return false;
}

/* Everything granted is copied: what is next? */
static void advance(struct kvt_session *session, struct kvt__call *call)
{
        struct kvt__page_work *work = call->pages;

        if (!work->is_granted || call->is_done || work->ending != KVT_OK)
                return;
        if (is_broken_set(call))
                kvt__page_call_abandon(session, call, call->status);
        else if (!work->n_open && kvt__page_call_stores(call) && work->commit && holds_writes(call))
                commit(session, call);
        else if (!work->n_open && !work->child)
                finish(session, call);
}

static void submit_to_device(struct kvt_session *session, struct kvt__page_object *object)
{
        const struct kvt__page_device *device = session->device;
        struct kvt__page_job *job = &object->job;

        kvt__page_object_begin(object, &job->list);
        job->is_store = kvt__page_call_stores(object->call);
        job->place = object->group->place;
        job->stop = &object->call->pages->stop;
        job->after = object->call->pages->after;
        job->done = object->call->pages->done;
        device->submit(device->context, job);
}

static void fail(struct kvt__call *call, struct kvt__item *item, enum kvt_status status)
{
        item->status = status;
        kvt__item_changed(call, item);
        /* The other members of a set are not stored either. */
        if (kvt__page_call_stores(call) && call->set && call->status == KVT_OK)
                call->status = status;
}

/* An item of a grant that may be copied into or from. */
static void take_lease(struct kvt_session *session, struct kvt__call *call, struct kvt__item *item,
                       struct kvt__item *from)
{
        struct kvt__page_object *object = &call->pages->objects[item - call->items];

        item->lease = from->lease;
        from->lease = NULL;
        if (item->status != KVT_OK || call->pages->ending != KVT_OK)
                return;
        if (item->lease->bytes != object->n_slots * object->group->stored_bytes) {
                fail(call, item, KVT_INVALID);
                return;
        }
        if (object->group->place != KVT__PLACE_HOST && !session->device) {
                fail(call, item, KVT_UNSUPPORTED);
                return;
        }
        call->pages->n_open++;
        if (object->group->place != KVT__PLACE_HOST) {
                submit_to_device(session, object);
                return;
        }
        object->is_queued = true;
        kvt__copier_add(session, object);
}

static void take_grants(struct kvt_session *session, struct kvt__call *call,
                        struct kvt__call *child)
{
        struct kvt__item *from;

        while ((from = kvt__call_next_changed(child))) {
                struct kvt__item *item = &call->items[from - child->items];

                /* What is on its way is not final; it comes back. */
                if (!from->is_final)
                        continue;
                item->status = from->status;
                item->generation = from->generation;
                item->bytes = from->bytes;
                item->stored_ns = from->stored_ns;
                memcpy(item->writer_boot_id, from->writer_boot_id, sizeof(item->writer_boot_id));
                item->is_final = true;
                kvt__item_changed(call, item);
                if (from->lease)
                        take_lease(session, call, item, from);
        }
}

static void take_decision(struct kvt__call *call, const struct kvt__call *child)
{
        /* A member of a set may have failed before all were granted. */
        if (call->status == KVT_OK)
                call->status = child->status;
        call->is_decided = child->is_decided;
        call->n_granted = child->n_granted;
        call->n_resident = child->n_resident;
        call->n_fitting = child->n_fitting;
        call->pages->is_granted = true;
}

static void take_commits(struct kvt__call *call, const struct kvt__call *child)
{
        for (uint32_t i = 0; i < child->n_live; i++) {
                uint32_t index = child->items[i].live;
                struct kvt__item *item = &call->items[index];

                /* What a set found stored stays so, unless the set fails. */
                if (item->status == KVT_ALREADY_HAVE && child->items[index].status == KVT_OK)
                        continue;
                item->status = child->items[index].status;
                item->generation = child->items[index].generation;
        }
}

void kvt__page_call_step(struct kvt_session *session, struct kvt__call *child)
{
        struct kvt__call *call = child->owner;
        bool is_done = child->is_done;

        /* What was taken from it is not its own to give back. */
        child->is_reported = true;
        if (kvt__kind_grants(child->kind)) {
                take_grants(session, call, child);
                if (is_done)
                        take_decision(call, child);
        } else if (is_done) {
                take_commits(call, child);
        }
        if (is_done)
                let_go_of_child(call);
        advance(session, call);
}

/* ---- copier and device ---- */

void kvt__page_object_begin(struct kvt__page_object *object, struct kvt__page_list *ret_list)
{
        struct kvt__page_work *work = object->call->pages;

        object->is_queued = false;
        work->n_copying++;
        *ret_list = (struct kvt__page_list){
                .group = object->group,
                .slots = object->slots,
                .n_slots = object->n_slots,
                .segments = object->call->items[object - work->objects].lease->segments,
        };
}

/* The lease is nobody's any more: it stays, here and with the daemon, until this process ends. */
static void lose(struct kvt_session *session, struct kvt__item *item)
{
        item->lease = NULL;
        kvt__session_lose(session, KVT__PAGE_LOST_REASON);
}

void kvt__page_object_end(struct kvt_session *session, struct kvt__page_object *object,
                          enum kvt__page_end end)
{
        struct kvt__call *call = object->call;
        struct kvt__item *item = &call->items[object - call->pages->objects];

        call->pages->n_copying--;
        call->pages->n_open--;
        if (end == KVT__PAGE_LOST)
                lose(session, item);
        if (end == KVT__PAGE_FAILED || end == KVT__PAGE_LOST)
                fail(call, item, end == KVT__PAGE_LOST ? KVT_UNAVAILABLE : KVT_IO_ERROR);
        if (call->pages->ending == KVT_OK)
                advance(session, call);
        else if (!call->pages->n_copying)
                finish_early(session, call);
}
