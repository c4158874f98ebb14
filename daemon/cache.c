// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "daemon/cache.h"
#include "daemon/layout_keeper.h"
#include "daemon/layout_table.h"
#include "daemon/offer.h"
#include "daemon/remote_entry.h"

int cache_init(struct cache *cache)
{
        int r = drop_ring_init(&cache->drops);

        if (r)
                return r;
        transfers_init(&cache->transfers);
        LIST_INIT(&cache->reads);
        if (!cache->next_generation)
                cache->next_generation = 1;
        return host_copies_init(&cache->copies, cache->host);
}

void cache_deinit(struct cache *cache)
{
        struct index_object *object;
        uint32_t after = INDEX_NONE;

        assert(transfers_are_idle(&cache->transfers));
        while ((object = index_next_object(cache->index, after))) {
                after = index_object_id(cache->index, object);
                if (object->host != INDEX_NONE) {
                        struct host_copy *copy = host_copy_at(&cache->copies, object->host);

                        index_set_host(cache->index, object, INDEX_NONE);
                        host_copy_detach(&cache->copies, copy);
                }
        }
        host_copies_deinit(&cache->copies);
        drop_ring_deinit(&cache->drops);
}

uint64_t cache_unwritten_bytes(const struct cache *cache)
{
        return cache->copies.dirty_bytes + cache->transfers.lanes[INDEX_NVME].down_bytes;
}

struct encoding cache_encoding(const struct cache *cache, enum index_tier tier,
                               const struct index_object *object)
{
        uint16_t layout = index_boundary_at(cache->index, object->boundary)->layout;
        const struct layout_entry *entry = index_layout_at(cache->index, layout);

        return encoding_choose(&cache->encodings[tier], entry->group_kinds[object->group],
                               entry->number_bytes[object->group]);
}

uint32_t cache_now_s(const struct cache *cache)
{
        return (uint32_t)(uv_now(cache->loop) / 1000);
}

/* What came up to go to the pool stays for who wants it. */
static void keep_spilled(struct cache *cache, const struct index_object *object)
{
        struct host_copy *copy = NULL;

        if (object->host != INDEX_NONE)
                copy = host_copy_at(&cache->copies, object->host);
        else if (object->flags & INDEX_READING)
                copy = transfer_arriving(cache, object);
        if (copy)
                copy->spills = false;
}

void cache_touch(struct cache *cache, struct index_object *object)
{
        placement_use(cache->index, object, cache_now_s(cache));
        index_boundary_at(cache->index, object->boundary)->flags |= INDEX_SEEN_TWICE;
        keep_spilled(cache, object);
        offer_seen(cache, object);
}

/* ---- recovery ---- */

struct recovery {
        struct cache *cache;
        void (*on_end)(void *user, int result);
        void *user;
};

static void note_unindexed(struct cache *cache, const struct index_new_object *object)
{
        struct drop drop = {
                .digest = object->digest,
                .boundary_tokens = object->boundary_tokens,
                .layout = object->layout,
                .group = object->group,
                .shard = object->shard,
                .tier = METRICS_NVME,
                .reason = DROP_NO_INDEX_AT_START,
        };

        drop_ring_note(&cache->drops, &drop);
}

struct index_new_object cache_described(const struct tier_object *object)
{
        return (struct index_new_object){
                .group = object->key.group,
                .shard = object->key.shard,
                .cell = object->cell,
                .digest = object->key.boundary,
                .parent = object->parent,
                .parent_unknown = object->parent_unknown,
                .croppable = object->croppable,
                .boundary_tokens = object->boundary_tokens,
                .raw_bytes = (uint32_t)object->raw_bytes,
                .generation = object->generation,
                .covers = object->covers,
                .n_covers = object->n_covers,
        };
}

static void on_recovered_object(void *user, const struct tier_object *object,
                                struct tier_place place)
{
        struct recovery *recovery = user;
        struct cache *cache = recovery->cache;
        struct index_new_object entry = cache_described(object);
        struct index_object *entered;
        int r;

        if (object->generation >= cache->next_generation)
                cache->next_generation = object->generation + 1;

