// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL /* 32-byte inputs: the call would cost more than the hash */
#include <xxhash.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "daemon/index_struct.h"

#define PREFETCH_ROUND    64u
#define REMEMBERED_OF_ALL 4u

static const uint16_t bytes_flag[INDEX_N_TIERS] = {INDEX_BYTES_HOST, INDEX_BYTES_NVME,
                                                   INDEX_BYTES_REMOTE};

DEFINE_CLEANUP(struct index *, index_free)

static int init_records(struct index *index, uint64_t objects_max)
{
        uint64_t boundaries_max = objects_max + TIER_COVERS_MAX + 2;
        void *heads, *places;
        int r;

        r = record_pool_init(&index->boundaries, boundaries_max, sizeof(struct index_boundary),
                             offsetof(struct index_boundary, hash_next));
        if (r < 0)
                return r;
        r = record_pool_init(&index->objects, objects_max, sizeof(struct index_object),
                             offsetof(struct index_object, next));
        if (r < 0)
                return r;
        r = record_array_new(&places, objects_max + 1, sizeof(struct tier_place));
        if (r < 0)
                return r;
        index->remote_places = places;
        /* Chains of two thirds of a record: each further one is a cache miss. */
        index->n_heads = objects_max + objects_max / 2 + 1;
        r = record_array_new(&heads, index->n_heads, sizeof(uint32_t));
        if (r < 0)
                return r;
        index->heads = heads;
        r = pin_table_init(&index->pins, boundaries_max);
        if (r < 0)
                return r;
        return placement_order_init(&index->order, boundaries_max,
                                    objects_max / REMEMBERED_OF_ALL + 1);
}

int index_new(struct index **ret_index, uint64_t objects_max, struct presence_table *table)
{
        _cleanup_(index_freep) struct index *index = calloc(1, sizeof(*index));
        int r;

        if (!index)
                return err_raise(-ENOMEM);
        index->table = table;
        /* Clients choose the digests: without the seed they could put all in one chain. */
        if (getrandom(&index->hash_seed, sizeof(index->hash_seed), 0) != sizeof(index->hash_seed))
                return err_raise(-EIO);
        r = init_records(index, objects_max);
        if (r < 0)
                return r;
        r = cover_table_init(&index->covers, objects_max);
        if (r < 0)
                return r;
        r = layout_table_init(&index->layouts, index->hash_seed);
        if (r < 0)
                return r;
        *ret_index = steal_ptr(index);
        return 0;
}

struct index *index_free(struct index *index)
{
        if (!index)
                return NULL;
        if (index->covers.sets)
                for (uint32_t id = 1; id <= index->objects.highest; id++)
                        cover_set_free(index->covers.sets[id]);
        layout_table_deinit(&index->layouts);
        cover_table_deinit(&index->covers);
        placement_order_deinit(&index->order);
        pin_table_deinit(&index->pins);
        record_array_free(index->heads, index->n_heads, sizeof(uint32_t));
        record_array_free(index->remote_places, index->objects.n_max + 1,
                          sizeof(struct tier_place));
        record_pool_deinit(&index->objects);
        record_pool_deinit(&index->boundaries);
        free(index);
        return NULL;
}

struct placement_order *index_order(struct index *index)
{
        return &index->order;
}

struct pin_table *index_pins(struct index *index)
{
        return &index->pins;
}

int index_layout(struct index *index, uint32_t domain, const struct digest *layout_id,
                 uint16_t *ret_layout)
{
        uint64_t presence_key =
                index->table ? presence_table_view(index->table)->header->hash_key : 0;

        if (layout_table_number(&index->layouts, domain, layout_id, presence_key, ret_layout))
                return INDEX_E_FULL;
        return 0;
}

uint16_t index_find_layout(const struct index *index, uint32_t domain,
                           const struct digest *layout_id)
{
        return layout_table_find(&index->layouts, domain, layout_id);
}

