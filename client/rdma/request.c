// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "client/rdma/bridge.h"
#include "proto/status.h"

static int compare(const struct bridge_request *a, const struct bridge_request *b)
{
        return a->id < b->id ? -1 : a->id > b->id;
}

RB_GENERATE_INTERNAL(bridge_requests, bridge_request, link, compare, __attribute__((unused)) static)

struct bridge_request *bridge_request_find(struct kvt__bridge *bridge, uint64_t id)
{
        struct bridge_request wanted = {.id = id};

        return RB_FIND(bridge_requests, &bridge->requests, &wanted);
}

static bool names_leases(uint16_t kind)
{
        return kind == WIRE_COMMIT || kind == WIRE_ABORT || kind == WIRE_RELEASE;
}

static void request_free(struct bridge_request *request)
{
        struct bridge_request *cancel;

        while ((cancel = STAILQ_FIRST(&request->cancels))) {
                STAILQ_REMOVE_HEAD(&request->cancels, cancel_link);
                free(cancel);
        }
        kvt__outbox_clear(&request->held);
        free(request->leases);
        free(request->digests);
        free(request);
}

struct bridge_request *bridge_request_get(struct kvt__bridge *bridge, uint64_t id, uint16_t kind,
                                          uint32_t n)
{
        struct bridge_request *request = bridge_request_find(bridge, id);

        if (request)
                return request;
        request = calloc(1, sizeof(*request));
        if (request) {
                STAILQ_INIT(&request->held.packets);
                STAILQ_INIT(&request->cancels);
                if (names_leases(kind))
                        request->leases = calloc(n, sizeof(*request->leases));
                else if (kind == WIRE_FIND)
                        request->digests = calloc(n, sizeof(*request->digests));
        }
        if (!request || (names_leases(kind) && !request->leases) ||
            (kind == WIRE_FIND && !request->digests)) {
                if (request)
                        request_free(request);
                bridge_fail(bridge, KVT_WIRE_NO_MEMORY, "out of memory");
                return NULL;
        }
        request->id = id;
        request->kind = kind;
        request->n = n;
        RB_INSERT(bridge_requests, &bridge->requests, request);
        return request;
}

void bridge_request_cancel_after(struct kvt__bridge *bridge, struct bridge_request *cancel,
                                 struct bridge_request *target)
{
        RB_REMOVE(bridge_requests, &bridge->requests, cancel);
        STAILQ_INSERT_TAIL(&target->cancels, cancel, cancel_link);
}

void bridge_request_end(struct kvt__bridge *bridge, struct bridge_request *request)
{
        const struct bridge_request *cancel;

        RB_REMOVE(bridge_requests, &bridge->requests, request);
        STAILQ_FOREACH(cancel, &request->cancels, cancel_link)
        {
                bridge_result_begin(bridge, cancel->id);
                bridge_result_add(bridge, &(struct wire_result_item){.status = KVT_WIRE_OK}, NULL,
                                  NULL);
                bridge_result_end(bridge, false);
        }
        request_free(request);
}

void bridge_requests_free(struct kvt__bridge *bridge)
{
        struct bridge_request *request;

        while ((request = RB_ROOT(&bridge->requests))) {
                RB_REMOVE(bridge_requests, &bridge->requests, request);
                request_free(request);
        }
}

void bridge_result_begin(struct kvt__bridge *bridge, uint64_t request)
{
        struct wire_header header;

        message_header_init(&header, WIRE_RESULT, request, bridge->session, bridge->boot_id);
        message_builder_init(&bridge->builder, bridge->result, &header, sizeof(header));
}

void bridge_result_add(struct kvt__bridge *bridge, const struct wire_result_item *item,
                       const struct wire_extent *extents, const uint64_t *pieces)
{
        struct message_builder *builder = &bridge->builder;
        const struct wire_header *header = (const void *)bridge->result;

        if (!message_append_result(builder, item, extents, pieces))
                return;
        message_set_more(builder, true);
        bridge_tell(bridge, builder->buffer, builder->length, -1);
        bridge_result_begin(bridge, header->request);
        message_append_result(builder, item, extents, pieces);
}

void bridge_result_end(struct kvt__bridge *bridge, bool more)
{
        if (more && !bridge->builder.n_items)
                return;
        message_set_more(&bridge->builder, more);
        bridge_tell(bridge, bridge->builder.buffer, bridge->builder.length, -1);
}
