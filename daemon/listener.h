// SPDX-License-Identifier: Apache-2.0
/*
 * The control socket: a SOCK_SEQPACKET Unix socket with the configured owner and mode.
 * Loop thread only.
 */
#pragma once

#include "base/error.h"

struct daemon;

/*
 * Binds and listens. A socket file that nobody answers on is replaced; one that somebody
 * answers on is refused. 0 or a negative errno with @why.
 */
int listener_open(struct daemon *daemon, struct why *why);

/* Polls again after accept had run out of descriptors. */
void listener_resume(struct daemon *daemon);

/* Stops accepting and removes the socket file. */
void listener_close(struct daemon *daemon);
