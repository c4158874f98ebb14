// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions of processes on this node: a Unix socket carries their messages and descriptors,
 * and a pidfd, polled from the start, says when the process is gone. Output that the socket
 * does not take is queued, up to a cap. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

extern const struct session_carrier session_socket_carrier;

/*
 * Takes over a freshly accepted socket: checks credentials, opens the pidfd, starts
 * polling. On failure the client is told why, and the socket is closed.
 */
int session_socket_new(struct daemon *daemon, int fd);
