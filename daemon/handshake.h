// SPDX-License-Identifier: Apache-2.0
/*
 * The handshake: HELLO (version, who), WELCOME and ARENA (what to map). What follows is in
 * daemon/attach.h. Loop thread only.
 */
#pragma once

#include "daemon/session.h"
#include "storage/host.h"

void handshake_hello(struct session *session, const struct wire_hello *hello);

/* Announces an arena that came up to a session that maps arenas. */
void handshake_announce(struct session *session, const struct host_arena *arena);

/* Fills a field of @size bytes: the text, cut if need be, and zeros. */
void handshake_put_text(char *field, size_t size, const char *text);

/* The WELCOME of a client that is not let in. */
void handshake_refusal(struct wire_welcome *ret_welcome, const uint8_t boot_id[16],
                       uint32_t status, const char *text);

/* Tells a client that is not let in why; its socket is the caller's. */
void handshake_refuse(int socket, const uint8_t boot_id[16], uint32_t status, const char *text);
