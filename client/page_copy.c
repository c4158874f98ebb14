// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "client/page_codec.h"
#include "client/page_copy.h"

/*
 * Runs from this length on go around the caches: the bytes of a chunk are more than the
 * caches hold, and the line that a plain store fetches first costs a third of the rate.
 * Where pages are small, the first touch of each costs as much as the rest of it, mostly for
 * the translation of its address. So the first line of a run is touched AHEAD runs early,
 * and the whole of a small run is fetched while the one before the one before it is copied.
 * Measured by tests/bench/bench_pages.c and smaller loops: at 4 KiB, streams and fetching
 * ahead each give a fifth or more, from 64 KiB on streams alone count.
 */
#define STREAM_BYTES_MIN 512u
#define AHEAD            4u
#define AHEAD_FETCHED    2u
#define FETCHED_MAX      4096u /* bytes of a run */
#define LINE             64u

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

bool kvt__page_group_is_packed(const struct kvt__page_group *group)
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
        while (kvt__page_group_is_packed(list->group) && walk->slot < list->n_slots &&
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

/* What will be read soon; as many bytes as are worth fetching. */
struct ahead {
        const uint8_t *bytes;
        uint64_t length;
};

#ifdef __SSE2__
static void stream(uint8_t *to, const uint8_t *from, uint64_t bytes, const struct ahead *ahead)
{
        uint64_t head = -(uintptr_t)to % sizeof(__m128i), at = 0;

        memcpy(to, from, head);
        to += head;
        from += head;
        bytes -= head;
        for (; at + LINE <= bytes; at += LINE) {
                const __m128i *source = (const void *)(from + at);
                __m128i *lines = (void *)(to + at);
                __m128i a = _mm_loadu_si128(source);
                __m128i b = _mm_loadu_si128(source + 1);
                __m128i c = _mm_loadu_si128(source + 2);
                __m128i d = _mm_loadu_si128(source + 3);

                if (at < ahead->length)
                        __builtin_prefetch(ahead->bytes + at);
                _mm_stream_si128(lines, a);
                _mm_stream_si128(lines + 1, b);
                _mm_stream_si128(lines + 2, c);
                _mm_stream_si128(lines + 3, d);
        }
        memcpy(to + at, from + at, bytes - at);
}

/* Streamed bytes are not ordered by locks. */
static void end_streams(void)
{
        _mm_sfence();
}
#else
static void stream(uint8_t *to, const uint8_t *from, uint64_t bytes, const struct ahead *ahead)
{
        for (uint64_t at = 0; at < ahead->length; at += LINE)
                __builtin_prefetch(ahead->bytes + at);
        memcpy(to, from, bytes);
}

static void end_streams(void)
{
}
#endif

/* The next runs, the one to copy first. */
struct window {
        struct kvt__page_walk walk;
        struct kvt__page_run runs[AHEAD + 1];
        uint32_t n_read, n_copied;
        bool is_store;
};

static const uint8_t *source_of(const struct window *window, const struct kvt__page_run *run)
{
        return window->is_store ? run->page : run->arena;
}

static struct kvt__page_run *run_at(struct window *window, uint32_t number)
{
        return &window->runs[number % (AHEAD + 1)];
}

/* Reads on as far as there is room. False: no run is left to copy. */
static bool fill(struct window *window)
{
        struct kvt__page_run *run = run_at(window, window->n_read);

        while (window->n_read - window->n_copied <= AHEAD &&
               kvt__page_walk_next(&window->walk, run)) {
                __builtin_prefetch(source_of(window, run));
                run = run_at(window, ++window->n_read);
        }
        return window->n_copied < window->n_read;
}

static void copy_run(struct window *window)
{
        const struct kvt__page_run *run = run_at(window, window->n_copied++);
        uint8_t *to = window->is_store ? run->arena : run->page;
        struct ahead ahead = {NULL, 0};

        if (window->n_copied + AHEAD_FETCHED - 1 < window->n_read) {
                const struct kvt__page_run *next =
                        run_at(window, window->n_copied + AHEAD_FETCHED - 1);

                ahead.bytes = source_of(window, next);
                ahead.length = next->bytes < FETCHED_MAX ? next->bytes : FETCHED_MAX;
        }
        if (run->bytes < STREAM_BYTES_MIN)
                memcpy(to, source_of(window, run), run->bytes);
        else
                stream(to, source_of(window, run), run->bytes, &ahead);
}

static bool copy_runs(const struct kvt__page_list *list, bool is_store, const atomic_bool *stop)
{
        struct window window = {.is_store = is_store};
        bool is_whole = true;

        kvt__page_walk_init(&window.walk, list);
        while (is_whole && fill(&window)) {
                is_whole = !atomic_load_explicit(stop, memory_order_relaxed);
                if (is_whole)
                        copy_run(&window);
        }
        end_streams();
        return is_whole;
}

bool kvt__page_copy(const struct kvt__page_list *list, bool is_store, const atomic_bool *stop)
{
        return list->group->codec ? kvt__page_codec_copy(list, is_store, stop)
                                  : copy_runs(list, is_store, stop);
}
