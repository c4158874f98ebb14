// SPDX-License-Identifier: Apache-2.0
/*
 * The devices of a port, their memory windows and completion queues. Inside the transport; helper
 * thread, but for open and close.
 *
 * A completion queue lives as long as its device is open: the event of one that has been destroyed
 * may come late (soft-RoCE until Linux 6.2), and libibverbs looks into the queue that it names.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <infiniband/verbs.h>

#include "base/error.h"

struct rdma_port;

#define RDMA_DEVICES_MAX 16u

struct rdma_window {
        struct ibv_mw *mw;
        LIST_ENTRY(rdma_window) link; /* while it is free */
};
LIST_HEAD(rdma_window_list, rdma_window);

/* Its queue has it for a context. */
struct rdma_cq {
        struct ibv_cq *cq;
        LIST_ENTRY(rdma_cq) link; /* while it is free */
};
LIST_HEAD(rdma_cq_list, rdma_cq);

struct rdma_device {
        struct ibv_context *context;
        struct ibv_pd *pd;
        struct ibv_comp_channel *channel;
        struct ibv_device_attr attr;
        uint64_t message_max; /* bytes of one work request */
        bool has_windows;
        _Atomic bool is_gone;            /* for good: removed, or reset; the helper sets it */
        struct rdma_window_list windows; /* helper: bound to nothing, for the next grant */
        uint32_t n_windows;
        struct rdma_cq_list cqs;        /* helper: empty, for the next connection */
        struct rdma_cq_list failed_cqs; /* helper: for nobody; a late event may name them */
};

/* 0, RDMA_E_ABSENT or negative. */
int rdma_devices_open(struct rdma_port *port, struct why *why);
void rdma_devices_close(struct rdma_port *port);
/* NULL: none of the port, or gone. */
struct rdma_device *rdma_device_find(struct rdma_port *port, const struct ibv_context *context);
struct rdma_window *rdma_window_new(struct rdma_port *port, struct rdma_device *device);
/* Keeps it for later: it is bound to nothing. */
void rdma_window_put(struct rdma_port *port, struct rdma_device *device,
                     struct rdma_window *window);
/* Ends what it may be bound to. */
void rdma_window_free(struct rdma_port *port, struct rdma_window *window);
/* For @n completions, like all of the port. NULL, with errno. It may ring for nothing. */
struct ibv_cq *rdma_cq_new(struct rdma_port *port, struct rdma_device *device, int n);
/* Its queue pair has gone: for the next connection, unless it has failed. */
void rdma_cq_put(struct rdma_device *device, struct ibv_cq *cq);
