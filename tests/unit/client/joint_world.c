// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "joint_world.h"

#define HASH_KEY UINT64_C(0x5eed)

static struct presence_entry *insert(struct world *world, uint32_t boundary, uint32_t bank)
{
        uint64_t fingerprint =
                presence_fingerprint(world->table.seeds[bank],
                                     (const void *)&world->digests[boundary - 1]);
        uint64_t n_buckets = world->table.view.n_buckets;
        uint64_t home = presence_home(fingerprint, n_buckets), bucket = home;
        struct presence_entry *entries =
                (void *)((uint8_t *)world->memory + PRESENCE_HEADER_BYTES);
        struct presence_entry *entry;

        for (;;) {
                entry = &entries[bucket * PRESENCE_BUCKET_ENTRIES];
                if (!entry->fingerprint || !(++entry)->fingerprint)
                        break;
                bucket = (bucket + 1) % n_buckets;
        }
        entry->fingerprint = fingerprint;
        if (bucket != home)
                entries[home * PRESENCE_BUCKET_ENTRIES].flags += 1u << PRESENCE_OVERFLOW_SHIFT;
        return entry;
}

static void make_table(struct world *world, uint64_t n_entries)
{
        uint64_t bytes = presence_table_bytes(n_entries);
        struct presence_header *header = aligned_alloc(64, (bytes + 63) / 64 * 64);

        ck_assert_ptr_nonnull(header);
        memset(header, 0, bytes);
        header->magic = PRESENCE_MAGIC;
        header->version = PRESENCE_VERSION;
        header->header_bytes = PRESENCE_HEADER_BYTES;
        header->entry_bytes = sizeof(struct presence_entry);
        header->probe_buckets = PRESENCE_PROBE_BUCKETS;
        header->n_buckets = presence_n_buckets(n_entries);
        header->hash_key = HASH_KEY;
        world->memory = header;
        ck_assert_int_eq(presence_view_init(&world->table.view, header, bytes), 0);
}

void world_init(struct world *world, uint32_t n_boundaries)
{
        static const struct digest id = {{1}};
        struct kvt__table *table = &world->table;

        kvt__needs_init(&table->needs, &world->layout);
        world->n_boundaries = n_boundaries;
        for (uint16_t g = 0; g < world->layout.n_groups; g++) {
                world->first_cell[g] = layout_cell(&world->layout, g, 0);
                for (uint16_t s = 0; s < world->layout.groups[g].n_shards; s++)
                        if (world->first_cell[g] >= 0)
                                world->object_bytes[world->first_cell[g] + s] =
                                        layout_object_bytes(&world->layout, g, s);
        }
        make_table(world, (uint64_t)n_boundaries * table->needs.n_banks);
        for (uint32_t bank = 0; bank < table->needs.n_banks; bank++)
                table->seeds[bank] = presence_seed(HASH_KEY, DOMAIN_DEFAULT, &id, bank);
        for (uint32_t b = 1; b <= n_boundaries; b++) {
                memcpy(world->digests[b - 1].bytes, &b, sizeof(b));
                for (uint32_t bank = 0; bank < table->needs.n_banks; bank++)
                        world->entries[b - 1][bank] = insert(world, b, bank);
        }
}

void world_deinit(struct world *world)
{
        free(world->memory);
        world->memory = NULL;
}

static struct presence_entry *entry_of(const struct world *world, uint32_t boundary,
                                       uint16_t group, uint16_t shard, uint64_t *ret_bit)
{
        int cell = world->first_cell[group] + shard;

        *ret_bit = UINT64_C(1) << cell % PRESENCE_CELLS_PER_BANK;
        return world->entries[boundary - 1][cell / PRESENCE_CELLS_PER_BANK];
}

void world_put(struct world *world, uint32_t boundary, uint16_t group, uint16_t shard,
               bool resident)
{
        uint64_t bit;
        struct presence_entry *entry = entry_of(world, boundary, group, shard, &bit);

        entry->present |= bit;
        entry->resident = resident ? entry->resident | bit : entry->resident & ~bit;
}

void world_drop(struct world *world, uint32_t boundary, uint16_t group, uint16_t shard)
{
        uint64_t bit;
        struct presence_entry *entry = entry_of(world, boundary, group, shard, &bit);

        entry->present &= ~bit;
        entry->resident &= ~bit;
}

