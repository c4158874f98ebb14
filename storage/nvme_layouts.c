// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "storage/nvme_layouts.h"
#include "storage/nvme_tier.h"

#define LAYOUTS_MAX      4096u
#define LAYOUT_BYTES_SUM (UINT64_C(16) << 20)

static void on_put_or_deleted(struct database_op *op, int result)
{
        /* A failure is the catalog's: the next write of an object finds and reports it. */
        (void)result;
        free(op);
}

static bool has_room(const struct nvme *nvme, uint32_t length)
{
        return nvme->n_layouts < LAYOUTS_MAX && nvme->layout_bytes + length <= LAYOUT_BYTES_SUM;
}

int nvme_keep_layout(struct tier *tier, const struct tier_layout *layout)
{
        struct nvme *nvme = (struct nvme *)tier;
        size_t bytes = sizeof(struct catalog_layout_head) + layout->length;
        struct database_op *op;
        void *value;

        if (!has_room(nvme, layout->length))
                return TIER_E_FULL;
        op = calloc(1, sizeof(*op));
        value = malloc(bytes);
        if (!op || !value) {
                free(op);
                free(value);
                return err_raise(-ENOMEM);
        }
        catalog_layout_encode(value, layout);
        op->on_done = on_put_or_deleted;
        catalog_put_layout(nvme->catalog, op, layout, value, bytes);
        nvme->n_layouts++;
        nvme->layout_bytes += layout->length;
        return 0;
}

void nvme_forget_layout(struct tier *tier, const struct tier_layout *layout)
{
        struct nvme *nvme = (struct nvme *)tier;
        struct database_op *op = calloc(1, sizeof(*op));

        nvme->n_layouts--;
        nvme->layout_bytes -= layout->length;
        if (!op)
                return; /* the next start finds it without objects, and forgets it then */
        op->on_done = on_put_or_deleted;
        catalog_delete_layout(nvme->catalog, op, layout);
}

/* ---- what survived ---- */

static int keep_found(struct nvme_layouts *layouts, const struct tier_layout *layout)
{
        struct nvme_layout *found = malloc(sizeof(*found) + layout->length);

        if (!found)
                return err_raise(-ENOMEM);
        found->layout = *layout;
        found->layout.encoding = NULL;
        if (layout->length)
                memcpy(found->encoding, layout->encoding, layout->length);
        STAILQ_INSERT_TAIL(layouts, found, link);
        return 0;
}

int nvme_read_layouts(struct nvme *nvme, struct nvme_layouts *ret_layouts)
{
        struct database_cursor *cursor;
        const void *key, *value;
        size_t key_bytes, value_bytes;
        struct tier_layout layout;
        int r, closed;

        STAILQ_INIT(ret_layouts);
        r = database_cursor_open(&cursor, nvme->catalog, CATALOG_LAYOUT_PREFIX);
        if (r)
                return r;
        while (r >= 0 && database_cursor_next(cursor, &key, &key_bytes, &value, &value_bytes)) {
                r = catalog_layout_decode(&layout, key, key_bytes, value, value_bytes);
                if (r == CATALOG_LAYOUT_E_DAMAGED && key_bytes == CATALOG_LAYOUT_KEY_BYTES) {
                        /* Handed on without an encoding, to be deleted. */
                        memset(&layout, 0, sizeof(layout));
                        memcpy(&layout.domain, (const uint8_t *)key + 1, sizeof(layout.domain));
                        memcpy(&layout.id, (const uint8_t *)key + 1 + sizeof(layout.domain),
                               sizeof(layout.id));
                        r = 0;
                }
                if (!r)
                        r = keep_found(ret_layouts, &layout);
        }
        closed = database_cursor_close(cursor);
        return r < 0 ? r : closed;
}

void nvme_report_layouts(struct nvme *nvme, struct nvme_layouts *layouts)
{
        struct nvme_layout *found;

        while ((found = STAILQ_FIRST(layouts))) {
                bool is_kept = found->layout.length && has_room(nvme, found->layout.length);

                STAILQ_REMOVE_HEAD(layouts, link);
                found->layout.encoding = found->encoding;
                nvme->n_layouts++;
                nvme->layout_bytes += found->layout.length;
                if (!is_kept)
                        nvme_forget_layout(&nvme->tier, &found->layout);
                else if (nvme->tier.on_layout)
                        nvme->tier.on_layout(nvme->tier.on_layout_user, &found->layout);
                free(found);
        }
}
