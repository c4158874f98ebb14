// SPDX-License-Identifier: Apache-2.0
/*
 * Copying the pages of groups with a codec (proto/codec.h), which are other bytes in objects
 * than in the engine's memory. Codes and scales of a page lie apart in the object, and
 * segments end where they like: so some tiles at a time go through a buffer that the first
 * level of cache holds. Pure but for the copy; any thread.
 */
#pragma once

#include "client/page_copy.h"

/* As kvt__page_copy(), for a group with a codec. */
bool kvt__page_codec_copy(const struct kvt__page_list *list, bool is_store,
                          const atomic_bool *stop);
