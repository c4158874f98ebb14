// SPDX-License-Identifier: Apache-2.0
/*
 * From a checked message to its handler: the handshake, the currency of boot and session
 * ids, and a switch over kinds; nothing else. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

/* @header begins a message that passed message_check(). */
void dispatch_message(struct session *session, const struct wire_header *header);

/* A message of an unknown kind or with unknown flags: answered, not acted on. */
void dispatch_unsupported(struct session *session, const struct wire_header *header);