void world_put_all(struct world *world, uint32_t first, uint32_t last, bool resident)
{
        for (uint32_t b = first; b <= last; b++)
                for (uint16_t g = 0; g < world->layout.n_groups; g++)
                        for (uint16_t s = 0; s < world->layout.groups[g].n_shards; s++)
                                if (world->layout.groups[g].kind != LAYOUT_SCRATCH)
                                        world_put(world, b, g, s, resident);
}

void world_set_flags(struct world *world, uint32_t boundary, uint32_t flags)
{
        for (uint32_t bank = 0; bank < world->table.needs.n_banks; bank++) {
                struct presence_entry *entry = world->entries[boundary - 1][bank];

                entry->flags = (entry->flags & ~(uint32_t)UINT16_MAX) | flags;
        }
}

struct kvt_match world_match(const struct world *world, struct kvt_match_query *query)
{
        struct kvt_match match = {.size = sizeof(match)};

        query->size = sizeof(*query);
        query->digests = world->digests;
        kvt__joint_match(&world->table, query, &match);
        return match;
}

/* ---- the obvious answer ---- */

static bool is_paged(const struct layout_group *group)
{
        return group->kind != LAYOUT_STATE && group->kind != LAYOUT_SCRATCH;
}

/* Is chunk (or state) number @at of the group needed for boundary @boundary? */
static bool is_needed(const struct world *world, uint16_t g, uint32_t at, uint32_t boundary)
{
        const struct layout_group *group = &world->layout.groups[g];

        if (group->kind == LAYOUT_SCRATCH || at > boundary)
                return false;
        if (group->kind == LAYOUT_STATE)
                return at == boundary;
        if (group->kind == LAYOUT_WINDOW)
                return (uint64_t)(boundary - at) * world->layout.chunk_tokens <
                       group->window_tokens;
        return true;
}

enum where {
        NOWHERE,
        REMOTE,
        BELOW,
        RESIDENT,
};

static enum where where_is(const struct world *world, uint16_t g, uint16_t s, uint32_t at)
{
        uint64_t bit;
        const struct presence_entry *entry = entry_of(world, at, g, s, &bit);

        if (!(entry->present & bit))
                return NOWHERE;
        if (entry->resident & bit)
                return RESIDENT;
        return entry->flags & PRESENCE_REMOTE_ONLY ? REMOTE : BELOW;
}

/* What a boundary needs of all paged groups, or of all state groups. */
struct sum {
        bool is_whole;
        struct kvt_boundary boundary;
};

static void add_object(const struct world *world, uint16_t g, uint16_t s, uint32_t at,
                       struct sum *sum)
{
        uint64_t bytes = world->object_bytes[world->first_cell[g] + s];
        enum where where = where_is(world, g, s, at);

        sum->boundary.n_objects++;
        sum->boundary.bytes += bytes;
        if (!bytes)
                sum->boundary.flags |= KVT_BOUNDARY_BYTES_UNKNOWN;
        if (where == NOWHERE)
                sum->is_whole = false;
        if (where != RESIDENT) {
                sum->boundary.flags |= KVT_BOUNDARY_BELOW;
                sum->boundary.bytes_below += bytes;
        }
        if (where == REMOTE)
                sum->boundary.flags |= KVT_BOUNDARY_REMOTE;
}

static struct sum sum_of(const struct world *world, uint32_t boundary, bool paged)
{
        const struct layout *layout = &world->layout;
        struct sum sum = {.is_whole = true};

        for (uint16_t g = 0; g < layout->n_groups; g++)
                for (uint32_t at = 1; at <= boundary; at++)
                        if (is_paged(&layout->groups[g]) == paged &&
                            is_needed(world, g, at, boundary))
                                for (uint16_t s = 0; s < layout->groups[g].n_shards; s++)
                                        add_object(world, g, s, at, &sum);
        return sum;
}

static struct kvt_boundary add(const struct world *world, uint32_t boundary, const struct sum *kv,
                               const struct sum *states)
{
        struct kvt_boundary both = {
                .boundaries = boundary,
                .tokens = boundary * world->layout.chunk_tokens,
                .flags = kv->boundary.flags | states->boundary.flags,
                .n_objects = kv->boundary.n_objects + states->boundary.n_objects,
                .bytes = kv->boundary.bytes + states->boundary.bytes,
                .bytes_below = kv->boundary.bytes_below + states->boundary.bytes_below,
        };

        if (!(both.flags & KVT_BOUNDARY_BELOW))
                both.flags |= KVT_BOUNDARY_RESIDENT;
        return both;
}

