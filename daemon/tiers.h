// SPDX-License-Identifier: Apache-2.0
/*
 * The tiers below host memory: opened as the configuration says, and closed in the reverse
 * order. A pool that is out of reach is no failure to start. Loop thread only.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "storage/host.h"

struct daemon;

/* 0 or a negative errno with @why; what was opened is closed by tiers_close() either way. */
int tiers_open(struct daemon *daemon, bool format, struct why *why);

/* No request is in flight. @on_closed is called later, or at once when there is none. */
void tiers_close(struct daemon *daemon, void (*on_closed)(void *user), void *user);

/* An arena has come up: whoever does I/O may register it. */
void tiers_add_memory(struct daemon *daemon, const struct host_arena *arena);

/* Is all written that the policies want to be kept when the daemon stops? */
bool tiers_are_drained(const struct daemon *daemon);
