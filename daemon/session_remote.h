// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions from other nodes: a link over RDMA (proto/remote_link.h) carries their messages.
 *
 * Such a session maps nothing of the daemon's: it is told of no arena and no table, and its
 * results carry no extents. It says where its bytes are by PUT and where it wants them by FETCH
 * (daemon/mover.h), in memory that it grants for that. So no lease of it needs a quarantine:
 * when the link is gone, all of them end at once. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

/* The first message of a link: takes it, or turns it away with the reason. */
void session_remote_accept(struct daemon *daemon, struct remote_link *link, const void *packet,
                           size_t length);
