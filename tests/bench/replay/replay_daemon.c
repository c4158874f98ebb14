// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon's own index and placement, driven as the daemon drives them: chunk by chunk,
 * states told where their prefill began. As with the other policies room is made when the
 * request is served; "daemon-each" makes it before each object, as reserve does, which
 * costs where a single prompt fills a good part of the tier.
 *
 * The engine is the simplest that there is: it stores every chunk that it computed, and
 * states at the end of the prompt, where match says that prompts branch, and two chunks
 * before the end of a long prefill, whose end is likely to be edited.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/index.h"
#include "daemon/placement.h"
#include "policy.h"

enum { KV_GROUP, STATE_GROUP };

/* Chunks from which on a prefill leaves a second state, and how far before its end. */
#define LONG_PREFILL 64u
#define EDITED_TAIL  2u

struct daemon_tier {
        struct replay_sizes sizes;
        struct replay_usage usage;
        uint32_t chunk_tokens;
        bool makes_room_first;
        struct index *index;
        uint16_t layout;
};

static struct digest digest_of(uint32_t chunk)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &chunk, sizeof(chunk));
        digest.bytes[8] = 1;
        return digest;
}

static struct index_object *find(struct daemon_tier *tier, uint32_t chunk, uint16_t group)
{
        struct digest digest = digest_of(chunk);
        struct index_boundary *boundary = index_find_boundary(tier->index, tier->layout, &digest);

        return boundary ? index_find_object(tier->index, boundary, group, 0) : NULL;
}

static bool anything(void *user, const struct placement_victim *victim)
{
        return true;
}

static void evict_one(struct daemon_tier *tier)
{
        struct placement_victim victim =
                placement_victim(tier->index, INDEX_HOST, anything, NULL, 1);
        uint32_t id;

        if (!victim.boundary)
                abort();
        placement_evict(tier->index, INDEX_HOST, &victim);
        id = victim.boundary->first_object;
        while (id) {
                struct index_object *object = index_object_at(tier->index, id);

                id = object->next;
                if (!placement_takes(tier->index, &victim, object))
                        continue;
                if (object->group == STATE_GROUP)
                        tier->usage.states--;
                else
                        tier->usage.chunks--;
                index_set_host(tier->index, object, INDEX_NONE);
                index_remove(tier->index, object);
        }
}

static void make_room(struct daemon_tier *tier, uint64_t bytes)
{
        while (replay_bytes(&tier->usage, &tier->sizes) + bytes > tier->sizes.capacity_bytes)
                evict_one(tier);
}

static void store(struct daemon_tier *tier, const struct replay_request *request, uint32_t i,
                  uint16_t group, struct index_origin origin)
{
        struct index_object *object = find(tier, request->chain[i - 1], group);
        uint64_t bytes = group == STATE_GROUP ? tier->sizes.state_bytes : tier->sizes.chunk_bytes;
        struct index_new_object new_object = {
                .layout = tier->layout,
                .group = group,
                .digest = digest_of(request->chain[i - 1]),
                .boundary_tokens = i * tier->chunk_tokens,
                .raw_bytes = (uint32_t)bytes,
                .origin = origin,
        };
        uint32_t now_s = (uint32_t)(request->now_us / 1000000);

        if (object) {
                placement_use(tier->index, object, now_s);
                return;
        }
        if (tier->makes_room_first)
                make_room(tier, bytes);
        if (i > 1)
                new_object.parent = digest_of(request->chain[i - 2]);
        if (index_add(tier->index, &new_object, &object))
                abort();
        index_set_host(tier->index, object, 1);
        placement_stored(tier->index, object, &new_object.origin, now_s);
        if (group == STATE_GROUP) {
                tier->usage.states++;
                tier->usage.states_written++;
        } else {
                tier->usage.chunks++;
                tier->usage.chunks_written++;
        }
}

/* Boundary k: the deepest that can be used. */
static uint32_t match(struct daemon_tier *tier, const struct replay_request *request)
{
        bool is_dense = !tier->sizes.state_bytes;
        uint32_t k = 0;

        for (uint32_t i = 1; i <= request->kmax; i++) {
                if (!find(tier, request->chain[i - 1], KV_GROUP))
                        break;
                if (is_dense || find(tier, request->chain[i - 1], STATE_GROUP))
                        k = i;
        }
        return k;
}

/* The boundary at which a checkpoint would pay; 0: none. */
static uint32_t hint(struct daemon_tier *tier, const struct replay_request *request)
{
        bool has_child = false;
        uint32_t m = 0;

        while (m < request->n) {
                struct digest digest = digest_of(request->chain[m]);

                if (!placement_knows(tier->index, tier->layout, &digest, &has_child))
                        return has_child ? m : 0;
                m++;
        }
        return 0;
}

static void acquire(struct daemon_tier *tier, const struct replay_request *request, uint32_t k)
{
        uint32_t now_s = (uint32_t)(request->now_us / 1000000);

        for (uint32_t i = k; i > 0; i--)
                placement_use(tier->index, find(tier, request->chain[i - 1], KV_GROUP), now_s);
        if (k && tier->sizes.state_bytes)
                placement_use(tier->index, find(tier, request->chain[k - 1], STATE_GROUP), now_s);
}

static uint32_t serve(void *self, const struct replay_request *request)
{
        struct daemon_tier *tier = self;
        uint32_t k = match(tier, request), n = request->n;
        uint32_t m = tier->sizes.state_bytes ? hint(tier, request) : 0;
        uint32_t edited = n - k >= LONG_PREFILL ? n - EDITED_TAIL : 0;

        acquire(tier, request, k);
        for (uint32_t i = k + 1; i <= n; i++) {
                struct index_origin origin = {true, i == m, k * tier->chunk_tokens};

                store(tier, request, i, KV_GROUP, origin);
                if (tier->sizes.state_bytes && (i == n || i == m || i == edited))
                        store(tier, request, i, STATE_GROUP, origin);
        }
        make_room(tier, 0);
        return k;
}

static const struct replay_usage *usage(const void *self)
{
        return &((const struct daemon_tier *)self)->usage;
}

static void tier_free(void *self)
{
        struct daemon_tier *tier = self;

        index_free(tier->index);
        free(tier);
}

static int tier_new(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace,
                    bool makes_room_first)
{
        static const struct digest layout_id = {{1}};
        struct daemon_tier *tier = calloc(1, sizeof(*tier));
        int r;

        if (!tier)
                return err_raise(-ENOMEM);
        tier->sizes = *sizes;
        tier->makes_room_first = makes_room_first;
        tier->chunk_tokens = trace->chunk_tokens;
        /* Not the limit, as it is not for the daemon: index.objects_max. */
        r = index_new(&tier->index, 8 * (uint64_t)trace->n_chunks + 1, NULL);
        if (!r)
                r = index_layout(tier->index, 0, &layout_id, &tier->layout);
        if (r) {
                tier_free(tier);
                return r < 0 ? r : err_raise(-ENOMEM);
        }
        if (sizes->state_bytes)
                placement_learn_groups(tier->index, tier->layout, 1u << STATE_GROUP);
        *ret_self = tier;
        return 0;
}

static int new_late(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace)
{
        return tier_new(ret_self, sizes, trace, false);
}

static int new_each(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace)
{
        return tier_new(ret_self, sizes, trace, true);
}

const struct replay_policy replay_daemon = {"daemon", new_late, serve, usage, tier_free};
const struct replay_policy replay_daemon_each = {"daemon-each", new_each, serve, usage, tier_free};
