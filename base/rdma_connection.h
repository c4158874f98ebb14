// SPDX-License-Identifier: Apache-2.0
/*
 * Listeners, connections and their messages. base/rdma.h says which thread.
 *
 * A connection is the library's; its owner may use it from on_open(), or on_connection(), until
 * on_closed() returns. on_closed() comes exactly once for each, after all that was under way
 * on it has ended; then its queue pair is destroyed, and the object goes.
 */
#pragma once

#include <sys/socket.h>

#include "base/rdma.h"
#include "base/rdma_address.h"

struct rdma_connection_events {
        /* Through the handshake; not for those that a listener brought. May be NULL. */
        void (*on_open)(void *user, struct rdma_connection *connection);
        /* @bytes are lent for the call. The peer's credit comes back when it returns. */
        void (*on_message)(void *user, struct rdma_connection *connection, const void *bytes,
                           size_t length);
        /* There is room again after RDMA_E_FULL. May be NULL. */
        void (*on_room)(void *user, struct rdma_connection *connection);
        void (*on_closed)(void *user, struct rdma_connection *connection, enum rdma_end end,
                          const char *why);
};

struct rdma_listener_options {
        struct sockaddr_storage address;    /* port 0: any */
        const struct rdma_network *allowed; /* who may connect; copied */
        size_t n_allowed;                   /* 0: nobody */
        /* A peer is through the handshake. It must call rdma_connection_adopt(). */
        void (*on_connection)(void *user, struct rdma_connection *connection);
        void *user;
};

/* 0, or negative with the reason. */
int rdma_listener_open(struct rdma_listener **ret_listener, struct rdma_port *port,
                       const struct rdma_listener_options *options, struct why *why);

/* No on_connection() comes any more. Connections go on. */
void rdma_listener_close(struct rdma_listener *listener);

uint16_t rdma_listener_port(const struct rdma_listener *listener);

struct rdma_target {
        struct sockaddr_storage address;
        struct sockaddr_storage source;     /* ss_family 0: as the routes say */
        const char *domain;                 /* whose secret to use; copied */
        uint8_t expected_id[RDMA_ID_BYTES]; /* of the run that is meant; zeros: any */
        uint64_t timeout_ns;                /* until on_open(); 0: handshake_ns */
};

/* Who knocked at a listener last and did not come in. */
struct rdma_refusal {
        uint64_t n; /* of them all, since the port was opened */
        enum rdma_end end;
        char address[RDMA_ADDRESS_TEXT_MAX];
};

void rdma_port_last_refusal(struct rdma_port *port, struct rdma_refusal *ret_refusal);

/* 0, RDMA_E_FULL or negative. All else is told by on_closed(). @events is copied. */
int rdma_connection_open(struct rdma_connection **ret_connection, struct rdma_port *port,
                         const struct rdma_target *target,
                         const struct rdma_connection_events *events, void *user);

/* The events of a connection that a listener brought, within on_connection(). */
void rdma_connection_adopt(struct rdma_connection *connection,
                           const struct rdma_connection_events *events, void *user);

/* on_closed() follows, unless it has come. Twice is once. */
void rdma_connection_close(struct rdma_connection *connection);

/*
 * Copies a message into the queue. 0, RDMA_E_FULL (none was queued: on_room() will come),
 * RDMA_E_CLOSED, or RDMA_E_INVALID: empty, or longer than rdma_connection_message_max().
 */
int rdma_connection_send(struct rdma_connection *connection, const void *bytes, size_t length);

/* Of an open connection: what the peer takes, and who it is. */
size_t rdma_connection_message_max(const struct rdma_connection *connection);
const char *rdma_connection_domain(const struct rdma_connection *connection);
const uint8_t *rdma_connection_peer_id(const struct rdma_connection *connection);
uint16_t rdma_connection_minor(const struct rdma_connection *connection);
void rdma_connection_peer_address(const struct rdma_connection *connection,
                                  char text[RDMA_ADDRESS_TEXT_MAX]);
