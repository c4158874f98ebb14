// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/page_map.h"
#include "client/session.h"

static int refuse_group(struct why *why, const struct layout *layout, uint16_t group,
                        uint16_t shard, const char *reason)
{
        const struct layout_string *name = &layout->groups[group].name;

        why_set(why, "group %u (%.*s), shard %u: %s", group, name->length, name->bytes, shard,
                reason);
        return err_raise(-EINVAL);
}

static int refuse(struct why *why, const struct layout *layout, const struct kvt_page_group *from,
                  const char *reason)
{
        return refuse_group(why, layout, from->group, from->shard, reason);
}

/* Does the last byte of the last page have an address? */
static bool has_addresses(const struct kvt__page_view *view, uint64_t n_pages)
{
        uint64_t pages, rows, end;

        return !__builtin_mul_overflow(n_pages - 1, view->page_stride, &pages) &&
               !__builtin_mul_overflow(view->n_rows - 1, view->row_stride, &rows) &&
               !__builtin_add_overflow(pages, rows, &end) &&
               !__builtin_add_overflow(end, view->row_bytes, &end) &&
               !__builtin_add_overflow(end, (uintptr_t)view->base, &end) && end <= UINTPTR_MAX;
}

static const char *fault(const struct kvt_page_view *from, const struct kvt__page_view *view,
                         uint64_t n_pages)
{
        if (!from->base || !from->row_bytes || from->reserved)
                return "a view has no base or no row_bytes, or its reserved member is not 0";
        if (view->n_rows > 1 && view->row_stride < view->row_bytes)
                return "row_stride is below row_bytes: rows overlap";
        if (n_pages > 1 && view->page_stride < view->row_bytes)
                return "page_stride is below row_bytes: pages overlap";
        return has_addresses(view, n_pages) ? NULL : "a view ends beyond the address space";
}

/* Rows without a gap are one row. */
static struct kvt__page_view simplify(const struct kvt_page_view *from)
{
        struct kvt__page_view view = {
                .base = from->base,
                .page_stride = from->page_stride,
                .row_bytes = from->row_bytes,
                .row_stride = from->row_stride,
                .n_rows = from->n_rows ? from->n_rows : 1,
        };
        uint64_t bytes;

        if (view.n_rows > 1 && view.row_stride == view.row_bytes &&
            !__builtin_mul_overflow(view.row_bytes, view.n_rows, &bytes)) {
                view.row_bytes = bytes;
                view.n_rows = 1;
        }
        return view;
}

/* Views that follow each other in every page are one view. */
static bool join(struct kvt__page_view *last, const struct kvt__page_view *view, uint64_t n_pages)
{
        if (last->n_rows != 1 || view->n_rows != 1 || last->base + last->row_bytes != view->base ||
            (n_pages > 1 && (last->page_stride != view->page_stride ||
                             view->page_stride - last->row_bytes < view->row_bytes)))
                return false;
        last->row_bytes += view->row_bytes;
        return true;
}

/* Of a group with a codec: tiles are not cut, nor are numbers. */
static const char *tile_fault(const struct kvt__page_group *group,
                              const struct kvt__page_view *view)
{
        uint32_t tile = codec_tile_bytes(group->codec);

        if (tile > 1 && ((uintptr_t)view->base | view->page_stride |
                         (view->n_rows > 1 ? view->row_stride : 0)) %
                                CODEC_NUMBER_BYTES)
                return "the group has a codec: its bfloat16 numbers must lie at even addresses";
        if (!(view->row_bytes % tile))
                return NULL;
        return group->codec == CODEC_MXFP8
                       ? "codec mxfp8 needs rows (those that touch count as one) of a multiple of "
                         "64 bytes: tiles of 32 bfloat16"
                       : "codec fp8-tile128 needs rows (those that touch count as one) of a "
                         "multiple of 256 bytes: tiles of 128 bfloat16";
}

static int add_views(struct kvt__page_group *group, const struct layout *layout,
                     const struct kvt_page_group *from, struct why *why)
{
        for (uint32_t i = 0; i < from->n_views; i++) {
                struct kvt__page_view view = simplify(&from->views[i]);
                const char *reason = fault(&from->views[i], &view, from->n_pages);
                uint64_t bytes;

                if (!reason)
                        reason = tile_fault(group, &view);
                if (!reason &&
                    (__builtin_mul_overflow(view.row_bytes, view.n_rows, &bytes) ||
                     __builtin_add_overflow(group->page_bytes, bytes, &group->page_bytes) ||
                     group->page_bytes > LAYOUT_OBJECT_MAX))
                        reason = "a page is larger than an object may be";
                if (reason)
                        return refuse(why, layout, from, reason);
                if (!group->n_views ||
                    !join(&group->views[group->n_views - 1], &view, from->n_pages))
                        group->views[group->n_views++] = view;
        }
        return 0;
}

