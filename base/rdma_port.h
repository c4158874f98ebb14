// SPDX-License-Identifier: Apache-2.0
/*
 * The inside of the transport, shared by rdma_*.c and by nobody else.
 *
 * Two mailboxes join the threads: what the owner calls becomes a job for the helper, what has
 * happened becomes a job for the owner, in order. Members say whose they are; the rest is set
 * before the helper can see it and constant from then on.
 *
 * No object is freed while a job of it waits. A connection goes in four steps, each a job of
 * the mailbox behind all earlier ones: the helper breaks it (rdma_connection_break()); the owner
 * sees that it has ended, and posts nothing about it from now on; the helper has seen all that
 * was posted before, and lets go; the owner calls on_closed() and frees it. A connection that
 * its owner has never seen is freed by the helper alone.
 */
#pragma once

#include <stdatomic.h>
#include <sys/queue.h>

#include <rdma/rdma_cma.h>

#include "base/mailbox.h"
#include "base/rdma_connection.h"
#include "base/rdma_deadline.h"
#include "base/rdma_device.h"

struct rdma_connection;

struct rdma_port {
        struct rdma_port_options options;
        struct rdma_device devices[RDMA_DEVICES_MAX];
        uint32_t n_devices;
        struct rdma_event_channel *channel;
        struct mailbox to_helper;
        struct mailbox to_owner;
        struct job wake;  /* owner: nothing but a reason to look */
        struct job close; /* helper */
        pthread_t helper;
        char warning[256];
        pthread_mutex_t refusal_lock;
        struct rdma_refusal refusal; /* the helper's to write */
        atomic_bool is_closing;
        atomic_bool is_drained;                   /* closing, and nothing is left */
        struct rdma_deadlines deadlines;          /* helper */
        LIST_HEAD(, rdma_connection) connections; /* helper: all */
        LIST_HEAD(, rdma_listener) listeners;     /* helper */
        struct {
#define RDMA_STAT_ATOMIC(name) _Atomic uint64_t name;
                RDMA_STAT_LIST(RDMA_STAT_ATOMIC)
#undef RDMA_STAT_ATOMIC
                _Atomic uint64_t ended[RDMA_N_ENDS];
        } stats;
};

#define rdma_count(port, name, n)                                                                  \
        atomic_fetch_add_explicit(&(port)->stats.name, (uint64_t)(n), memory_order_relaxed)

/* What a CM id's context points to, first in both structs. */
struct rdma_cm_target {
        bool is_listener;
};

struct rdma_listener {
        struct rdma_cm_target target;
        struct rdma_port *port;
        struct rdma_cm_id *id; /* helper, once it listens */
        struct rdma_network *allowed;
        size_t n_allowed;
        uint16_t number;
        void (*on_connection)(void *user, struct rdma_connection *connection); /* owner */
        void *user;
        bool is_closed;   /* owner */
        struct job open;  /* to the helper */
        struct job close; /* to the helper */
        struct job gone;  /* to the owner: nothing of it waits */
        LIST_ENTRY(rdma_listener) link;
};

uint64_t rdma_now_ns(void);

/* Helper: a reason for the owner to see whether all is gone. */
void rdma_port_check_drained(struct rdma_port *port);

/* Helper: somebody did not come in. */
void rdma_port_note_refusal(struct rdma_port *port, enum rdma_end end,
                            const struct sockaddr *address);

/* rdma_listener.c, helper */
void rdma_listener_end(struct rdma_listener *listener);
