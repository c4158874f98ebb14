// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "cache_world.h"
#include "daemon/remote_entry.h"
#include "tests/support/fake_tier.h"

#define PIECE_BYTES (UINT64_C(8) << 20)

uv_loop_t loop;
struct cache cache;
struct metrics metrics;
unsigned n_forgotten;

static struct fake_store *store, *pool;

void world_spin(unsigned turns)
{
        while (turns--) {
                uv_run(&loop, UV_RUN_NOWAIT);
                usleep(200);
        }
}

void world_begin(void)
{
        static const uint8_t boot_id[16] = {1};
        struct host_options options = {
                .total_bytes = 2 * PIECE_BYTES,
                .piece_bytes = PIECE_BYTES,
                .page_bytes = 4096,
        };

        memset(&cache, 0, sizeof(cache));
        memset(&metrics, 0, sizeof(metrics));
        n_forgotten = 0;
        ck_assert(!uv_loop_init(&loop));
        ck_assert(!fake_store_new(&store, 64 * OBJECT));
        ck_assert(!presence_table_new(&cache.presence, 1000, boot_id, 1000000));
        ck_assert(!index_new(&cache.index, 1000, cache.presence));
        ck_assert(!fake_tier_open(&cache.nvme, &loop, store));
        ck_assert(!host_pool_new(&cache.host, &loop, &options));
        cache.loop = &loop;
        cache.metrics = &metrics;
        ck_assert(!cache_init(&cache));
        cache.write_policy = PLACEMENT_WRITE_STORE;
        wait_until(host_n_arenas(cache.host) == 2);
}

void world_add_remote(void)
{
        ck_assert(!fake_store_new(&pool, 32 * (OBJECT + 4096)));
        ck_assert(!fake_tier_open(&cache.remote, &loop, pool));
        cache.offers.write = PLACEMENT_WRITE_STORE;
        remote_entries_listen(&cache);
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

void world_end(void)
{
        bool nvme_closed = false, host_closed = false, remote_closed = !cache.remote;

        wait_until(transfers_are_idle(&cache.transfers) && !cache.n_forgetting);
        cache_deinit(&cache);
        cache.nvme->ops.close(cache.nvme, on_closed, &nvme_closed);
        if (cache.remote)
                cache.remote->ops.close(cache.remote, on_closed, &remote_closed);
        host_pool_close(cache.host, on_closed, &host_closed);
        wait_until(nvme_closed && host_closed && remote_closed);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert(!uv_loop_close(&loop));
        index_free(cache.index);
        presence_table_free(cache.presence);
        fake_store_free(store);
        pool = fake_store_free(pool);
}

struct object_key world_key(uint32_t n)
{
        struct object_key key = {.group = 0, .shard = 0};

        memset(key.layout.bytes, 7, sizeof(key.layout.bytes));
        memcpy(key.boundary.bytes, &n, sizeof(n));
        key.boundary.bytes[31] = 1;
        return key;
}

struct index_new_object world_entry(uint32_t n, uint64_t bytes)
{
        struct object_key key = world_key(n);
        struct index_new_object entry = {
                .digest = key.boundary,
                .parent_unknown = true,
                .boundary_tokens = 256,
                .raw_bytes = (uint32_t)bytes,
        };

        ck_assert(!index_layout(cache.index, 0, &key.layout, &entry.layout));
        return entry;
}

struct index_object *world_find(uint32_t n)
{
        struct index_new_object entry = world_entry(n, 1);
        struct index_boundary *boundary =
                index_find_boundary(cache.index, entry.layout, &entry.digest);

        return boundary ? index_find_object(cache.index, boundary, 0, 0) : NULL;
}

void world_fill(struct host_copy *copy, uint8_t value)
{
        uint64_t left = copy->raw_bytes;

        for (uint32_t i = 0; i < copy->n_extents; i++) {
                uint64_t n = copy->extents[i].length < left ? copy->extents[i].length : left;

                memset(host_address(cache.host, &copy->extents[i]), value, n);
                left -= n;
        }
}

uint8_t world_first_byte(const struct host_copy *copy)
{
        return *(uint8_t *)host_address(cache.host, &copy->extents[0]);
}

void world_on_forgotten(void *user, int result)
{
        (void)user;
        ck_assert_int_eq(result, 0);
        n_forgotten++;
}

static int put(const struct index_new_object *entry, uint32_t n, uint8_t value, bool replace,
               bool *ret_forgetting)
{
        struct object_key key = world_key(n);
        struct host_copy *copy;
        bool forgetting;
        int r;

        r = cache_new_copy(&cache, &key, entry->raw_bytes, HOST_COPY_WRITING, UINT32_MAX, false,
                           &copy);
        if (r)
                return r;
        world_fill(copy, value);
        copy->state = HOST_COPY_READY;
        r = cache_publish(&cache, copy, entry, replace, world_on_forgotten, NULL,
                          ret_forgetting ? ret_forgetting : &forgetting);
        host_copy_unuse(&cache.copies, copy);
        return r;
}

int world_put(uint32_t n, uint8_t value, bool replace, bool *ret_forgetting)
{
        struct index_new_object entry = world_entry(n, OBJECT);

        return put(&entry, n, value, replace, ret_forgetting);
}

int world_put_child(uint32_t n, uint32_t parent, uint32_t tokens, uint64_t bytes)
{
        struct index_new_object entry = world_entry(n, bytes);

        entry.parent_unknown = false;
        if (parent)
                entry.parent = world_key(parent).boundary;
        entry.boundary_tokens = tokens;
        return put(&entry, n, 1, false, NULL);
}

struct host_copy *world_copy(uint32_t n)
{
        struct index_object *object = world_find(n);

        return object && object->host != INDEX_NONE ? host_copy_at(&cache.copies, object->host)
                                                    : NULL;
}

bool world_is_below(uint32_t n)
{
        struct index_object *object = world_find(n);

        return object && object->place.claim;
}

bool world_is_in_pool(uint32_t n)
{
        struct index_object *object = world_find(n);

        return object && index_object_is_in(object, INDEX_REMOTE);
}

struct host_copy *world_promote(uint32_t n)
{
        struct index_object *object = world_find(n);
        struct object_key key = world_key(n);
        struct host_copy *copy;

        ck_assert_ptr_nonnull(object);
        ck_assert_int_eq(cache_new_copy(&cache, &key, object->raw_bytes, HOST_COPY_ARRIVING,
                                        UINT32_MAX, false, &copy),
                         0);
        ck_assert_int_eq(transfer_up(&cache, object, copy, NULL), 0);
        return copy;
}

void world_put_below(uint8_t value)
{
        ck_assert_int_eq(world_put(1, value, false, NULL), 0);
        wait_until(world_is_below(1));
        cache_drop_host(&cache, world_find(1), METRICS_FOR_SPACE);
}

uint64_t world_tier_objects(void)
{
        struct tier_usage usage;

        cache.nvme->ops.usage(cache.nvme, &usage);
        return usage.objects;
}
