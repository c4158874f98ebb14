// SPDX-License-Identifier: Apache-2.0
/* From the library to the daemon. */
#include <stdlib.h>
#include <string.h>

#include "client/rdma/bridge.h"
#include "proto/status.h"

/* ---- COMMIT: first the bytes ---- */

static void hold(struct kvt__bridge *bridge, struct bridge_request *request, const void *packet,
                 size_t length)
{
        if (kvt__outbox_queue(&request->held, packet, length))
                bridge_fail(bridge, KVT_WIRE_NO_MEMORY, "out of memory");
}

static void send_held(struct kvt__bridge *bridge, struct bridge_request *request)
{
        struct kvt__packet *packet;

        request->is_held = false;
        request->turn = ++bridge->turn;
        STAILQ_FOREACH(packet, &request->held.packets, link)
                bridge_say(bridge, packet->bytes, packet->length);
        kvt__outbox_clear(&request->held);
}

/* The daemon will not hear of those behind what is held: they are answered after it. */
static void keep_held_cancels(struct kvt__bridge *bridge, struct bridge_request *request)
{
        const struct kvt__packet *packet;

        STAILQ_FOREACH(packet, &request->held.packets, link)
        {
                const struct wire_header *header = (const void *)packet->bytes;
                struct bridge_request *cancel = NULL;

                if (header->kind == WIRE_CANCEL)
                        cancel = bridge_request_find(bridge, header->request);
                if (cancel)
                        bridge_request_cancel_after(bridge, cancel, request);
        }
}

/* The daemon has not been told of some bytes: nothing of it can be committed. */
static void fail_commit(struct kvt__bridge *bridge, struct bridge_request *request)
{
        bridge_give_back(bridge, WIRE_ABORT, request->set, 0, request->leases, request->n);
        bridge_result_begin(bridge, request->id);
        for (uint32_t i = 0; i < request->n; i++) {
                struct room *room = room_find(&bridge->rooms, bridge->era, request->leases[i]);
                struct wire_result_item item = {.index = i, .status = request->failure};

                if (room)
                        room_end(&bridge->rooms, room);
                bridge_result_add(bridge, &item, NULL, NULL);
        }
        if (request->set)
                rooms_end_set(&bridge->rooms, bridge->era, request->set, ++bridge->turn);
        bridge_result_end(bridge, false);
        keep_held_cancels(bridge, request);
        bridge_request_end(bridge, request);
}

void bridge_commit_go_on(struct kvt__bridge *bridge, struct bridge_request *request)
{
        if (request->failure)
                fail_commit(bridge, request);
        else
                send_held(bridge, request);
}

static void put_bytes(struct kvt__bridge *bridge, struct bridge_request *request)
{
        struct batch *batch = NULL;

        request->n_moving++; /* until all are begun */
        for (uint32_t i = 0; i < request->n; i++) {
                struct room *room = room_find(&bridge->rooms, bridge->era, request->leases[i]);

                /* None: a member that was stored already, or a lease that the daemon judges. */
                if (!room || room->is_lent)
                        continue;
                if (batch && batch->n == BATCH_MAX) {
                        batch_start(batch);
                        batch = NULL;
                }
                if (!batch)
                        batch = batch_new(bridge, request, true);
                if (!batch)
                        return;
                batch_add(batch, room, i, NULL, NULL);
        }
        if (batch)
                batch_start(batch);
        if (!--request->n_moving)
                bridge_commit_go_on(bridge, request);
}

static void on_commit(struct kvt__bridge *bridge, const struct wire_batch *message)
{
        const struct wire_header *header = &message->header;
        struct bridge_request *request =
                bridge_request_get(bridge, header->request, WIRE_COMMIT, message->total);
        uint32_t index = message->first;
        struct wire_commit_item item;
        struct message_cursor cursor;
        const uint64_t *pieces;

        if (!request)
                return;
        request->is_held = true;
        request->set = message->set;
        message_cursor_init(&cursor, header);
        while (!message_next_commit(&cursor, &item, &pieces) && index < request->n)
                request->leases[index++] = item.lease;
        hold(bridge, request, header, header->length);
        if (!(header->flags & WIRE_MORE) && bridge->link)
                put_bytes(bridge, request);
}

