// SPDX-License-Identifier: Apache-2.0
/*
 * The joint match: one walk over a prompt's boundaries, all groups and shards together.
 * Any thread that has entered the table (client/table.h).
 */
#pragma once

#include "client/kvtier.h"
#include "client/table.h"

/* How many digests may be looked at, by the limits of the query. Pure. */
uint32_t kvt__joint_limit(const struct kvt__needs *needs, const struct kvt_match_query *query);

/* Fills in all of @match, which is zero, but its size. */
void kvt__joint_match(const struct kvt__table *table, const struct kvt_match_query *query,
                      struct kvt_match *match);