const struct digest *index_layout_id(const struct index *index, uint16_t layout)
{
        return &layout_table_at(&index->layouts, layout)->id;
}

uint32_t index_layout_domain(const struct index *index, uint16_t layout)
{
        return layout_table_at(&index->layouts, layout)->domain;
}

uint32_t index_n_layouts(const struct index *index)
{
        return index->layouts.n;
}

struct layout_entry *index_layout_at(const struct index *index, uint16_t layout)
{
        return layout_table_at(&index->layouts, layout);
}

int index_describe_layout(struct index *index, uint16_t layout, const uint8_t *encoding,
                          size_t length)
{
        const struct layout_entry *entry = layout_table_at(&index->layouts, layout);
        int r = layout_table_describe(&index->layouts, layout, encoding, length);

        if (entry->is_known)
                placement_learn_groups(index, layout, entry->state_groups);
        return r;
}

struct index_boundary *index_boundary_at(struct index *index, uint32_t id)
{
        struct index_boundary *boundary = record_pool_at(&index->boundaries, id);

        assert(boundary->flags & INDEX_IN_USE);
        return boundary;
}

struct index_object *index_object_at(struct index *index, uint32_t id)
{
        struct index_object *object = record_pool_at(&index->objects, id);

        assert(object->boundary);
        return object;
}

uint32_t index_boundary_id(const struct index *index, const struct index_boundary *boundary)
{
        return record_pool_id(&index->boundaries, boundary);
}

uint32_t index_object_id(const struct index *index, const struct index_object *object)
{
        return record_pool_id(&index->objects, object);
}

uint64_t index_fingerprint(const struct index *index, uint16_t layout,
                           const struct digest *digest)
{
        return presence_fingerprint(layout_table_at(&index->layouts, layout)->seeds[0], digest);
}

/* ---- boundaries ---- */

static uint32_t *head_of(const struct index *index, uint16_t layout, const struct digest *digest)
{
        uint64_t hash = XXH3_64bits_withSeed(digest, sizeof(*digest), index->hash_seed + layout);

        return &index->heads[((hash >> 32) * index->n_heads) >> 32];
}

static struct index_boundary *find_in_chain(struct index *index, uint32_t id, uint16_t layout,
                                            const struct digest *digest)
{
        while (id) {
                struct index_boundary *boundary = index_boundary_at(index, id);

                if (boundary->layout == layout && digest_equal(&boundary->digest, digest))
                        return boundary;
                id = boundary->hash_next;
        }
        return NULL;
}

struct index_boundary *index_find_boundary(struct index *index, uint16_t layout,
                                           const struct digest *digest)
{
        return find_in_chain(index, *head_of(index, layout, digest), layout, digest);
}

/* A new one is a placeholder about which nothing is known. */
static struct index_boundary *find_or_make_boundary(struct index *index, uint16_t layout,
                                                    const struct digest *digest)
{
        uint32_t *head = head_of(index, layout, digest);
        struct index_boundary *boundary = find_in_chain(index, *head, layout, digest);
        uint32_t id;

        if (boundary)
                return boundary;
        id = record_pool_take(&index->boundaries);
        boundary = record_pool_at(&index->boundaries, id);
        *boundary = (struct index_boundary){
                .digest = *digest,
                .hash_next = *head,
                .layout = layout,
                .flags = INDEX_IN_USE | INDEX_PARENT_UNKNOWN | INDEX_TOKENS_UNKNOWN,
                .touched_s = INDEX_NEVER,
        };
        *head = id;
        if (index->notes)
                index->notes[id] = 0;
        placement_begin(index, boundary);
        return boundary;
}

static void free_boundary(struct index *index, struct index_boundary *boundary)
{
        uint32_t id = index_boundary_id(index, boundary);
        uint32_t *link = head_of(index, boundary->layout, &boundary->digest);

        assert(!(boundary->flags & (INDEX_IN_HOST | INDEX_IN_NVME | INDEX_IN_REMOTE)));
        placement_end(index, boundary);
        while (*link != id)
                link = &index_boundary_at(index, *link)->hash_next;
        *link = boundary->hash_next;
        record_pool_give_back(&index->boundaries, id);
}