        r = index_layout(cache->index, object->key.domain, &object->key.layout, &entry.layout);
        if (!r)
                r = index_add(cache->index, &entry, &entered);
        if (r) {
                /* index.objects_max was lowered: what finds no place is given up. */
                cache->metrics->index_full_total++;
                note_unindexed(cache, &entry);
                cache_forget(cache, INDEX_NVME, place, &object->key, 0, false, NULL, NULL);
                return;
        }
        index_set_place(cache->index, entered, place);
}

static void end_recovery(void *user, int result)
{
        struct recovery *recovery = user;

        recovery->on_end(recovery->user, result);
        free(recovery);
}

/* NVMe first: what is in both is entered with the generation that is there. */
static void recover_remote(struct recovery *recovery)
{
        struct tier *remote = recovery->cache->remote;

        if (!remote) {
                end_recovery(recovery, 0);
                return;
        }
        remote_entries_listen(recovery->cache);
        remote->ops.recover(remote, remote_entry_recovered, end_recovery, recovery);
}

static void on_nvme_recovered(void *user, int result)
{
        struct recovery *recovery = user;

        if (result) {
                end_recovery(recovery, result);
                return;
        }
        layout_keeper_forget_unused(recovery->cache);
        recover_remote(recovery);
}

void cache_recover(struct cache *cache, void (*on_end)(void *user, int result), void *user)
{
        struct recovery *recovery = malloc(sizeof(*recovery));

        if (!recovery) {
                on_end(user, err_raise(-ENOMEM));
                return;
        }
        *recovery = (struct recovery){cache, on_end, user};
        if (!cache->nvme) {
                recover_remote(recovery);
                return;
        }
        cache->nvme->on_layout = layout_keeper_on_layout;
        cache->nvme->on_layout_user = cache;
        cache->nvme->ops.recover(cache->nvme, on_recovered_object, on_nvme_recovered, recovery);
}

/* ---- forgetting ---- */

struct forgetting {
        struct tier_forget forget;
        struct cache *cache;
        enum index_tier tier;
        uint64_t footprint;
        void (*on_forgotten)(void *user, int result);
        void *user;
};

/* Once, whether or not there is room already. */
static void tell_forgotten(struct forgetting *forgetting, int result)
{
        void (*on_forgotten)(void *user, int result) = steal_ptr(forgetting->on_forgotten);

        if (on_forgotten)
                on_forgotten(forgetting->user, result);
}

static void on_deleted(struct tier_forget *forget, int result)
{
        struct forgetting *forgetting = (struct forgetting *)forget;

        tell_forgotten(forgetting, result);
        if (forgetting->cache->on_progress)
                forgetting->cache->on_progress(forgetting->cache->on_progress_user);
}

static void on_freed(struct tier_forget *forget, int result)
{
        struct forgetting *forgetting = (struct forgetting *)forget;
        struct cache *cache = forgetting->cache;

        cache->forgetting_bytes[forgetting->tier] -= forgetting->footprint;
        cache->n_forgetting_in[forgetting->tier]--;
        cache->n_forgetting--;
        cache->transfers.lanes[forgetting->tier].full = false;
        tell_forgotten(forgetting, result);
        free(forgetting);
        transfers_pump(cache);
        if (cache->on_progress)
                cache->on_progress(cache->on_progress_user);
}

int cache_forget(struct cache *cache, enum index_tier tier, struct tier_place place,
                 const struct object_key *key, uint64_t footprint, bool sync,
                 void (*on_forgotten)(void *user, int result), void *user)
{
        struct tier *from = cache_tier(cache, tier);
        struct forgetting *forgetting = calloc(1, sizeof(*forgetting));

        /*
         * Without memory for the record the entry stays in the catalog. That is a leak of
         * space until the next start, never a wrong byte: nothing refers to it.
         */
        if (!forgetting) {
                cache->has_lost_forgets = true;
                return err_raise(-ENOMEM);
        }

        forgetting->forget.on_freed = on_freed;
        forgetting->forget.on_deleted = on_deleted;
        forgetting->cache = cache;
        forgetting->tier = tier;
        forgetting->footprint = footprint;
        forgetting->on_forgotten = on_forgotten;
        forgetting->user = user;
        cache->forgetting_bytes[tier] += footprint;
        cache->n_forgetting_in[tier]++;
        cache->n_forgetting++;
        cache->n_forgets += tier == INDEX_NVME;
        from->ops.forget(from, place, key, sync, &forgetting->forget);
        return 0;
}