static int check_bytes(const struct kvt__page_group *group, const struct layout *layout,
                       const struct kvt_page_group *from, struct why *why)
{
        const struct layout_row *row = layout_row(layout, from->group, from->shard);
        char reason[128];

        if (!row)
                return refuse(why, layout, from,
                              "the layout of this session does not say what it holds");
        /* States may vary in length from layout to layout; not within a map. */
        if (row->page_bytes == group->page_bytes ||
            (!row->page_bytes && layout->groups[from->group].kind == LAYOUT_STATE))
                return 0;
        snprintf(reason, sizeof(reason),
                 "the views make up %llu bytes of a page, the layout says %llu",
                 (unsigned long long)group->page_bytes, (unsigned long long)row->page_bytes);
        return refuse(why, layout, from, reason);
}

static int add_group(struct kvt_page_map *map, struct kvt__page_view *views,
                     const struct layout *layout, const struct kvt_page_group *from,
                     struct why *why)
{
        struct kvt__page_group *group = &map->groups[map->n_groups];
        int r;

        if (from->group >= layout->n_groups || !from->views || !from->n_views) {
                why_set(why, "group %u does not exist, or has no views", from->group);
                return err_raise(-EINVAL);
        }
        if (layout->groups[from->group].kind == LAYOUT_SCRATCH)
                return refuse(why, layout, from, "scratch is never stored");
        if (kvt__page_map_find(map, from->group, from->shard))
                return refuse(why, layout, from, "is named twice");
        if (!from->n_pages || from->n_pages > UINT32_MAX)
                return refuse(why, layout, from, "n_pages is 0, or above 4294967295");
        *group = (struct kvt__page_group){
                .group = from->group,
                .shard = from->shard,
                .page_tokens = layout->groups[from->group].page_tokens,
                .place = KVT__PLACE_HOST,
                .codec = layout->groups[from->group].codec,
                .n_pages = from->n_pages,
                .views = views,
        };
        r = add_views(group, layout, from, why);
        if (!r)
                r = check_bytes(group, layout, from, why);
        if (r)
                return r;
        group->stored_bytes = codec_stored_bytes(group->codec, group->page_bytes);
        map->n_groups++;
        return 0;
}

int kvt__page_map_build(struct kvt_page_map **ret_map, const struct layout *layout,
                        const struct kvt_page_group *groups, uint32_t n_groups, struct why *why)
{
        struct kvt__page_view *views;
        struct kvt_page_map *map;
        uint64_t n_views = 0;
        int r = 0;

        for (uint32_t i = 0; i < n_groups; i++)
                n_views += groups[i].n_views;
        if (!n_groups || n_groups > LAYOUT_ROWS_MAX * LAYOUT_GROUPS_MAX ||
            n_views > KVT__PAGE_VIEWS_MAX) {
                why_set(why, "a page map has 1 to %u groups and at most %u views",
                        LAYOUT_ROWS_MAX * LAYOUT_GROUPS_MAX, KVT__PAGE_VIEWS_MAX);
                return err_raise(-EINVAL);
        }
        map = calloc(1,
                     sizeof(*map) + n_groups * sizeof(map->groups[0]) + n_views * sizeof(*views));
        if (!map) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        atomic_init(&map->refs, 1);
        views = (void *)&map->groups[n_groups];
        for (uint32_t i = 0; i < n_groups && !r; i++) {
                r = add_group(map, views, layout, &groups[i], why);
                views += groups[i].n_views;
        }
        if (r)
                free(map);
        else
                *ret_map = map;
        return r;
}

/* ---- whose memory ---- */

/* By having the kernel read it, which answers where a load would crash. */
static bool is_readable(int pipes[2], const uint8_t *address)
{
        uint8_t byte;

        return write(pipes[1], address, 1) == 1 && read(pipes[0], &byte, 1) == 1;
}

static uint64_t span(const struct kvt__page_view *view, uint64_t n_pages)
{
        return (n_pages - 1) * view->page_stride + (view->n_rows - 1) * view->row_stride +
               view->row_bytes;
}

/* Which place a view is in; NULL, or why it is in none. */
static const char *find_place(const struct kvt__page_view *view, uint64_t bytes,
                              const struct kvt__page_device *device, int pipes[2],
                              uint32_t *ret_place, struct why *why)
{
        int r = device ? device->place(device->context, view->base, bytes, ret_place, why) : 0;

        if (r < 0)
                return why->text;
        if (r)
                return NULL;
        *ret_place = KVT__PLACE_HOST;
        if (is_readable(pipes, view->base) && is_readable(pipes, view->base + bytes - 1))
                return NULL;
        return device ? "a view lies in memory that neither this process nor its GPUs have"
                      : "a view lies in memory that this process cannot read; if it is a GPU's, "
                        "kvt_cuda_register() comes first";
}

static bool converts(const struct kvt__page_device *device, uint8_t codec)
{
        return codec == CODEC_NONE || (device->codecs & 1u << codec);
}

