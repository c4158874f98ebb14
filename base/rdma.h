// SPDX-License-Identifier: Apache-2.0
/*
 * RDMA between two processes, by libibverbs and librdmacm: this header, then
 * rdma_connection.h and rdma_memory.h. One reliable connection a peer, small messages both
 * ways, and bytes by one-sided READ and WRITE of memory that the other side has granted for
 * this one transfer.
 *
 * A port owns the devices and one helper thread, which alone talks to them. Its owner is one
 * thread: all functions below are called on it, and all callbacks come on it, out of
 * rdma_port_run(), which the owner calls when rdma_port_fd() is readable (poll, uv_poll).
 * No lock is held across a callback, and every function may be called in one. The exceptions
 * are find_secret(), which comes on the helper thread, and rdma_port_stats(), which any
 * thread may call.
 *
 * Every operation ends, by itself or at its deadline. A reliable queue pair works in order and
 * cannot take back what it was given: an operation that passes its deadline on the device
 * ends its connection, and so do silence and any error. What was under way then ends first,
 * on_closed() comes last. Connections are not rebuilt here: their owner opens another, by
 * rdma_backoff (rdma_deadline.h).
 *
 * No memory of ours is ever open to a peer but through a grant. Its windows (type 2) are bound
 * to this connection and these extents. on_reusable() says that no byte in them can be read
 * or written from outside any more: they are invalidated and that was acknowledged, or the
 * queue pair has been destroyed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/rdma_frame.h"

#define RDMA_SECRET_MIN 16u
#define RDMA_SECRET_MAX 64u

enum {
        RDMA_E_ABSENT = 1, /* no RDMA in this build or on this machine: `why` says which */
        RDMA_E_FULL,       /* a limit is reached: again after on_room() or a completion */
        RDMA_E_CLOSED,     /* the connection is not open, or not any more */
        RDMA_E_DENIED,     /* no such secret: `why` */
        RDMA_E_INVALID,    /* too long, too many, or not in its region */
        RDMA_E_BUSY,       /* the region is still in use */
};

/* Why a connection ended. Crosses the wire in REFUSED: append only. */
enum rdma_end {
        RDMA_END_CLOSED,      /* by its owner */
        RDMA_END_PEER_CLOSED, /* by the peer, or the peer's process has gone */
        RDMA_END_LOST,        /* silence: a dead peer or link */
        RDMA_END_TIMEOUT,     /* an operation did not end by its deadline */
        RDMA_END_UNREACHABLE, /* nobody answers there */
        RDMA_END_NOT_ALLOWED, /* the address is not in the listener's list */
        RDMA_END_FULL,        /* the listener's port has as many connections as it may */
        RDMA_END_DENIED,      /* wrong secret, or no such domain */
        RDMA_END_STALE,       /* the server has been started anew since */
        RDMA_END_UNSUPPORTED, /* another protocol or version */
        RDMA_END_PROTOCOL,    /* the peer broke the rules */
        RDMA_END_DEVICE,      /* the device reported an error */
        RDMA_N_ENDS,
};

/* How a transfer or a grant ended. */
enum rdma_result {
        RDMA_RESULT_DONE,
        RDMA_RESULT_TIMEOUT,     /* its deadline passed; the connection ends if it had begun */
        RDMA_RESULT_REFUSED,     /* by the peer's device: outside of what is granted */
        RDMA_RESULT_BROKEN,      /* the connection ended */
        RDMA_RESULT_UNSUPPORTED, /* the device has no windows, and whole_regions is off; or it
                                    cannot reach the region, a dma-buf */
        RDMA_RESULT_FULL,        /* no window is to be had now */
};

struct rdma_identity {
        uint32_t protocol; /* what the owner speaks over the connection */
        uint16_t major;    /* has to be equal on both sides */
        uint16_t minor;
        uint8_t id[RDMA_ID_BYTES]; /* of this run of the program: another run has another */
};

struct rdma_secret {
        uint8_t bytes[RDMA_SECRET_MAX];
        size_t length; /* RDMA_SECRET_MIN or more */
};

/* 0 takes the default. */
struct rdma_port_options {
        const char *device; /* the only one to use; NULL: all */
        struct rdma_identity identity;
        /* Helper thread. 0, or anything else for an unknown domain. */
        int (*find_secret)(void *user, const char *domain, struct rdma_secret *ret_secret);
        void *user;
        uint32_t connections_max; /* 256; those that are not through the handshake count */
        uint32_t n_credits;       /* 32: messages that a peer may have on the way to us */
        uint32_t message_bytes;   /* 4096: the longest that we take, with 16 of header */
        uint32_t n_queued;        /* 64: messages of ours that may wait */
        uint32_t n_operations;    /* 1024: transfers and grants of one connection under way */
        uint32_t chunk_bytes;     /* 1 MiB: what one work request moves at most */
        uint32_t flight_bytes;    /* 8 MiB: what of a connection is on the device at a time */
        uint64_t handshake_ns;    /* 5 s: from connecting to open */
        uint64_t message_ns;      /* 10 s: a message waits this long for the peer's credit */
        uint64_t idle_ns;         /* 500 ms without a sign of life: the peer is asked for one */
        uint64_t silence_ns;      /* 2.5 s without: it is lost */
        bool busy_poll;           /* the helper spins while operations are under way */
        bool whole_regions;       /* devices without windows: grants open the whole region */
};

struct rdma_port;
struct rdma_listener;
struct rdma_connection;
struct rdma_region;
struct rdma_grant;

/* 0, or RDMA_E_ABSENT: not in this build. Looks at no device. */
int rdma_check(struct why *why);

/* 0, RDMA_E_ABSENT or negative. @ret_port belongs to the caller. */
int rdma_port_open(struct rdma_port **ret_port, const struct rdma_port_options *options,
                   struct why *why);

/*
 * Ends all listeners and connections with their callbacks, within this call. Regions have to
 * be free by then, or are freed by their owner in the last on_closed().
 */
void rdma_port_close(struct rdma_port *port);

/*
 * In a forked child, which has neither thread of it: closes the child's descriptors, which would
 * keep queue pairs and pinned memory when the parent has gone. Nothing else may be called there.
 */
void rdma_port_forget_in_child(const struct rdma_port *port);

/* Something to tell people once, such as whole regions open to peers; NULL: nothing. */
const char *rdma_port_warning(const struct rdma_port *port);
int rdma_port_fd(const struct rdma_port *port);
void rdma_port_run(struct rdma_port *port);

/* What the devices hold of ours now, and what has happened since the port was opened. */
#define RDMA_STAT_LIST(X)                                                                          \
        X(queue_pairs)                                                                             \
        X(completion_queues) X(regions) X(windows) X(windows_bound) X(connections)                 \
                X(listeners) X(devices_gone) /* up to here: now */                                 \
                X(opened) X(messages_sent) X(messages_received) X(credit_waits) X(nudges) X(reads) \
                        X(read_bytes) X(writes) X(written_bytes) X(grants) X(timeouts)

struct rdma_port_stats {
#define RDMA_STAT_MEMBER(name) uint64_t name;
        RDMA_STAT_LIST(RDMA_STAT_MEMBER)
#undef RDMA_STAT_MEMBER
        uint64_t ended[RDMA_N_ENDS];
};

void rdma_port_stats(const struct rdma_port *port, struct rdma_port_stats *ret_stats);

/* "lost", "denied", ... for logs and metrics. */
const char *rdma_end_name(enum rdma_end end);
