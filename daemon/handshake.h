// SPDX-License-Identifier: Apache-2.0
/*
 * The handshake: HELLO (version, who), WELCOME and ARENA (what to map), ATTACH (what the
 * engine's bytes mean). Loop thread only.
 */
#pragma once

#include "daemon/session.h"
#include "storage/host.h"

void handshake_hello(struct session *session, const struct wire_hello *hello);
void handshake_attach(struct session *session, const struct wire_attach *attach);

/* Announces an arena that came up to a session that maps arenas. */
void handshake_announce(struct session *session, const struct host_arena *arena);

/* Tells a client that is not let in why; its socket is the caller's. */
void handshake_refuse(int socket, const uint8_t boot_id[16], uint32_t status, const char *text);
