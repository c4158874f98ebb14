// SPDX-License-Identifier: Apache-2.0
#include "daemon/remote_entry.h"
#include "daemon/cache.h"
#include "daemon/layout_keeper.h"
#include "daemon/layout_table.h"
#include "proto/layout.h"

/* Of all numbers: what is left is for those who attach. */
#define LAYOUTS_MAX (LAYOUT_TABLE_MAX - 4096u)

/* Of one slice, and deletes queued in the tiers below, as in removal.c. */
#define SLICE_STEPS 8192u
#define SLICE_DROPS 512u
#define FORGETS_MAX 2048u
/* By then a peer that reaches the pool has come to what was missed here: many of its polls. */
#define PEERS_LAG_MS 60000u

int remote_entry_layout(struct cache *cache, uint32_t domain, const struct digest *id,
                        uint16_t *ret_layout)
{
        uint16_t layout = index_find_layout(cache->index, domain, id);

        if (layout) {
                *ret_layout = layout;
                return 0;
        }
        /* No session asks in another domain. */
        if (domain != DOMAIN_DEFAULT || index_n_layouts(cache->index) >= LAYOUTS_MAX)
                return INDEX_E_FULL;
        return index_layout(cache->index, domain, id, ret_layout);
}

struct report {
        const struct tier_object *object;
        struct tier_place place;
        bool own;
        bool recovered; /* from the tier's index; else it has appeared */
};

/* It is here already. */
static void give_back(struct cache *cache, const struct report *report)
{
        cache_forget(cache, INDEX_REMOTE, report->place, &report->object->key, 0, false, NULL,
                     NULL);
}