/* Frees @boundary when nothing holds it any more, then its parent likewise. */
static void release_boundary(struct index *index, struct index_boundary *boundary)
{
        while (boundary && !boundary->first_object && !boundary->first_cover &&
               !boundary->n_children &&
               !pins_hold(&index->pins, index_boundary_id(index, boundary))) {
                struct index_boundary *parent = NULL;

                if (boundary->parent) {
                        parent = index_boundary_at(index, boundary->parent);
                        if (!--parent->n_children)
                                index_publish_branch(index, parent);
                }
                free_boundary(index, boundary);
                boundary = parent;
        }
}

/*
 * Takes over the number of tokens, unless the children, all of them further from the
 * root, say that it cannot be. Says whether the number is known then.
 */
static bool learn_tokens(struct index_boundary *boundary, uint32_t tokens)
{
        if (!(boundary->flags & INDEX_TOKENS_UNKNOWN))
                return true;
        if (!tokens || (boundary->n_children && tokens >= boundary->boundary_tokens))
                return false;
        boundary->boundary_tokens = tokens;
        boundary->flags &= (uint16_t)~INDEX_TOKENS_UNKNOWN;
        return true;
}

/* May @parent stand above something at @tokens? If it is unknown, it may from now on. */
static bool accept_child(struct index_boundary *parent, uint32_t tokens)
{
        if (!(parent->flags & INDEX_TOKENS_UNKNOWN))
                return parent->boundary_tokens < tokens;
        if (!parent->n_children || tokens < parent->boundary_tokens)
                parent->boundary_tokens = tokens;
        return true;
}

/*
 * A boundary with a parent knows its tokens, and they are more than its parent's once
 * those are known: no circle can exist, whatever is claimed, without a look at the chain.
 */
static void learn_place(struct index *index, struct index_boundary *boundary,
                        const struct index_new_object *object)
{
        struct index_boundary *parent;

        if (!learn_tokens(boundary, object->boundary_tokens))
                return;
        if (!(boundary->flags & INDEX_PARENT_UNKNOWN) || object->parent_unknown ||
            digest_equal(&object->parent, &boundary->digest))
                return;
        if (!digest_is_zero(&object->parent)) {
                parent = find_or_make_boundary(index, boundary->layout, &object->parent);
                if (!accept_child(parent, boundary->boundary_tokens))
                        return;
                if (!parent->n_children++)
                        index_publish_branch(index, parent);
                boundary->parent = index_boundary_id(index, parent);
                placement_adopt(index, boundary);
                pins_adopt(index, boundary);
        }
        boundary->flags &= (uint16_t)~INDEX_PARENT_UNKNOWN;
}

void index_unpin(struct index *index, struct index_boundary *boundary)
{
        pin_let_go(index, boundary);
        release_boundary(index, boundary);
}

/* ---- objects ---- */

struct index_object *index_find_object(struct index *index, struct index_boundary *boundary,
                                       uint16_t group, uint16_t shard)
{
        for (uint32_t id = boundary->first_object; id;) {
                struct index_object *object = index_object_at(index, id);

                if (object->group == group && object->shard == shard)
                        return object;
                id = object->next;
        }
        return NULL;
}

/* How near it is. */
static int nearness(const struct index_object *object)
{
        if (object->place.claim)
                return 2;
        return object->flags & INDEX_REMOTE_HERE ? 1 : 0;
}

/* Of several blobs that cover it, one in the host tier; else the nearest; else any. */
struct index_object *index_find_serving(struct index *index, struct index_boundary *boundary,
                                        uint16_t group, uint16_t shard)
{
        struct index_object *best = index_find_object(index, boundary, group, shard);

        for (uint32_t id = best ? INDEX_NONE : boundary->first_cover; id;) {
                struct cover *cover = cover_table_at(&index->covers, id);
                struct index_object *object = index_object_at(index, cover->object);

                id = cover->next;
                if (object->group != group || object->shard != shard)
                        continue;
                if (object->host)
                        return object;
                if (!best || nearness(object) > nearness(best))
                        best = object;
        }
        return best;
}

