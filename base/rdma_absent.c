// SPDX-License-Identifier: Apache-2.0
/*
 * A build without rdma-core: no port can be opened, so that nothing else is ever called.
 */
#include <stdlib.h>

#include "base/rdma_connection.h"
#include "base/rdma_memory.h"

int rdma_check(struct why *why)
{
        why_set(why, "this build has no RDMA: build it with libibverbs and librdmacm (Debian "
                     "packages libibverbs-dev and librdmacm-dev, meson option -Drdma=enabled)");
        return RDMA_E_ABSENT;
}

int rdma_port_open(struct rdma_port **ret_port, const struct rdma_port_options *options,
                   struct why *why)
{
        return rdma_check(why);
}

void rdma_port_close(struct rdma_port *port)
{
        abort();
}

void rdma_port_forget_in_child(const struct rdma_port *port)
{
        abort();
}

const char *rdma_port_warning(const struct rdma_port *port)
{
        abort();
}

int rdma_port_fd(const struct rdma_port *port)
{
        abort();
}

void rdma_port_run(struct rdma_port *port)
{
        abort();
}

void rdma_port_stats(const struct rdma_port *port, struct rdma_port_stats *ret_stats)
{
        abort();
}

int rdma_listener_open(struct rdma_listener **ret_listener, struct rdma_port *port,
                       const struct rdma_listener_options *options, struct why *why)
{
        abort();
}

void rdma_listener_close(struct rdma_listener *listener)
{
        abort();
}

uint16_t rdma_listener_port(const struct rdma_listener *listener)
{
        abort();
}

void rdma_port_last_refusal(struct rdma_port *port, struct rdma_refusal *ret_refusal)
{
        abort();
}

int rdma_connection_open(struct rdma_connection **ret_connection, struct rdma_port *port,
                         const struct rdma_target *target,
                         const struct rdma_connection_events *events, void *user)
{
        abort();
}

void rdma_connection_adopt(struct rdma_connection *connection,
                           const struct rdma_connection_events *events, void *user)
{
        abort();
}

void rdma_connection_close(struct rdma_connection *connection)
{
        abort();
}

int rdma_connection_send(struct rdma_connection *connection, const void *bytes, size_t length)
{
        abort();
}

size_t rdma_connection_message_max(const struct rdma_connection *connection)
{
        abort();
}

const char *rdma_connection_domain(const struct rdma_connection *connection)
{
        abort();
}

const uint8_t *rdma_connection_peer_id(const struct rdma_connection *connection)
{
        abort();
}

uint16_t rdma_connection_minor(const struct rdma_connection *connection)
{
        abort();
}

void rdma_connection_peer_address(const struct rdma_connection *connection,
                                  char text[RDMA_ADDRESS_TEXT_MAX])
{
        abort();
}

int rdma_region_new(struct rdma_region **ret_region, struct rdma_port *port, void *base,
                    size_t length)
{
        abort();
}

int rdma_region_new_dmabuf(struct rdma_region **ret_region, struct rdma_port *port,
                           const struct rdma_dmabuf *dmabuf, void *base, size_t length,
                           struct why *why)
{
        abort();
}

int rdma_region_free(struct rdma_region *region)
{
        return 0;
}

int rdma_grant_new(struct rdma_grant **ret_grant, struct rdma_connection *connection,
                   const struct rdma_grant_options *options)
{
        abort();
}

void rdma_grant_release(struct rdma_grant *grant)
{
        abort();
}

int rdma_transfer_start(struct rdma_transfer *transfer)
{
        abort();
}
