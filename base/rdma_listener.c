// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rdma_queue.h"

#define BACKLOG 128

static void listener_free(struct rdma_listener *listener)
{
        if (listener->id)
                rdma_destroy_id(listener->id);
        free(listener->allowed);
        free(listener);
}

DEFINE_CLEANUP(struct rdma_listener *, listener_free)

/* Owner: nothing of it waits any more, on_connection() of those that came before included. */
static void run_gone(struct job *job)
{
        listener_free(job_owner(job, struct rdma_listener, gone));
}

static void end_half_open(struct rdma_listener *listener)
{
        struct rdma_connection *connection;

        LIST_FOREACH(connection, &listener->port->connections, link)
                if (connection->listener == listener && connection->state != RDMA_CONNECTION_OPEN)
                        rdma_connection_break(connection, RDMA_END_CLOSED, "no longer listening");
}

void rdma_listener_end(struct rdma_listener *listener)
{
        struct rdma_port *port = listener->port;

        LIST_REMOVE(listener, link);
        end_half_open(listener);
        rdma_destroy_id(listener->id);
        listener->id = NULL;
        rdma_count(port, listeners, -1);
        listener->gone.run = run_gone;
        mailbox_post(&port->to_owner, &listener->gone);
}

static void run_close(struct job *job)
{
        rdma_listener_end(job_owner(job, struct rdma_listener, close));
}

static void run_listen(struct job *job)
{
        struct rdma_listener *listener = job_owner(job, struct rdma_listener, open);
        struct rdma_port *port = listener->port;

        LIST_INSERT_HEAD(&port->listeners, listener, link);
}

static int copy_allowed(struct rdma_listener *listener, const struct rdma_listener_options *options)
{
        if (!options->n_allowed)
                return 0;
        listener->allowed = calloc(options->n_allowed, sizeof(*listener->allowed));
        if (!listener->allowed)
                return err_raise(-ENOMEM);
        listener->n_allowed = options->n_allowed;
        memcpy(listener->allowed, options->allowed,
               options->n_allowed * sizeof(*listener->allowed));
        return 0;
}

static int listen_at(struct rdma_listener *listener, const struct sockaddr_storage *address,
                     struct why *why)
{
        struct sockaddr_storage copy = *address;
        char text[RDMA_ADDRESS_TEXT_MAX];
        int r;

        if (rdma_create_id(listener->port->channel, &listener->id, listener, RDMA_PS_TCP))
                return err_raise(-errno);
        if (!rdma_bind_addr(listener->id, (struct sockaddr *)&copy) &&
            !rdma_listen(listener->id, BACKLOG)) {
                listener->number = ntohs(rdma_get_src_port(listener->id));
                return 0;
        }
        r = err_raise(-errno);
        rdma_address_format((const struct sockaddr *)address, text);
        why_set(why, "listening by RDMA at %s: %s", text, strerror(-r));
        return r;
}

int rdma_listener_open(struct rdma_listener **ret_listener, struct rdma_port *port,
                       const struct rdma_listener_options *options, struct why *why)
{
        _cleanup_(listener_freep) struct rdma_listener *listener = NULL;
        int r;

        if (atomic_load(&port->is_closing))
                return err_raise(-ESHUTDOWN);
        listener = calloc(1, sizeof(*listener));
        if (!listener)
                return err_raise(-ENOMEM);
        listener->target.is_listener = true;
        listener->port = port;
        listener->on_connection = options->on_connection;
        listener->user = options->user;
        r = copy_allowed(listener, options);
        if (!r)
                r = listen_at(listener, &options->address, why);
        if (r)
                return r;
        rdma_count(port, listeners, 1);
        listener->open.run = run_listen;
        mailbox_post(&port->to_helper, &listener->open);
        *ret_listener = steal_ptr(listener);
        return 0;
}

void rdma_listener_close(struct rdma_listener *listener)
{
        /* A port that is closed ends its listeners itself. */
        if (listener->is_closed || atomic_load(&listener->port->is_closing))
                return;
        listener->is_closed = true;
        listener->close.run = run_close;
        mailbox_post(&listener->port->to_helper, &listener->close);
}

uint16_t rdma_listener_port(const struct rdma_listener *listener)
{
        return listener->number;
}
