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

static int put_layout(struct remote *remote, const struct tier_layout *layout,
                      struct database_changes *changes)
{
        size_t bytes = sizeof(struct catalog_layout_head) + layout->length;
        uint8_t key[CATALOG_LAYOUT_KEY_BYTES];
        void *value = malloc(bytes);

        if (!value)
                return err_raise(-ENOMEM);
        catalog_layout_key(key, layout->domain, &layout->id);
        catalog_layout_encode(value, layout);
        database_changes_put(changes, key, sizeof(key), value, bytes);
        free(value);
        remote->n_layouts++;
        remote->layout_bytes += layout->length;
        return 0;
}

int remote_keep_layout(struct tier *tier, const struct tier_layout *layout)
{
        struct remote *remote = (struct remote *)tier;
        struct journal_record record = {.kind = JOURNAL_LAYOUT, .layout = *layout};
        struct database_changes changes = {NULL};
        struct remote_group group;
        int r;

        if (!has_room(remote, layout->length))
                return TIER_E_FULL;
        r = put_layout(remote, layout, &changes);
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

        remote->n_layouts--;
        remote->layout_bytes -= layout->length;
        catalog_layout_key(key, layout->domain, &layout->id);
        database_changes_delete(&changes, key, sizeof(key));
        remote_change(remote, &changes, false, NULL);
}

void remote_layout_found(struct remote *remote, const struct tier_layout *layout)
{
        remote->n_layouts++;
        remote->layout_bytes += layout->length;
        if (remote->tier.on_layout)
                remote->tier.on_layout(remote->tier.on_layout_user, layout);
}
