// SPDX-License-Identifier: Apache-2.0
/*
 * What differs between two layouts, field by field: why engines of the same model do not
 * share objects. Groups are matched by name, shards by number; neighbouring shards that
 * differ alike are told once. Pure functions, no allocation, any thread.
 */
#pragma once

#include "proto/layout.h"

#define LAYOUT_DIFF_TEXT_MAX 160u /* with the NUL; longer texts are cut */

/* Texts are valid during the call only. */
struct layout_difference {
        char field[LAYOUT_DIFF_TEXT_MAX]; /* "kv_dtype", "group full shards 0-3 page_bytes" */
        char a[LAYOUT_DIFF_TEXT_MAX];     /* "bfloat16"; "-": not there at all */
        char b[LAYOUT_DIFF_TEXT_MAX];
};

/*
 * Calls @on_difference, in the order of the encoding, for each difference between two
 * valid, complete layouts; it returns false to end the comparison. Returns how many were
 * told: 0 when they encode to the same bytes, and only then.
 */
unsigned layout_diff(const struct layout *a, const struct layout *b,
                     bool (*on_difference)(void *user, const struct layout_difference *difference),
                     void *user);

/* "attention", "state"; "unknown". Never NULL. */
const char *layout_kind_name(uint8_t kind);
