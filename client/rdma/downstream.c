// SPDX-License-Identifier: Apache-2.0
/* From the daemon to the library. */
#include <stdlib.h>
#include <string.h>

#include "client/rdma/bridge.h"
#include "proto/status.h"

/* ---- greeting ---- */

static void announce_buffer(struct kvt__bridge *bridge)
{
        struct wire_arena arena = {
                .arena_id = bridge->arena_id,
                .numa_node = UINT32_MAX,
                .bytes = bridge->bytes,
                .page_bytes = ROOM_UNIT,
        };

        message_header_init(&arena.header, WIRE_ARENA, 0, bridge->session, bridge->boot_id);
        arena.header.length = sizeof(arena);
        bridge_tell(bridge, &arena, sizeof(arena), bridge->arena_fd);
}

static void on_welcome(struct kvt__bridge *bridge, const struct wire_welcome *message)
{
        struct wire_welcome welcome = *message;
        struct bridge_era *era;

        if (bridge->is_welcome || welcome.table_bytes || welcome.n_arenas) {
                bridge_fail(bridge, KVT_WIRE_UNAVAILABLE,
                            "the daemon's greeting makes no sense for a remote session");
                return;
        }
        bridge->is_welcome = true;
        if (welcome.status) {
                bridge_tell(bridge, &welcome, sizeof(welcome), -1);
                return;
        }
        era = calloc(1, sizeof(*era));
        if (!era) {
                bridge_fail(bridge, KVT_WIRE_NO_MEMORY, "out of memory");
                return;
        }
        bridge->era = era->id = ++bridge->last_era;
        memcpy(era->secret, welcome.secret, sizeof(era->secret));
        LIST_INSERT_HEAD(&bridge->eras, era, link);
        bridge->session = welcome.session;
        bridge->domain = welcome.domain;
        memcpy(bridge->boot_id, welcome.boot_id, sizeof(bridge->boot_id));
        /* What was found at another run, or before a pause, is not known any more. */
        presence_table_clear(bridge->table);
        presence_table_set_state(bridge->table, PRESENCE_SERVING);
        bridge_beat(bridge);
        welcome.table_bytes = presence_table_size(bridge->table);
        welcome.n_arenas = 1;
        bridge_tell(bridge, &welcome, sizeof(welcome), presence_table_fd(bridge->table));
        announce_buffer(bridge);
}

/* ---- leases that are granted ---- */

static uint32_t status_of_room(int r)
{
        switch (r) {
        case ROOM_E_FULL:
                return KVT_WIRE_BUSY;
        case ROOM_E_TOO_LARGE:
                return KVT_WIRE_TOO_LARGE;
        default:
                return KVT_WIRE_NO_MEMORY;
        }
}

/* Leases of one RESULT, as they find room in the buffer. */
struct grants {
        struct kvt__bridge *bridge;
        struct bridge_request *request;
        struct batch *batch; /* FETCH: not full yet */
        struct batch *full[WIRE_MESSAGE_MAX / sizeof(struct wire_result_item) / BATCH_MAX + 1];
        uint32_t n_full;
};

static void add_fetch(struct grants *grants, struct room *room, const struct wire_result_item *item,
                      const uint64_t *pieces)
{
        if (grants->batch && grants->batch->n == BATCH_MAX) {
                grants->full[grants->n_full++] = grants->batch;
                grants->batch = NULL;
        }
        if (!grants->batch)
                grants->batch = batch_new(grants->bridge, grants->request, false);
        if (grants->batch)
                batch_add(grants->batch, room, item->index, item, pieces);
        else
                room_end(&grants->bridge->rooms, room);
}

/* The others of its set have their rooms. */
static void give_back_one(struct grants *grants, uint64_t lease)
{
        if (grants->request->kind == WIRE_RESERVE)
                bridge_give_back(grants->bridge, WIRE_ABORT, grants->request->set,
                                 WIRE_ABORT_MEMBERS, &lease, 1);
        else
                bridge_give_back(grants->bridge, WIRE_RELEASE, 0, 0, &lease, 1);
}