/* Of this node's: what others wrote takes none of its room. */
static uint64_t footprint_of(struct cache *cache, const struct index_object *object,
                             enum index_tier tier)
{
        struct tier *from = cache_tier(cache, tier);
        uint32_t n_covers = 0;

        if (!index_object_is_ours(object, tier))
                return 0;
        if (object->flags & INDEX_CROPPABLE)
                index_covers(cache->index, object, &n_covers);
        return from->ops.footprint(from, object->raw_bytes, n_covers);
}

/* ---- dropping ---- */

/* Returns the object, or NULL when it has gone. */
static struct index_object *remove_when_nowhere(struct cache *cache, struct index_object *object)
{
        if (!index_object_is_nowhere(object))
                return object;
        index_remove(cache->index, object);
        return NULL;
}

/* What the removal alone says, when the caller has set nothing better. */
static uint8_t reason_of(enum metrics_removal removal)
{
        switch (removal) {
        case METRICS_FOR_SPACE:
                return DROP_SPACE;
        case METRICS_REPLACED:
                return DROP_REPLACED;
        case METRICS_BY_ADMIN:
                return DROP_ADMIN;
        case METRICS_RECLAIMED:
                return DROP_RECLAIMED;
        case METRICS_VANISHED:
                return DROP_VANISHED;
        default:
                return DROP_UNEXPLAINED;
        }
}

void cache_note_drop(struct cache *cache, const struct index_object *object, enum metrics_tier tier,
                     enum drop_reason reason)
{
        const struct index_boundary *boundary = index_boundary_at(cache->index, object->boundary);
        struct drop drop = {
                .digest = boundary->digest,
                .boundary_tokens = boundary->boundary_tokens,
                .layout = boundary->layout,
                .group = object->group,
                .shard = object->shard,
                .tier = (uint8_t)tier,
                .reason = (uint8_t)reason,
                .rule = cache->drop_rule,
        };

        drop_ring_note(&cache->drops, &drop);
}

static void note_removal(struct cache *cache, enum metrics_tier tier, enum metrics_removal removal,
                         const struct index_object *object)
{
        cache->metrics->removed_objects_total[tier][removal]++;
        cache->metrics->removed_bytes_total[tier][removal] += object->raw_bytes;
        cache_note_drop(cache, object, tier,
                        cache->drop_reason ? cache->drop_reason : reason_of(removal));
}

/* What was said of this drop must not be said of the next. */
static void end_of_drop(struct cache *cache)
{
        cache->drop_reason = DROP_UNEXPLAINED;
        cache->drop_rule = DROP_RULE_NONE;
}

static void detach_host(struct cache *cache, struct index_object *object,
                        enum metrics_removal reason)
{
        struct host_copy *copy = host_copy_at(&cache->copies, object->host);

        note_removal(cache, METRICS_HOST, reason, object);
        index_set_host(cache->index, object, INDEX_NONE);
        host_copy_detach(&cache->copies, copy);
}

static void clear_place(struct cache *cache, struct index_object *object, enum index_tier tier)
{
        if (tier == INDEX_NVME)
                index_set_place(cache->index, object, (struct tier_place){0});
        else
                index_set_remote(cache->index, object, (struct tier_place){0}, false);
}

/* Returns the outcome of cache_forget(). */
static int detach_place(struct cache *cache, struct index_object *object, enum index_tier tier,
                        enum metrics_removal reason, bool sync,
                        void (*on_forgotten)(void *user, int result), void *user)
{
        struct tier_place place = index_place(cache->index, object, tier);
        struct object_key key;
        int r;

        index_key(cache->index, object, &key);
        r = cache_forget(cache, tier, place, &key, footprint_of(cache, object, tier), sync,
                         on_forgotten, user);
        if (r && sync)
                return r;
        note_removal(cache, (enum metrics_tier)tier, reason, object);
        clear_place(cache, object, tier);
        return r;
}

