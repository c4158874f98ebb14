// SPDX-License-Identifier: Apache-2.0
/*
 * What the catalog keeps of a layout: its encoding, under a key of domain and layout id.
 * An id that is not the SHA-256 of its encoding is damage: a layout is never believed to
 * be another. Pure functions, any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"
#include "storage/tier.h"

#define CATALOG_LAYOUT_KEY_BYTES 37u /* 'l', domain, layout id */
#define CATALOG_LAYOUT_PREFIX    'l'

enum {
        CATALOG_LAYOUT_E_DAMAGED = 1, /* wrong length, version, checksum, field or id */
};

/* Head of the value, little-endian; the encoding follows. */
struct catalog_layout_head {
        uint32_t version;
        uint32_t length;   /* of the encoding */
        uint64_t checksum; /* XXH3-64 of the value with this field zero */
};

_Static_assert(sizeof(struct catalog_layout_head) == 16, "catalog_layout_head is on disk");
_Static_assert(offsetof(struct catalog_layout_head, length) == 4, "layout entry");
_Static_assert(offsetof(struct catalog_layout_head, checksum) == 8, "layout entry");

void catalog_layout_key(uint8_t ret_key[CATALOG_LAYOUT_KEY_BYTES], uint32_t domain,
                        const struct digest *id);

/* Writes sizeof(struct catalog_layout_head) + @layout->length bytes to @value. */
void catalog_layout_encode(void *value, const struct tier_layout *layout);

/* 0, CATALOG_LAYOUT_E_DAMAGED or -ENOMEM. The encoding of @ret_layout points into @value. */
int catalog_layout_decode(struct tier_layout *ret_layout, const void *key, size_t key_bytes,
                          const void *value, size_t value_bytes);
