// SPDX-License-Identifier: Apache-2.0
/*
 * The digest chain for engines that have no block hashes of their own.
 *
 * Every digest names a whole prefix, so that equal digests mean equal prefixes under
 * equal salt, LoRA and image ids. Byte layout (all integers little-endian):
 *
 *   root = SHA-256("kvtier/root/1" 00 | u32 n | n x (u32 length | bytes))
 *          over the identity strings in order: salt, LoRA name, then the image ids
 *   step = SHA-256("kvtier/step/1" 00 | previous digest | u32 tokens[chunk tokens])
 *   end  = SHA-256("kvtier/end/1" 00 00 | last boundary's digest | u32 tokens[r] | u32 r)
 *          with r < chunk tokens remaining tokens; for r = 0 the end is the boundary itself
 *
 * Test vectors: tests/unit/proto/test_digest.c. Pure functions, any thread; they return 0
 * or -ENOMEM (the SHA-256 library allocates).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"

struct digest_string {
        const void *bytes;
        uint32_t length;
};

int digest_root(struct digest *ret_digest, const struct digest_string *strings, uint32_t n_strings);

int digest_step(struct digest *ret_digest, const struct digest *previous, const uint32_t *tokens,
                uint32_t n_tokens);

int digest_end(struct digest *ret_digest, const struct digest *previous, const uint32_t *tokens,
               uint32_t n_tokens);

/*
 * All ends of 1, 2, ... @n_tokens remaining tokens after @previous, into
 * @ret_digests[0 .. n_tokens - 1], for the cost of one pass.
 */
int digest_ends(struct digest *ret_digests, const struct digest *previous, const uint32_t *tokens,
                uint32_t n_tokens);

/* Plain SHA-256 of some bytes. */
int digest_of_bytes(struct digest *ret_digest, const void *bytes, size_t length);