/* ---- others ---- */

static void on_leases(struct kvt__bridge *bridge, const struct wire_batch *message)
{
        struct bridge_request *request = bridge_request_get(bridge, message->header.request,
                                                            message->header.kind, message->total);
        uint32_t index = message->first;
        struct message_cursor cursor;
        uint64_t lease;

        if (!request)
                return;
        request->is_members =
                message->header.kind == WIRE_ABORT && message->flags & WIRE_ABORT_MEMBERS;
        message_cursor_init(&cursor, message);
        while (!message_next_lease(&cursor, &lease) && index < request->n)
                request->leases[index++] = lease;
        request->turn = ++bridge->turn;
        bridge_forward(bridge, &message->header);
}

static void on_find(struct kvt__bridge *bridge, const struct wire_batch *message)
{
        struct bridge_request *request =
                bridge_request_get(bridge, message->header.request, WIRE_FIND, message->total);
        uint32_t n = message->header.n_items;

        if (!request)
                return;
        if (message->first + n <= request->n)
                memcpy(request->digests + message->first, message_find_digests(message),
                       n * sizeof(struct digest));
        bridge_forward(bridge, &message->header);
}

static void on_cancel(struct kvt__bridge *bridge, const struct wire_cancel *message)
{
        struct bridge_request *target = bridge_request_find(bridge, message->target);
        struct bridge_request *request;

        request = bridge_request_get(bridge, message->header.request, WIRE_CANCEL, 1);
        if (!request)
                return;
        request->target = message->target;
        /* The daemon has not heard of it yet: what cannot be taken back is answered first. */
        if (target && target->is_held)
                hold(bridge, target, message, message->header.length);
        else
                bridge_forward(bridge, &message->header);
}

static void on_copies_ended(struct kvt__bridge *bridge, const struct wire_copies_ended *message)
{
        struct bridge_era *era;

        LIST_FOREACH(era, &bridge->eras, link)
                if (!memcmp(era->secret, message->secret, sizeof(era->secret)))
                        break;
        if (!era || era->id == bridge->era) {
                bridge_forward(bridge, &message->header);
                return;
        }
        rooms_end_era(&bridge->rooms, era->id);
        LIST_REMOVE(era, link);
        free(era);
        bridge_result_begin(bridge, message->header.request);
        bridge_result_add(bridge, &(struct wire_result_item){.status = KVT_WIRE_OK}, NULL, NULL);
        bridge_result_end(bridge, false);
}

/* Every room is in one piece; how the bytes lie at the daemon is nobody's business here. */
static void drop_contiguous(struct kvt__bridge *bridge)
{
        struct wire_batch *batch = (void *)bridge->packet_in;
        struct wire_reserve_item *items = (void *)(batch + 1);

        for (uint32_t i = 0; i < batch->header.n_items; i++)
                items[i].flags &= ~WIRE_RESERVE_CONTIGUOUS;
}

void bridge_from_library(struct kvt__bridge *bridge)
{
        const struct wire_header *header = (const void *)bridge->packet_in;
        const struct wire_batch *batch = (const void *)header;

        switch (header->kind) {
        case WIRE_RESERVE:
        case WIRE_ACQUIRE:
        case WIRE_ADOPT: {
                struct bridge_request *request =
                        bridge_request_get(bridge, header->request, header->kind, batch->total);

                if (!request)
                        return;
                request->set = batch->set;
                if (!request->turn)
                        request->turn = ++bridge->turn;
                if (header->kind == WIRE_RESERVE)
                        drop_contiguous(bridge);
                bridge_forward(bridge, header);
                return;
        }
        case WIRE_COMMIT:
                on_commit(bridge, batch);
                return;
        case WIRE_ABORT:
        case WIRE_RELEASE:
                on_leases(bridge, batch);
                return;
        case WIRE_FIND:
                on_find(bridge, batch);
                return;
        case WIRE_CANCEL:
                on_cancel(bridge, (const void *)header);
                return;
        case WIRE_COPIES_ENDED:
                on_copies_ended(bridge, (const void *)header);
                return;
        default:
                bridge_forward(bridge, header);
        }
}
