// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "client/page_codec.h"

#define BUFFER_NUMBERS 4096u /* codes of one byte each */
#define TILE_LEAST     32u   /* numbers */
#define BUFFER_SCALES  (BUFFER_NUMBERS / TILE_LEAST * CODEC_SCALE_MAX)
#define PADDING_MAX    CODEC_PAGE_ALIGN

/* A place in the segments. It only moves on. */
struct place {
        const struct kvt_segment *segment;
        uint64_t start; /* of the segment in the object */
};

struct copy {
        const struct kvt__page_list *list;
        const atomic_bool *stop;
        bool is_store;
        uint32_t tile_numbers, scale_bytes;
        uint64_t page_tiles;
        struct place codes, scales; /* within a page one is far ahead of the other */
        uint64_t page_start;        /* in the object */
        uint64_t tile;              /* the next of the page */
};

/* Moves @length bytes between the object, from byte @at on, and @bytes. */
static void move(const struct copy *copy, struct place *place, uint64_t at, uint8_t *bytes,
                 uint64_t length)
{
        while (length) {
                uint64_t end = place->start + place->segment->bytes, part;
                uint8_t *object;

                if (at >= end) {
                        place->start = end;
                        place->segment++;
                        continue;
                }
                part = end - at < length ? end - at : length;
                object = (uint8_t *)place->segment->address + (at - place->start);
                if (copy->is_store)
                        memcpy(object, bytes, part);
                else
                        memcpy(bytes, object, part);
                at += part;
                bytes += part;
                length -= part;
        }
}

/* Tiles that lie together in the engine's memory; no more than the buffer holds. */
static void copy_tiles(struct copy *copy, uint8_t *page, uint64_t n)
{
        uint8_t codec = copy->list->group->codec;
        uint64_t codes_at = copy->page_start + copy->tile * copy->tile_numbers;
        uint64_t scales_at = copy->page_start + copy->page_tiles * copy->tile_numbers +
                             copy->tile * copy->scale_bytes;
        uint8_t codes[BUFFER_NUMBERS], scales[BUFFER_SCALES];

        if (copy->is_store)
                codec_encode(codec, page, n, codes, scales);
        move(copy, &copy->codes, codes_at, codes, n * copy->tile_numbers);
        move(copy, &copy->scales, scales_at, scales, n * copy->scale_bytes);
        if (!copy->is_store)
                codec_decode(codec, codes, scales, n, page);
        copy->tile += n;
}

static bool copy_row(struct copy *copy, uint8_t *row, uint64_t bytes)
{
        uint64_t most = BUFFER_NUMBERS / copy->tile_numbers;
        uint64_t left = bytes / CODEC_NUMBER_BYTES / copy->tile_numbers;

        while (left) {
                uint64_t n = left < most ? left : most;

                if (atomic_load_explicit(copy->stop, memory_order_relaxed))
                        return false;
                copy_tiles(copy, row, n);
                row += n * copy->tile_numbers * CODEC_NUMBER_BYTES;
                left -= n;
        }
        return true;
}

static bool copy_page(struct copy *copy, uint32_t slot)
{
        const struct kvt__page_group *group = copy->list->group;

        for (uint32_t v = 0; v < group->n_views; v++) {
                const struct kvt__page_view *view = &group->views[v];
                uint8_t *page = view->base + slot * view->page_stride;

                for (uint32_t r = 0; r < view->n_rows; r++)
                        if (!copy_row(copy, page + r * view->row_stride, view->row_bytes))
                                return false;
        }
        return true;
}

/* Every byte of an object is defined, and equal pages are equal objects. */
static void pad_page(struct copy *copy)
{
        uint8_t zeros[PADDING_MAX] = {0};
        uint64_t used = copy->page_tiles * (copy->tile_numbers + copy->scale_bytes);

        if (copy->is_store)
                move(copy, &copy->scales, copy->page_start + used, zeros,
                     copy->list->group->stored_bytes - used);
}

bool kvt__page_codec_copy(const struct kvt__page_list *list, bool is_store, const atomic_bool *stop)
{
        const struct kvt__page_group *group = list->group;
        struct copy copy = {
                .list = list,
                .stop = stop,
                .is_store = is_store,
                .tile_numbers = codec_tile_numbers(group->codec),
                .scale_bytes = codec_scale_bytes(group->codec),
                .page_tiles = group->page_bytes / codec_tile_bytes(group->codec),
                .codes = {list->segments, 0},
                .scales = {list->segments, 0},
        };

        for (uint32_t i = 0; i < list->n_slots; i++) {
                if (!copy_page(&copy, list->slots[i]))
                        return false;
                pad_page(&copy);
                copy.page_start += group->stored_bytes;
                copy.tile = 0;
        }
        return true;
}
