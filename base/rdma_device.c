// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_port.h"

#define WINDOWS_KEPT 1024u

static int set_nonblocking(int fd)
{
        int flags = fcntl(fd, F_GETFL);

        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return err_raise(-errno);
        return 0;
}

/* Free, and no event is read any more. */
static void cq_free(struct rdma_port *port, struct rdma_cq *cq)
{
        LIST_REMOVE(cq, link);
        ibv_destroy_cq(cq->cq);
        rdma_count(port, completion_queues, -1);
        free(cq);
}

static void device_close(struct rdma_port *port, struct rdma_device *device)
{
        while (!LIST_EMPTY(&device->windows)) {
                struct rdma_window *window = LIST_FIRST(&device->windows);

                LIST_REMOVE(window, link);
                rdma_window_free(port, window);
        }
        while (!LIST_EMPTY(&device->cqs))
                cq_free(port, LIST_FIRST(&device->cqs));
        while (!LIST_EMPTY(&device->failed_cqs))
                cq_free(port, LIST_FIRST(&device->failed_cqs));
        if (device->channel)
                ibv_destroy_comp_channel(device->channel);
        if (device->pd)
                ibv_dealloc_pd(device->pd);
}

/* The context is librdmacm's. */
static int device_open(struct rdma_device *device, struct ibv_context *context)
{
        const int windows = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        struct ibv_port_attr port = {0};
        int r;

        *device = (struct rdma_device){.context = context};
        LIST_INIT(&device->windows);
        LIST_INIT(&device->cqs);
        LIST_INIT(&device->failed_cqs);
        r = ibv_query_device(context, &device->attr);
        if (r)
                return err_raise(-abs(r));
        /* Ports differ in speed, not in this. */
        device->message_max = ibv_query_port(context, 1, &port) ? 0 : port.max_msg_sz;
        if (device->message_max < 4096)
                device->message_max = 4096;
        device->has_windows = (device->attr.device_cap_flags & windows) && device->attr.max_mw > 0;
        device->pd = ibv_alloc_pd(context);
        device->channel = device->pd ? ibv_create_comp_channel(context) : NULL;
        if (!device->channel)
                return err_raise(-errno);
        r = set_nonblocking(device->channel->fd);
        return r ? r : set_nonblocking(context->async_fd);
}

static bool is_wanted(const struct rdma_port *port, struct ibv_context *context)
{
        const char *name = port->options.device;

        return !name || !strcmp(name, ibv_get_device_name(context->device));
}

static int open_each(struct rdma_port *port, struct ibv_context **contexts)
{
        for (size_t i = 0; contexts[i] && port->n_devices < RDMA_DEVICES_MAX; i++) {
                struct rdma_device *device = &port->devices[port->n_devices];
                int r;

                if (!is_wanted(port, contexts[i]))
                        continue;
                r = device_open(device, contexts[i]);
                if (r) {
                        device_close(port, device);
                        return r;
                }
                port->n_devices++;
        }
        return 0;
}

/* What a person has to know of devices that cannot do it as it should be done. */
static void warn(struct rdma_port *port)
{
        for (uint32_t i = 0; i < port->n_devices; i++) {
                const char *name = ibv_get_device_name(port->devices[i].context->device);

                if (port->devices[i].has_windows)
                        continue;
                snprintf(port->warning, sizeof(port->warning),
                         port->options.whole_regions
                                 ? "RDMA device %s has no memory windows of type 2: a peer that "
                                   "is granted a part of our memory can reach all of it"
                                 : "RDMA device %s has no memory windows of type 2: nothing is "
                                   "granted through it, unless rdma.whole_regions is on",
                         name);
                return;
        }
}

int rdma_devices_open(struct rdma_port *port, struct why *why)
{
        struct ibv_context **contexts;
        int n = 0, r;

        contexts = rdma_get_devices(&n);
        if (!contexts) {
                why_set(why, "this machine has no RDMA device: %s", strerror(errno));
                return RDMA_E_ABSENT;
        }
        r = open_each(port, contexts);
        rdma_free_devices(contexts);
        if (r) {
                why_set(why, "an RDMA device cannot be used: %s", strerror(-r));
                rdma_devices_close(port);
                return r;
        }
        if (!port->n_devices) {
                why_set(why, "this machine has no RDMA device%s%s", port->options.device ? " " : "",
                        port->options.device ? port->options.device : "");
                return RDMA_E_ABSENT;
        }
        warn(port);
        return 0;
}

void rdma_devices_close(struct rdma_port *port)
{
        for (uint32_t i = 0; i < port->n_devices; i++)
                device_close(port, &port->devices[i]);
        port->n_devices = 0;
}

struct rdma_device *rdma_device_find(struct rdma_port *port, const struct ibv_context *context)
{
        for (uint32_t i = 0; i < port->n_devices; i++)
                if (port->devices[i].context == context && !port->devices[i].is_gone)
                        return &port->devices[i];
        return NULL;
}

struct rdma_window *rdma_window_new(struct rdma_port *port, struct rdma_device *device)
{
        struct rdma_window *window = LIST_FIRST(&device->windows);

        if (window) {
                LIST_REMOVE(window, link);
                device->n_windows--;
                return window;
        }
        window = calloc(1, sizeof(*window));
        if (!window)
                return NULL;
        window->mw = ibv_alloc_mw(device->pd, IBV_MW_TYPE_2);
        if (!window->mw) {
                free(window);
                return NULL;
        }
        rdma_count(port, windows, 1);
        return window;
}

void rdma_window_put(struct rdma_port *port, struct rdma_device *device, struct rdma_window *window)
{
        if (device->n_windows >= WINDOWS_KEPT) {
                rdma_window_free(port, window);
                return;
        }
        LIST_INSERT_HEAD(&device->windows, window, link);
        device->n_windows++;
}

void rdma_window_free(struct rdma_port *port, struct rdma_window *window)
{
        ibv_dealloc_mw(window->mw);
        rdma_count(port, windows, -1);
        free(window);
}

struct ibv_cq *rdma_cq_new(struct rdma_port *port, struct rdma_device *device, int n)
{
        struct rdma_cq *cq = LIST_FIRST(&device->cqs);

        if (cq) {
                LIST_REMOVE(cq, link);
                return cq->cq;
        }
        cq = calloc(1, sizeof(*cq));
        if (!cq)
                return NULL;
        cq->cq = ibv_create_cq(device->context, n, cq, device->channel, 0);
        if (!cq->cq) {
                free(cq);
                return NULL;
        }
        rdma_count(port, completion_queues, 1);
        return cq->cq;
}

void rdma_cq_put(struct rdma_device *device, struct ibv_cq *cq)
{
        struct rdma_cq *own = cq->cq_context;
        struct ibv_wc ignored[32];
        int n;

        do
                n = ibv_poll_cq(cq, 32, ignored);
        while (n > 0);
        if (n)
                LIST_INSERT_HEAD(&device->failed_cqs, own, link);
        else
                LIST_INSERT_HEAD(&device->cqs, own, link);
}
