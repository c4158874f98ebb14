// SPDX-License-Identifier: Apache-2.0
#include "hybrid_world.h"

#include <check.h>
#include <string.h>

const struct digest hybrid_id = {{42}};
static const struct digest dense_id = {{43}};

struct index *world_make_unknown(void)
{
        struct index *index;
        uint16_t layout;

        ck_assert_int_eq(index_new(&index, 10000, NULL), 0);
        ck_assert_int_eq(index_layout(index, 0, &hybrid_id, &layout), 0);
        ck_assert_int_eq(layout, HYBRID);
        ck_assert_int_eq(index_layout(index, 0, &dense_id, &layout), 0);
        ck_assert_int_eq(layout, DENSE);
        return index;
}

struct index *world_make(void)
{
        struct index *index = world_make_unknown();

        placement_learn_groups(index, HYBRID, 1u << STATE);
        return index;
}

struct digest world_digest(uint32_t number)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &number, sizeof(number));
        return digest;
}

uint32_t world_number(const struct index_boundary *boundary)
{
        uint32_t number;

        memcpy(&number, boundary->digest.bytes, sizeof(number));
        return number;
}

struct index_object *world_find(struct index *index, uint32_t number, uint16_t group)
{
        struct digest digest = world_digest(number);
        struct index_boundary *boundary = index_find_boundary(index, HYBRID, &digest);

        return boundary ? index_find_object(index, boundary, group, 0) : NULL;
}

enum placement_list world_list(struct index *index, uint32_t number, enum index_tier tier)
{
        struct digest digest = world_digest(number);
        struct index_boundary *boundary = index_find_boundary(index, HYBRID, &digest);

        ck_assert_ptr_nonnull(boundary);
        return index_order(index)->hybrid.nodes[index_boundary_id(index, boundary)].list[tier];
}

struct index_object *world_store_in(struct index *index, const struct where *where, uint16_t group,
                                    struct index_origin origin)
{
        struct index_new_object new_object = {
                .layout = where->layout,
                .group = group,
                .digest = world_digest(where->number),
                .parent = world_digest(where->parent),
                .boundary_tokens = where->tokens,
                .raw_bytes = 1,
        };
        struct index_object *object;

        ck_assert_int_eq(index_add(index, &new_object, &object), 0);
        index_set_host(index, object, 1);
        placement_stored(index, object, &origin, where->now_s);
        return object;
}

void world_store_kv(struct index *index, uint32_t first, uint32_t last, uint32_t now_s)
{
        for (uint32_t i = first; i <= last; i++) {
                struct where where = {HYBRID, i, i - 1, i % 100, now_s};

                world_store_in(index, &where, KV, (struct index_origin){0});
        }
}

void world_store_state(struct index *index, uint32_t number, uint32_t began, uint32_t now_s)
{
        struct where where = {HYBRID, number, number - 1, number % 100, now_s};

        world_store_in(index, &where, STATE,
                       (struct index_origin){.is_known = true, .began_tokens = began % 100});
}

void world_use(struct index *index, uint32_t number, uint32_t now_s)
{
        placement_use(index, world_find(index, number, STATE), now_s);
}

void world_drop(struct index *index, struct index_object *object)
{
        index_set_host(index, object, INDEX_NONE);
        index_remove(index, object);
}

bool world_anything(void *user, const struct placement_victim *victim)
{
        return true;
}

struct placement_victim world_next_victim(struct index *index)
{
        return placement_victim(index, INDEX_HOST, world_anything, NULL, 100);
}

void world_evict_expecting(struct index *index, uint32_t number, enum placement_part part)
{
        struct placement_victim victim = world_next_victim(index);
        uint32_t id;

        ck_assert_ptr_nonnull(victim.boundary);
        ck_assert_uint_eq(world_number(victim.boundary), number);
        ck_assert_int_eq(victim.part, part);
        placement_evict(index, INDEX_HOST, &victim);
        id = victim.boundary->first_object;
        while (id) {
                struct index_object *object = index_object_at(index, id);

                id = object->next;
                if (placement_takes(index, &victim, object))
                        world_drop(index, object);
        }
}
