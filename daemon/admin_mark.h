// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl pin, unpin and reclaim: marks (mark.h) on one boundary, by hand. Its pins live
 * until they are unpinned or the daemon ends. Loop thread only.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/session.h"

/* Is it one of these commands? */
bool admin_is_mark(const char *name);

/* Answers when it is done. */
void admin_mark(struct session *session, uint64_t request, const char *name,
                const json_t *arguments);