static void join_covers(struct index *index, struct index_object *object, struct cover_set *set)
{
        uint32_t id = index_object_id(index, object);

        index->covers.sets[id] = set;
        for (uint32_t i = 0; i < set->n_digests; i++) {
                struct index_boundary *boundary = find_or_make_boundary(
                        index, index_boundary_at(index, object->boundary)->layout,
                        &set->digests[i]);
                uint32_t boundary_id = index_boundary_id(index, boundary);

                /* Its own end it serves anyway. */
                if (boundary_id != object->boundary)
                        cover_table_join(&index->covers, set, id, boundary_id,
                                         &boundary->first_cover);
        }
}

static void part_covers(struct index *index, uint32_t object)
{
        struct cover_set *set = index->covers.sets[object];

        if (!set)
                return;
        for (uint32_t i = 0; i < set->n_covers; i++) {
                struct cover *cover = cover_table_at(&index->covers, set->covers[i]);
                struct index_boundary *boundary = index_boundary_at(index, cover->boundary);

                cover_table_part(&index->covers, set->covers[i], &boundary->first_cover);
                release_boundary(index, boundary);
        }
        index->covers.sets[object] = cover_set_free(set);
}

static bool has_room(const struct index *index, const struct index_new_object *object)
{
        return record_pool_n_free(&index->objects) > 0 &&
               record_pool_n_free(&index->boundaries) >= object->n_covers + 2 &&
               record_pool_n_free(&index->covers.covers) >= object->n_covers;
}

static void count_in_layout(struct index *index, const struct index_object *object, int sign)
{
        const struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        struct layout_entry *layout = layout_table_at(&index->layouts, boundary->layout);

        layout->objects += (uint64_t)(int64_t)sign;
        layout->bytes += (uint64_t)(sign * (int64_t)object->raw_bytes);
}

int index_add(struct index *index, const struct index_new_object *new_object,
              struct index_object **ret_object)
{
        struct index_boundary *boundary;
        struct index_object *object;
        struct cover_set *set = NULL;
        uint32_t id;

        assert(new_object->n_covers <= TIER_COVERS_MAX);
        if (!has_room(index, new_object))
                return INDEX_E_FULL;
        if (new_object->croppable && new_object->n_covers) {
                set = cover_set_new(new_object->covers, new_object->n_covers);
                if (!set)
                        return err_raise(-ENOMEM);
        }
        boundary = find_or_make_boundary(index, new_object->layout, &new_object->digest);
        assert(!index_find_object(index, boundary, new_object->group, new_object->shard));
        learn_place(index, boundary, new_object);

        id = record_pool_take(&index->objects);
        object = record_pool_at(&index->objects, id);
        *object = (struct index_object){
                .boundary = index_boundary_id(index, boundary),
                .next = boundary->first_object,
                .group = new_object->group,
                .shard = new_object->shard,
                .cell = new_object->cell,
                .flags = new_object->croppable ? INDEX_CROPPABLE : 0,
                .raw_bytes = new_object->raw_bytes,
                .generation = new_object->generation,
        };
        boundary->first_object = id;
        count_in_layout(index, object, 1);
        if (set)
                join_covers(index, object, set);
        *ret_object = object;
        return 0;
}

void index_remove(struct index *index, struct index_object *object)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        uint32_t id = index_object_id(index, object);
        uint32_t *link = &boundary->first_object;

        assert(index_object_is_nowhere(object));
        count_in_layout(index, object, -1);
        part_covers(index, id);
        while (*link != id)
                link = &index_object_at(index, *link)->next;
        *link = object->next;
        record_pool_give_back(&index->objects, id);
        release_boundary(index, boundary);
}

/* ---- where objects are ---- */

