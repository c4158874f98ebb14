// SPDX-License-Identifier: Apache-2.0
#include "daemon/offer.h"
#include "daemon/cache.h"
#include "daemon/pin_table.h"

/* Boundaries of one chain that are offered together: those above come with a later one. */
#define CHAIN_MAX 1024u

bool offer_is_worth_it(struct cache *cache, const struct index_boundary *boundary)
{
        const struct offer_policy *policy = &cache->offers;

        return policy->all || boundary->flags & INDEX_SEEN_TWICE ||
               (policy->tokens_min && !(boundary->flags & INDEX_TOKENS_UNKNOWN) &&
                boundary->boundary_tokens >= policy->tokens_min) ||
               pins_hold(index_pins(cache->index), index_boundary_id(cache->index, boundary));
}

static bool may_offer(struct cache *cache, const struct index_object *object)
{
        return object->host != INDEX_NONE &&
               !(object->flags & (INDEX_REMOTE_HERE | INDEX_WRITING_POOL)) &&
               !host_copy_at(&cache->copies, object->host)->offered &&
               !placement_is_dead(cache->index, object);
}

static bool has_any(struct cache *cache, const struct index_boundary *boundary)
{
        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(cache->index, id);

                if (may_offer(cache, object))
                        return true;
                id = object->next;
        }
        return false;
}

static void offer_boundary(struct cache *cache, const struct index_boundary *boundary)
{
        for (uint32_t id = boundary->first_object; id;) {
                const struct index_object *object = index_object_at(cache->index, id);

                if (may_offer(cache, object))
                        host_copy_set_offered(&cache->copies,
                                              host_copy_at(&cache->copies, object->host), true);
                id = object->next;
        }
}

/* Up to the first ancestor with nothing to offer: what is above was offered with it. */
static void offer_chain(struct cache *cache, const struct index_boundary *boundary)
{
        const struct index_boundary *chain[CHAIN_MAX];
        uint32_t n = 0;

        while (n < CHAIN_MAX && has_any(cache, boundary)) {
                chain[n++] = boundary;
                if (!boundary->parent)
                        break;
                boundary = index_boundary_at(cache->index, boundary->parent);
        }
        while (n--)
                offer_boundary(cache, chain[n]);
}

static void offer_now(struct cache *cache, uint32_t boundary_id)
{
        const struct index_boundary *boundary;

        if (!cache->remote || cache->offers.write != PLACEMENT_WRITE_STORE ||
            cache->transfers.draining)
                return;
        boundary = index_boundary_at(cache->index, boundary_id);
        if (offer_is_worth_it(cache, boundary))
                offer_chain(cache, boundary);
}

void offer_stored(struct cache *cache, const struct index_object *object)
{
        offer_now(cache, object->boundary);
}

void offer_seen(struct cache *cache, const struct index_object *object)
{
        /* Most often it is there already, or still on its way up. */
        if (object->host != INDEX_NONE && !(object->flags & INDEX_REMOTE_HERE))
                offer_now(cache, object->boundary);
}

void offer_arrived(struct cache *cache, const struct index_object *object)
{
        struct host_copy *copy = host_copy_at(&cache->copies, object->host);

        if (copy->spills && may_offer(cache, object))
                host_copy_set_offered(&cache->copies, copy, true);
        else
                offer_now(cache, object->boundary);
}

void offer_pinned(struct cache *cache, struct index_boundary *boundary)
{
        offer_now(cache, index_boundary_id(cache->index, boundary));
}

void offer_all(struct cache *cache)
{
        struct index_object *object;
        uint32_t after = INDEX_NONE;

        if (!cache->remote || cache->offers.write == PLACEMENT_WRITE_OFF ||
            (cache->nvme && cache->write_policy != PLACEMENT_WRITE_OFF))
                return;
        while ((object = index_next_object(cache->index, after))) {
                const struct index_boundary *boundary =
                        index_boundary_at(cache->index, object->boundary);

                after = index_object_id(cache->index, object);
                if (object->host != INDEX_NONE && offer_is_worth_it(cache, boundary))
                        offer_chain(cache, boundary);
        }
}

uint64_t offer_part(struct cache *cache, const struct placement_victim *part)
{
        uint64_t bytes = 0;

        for (uint32_t id = part->boundary->first_object; id;) {
                const struct index_object *object = index_object_at(cache->index, id);

                id = object->next;
                if (object->host != INDEX_NONE && placement_takes(cache->index, part, object))
                        bytes += host_copy_at(&cache->copies, object->host)->space_bytes;
        }
        if (bytes && offer_is_worth_it(cache, part->boundary))
                offer_chain(cache, part->boundary);
        return bytes;
}
