// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "client/page_copy.h"

/*
 * Rows from this length on go around the caches: the bytes of a chunk are more than the
 * caches hold, and the line that a plain store fetches first costs a third of the rate
 * (measured at pages of 4 KiB to 1 MiB, both ways: tests/bench/bench_pages.c).
 */
#define STREAM_BYTES_MIN 1024u

void kvt__page_walk_init(struct kvt__page_walk *ret_walk, const struct kvt__page_list *list)
{
        *ret_walk = (struct kvt__page_walk){.list = *list};
}

/* Steps to the next row: of the view, of the page, of the next page. */
static void step(struct kvt__page_walk *walk)
{
        const struct kvt__page_group *group = walk->list.group;

        if (++walk->row < group->views[walk->view].n_rows)
                return;
        walk->row = 0;
        if (++walk->view < group->n_views)
                return;
        walk->view = 0;
        walk->slot++;
}

/* Are pages one row each, with no gap between them? */
static bool is_packed(const struct kvt__page_group *group)
{
        return group->n_views == 1 && group->views[0].n_rows == 1 &&
               group->views[0].page_stride == group->views[0].row_bytes;
}

/* Takes the next row, with the neighbours that lie behind it. False: there is none. */
static bool take_row(struct kvt__page_walk *walk)
{
        const struct kvt__page_list *list = &walk->list;
        const struct kvt__page_view *view = &list->group->views[walk->view];

        if (walk->slot == list->n_slots)
                return false;
        walk->page_side = view->base + list->slots[walk->slot] * view->page_stride +
                          walk->row * view->row_stride;
        walk->page_left = view->row_bytes;
        step(walk);
        while (is_packed(list->group) && walk->slot < list->n_slots &&
               list->slots[walk->slot] == (uint64_t)list->slots[walk->slot - 1] + 1) {
                walk->page_left += view->row_bytes;
                walk->slot++;
        }
        return true;
}

bool kvt__page_walk_next(struct kvt__page_walk *walk, struct kvt__page_run *ret_run)
{
        const struct kvt_segment *segment;
        uint64_t bytes;

        if (!walk->page_left && !take_row(walk))
                return false;
        if (walk->segment_offset == walk->list.segments->bytes) {
                walk->list.segments++;
                walk->segment_offset = 0;
        }
        segment = walk->list.segments;
        bytes = segment->bytes - walk->segment_offset;
        if (bytes > walk->page_left)
                bytes = walk->page_left;
        if (bytes > KVT__PAGE_RUN_MAX)
                bytes = KVT__PAGE_RUN_MAX;
        *ret_run = (struct kvt__page_run){
                .page = walk->page_side,
                .arena = (uint8_t *)segment->address + walk->segment_offset,
                .bytes = bytes,
        };
        walk->page_side += bytes;
        walk->page_left -= bytes;
        walk->segment_offset += bytes;
        return true;
}

#ifdef __SSE2__
static void stream(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
        uint64_t head = -(uintptr_t)to % sizeof(__m128i);

        memcpy(to, from, head);
        to += head;
        from += head;
        bytes -= head;
        for (; bytes >= 4 * sizeof(__m128i); bytes -= 4 * sizeof(__m128i)) {
                __m128i *lines = (void *)to;
                const __m128i *source = (const void *)from;
                __m128i a = _mm_loadu_si128(source);
                __m128i b = _mm_loadu_si128(source + 1);
                __m128i c = _mm_loadu_si128(source + 2);
                __m128i d = _mm_loadu_si128(source + 3);

                _mm_stream_si128(lines, a);
                _mm_stream_si128(lines + 1, b);
                _mm_stream_si128(lines + 2, c);
                _mm_stream_si128(lines + 3, d);
                to += 4 * sizeof(__m128i);
                from += 4 * sizeof(__m128i);
        }
        memcpy(to, from, bytes);
}

/* Streamed bytes are not ordered by locks. */
static void end_streams(void)
{
        _mm_sfence();
}
#else
static void stream(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
        memcpy(to, from, bytes);
}

static void end_streams(void) {}
#endif

bool kvt__page_copy(const struct kvt__page_list *list, bool is_store, const atomic_bool *stop)
{
        struct kvt__page_walk walk;
        struct kvt__page_run run;
        bool is_whole = true;

        kvt__page_walk_init(&walk, list);
        while (kvt__page_walk_next(&walk, &run)) {
                uint8_t *to = is_store ? run.arena : run.page;
                const uint8_t *from = is_store ? run.page : run.arena;

                is_whole = !atomic_load_explicit(stop, memory_order_relaxed);
                if (!is_whole)
                        break;
                if (run.bytes < STREAM_BYTES_MIN)
                        memcpy(to, from, run.bytes);
                else
                        stream(to, from, run.bytes);
        }
        end_streams();
        return is_whole;
}
