// SPDX-License-Identifier: Apache-2.0
/*
 * What the daemon answers: decisions and results, into the records of their calls. Each
 * message passed message_check(); here it is held against the call it belongs to. What
 * does not fit breaks the connection: a daemon that is confused is not believed.
 */
#include <stdlib.h>
#include <string.h>

#include "client/page_call.h"
#include "client/session.h"
#include "proto/message.h"

/* The item that a RESULT speaks of, or NULL when the call has no such open item. */
static struct kvt__item *open_item(struct kvt__call *call, uint32_t index)
{
        struct kvt__item *item;

        if (index >= call->n_live || index >= call->n)
                return NULL;
        item = &call->items[call->items[index].live];
        return item->is_final && !call->is_done ? NULL : item;
}

static bool take_grant(struct kvt_session *session, struct kvt__call *call, struct kvt__item *item,
                       const struct wire_result_item *from, const struct wire_extent *extents,
                       const uint64_t *pieces)
{
        int r;

        if (call->is_done) {
                kvt__give_back(session, call->kind, 0, &from->lease, 1);
                return true;
        }
        r = kvt__lease_new(&item->lease, &session->leases, &session->arenas, session->era, from,
                           extents, pieces);
        if (r == KVT__LEASE_E_OUTSIDE) {
                kvt__session_break(session, "the daemon granted bytes outside its arenas");
                return false;
        }
        if (r) {
                kvt__give_back(session, call->kind, 0, &from->lease, 1);
                item->status = KVT_NO_MEMORY;
                return true;
        }
        item->lease->writes = call->kind == WIRE_RESERVE;
        if (call->set)
                kvt__lease_join(&session->leases, item->lease, call->set);
        return true;
}

/* Is what a granting call was answered possible at all? */
static bool is_plausible(const struct kvt__call *call, const struct wire_result_item *from)
{
        if (from->status == KVT_OK)
                return from->lease && from->n_extents && from->bytes &&
                       (call->kind == WIRE_RESERVE || call->is_decided);
        if (from->status == KVT_PENDING)
                return call->kind != WIRE_RESERVE;
        return !from->n_extents;
}

static bool take_granting(struct kvt_session *session, struct kvt__call *call,
                          struct kvt__item *item, const struct wire_result_item *from,
                          const struct wire_extent *extents, const uint64_t *pieces)
{
        if (!is_plausible(call, from)) {
                kvt__session_break(session, "the daemon sent an impossible result: %s",
                                   kvt_status_name(from->status));
                return false;
        }
        if (!call->is_done) {
                item->status = from->status;
                item->generation = from->generation;
                item->bytes = from->bytes;
                item->stored_ns = from->stored_ns;
                memcpy(item->writer_boot_id, from->writer_boot_id, sizeof(item->writer_boot_id));
                item->is_final = from->status != KVT_PENDING;
                kvt__item_changed(call, item);
        }
        /* What failed holds no lease; what is on its way is leased to us when it arrives. */
        if (!from->lease || (from->status != KVT_OK && from->status != KVT_ALREADY_HAVE))
                return true;
        return take_grant(session, call, item, from, extents, pieces);
}

/* Nothing has changed: it is the caller's as before, or nobody's who was told of an end. */
static void keep_lease(struct kvt_session *session, struct kvt__call *call, struct kvt__item *item)
{
        if (call->is_done || call->is_told || call->owner) {
                kvt__give_back(session, call->kind == WIRE_RELEASE ? WIRE_ACQUIRE : WIRE_RESERVE,
                               call->set, &item->lease->wire, 1);
                kvt__lease_end(&session->leases, item->lease);
                return;
        }
        item->lease->ending = false;
        item->lease = NULL;
}

static bool take_ending(struct kvt_session *session, struct kvt__call *call, struct kvt__item *item,
                        const struct wire_result_item *from)
{
        if (from->status == KVT_PENDING || !item->lease || !item->lease->era) {
                kvt__session_break(session, "the daemon ended a lease twice");
                return false;
        }
        if (from->status == KVT_INVALID)
                keep_lease(session, call, item);
        else
                kvt__lease_end(&session->leases, item->lease);
        if (call->is_done)
                return true;
        item->status = call->is_doomed ? (uint32_t)KVT_GONE : from->status;
        item->generation = from->generation;
        item->is_final = true;
        kvt__item_changed(call, item);
        return true;
}

/* What has become of an object that nobody holds. */
static bool take_told(struct kvt_session *session, struct kvt__call *call, struct kvt__item *item,
                      const struct wire_result_item *from)
{
        if (from->status == KVT_PENDING) {
                kvt__session_break(session, "the daemon sent an impossible result: PENDING");
                return false;
        }
        if (call->is_done)
                return true;
        item->status = from->status;
        item->is_final = true;
        kvt__item_changed(call, item);
        return true;
}

