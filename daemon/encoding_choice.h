// SPDX-License-Identifier: Apache-2.0
/*
 * Which encoding (storage/encoding.h) objects get on their way down: one for each kind of
 * group, as the configuration says, with the planes that the group's numbers call for.
 *
 * Pure functions, any thread.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "proto/layout.h"
#include "storage/encoding.h"

#define ENCODING_CHOICE_KINDS 5u /* kinds of groups that are stored */

_Static_assert(LAYOUT_ATTENTION == 1 && LAYOUT_STATE == ENCODING_CHOICE_KINDS, "one each");

struct encoding_choice {
        uint8_t kinds[ENCODING_CHOICE_KINDS]; /* enum encoding_kind, by enum layout_kind - 1 */
};

/*
 * From "planes-zstd", for all groups, or "planes-zstd,state=off,index=lz4": words for single
 * kinds of groups behind it, or alone; a kind that is not named stays off. 0, or -EINVAL
 * with @why.
 */
int encoding_choice_parse(struct encoding_choice *ret_choice, const char *text, struct why *why);

/* Of an object of a group of @group_kind (enum layout_kind, 0: unknown, which stays raw). */
struct encoding encoding_choose(const struct encoding_choice *choice, uint8_t group_kind,
                                uint32_t number_bytes);

/*
 * Bytes of a number in objects of @group: those of the dtype that takes most of its first
 * row, by the first number in its name ("bfloat16", "torch.float32", "fp8_e4m3": 16, 32, 8
 * bits); without tensors that of kv_dtype. 1 when the name has none, or the pages are
 * stored under a lossy codec.
 */
uint8_t encoding_choice_number_bytes(const struct layout *layout, uint16_t group);