static void refuse(struct cache *cache, const struct report *report)
{
        cache->metrics->remote_unindexed_objects_total++;
        give_back(cache, report);
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

/* What this node wrote, here or there: nobody's older bytes hold against it. */
static bool is_kept_here(const struct index_object *object)
{
        return object->host != INDEX_NONE || object->place.claim ||
               object->flags & INDEX_REMOTE_OWN;
}

/*
 * Of two places that this node wrote the older one is a replace that was cut off; of two that
 * others wrote the later holds.
 */
static bool may_take_over(const struct index_object *known, const struct report *report)
{
        if (!report->own)
                return !(known->flags & INDEX_REMOTE_OWN);
        /* Generations begin anew with the tier's index: they say nothing then. */
        return report->recovered ? report->object->generation >= known->generation
                                 : !is_kept_here(known);
}

static void take_over(struct cache *cache, struct index_object *known, const struct report *report)
{
        const struct tier_object *object = report->object;

        if (known->raw_bytes != object->raw_bytes)
                refuse(cache, report);
        else if (!may_take_over(known, report))
                give_back(cache, report);
        else
                cache_set_remote(cache, known, report->place, report->own);
}

static void enter(struct cache *cache, uint16_t layout, const struct report *report)
{
        struct index_new_object entry = cache_described(report->object);
        struct index_object *entered;

        entry.layout = layout;
        if (!report->own)
                entry.generation = cache->next_generation;
        if (entry.generation >= cache->next_generation)
                cache->next_generation = entry.generation + 1;
        if (index_add(cache->index, &entry, &entered))
                refuse(cache, report);
        else
                index_set_remote(cache->index, entered, report->place, report->own);
}

static void take_in(struct cache *cache, struct report *report)
{
        const struct tier_object *object = report->object;
        struct index_object *known;
        uint16_t layout;

        report->own = cache->remote->ops.is_own(cache->remote, report->place);
        if (!is_sound(object) ||
            remote_entry_layout(cache, object->key.domain, &object->key.layout, &layout)) {
                refuse(cache, report);
                return;
        }
        known = find(cache, &object->key, layout);
        /* A newer generation than what is here: that was to be replaced. */
        if (known && report->own && report->recovered && object->generation > known->generation) {
                cache_drop(cache, known, METRICS_REPLACED);
                known = NULL;
        }
        if (known)
                take_over(cache, known, report);
        else
                enter(cache, layout, report);
}

void remote_entry_recovered(void *user, const struct tier_object *object, struct tier_place place)
{
        struct report report = {.object = object, .place = place, .recovered = true};

        take_in(*(struct cache **)user, &report);
}

static void on_appeared(void *user, const struct tier_object *object, struct tier_place place)
{
        struct report report = {.object = object, .place = place};

        take_in(user, &report);
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

static void on_gone(void *user, int result)
{
        struct cache *cache = user;

        if (result)
                cache->has_lost_forgets = true;
        cache->n_leaving--;
}

static void on_vanished(void *user, const struct object_key *key, struct tier_place place,
                        bool replaced, uint64_t checksum_total)
{
        struct cache *cache = user;
        struct index_object *object;
        uint16_t layout = index_find_layout(cache->index, key->domain, &key->layout);

        if (replaced)
                cache_replaced(cache, key, checksum_total);
        object = layout ? find(cache, key, layout) : NULL;
        if (object && place.claim &&
            index_place(cache->index, object, INDEX_REMOTE).claim == place.claim)
                object = cache_lose_remote(cache, object);
        if (!replaced)
                return;
        cache->n_leaving++;
        /* What is right stays; older bytes may have been evicted before it came. */
        if (object && has_checksum(cache, object, checksum_total))
                cache_sync_forgets(cache, on_gone, cache);
        else
                cache_drop_replaced(cache, key, object, on_gone, cache);
}

static bool is_leaving(void *user)
{
        const struct cache *cache = user;

        return cache->n_leaving || cache->has_lost_forgets;
}

static void on_missed(void *user)
{
        struct cache *cache = user;

        cache->is_unvouched = true;
        cache->unvouched_at = INDEX_NONE;
        cache->peers_doubted_ms = uv_now(cache->loop) + PEERS_LAG_MS;
        cache_replaced(cache, NULL, 0); /* a peer may not know better than this node did */
}

static void vouch(struct cache *cache);

static void on_vouch_synced(void *user, int result)
{
        struct cache *cache = user;

        cache->is_vouching = false;
        cache->n_syncing--;
        if (!result && !cache->is_unvouched)
                vouch(cache);
        if (cache->on_progress)
                cache->on_progress(cache->on_progress_user);
}

/*
 * Nothing of it may come back at the next start. What was being entered when it was dropped is
 * deleted when it has been: all deletes have begun when each tier has been synced once. Should a
 * sync fail, or a delete have been lost, it all goes again at the next start.
 */
static void vouch(struct cache *cache)
{
        struct tier *const tiers[] = {cache->nvme, cache->remote, cache->nvme};
        struct tier *tier = NULL;

        while (!tier && cache->n_vouch_syncs < 3)
                tier = tiers[cache->n_vouch_syncs++];
        if (!tier) {
                if (!cache->has_lost_forgets)
                        cache->remote->ops.vouched(cache->remote);
                return;
        }
        cache->is_vouching = true;
        cache->n_syncing++;
        tier->ops.sync(tier, on_vouch_synced, cache);
}

bool remote_entries_go_on(struct cache *cache)
{
        uint32_t steps = SLICE_STEPS, drops = 0;
        struct index_object *object = NULL;

        if (!cache->is_unvouched)
                return false;
        while (drops < SLICE_DROPS && cache->n_forgetting < FORGETS_MAX) {
                object = index_scan(cache->index, &cache->unvouched_at, &steps);
                if (!object)
                        break;
                if (object->host == INDEX_NONE && !object->place.claim &&
                    !index_object_is_ours(object, INDEX_REMOTE))
                        continue;
                cache_drop(cache, object, METRICS_REPLACED);
                drops++;
        }
        cache->is_unvouched = object || !index_scan_has_ended(cache->index, cache->unvouched_at);
        if (!cache->is_unvouched) {
                cache->n_vouch_syncs = 0;
                if (!cache->is_vouching)
                        vouch(cache);
        }
        /* With a full queue the next delete that ends makes the loop turn. */
        return cache->is_unvouched && cache->n_forgetting < FORGETS_MAX;
}

void remote_entries_listen(struct cache *cache)
{
        struct tier *remote = cache->remote;

        remote->on_appeared = on_appeared;
        remote->on_vanished = on_vanished;
        remote->on_missed = on_missed;
        remote->is_leaving = is_leaving;
        remote->on_shared_user = cache;
        remote->on_layout = layout_keeper_on_remote_layout;
        remote->on_layout_user = cache;
}
