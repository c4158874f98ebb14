// SPDX-License-Identifier: Apache-2.0
/*
 * A batch: grant -> PUT or FETCH -> the daemon's answer -> the grant is taken back -> the rooms
 * are this process's alone again, and only then anybody is told. Whatever goes wrong ends in the
 * last step, too: the objects have a status other than OK.
 */
#include <stdlib.h>
#include <string.h>

#include "client/rdma/bridge.h"
#include "proto/status.h"

#define GRANT_NS UINT64_C(10000000000)

struct batch *batch_new(struct kvt__bridge *bridge, struct bridge_request *request, bool is_put)
{
        struct batch *batch = calloc(1, sizeof(*batch));

        if (!batch) {
                bridge_fail(bridge, KVT_WIRE_NO_MEMORY, "out of memory");
                return NULL;
        }
        batch->bridge = bridge;
        batch->request = request;
        batch->is_put = is_put;
        batch->id = ++bridge->last_own | BRIDGE_OWN_REQUEST;
        request->n_moving++;
        LIST_INSERT_HEAD(&bridge->batches, batch, link);
        return batch;
}

void batch_add(struct batch *batch, struct room *room, uint32_t index,
               const struct wire_result_item *item, const uint64_t *pieces)
{
        uint8_t *address = batch->bridge->base + room->run->offset;
        struct rdma_extent *last = batch->n_extents ? &batch->extents[batch->n_extents - 1] : NULL;
        struct batch_member *member = &batch->members[batch->n];

        *member = (struct batch_member){
                .room = room,
                .lease = room->lease,
                .index = index,
                .status = KVT_WIRE_UNAVAILABLE, /* until the daemon says more */
        };
        if (item)
                member->item = *item;
        if (item && item->n_pieces) {
                member->pieces = malloc(item->n_pieces * sizeof(*pieces));
                if (member->pieces)
                        memcpy(member->pieces, pieces, item->n_pieces * sizeof(*pieces));
                else
                        member->item.n_pieces = 0;
        }
        room->is_lent = true;
        /* A neighbour in the buffer goes with the one before. */
        if (last && (uint8_t *)last->address + last->length == address) {
                last->length += room->run->length;
        } else {
                batch->extents[batch->n_extents++] = (struct rdma_extent){
                        .region = batch->bridge->region,
                        .address = address,
                        .length = room->run->length,
                };
        }
        batch->extent_of[batch->n++] = batch->n_extents - 1;
}

struct batch *batch_find(struct kvt__bridge *bridge, uint64_t id)
{
        struct batch *batch;

        LIST_FOREACH(batch, &bridge->batches, link)
                if (batch->id == id)
                        return batch;
        return NULL;
}

/* ---- leases that are not wanted ---- */

void bridge_give_back(struct kvt__bridge *bridge, uint16_t kind, uint64_t set, uint32_t flags,
                      const uint64_t *leases, uint32_t n)
{
        for (uint32_t first = 0, end; first < n; first = end) {
                struct wire_batch fixed = {.set = set, .flags = flags};
                struct message_builder builder;

                end = n - first > BATCH_MAX ? first + BATCH_MAX : n;
                fixed.total = end - first;
                message_header_init(&fixed.header, kind, ++bridge->last_own | BRIDGE_OWN_REQUEST,
                                    bridge->session, bridge->boot_id);
                message_builder_init(&builder, bridge->own, &fixed, sizeof(fixed));
                message_append(&builder, leases + first, (end - first) * sizeof(*leases),
                               end - first);
                bridge_say(bridge, builder.buffer, builder.length);
        }
}

/* ---- the end ---- */

static void batch_free(struct batch *batch)
{
        LIST_REMOVE(batch, link);
        for (uint32_t i = 0; i < batch->n; i++)
                free(batch->members[i].pieces);
        free(batch);
}

/* The library learns what has come; what has not goes back to the daemon. */
static void report_fetched(struct batch *batch)
{
        struct kvt__bridge *bridge = batch->bridge;
        struct bridge_request *request = batch->request;
        uint64_t lost[BATCH_MAX];
        uint32_t n_lost = 0;

        bridge_result_begin(bridge, request->id);
        for (uint32_t i = 0; i < batch->n; i++) {
                struct batch_member *member = &batch->members[i];
                struct wire_extent extent = {
                        .arena_id = bridge->arena_id,
                        .offset = member->room->run->offset,
                        .length = member->room->run->length,
                };

                if (member->status == KVT_WIRE_OK) {
                        member->item.n_extents = 1;
                        room_take_back(&bridge->rooms, member->room);
                } else {
                        member->item = (struct wire_result_item){
                                .index = member->index,
                                .status = member->status,
                        };
                        lost[n_lost++] = member->lease;
                        room_end(&bridge->rooms, member->room);
                        room_take_back(&bridge->rooms, member->room);
                }
                bridge_result_add(bridge, &member->item, &extent, member->pieces);
        }
        if (n_lost)
                bridge_give_back(bridge, WIRE_RELEASE, 0, 0, lost, n_lost);
        bridge_result_end(bridge, request->n_moving || !request->is_answered);
        if (!request->n_moving && request->is_answered)
                bridge_request_end(bridge, request);
}

