// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl pool and pool gc: who shares the remote pool, this node's part of it, and taking
 * over what a dead node has left (storage/remote_gc.h). The pool may be slow or gone: each
 * answer comes within a few deadlines. One of each kind at a time; whose session ends, or
 * when the daemon stops, it is broken off. Loop thread only.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct daemon;
struct session;

/* Is it one of these commands? */
bool admin_is_pool(const char *name);

/* Answers when it is done; pool gc answers for each node. */
void admin_pool(struct session *session, uint64_t request, const char *name,
                const json_t *arguments);

/* The session that asked is going, or (NULL) the daemon. */
void admin_pool_cancel(struct daemon *daemon, const struct session *session);

/* Is none going on? */
bool admin_pool_is_quiet(const struct daemon *daemon);
