// SPDX-License-Identifier: Apache-2.0
/*
 * Host memory: a list of arenas, each a sealed memfd of the configured piece size that
 * every session maps. An extent is (arena id, offset, length), in units of 4 KiB.
 *
 * Arenas come up one by one: a worker thread creates the memfd, seals it (SHRINK, GROW,
 * SEAL; MFD_NOEXEC_SEAL where known) and faults every page in, so that a shortage is an
 * error here and never a SIGBUS in somebody's copy. Only then is the arena used and
 * announced. Before each piece, and before each slice of one, the free memory is looked at
 * (storage/memory.h); while there is too little the pool waits and tries again, and never
 * takes more than is free.
 *
 * A seal against punching holes does not exist for memory that others may write. A hole
 * reads as zeros, which no checksum takes for an object. Buffers registered with io_uring
 * keep the old pages, so that promotions into the range and write-downs out of it fail
 * their checksums until the daemon restarts: misses, never wrong bytes.
 *
 * Loop thread only; the worker is the pool's own business.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "base/error.h"

struct extent_map;

#define HOST_UNIT_BYTES  4096u
#define HOST_EXTENTS_MAX 64u /* of one object; equals TIER_SEGMENTS_MAX */

enum {
        HOST_E_FULL = 1, /* no room now: evict and try again */
};

struct host_extent {
        uint32_t arena_id;
        uint32_t reserved;
        uint64_t offset; /* bytes, a multiple of HOST_UNIT_BYTES */
        uint64_t length; /* bytes, a multiple of HOST_UNIT_BYTES */
};

struct host_arena {
        uint32_t id;        /* never repeated within a boot of the machine: random start, then +1 */
        uint32_t numa_node; /* UINT32_MAX: not bound */
        uint64_t bytes;
        uint64_t page_bytes; /* 4096, or the huge page size */
        int fd;              /* sealed memfd, owned by the pool */
        void *base;          /* the daemon's mapping */
        struct extent_map *extents;
};

struct host_options {
        uint64_t total_bytes; /* of all arenas: the hard cap; a multiple of piece_bytes */
        uint64_t piece_bytes; /* of one arena; a multiple of page_bytes */
        uint64_t page_bytes;  /* 4096 or 2 MiB / 1 GiB (MFD_HUGETLB) */
        /* Piece i lies preferably on numa_nodes[i % n_numa_nodes]; UINT32_MAX or none: anywhere. */
        const uint32_t *numa_nodes;
        size_t n_numa_nodes;
        /*
         * Bytes that may be taken now; on a worker thread. NULL: what memory_read() says is
         * free, less 64 MiB for everybody else when pages are small.
         */
        uint64_t (*free_bytes)(void *user);
        uint64_t retry_ms; /* between two looks while there is too little; 0: 1,000 */
        /* On the worker: what takes time with a piece before it is usable. May be NULL. */
        void (*prepare)(void *user, void *base, uint64_t bytes);
        void (*on_arena)(void *user, const struct host_arena *arena); /* one more is usable */
        void (*on_stalled)(void *user, const char *reason); /* waiting for memory; once per stall */
        void *user;
};

struct host_pool;

/*
 * Checks @options against RAM, the hugetlb pool and the cgroup limits, whatever of them is
 * in use now, and says in @why what is wrong and what would fit. 0 or -EINVAL. Used by
 * --check-config too.
 */
int host_check(const struct host_options *options, struct why *why);

/* Starts bringing arenas up on @loop; @options are as host_check() wants them and copied. 0 or a
 * negative errno. */
int host_pool_new(struct host_pool **ret_pool, uv_loop_t *loop, const struct host_options *options);

/*
 * Stops the worker, unmaps and closes all arenas, then calls @on_closed on the loop, later.
 * Nothing else may be called in between.
 */
void host_pool_close(struct host_pool *pool, void (*on_closed)(void *user), void *user);

size_t host_n_arenas(const struct host_pool *pool);
const struct host_arena *host_arena_at(const struct host_pool *pool, size_t index);
/* NULL for an id that is not in use. */
const struct host_arena *host_arena_by_id(const struct host_pool *pool, uint32_t arena_id);

/*
 * Space for @bytes (at least 1, rounded up to units) in at most @max_extents extents,
 * which may lie in several arenas. In order of liking: one extent on @numa_node (UINT32_MAX:
 * anywhere), few there, one anywhere, as few as possible anywhere. As in extent.h, many
 * extents are given only when some space stays free besides. 0, HOST_E_FULL or -ENOMEM.
 * The caller owns the extents and gives each back by host_release().
 */
int host_alloc(struct host_pool *pool, uint64_t bytes, uint32_t numa_node, uint32_t max_extents,
               struct host_extent *ret_extents, uint32_t *ret_n_extents);
void host_release(struct host_pool *pool, const struct host_extent *extents, uint32_t n_extents);

/* Address of an extent in the daemon's mapping. */
void *host_address(const struct host_pool *pool, const struct host_extent *extent);

struct host_usage {
        uint64_t configured_bytes; /* the cap, always kept */
        uint64_t ready_bytes;      /* arenas that are up */
        uint64_t used_bytes;       /* handed out */
        bool stalled;              /* waiting for memory to become free */
        char stall_reason[160];
};

void host_usage(const struct host_pool *pool, struct host_usage *ret_usage);