static int place_group(struct kvt__page_group *group, const struct layout *layout,
                       const struct kvt__page_device *device, int pipes[2], struct why *why)
{
        struct why reason = {""};

        for (uint32_t i = 0; i < group->n_views; i++) {
                const struct kvt__page_view *view = &group->views[i];
                uint32_t place = KVT__PLACE_HOST;
                const char *fault = find_place(view, span(view, group->n_pages), device, pipes,
                                               &place, &reason);

                if (!fault && i && place != group->place)
                        fault = "its views lie in different places: host memory and a GPU's, or "
                                "two GPUs'";
                if (!fault && place != KVT__PLACE_HOST && !converts(device, group->codec))
                        fault = "it has a codec, by which the library of its GPU cannot convert";
                if (fault)
                        return refuse_group(why, layout, group->group, group->shard, fault);
                group->place = place;
        }
        return 0;
}

int kvt__page_map_place(struct kvt_page_map *map, const struct layout *layout,
                        const struct kvt__page_device *device, struct why *why)
{
        int pipes[2], r = 0;

        if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK) < 0) {
                why_set(why, "no file descriptors left");
                return err_raise(-ENOMEM);
        }
        for (uint32_t i = 0; i < map->n_groups && !r; i++) {
                r = place_group(&map->groups[i], layout, device, pipes, why);
                map->has_device = map->has_device || map->groups[i].place != KVT__PLACE_HOST;
        }
        close(pipes[0]);
        close(pipes[1]);
        return r;
}

const struct kvt__page_group *kvt__page_map_find(const struct kvt_page_map *map, uint16_t group,
                                                 uint16_t shard)
{
        for (uint32_t i = 0; i < map->n_groups; i++)
                if (map->groups[i].group == group && map->groups[i].shard == shard)
                        return &map->groups[i];
        return NULL;
}

void kvt__page_map_ref(struct kvt_page_map *map)
{
        atomic_fetch_add_explicit(&map->refs, 1, memory_order_relaxed);
}

void kvt__page_map_unref(struct kvt_page_map *map)
{
        if (map && atomic_fetch_sub_explicit(&map->refs, 1, memory_order_acq_rel) == 1)
                free(map);
}

/* ---- public ---- */

/* Nobody but its own GPU copies from and to a buffer in a GPU's memory. */
static int check_reach(struct kvt_session *session, const struct kvt_page_map *map,
                       const struct layout *layout, struct why *why)
{
        const struct kvt__page_device *device = kvt__session_device(session);
        void *buffer = session->arenas.foreign;
        uint32_t place = KVT__PLACE_HOST;
        int r = buffer && device ? device->place(device->context, buffer, 1, &place, why) : 0;

        if (r < 0)
                return r;
        for (uint32_t i = 0; i < map->n_groups && buffer; i++)
                if (map->groups[i].place == KVT__PLACE_HOST || map->groups[i].place != place)
                        return refuse_group(why, layout, map->groups[i].group, map->groups[i].shard,
                                            "it does not lie on the GPU that has the session's "
                                            "buffer");
        return 0;
}

static enum kvt_status map_new(struct kvt_session *session, const struct kvt_page_group *groups,
                               uint32_t n_groups, struct kvt_page_map **ret_map, struct why *why)
{
        _cleanup_free_ struct layout *layout = NULL;
        struct kvt_page_map *map = NULL;
        int r;

        if (!session || !groups || !ret_map) {
                why_set(why, "an argument is missing");
                return KVT_INVALID;
        }
        if (kvt__is_forked(session))
                return KVT_FORKED;
        layout = malloc(sizeof(*layout));
        if (!layout) {
                why_set(why, "out of memory");
                return KVT_NO_MEMORY;
        }
        r = layout_decode_partial(layout, session->asked.bytes, session->asked.length, why);
        if (!r)
                r = kvt__page_map_build(&map, layout, groups, n_groups, why);
        if (!r)
                r = kvt__page_map_place(map, layout, kvt__session_device(session), why);
        if (!r)
                r = check_reach(session, map, layout, why);
        if (!r && kvt__copier_start(session)) {
                why_set(why, "no thread to copy pages");
                r = -ENOMEM;
        }
        if (r) {
                kvt__page_map_unref(map);
                return r == -ENOMEM ? KVT_NO_MEMORY : KVT_INVALID;
        }
        map->session = session->serial;
        *ret_map = map;
        return KVT_OK;
}

enum kvt_status kvt_page_map_new(struct kvt_session *session, const struct kvt_page_group *groups,
                                 uint32_t n_groups, struct kvt_page_map **ret_map, char *ret_why,
                                 size_t why_bytes)
{
        struct why why = {""};
        enum kvt_status status = map_new(session, groups, n_groups, ret_map, &why);

        if (ret_why && why_bytes)
                snprintf(ret_why, why_bytes, "%s", why.text);
        return status;
}

void kvt_page_map_free(struct kvt_page_map *map)
{
        kvt__page_map_unref(map);
}