/* False: the daemon has been hung up on. */
static bool take_lease(struct grants *grants, const struct wire_result_item *item,
                       const uint64_t *pieces)
{
        struct kvt__bridge *bridge = grants->bridge;
        struct wire_result_item told = *item;
        struct wire_extent extent = {.arena_id = bridge->arena_id};
        struct room *room;
        int r = room_new(&room, &bridge->rooms, bridge->era, item->lease, item->bytes);

        if (r == ROOM_E_EXISTS) {
                bridge_fail(bridge, KVT_WIRE_UNAVAILABLE, "the daemon granted a lease twice");
                return false;
        }
        if (r) {
                give_back_one(grants, item->lease);
                told = (struct wire_result_item){.index = item->index, .status = status_of_room(r)};
                bridge_result_add(bridge, &told, NULL, NULL);
                return true;
        }
        if (grants->request->kind != WIRE_RESERVE) {
                add_fetch(grants, room, item, pieces);
                return true;
        }
        room->set = grants->request->set;
        room->turn = grants->request->turn;
        extent.offset = room->run->offset;
        extent.length = room->run->length;
        told.n_extents = 1;
        bridge_result_add(bridge, &told, &extent, pieces);
        return true;
}

static void on_grants(struct kvt__bridge *bridge, struct bridge_request *request,
                      const struct wire_header *header)
{
        struct grants grants = {.bridge = bridge, .request = request};
        const struct wire_extent *extents;
        struct message_cursor cursor;
        struct wire_result_item item;
        const uint64_t *pieces;
        bool more;

        request->is_answered = !(header->flags & WIRE_MORE);
        bridge_result_begin(bridge, request->id);
        message_cursor_init(&cursor, header);
        while (bridge->link && !message_next_result(&cursor, &item, &extents, &pieces)) {
                if (item.n_extents || (item.status == KVT_WIRE_OK && !item.bytes)) {
                        bridge_fail(bridge, KVT_WIRE_UNAVAILABLE,
                                    "the daemon sent a result that makes no sense here");
                        return;
                }
                if (item.status != KVT_WIRE_OK || !item.lease)
                        bridge_result_add(bridge, &item, NULL, pieces);
                else if (!take_lease(&grants, &item, pieces))
                        return;
        }
        more = request->n_moving || !request->is_answered;
        bridge_result_end(bridge, more);
        request->n_moving++; /* until all are begun */
        for (uint32_t i = 0; i < grants.n_full; i++)
                batch_start(grants.full[i]);
        if (grants.batch)
                batch_start(grants.batch);
        request->n_moving--;
        if (request->n_moving || !request->is_answered)
                return;
        /* All of them failed at once. */
        if (more) {
                bridge_result_begin(bridge, request->id);
                bridge_result_end(bridge, false);
        }
        bridge_request_end(bridge, request);
}

/* ---- leases that end ---- */

/* An abort of one member is that of its set. */
static void end_room(struct kvt__bridge *bridge, const struct bridge_request *request,
                     uint64_t lease)
{
        struct room *room = room_find(&bridge->rooms, bridge->era, lease);

        if (!room)
                return;
        if (room->set && request->kind == WIRE_ABORT && !request->is_members)
                rooms_end_set(&bridge->rooms, bridge->era, room->set, request->turn);
        else
                room_end(&bridge->rooms, room);
}

static void on_ends(struct kvt__bridge *bridge, struct bridge_request *request,
                    const struct wire_header *header)
{
        const struct wire_extent *extents;
        struct message_cursor cursor;
        struct wire_result_item item;
        const uint64_t *pieces;

        message_cursor_init(&cursor, header);
        while (!message_next_result(&cursor, &item, &extents, &pieces)) {
                if (item.index >= request->n)
                        continue;
                /* It stays as it was. */
                if (item.status == KVT_WIRE_INVALID || item.status == KVT_WIRE_PENDING)
                        request->goes_on = true;
                else
                        end_room(bridge, request, request->leases[item.index]);
        }
        bridge_tell(bridge, header, header->length, -1);
        if (header->flags & WIRE_MORE)
                return;
        /* Those that the commit did not name, too. */
        if (request->kind == WIRE_COMMIT && request->set && !request->goes_on)
                rooms_end_set(&bridge->rooms, bridge->era, request->set, request->turn);
        bridge_request_end(bridge, request);
}

static void on_cancelled(struct kvt__bridge *bridge, struct bridge_request *request,
                         const struct wire_header *header)
{
        struct bridge_request *target = bridge_request_find(bridge, request->target);

        /* The daemon is done with the target, but bytes of it are still on their way. */
        if (target && target->n_moving) {
                bridge_request_cancel_after(bridge, request, target);
                return;
        }
        bridge_tell(bridge, header, header->length, -1);
        bridge_request_end(bridge, request);
}

/* ---- what was found ---- */

