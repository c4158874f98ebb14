// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rdma_queue.h"

/*
 * What peers may do is a matter of windows; the region itself is closed to them, but where
 * a device has no windows and its owner has said that whole regions may be opened.
 */
static int access_of(const struct rdma_port *port, const struct rdma_device *device)
{
        const int whole = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

        if (device->has_windows)
                return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
        return IBV_ACCESS_LOCAL_WRITE | (port->options.whole_regions ? whole : 0);
}

static void deregister(struct rdma_region *region)
{
        for (uint32_t i = 0; i < region->port->n_devices; i++) {
                if (!region->mrs[i])
                        continue;
                ibv_dereg_mr(region->mrs[i]);
                rdma_count(region->port, regions, -1);
        }
        free(region);
}

static struct rdma_region *region_alloc(struct rdma_port *port, void *base, size_t length)
{
        struct rdma_region *region = calloc(1, sizeof(*region));

        if (!region)
                return NULL;
        region->port = port;
        region->base = base;
        region->length = length;
        return region;
}

int rdma_region_new(struct rdma_region **ret_region, struct rdma_port *port, void *base,
                    size_t length)
{
        struct rdma_region *region = region_alloc(port, base, length);
        uint32_t n = 0;

        if (!region)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < port->n_devices; i++) {
                struct rdma_device *device = &port->devices[i];

                if (device->is_gone)
                        continue;
                region->mrs[i] = ibv_reg_mr(device->pd, base, length, access_of(port, device));
                if (!region->mrs[i]) {
                        int error = errno;

                        deregister(region);
                        return err_raise(-error);
                }
                rdma_count(port, regions, 1);
                n++;
        }
        if (!n) {
                deregister(region);
                return err_raise(-ENODEV);
        }
        *ret_region = region;
        return 0;
}

/* Drivers that do not know dma-bufs say so in more than one way. */
static bool is_unsupported(int error)
{
        return error == EOPNOTSUPP || error == ENOSYS || error == EPROTONOSUPPORT;
}

static void say_why(struct why *why, const struct rdma_device *device, int error)
{
        const char *name = ibv_get_device_name(device->context->device);

        if (is_unsupported(error))
                why_set(why, "RDMA device %s cannot register the memory of other devices (dma-buf)",
                        name);
        else
                why_set(why, "RDMA device %s does not register the dma-buf: %s", name,
                        strerror(error));
}

int rdma_region_new_dmabuf(struct rdma_region **ret_region, struct rdma_port *port,
                           const struct rdma_dmabuf *dmabuf, void *base, size_t length,
                           struct why *why)
{
        struct rdma_region *region = region_alloc(port, base, length);
        uint32_t n = 0;
        int error = EOPNOTSUPP;

        if (!region) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        for (uint32_t i = 0; i < port->n_devices; i++) {
                struct rdma_device *device = &port->devices[i];

                region->mrs[i] =
                        ibv_reg_dmabuf_mr(device->pd, dmabuf->offset, length, (uintptr_t)base,
                                          dmabuf->fd, access_of(port, device));
                if (region->mrs[i]) {
                        rdma_count(port, regions, 1);
                        n++;
                } else if (is_unsupported(error) || !is_unsupported(errno)) {
                        /* What one failed to do matters more than what another cannot do. */
                        error = errno;
                        say_why(why, device, error);
                }
        }
        if (!n) {
                deregister(region);
                return is_unsupported(error) ? RDMA_E_ABSENT : err_raise(-error);
        }
        *ret_region = region;
        return 0;
}

int rdma_region_free(struct rdma_region *region)
{
        if (!region)
                return 0;
        if (region->n_users)
                return RDMA_E_BUSY;
        deregister(region);
        return 0;
}
