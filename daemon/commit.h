// SPDX-License-Identifier: Apache-2.0
/*
 * Commit: reservations become visible objects.
 *
 * The first commit of a key wins, later ones are told ALREADY_HAVE and free their bytes.
 * A set is published whole or not at all. The commit of a replacement is answered when no
 * catalog entry of an older generation can come back, not even after a power loss; until
 * then it is deferred. Loop thread only.
 */
#pragma once

#include "daemon/session.h"

void commit_request(struct session *session, const struct wire_batch *batch);

/*
 * Is @target a commit with deferred items? Then the CANCEL of @request is answered after
 * them: nothing can be taken back any more.
 */
bool commit_cancel(struct session *session, uint64_t target, uint64_t request);