static void end_find(struct kvt__bridge *bridge, struct bridge_request *request)
{
        struct wire_result_item item = {.status = request->failure};

        bridge_result_begin(bridge, request->id);
        if (item.status)
                bridge_result_add(bridge, &item, NULL, NULL);
        bridge_result_end(bridge, false);
        bridge_request_end(bridge, request);
}

/* A part that was not looked for, and why. */
static void on_find_refused(struct kvt__bridge *bridge, struct bridge_request *request,
                            const struct wire_header *header)
{
        const struct wire_extent *extents;
        struct message_cursor cursor;
        struct wire_result_item item;
        const uint64_t *pieces;

        message_cursor_init(&cursor, header);
        if (!message_next_result(&cursor, &item, &extents, &pieces))
                request->failure = item.status;
        if (!(header->flags & WIRE_MORE))
                end_find(bridge, request);
}

static void show(struct kvt__bridge *bridge, uint64_t fingerprint,
                 const struct wire_found_bits *bits)
{
        if (!presence_table_set(bridge->table, fingerprint, bits->present, bits->resident,
                                bits->flags))
                return;
        /* Hints of long ago make room. */
        presence_table_clear(bridge->table);
        presence_table_set(bridge->table, fingerprint, bits->present, bits->resident, bits->flags);
}

static void on_found(struct kvt__bridge *bridge, const struct wire_found *found)
{
        struct bridge_request *request = bridge_request_find(bridge, found->header.request);
        const struct wire_found_bits *bits = message_found_bits(found);
        uint64_t hash_key = presence_table_view(bridge->table)->header->hash_key;

        if (!request || request->kind != WIRE_FIND ||
            found->first + found->header.n_items > request->n) {
                bridge_fail(bridge, KVT_WIRE_UNAVAILABLE,
                            "the daemon found what was never looked for");
                return;
        }
        for (uint32_t bank = 0; bank < found->n_banks; bank++) {
                uint64_t seed = presence_seed(hash_key, bridge->domain, &bridge->layout_id, bank);

                for (uint32_t i = 0; i < found->header.n_items; i++)
                        show(bridge,
                             presence_fingerprint(seed, &request->digests[found->first + i]),
                             &bits[i * found->n_banks + bank]);
        }
        if (!(found->header.flags & WIRE_MORE))
                end_find(bridge, request);
}

/* ---- */

static void on_result(struct kvt__bridge *bridge, const struct wire_header *header)
{
        struct bridge_request *request;
        struct batch *batch;

        if (header->request & BRIDGE_OWN_REQUEST) {
                batch = batch_find(bridge, header->request);
                if (batch)
                        batch_answered(batch, header);
                return;
        }
        request = bridge_request_find(bridge, header->request);
        switch (request ? request->kind : 0) {
        case WIRE_RESERVE:
        case WIRE_ACQUIRE:
        case WIRE_ADOPT:
                on_grants(bridge, request, header);
                return;
        case WIRE_COMMIT:
        case WIRE_ABORT:
        case WIRE_RELEASE:
                on_ends(bridge, request, header);
                return;
        case WIRE_CANCEL:
                on_cancelled(bridge, request, header);
                return;
        case WIRE_FIND:
                on_find_refused(bridge, request, header);
                return;
        default:
                bridge_tell(bridge, header, header->length, -1);
        }
}

void bridge_from_daemon(struct kvt__bridge *bridge, const struct wire_header *header)
{
        if (!bridge->is_welcome && header->kind != WIRE_WELCOME && header->kind != WIRE_BYE) {
                bridge_fail(bridge, KVT_WIRE_UNAVAILABLE, "the daemon's first word is no greeting");
                return;
        }
        switch (header->kind) {
        case WIRE_WELCOME:
                on_welcome(bridge, (const void *)header);
                return;
        case WIRE_ATTACHED:
                bridge->layout_id = ((const struct wire_attached *)(const void *)header)->layout_id;
                break;
        case WIRE_LAYOUT:
                bridge->layout_id = ((const struct wire_layout *)(const void *)header)->layout_id;
                break;
        case WIRE_RESULT:
                on_result(bridge, header);
                return;
        case WIRE_FOUND:
                on_found(bridge, (const void *)header);
                return;
        case WIRE_FORGET:
                presence_table_clear(bridge->table);
                return;
        case WIRE_ARENA:
                return; /* not for us */
        default:
                break;
        }
        bridge_tell(bridge, header, header->length, -1);
}
