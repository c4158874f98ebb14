// SPDX-License-Identifier: Apache-2.0
/*
 * A host copy: the bytes of one generation of one object in the host tier.
 *
 *   WRITING   reserved; a session fills it            -> READY (commit) or freed (abort)
 *   ARRIVING  a promotion fills it                    -> READY or FAILED
 *   READY     complete
 *   FAILED    the promotion failed; waits for its holders to let go
 *
 * A copy is published while it is the current host copy of an index object
 * (copy->object). It may be replaced or dropped while somebody still reads it; then it is
 * detached and lives until the last hold ends. Holds are counted apart: leases (sessions,
 * quarantine, grants: they count against the lease share) and uses (transfers and
 * checksum jobs). A copy is freed, and its extents with it, when it is not published and
 * nobody holds it. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"
#include "daemon/index.h"
#include "daemon/record_pool.h"
#include "proto/checksum.h"
#include "storage/host.h"
#include "storage/tier.h"

enum host_copy_state {
        HOST_COPY_WRITING,
        HOST_COPY_ARRIVING,
        HOST_COPY_READY,
        HOST_COPY_FAILED,
};

/* Somebody who is told when a copy has arrived, or when its checksums are there. */
struct host_copy_waiter {
        TAILQ_ENTRY(host_copy_waiter) link;
        /* Called once, off the list already; the copy's state says what happened. */
        void (*on_ready)(struct host_copy_waiter *waiter);
};
TAILQ_HEAD(host_copy_waiters, host_copy_waiter);

struct host_copy {
        uint32_t id;     /* in index_object.host */
        uint32_t object; /* index object while published, else INDEX_NONE */
        enum host_copy_state state;
        int failure; /* FAILED: the outcome (TIER_E_*) or negative errno of the read */
        uint32_t n_leases;
        uint32_t n_uses;
        uint32_t n_extents;
        struct object_key key;
        uint64_t generation;
        uint64_t raw_bytes;
        uint64_t space_bytes; /* of the extents */
        uint64_t committed_ns;
        uint8_t writer_boot_id[16];
        struct host_extent *extents; /* &extent when there is one */
        struct host_extent extent;
        struct checksum_list *checksums; /* no longer than n_pieces; NULL: not computed yet */
        struct checksum_list *expected;  /* the writer's, until it is compared; or NULL */
        bool hashing;                    /* a checksum job runs */
        bool dirty;                      /* published, and to be written to NVMe */
        bool offered;                    /* published, and to be written to the pool (offer.h) */
        bool spills; /* came from NVMe to go to the pool, and leaves unless used */
        bool replaces;                   /* older bytes; other nodes don't know by what yet */
        struct host_copy_waiters waiters;
        TAILQ_ENTRY(host_copy) dirty_link; /* while dirty, in order of commit */
        TAILQ_ENTRY(host_copy) offer_link; /* while offered */
};
TAILQ_HEAD(host_copy_list, host_copy);

struct host_copies {
        struct host_pool *host; /* borrowed */
        struct record_pool pool;
        uint64_t leased_bytes; /* of copies with a lease, each counted once */
        struct host_copy_list dirty;
        uint64_t dirty_bytes;
        struct host_copy_list offered;
        uint64_t offered_bytes;
};

/* Host memory that a copy of @raw_bytes takes. */
static inline uint64_t host_copy_space(uint64_t raw_bytes)
{
        return (raw_bytes + HOST_UNIT_BYTES - 1) / HOST_UNIT_BYTES * HOST_UNIT_BYTES;
}

/* 0 or -ENOMEM. */
int host_copies_init(struct host_copies *copies, struct host_pool *host);
void host_copies_deinit(struct host_copies *copies); /* every copy must be gone: asserted */

/*
 * A copy of @raw_bytes in freshly allocated space, in @state WRITING or ARRIVING, not
 * published, with one use held by the caller. 0, HOST_E_FULL or -ENOMEM.
 */
int host_copy_new(struct host_copies *copies, const struct object_key *key, uint64_t raw_bytes,
                  enum host_copy_state state, uint32_t numa_node, uint32_t max_extents,
                  struct host_copy **ret_copy);

struct host_copy *host_copy_at(struct host_copies *copies, uint32_t id);

/* Asks the cache for what host_copy_at() will read. */
static inline void host_copy_prefetch_id(const struct host_copies *copies, uint32_t id)
{
        const uint8_t *copy = copies->pool.records + (size_t)id * sizeof(struct host_copy);

        __builtin_prefetch(copy);
        __builtin_prefetch(copy + 64);
        __builtin_prefetch(copy + 128);
}

void host_copy_use(struct host_copy *copy);
void host_copy_unuse(struct host_copies *copies, struct host_copy *copy);
void host_copy_lease(struct host_copies *copies, struct host_copy *copy);
void host_copy_unlease(struct host_copies *copies, struct host_copy *copy);

/*
 * Keeps a copy of @checksums, as long as its pieces are many (the whole struct would cost
 * a kilobyte an object). Without memory the copy has none: they are computed again when
 * they are wanted.
 */
void host_copy_set_checksums(struct host_copy *copy, const struct checksum_list *checksums);

/* The copy becomes, or stops being, the host copy of an index object. */
void host_copy_publish(struct host_copies *copies, struct host_copy *copy, uint32_t object);
void host_copy_detach(struct host_copies *copies, struct host_copy *copy);

/* Whether the published copy's generation is to be written to NVMe. */
void host_copy_set_dirty(struct host_copies *copies, struct host_copy *copy, bool dirty);

/* Whether it is to go to the pool: at the end of the queue; again: at its front. */
void host_copy_set_offered(struct host_copies *copies, struct host_copy *copy, bool offered);
void host_copy_offer_again(struct host_copies *copies, struct host_copy *copy);

/* Calls every waiter, each once. */
void host_copy_wake(struct host_copy *copy);

/* Fills @segments (at least HOST_EXTENTS_MAX) for I/O; returns how many. */
uint32_t host_copy_tier_segments(const struct host_copies *copies, const struct host_copy *copy,
                                 struct tier_segment *ret_segments);
uint32_t host_copy_checksum_segments(const struct host_copies *copies, const struct host_copy *copy,
                                     struct checksum_segment *ret_segments);