static bool any_is_ours(struct index *index, const struct index_boundary *boundary,
                      enum index_tier tier)
{
        for (uint32_t id = boundary->first_object; id;) {
                struct index_object *object = index_object_at(index, id);

                if (index_object_is_ours(object, tier))
                        return true;
                id = object->next;
        }
        return false;
}

static void object_entered(struct index *index, struct index_object *object, enum index_tier tier)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        bool first;

        index->bytes_in[tier] += object->raw_bytes;
        index->objects_in[tier]++;
        first = !(boundary->flags & bytes_flag[tier]);
        boundary->flags |= bytes_flag[tier];
        placement_enter(index, object, tier, first);
        pins_enter(index, object, tier);
        index_publish(index, object);
}

static void object_left(struct index *index, struct index_object *object, enum index_tier tier)
{
        struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        bool last;

        index->bytes_in[tier] -= object->raw_bytes;
        index->objects_in[tier]--;
        last = !any_is_ours(index, boundary, tier);
        if (last)
                boundary->flags &= (uint16_t)~bytes_flag[tier];
        placement_leave(index, object, tier, last);
        pins_leave(index, object, tier);
        index_publish(index, object);
}

static void location_changed(struct index *index, struct index_object *object, enum index_tier tier,
                             bool was_in)
{
        if (index_object_is_in(object, tier) == was_in)
                return;
        if (was_in)
                object_left(index, object, tier);
        else
                object_entered(index, object, tier);
}

static void count_foreign(struct index *index, const struct index_object *object, bool was_foreign)
{
        index->n_foreign += index_object_is_foreign(object);
        index->n_foreign -= was_foreign;
}

void index_set_host(struct index *index, struct index_object *object, uint32_t host)
{
        bool was_in = index_object_is_in(object, INDEX_HOST);
        bool was_foreign = index_object_is_foreign(object);

        object->host = host;
        count_foreign(index, object, was_foreign);
        location_changed(index, object, INDEX_HOST, was_in);
}

void index_set_place(struct index *index, struct index_object *object, struct tier_place place)
{
        bool was_in = index_object_is_in(object, INDEX_NVME);
        bool was_foreign = index_object_is_foreign(object);

        object->place = place;
        count_foreign(index, object, was_foreign);
        location_changed(index, object, INDEX_NVME, was_in);
}

/* What others have is no business of orders and pins, but it is there. */
static void foreign_changed(struct index *index, struct index_object *object, int sign)
{
        index->bytes_in[INDEX_REMOTE] += (uint64_t)(sign * (int64_t)object->raw_bytes);
        index->objects_in[INDEX_REMOTE] += (uint64_t)(int64_t)sign;
        placement_elsewhere(index, object);
        index_publish(index, object);
}

static void leave_remote(struct index *index, struct index_object *object)
{
        bool was_own = object->flags & INDEX_REMOTE_OWN;

        object->flags &= (uint16_t) ~(INDEX_REMOTE_HERE | INDEX_REMOTE_OWN);
        if (was_own)
                object_left(index, object, INDEX_REMOTE);
        else
                foreign_changed(index, object, -1);
}

void index_set_remote(struct index *index, struct index_object *object, struct tier_place place,
                      bool own)
{
        bool was_foreign = index_object_is_foreign(object);

        if (object->flags & INDEX_REMOTE_HERE)
                leave_remote(index, object);
        index->remote_places[index_object_id(index, object)] = place;
        if (place.claim) {
                object->flags |= INDEX_REMOTE_HERE | (own ? INDEX_REMOTE_OWN : 0);
                if (own)
                        object_entered(index, object, INDEX_REMOTE);
                else
                        foreign_changed(index, object, 1);
        }
        count_foreign(index, object, was_foreign);
}

struct tier_place index_place(const struct index *index, const struct index_object *object,
                              enum index_tier tier)
{
        if (tier == INDEX_NVME)
                return object->place;
        if (tier == INDEX_REMOTE && object->flags & INDEX_REMOTE_HERE)
                return index->remote_places[index_object_id(index, object)];
        return (struct tier_place){0};
}