static bool take_marked(struct kvt_session *session, struct kvt__call *call, struct kvt__item *item,
                        const struct wire_result_item *from)
{
        size_t index = (size_t)(item - call->items);

        if (!take_told(session, call, item, from))
                return false;
        if (call->mark == WIRE_MARK_PIN && from->status == KVT_OK)
                kvt__pins_keep(&session->pins, &call->pins[index]);
        else if (call->mark == WIRE_MARK_PIN && call->is_internal)
                kvt__pins_lose(&session->pins, &call->pins[index]->digest);
        else if (call->mark == WIRE_MARK_UNPIN)
                kvt__pins_drop(&session->pins, &call->pins[index]->digest);
        return true;
}

/* One result, by what kind of call it answers. */
static bool take_result(struct kvt_session *session, struct kvt__call *call, struct kvt__item *item,
                        const struct wire_result_item *from, const struct wire_extent *extents,
                        const uint64_t *pieces)
{
        if (kvt__kind_grants(call->kind))
                return take_granting(session, call, item, from, extents, pieces);
        if (call->kind == WIRE_MARK)
                return take_marked(session, call, item, from);
        if (call->kind == WIRE_PREFETCH)
                return take_told(session, call, item, from);
        return take_ending(session, call, item, from);
}

static bool take_items(struct kvt_session *session, struct kvt__call *call, const void *packet)
{
        struct message_cursor cursor;
        struct wire_result_item from;
        const struct wire_extent *extents;
        const uint64_t *pieces;
        bool good = true;

        message_cursor_init(&cursor, packet);
        while (good && !message_next_result(&cursor, &from, &extents, &pieces)) {
                struct kvt__item *item = open_item(call, from.index);

                if (!item) {
                        kvt__session_break(session,
                                           "the daemon sent a result for object %u of %s "
                                           "twice, or for none",
                                           from.index, message_kind_name(call->kind));
                        return false;
                }
                good = take_result(session, call, item, &from, extents, pieces);
        }
        return good;
}

/* The decision stands, and what has not been mentioned yet is on its way. Once for a call. */
static void spread_decision(struct kvt__call *call)
{
        for (uint32_t i = 0; i < call->n && !call->is_spread; i++) {
                struct kvt__item *item = &call->items[i];

                if (item->is_final || item->status == KVT_PENDING)
                        continue;
                item->status = i < call->n_granted ? KVT_PENDING : KVT_MISS;
                kvt__item_changed(call, item);
        }
        call->is_spread = true;
}

/* A daemon that does not know the kind of a request does not know what it names either. */
static bool is_unknown_kind(const struct kvt__call *call)
{
        return call->n && call->items[0].is_final && call->items[0].status == KVT_UNSUPPORTED;
}

/* What the last answer left open has the decision's status, or is missing. */
static bool close_items(struct kvt_session *session, struct kvt__call *call)
{
        bool is_unknown = call->kind == WIRE_PREFETCH && is_unknown_kind(call);

        for (uint32_t i = 0; i < call->n; i++) {
                struct kvt__item *item = &call->items[i];

                if (item->is_final)
                        continue;
                if (!is_unknown && (!kvt__kind_grants(call->kind) || call->kind == WIRE_RESERVE)) {
                        kvt__session_break(session, "the daemon left object %u of %s unanswered", i,
                                           message_kind_name(call->kind));
                        return false;
                }
                item->status = is_unknown               ? KVT_UNSUPPORTED
                               : call->status != KVT_OK ? call->status
                                                        : KVT_MISS;
                item->is_final = true;
                kvt__item_changed(call, item);
        }
        return true;
}

/* Did the call's answer leave its set without an end? */
static bool set_goes_on(const struct kvt_session *session, const struct kvt__call *call)
{
        if (call->kind == WIRE_RESERVE)
                return kvt__set_writes(&session->leases, session->era, call->set);
        if (call->kind != WIRE_COMMIT)
                return call->kind != WIRE_ABORT;
        for (uint32_t i = 0; i < call->n; i++)
                if (call->items[i].status == KVT_INVALID)
                        return true;
        return false;
}

static void last_result(struct kvt_session *session, struct kvt__call *call)
{
        if (call->set && !set_goes_on(session, call))
                kvt__set_end(&session->leases, session->era, call->set);
        if (!call->is_done && !close_items(session, call))
                return;
        if (!call->is_done)
                kvt__call_finish(session, call);
        kvt__call_answered(session, call);
}

/*
 * The daemon has answered a cancel, so it has answered the target before: what is still
 * open of it is not coming.
 */
static void cancel_answered(struct kvt_session *session, struct kvt__call *call)
{
        struct kvt__call *target = kvt__call_find(session, call->target);

        if (target && target->is_on_wire) {
                if (!target->is_done)
                        kvt__call_abandon(session, target, KVT_CANCELLED);
                kvt__call_answered(session, target);
        }
        if (!call->is_done)
                kvt__call_finish(session, call);
        kvt__call_answered(session, call);
}

