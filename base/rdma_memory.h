// SPDX-License-Identifier: Apache-2.0
/*
 * Memory: regions registered with the devices, grants of parts of them to a peer, and transfers
 * between them and what a peer has granted. base/rdma.h says which thread.
 *
 * A window is what the device makes of it. Linux's soft-RoCE (rdma_rxe, 6.1) holds a peer to the
 * connection, the kind of access and the life of a window, but only to the bounds of its region.
 * And it copies a packet, of at most 4096 bytes, to its end once it has looked at the key: there,
 * and there alone, that one packet may still change memory after on_reusable().
 */
#pragma once

#include <sys/queue.h>

#include "base/mailbox.h"
#include "base/rdma.h"
#include "base/rdma_deadline.h"

#define RDMA_PIECES_MAX 128u

/*
 * Pins and registers, in the calling thread, which may be any: about 0.1 ms a MiB of small
 * pages. A region may serve any number of connections of its port. Devices that are gone are
 * left out. 0 or negative; -ENODEV: all of them are gone.
 */
int rdma_region_new(struct rdma_region **ret_region, struct rdma_port *port, void *base,
                    size_t length);

/* Memory of another device of this machine, as that exports it: a dma-buf. */
struct rdma_dmabuf {
        int fd;          /* the caller's, and not needed any more afterwards */
        uint64_t offset; /* of the region in it */
};

/*
 * The same of such memory, which the processor need not be able to reach; @base is what @dmabuf
 * has at its offset, as its device calls it. Through a device that cannot register it nothing
 * is granted (RDMA_RESULT_UNSUPPORTED). 0; RDMA_E_ABSENT: no device can; negative; with @why.
 */
int rdma_region_new_dmabuf(struct rdma_region **ret_region, struct rdma_port *port,
                           const struct rdma_dmabuf *dmabuf, void *base, size_t length,
                           struct why *why);

/* 0, or RDMA_E_BUSY: a grant or transfer still uses it. NULL is fine. */
int rdma_region_free(struct rdma_region *region);

/* A part of a region. */
struct rdma_extent {
        struct rdma_region *region;
        void *address;
        uint64_t length;
};

/* How a peer reaches it: what the granting side tells the other in a message. */
struct rdma_place {
        uint64_t address;
        uint64_t length;
        uint32_t key;
};

struct rdma_grant_options {
        const struct rdma_extent *extents; /* copied */
        uint32_t n_extents;                /* 1 to RDMA_PIECES_MAX */
        bool is_writable;                  /* by WRITE; else by READ */
        uint64_t timeout_ns;               /* for binding, and again for taking back */
        /*
         * DONE: one place for each extent, lent for the call. Anything else: nothing is
         * granted, and on_reusable() follows by itself.
         */
        void (*on_granted)(void *user, struct rdma_grant *grant, enum rdma_result result,
                           const struct rdma_place *places);
        /* After rdma_grant_release(), or when the connection ends. The grant is gone then. */
        void (*on_reusable)(void *user, struct rdma_grant *grant);
        void *user;
};

/* 0, RDMA_E_FULL, RDMA_E_CLOSED, RDMA_E_INVALID or negative. */
int rdma_grant_new(struct rdma_grant **ret_grant, struct rdma_connection *connection,
                   const struct rdma_grant_options *options);

/* At any time, also before on_granted(), which then still comes. Twice is once. */
void rdma_grant_release(struct rdma_grant *grant);

struct rdma_piece {
        struct rdma_extent local;
        uint64_t remote_address; /* anywhere within a place that was granted */
        uint32_t remote_key;
};

/* Its memory, and that of its pieces, belongs to the caller and is lent until on_done(). */
struct rdma_transfer {
        struct rdma_connection *connection;
        const struct rdma_piece *pieces;
        uint32_t n_pieces;   /* 1 to RDMA_PIECES_MAX */
        bool is_write;       /* from local to remote; else the other way */
        uint64_t timeout_ns; /* not 0 */
        /* No byte moves any more. After anything but DONE some of them may have moved. */
        void (*on_done)(struct rdma_transfer *transfer, enum rdma_result result);
        void *user;

        /* The library's. */
        struct job job;
        struct rdma_deadline deadline;
        TAILQ_ENTRY(rdma_transfer) link;
        uint64_t offset; /* into the piece to post next */
        uint32_t next_piece;
        uint32_t n_posted; /* work requests on the device */
        enum rdma_result result;
};

/* 0, RDMA_E_FULL, RDMA_E_CLOSED or RDMA_E_INVALID: then on_done() does not come. */
int rdma_transfer_start(struct rdma_transfer *transfer);
