// SPDX-License-Identifier: Apache-2.0
/*
 * How entries and bundles go (remote_forget.c). Private to the remote tier.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "storage/remote_change.h"
#include "storage/remote_map.h"

/* Told to the daemon on the next turn. */
struct remote_vanished {
        STAILQ_ENTRY(remote_vanished) link;
        struct object_key key;
        struct tier_place place;
        bool replaced;
        uint64_t checksum_total;
};

struct remote_forget {
        struct remote_op op;
        struct tier_place place;
        struct remote_bundle *bundle; /* that is going, and for which it waits */
        bool sync;
        bool is_deleted;
        int result;
        STAILQ_ENTRY(remote_forget) link;
};

_Static_assert(sizeof(struct remote_forget) <= sizeof(((struct tier_forget *)0)->tier_private),
               "a forget lives in the caller's request");

STAILQ_HEAD(remote_forget_queue, remote_forget);

void remote_forget(struct tier *tier, struct tier_place place, const struct object_key *key,
                   bool sync, struct tier_forget *forget);
void remote_readers_ended(struct remote *remote, struct remote_bundle *bundle);
/* Nobody waits for bundles to go any more: the pool does not take it. */
void remote_release_forgets(struct remote *remote);
/* Frees a bundle of others that nothing refers to. */
void remote_release_bundle(struct remote *remote, struct remote_bundle *bundle);
void remote_tell_freed(struct remote *remote);
/* Takes the entry out of memory and, by @changes, out of the index. */
void remote_drop_entry(struct remote *remote, struct remote_entry *entry,
                       struct database_changes *changes);
/* The same; the daemon is told on the next turn. */
void remote_vanish(struct remote *remote, struct remote_entry *entry,
                   struct database_changes *changes, bool replaced, uint64_t checksum_total);
/* Higher tiers are told on the next turn; @place zero: it has no copy in the pool. */
void remote_queue_vanished(struct remote *remote, const struct object_key *key,
                           struct tier_place place, bool replaced, uint64_t checksum_total);
void remote_tell_vanished(struct remote *remote);
/* An own bundle of which too little is alive: it goes. */
void remote_examine(struct remote *remote, struct remote_bundle *bundle);
void remote_announce_going(struct remote *remote);
void remote_start_removes(struct remote *remote);
/* An own object that may be in the pool and that nobody knows: removed later. */
struct remote_bundle *remote_condemn(struct remote *remote, uint64_t number, uint64_t bytes,
                                     uint32_t delay_ms);