static void report_put(struct batch *batch)
{
        struct bridge_request *request = batch->request;

        for (uint32_t i = 0; i < batch->n; i++) {
                if (!batch->is_told)
                        request->failure = batch->members[i].status;
                room_take_back(&batch->bridge->rooms, batch->members[i].room);
        }
        if (!request->n_moving)
                bridge_commit_go_on(batch->bridge, request);
}

static void batch_end(struct batch *batch)
{
        batch->request->n_moving--;
        if (batch->is_put)
                report_put(batch);
        else
                report_fetched(batch);
        batch_free(batch);
}

void batches_drop(struct kvt__bridge *bridge)
{
        struct batch *batch;

        while ((batch = LIST_FIRST(&bridge->batches))) {
                for (uint32_t i = 0; i < batch->n; i++) {
                        if (!batch->is_put)
                                room_end(&bridge->rooms, batch->members[i].room);
                        room_take_back(&bridge->rooms, batch->members[i].room);
                }
                batch_free(batch);
        }
}

static void set_status(struct batch *batch, uint32_t status)
{
        for (uint32_t i = 0; i < batch->n; i++)
                batch->members[i].status = status;
}

/* ---- the way there ---- */

static uint32_t status_of(enum rdma_result result)
{
        switch (result) {
        case RDMA_RESULT_TIMEOUT:
                return KVT_WIRE_TIMEOUT;
        case RDMA_RESULT_UNSUPPORTED:
                return KVT_WIRE_UNSUPPORTED;
        case RDMA_RESULT_FULL:
                return KVT_WIRE_BUSY;
        default:
                return KVT_WIRE_UNAVAILABLE;
        }
}

/* At most BATCH_MAX items: one message. */
static void tell_daemon(struct batch *batch, const struct rdma_place *places)
{
        struct kvt__bridge *bridge = batch->bridge;
        struct wire_batch fixed = {.total = batch->n};
        struct message_builder builder;

        message_header_init(&fixed.header, batch->is_put ? WIRE_PUT : WIRE_FETCH, batch->id,
                            bridge->session, bridge->boot_id);
        message_builder_init(&builder, bridge->own, &fixed, sizeof(fixed));
        for (uint32_t i = 0; i < batch->n; i++) {
                const struct batch_member *member = &batch->members[i];
                uint32_t extent = batch->extent_of[i];
                uint64_t offset = (uint64_t)(bridge->base + member->room->run->offset -
                                             (uint8_t *)batch->extents[extent].address);
                struct wire_move_item item = {
                        .lease = member->lease,
                        .address = places[extent].address + offset,
                        .bytes = member->room->bytes,
                        .key = places[extent].key,
                };

                message_append(&builder, &item, sizeof(item), 1);
        }
        batch->is_told = true;
        bridge_say(bridge, builder.buffer, builder.length);
}

static void on_granted(void *user, struct rdma_grant *grant, enum rdma_result result,
                       const struct rdma_place *places)
{
        struct batch *batch = user;

        (void)grant;
        if (result)
                set_status(batch, status_of(result)); /* on_reusable() follows */
        else if (batch->bridge->link)
                tell_daemon(batch, places);
}

static void on_reusable(void *user, struct rdma_grant *grant)
{
        struct batch *batch = user;

        (void)grant;
        batch->grant = NULL;
        batch_end(batch);
}

void batch_start(struct batch *batch)
{
        struct rdma_grant_options options = {
                .extents = batch->extents,
                .n_extents = batch->n_extents,
                .is_writable = !batch->is_put,
                .timeout_ns = GRANT_NS,
                .on_granted = on_granted,
                .on_reusable = on_reusable,
                .user = batch,
        };
        int r = batch->bridge->link
                        ? rdma_grant_new(&batch->grant, remote_link_connection(batch->bridge->link),
                                         &options)
                        : RDMA_E_CLOSED;

        if (!r)
                return;
        set_status(batch, r == RDMA_E_FULL ? KVT_WIRE_BUSY
                          : r < 0          ? KVT_WIRE_NO_MEMORY
                                           : KVT_WIRE_UNAVAILABLE);
        batch_end(batch);
}

void batch_answered(struct batch *batch, const struct wire_header *header)
{
        const struct wire_extent *extents;
        struct message_cursor cursor;
        struct wire_result_item item;
        const uint64_t *pieces;

        message_cursor_init(&cursor, header);
        while (!message_next_result(&cursor, &item, &extents, &pieces)) {
                if (item.index >= batch->n) {
                        bridge_fail(batch->bridge, KVT_WIRE_UNAVAILABLE,
                                    "the daemon answered for an object that was never named");
                        return;
                }
                batch->members[item.index].status = item.status;
        }
        if (!(header->flags & WIRE_MORE) && batch->grant)
                rdma_grant_release(batch->grant);
}
