// SPDX-License-Identifier: Apache-2.0
/*
 * The store side of a session: reserve and abort. What is reserved is published by
 * daemon/commit.h. Reservations never exclude each other. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

void store_reserve(struct session *session, const struct wire_batch *batch);
void store_abort(struct session *session, const struct wire_batch *batch);
