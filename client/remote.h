// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions with a daemon on another node. libkvtier itself speaks no RDMA: a module,
 * libkvtier-rdma.so, which is loaded when a session names an rdma:// address, stands between
 * the library and the daemon. It gives the library one end of a socket pair, on which all looks
 * as if the daemon were here: a presence table, one arena (the buffer of the session), extents
 * in it. client/rdma/bridge.h says how. An arena that is a dma-buf is announced by its fd, for the
 * library to know it again: it is not mapped.
 *
 * So calls, leases, deadlines, page maps and devices are the same code for both, and an engine
 * that never asks for RDMA loads none of it. Any thread; a bridge belongs to one session.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define KVT__REMOTE_VERSION 4u
#define KVT__REMOTE_SYMBOL  "kvt__remote_ops"
#define KVT__REMOTE_SCHEME  "rdma://"

struct kvt__bridge;
struct kvt_dmabuf;

struct kvt__bridge_options {
        const char *address;             /* host:port, or host */
        const char *secret;              /* path: base/rdma_secret.h */
        uint64_t buffer_bytes;           /* a multiple of 4 KiB */
        const struct kvt_dmabuf *dmabuf; /* the buffer; its fd is copied; NULL: host memory */
        const char *source; /* address of this node to connect from; NULL: as routes say */
        bool whole_buffer;  /* open it whole where a device has no windows */
};

/* The module exports one of these. */
struct kvt__remote_ops {
        uint32_t version;
        uint32_t reserved;
        /* 0, or negative with the reason. Options are copied. */
        int (*open)(struct kvt__bridge **ret_bridge, const struct kvt__bridge_options *options,
                    struct why *why);
        /* A socket, as if connected to the daemon. The caller has closed the one before. */
        int (*connect)(struct kvt__bridge *bridge);
        /* The caller has closed its socket and copies no more. */
        void (*close)(struct kvt__bridge *bridge);
        /* In a forked child: closes the child's descriptors, and is the last call there. */
        void (*forget_in_child)(struct kvt__bridge *bridge);
};

/* client/remote.c: the module's, loaded once. NULL with the reason: it is not there. */
const struct kvt__remote_ops *kvt__remote_load(struct why *why);
