// SPDX-License-Identifier: Apache-2.0
/*
 * Page maps: an engine's paged memory, as told once and held against the layout. Immutable
 * after that, so that any thread may read one; counted, since calls in flight hold theirs.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "client/kvtier.h"
#include "client/page_device.h"
#include "proto/layout.h"

#define KVT__PAGE_VIEWS_MAX (1u << 20) /* of a map */

struct kvt_page_map {
        atomic_uint refs;
        uint64_t session; /* serial of the one it is of: an address may be used again */
        bool has_device; /* some group is not in host memory */
        uint32_t n_groups;
        struct kvt__page_group groups[]; /* and behind them their views */
};

/*
 * Pure. @layout may be partial: (group, shard) without a row are refused. 0, -EINVAL with
 * group and reason in @why, or -ENOMEM.
 */
int kvt__page_map_build(struct kvt_page_map **ret_map, const struct layout *layout,
                        const struct kvt_page_group *groups, uint32_t n_groups, struct why *why);

/*
 * Whose memory each group is: @device's (may be NULL), or such as this process can read. 0, or
 * -EINVAL with group and reason in @why.
 */
int kvt__page_map_place(struct kvt_page_map *map, const struct layout *layout,
                        const struct kvt__page_device *device, struct why *why);

/* NULL: the map has no such pages. */
const struct kvt__page_group *kvt__page_map_find(const struct kvt_page_map *map, uint16_t group,
                                                 uint16_t shard);

void kvt__page_map_ref(struct kvt_page_map *map);

/* Frees it when nobody has it any more. NULL is fine. */
void kvt__page_map_unref(struct kvt_page_map *map);
