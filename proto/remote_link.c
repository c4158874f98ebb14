// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "proto/remote_link.h"

struct packet {
        STAILQ_ENTRY(packet) link;
        uint32_t length;
        uint32_t offset; /* what has been sent */
        uint8_t bytes[];
};

struct remote_link {
        struct rdma_connection *connection;
        struct remote_link_events events;
        void *user;
        uint32_t service; /* of our own parts; 0 until it is known */
        bool is_open;     /* the connection */
        bool is_closed;
        struct why why; /* what the peer did wrong */
        size_t queued;
        STAILQ_HEAD(, packet) packets;
        uint8_t out[REMOTE_FRAME_BYTES];
        struct remote_join in;
};

static void drop_packets(struct remote_link *link)
{
        struct packet *packet;

        while ((packet = STAILQ_FIRST(&link->packets))) {
                STAILQ_REMOVE_HEAD(&link->packets, link);
                free(packet);
        }
        link->queued = 0;
}

/* Sends what the transport takes; on_room() goes on. */
static void flush(struct remote_link *link)
{
        struct packet *packet;
        size_t room;

        /* How long the peer's frames may be is known from then on. */
        if (!link->is_open)
                return;
        room = rdma_connection_message_max(link->connection);
        if (room > sizeof(link->out))
                room = sizeof(link->out);
        while ((packet = STAILQ_FIRST(&link->packets))) {
                uint32_t offset = packet->offset;
                size_t bytes = remote_cut(link->out, room, link->service, packet->bytes,
                                          packet->length, &offset);

                /* Full, or closed: then on_closed() comes. */
                if (rdma_connection_send(link->connection, link->out, bytes))
                        return;
                link->queued -= offset - packet->offset;
                packet->offset = offset;
                if (offset < packet->length)
                        continue;
                STAILQ_REMOVE_HEAD(&link->packets, link);
                free(packet);
        }
}

/* ---- what the transport tells ---- */

static void on_open(void *user, struct rdma_connection *connection)
{
        struct remote_link *link = user;

        (void)connection;
        link->is_open = true;
        flush(link);
        if (link->events.on_open && !link->is_closed)
                link->events.on_open(link->user, link);
}

static void on_message(void *user, struct rdma_connection *connection, const void *bytes,
                       size_t length)
{
        struct remote_link *link = user;
        bool is_whole = false;

        (void)connection;
        if (link->is_closed)
                return;
        if (remote_join_add(&link->in, bytes, length, &is_whole, &link->why) ||
            (link->service && link->in.service != link->service)) {
                remote_link_close(link);
                return;
        }
        link->service = link->in.service;
        if (is_whole && link->events.on_message)
                link->events.on_message(link->user, link, link->in.bytes, link->in.length);
}

static void on_room(void *user, struct rdma_connection *connection)
{
        (void)connection;
        flush(user);
}

static void on_closed(void *user, struct rdma_connection *connection, enum rdma_end end,
                      const char *why)
{
        struct remote_link *link = user;

        (void)connection;
        link->is_closed = true;
        drop_packets(link);
        if (link->events.on_closed)
                link->events.on_closed(link->user, link, *link->why.text ? RDMA_END_PROTOCOL : end,
                                       *link->why.text ? link->why.text : why);
        free(link);
}

static const struct rdma_connection_events transport_events = {
        .on_open = on_open,
        .on_message = on_message,
        .on_room = on_room,
        .on_closed = on_closed,
};

/* ---- */

static struct remote_link *link_new(const struct remote_link_events *events, void *user)
{
        struct remote_link *link = calloc(1, sizeof(*link));

        if (!link)
                return NULL;
        link->events = *events;
        link->user = user;
        STAILQ_INIT(&link->packets);
        return link;
}

int remote_link_open(struct remote_link **ret_link, struct rdma_port *port,
                     const struct rdma_target *target, enum remote_service service,
                     const struct remote_link_events *events, void *user)
{
        struct remote_link *link = link_new(events, user);
        int r;

        if (!link)
                return err_raise(-ENOMEM);
        link->service = service;
        r = rdma_connection_open(&link->connection, port, target, &transport_events, link);
        if (r) {
                free(link);
                return r;
        }
        *ret_link = link;
        return 0;
}

struct remote_link *remote_link_accept(struct rdma_connection *connection,
                                       const struct remote_link_events *events, void *user)
{
        struct remote_link *link = link_new(events, user);

        if (!link) {
                static const struct rdma_connection_events nothing;

                rdma_connection_adopt(connection, &nothing, NULL);
                rdma_connection_close(connection);
                return NULL;
        }
        link->connection = connection;
        link->is_open = true;
        rdma_connection_adopt(connection, &transport_events, link);
        return link;
}

void remote_link_hand_over(struct remote_link *link, const struct remote_link_events *events,
                           void *user)
{
        link->events = *events;
        link->user = user;
}

uint32_t remote_link_service(const struct remote_link *link)
{
        return link->service;
}

int remote_link_send(struct remote_link *link, const void *bytes, uint32_t length)
{
        struct packet *packet;

        if (link->is_closed)
                return RDMA_E_CLOSED;
        if (!length || length > WIRE_MESSAGE_MAX)
                return RDMA_E_INVALID;
        packet = malloc(sizeof(*packet) + length);
        if (!packet)
                return err_raise(-ENOMEM);
        packet->length = length;
        packet->offset = 0;
        memcpy(packet->bytes, bytes, length);
        link->queued += length;
        STAILQ_INSERT_TAIL(&link->packets, packet, link);
        /* Behind others it waits for on_room(). */
        if (STAILQ_FIRST(&link->packets) == packet)
                flush(link);
        return 0;
}

size_t remote_link_queued(const struct remote_link *link)
{
        return link->queued;
}

void remote_link_close(struct remote_link *link)
{
        if (link->is_closed)
                return;
        link->is_closed = true;
        rdma_connection_close(link->connection);
}

struct rdma_connection *remote_link_connection(const struct remote_link *link)
{
        return link->connection;
}
