// SPDX-License-Identifier: Apache-2.0
/*
 * Keeps in the tiers below what the layouts of their objects mean, so that it is known after
 * a restart, and on other nodes, before any engine attaches: placement must know which groups
 * are states.
 *
 * A layout is kept from before its first object is written down, and forgotten when it
 * has no objects and either the daemon starts or the tier's room for layouts is used up. In
 * the pool it stays.
 * One that is unknown, or finds no room, is not kept: its objects are stored all the same.
 * One whose encoding is not valid is forgotten when it is found at the start; one that the
 * daemon finds no memory for is not.
 *
 * Loop thread only.
 */
#pragma once

#include <stdint.h>

#include "daemon/index_record.h"
#include "storage/tier.h"

struct cache;

/* An object of the layout is about to be written down. */
void layout_keeper_keep(struct cache *cache, enum index_tier tier, uint16_t layout);

/* tier.on_layout of the remote tier, at any time; @user is the cache. */
void layout_keeper_on_remote_layout(void *user, const struct tier_layout *kept);

/* tier.on_layout of the NVMe tier during recovery; @user is the cache. */
void layout_keeper_on_layout(void *user, const struct tier_layout *kept);

/* Recovery has ended: what is kept without objects goes. */
void layout_keeper_forget_unused(struct cache *cache);
