// SPDX-License-Identifier: Apache-2.0
/*
 * What names an object: domain + layout id + digest + group + shard. Compared as bytes,
 * never built by joining strings. The same 72 bytes stand in the catalog, in headers on
 * disk and in every index between nodes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DIGEST_BYTES 32

/* The one domain of today. */
#define DOMAIN_DEFAULT 0u

struct digest {
        uint8_t bytes[DIGEST_BYTES];
};

struct object_key {
        struct digest layout;   /* layout id: SHA-256 of the canonical layout encoding */
        struct digest boundary; /* names the whole prefix up to the boundary */
        uint32_t domain;
        uint16_t group;
        uint16_t shard;
};

_Static_assert(sizeof(struct object_key) == 72, "object_key is on disk and has no padding");
_Static_assert(offsetof(struct object_key, domain) == 64, "object_key layout");
_Static_assert(offsetof(struct object_key, group) == 68, "object_key layout");
_Static_assert(offsetof(struct object_key, shard) == 70, "object_key layout");

static inline int digest_equal(const struct digest *a, const struct digest *b)
{
        return !memcmp(a->bytes, b->bytes, DIGEST_BYTES);
}

/* A parent digest of zeros marks a root. No SHA-256 is all zeros in practice. */
static inline int digest_is_zero(const struct digest *digest)
{
        static const struct digest zero;

        return digest_equal(digest, &zero);
}

static inline int object_key_equal(const struct object_key *a, const struct object_key *b)
{
        return !memcmp(a, b, sizeof(*a));
}
