// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts that objects in the pool belong to: kept in the index as the catalog keeps them,
 * and told to the other nodes by our journal, so that they know what the objects mean.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/catalog_layout.h"
#include "storage/remote_tier.h"

#define LAYOUTS_MAX      4096u
#define LAYOUT_BYTES_SUM (UINT64_C(16) << 20)

static bool has_room(const struct remote *remote, uint32_t length)
{
        return remote->n_layouts < LAYOUTS_MAX && remote->layout_bytes + length <= LAYOUT_BYTES_SUM;
}

static struct remote_layout *find(const struct remote *remote, const struct tier_layout *layout)
{
        for (uint32_t i = 0; i < remote->n_layouts; i++)
                if (remote->layouts[i].domain == layout->domain &&
                    digest_equal(&remote->layouts[i].id, &layout->id))
                        return &remote->layouts[i];
        return NULL;
}

static int note(struct remote *remote, const struct tier_layout *layout)
{
        struct remote_layout *layouts =
                realloc(remote->layouts, (remote->n_layouts + 1) * sizeof(*layouts));

        if (!layouts)
                return err_raise(-ENOMEM);
        remote->layouts = layouts;
        layouts[remote->n_layouts++] =
                (struct remote_layout){layout->id, layout->domain, layout->length};
        remote->layout_bytes += layout->length;
        return 0;
}

static int put_layout(struct remote *remote, const struct tier_layout *layout,
                      struct database_changes *changes)
{
        size_t bytes = sizeof(struct catalog_layout_head) + layout->length;
        uint8_t key[CATALOG_LAYOUT_KEY_BYTES];
        void *value = malloc(bytes);

        if (!value || note(remote, layout)) {
                free(value);
                return err_raise(-ENOMEM);
        }
        catalog_layout_key(key, layout->domain, &layout->id);
        catalog_layout_encode(value, layout);
        database_changes_put(changes, key, sizeof(key), value, bytes);
        free(value);
        return 0;
}

int remote_keep_layout(struct tier *tier, const struct tier_layout *layout)
{
        struct remote *remote = (struct remote *)tier;
        struct journal_record record = {.kind = JOURNAL_LAYOUT, .layout = *layout};
        struct database_changes changes = {NULL};
        struct remote_group group;
        int r;

        r = find(remote, layout)               ? 0
            : has_room(remote, layout->length) ? put_layout(remote, layout, &changes)
                                               : TIER_E_FULL;
        if (r)
                return r;
        remote_group_init(&group, &changes);
        remote_group_add(remote, &group, &record);
        remote_group_commit(remote, &group, false);
        remote_change(remote, &changes, false, NULL);
        return 0;
}

void remote_forget_layout(struct tier *tier, const struct tier_layout *layout)
{
        struct remote *remote = (struct remote *)tier;
        struct database_changes changes = {NULL};
        uint8_t key[CATALOG_LAYOUT_KEY_BYTES];

        struct remote_layout *kept = find(remote, layout);

        if (!kept)
                return;
        remote->layout_bytes -= kept->length;
        *kept = remote->layouts[--remote->n_layouts];
        catalog_layout_key(key, layout->domain, &layout->id);
        database_changes_delete(&changes, key, sizeof(key));
        remote_change(remote, &changes, false, NULL);
}

void remote_layout_found(struct remote *remote, const struct tier_layout *layout)
{
        if (note(remote, layout))
                return;
        if (remote->tier.on_layout)
                remote->tier.on_layout(remote->tier.on_layout_user, layout);
}

void remote_layout_learned(struct remote *remote, const struct tier_layout *layout,
                           struct database_changes *changes)
{
        if (find(remote, layout) || !has_room(remote, layout->length) ||
            put_layout(remote, layout, changes))
                return;
        if (remote->tier.on_layout)
                remote->tier.on_layout(remote->tier.on_layout_user, layout);
}
