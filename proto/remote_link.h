// SPDX-License-Identifier: Apache-2.0
/*
 * A link: an RDMA connection that carries whole messages (proto/remote_part.h), with a queue of its
 * own in front of the transport's. Sessions, on both sides, and peers stand on it.
 *
 * A link lives as long as its connection: on_closed() comes once, last, and frees it. Thread:
 * the owner of the port (base/rdma.h); every function may be called in every callback.
 */
#pragma once

#include "base/rdma_connection.h"
#include "proto/remote_part.h"

struct remote_link;

struct remote_link_events {
        /* Of a link that was opened from here. May be NULL. */
        void (*on_open)(void *user, struct remote_link *link);
        /* @packet is 8-byte aligned and lent for the call. */
        void (*on_message)(void *user, struct remote_link *link, const void *packet,
                           size_t length);
        /* The link is gone when it returns. May be NULL. */
        void (*on_closed)(void *user, struct remote_link *link, enum rdma_end end,
                          const char *why);
};

/* 0, RDMA_E_FULL or negative; all else is told by on_closed(). @events is copied. */
int remote_link_open(struct remote_link **ret_link, struct rdma_port *port,
                     const struct rdma_target *target, enum remote_service service,
                     const struct remote_link_events *events, void *user);

/*
 * Within a listener's on_connection(): makes a link of it. NULL: out of memory, and the
 * connection is being closed.
 */
struct remote_link *remote_link_accept(struct rdma_connection *connection,
                                       const struct remote_link_events *events, void *user);

/* From now on, also for the message whose on_message() calls it: that one is not repeated. */
void remote_link_hand_over(struct remote_link *link, const struct remote_link_events *events,
                           void *user);

/* Of the first message that came; 0 before. */
uint32_t remote_link_service(const struct remote_link *link);

/* Copies. 0, RDMA_E_CLOSED, RDMA_E_INVALID (too long), or -ENOMEM. */
int remote_link_send(struct remote_link *link, const void *packet, uint32_t length);

/* Bytes that wait for the peer to read. */
size_t remote_link_queued(const struct remote_link *link);

/* on_closed() follows. Twice is once. */
void remote_link_close(struct remote_link *link);

struct rdma_connection *remote_link_connection(const struct remote_link *link);