/* ---- reading ---- */

static const struct digest *digest_in(const struct digest *digests, size_t stride, size_t i)
{
        return (const void *)((const uint8_t *)digests + i * stride);
}

static void prefetch_presence(const struct index *index, uint16_t layout,
                              const struct digest *digest)
{
        uint64_t seed = layout_table_at(&index->layouts, layout)->seeds[0];

        presence_prefetch(presence_table_view(index->table), presence_fingerprint(seed, digest));
}

/* Each pass reads what the pass before has asked for. */
static void prefetch_round(const struct index *index, uint16_t layout, const struct digest *digests,
                           size_t stride, size_t n, bool publish)
{
        uint32_t *heads[PREFETCH_ROUND];

        for (size_t i = 0; i < n; i++) {
                heads[i] = head_of(index, layout, digest_in(digests, stride, i));
                __builtin_prefetch(heads[i]);
                if (publish && index->table)
                        prefetch_presence(index, layout, digest_in(digests, stride, i));
        }
        for (size_t i = 0; i < n; i++)
                if (*heads[i])
                        __builtin_prefetch(record_pool_at(&index->boundaries, *heads[i]));
        for (size_t i = 0; i < n; i++) {
                const struct index_boundary *boundary;

                if (!*heads[i])
                        continue;
                boundary = record_pool_at(&index->boundaries, *heads[i]);
                if (!digest_equal(&boundary->digest, digest_in(digests, stride, i))) {
                        if (boundary->hash_next)
                                __builtin_prefetch(
                                        record_pool_at(&index->boundaries, boundary->hash_next));
                        continue;
                }
                for (int tier = 0; tier < INDEX_N_TIERS; tier++)
                        __builtin_prefetch(&index->order.links[tier][*heads[i]]);
                if (boundary->first_object)
                        __builtin_prefetch(record_pool_at(&index->objects, boundary->first_object));
        }
}

void index_prefetch(const struct index *index, uint16_t layout, const struct digest *digests,
                    size_t stride, size_t n, bool publish)
{
        for (size_t i = 0; i < n; i += PREFETCH_ROUND)
                prefetch_round(index, layout, digest_in(digests, stride, i), stride,
                               n - i < PREFETCH_ROUND ? n - i : PREFETCH_ROUND, publish);
}

void index_key(const struct index *index, const struct index_object *object,
               struct object_key *ret_key)
{
        const struct index_boundary *boundary =
                record_pool_at(&index->boundaries, object->boundary);
        const struct layout_entry *layout = layout_table_at(&index->layouts, boundary->layout);

        *ret_key = (struct object_key){
                .layout = layout->id,
                .boundary = boundary->digest,
                .domain = layout->domain,
                .group = object->group,
                .shard = object->shard,
        };
}

const struct digest *index_covers(const struct index *index, const struct index_object *object,
                                  uint32_t *ret_n)
{
        const struct cover_set *set = index->covers.sets[index_object_id(index, object)];

        *ret_n = set ? set->n_digests : 0;
        return set ? set->digests : NULL;
}

void index_layout_usage(const struct index *index, uint16_t layout, uint64_t *ret_objects,
                        uint64_t *ret_bytes)
{
        const struct layout_entry *entry = layout_table_at(&index->layouts, layout);

        *ret_objects = entry->objects;
        *ret_bytes = entry->bytes;
}

void index_usage(const struct index *index, struct index_usage *ret_usage)
{
        *ret_usage = (struct index_usage){
                .objects = index->objects.n_used,
                .boundaries = index->boundaries.n_used,
                .objects_max = index->objects.n_max,
                .foreign_objects = index->n_foreign,
        };
        memcpy(ret_usage->bytes_in, index->bytes_in, sizeof(index->bytes_in));
        memcpy(ret_usage->objects_in, index->objects_in, sizeof(index->objects_in));
}
