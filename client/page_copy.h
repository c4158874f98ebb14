// SPDX-License-Identifier: Apache-2.0
/*
 * Copying pages: from a list of an engine's pages to runs of bytes that lie together on both
 * sides, and the copying of those.
 *
 * An object's bytes are its pages in order, a page's are its views in order, row by row
 * (kvtier.h). Runs are as long as both sides allow: where a page is one row and pages follow
 * one another without a gap, neighbouring pages make one run; no run is longer than
 * KVT__PAGE_RUN_MAX, so that a copy can be stopped soon. Groups with a codec have no runs: their
 * copies are page_codec.h's. Pure but for the copy itself; any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "proto/codec.h"

#define KVT__PAGE_RUN_MAX (UINT64_C(1) << 20)

struct kvt__page_view {
        uint8_t *base;
        uint64_t page_stride;
        uint64_t row_bytes;
        uint64_t row_stride;
        uint32_t n_rows;
};

/* Views that have been found right (client/page_map.c), joined where they touch. */
struct kvt__page_group {
        uint16_t group;
        uint16_t shard;
        uint32_t page_tokens; /* 0: states */
        uint32_t place;       /* whose memory it is: client/page_device.h */
        uint64_t n_pages;
        uint64_t page_bytes;   /* of all views */
        uint64_t stored_bytes; /* of a page in an object; page_bytes without a codec */
        uint8_t codec;         /* enum codec; rows are whole tiles then, at even addresses */
        uint32_t n_views;
        struct kvt__page_view *views;
};

/* Are pages one row each, with no gap between them? */
bool kvt__page_group_is_packed(const struct kvt__page_group *group);

/* What to copy. The segments hold n_slots * stored_bytes bytes. */
struct kvt__page_list {
        const struct kvt__page_group *group;
        const uint32_t *slots;
        uint32_t n_slots;
        const struct kvt_segment *segments;
};

/* The next byte of both sides. */
struct kvt__page_walk {
        struct kvt__page_list list;
        uint32_t slot, view, row;
        uint8_t *page_side;
        uint64_t page_left; /* of what lies together there */
        uint64_t segment_offset;
};

struct kvt__page_run {
        uint8_t *page;  /* in the engine's memory */
        uint8_t *arena; /* in the object's */
        uint64_t bytes;
};

/* Of a group without a codec. */
void kvt__page_walk_init(struct kvt__page_walk *ret_walk, const struct kvt__page_list *list);

/* False when all bytes have been walked over. */
bool kvt__page_walk_next(struct kvt__page_walk *walk, struct kvt__page_run *ret_run);

/*
 * Copies the whole list. False when *@stop became true before the end. Whoever sees the
 * caller's next unlock or release store sees the bytes.
 */
bool kvt__page_copy(const struct kvt__page_list *list, bool is_store, const atomic_bool *stop);
