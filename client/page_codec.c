// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "client/page_codec.h"

#define BUFFER_NUMBERS 4096u /* codes of one byte each */
#define TILE_LEAST     32u   /* numbers */
#define BUFFER_SCALES  (BUFFER_NUMBERS / TILE_LEAST * CODEC_SCALE_MAX + CODEC_PAGE_ALIGN)

/* ---- the walk ---- */

void kvt__tile_walk_init(struct kvt__tile_walk *ret_walk, const struct kvt__page_list *list)
{
        const struct kvt__page_group *group = list->group;

        *ret_walk = (struct kvt__tile_walk){
                .list = *list,
                .tile_numbers = codec_tile_numbers(group->codec),
                .scale_bytes = codec_scale_bytes(group->codec),
                .page_tiles = group->page_bytes / codec_tile_bytes(group->codec),
        };
}

/* Steps over @n tiles, to the next row, view or page behind the last of one. */
static void step(struct kvt__tile_walk *walk, uint64_t n, uint64_t row_tiles)
{
        const struct kvt__page_group *group = walk->list.group;

        walk->tile += n;
        walk->row_tile += n;
        if (walk->row_tile < row_tiles)
                return;
        walk->row_tile = 0;
        if (++walk->row < group->views[walk->view].n_rows)
                return;
        walk->row = 0;
        if (++walk->view < group->n_views)
                return;
        walk->view = 0;
        walk->tile = 0;
        walk->page_start += group->stored_bytes;
        walk->slot++;
}

bool kvt__tile_walk_next(struct kvt__tile_walk *walk, uint64_t most, struct kvt__tile_run *ret_run)
{
        const struct kvt__page_group *group = walk->list.group;
        const struct kvt__page_view *view = &group->views[walk->view];
        uint64_t row_tiles = view->row_bytes / CODEC_NUMBER_BYTES / walk->tile_numbers;
        uint64_t n = row_tiles - walk->row_tile, all_codes = walk->page_tiles * walk->tile_numbers;

        if (walk->slot == walk->list.n_slots)
                return false;
        if (n > most)
                n = most;
        *ret_run = (struct kvt__tile_run){
                .page = view->base + walk->list.slots[walk->slot] * view->page_stride +
                        walk->row * view->row_stride +
                        walk->row_tile * walk->tile_numbers * CODEC_NUMBER_BYTES,
                .n_tiles = n,
                .codes = walk->page_start + walk->tile * walk->tile_numbers,
                .scales = walk->page_start + all_codes + walk->tile * walk->scale_bytes,
        };
        if (walk->tile + n == walk->page_tiles)
                ret_run->pad_bytes = (uint32_t)(group->stored_bytes - all_codes -
                                                walk->page_tiles * walk->scale_bytes);
        step(walk, n, row_tiles);
        return true;
}

uint8_t *kvt__object_at(struct kvt__object_place *place, uint64_t at, uint64_t *ret_bytes)
{
        while (at - place->start >= place->segment->bytes) {
                place->start += place->segment->bytes;
                place->segment++;
        }
        *ret_bytes = place->segment->bytes - (at - place->start);
        return (uint8_t *)place->segment->address + (at - place->start);
}

/* ---- the copy ---- */

/* Moves @length bytes between the object, from byte @at on, and @bytes. */
static void move(struct kvt__object_place *place, bool is_store, uint64_t at, uint8_t *bytes,
                 uint64_t length)
{
        while (length) {
                uint64_t part;
                uint8_t *object = kvt__object_at(place, at, &part);

                if (part > length)
                        part = length;
                if (is_store)
                        memcpy(object, bytes, part);
                else
                        memcpy(bytes, object, part);
                at += part;
                bytes += part;
                length -= part;
        }
}

/* Within a page one of the places is far ahead of the other. */
struct places {
        struct kvt__object_place codes, scales;
};

static void copy_run(const struct kvt__tile_walk *walk, const struct kvt__tile_run *run,
                     bool is_store, struct places *places)
{
        uint8_t codec = walk->list.group->codec;
        uint8_t codes[BUFFER_NUMBERS], scales[BUFFER_SCALES];
        uint64_t scales_bytes = run->n_tiles * walk->scale_bytes;

        if (is_store) {
                codec_encode(codec, run->page, run->n_tiles, codes, scales);
                /* Every byte of an object is defined, and equal pages are equal bytes. */
                memset(scales + scales_bytes, 0, run->pad_bytes);
                scales_bytes += run->pad_bytes;
        }
        move(&places->codes, is_store, run->codes, codes, run->n_tiles * walk->tile_numbers);
        move(&places->scales, is_store, run->scales, scales, scales_bytes);
        if (!is_store)
                codec_decode(codec, codes, scales, run->n_tiles, run->page);
}

bool kvt__page_codec_copy(const struct kvt__page_list *list, bool is_store, const atomic_bool *stop)
{
        struct places places = {{list->segments, 0}, {list->segments, 0}};
        struct kvt__tile_walk walk;
        struct kvt__tile_run run;

        kvt__tile_walk_init(&walk, list);
        while (kvt__tile_walk_next(&walk, BUFFER_NUMBERS / walk.tile_numbers, &run)) {
                if (atomic_load_explicit(stop, memory_order_relaxed))
                        return false;
                copy_run(&walk, &run, is_store, &places);
        }
        return true;
}
