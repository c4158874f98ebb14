// SPDX-License-Identifier: Apache-2.0
/*
 * The presence table: what the daemon has, in shared memory that only it can write.
 *
 * One 32-byte entry per boundary and bank; one bit per (group, shard) cell. A lookup is
 * one probe: no system call, no message, no lock. It is a hint: a hit is promised only
 * by acquire.
 *
 * Writer: the daemon's loop thread, alone. Readers: any thread of any client, through a
 * read-only mapping. An entry is guarded by its sequence (odd while being written); a
 * reader that meets an odd sequence or sees it change tries again a bounded number of
 * times, then takes the entry for a miss, so that a daemon that dies in mid-write costs
 * a miss and nothing else.
 *
 * Placement: entries form buckets of two, one cache line. A fingerprint's home bucket is
 * its high half scaled to the number of buckets. When the home is full, the entry goes to
 * one of the next PRESENCE_PROBE_BUCKETS - 1, and the home counts it in the overflow
 * field of its first entry's flags; a reader that finds no match at home and an overflow
 * of 0 stops there. An entry never moves while it lives.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/key.h"

#define PRESENCE_MAGIC          UINT64_C(0x315345525054564b) /* "KVTPRES1" */
#define PRESENCE_VERSION        1u
#define PRESENCE_HEADER_BYTES   4096u
#define PRESENCE_BUCKET_ENTRIES 2u
#define PRESENCE_PROBE_BUCKETS  32u
#define PRESENCE_CELLS_PER_BANK 64u
#define PRESENCE_BLOCK          256u /* most lookups of one presence_lookup_block() */

/* presence_entry.flags */
#define PRESENCE_REMOTE_ONLY    (1u << 0) /* some cell is in the remote tier only */
#define PRESENCE_HAS_CHILD      (1u << 1) /* another boundary hangs on this one */
#define PRESENCE_SEEN           (1u << 2) /* it was there once; the entry may have no bits */
#define PRESENCE_OVERFLOW_SHIFT 16        /* bits 16..31: entries of this home elsewhere */

/* presence_header.state */
enum presence_state {
        PRESENCE_STARTING = 1, /* everything reads as a miss */
        PRESENCE_SERVING = 2,
        PRESENCE_DRAINING = 3, /* loads go on, nothing new is admitted */
        PRESENCE_STOPPED = 4,
};

struct presence_entry {
        _Atomic uint64_t fingerprint; /* 0: free */
        _Atomic uint64_t present;     /* bit per cell: in some tier */
        _Atomic uint64_t resident;    /* bit per cell: in the host tier */
        _Atomic uint32_t sequence;    /* odd while being written */
        _Atomic uint32_t flags;
};

_Static_assert(sizeof(struct presence_entry) == 32, "two entries a cache line");
_Static_assert(offsetof(struct presence_entry, present) == 8, "presence_entry layout");
_Static_assert(offsetof(struct presence_entry, resident) == 16, "presence_entry layout");
_Static_assert(offsetof(struct presence_entry, sequence) == 24, "presence_entry layout");
_Static_assert(offsetof(struct presence_entry, flags) == 28, "presence_entry layout");

struct presence_header {
        uint64_t magic;
        uint32_t version;
        uint32_t header_bytes;  /* PRESENCE_HEADER_BYTES: where the entries begin */
        uint32_t entry_bytes;   /* sizeof(struct presence_entry) */
        uint32_t probe_buckets; /* PRESENCE_PROBE_BUCKETS */
        uint64_t n_buckets;     /* PRESENCE_PROBE_BUCKETS to 2^32 - 1 */
        uint64_t hash_key;      /* random for each boot of the daemon */
        uint8_t boot_id[16];
        uint64_t heartbeat_period_ns;
        _Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the last beat */
        _Atomic uint32_t state;        /* enum presence_state */
        uint32_t reserved;             /* zero */
};

_Static_assert(sizeof(struct presence_header) == 80, "presence_header layout");
_Static_assert(offsetof(struct presence_header, n_buckets) == 24, "presence_header layout");
_Static_assert(offsetof(struct presence_header, boot_id) == 40, "presence_header layout");
_Static_assert(offsetof(struct presence_header, heartbeat_ns) == 64, "presence_header layout");
_Static_assert(offsetof(struct presence_header, state) == 72, "presence_header layout");

/* A reader's view of a mapped table. */
struct presence_view {
        const struct presence_header *header;
        const struct presence_entry *entries;
        uint64_t n_buckets; /* checked copy: the header is not read again for it */
};

struct presence_bits {
        uint64_t present;
        uint64_t resident;
        uint32_t flags;
};

/* Bytes of a table with room for @objects_max boundaries at a load of two thirds. */
uint64_t presence_table_bytes(uint64_t objects_max);
uint64_t presence_n_buckets(uint64_t objects_max);

/*
 * Checks magic, version and geometry of a table mapped at @base against the @bytes that
 * are mapped. 0 or -EPROTO.
 */
int presence_view_init(struct presence_view *ret_view, const void *base, uint64_t bytes);

/* Seed for one (domain, layout, bank), to be kept by callers that look up many digests. */
uint64_t presence_seed(uint64_t hash_key, uint32_t domain, const struct digest *layout,
                       uint32_t bank);

/* Fingerprint of a boundary under @seed; never 0. */
uint64_t presence_fingerprint(uint64_t seed, const struct digest *boundary);

static inline uint64_t presence_home(uint64_t fingerprint, uint64_t n_buckets)
{
        return ((fingerprint >> 32) * n_buckets) >> 32;
}

/* Asks the cache for a fingerprint's home bucket ahead of presence_lookup(). */
static inline void presence_prefetch(const struct presence_view *view, uint64_t fingerprint)
{
        __builtin_prefetch(&view->entries[presence_home(fingerprint, view->n_buckets) *
                                          PRESENCE_BUCKET_ENTRIES]);
}

/* True and the bits when the boundary is in the table; false is a miss. */
bool presence_lookup(const struct presence_view *view, uint64_t fingerprint,
                     struct presence_bits *ret_bits);

/* Many lookups at once, with their cache misses overlapped. Meant to live on the stack. */
struct presence_block {
        struct presence_bits bits[PRESENCE_BLOCK]; /* zeros for a miss */
        uint64_t fingerprints[PRESENCE_BLOCK];
        uint16_t elsewhere[PRESENCE_BLOCK]; /* those not at home */
};

/*
 * Looks up @n boundaries in @n_banks banks, at most PRESENCE_BLOCK lookups, into
 * @ret_block->bits: the banks of a boundary side by side, in the order of @seeds.
 */
void presence_lookup_block(const struct presence_view *view, const uint64_t *seeds,
                           uint32_t n_banks, const struct digest *boundaries, uint32_t n,
                           struct presence_block *ret_block);
