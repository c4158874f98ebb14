// SPDX-License-Identifier: Apache-2.0
/*
 * The writing side of the presence table (proto/presence.h): the daemon's, and that of who shows
 * what was found: a remote session's bridge, a session of an engine that spans nodes. One thread,
 * the writer's.
 *
 * The memfd is sized once, sparse, mapped writable by its writer and then sealed against
 * every further writable mapping (FUTURE_WRITE), shrinking, growing and new seals, before
 * any client sees it.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "proto/presence.h"

enum {
        PRESENCE_TABLE_E_FULL = 1, /* no place within the probe bound: reads as a miss */
};

struct presence_table;

/* A table for @objects_max boundaries, in state STARTING. 0 or a negative errno. */
int presence_table_new(struct presence_table **ret_table, uint64_t objects_max,
                       const uint8_t boot_id[16], uint64_t heartbeat_period_ns);
/* The same in memory of this process alone, without a memfd: its fd is -1. */
int presence_table_new_private(struct presence_table **ret_table, uint64_t objects_max);
/* Marks the table STOPPED, unmaps and closes. NULL is fine. Returns NULL. */
struct presence_table *presence_table_free(struct presence_table *table);

/* The sealed memfd, owned by the table, to be sent to clients; and its length. */
int presence_table_fd(const struct presence_table *table);
uint64_t presence_table_size(const struct presence_table *table);
/* The daemon's own view, for lookups in tests and benches, and the hash key for seeds. */
const struct presence_view *presence_table_view(const struct presence_table *table);

/*
 * Sets a boundary's bits; inserts the entry when there is none, removes it when @present
 * is 0, unless @flags say PRESENCE_SEEN. 0 or PRESENCE_TABLE_E_FULL (counted; the entry is
 * not there then).
 */
int presence_table_set(struct presence_table *table, uint64_t fingerprint, uint64_t present,
                       uint64_t resident, uint32_t flags);

/* Sets the flags of an entry that is there; where there is none, nothing. */
void presence_table_set_flags(struct presence_table *table, uint64_t fingerprint, uint32_t flags);

/* Removes every entry. */
void presence_table_clear(struct presence_table *table);

void presence_table_set_state(struct presence_table *table, enum presence_state state);
void presence_table_beat(struct presence_table *table, uint64_t now_ns);

struct presence_table_usage {
        uint64_t capacity; /* entries */
        uint64_t used;
        uint64_t refused_total; /* inserts that found no place */
};
void presence_table_usage(const struct presence_table *table,
                          struct presence_table_usage *ret_usage);
