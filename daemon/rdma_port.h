// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon's RDMA port: one for all remote sessions and peers, open when the configuration
 * has rdma.listen. Its identity is the boot id, so that a client or peer that means an earlier
 * run is told so.
 *
 * Every arena is a region of it from the moment it comes up (registering pins its pages, on the
 * worker that has made it: about 0.1 ms a MiB). An arena that cannot be registered is said once
 * in the log; transfers of what lies in it fail.
 *
 * A connection is a stranger until its first whole message has come: its service
 * (proto/remote_part.h) says whose it is. Strangers that stay silent are closed after ten
 * seconds; so are, after half a second, links whose owner has said the last word and let go.
 * Loop thread only, but for daemon_port_prepare() and the look-up of the secret, which is
 * constant.
 */
#pragma once

#include "base/rdma_memory.h"
#include "daemon/host_copy.h"
#include "proto/remote_link.h"
#include "proto/wire.h"

struct daemon;
struct daemon_port;

/* Opens the port when it is configured; daemon->port stays NULL when it is not. */
int daemon_port_open(struct daemon *daemon, struct why *why);

/* Nobody new comes in, strangers go. */
void daemon_port_stop(struct daemon *daemon);

/* No link is left: what is between stop() and close(). */
bool daemon_port_is_quiet(const struct daemon *daemon);

/* Frees regions and port, at once, and itself on the loop, later. */
void daemon_port_close(struct daemon *daemon);

/* Worker: registers the memory of the arena that comes up next. */
void daemon_port_prepare(struct daemon *daemon, void *base, uint64_t bytes);
void daemon_port_add_arena(struct daemon *daemon, const struct host_arena *arena);

/* Closes strangers that stay too long. */
void daemon_port_expire(struct daemon *daemon, uint64_t now_ns);

/* Sets the metrics. */
void daemon_port_refresh(struct daemon *daemon);

/* NULL: there is none. */
struct rdma_port *daemon_port_rdma(const struct daemon *daemon);
const char *daemon_port_domain(const struct daemon *daemon);

/*
 * Who takes the links of @service: with the first message, which is lent for the call and has
 * not been looked at. He hands the link over to himself and counts it, or closes it.
 */
typedef void daemon_port_accept(struct daemon *daemon, struct remote_link *link,
                                const void *packet, size_t length);
void daemon_port_serve(struct daemon *daemon, enum remote_service service,
                       daemon_port_accept *accept);

/* A link has an owner; and has gone, in his on_closed(). */
void daemon_port_link_opened(struct daemon *daemon);
void daemon_port_link_gone(struct daemon *daemon);

/* The owner is done with a link, but its last messages have to arrive: the port closes it. */
void daemon_port_let_go(struct daemon *daemon, struct remote_link *link);

/*
 * The parts of a copy's bytes [offset, + length), in order, at most WIRE_EXTENTS_MAX of them.
 * Returns how many; 0 when one lies in an arena that is no region.
 */
uint32_t daemon_port_extents(const struct daemon *daemon, const struct host_copy *copy,
                             uint64_t offset, uint64_t length,
                             struct rdma_extent ret_extents[WIRE_EXTENTS_MAX]);
