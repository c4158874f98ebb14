// SPDX-License-Identifier: Apache-2.0
/*
 * A lease on what a dead node has left in the pool: objects "lease/NODE/EPOCH". The holder
 * is who created the one with the highest epoch (POOL_EXCLUSIVE: of two at once one wins),
 * as long as it rewrites it in time; a lease that was let lapse is superseded by creating
 * the next epoch, never by writing the old one.
 *
 * It spares work, it is no lock: all that is done under it may be done twice. Clocks of
 * nodes may so differ by some seconds (POOL_LEASE_MARGIN_S). Pure functions, any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "storage/pool.h"
#include "storage/pool_name.h"

#define POOL_LEASE_MAGIC    "KVTIERLE"
#define POOL_LEASE_VERSION  1u
#define POOL_LEASE_BYTES    160u
#define POOL_LEASE_KIND     "lease"
#define POOL_LEASE_MARGIN_S 10u
#define POOL_LEASE_MAX_S    3600u

enum {
        POOL_LEASE_E_DAMAGED = 1,
        POOL_LEASE_E_NEWER,
};

struct pool_lease {
        uint8_t node[16]; /* whose bundles and journal it is about */
        uint8_t holder[16];
        char host[POOL_HOST_MAX]; /* the holder's, for people */
        uint64_t epoch;
        uint64_t written_ns; /* wall clock of the holder, ns since 1970 */
        uint32_t seconds;    /* it lapses when it is not rewritten for so long */
};

/* The object, little-endian. */
struct pool_lease_block {
        uint8_t magic[8];
        uint32_t version;
        uint32_t length;   /* POOL_LEASE_BYTES */
        uint64_t checksum; /* XXH3-64 of the block with this field zero */
        uint8_t node[16];
        uint8_t holder[16];
        uint64_t epoch;
        uint64_t written_ns;
        uint32_t seconds;
        uint32_t refuse_flags;
        uint32_t ignore_flags;
        uint8_t reserved[4]; /* zero */
        uint8_t host[POOL_HOST_MAX];
        uint8_t reserved2[8]; /* zero */
};

_Static_assert(sizeof(struct pool_lease_block) == POOL_LEASE_BYTES, "it is in the pool");
_Static_assert(offsetof(struct pool_lease_block, checksum) == 16, "lease layout");
_Static_assert(offsetof(struct pool_lease_block, holder) == 40, "lease layout");
_Static_assert(offsetof(struct pool_lease_block, written_ns) == 64, "lease layout");
_Static_assert(offsetof(struct pool_lease_block, host) == 88, "lease layout");

void pool_lease_encode(uint8_t ret_bytes[POOL_LEASE_BYTES], const struct pool_lease *lease);
/* 0 or POOL_LEASE_E_X. Whether it is that of its name is the caller's to compare. */
int pool_lease_decode(struct pool_lease *ret_lease, const void *bytes, size_t length,
                      struct why *why);

/*
 * Seconds until others may supersede it; 0: at once. One that was written later than now,
 * by more than the margin, holds nothing: it would hold for ever.
 */
uint64_t pool_lease_left_s(const struct pool_lease *lease, uint64_t now_ns);
