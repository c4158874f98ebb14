// SPDX-License-Identifier: Apache-2.0
#include "daemon/spill.h"
#include "daemon/cache.h"
#include "daemon/placement_cold.h"

/* On their way up, and in one part of the search. */
#define SPILLS_MAX  8u
#define SPILL_STEPS 1024u
/* Of NVMe: what is free when eviction is near, and what is looked at then. */
#define WINDOW_PART 16u
/* Of host memory: what waits for the pool already keeps spills from starting. */
#define OFFERED_PART 32u

struct candidates {
        uint32_t ids[SPILLS_MAX];
        uint32_t n;
};

static bool may_begin(struct cache *cache)
{
        const struct transfer_lane *lane = &cache->transfers.lanes[INDEX_REMOTE];
        struct host_usage host;

        if (!cache->remote || !cache->nvme || cache->offers.write == PLACEMENT_WRITE_OFF ||
            cache->transfers.draining || cache->transfers.stopped || lane->paused || lane->full ||
            cache->transfers.n_up || cache->transfers.entered_bytes < cache->spill_scan_at_bytes)
                return false;
        host_usage(cache->host, &host);
        return cache->copies.offered_bytes < host.ready_bytes / OFFERED_PART;
}

/* What is looked at: 0 while NVMe has room. */
static uint64_t window_of(struct cache *cache)
{
        struct tier_usage usage;
        uint64_t window;

        cache->nvme->ops.usage(cache->nvme, &usage);
        window = usage.capacity_bytes / WINDOW_PART;
        return usage.capacity_bytes - usage.used_bytes > window ? 0 : window;
}

static bool is_due(struct cache *cache, const struct index_object *object)
{
        return object->place.claim && object->host == INDEX_NONE &&
               !(object->flags & (INDEX_REMOTE_HERE | INDEX_READING | INDEX_WRITING_POOL)) &&
               offer_is_worth_it(cache, index_boundary_at(cache->index, object->boundary));
}

/* The paths of two states of one chain share the KV above. */
static bool has(const struct candidates *candidates, uint32_t id)
{
        for (uint32_t i = 0; i < candidates->n; i++)
                if (candidates->ids[i] == id)
                        return true;
        return false;
}

/* Returns the bytes of the part. */
static uint64_t look_at(struct cache *cache, const struct placement_victim *part,
                        struct candidates *candidates)
{
        uint64_t bytes = 0;

        for (uint32_t id = part->boundary->first_object; id;) {
                const struct index_object *object = index_object_at(cache->index, id);

                if (object->place.claim && placement_takes(cache->index, part, object)) {
                        bytes += object->raw_bytes;
                        if (candidates->n < SPILLS_MAX && is_due(cache, object) &&
                            !has(candidates, id))
                                candidates->ids[candidates->n++] = id;
                }
                id = object->next;
        }
        return bytes;
}

static struct candidates find(struct cache *cache, uint64_t window)
{
        struct candidates candidates = {.n = 0};
        struct placement_cold walk;
        struct placement_victim part;
        uint64_t bytes = 0;

        placement_cold_begin(&walk, cache->index, INDEX_NVME);
        for (unsigned i = 0; i < SPILL_STEPS && bytes < window && candidates.n < SPILLS_MAX; i++) {
                part = placement_cold_next(&walk);
                if (!part.boundary)
                        break;
                bytes += look_at(cache, &part, &candidates);
        }
        return candidates;
}

/* False: there is no room in host memory for now. */
static bool begin(struct cache *cache, struct index_object *object)
{
        struct host_copy *copy;
        struct object_key key;

        index_key(cache->index, object, &key);
        if (cache_new_copy(cache, &key, object->raw_bytes, HOST_COPY_ARRIVING, UINT32_MAX, false,
                           &copy))
                return false;
        copy->spills = true;
        (void)transfer_up(cache, object, copy, NULL); /* if not, it is evicted as it is */
        host_copy_unuse(&cache->copies, copy);
        return true;
}

static void look_again_after(struct cache *cache, uint64_t window)
{
        cache->spill_scan_at_bytes = cache->transfers.entered_bytes + window / WINDOW_PART;
}

void spill_end(struct cache *cache, struct host_copy *copy)
{
        struct index_object *object;

        if (!copy->spills)
                return;
        copy->spills = false;
        if (copy->object == INDEX_NONE)
                return;
        object = index_object_at(cache->index, copy->object);
        if (!(object->flags & INDEX_REMOTE_HERE))
                look_again_after(cache, window_of(cache));
        if (object->place.claim || object->flags & INDEX_REMOTE_HERE)
                cache_drop_host(cache, object, METRICS_FOR_SPACE);
}

void spills_pump(struct cache *cache)
{
        uint64_t window = may_begin(cache) ? window_of(cache) : 0;
        struct candidates candidates;
        uint32_t n = 0;

        if (!window)
                return;
        candidates = find(cache, window);
        while (n < candidates.n && begin(cache, index_object_at(cache->index, candidates.ids[n])))
                n++;
        if (n < SPILLS_MAX)
                look_again_after(cache, window);
}