static bool has_kind(const struct world *world, bool paged)
{
        for (uint16_t g = 0; g < world->layout.n_groups; g++)
                if (world->layout.groups[g].kind != LAYOUT_SCRATCH &&
                    is_paged(&world->layout.groups[g]) == paged)
                        return true;
        return false;
}

static bool has_child(const struct world *world, uint32_t boundary)
{
        return world->entries[boundary - 1][0]->flags & PRESENCE_HAS_CHILD;
}

static uint32_t may_use(const struct world *world, const struct kvt_match_query *query,
                        uint32_t *ret_position)
{
        uint32_t chunk = world->layout.chunk_tokens, n = query->n_digests;
        uint32_t position = n * chunk;
        bool is_limited = query->max_tokens;

        if (query->max_tokens)
                position = query->max_tokens;
        if (query->prompt_tokens && has_kind(world, false) &&
            (!is_limited || query->prompt_tokens - 1 < position))
                position = query->prompt_tokens - 1;
        while (n && n * chunk > position)
                n--;
        *ret_position = position;
        return n;
}

struct kvt_match world_expect(const struct world *world, const struct kvt_match_query *query,
                              struct kvt_boundary *ret_usable)
{
        struct kvt_match match = {.size = sizeof(match)};
        bool has_states = has_kind(world, false);
        uint32_t position, n = may_use(world, query, &position);

        for (uint32_t b = n; b > 0; b--) {
                struct sum kv = sum_of(world, b, true), states = sum_of(world, b, false);
                struct kvt_boundary boundary = add(world, b, &kv, &states);

                if (kv.is_whole && !match.kv_boundaries)
                        match.kv_boundaries = b;
                if (has_states && states.is_whole && !match.state_boundaries)
                        match.state_boundaries = b;
                if (!kv.is_whole || !states.is_whole)
                        continue;
                if (!match.boundaries)
                        match.boundaries = b;
                if (boundary.flags & KVT_BOUNDARY_RESIDENT && !match.resident_boundaries)
                        match.resident_boundaries = b;
                if (match.n_usable < query->n_usable)
                        ret_usable[match.n_usable++] = boundary;
        }
        match.tokens = match.boundaries * world->layout.chunk_tokens;
        if (!has_kind(world, true))
                match.kv_boundaries = match.boundaries;
        else if (has_states && query->flags & KVT_MATCH_CHECKPOINT && match.kv_boundaries &&
                 match.kv_boundaries < n && has_child(world, match.kv_boundaries) &&
                 !sum_of(world, match.kv_boundaries, false).is_whole)
                match.checkpoint_boundaries = match.kv_boundaries;
        if (query->flags & KVT_MATCH_STATE && has_states)
                match.replay_tokens =
                        position - match.state_boundaries * world->layout.chunk_tokens;
        else
                match.state_boundaries = 0;
        return match;
}

#define SAME(member)                                                                               \
        ck_assert_msg(found->member == expected->member,                                           \
                      #member " is %" PRIu32 ", expected %" PRIu32, found->member, expected->member)

void world_compare(const struct kvt_match *found, const struct kvt_boundary *usable,
                   const struct kvt_match *expected, const struct kvt_boundary *expected_usable)
{
        SAME(boundaries);
        SAME(tokens);
        SAME(resident_boundaries);
        SAME(kv_boundaries);
        SAME(state_boundaries);
        SAME(replay_tokens);
        SAME(checkpoint_boundaries);
        SAME(n_usable);
        for (uint32_t i = 0; i < found->n_usable; i++) {
                const struct kvt_boundary *a = &usable[i], *b = &expected_usable[i];

                ck_assert_msg(!memcmp(a, b, sizeof(*a)),
                              "usable %u: boundary %u flags %x objects %u bytes %" PRIu64
                              " below %" PRIu64 ", expected boundary %u flags %x objects %u "
                              "bytes %" PRIu64 " below %" PRIu64,
                              i, a->boundaries, a->flags, a->n_objects, a->bytes, a->bytes_below,
                              b->boundaries, b->flags, b->n_objects, b->bytes, b->bytes_below);
        }
}

void world_check(const struct world *world, struct kvt_match_query query)
{
        static struct kvt_boundary usable[WORLD_USABLE], expected_usable[WORLD_USABLE];
        struct kvt_match found, expected;

        ck_assert_uint_le(query.n_usable, WORLD_USABLE);
        query.usable = usable;
        found = world_match(world, &query);
        expected = world_expect(world, &query, expected_usable);
        world_compare(&found, usable, &expected, expected_usable);
}
