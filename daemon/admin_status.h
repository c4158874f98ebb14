// SPDX-License-Identifier: Apache-2.0
/* The admin answers about the daemon as a whole and its sessions (admin.h). */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct daemon;
struct session;

/* {"ok": false, "error": text}, or NULL when out of memory. */
json_t *admin_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes 2 * @n hex digits and a NUL to @text. */
void admin_hex(char *text, const uint8_t *bytes, size_t n);

/* "attached", "quarantined" and so on. */
const char *admin_session_state(const struct session *session);

/* Each returns a new object, or NULL when out of memory. */
json_t *admin_status(struct daemon *daemon, const json_t *arguments);
/* All but the one that asks. */
json_t *admin_sessions(const struct session *asker);