/* What was found is in the presence table; an item says why nothing was looked for. */
static void take_found(struct kvt__call *call, const struct wire_header *header)
{
        const struct wire_extent *extents;
        struct message_cursor cursor;
        struct wire_result_item item;
        const uint64_t *pieces;

        message_cursor_init(&cursor, header);
        if (!call->is_done && !message_next_result(&cursor, &item, &extents, &pieces))
                call->status = item.status;
}

static void on_result(struct kvt_session *session, struct kvt__call *call,
                      const struct wire_header *header)
{
        bool more = header->flags & WIRE_MORE;

        if (call->kind == WIRE_CANCEL) {
                if (!more)
                        cancel_answered(session, call);
                return;
        }
        if (call->kind == WIRE_FIND) {
                take_found(call, header);
                if (!more)
                        last_result(session, call);
                return;
        }
        /* Of what the library gives back it needs to know no more than that it was answered. */
        if ((!call->is_internal || call->pins) && !take_items(session, call, header))
                return;
        if (!more) {
                last_result(session, call);
        } else if (call->is_decided && !call->is_done) {
                spread_decision(call);
                kvt__call_post(session, call);
        } else if (call->owner) {
                kvt__page_call_step(session, call);
        }
}

static void on_granted(struct kvt_session *session, struct kvt__call *call,
                       const struct wire_granted *granted)
{
        if (call->is_decided || (call->kind != WIRE_ACQUIRE && call->kind != WIRE_ADOPT) ||
            granted->n_granted > call->n || granted->n_resident > call->n) {
                kvt__session_break(session, "the daemon sent a decision that fits no call");
                return;
        }
        /* The daemon waits for objects, as it was asked to; the decision follows. */
        if (granted->status == KVT_PENDING)
                return;
        call->is_decided = true;
        if (call->is_done)
                return;
        call->status = granted->status;
        call->n_granted = granted->n_granted;
        call->n_resident = granted->n_resident;
        call->n_fitting = granted->n_fitting;
        memcpy(call->token, granted->token, sizeof(call->token));
}

static void take_bits(struct kvt_session *session, const struct kvt__call *call,
                      const struct wire_found *found)
{
        const struct wire_found_bits *bits = message_found_bits(found);
        const struct kvt__table *table = session->tables.current;

        for (uint32_t i = 0; i < found->header.n_items; i++)
                kvt__found_set(table->found, table->seeds, found->n_banks,
                               &call->digests[found->first + i], &bits[i * found->n_banks]);
}

void kvt__answer_found(struct kvt_session *session, const struct wire_header *header)
{
        const struct wire_found *found = (const void *)header;
        struct kvt__call *call = kvt__call_find(session, header->request);
        struct kvt__table *table = session->tables.current;

        if (header->kind == WIRE_FORGET) {
                if (table && table->found)
                        kvt__found_forget(table->found);
                return;
        }
        if (!table || !table->found || !call || call->kind != WIRE_FIND || !call->is_on_wire ||
            found->n_banks != table->needs.n_banks ||
            found->first + header->n_items > call->n_digests) {
                kvt__session_break(session, "the daemon found what was never looked for");
                return;
        }
        take_bits(session, call, found);
        if (!(header->flags & WIRE_MORE))
                last_result(session, call);
}

void kvt__answer_recent(struct kvt_session *session, const struct wire_recent *recent)
{
        struct wire_matches *matches = (void *)session->out_buffer;
        uint32_t n_digests;

        /* A daemon that asks and does not read gets no answer, and waits for none for long. */
        if (session->outbox.bytes > KVT__OUTBOX_BYTES_MAX)
                return;
        memset(matches, 0, sizeof(*matches));
        kvt__recent_read(&session->recent, recent->nth, matches, (struct digest *)(matches + 1));
        n_digests = matches->header.n_items;
        message_header_init(&matches->header, WIRE_MATCHES, recent->header.request,
                            session->era->session, session->era->boot_id);
        matches->header.n_items = n_digests;
        matches->header.length = (uint32_t)(sizeof(*matches) + n_digests * sizeof(struct digest));
        kvt__session_send(session, matches, matches->header.length);
}

void kvt__answer(struct kvt_session *session, const void *packet)
{
        const struct wire_header *header = packet;
        struct kvt__call *call = kvt__call_find(session, header->request);

        if (call && call->is_on_wire) {
                if (header->kind == WIRE_GRANTED)
                        on_granted(session, call, packet);
                else
                        on_result(session, call, header);
        } else if (header->kind == WIRE_GRANTED || header->n_items) {
                kvt__session_break(session, "the daemon answered a request that was never made");
        }
}
