// SPDX-License-Identifier: Apache-2.0
/*
 * What a transfer consists of: for transfer*.c only.
 */
#pragma once

#include "daemon/cache.h"
#include "daemon/transfer.h"

enum transfer_state {
        TRANSFER_HASHING, /* down: until the copy has checksums */
        TRANSFER_NEXT,    /* down, to the pool: until those before it have theirs */
        TRANSFER_WAITING, /* down: for room in the tier, or for the tier to be ready */
        TRANSFER_WRITING,
        TRANSFER_READING,
};

/* Somebody who waits until no entry of an outdated write-down can come back. */
struct forget_waiter {
        struct forget_waiter *next;
        void (*on_forgotten)(void *user, int result);
        void *user;
};

struct transfer {
        union {
                struct tier_write write; /* first: the tier hands them back */
                struct tier_read read;
        };
        struct cache *cache;
        enum index_tier tier; /* the lower one */
        enum transfer_state state;
        struct host_copy *copy;
        uint32_t object; /* as it was at the start */
        uint64_t serial; /* up: 0, or which of those that read pieces */
        uint64_t began_ns;
        struct tier_object described;
        struct digest *covers;
        struct tier_segment segments[HOST_EXTENTS_MAX];
        struct host_copy_waiter waiter;       /* HASHING */
        struct forget_waiter *forget_waiters; /* WRITING */
        bool is_entering;                     /* WRITING: its entry is on its way */
        TAILQ_ENTRY(transfer) link;           /* down or waiting */
        RB_ENTRY(transfer) node;              /* up */
};

double transfer_seconds_since(uint64_t began_ns);
void transfer_free(struct transfer *transfer);

/* When the oldest promotion from @tier began, if that is before @oldest_ns. */
uint64_t transfer_oldest_up(struct transfers *transfers, enum index_tier tier, uint64_t oldest_ns);

/* Something has ended: others may begin, and whoever waits for quiet looks again. */
void transfers_progress(struct cache *cache);
