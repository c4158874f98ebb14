// SPDX-License-Identifier: Apache-2.0
#include <errno.h>

#include "daemon/cache.h"
#include "daemon/layout_keeper.h"
#include "daemon/layout_table.h"
#include "daemon/remote_entry.h"

static struct tier_layout describe(const struct layout_entry *entry)
{
        return (struct tier_layout){
                .id = entry->id,
                .domain = entry->domain,
                .length = entry->kept_bytes,
                .encoding = entry->encoding,
        };
}

static bool forget_if_unused(struct cache *cache, struct layout_entry *entry)
{
        struct tier_layout layout = describe(entry);

        if (!entry->kept_bytes || entry->objects)
                return false;
        cache->nvme->ops.forget_layout(cache->nvme, &layout);
        entry->kept_bytes = 0;
        return true;
}

static bool forget_one_unused(struct cache *cache)
{
        for (uint32_t i = 1; i <= index_n_layouts(cache->index); i++)
                if (forget_if_unused(cache, index_layout_at(cache->index, (uint16_t)i)))
                        return true;
        return false;
}

static void keep_remotely(struct cache *cache, struct layout_entry *entry)
{
        struct tier_layout kept = describe(entry);

        kept.length = entry->encoding_bytes;
        if (!entry->is_kept_remotely && entry->encoding)
                entry->is_kept_remotely = !cache->remote->ops.keep_layout(cache->remote, &kept);
}

static void keep_on_nvme(struct cache *cache, struct layout_entry *entry)
{
        struct tier_layout kept = describe(entry);
        int r;

        if (entry->kept_bytes || !entry->encoding)
                return;
        kept.length = entry->encoding_bytes;
        do {
                r = cache->nvme->ops.keep_layout(cache->nvme, &kept);
        } while (r == TIER_E_FULL && forget_one_unused(cache));
        if (!r)
                entry->kept_bytes = entry->encoding_bytes;
}

void layout_keeper_keep(struct cache *cache, enum index_tier tier, uint16_t layout)
{
        struct layout_entry *entry = index_layout_at(cache->index, layout);

        if (tier == INDEX_NVME)
                keep_on_nvme(cache, entry);
        else
                keep_remotely(cache, entry);
}

/* What is wrong with it is its writer's business; without it the objects are there as well. */
void layout_keeper_on_remote_layout(void *user, const struct tier_layout *kept)
{
        struct cache *cache = user;
        uint16_t layout;

        if (!remote_entry_layout(cache, kept->domain, &kept->id, &layout))
                (void)index_describe_layout(cache->index, layout, kept->encoding, kept->length);
}

void layout_keeper_on_layout(void *user, const struct tier_layout *kept)
{
        struct cache *cache = user;
        struct layout_entry *entry;
        uint16_t layout;

        /* All numbers are taken: of no use in this run, but perhaps in the next one. */
        if (index_layout(cache->index, kept->domain, &kept->id, &layout))
                return;
        if (index_describe_layout(cache->index, layout, kept->encoding, kept->length) == -EINVAL) {
                cache->nvme->ops.forget_layout(cache->nvme, kept);
                return;
        }
        /* Without memory it is not known, and kept all the same. */
        entry = index_layout_at(cache->index, layout);
        entry->kept_bytes = kept->length;
}

void layout_keeper_forget_unused(struct cache *cache)
{
        for (uint32_t i = 1; i <= index_n_layouts(cache->index); i++)
                forget_if_unused(cache, index_layout_at(cache->index, (uint16_t)i));
}
