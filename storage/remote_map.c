// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "storage/remote_map.h"

static int compare_bundles(const struct remote_bundle *a, const struct remote_bundle *b)
{
        return a->number < b->number ? -1 : a->number > b->number;
}

TREE_GENERATE(remote_bundle_tree, remote_bundle, tree, compare_bundles)

static void *reserve(size_t bytes)
{
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        return memory == MAP_FAILED ? NULL : memory;
}

int remote_map_init(struct remote_map *map, uint32_t max)
{
        memset(map, 0, sizeof(*map));
        LIST_INIT(&map->nodes);
        map->max = max;
        map->n_slots = 1;
        map->n_buckets = 1;
        map->next_claim = 1;
        map->entries = reserve(((size_t)max + 1) * sizeof(*map->entries));
        map->buckets = reserve(((size_t)max + 1) * sizeof(*map->buckets));
        if (!map->entries || !map->buckets) {
                remote_map_deinit(map);
                return err_raise(-ENOMEM);
        }
        return 0;
}

void remote_map_deinit(struct remote_map *map)
{
        struct remote_node *node;
        struct remote_bundle *bundle;

        while ((node = LIST_FIRST(&map->nodes))) {
                while ((bundle = remote_node_first_bundle(node))) {
                        RB_REMOVE(remote_bundle_tree, &node->bundles, bundle);
                        free(bundle);
                }
                LIST_REMOVE(node, link);
                free(node->positions);
                free(node->listed);
                free(node);
        }
        if (map->entries)
                munmap(map->entries, ((size_t)map->max + 1) * sizeof(*map->entries));
        if (map->buckets)
                munmap(map->buckets, ((size_t)map->max + 1) * sizeof(*map->buckets));
        map->entries = NULL;
        map->buckets = NULL;
}

/* ---- nodes ---- */

struct remote_node *remote_map_node(struct remote_map *map, const uint8_t id[16], bool create)
{
        struct remote_node *node;

        LIST_FOREACH(node, &map->nodes, link) {
                if (!memcmp(node->id, id, sizeof(node->id)))
                        return node;
        }
        if (!create || map->n_nodes == REMOTE_NODES_MAX)
                return NULL;
        node = calloc(1, sizeof(*node));
        if (!node)
                return NULL;
        memcpy(node->id, id, sizeof(node->id));
        RB_INIT(&node->bundles);
        LIST_INSERT_HEAD(&map->nodes, node, link);
        map->n_nodes++;
        return node;
}

void remote_map_drop_node(struct remote_map *map, struct remote_node *node)
{
        struct remote_node *other;

        LIST_FOREACH(other, &map->nodes, link) {
                for (uint32_t i = 0; i < other->n_positions; i++)
                        if (other->positions[i].node == node)
                                other->positions[i--] = other->positions[--other->n_positions];
        }
        LIST_REMOVE(node, link);
        map->n_nodes--;
        free(node->positions);
        free(node->listed);
        free(node);
}

uint64_t remote_node_position(const struct remote_node *node, const struct remote_node *of)
{
        for (uint32_t i = 0; i < node->n_positions; i++)
                if (node->positions[i].node == of)
                        return node->positions[i].number;
        return 0;
}

int remote_node_set_position(struct remote_node *node, struct remote_node *of, uint64_t number)
{
        struct remote_position *positions;

        for (uint32_t i = 0; i < node->n_positions; i++) {
                if (node->positions[i].node != of)
                        continue;
                if (node->positions[i].number < number)
                        node->positions[i].number = number;
                return 0;
        }
        positions = realloc(node->positions, (node->n_positions + 1) * sizeof(*positions));
        if (!positions)
                return err_raise(-ENOMEM);
        node->positions = positions;
        positions[node->n_positions++] = (struct remote_position){of, number};
        return 0;
}

/* ---- bundles ---- */

struct remote_bundle *remote_map_bundle(struct remote_map *map, struct remote_node *node,
                                        uint64_t number, bool create)
{
        struct remote_bundle wanted = {.number = number}, *bundle;

        bundle = RB_FIND(remote_bundle_tree, &node->bundles, &wanted);
        if (bundle || !create)
                return bundle;
        bundle = calloc(1, sizeof(*bundle));
        if (!bundle)
                return NULL;
        bundle->node = node;
        bundle->number = number;
        STAILQ_INIT(&bundle->forgets);
        RB_INSERT(remote_bundle_tree, &node->bundles, bundle);
        map->n_bundles++;
        return bundle;
}

struct remote_bundle *remote_node_first_bundle(struct remote_node *node)
{
        return RB_MIN(remote_bundle_tree, &node->bundles);
}

