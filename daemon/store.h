// SPDX-License-Identifier: Apache-2.0
/*
 * The store side of a session: reserve, commit, abort, and sets.
 *
 * Reservations never exclude each other: the first commit of a key wins, later ones are
 * told ALREADY_HAVE and free their bytes. A set is published whole or not at all. The
 * commit of a replacement is answered when the delete of the older catalog entry is
 * durable. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

void store_reserve(struct session *session, const struct wire_batch *batch);
void store_commit(struct session *session, const struct wire_batch *batch);
void store_abort(struct session *session, const struct wire_batch *batch);
