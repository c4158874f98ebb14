// SPDX-License-Identifier: Apache-2.0
#include "daemon/remote_entry.h"
#include "daemon/cache.h"
#include "daemon/layout_keeper.h"
#include "daemon/layout_table.h"
#include "proto/layout.h"

static void refuse(struct cache *cache, const struct tier_object *object, struct tier_place place)
{
        cache->metrics->remote_unindexed_objects_total++;
        cache_forget(cache, INDEX_REMOTE, place, &object->key, 0, false, NULL, NULL);
}

static bool is_sound(const struct tier_object *object)
{
        return object->raw_bytes && object->raw_bytes <= UINT32_MAX &&
               object->n_covers <= TIER_COVERS_MAX && object->key.group < LAYOUT_GROUPS_MAX &&
               object->cell < LAYOUT_TABLE_BANKS * PRESENCE_CELLS_PER_BANK;
}

static struct index_object *find(struct cache *cache, const struct object_key *key, uint16_t layout)
{
        struct index_boundary *boundary = index_find_boundary(cache->index, layout, &key->boundary);

        return boundary ? index_find_object(cache->index, boundary, key->group, key->shard) : NULL;
}

/*
 * Of two that this node wrote the older one is a replace that was cut off; of two that
 * others wrote the later holds.
 */
static bool take_over(struct cache *cache, struct index_object *known,
                      const struct tier_object *object, struct tier_place place, bool own)
{
        if (known->raw_bytes != object->raw_bytes)
                return false;
        if (own && object->generation < known->generation)
                return false;
        if (!own && known->flags & INDEX_REMOTE_OWN)
                return false;
        cache_set_remote(cache, known, place, own);
        return true;
}

static bool enter(struct cache *cache, uint16_t layout, const struct tier_object *object,
                  struct tier_place place, bool own)
{
        struct index_new_object entry = {
                .layout = layout,
                .group = object->key.group,
                .shard = object->key.shard,
                .cell = object->cell,
                .digest = object->key.boundary,
                .parent = object->parent,
                .parent_unknown = object->parent_unknown,
                .croppable = object->croppable,
                .boundary_tokens = object->boundary_tokens,
                .raw_bytes = (uint32_t)object->raw_bytes,
                .generation = own ? object->generation : cache->next_generation,
                .covers = object->covers,
                .n_covers = object->n_covers,
        };
        struct index_object *entered;

        if (entry.generation >= cache->next_generation)
                cache->next_generation = entry.generation + 1;
        if (index_add(cache->index, &entry, &entered))
                return false;
        index_set_remote(cache->index, entered, place, own);
        return true;
}

static void take_in(struct cache *cache, const struct tier_object *object, struct tier_place place)
{
        bool own = cache->remote->ops.is_own(cache->remote, place);
        struct index_object *known = NULL;
        uint16_t layout;
        bool taken;

        if (!is_sound(object) ||
            index_layout(cache->index, object->key.domain, &object->key.layout, &layout)) {
                refuse(cache, object, place);
                return;
        }
        known = find(cache, &object->key, layout);
        /* A newer generation than what is here: that was to be replaced. */
        if (known && own && object->generation > known->generation) {
                cache_drop(cache, known, METRICS_REPLACED);
                known = NULL;
        }
        taken = known ? take_over(cache, known, object, place, own)
                      : enter(cache, layout, object, place, own);
        if (!taken)
                refuse(cache, object, place);
}

void remote_entry_recovered(void *user, const struct tier_object *object, struct tier_place place)
{
        take_in(*(struct cache **)user, object, place);
}

static void on_appeared(void *user, const struct tier_object *object, struct tier_place place)
{
        take_in(user, object, place);
}

/* Are the bytes that are here those that hold? What is on NVMe is what is in host memory. */
static bool has_checksum(struct cache *cache, const struct index_object *object,
                         uint64_t checksum_total)
{
        const struct host_copy *copy;

        if (object->host == INDEX_NONE || !checksum_total)
                return false;
        copy = host_copy_at(&cache->copies, object->host);
        return copy->checksums && copy->checksums->total == checksum_total;
}

static void on_vanished(void *user, const struct object_key *key, struct tier_place place,
                        bool replaced, uint64_t checksum_total)
{
        struct cache *cache = user;
        struct index_object *object;
        uint16_t layout;

        if (index_layout(cache->index, key->domain, &key->layout, &layout))
                return;
        object = find(cache, key, layout);
        if (!object)
                return;
        if (place.claim && index_place(cache->index, object, INDEX_REMOTE).claim == place.claim)
                object = cache_lose_remote(cache, object);
        if (object && replaced && !has_checksum(cache, object, checksum_total))
                cache_drop(cache, object, METRICS_REPLACED);
}

void remote_entries_listen(struct cache *cache)
{
        struct tier *remote = cache->remote;

        remote->on_appeared = on_appeared;
        remote->on_vanished = on_vanished;
        remote->on_shared_user = cache;
        remote->on_layout = layout_keeper_on_remote_layout;
        remote->on_layout_user = cache;
}