static void detach_below(struct cache *cache, struct index_object *object,
                         enum metrics_removal reason)
{
        for (enum index_tier tier = INDEX_NVME; tier < INDEX_N_TIERS; tier++)
                if (index_object_is_in(object, tier))
                        detach_place(cache, object, tier, reason, false, NULL, NULL);
}

void cache_drop_host(struct cache *cache, struct index_object *object, enum metrics_removal reason)
{
        assert(object->host != INDEX_NONE);
        detach_host(cache, object, reason);
        remove_when_nowhere(cache, object);
        end_of_drop(cache);
}

void cache_drop_place(struct cache *cache, struct index_object *object, enum index_tier tier,
                      enum metrics_removal reason)
{
        assert(index_object_is_in(object, tier));
        detach_place(cache, object, tier, reason, false, NULL, NULL);
        remove_when_nowhere(cache, object);
        end_of_drop(cache);
}

void cache_drop_below(struct cache *cache, struct index_object *object, enum metrics_removal reason)
{
        detach_below(cache, object, reason);
        remove_when_nowhere(cache, object);
        end_of_drop(cache);
}

struct index_object *cache_lose_remote(struct cache *cache, struct index_object *object)
{
        note_removal(cache, METRICS_REMOTE, METRICS_VANISHED, object);
        clear_place(cache, object, INDEX_REMOTE);
        end_of_drop(cache);
        return remove_when_nowhere(cache, object);
}

void cache_set_remote(struct cache *cache, struct index_object *object, struct tier_place place,
                      bool own)
{
        struct tier_place older = index_place(cache->index, object, INDEX_REMOTE);
        struct object_key key;

        if (older.claim && older.claim != place.claim) {
                index_key(cache->index, object, &key);
                cache_forget(cache, INDEX_REMOTE, older, &key,
                             footprint_of(cache, object, INDEX_REMOTE), false, NULL, NULL);
        }
        index_set_remote(cache->index, object, place, own);
}

void cache_drop(struct cache *cache, struct index_object *object, enum metrics_removal reason)
{
        if (object->host != INDEX_NONE)
                detach_host(cache, object, reason);
        detach_below(cache, object, reason);
        index_remove(cache->index, object);
        end_of_drop(cache);
}

/* ---- publishing ---- */

static int add_to_index(struct cache *cache, const struct index_new_object *entry,
                        struct index_object **ret_object)
{
        for (unsigned tries = 0; tries < 64; tries++) {
                int r = index_add(cache->index, entry, ret_object);

                if (r != INDEX_E_FULL)
                        return r;
                if (!cache_make_index_room(cache))
                        break;
        }
        return CACHE_E_INDEX_FULL;
}

static uint64_t wall_clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct sync_of_forgets {
        struct cache *cache;
        uint64_t n_forgets; /* as many had begun */
        void (*on_forgotten)(void *user, int result);
        void *user;
        bool is_submitting;
        bool ended_at_once;
        int result;
};

static void on_forgets_synced(void *user, int result)
{
        struct sync_of_forgets *sync = user;
        struct cache *cache = sync->cache;

        if (!result && cache->n_forgets_synced < sync->n_forgets)
                cache->n_forgets_synced = sync->n_forgets;
        if (sync->is_submitting) {
                sync->ended_at_once = true;
                sync->result = result;
                return;
        }
        cache->n_syncing--;
        sync->on_forgotten(sync->user, result);
        free(sync);
        if (cache->on_progress)
                cache->on_progress(cache->on_progress_user);
}

/*
 * An older generation may have left the tier before (evicted, say), with a delete that is
 * not durable yet. Waits for all such deletes, as if the key's own were among them.
 */
