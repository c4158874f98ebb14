// SPDX-License-Identifier: Apache-2.0
/* Room in the tiers and in the index, made by evicting what placement names. */
#include "daemon/cache.h"

/* Boundaries that one search for a victim may pass over. */
#define VICTIM_STEPS_CLEAN 64u
#define VICTIM_STEPS_ANY   4096u
/* Records of the index looked at for one of another node's. */
#define FOREIGN_STEPS 4096u

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
                if (copy->offered)
                        cache->metrics->remote_dropped_objects_total++;
                if (copy->dirty && !victim->is_dead && cache->write_policy != PLACEMENT_WRITE_OFF &&
                    !(object->flags & INDEX_REMOTE_HERE)) {
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
        if (tier == INDEX_REMOTE)
                return !(object->flags & INDEX_REMOTE_OWN) || object->flags & INDEX_PINNED_REMOTE;
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

/* ---- room in the tiers below ---- */

struct below_query {
        struct cache *cache;
        enum index_tier tier;
};

static bool may_leave(struct cache *cache, const struct index_object *object, enum index_tier tier)
{
        return !is_held(cache, object, tier) && !(object->flags & INDEX_READING);
}

static bool victim_may_leave(void *user, const struct placement_victim *victim)
{
        const struct below_query *query = user;
        struct index_object *object;

        for (object = first_object(query->cache, victim->boundary); object;
             object = next_object(query->cache, object))
                if (placement_takes(query->cache->index, victim, object) &&
                    may_leave(query->cache, object, query->tier))
                        return true;
        return false;
}

static struct placement_victim victim_below(struct cache *cache, enum index_tier tier)
{
        struct below_query query = {cache, tier};

        renew_held_at_old_end(cache, tier);
        return placement_victim(cache->index, tier, victim_may_leave, &query, VICTIM_STEPS_ANY);
}

/* @everywhere: from the other tier as well, but for what is pinned. */
static void evict_from_below(struct cache *cache, enum index_tier tier,
                             const struct placement_victim *victim, bool everywhere)
{
        struct index_object *object, *next;

        placement_evict(cache->index, tier, victim);
        for (object = first_object(cache, victim->boundary); object; object = next) {
                next = next_object(cache, object);
                if (!placement_takes(cache->index, victim, object) ||
                    !may_leave(cache, object, tier))
                        continue;
                cache->drop_rule = rule_of(victim);
                if (everywhere && !(object->flags & (INDEX_PINNED_NVME | INDEX_PINNED_REMOTE)))
                        cache_drop_below(cache, object, METRICS_FOR_SPACE);
                else
                        cache_drop_place(cache, object, tier, METRICS_FOR_SPACE);
        }
}

int cache_make_room(struct cache *cache, enum index_tier tier, uint64_t bytes, uint32_t before_s)
{
        struct tier_usage usage;

        cache_tier(cache, tier)->ops.usage(cache_tier(cache, tier), &usage);
        for (;;) {
                struct placement_victim victim;

                /*
                 * Bytes enough, yet full: the free space lies in too many pieces. Then at
                 * least something must be on its way out, or nobody would ever try again.
                 */
                if (cache->n_forgetting_in[tier] &&
                    usage.used_bytes + bytes <=
                            usage.capacity_bytes + cache->forgetting_bytes[tier])
                        return 0;
                victim = victim_below(cache, tier);
                if (!victim.boundary || (!victim.is_dead && placement_used_s(&victim) >= before_s))
                        return CACHE_E_BUSY;
                evict_from_below(cache, tier, &victim, false);
        }
}

/* ---- room in the index ---- */

/* Of what placement names in the tiers below, that which was used longest ago. */
static struct placement_victim coldest_below(struct cache *cache, enum index_tier *ret_tier)
{
        struct placement_victim coldest = {0};

        for (enum index_tier tier = INDEX_NVME; tier < INDEX_N_TIERS; tier++) {
                struct placement_victim victim = {0};

                if (cache_tier(cache, tier))
                        victim = victim_below(cache, tier);
                if (victim.boundary &&
                    (!coldest.boundary || placement_used_s(&victim) < placement_used_s(&coldest))) {
                        coldest = victim;
                        *ret_tier = tier;
                }
        }
        return coldest;
}

static bool evict_foreign(struct cache *cache)
{
        struct index_object *foreign = index_find_foreign(cache->index, FOREIGN_STEPS);

        if (!foreign || foreign->flags & INDEX_READING)
                return false;
        cache_drop_place(cache, foreign, INDEX_REMOTE, METRICS_FOR_SPACE);
        return true;
}

/*
 * What other nodes have goes first: they still have it. Then the coldest boundary, from
 * wherever it is. The few of others that a search would not find soon are left for the end.
 */
bool cache_make_index_room(struct cache *cache)
{
        bool looks_first = index_expects_foreign(cache->index, FOREIGN_STEPS);
        struct placement_victim victim;
        enum index_tier tier = INDEX_NVME;

        if (looks_first && evict_foreign(cache))
                return true;
        victim = coldest_below(cache, &tier);
        if (victim.boundary) {
                /* What is left in one tier keeps its place in the index: nothing would be won. */
                evict_from_below(cache, tier, &victim, true);
                return true;
        }
        return evict_one_boundary_from_host(cache) || (!looks_first && evict_foreign(cache));
}
