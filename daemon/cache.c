// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "daemon/cache.h"
#include "daemon/layout_keeper.h"
#include "daemon/layout_table.h"

/* Boundaries that one search for a victim may pass over. */
#define VICTIM_STEPS_CLEAN 64u
#define VICTIM_STEPS_ANY   4096u

int cache_init(struct cache *cache)
{
        int r = drop_ring_init(&cache->drops);

        if (r)
                return r;
        transfers_init(&cache->transfers);
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
        return cache->copies.dirty_bytes + cache->transfers.down_bytes;
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

void cache_touch(struct cache *cache, struct index_object *object)
{
        placement_use(cache->index, object, cache_now_s(cache));
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

static void on_recovered_object(void *user, const struct tier_object *object,
                                struct tier_place place)
{
        struct recovery *recovery = user;
        struct cache *cache = recovery->cache;
        struct index_new_object entry = {
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
                cache_forget(cache, place, &object->key, 0, false, NULL, NULL);
                return;
        }
        index_set_place(cache->index, entered, place);
}

static void on_recovery_end(void *user, int result)
{
        struct recovery *recovery = user;

        if (!result)
                layout_keeper_forget_unused(recovery->cache);
        recovery->on_end(recovery->user, result);
        free(recovery);
}

void cache_recover(struct cache *cache, void (*on_end)(void *user, int result), void *user)
{
        struct recovery *recovery;

        if (!cache->nvme) {
                on_end(user, 0);
                return;
        }
        recovery = malloc(sizeof(*recovery));
        if (!recovery) {
                on_end(user, err_raise(-ENOMEM));
                return;
        }
        *recovery = (struct recovery){cache, on_end, user};
        cache->nvme->on_layout = layout_keeper_on_layout;
        cache->nvme->on_layout_user = cache;
        cache->nvme->ops.recover(cache->nvme, on_recovered_object, on_recovery_end, recovery);
}

/* ---- forgetting ---- */

struct forgetting {
        struct tier_forget forget;
        struct cache *cache;
        uint64_t footprint;
        void (*on_forgotten)(void *user, int result);
        void *user;
};

static void on_freed(struct tier_forget *forget, int result)
{
        struct forgetting *forgetting = (struct forgetting *)forget;
        struct cache *cache = forgetting->cache;

        cache->forgetting_bytes -= forgetting->footprint;
        cache->n_forgetting--;
        if (forgetting->on_forgotten)
                forgetting->on_forgotten(forgetting->user, result);
        free(forgetting);
        transfers_pump(cache);
        if (cache->on_progress)
                cache->on_progress(cache->on_progress_user);
}

int cache_forget(struct cache *cache, struct tier_place place, const struct object_key *key,
                 uint64_t footprint, bool sync, void (*on_forgotten)(void *user, int result),
                 void *user)
{
        struct forgetting *forgetting = calloc(1, sizeof(*forgetting));

        /*
         * Without memory for the record the entry stays in the catalog. That is a leak of
         * space until the next start, never a wrong byte: nothing refers to it.
         */
        if (!forgetting)
                return err_raise(-ENOMEM);

        forgetting->forget.on_freed = on_freed;
        forgetting->cache = cache;
        forgetting->footprint = footprint;
        forgetting->on_forgotten = on_forgotten;
        forgetting->user = user;
        cache->forgetting_bytes += footprint;
        cache->n_forgetting++;
        cache->n_forgets++;
        cache->nvme->ops.forget(cache->nvme, place, key, sync, &forgetting->forget);
        return 0;
}

static uint64_t footprint_of(struct cache *cache, const struct index_object *object)
{
        uint32_t n_covers = 0;

        if (object->flags & INDEX_CROPPABLE)
                index_covers(cache->index, object, &n_covers);
        return cache->nvme->ops.footprint(cache->nvme, object->raw_bytes, n_covers);
}

/* ---- dropping ---- */

static void remove_when_nowhere(struct cache *cache, struct index_object *object)
{
        if (object->host == INDEX_NONE && !object->place.claim)
                index_remove(cache->index, object);
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

/* Returns the outcome of cache_forget(). */
static int detach_place(struct cache *cache, struct index_object *object,
                        enum metrics_removal reason, bool sync,
                        void (*on_forgotten)(void *user, int result), void *user)
{
        struct tier_place place = object->place;
        struct object_key key;
        int r;

        index_key(cache->index, object, &key);
        r = cache_forget(cache, place, &key, footprint_of(cache, object), sync, on_forgotten, user);
        if (r && sync)
                return r;
        note_removal(cache, METRICS_NVME, reason, object);
        index_set_place(cache->index, object, (struct tier_place){0});
        return r;
}

void cache_drop_host(struct cache *cache, struct index_object *object, enum metrics_removal reason)
{
        assert(object->host != INDEX_NONE);
        detach_host(cache, object, reason);
        remove_when_nowhere(cache, object);
        end_of_drop(cache);
}

void cache_drop_place(struct cache *cache, struct index_object *object, enum metrics_removal reason)
{
        assert(object->place.claim);
        detach_place(cache, object, reason, false, NULL, NULL);
        remove_when_nowhere(cache, object);
        end_of_drop(cache);
}

void cache_drop(struct cache *cache, struct index_object *object, enum metrics_removal reason)
{
        if (object->host != INDEX_NONE)
                detach_host(cache, object, reason);
        if (object->place.claim)
                detach_place(cache, object, reason, false, NULL, NULL);
        index_remove(cache->index, object);
        end_of_drop(cache);
}

/* ---- room in host memory ---- */

struct victim_query {
        struct cache *cache;
        bool clean_only;
};

static bool may_leave_host(struct cache *cache, const struct index_object *object, bool clean_only)
{
        const struct host_copy *copy;

        if (object->host == INDEX_NONE || object->flags & INDEX_PINNED_HOST)
                return false;
        copy = host_copy_at(&cache->copies, object->host);
        return !copy->n_leases && !copy->n_uses && !(clean_only && copy->dirty);
}

static struct index_object *next_object(struct cache *cache, const struct index_object *object)
{
        return object->next ? index_object_at(cache->index, object->next) : NULL;
}

static struct index_object *first_object(struct cache *cache, const struct index_boundary *boundary)
{
        return boundary->first_object ? index_object_at(cache->index, boundary->first_object)
                                      : NULL;
}

static enum drop_rule rule_of(const struct placement_victim *victim)
{
        if (victim->is_dead)
                return DROP_RULE_USELESS;
        return victim->part == PLACEMENT_STATES ? DROP_RULE_STATE : DROP_RULE_OLDEST;
}

static bool victim_may_leave_host(void *user, const struct placement_victim *victim)
{
        struct victim_query *query = user;
        struct cache *cache = query->cache;
        bool clean_only = query->clean_only && !victim->is_dead;
        struct index_object *object;

        for (object = first_object(cache, victim->boundary); object;
             object = next_object(cache, object))
                if (placement_takes(cache->index, victim, object) &&
                    may_leave_host(cache, object, clean_only))
                        return true;
        return false;
}

static void evict_from_host(struct cache *cache, const struct placement_victim *victim,
                            bool clean_only)
{
        struct index_object *object, *next;

        placement_evict(cache->index, INDEX_HOST, victim);
        for (object = first_object(cache, victim->boundary); object; object = next) {
                struct host_copy *copy;

                next = next_object(cache, object);
                if (!placement_takes(cache->index, victim, object) ||
                    !may_leave_host(cache, object, clean_only && !victim->is_dead))
                        continue;
                copy = host_copy_at(&cache->copies, object->host);
                if (copy->dirty && !victim->is_dead && cache->write_policy != PLACEMENT_WRITE_OFF) {
                        cache->metrics->host_dropped_objects_total++;
                        cache->metrics->host_dropped_bytes_total += copy->raw_bytes;
                        cache->drop_reason = DROP_SPACE_UNWRITTEN;
                }
                cache->drop_rule = rule_of(victim);
                cache_drop_host(cache, object, METRICS_FOR_SPACE);
        }
}

static bool is_held(struct cache *cache, const struct index_object *object, enum index_tier tier)
{
        if (tier == INDEX_NVME)
                return !object->place.claim || object->flags & INDEX_PINNED_NVME;
        return object->host == INDEX_NONE || object->flags & INDEX_PINNED_HOST ||
               host_copy_at(&cache->copies, object->host)->n_leases;
}

static bool all_are_held(struct cache *cache, const struct placement_victim *victim,
                         enum index_tier tier)
{
        struct index_object *object;

        for (object = first_object(cache, victim->boundary); object;
             object = next_object(cache, object))
                if (placement_takes(cache->index, victim, object) && !is_held(cache, object, tier))
                        return false;
        return true;
}

/*
 * What is leased or pinned is in use now. Left at the old end, thousands of them would be
 * passed over by every search for a victim, and hide what may go behind them.
 */
static void renew_held_at_old_end(struct cache *cache, enum index_tier tier)
{
        for (int list = PLACEMENT_NO_LIST; list < PLACEMENT_N_LISTS; list++) {
                for (unsigned i = 0; i < VICTIM_STEPS_ANY; i++) {
                        struct placement_victim oldest =
                                placement_oldest(cache->index, tier, (enum placement_list)list);

                        if (!oldest.boundary || oldest.boundary->touched_s == cache_now_s(cache) ||
                            !all_are_held(cache, &oldest, tier))
                                break;
                        placement_renew(cache->index, tier, oldest.boundary, cache_now_s(cache));
                }
        }
}

/* Clean copies first, as far as they lie near the old end; then whatever is oldest. */
static bool evict_one_boundary_from_host(struct cache *cache)
{
        bool writes = cache->nvme && cache->write_policy != PLACEMENT_WRITE_OFF;
        struct victim_query query = {cache, writes};
        struct placement_victim victim;

        renew_held_at_old_end(cache, INDEX_HOST);
        victim = placement_victim(cache->index, INDEX_HOST, victim_may_leave_host, &query,
                                  writes ? VICTIM_STEPS_CLEAN : VICTIM_STEPS_ANY);
        if (!victim.boundary && writes) {
                query.clean_only = false;
                victim = placement_victim(cache->index, INDEX_HOST, victim_may_leave_host, &query,
                                          VICTIM_STEPS_ANY);
        }
        if (!victim.boundary)
                return false;
        evict_from_host(cache, &victim, query.clean_only);
        return true;
}

static uint64_t host_free_bytes(const struct cache *cache)
{
        struct host_usage usage;

        host_usage(cache->host, &usage);
        return usage.ready_bytes - usage.used_bytes;
}

int cache_new_copy(struct cache *cache, const struct object_key *key, uint64_t raw_bytes,
                   enum host_copy_state state, uint32_t numa_node, bool contiguous,
                   struct host_copy **ret_copy)
{
        uint32_t max_extents = contiguous ? 1 : HOST_EXTENTS_MAX;

        for (;;) {
                int r = host_copy_new(&cache->copies, key, raw_bytes, state, numa_node, max_extents,
                                      ret_copy);

                if (r != HOST_E_FULL)
                        return r;
                /* Evicting for one long run would cost more than it gives. */
                if (contiguous && host_free_bytes(cache) >= raw_bytes + HOST_UNIT_BYTES)
                        return CACHE_E_FRAGMENTED;
                if (!evict_one_boundary_from_host(cache))
                        return CACHE_E_BUSY;
        }
}

/* ---- room in the NVMe tier ---- */

static bool may_leave_nvme(const struct index_object *object)
{
        return object->place.claim && !(object->flags & (INDEX_READING | INDEX_PINNED_NVME));
}

static bool victim_may_leave_nvme(void *user, const struct placement_victim *victim)
{
        struct cache *cache = user;
        struct index_object *object;

        for (object = first_object(cache, victim->boundary); object;
             object = next_object(cache, object))
                if (placement_takes(cache->index, victim, object) && may_leave_nvme(object))
                        return true;
        return false;
}

static struct placement_victim nvme_victim(struct cache *cache)
{
        renew_held_at_old_end(cache, INDEX_NVME);
        return placement_victim(cache->index, INDEX_NVME, victim_may_leave_nvme, cache,
                                VICTIM_STEPS_ANY);
}

static void evict_from_nvme(struct cache *cache, const struct placement_victim *victim)
{
        struct index_object *object, *next;

        placement_evict(cache->index, INDEX_NVME, victim);
        for (object = first_object(cache, victim->boundary); object; object = next) {
                next = next_object(cache, object);
                if (!placement_takes(cache->index, victim, object) || !may_leave_nvme(object))
                        continue;
                cache->drop_rule = rule_of(victim);
                cache_drop_place(cache, object, METRICS_FOR_SPACE);
        }
}

int cache_make_nvme_room(struct cache *cache, uint64_t bytes, uint32_t before_s)
{
        struct tier_usage usage;

        cache->nvme->ops.usage(cache->nvme, &usage);
        for (;;) {
                struct placement_victim victim;

                /*
                 * Bytes enough, yet full: the free space lies in too many pieces. Then at
                 * least something must be on its way out, or nobody would ever try again.
                 */
                if (cache->n_forgetting &&
                    usage.used_bytes + bytes <= usage.capacity_bytes + cache->forgetting_bytes)
                        return 0;
                victim = nvme_victim(cache);
                if (!victim.boundary || (!victim.is_dead && placement_used_s(&victim) >= before_s))
                        return CACHE_E_BUSY;
                evict_from_nvme(cache, &victim);
        }
}

/* ---- publishing ---- */

/* The index is full: the coldest boundary goes, from wherever it is. */
static bool evict_for_index(struct cache *cache)
{
        struct placement_victim victim = {0};

        if (cache->nvme)
                victim = nvme_victim(cache);
        if (victim.boundary) {
                evict_from_nvme(cache, &victim);
                return true;
        }
        return evict_one_boundary_from_host(cache);
}

static int add_to_index(struct cache *cache, const struct index_new_object *entry,
                        struct index_object **ret_object)
{
        for (unsigned tries = 0; tries < 64; tries++) {
                int r = index_add(cache->index, entry, ret_object);

                if (r != INDEX_E_FULL)
                        return r;
                if (!evict_for_index(cache))
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

/*
 * What older generations of a key there are leave every tier in this turn. @on_forgotten
 * follows when no catalog entry of theirs can come back. Unless 0, nothing has changed.
 */
static int drop_replaced(struct cache *cache, const struct object_key *key,
                         struct index_object *object, void (*on_forgotten)(void *user, int result),
                         void *user, bool *ret_forgetting)
{
        int r = 0;

        if (cache->nvme)
                r = transfer_forget_when_written(cache, key, on_forgotten, user, ret_forgetting);
        if (!r && object && object->place.claim) {
                bool waits = *ret_forgetting;

                r = detach_place(cache, object, METRICS_REPLACED, true,
                                 waits ? NULL : on_forgotten, user);
                *ret_forgetting = waits || !r;
        }
        if (!r && !*ret_forgetting)
                r = sync_forgets(cache, on_forgotten, user, ret_forgetting);
        if (r || !object)
                return r;
        if (object->host != INDEX_NONE)
                detach_host(cache, object, METRICS_REPLACED);
        index_remove(cache->index, object);
        return 0;
}

int cache_publish(struct cache *cache, struct host_copy *copy,
                  const struct index_new_object *object, bool replace,
                  void (*on_forgotten)(void *user, int result), void *user, bool *ret_forgetting)
{
        struct index_new_object entry = *object;
        struct index_boundary *boundary;
        struct index_object *entered, *existing = NULL;
        int r;

        *ret_forgetting = false;
        boundary = index_find_boundary(cache->index, entry.layout, &entry.digest);
        if (boundary)
                existing = index_find_object(cache->index, boundary, entry.group, entry.shard);
        if (existing && !replace)
                return CACHE_E_EXISTS;
        if (replace) {
                r = drop_replaced(cache, &copy->key, existing, on_forgotten, user, ret_forgetting);
                if (r)
                        return r;
        }

        entry.generation = cache->next_generation++;
        r = add_to_index(cache, &entry, &entered);
        if (r)
                return r;

        copy->generation = entry.generation;
        copy->committed_ns = wall_clock_ns();
        memcpy(copy->writer_boot_id, cache->boot_id, sizeof(copy->writer_boot_id));
        host_copy_publish(&cache->copies, copy, index_object_id(cache->index, entered));
        index_set_host(cache->index, entered, copy->id);
        host_copy_set_dirty(&cache->copies, copy, cache->nvme != NULL);
        placement_stored(cache->index, entered, &entry.origin, cache_now_s(cache));
        cache->transfers.stored_bytes += copy->raw_bytes;
        cache->metrics->stored_bytes_total += copy->raw_bytes;
        transfers_pump(cache);
        return 0;
}