struct remote_bundle *remote_bundle_next(struct remote_bundle *bundle)
{
        return RB_NEXT(remote_bundle_tree, &bundle->node->bundles, bundle);
}

void remote_map_drop_bundle(struct remote_map *map, struct remote_bundle *bundle)
{
        RB_REMOVE(remote_bundle_tree, &bundle->node->bundles, bundle);
        map->n_bundles--;
        free(bundle);
}

/* ---- entries ---- */

static uint32_t bucket_of(const struct remote_map *map, const struct object_key *key)
{
        uint32_t hash = (uint32_t)XXH3_64bits(key, sizeof(*key));
        uint32_t bucket = hash & (2 * map->level_mask + 1);

        return bucket < map->n_buckets ? bucket : hash & map->level_mask;
}

static void link_entry(struct remote_map *map, uint32_t slot)
{
        uint32_t bucket = bucket_of(map, &map->entries[slot].key);

        map->entries[slot].hash_next = map->buckets[bucket];
        map->buckets[bucket] = slot;
}

/* Splits the bucket whose turn it is: the table grows by one. */
static void grow(struct remote_map *map)
{
        uint32_t split, slot, next;

        if (map->n_buckets == 2 * map->level_mask + 2)
                map->level_mask = 2 * map->level_mask + 1;
        split = map->n_buckets & map->level_mask;
        map->n_buckets++;
        slot = map->buckets[split];
        map->buckets[split] = 0;
        for (; slot; slot = next) {
                next = map->entries[slot].hash_next;
                link_entry(map, slot);
        }
}

struct remote_entry *remote_map_add(struct remote_map *map, const struct object_key *key,
                                    struct remote_bundle *bundle, uint32_t part)
{
        struct remote_entry *entry;
        uint32_t slot;

        if (map->n_entries == map->max)
                return NULL;
        slot = map->first_free ? map->first_free : map->n_slots++;
        entry = &map->entries[slot];
        if (map->first_free)
                map->first_free = entry->hash_next;
        memset(entry, 0, sizeof(*entry));
        entry->key = *key;
        entry->claim = map->next_claim++;
        entry->bundle = bundle;
        entry->part = (uint16_t)part;
        entry->bundle_next = bundle->first_entry;
        bundle->first_entry = slot;
        bundle->n_entries++;
        map->n_entries++;
        link_entry(map, slot);
        if (map->n_entries > map->n_buckets)
                grow(map);
        return entry;
}

void remote_map_drop(struct remote_map *map, struct remote_entry *entry)
{
        uint32_t slot = (uint32_t)(entry - map->entries), *at;

        at = &map->buckets[bucket_of(map, &entry->key)];
        while (*at != slot)
                at = &map->entries[*at].hash_next;
        *at = entry->hash_next;
        at = &entry->bundle->first_entry;
        while (*at != slot)
                at = &map->entries[*at].bundle_next;
        *at = entry->bundle_next;
        entry->bundle->n_entries--;
        map->n_entries--;
        entry->claim = 0;
        entry->hash_next = map->first_free;
        map->first_free = slot;
}

struct remote_entry *remote_map_slot(const struct remote_map *map, uint32_t slot)
{
        return slot ? &map->entries[slot] : NULL;
}

static struct remote_entry *first_of(const struct remote_map *map, uint32_t slot,
                                     const struct object_key *key)
{
        while (slot && !object_key_equal(&map->entries[slot].key, key))
                slot = map->entries[slot].hash_next;
        return remote_map_slot(map, slot);
}

struct remote_entry *remote_map_find(const struct remote_map *map, const struct object_key *key)
{
        return first_of(map, map->buckets[bucket_of(map, key)], key);
}

struct remote_entry *remote_map_find_next(const struct remote_map *map,
                                          const struct remote_entry *entry)
{
        return first_of(map, entry->hash_next, &entry->key);
}

struct remote_entry *remote_map_at(const struct remote_map *map, struct tier_place place)
{
        uint64_t slot = place.where >> 1;

        if (!slot || slot >= map->n_slots || !place.claim ||
            map->entries[slot].claim != place.claim)
                return NULL;
        return &map->entries[slot];
}

struct remote_entry *remote_bundle_part(const struct remote_map *map,
                                        const struct remote_bundle *bundle, uint32_t part)
{
        uint32_t slot = bundle->first_entry;

        while (slot && map->entries[slot].part != part)
                slot = map->entries[slot].bundle_next;
        return remote_map_slot(map, slot);
}

struct tier_place remote_map_place(const struct remote_map *map, const struct remote_entry *entry)
{
        return (struct tier_place){
                .claim = entry->claim,
                .where = (uint64_t)(entry - map->entries) << 1 | entry->bundle->node->is_own,
        };
}