static int sync_forgets(struct cache *cache, void (*on_forgotten)(void *user, int result),
                        void *user, bool *ret_forgetting)
{
        struct sync_of_forgets *sync;
        int r;

        if (!cache->nvme || cache->n_forgets == cache->n_forgets_synced)
                return 0;
        sync = malloc(sizeof(*sync));
        if (!sync)
                return err_raise(-ENOMEM);
        *sync = (struct sync_of_forgets){.cache = cache,
                                         .n_forgets = cache->n_forgets,
                                         .on_forgotten = on_forgotten,
                                         .user = user,
                                         .is_submitting = true};
        cache->nvme->ops.sync(cache->nvme, on_forgets_synced, sync);
        if (sync->ended_at_once) {
                r = sync->result;
                free(sync);
                return r;
        }
        sync->is_submitting = false;
        cache->n_syncing++;
        *ret_forgetting = true;
        return 0;
}

void cache_sync_forgets(struct cache *cache, void (*on_forgotten)(void *user, int result),
                        void *user)
{
        bool later = false;
        int r = sync_forgets(cache, on_forgotten, user, &later);

        if (!later)
                on_forgotten(user, r);
}

/* Somebody who waits until nothing of an older generation can come back, in any tier. */
struct replacement {
        uint32_t n_left;
        int result;
        void (*on_forgotten)(void *user, int result);
        void *user;
};

static void on_tier_forgot(void *user, int result)
{
        struct replacement *replacement = user;

        if (result && !replacement->result)
                replacement->result = result;
        if (--replacement->n_left)
                return;
        if (replacement->on_forgotten)
                replacement->on_forgotten(replacement->user, replacement->result);
        free(replacement);
}

/* From one tier below; @replacement waits for what has to be waited for. */
static int drop_replaced_below(struct cache *cache, enum index_tier tier,
                               const struct object_key *key, struct index_object *object,
                               struct replacement *replacement)
{
        bool waits = false;
        int r = transfer_forget_when_written(cache, tier, key, on_tier_forgot, replacement, &waits);

        if (!r && object && index_object_is_in(object, tier)) {
                bool waits_before = waits;

                r = detach_place(cache, object, tier, METRICS_REPLACED, true,
                                 waits ? NULL : on_tier_forgot, replacement);
                waits = waits_before || !r;
        }
        if (!r && !waits && tier == INDEX_NVME)
                r = sync_forgets(cache, on_tier_forgot, replacement, &waits);
        replacement->n_left += waits;
        return r;
}

/*
 * What older generations of a key there are leave every tier in this turn. @on_forgotten
 * follows when no catalog entry of theirs can come back. Unless 0, what has not left yet
 * stays.
 */
static int drop_replaced(struct cache *cache, const struct object_key *key,
                         struct index_object *object, void (*on_forgotten)(void *user, int result),
                         void *user, bool *ret_forgetting)
{
        struct replacement *replacement = calloc(1, sizeof(*replacement));
        int r = 0;

        if (!replacement)
                return err_raise(-ENOMEM);
        for (enum index_tier tier = INDEX_NVME; !r && tier < INDEX_N_TIERS; tier++)
                if (cache_tier(cache, tier))
                        r = drop_replaced_below(cache, tier, key, object, replacement);
        if (replacement->n_left && !r) {
                replacement->on_forgotten = on_forgotten;
                replacement->user = user;
                *ret_forgetting = true;
        } else if (!replacement->n_left) {
                free(replacement);
        }
        if (r || !object)
                return r;
        if (object->host != INDEX_NONE)
                detach_host(cache, object, METRICS_REPLACED);
        index_remove(cache->index, object);
        return 0;
}

void cache_drop_replaced(struct cache *cache, const struct object_key *key,
                         struct index_object *object,
                         void (*on_forgotten)(void *user, int result), void *user)
{
        bool later = false;
        int r = drop_replaced(cache, key, object, on_forgotten, user, &later);

        if (r && object)
                cache_drop(cache, object, METRICS_REPLACED);
        end_of_drop(cache);
        if (!later)
                on_forgotten(user, r);
}

/* Nothing that others have under the key holds from now on, until they know better. */
static void tell_replacing(struct cache *cache, struct host_copy *copy)
{
        if (!cache->remote)
                return;
        cache->remote->ops.replaced(cache->remote, &copy->key, 0);
        copy->replaces = true;
}

