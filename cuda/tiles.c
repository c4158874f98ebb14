// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiles.h"
#include "proto/wire.h"

/* A part may need as many spans: its codes and its scales, cut where segments and pieces end. */
#define PART_SPANS_MAX (2u * (WIRE_EXTENTS_MAX + 8u))

_Static_assert(PART_SPANS_MAX < SLOT_SPANS_MAX, "an empty slot takes any part");

/* Some tiles of one page, and where they begin in the staging buffer. */
struct part {
        uint64_t first; /* tile of the page */
        uint64_t n_tiles, n_max;
        uint64_t codes, scales; /* offsets in the staging buffer */
        uint32_t pad_bytes;
};

static uint64_t align(uint64_t bytes)
{
        return (bytes + CODEC_PAGE_ALIGN - 1) / CODEC_PAGE_ALIGN * CODEC_PAGE_ALIGN;
}

/* How many of the page's tiles there is room for: all or none, unless it is longer than a slot. */
static uint64_t find_room(const struct slot *slot, const struct kvt__tile_walk *walk)
{
        uint64_t left = walk->page_tiles - walk->tile, room = slot->bytes_max - slot->bytes;
        uint64_t each = walk->tile_numbers + walk->scale_bytes;
        uint64_t need = align(left * each) + (walk->tile ? CODEC_PAGE_ALIGN : 0);

        if (walk->slot == walk->list.n_slots || slot->n_spans + PART_SPANS_MAX > SLOT_SPANS_MAX)
                return 0;
        if (need <= room)
                return left;
        if (need <= slot->bytes_max || room < CODEC_PAGE_ALIGN)
                return 0;
        return (room - CODEC_PAGE_ALIGN) / each;
}

static struct part begin(const struct slot *slot, const struct kvt__tile_walk *walk, uint64_t n_max)
{
        return (struct part){
                .first = walk->tile,
                .n_max = n_max,
                .codes = slot->bytes,
                .scales = slot->bytes + n_max * walk->tile_numbers,
        };
}

static void put_runs(struct slot *slot, struct kvt__tile_walk *walk, struct part *part)
{
        uint64_t most = KVT_CUDA_TILES_MAX / walk->tile_numbers;
        struct kvt__tile_run run;

        while (part->n_tiles < part->n_max && slot_has_room_for_tiles(slot)) {
                uint64_t left = part->n_max - part->n_tiles;

                if (!kvt__tile_walk_next(walk, left < most ? left : most, &run))
                        break;
                slot_add_tiles(slot, &(struct kvt_cuda_tiles){
                                             .page = (uintptr_t)run.page,
                                             .codes = slot->staging + part->codes +
                                                      part->n_tiles * walk->tile_numbers,
                                             .scales = slot->staging + part->scales +
                                                       part->n_tiles * walk->scale_bytes,
                                             .n_tiles = (uint32_t)run.n_tiles,
                                             .codec = walk->list.group->codec,
                                             .pad_bytes = (uint16_t)run.pad_bytes,
                                     });
                part->n_tiles += run.n_tiles;
                part->pad_bytes = run.pad_bytes;
        }
}

/* The object's bytes from @at on, which lie at @offset in the staging buffer. */
static void put_spans(struct lane *lane, struct lane_slot *slot, struct kvt__object_place *place,
                      uint64_t at, uint64_t offset, uint64_t bytes)
{
        while (bytes) {
                uint64_t n;
                uint8_t *arena = kvt__object_at(place, at, &n);
                struct slot_pair pair = lane_find(lane, arena, n < bytes ? n : bytes);

                slot_add_span(&slot->slot, &pair, offset);
                if (!pair.is_registered)
                        slot->unregistered_bytes += pair.bytes;
                at += pair.bytes;
                offset += pair.bytes;
                bytes -= pair.bytes;
        }
}

/* False: the slot is full, or all is in it. */
static bool put_part(struct lane *lane, struct lane_slot *slot, struct lane_task *task)
{
        struct kvt__tile_walk *walk = &task->tiles;
        uint64_t n_max = find_room(&slot->slot, walk), page_start = walk->page_start, scales;
        struct part part = begin(&slot->slot, walk, n_max);
        uint64_t codes_bytes, scales_bytes;

        if (!n_max || !slot_has_room_for_tiles(&slot->slot))
                return false;
        put_runs(&slot->slot, walk, &part);
        codes_bytes = part.n_tiles * walk->tile_numbers;
        scales_bytes = part.n_tiles * walk->scale_bytes + part.pad_bytes;
        scales =
                page_start + walk->page_tiles * walk->tile_numbers + part.first * walk->scale_bytes;
        put_spans(lane, slot, &task->codes, page_start + part.first * walk->tile_numbers,
                  part.codes, codes_bytes);
        put_spans(lane, slot, &task->scales, scales, part.scales, scales_bytes);
        slot->slot.bytes = align(part.scales + scales_bytes);
        return true;
}

bool tiles_put(struct lane *lane, struct lane_slot *slot, struct lane_task *task)
{
        while (put_part(lane, slot, task))
                ;
        return task->tiles.slot == task->tiles.list.n_slots;
}
