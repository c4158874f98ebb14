// SPDX-License-Identifier: Apache-2.0
/*
 * From struct kvt_layout, as callers fill it, to the canonical encoding of proto/layout.h.
 * Pure functions, any thread.
 */
#pragma once

#include "base/error.h"
#include "client/kvtier.h"
#include "proto/layout.h"

struct kvt__layout_encoding {
        size_t length;
        uint8_t bytes[LAYOUT_BYTES_MAX];
};

/*
 * @is_partial: rows may be missing. 0; -EINVAL, -ENOSPC (too large) or -ENOMEM with the
 * reason in @why.
 */
int kvt__layout_encode(struct kvt__layout_encoding *ret_encoding, const struct kvt_layout *layout,
                       bool is_partial, struct why *why);

/*
 * The same layout with the daemon's choice of chunk_tokens, decoded: @ret_layout points
 * into @ret_encoding. 0, or -EINVAL when the choice does not fit the layout.
 */
int kvt__layout_choose(struct kvt__layout_encoding *ret_encoding, struct layout *ret_layout,
                       const struct kvt__layout_encoding *asked, uint32_t chunk_tokens,
                       struct why *why);

/*
 * The whole layout as the daemon tells it, decoded: @ret_layout points into @encoding. 0,
 * or -EINVAL when it contradicts what was asked, or its id is not @id; -ENOMEM, -ENOSPC.
 */
int kvt__layout_complete(struct layout *ret_layout, const struct kvt__layout_encoding *asked,
                         const uint8_t *encoding, size_t length, const struct digest *id,
                         struct why *why);

/*
 * Copies a struct that begins with `size` from a caller of perhaps another version: what
 * the caller lacks is zero; what this library does not know must be zero. 0 or -EINVAL.
 */
int kvt__copy_sized(void *ret_copy, size_t size, const void *from);