/* A READY copy becomes the visible generation of its key, which has none. */
static int enter_copy(struct cache *cache, struct host_copy *copy,
                      const struct index_new_object *object, struct index_object **ret_entered)
{
        struct index_new_object entry = *object;
        struct index_object *entered;
        int r;

        entry.generation = cache->next_generation++;
        r = add_to_index(cache, &entry, &entered);
        if (r)
                return r;

        copy->generation = entry.generation;
        host_copy_publish(&cache->copies, copy, index_object_id(cache->index, entered));
        index_set_host(cache->index, entered, copy->id);
        host_copy_set_dirty(&cache->copies, copy, cache->nvme != NULL);
        placement_stored(cache->index, entered, &entry.origin, cache_now_s(cache));
        cache->transfers.entered_bytes += copy->raw_bytes;
        if (cache->on_published)
                cache->on_published(cache->on_published_user, entered);
        *ret_entered = entered;
        return 0;
}

static struct index_object *find_entered(struct cache *cache, const struct index_new_object *object)
{
        struct index_boundary *boundary =
                index_find_boundary(cache->index, object->layout, &object->digest);

        return boundary ? index_find_object(cache->index, boundary, object->group, object->shard)
                        : NULL;
}

void cache_read_begin(struct cache *cache, struct cache_read *read, const struct object_key *key)
{
        *read = (struct cache_read){.key = *key};
        LIST_INSERT_HEAD(&cache->reads, read, link);
}

void cache_read_end(struct cache_read *read)
{
        LIST_REMOVE(read, link);
}

void cache_replaced(struct cache *cache, const struct object_key *key, uint64_t total)
{
        struct cache_read *read;

        LIST_FOREACH(read, &cache->reads, link) {
                if (key && !object_key_equal(&read->key, key))
                        continue;
                read->is_replaced = true;
                read->total = total;
        }
        if (cache->on_replaced)
                cache->on_replaced(cache->on_published_user, key, total);
}

/* Nothing here remembers what was replaced, once it is gone: this does, and the pool. */
static bool is_outdated(const struct cache *cache, const struct host_copy *copy,
                        const struct cache_read *read)
{
        uint64_t total = copy->checksums ? copy->checksums->total : 0;

        if (read->is_replaced && (!total || read->total != total))
                return true;
        /* Behind the walk for what may be outdated, or from a peer that is to walk yet. */
        if (cache->is_unvouched || uv_now(cache->loop) < cache->peers_doubted_ms)
                return true;
        return cache->remote && cache->remote->ops.is_replaced(cache->remote, &copy->key, total);
}

int cache_publish_read(struct cache *cache, struct host_copy *copy,
                       const struct index_new_object *object, const struct cache_read *read)
{
        struct index_object *entered;
        int r;

        if (find_entered(cache, object))
                return CACHE_E_EXISTS;
        if (is_outdated(cache, copy, read))
                return CACHE_E_REPLACED;
        r = enter_copy(cache, copy, object, &entered);
        if (!r)
                transfers_pump(cache);
        return r;
}

int cache_publish(struct cache *cache, struct host_copy *copy,
                  const struct index_new_object *object, bool replace,
                  void (*on_forgotten)(void *user, int result), void *user, bool *ret_forgetting)
{
        struct index_object *entered, *existing = find_entered(cache, object);
        int r;

        *ret_forgetting = false;
        if (existing && !replace)
                return CACHE_E_EXISTS;
        if (replace) {
                r = drop_replaced(cache, &copy->key, existing, on_forgotten, user, ret_forgetting);
                if (r)
                        return r;
                cache_replaced(cache, &copy->key, 0);
                tell_replacing(cache, copy);
        }

        copy->committed_ns = wall_clock_ns();
        memcpy(copy->writer_boot_id, cache->boot_id, sizeof(copy->writer_boot_id));
        r = enter_copy(cache, copy, object, &entered);
        if (r)
                return r;
        if (copy->replaces && !copy->checksums)
                (void)transfer_hash(cache, copy); /* without memory: when it is written down */
        transfer_tell_replaced(cache, copy);
        offer_stored(cache, entered);
        cache->metrics->stored_bytes_total += copy->raw_bytes;
        transfers_pump(cache);
        return 0;
}
