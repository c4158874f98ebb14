// SPDX-License-Identifier: Apache-2.0
/*
 * Two nodes that share a pool: two caches in one process over the real remote tier and one
 * pool in a folder (tests/support/fake_pool.h). What one stores, replaces or deletes the
 * other finds, drops or misses; and a pool that stops costs neither of them its own bytes.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/cache.h"
#include "daemon/remote_entry.h"
#include "proto/presence_table.h"
#include "storage/pool_name.h"
#include "storage/remote.h"
#include "tests/support/fake_pool.h"
#include "tests/support/scratch.h"

#define PIECE_BYTES (UINT64_C(32) << 20)
#define OBJECT      (UINT64_C(256) << 10)

struct node {
        struct cache cache;
        struct metrics metrics;
        struct pool *pool; /* the tier's */
        char index[96];
        uint32_t n_forgotten;
};

static uv_loop_t loop;
static struct node nodes[2];
static char folder[64], pool_folder[96];
static bool starts_stopped; /* the pool is out of reach from the start on */

#define wait_until(condition)                                                                      \
        do {                                                                                       \
                uint64_t end = uv_hrtime() + UINT64_C(20000000000);                                \
                while (!(condition)) {                                                             \
                        uv_run(&loop, UV_RUN_NOWAIT);                                              \
                        ck_assert_msg(uv_hrtime() < end, "never: " #condition);                    \
                        usleep(100);                                                               \
                }                                                                                  \
        } while (0)

static void on_flag(void *user)
{
        *(bool *)user = true;
}

static void on_recovered(void *user, int result)
{
        ck_assert_int_eq(result, 0);
        *(bool *)user = true;
}

static void on_ready(void *user)
{
        struct node *node = user;

        transfers_tier_is_ready(&node->cache, INDEX_REMOTE);
}

static void start(struct node *node)
{
        static const uint8_t boot_id[16] = {1};
        struct host_options host = {
                .total_bytes = PIECE_BYTES, .piece_bytes = PIECE_BYTES, .page_bytes = 4096};
        struct remote_options options = {
                .index_path = node->index,
                .bytes = UINT64_C(64) << 20,
                .linger_ms = 50,
                .deadline_ms = 2000,
                .poll_ms = 10,
        };
        struct why why = {""};
        bool recovered = false;

        memset(&node->cache, 0, sizeof(node->cache));
        memset(&node->metrics, 0, sizeof(node->metrics));
        ck_assert(!presence_table_new(&node->cache.presence, 1000, boot_id, 1000000));
        ck_assert(!index_new(&node->cache.index, 1000, node->cache.presence));
        ck_assert(!host_pool_new(&node->cache.host, &loop, &host));
        ck_assert(!fake_pool_open(&node->pool, &loop, pool_folder));
        fake_pool_stop(node->pool, starts_stopped);
        options.pool = node->pool;
        ck_assert_msg(!remote_open(&node->cache.remote, &loop, &options, &why), "%s", why.text);
        node->cache.remote->on_ready = on_ready;
        node->cache.remote->on_ready_user = node;
        node->cache.loop = &loop;
        node->cache.metrics = &node->metrics;
        node->cache.offers = (struct offer_policy){.write = PLACEMENT_WRITE_STORE, .all = true};
        ck_assert(!cache_init(&node->cache));
        cache_recover(&node->cache, on_recovered, &recovered);
        wait_until(recovered && host_n_arenas(node->cache.host) == 1);
}

static void stop(struct node *node)
{
        bool remote_closed = false, host_closed = false;

        wait_until(transfers_are_idle(&node->cache.transfers) && !node->cache.n_forgetting &&
                   !node->cache.n_syncing);
        cache_deinit(&node->cache);
        node->cache.remote->ops.close(node->cache.remote, on_flag, &remote_closed);
        host_pool_close(node->cache.host, on_flag, &host_closed);
        wait_until(remote_closed && host_closed);
        index_free(node->cache.index);
        presence_table_free(node->cache.presence);
}

static void begin(void)
{
        starts_stopped = false;
        scratch_make(folder, sizeof(folder));
        snprintf(pool_folder, sizeof(pool_folder), "%s/pool", folder);
        ck_assert_int_eq(mkdir(pool_folder, 0700), 0);
        ck_assert(!uv_loop_init(&loop));
        for (int i = 0; i < 2; i++) {
                snprintf(nodes[i].index, sizeof(nodes[i].index), "%s/index%d", folder, i);
                nodes[i].n_forgotten = 0;
                start(&nodes[i]);
        }
}

static void end(void)
{
        for (int i = 0; i < 2; i++)
                stop(&nodes[i]);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert(!uv_loop_close(&loop));
        scratch_remove(folder);
}

/* ---- objects: named by numbers, each hangs on the one before, full of one value ---- */

static struct object_key key_of(uint32_t n)
{
        struct object_key key = {.group = 0};

        memset(key.layout.bytes, 7, sizeof(key.layout.bytes));
        memcpy(key.boundary.bytes, &n, sizeof(n));
        key.boundary.bytes[31] = 1;
        return key;
}

static struct index_object *find(struct node *node, uint32_t n)
{
        struct object_key key = key_of(n);
        struct index_boundary *boundary;
        uint16_t layout;

        ck_assert(!index_layout(node->cache.index, 0, &key.layout, &layout));
        boundary = index_find_boundary(node->cache.index, layout, &key.boundary);
        return boundary ? index_find_object(node->cache.index, boundary, 0, 0) : NULL;
}

static bool is_in_pool(struct node *node, uint32_t n)
{
        struct index_object *object = find(node, n);

        return object && index_object_is_in(object, INDEX_REMOTE);
}

static void on_forgotten(void *user, int result)
{
        struct node *node = user;

        ck_assert_int_eq(result, 0);
        node->n_forgotten++;
}

static void put(struct node *node, uint32_t n, uint8_t value, bool replace)
{
        struct object_key key = key_of(n);
        struct index_new_object entry = {
                .digest = key.boundary, .boundary_tokens = 256 * n, .raw_bytes = OBJECT};
        struct host_copy *copy;
        bool forgetting;

        if (n > 1)
                entry.parent = key_of(n - 1).boundary;
        ck_assert(!index_layout(node->cache.index, 0, &key.layout, &entry.layout));
        ck_assert(!cache_new_copy(&node->cache, &key, OBJECT, HOST_COPY_WRITING, UINT32_MAX, false,
                                  &copy));
        for (uint32_t i = 0; i < copy->n_extents; i++)
                memset(host_address(node->cache.host, &copy->extents[i]), value,
                       copy->extents[i].length);
        copy->state = HOST_COPY_READY;
        ck_assert(!cache_publish(&node->cache, copy, &entry, replace, on_forgotten, node,
                                 &forgetting));
        host_copy_unuse(&node->cache.copies, copy);
}

static struct host_copy *load(struct node *node, uint32_t n)
{
        struct object_key key = key_of(n);
        struct host_copy *copy;
        int r;

        ck_assert_ptr_nonnull(find(node, n));
        ck_assert(!cache_new_copy(&node->cache, &key, OBJECT, HOST_COPY_ARRIVING, UINT32_MAX, false,
                                  &copy));
        r = transfer_up(&node->cache, find(node, n), copy, NULL);
        if (r) {
                copy->state = HOST_COPY_FAILED;
                copy->failure = r;
        }
        wait_until(copy->state != HOST_COPY_ARRIVING);
        return copy;
}

static void assert_loads(struct node *node, uint32_t n, uint8_t value)
{
        struct host_copy *copy = load(node, n);
        const uint8_t *bytes = host_address(node->cache.host, &copy->extents[0]);

        ck_assert_msg(copy->state == HOST_COPY_READY,
                      "object %u: errors %lu corrupt %lu stale %lu failure %d vanished %lu", n,
                      (unsigned long)node->metrics.tier_io_errors_total[2],
                      (unsigned long)node->metrics.corrupt_objects_total[2],
                      (unsigned long)node->metrics.stale_objects_total[2], copy->failure,
                      (unsigned long)node->metrics.removed_objects_total[2][METRICS_VANISHED]);
        for (uint64_t i = 0; i < copy->extents[0].length && i < OBJECT; i++)
                if (bytes[i] != value)
                        ck_abort_msg("object %u differs at %lu", n, (unsigned long)i);
        host_copy_unuse(&node->cache.copies, copy);
}

static void assert_misses(struct node *node, uint32_t n)
{
        struct host_copy *copy = load(node, n);

        ck_assert_int_eq(copy->state, HOST_COPY_FAILED);
        ck_assert_int_eq(copy->failure, TIER_E_MISS);
        host_copy_unuse(&node->cache.copies, copy);
}

/* ---- stories ---- */

START_TEST(a_node_finds_what_the_other_stored)
{
        for (uint32_t n = 1; n <= 8; n++)
                put(&nodes[0], n, (uint8_t)n, false);
        for (uint32_t n = 1; n <= 8; n++)
                wait_until(is_in_pool(&nodes[1], n));
        ck_assert_uint_le(fake_pool_count(pool_folder, "bundle/", NULL), 2);
        for (uint32_t n = 1; n <= 8; n++)
                assert_loads(&nodes[1], n, (uint8_t)n);
        /* It is there: nothing of it is written once more. */
        wait_until(transfers_are_idle(&nodes[1].cache.transfers));
        ck_assert(!index_object_is_ours(find(&nodes[1], 8), INDEX_REMOTE));
        /* The tree is known as well. */
        ck_assert_uint_eq(
                index_boundary_at(nodes[1].cache.index, find(&nodes[1], 8)->boundary)->parent,
                find(&nodes[1], 7)->boundary);
}
END_TEST

START_TEST(what_one_node_deletes_the_other_forgets)
{
        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[0], 1) && is_in_pool(&nodes[1], 1));
        cache_drop(&nodes[0].cache, find(&nodes[0], 1), METRICS_BY_ADMIN);
        wait_until(!find(&nodes[1], 1));
        ck_assert_uint_eq(nodes[1].metrics.removed_objects_total[METRICS_REMOTE][METRICS_VANISHED],
                          1);
}
END_TEST

START_TEST(what_one_node_replaces_leaves_the_memory_of_the_other)
{
        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[1], 1));
        assert_loads(&nodes[1], 1, 1);
        ck_assert_uint_ne(find(&nodes[1], 1)->host, INDEX_NONE);
        put(&nodes[0], 1, 2, true);
        wait_until(!find(&nodes[1], 1) || find(&nodes[1], 1)->host == INDEX_NONE);
        wait_until(is_in_pool(&nodes[1], 1));
        assert_loads(&nodes[1], 1, 2);
        wait_until(nodes[0].n_forgotten == 1);
}
END_TEST

static bool is_replaced(struct node *node, uint32_t n, uint64_t total)
{
        struct object_key key = key_of(n);

        return node->cache.remote->ops.is_replaced(node->cache.remote, &key, total);
}

START_TEST(what_was_replaced_is_known_as_long_as_others_may_not_know)
{
        struct host_copy *copy;

        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[0], 1) && is_in_pool(&nodes[1], 1));
        ck_assert(!is_replaced(&nodes[0], 1, 4711));
        fake_pool_stop(nodes[0].pool, true);
        put(&nodes[0], 1, 2, true);
        ck_assert(is_replaced(&nodes[0], 1, 4711));
        copy = host_copy_at(&nodes[0].cache.copies, find(&nodes[0], 1)->host);
        wait_until(copy->checksums && !is_replaced(&nodes[0], 1, copy->checksums->total));
        ck_assert(is_replaced(&nodes[0], 1, 4711) && is_replaced(&nodes[0], 1, 0));
        fake_pool_stop(nodes[0].pool, false);
        wait_until(nodes[0].n_forgotten == 1);
}
END_TEST

START_TEST(a_replace_does_not_wait_for_a_pool_that_is_out_of_reach)
{
        uint64_t began_ns;

        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[0], 1));
        fake_pool_stop(nodes[0].pool, true);
        began_ns = uv_hrtime();
        put(&nodes[0], 1, 2, true);
        wait_until(nodes[0].n_forgotten == 1);
        /* Any request to the pool takes its whole deadline of two seconds. */
        ck_assert_uint_lt(uv_hrtime() - began_ns, UINT64_C(1500000000));
        ck_assert_uint_eq(nodes[0].cache.n_forgetting, 1);
        fake_pool_stop(nodes[0].pool, false);
        wait_until(!nodes[0].cache.n_forgetting);
}
END_TEST

START_TEST(a_node_that_missed_replacements_keeps_what_others_have_alone)
{
        struct tier *remote = nodes[1].cache.remote;

        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[1], 1));
        assert_loads(&nodes[1], 1, 1);
        put(&nodes[1], 2, 2, false);
        wait_until(is_in_pool(&nodes[1], 2) && is_in_pool(&nodes[0], 2));
        put(&nodes[0], 3, 3, false);
        wait_until(is_in_pool(&nodes[1], 3));
        remote->on_missed(remote->on_shared_user);
        while (remote_entries_go_on(&nodes[1].cache))
                ;
        ck_assert(!find(&nodes[1], 1) || find(&nodes[1], 1)->host == INDEX_NONE);
        ck_assert(!find(&nodes[1], 2));
        ck_assert(is_in_pool(&nodes[1], 3));
        assert_loads(&nodes[1], 3, 3);
        wait_until(!find(&nodes[0], 2)); /* its own entry in the pool went as well */
}
END_TEST

/* Node 1 is away while node 0 stores, and cannot read then what node 0's journal told. */
static void make_node_miss_a_segment(void)
{
        char prefix[POOL_NAME_MAX], name[POOL_NAME_MAX];
        struct remote_usage usage;
        uint32_t n_before;

        stop(&nodes[1]);
        remote_usage(nodes[0].cache.remote, &usage);
        pool_name_prefix(prefix, "journal", usage.node);
        n_before = fake_pool_count(pool_folder, prefix, NULL);
        put(&nodes[0], 8, 8, false);
        wait_until(fake_pool_count(pool_folder, prefix, NULL) > n_before);
        ck_assert(fake_pool_name(pool_folder, prefix, n_before, name));
        fake_pool_resize(pool_folder, name, fake_pool_size(pool_folder, name) - 9);
        start(&nodes[1]);
}

static bool has_caught_up(struct node *node)
{
        struct remote_usage usage;

        remote_usage(node->cache.remote, &usage);
        return usage.caught_up;
}

static void restart(struct node *node)
{
        stop(node);
        start(node);
        wait_until(has_caught_up(node));
}

static void drop_what_is_unvouched(struct cache *cache)
{
        while (remote_entries_go_on(cache))
                ;
}

START_TEST(what_a_node_missed_goes_after_a_restart_too)
{
        struct cache *cache = &nodes[1].cache;

        put(&nodes[1], 1, 1, false);
        wait_until(is_in_pool(&nodes[0], 1) && is_in_pool(&nodes[1], 1));
        make_node_miss_a_segment();
        wait_until(cache->is_unvouched);
        restart(&nodes[1]); /* before a slice of it is done */
        ck_assert(cache->is_unvouched && is_in_pool(&nodes[1], 1));
        drop_what_is_unvouched(cache);
        ck_assert(!find(&nodes[1], 1));
        wait_until(!cache->n_syncing);
        restart(&nodes[1]);
        ck_assert(!cache->is_unvouched && !find(&nodes[1], 1));
}
END_TEST

/* ---- a tier that syncs and forgets when the test says so ---- */

struct held_tier {
        struct tier tier;
        struct tier_forget *forget;                /* NULL: nothing is to be forgotten */
        bool is_durable;                           /* so it shall be */
        void (*on_synced)(void *user, int result); /* NULL: nobody waits */
        void *user;
};

static uint32_t n_vouched;

static void hold_sync(struct tier *tier, void (*on_synced)(void *user, int result), void *user)
{
        struct held_tier *held = (struct held_tier *)tier;

        ck_assert_ptr_null(held->on_synced);
        held->on_synced = on_synced;
        held->user = user;
}

static void end_sync(struct held_tier *held, int result)
{
        void (*on_synced)(void *user, int result) = held->on_synced;

        ck_assert_ptr_nonnull(on_synced);
        held->on_synced = NULL;
        on_synced(held->user, result);
}

static void hold_forget(struct tier *tier, struct tier_place place, const struct object_key *key,
                        bool sync, struct tier_forget *forget)
{
        struct held_tier *held = (struct held_tier *)tier;
        struct object_key first = key_of(1);

        ck_assert_uint_eq(place.claim, 4711);
        ck_assert(object_key_equal(key, &first));
        ck_assert_ptr_null(held->forget);
        held->forget = forget;
        held->is_durable = sync;
}

static uint64_t footprint(struct tier *tier, uint64_t raw_bytes, uint32_t n_covers)
{
        (void)tier;
        (void)n_covers;
        return raw_bytes;
}

static void usage(struct tier *tier, struct tier_usage *ret_usage)
{
        (void)tier;
        *ret_usage = (struct tier_usage){.capacity_bytes = PIECE_BYTES};
}

static void count_vouched(struct tier *tier)
{
        (void)tier;
        n_vouched++;
}

/* What was on its way down is deleted when the first sync ends, for good when the second does. */
START_TEST(a_node_vouches_when_its_deletes_are_durable)
{
        static const struct tier_ops ops = {.name = "nvme", .sync = hold_sync};
        struct cache *cache = &nodes[1].cache;
        struct tier *remote = cache->remote;
        struct held_tier held = {.on_synced = NULL};

        n_vouched = 0;
        tier_init(&held.tier, &ops);
        cache->nvme = &held.tier;
        remote->ops.vouched = count_vouched;
        for (uint32_t i = 0; i < 3; i++) { /* the first of these goes wrong */
                remote->on_missed(remote->on_shared_user);
                ck_assert(!held.on_synced);
                drop_what_is_unvouched(cache);
                end_sync(&held, i ? 0 : -EIO);
                if (!i)
                        continue;
                wait_until(held.on_synced);
                ck_assert_uint_eq(n_vouched, i - 1);
                end_sync(&held, 0);
                ck_assert_uint_eq(n_vouched, i);
        }
        /* What is missed meanwhile begins it all anew, when the sync under way has ended. */
        for (uint32_t i = 0; i < 2; i++) {
                remote->on_missed(remote->on_shared_user);
                drop_what_is_unvouched(cache);
        }
        remote->on_missed(remote->on_shared_user);
        end_sync(&held, 0);
        ck_assert_uint_eq(cache->n_syncing, 0);
        ck_assert_uint_eq(n_vouched, 2);
        drop_what_is_unvouched(cache);
        cache->has_lost_forgets = true;
        end_sync(&held, 0);
        wait_until(held.on_synced);
        end_sync(&held, 0);
        ck_assert_uint_eq(n_vouched, 2);
        cache->nvme = NULL;
}
END_TEST

/* A kill before that would bring older bytes back: the pool's index has to know them until then. */
START_TEST(what_others_replaced_is_leaving_until_its_delete_is_durable)
{
        static const struct tier_ops ops = {
                .name = "nvme",
                .sync = hold_sync,
                .forget = hold_forget,
                .footprint = footprint,
                .usage = usage,
        };
        struct cache *cache = &nodes[1].cache;
        struct tier *remote = cache->remote;
        struct held_tier held = {.forget = NULL};

        tier_init(&held.tier, &ops);
        for (uint8_t i = 0; i < 2; i++) { /* the second delete is lost */
                put(&nodes[0], 1, i, i);
                wait_until(is_in_pool(&nodes[1], 1));
                assert_loads(&nodes[1], 1, i);
                cache->nvme = &held.tier;
                index_set_place(cache->index, find(&nodes[1], 1), (struct tier_place){4711, 0});
                ck_assert(!remote->is_leaving(remote->on_shared_user));
                put(&nodes[0], 1, (uint8_t)(i + 2), true);
                wait_until(held.forget);
                ck_assert(held.is_durable);
                ck_assert(remote->is_leaving(remote->on_shared_user));
                held.forget->on_freed(steal_ptr(held.forget), i ? -EIO : 0);
                ck_assert_uint_eq(cache->n_forgetting, 0);
                ck_assert(remote->is_leaving(remote->on_shared_user) == i);
                cache->nvme = NULL;
        }
}
END_TEST

/* Of bytes that were evicted before. */
START_TEST(what_is_right_stays_while_deletes_of_older_bytes_are_waited_for)
{
        static const struct tier_ops ops = {.name = "nvme", .sync = hold_sync};
        struct cache *cache = &nodes[1].cache;
        struct tier *remote = cache->remote;
        struct held_tier held = {.forget = NULL};
        struct object_key key = key_of(1);
        const struct host_copy *copy;

        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[1], 1));
        assert_loads(&nodes[1], 1, 1);
        copy = host_copy_at(&cache->copies, find(&nodes[1], 1)->host);
        tier_init(&held.tier, &ops);
        cache->nvme = &held.tier;
        cache->n_forgets++;
        for (int i = 0; i < 2; i++) { /* the first sync fails */
                cache->has_lost_forgets = false;
                remote->on_vanished(remote->on_shared_user, &key, (struct tier_place){0, 0}, true,
                                    copy->checksums->total);
                ck_assert(remote->is_leaving(remote->on_shared_user));
                end_sync(&held, i ? 0 : -EIO);
                ck_assert(remote->is_leaving(remote->on_shared_user) == !i);
                ck_assert_uint_ne(find(&nodes[1], 1)->host, INDEX_NONE);
        }
        cache->nvme = NULL;
}
END_TEST

static void on_key_replaced(void *user, const struct object_key *key, uint64_t total)
{
        *(bool *)user = !key && !total;
}

/* An object that a peer's memory had; what became of it. */
static int publish_read(struct cache *cache, const struct cache_read *read)
{
        struct index_new_object entry = {
                .digest = read->key.boundary, .boundary_tokens = 256, .raw_bytes = OBJECT};
        struct checksum_list checksums = {.total = 4711, .raw_bytes = OBJECT};
        struct host_copy *copy;
        int r;

        ck_assert(!index_layout(cache->index, 0, &read->key.layout, &entry.layout));
        ck_assert(!cache_new_copy(cache, &read->key, OBJECT, HOST_COPY_ARRIVING, UINT32_MAX, false,
                                  &copy));
        copy->state = HOST_COPY_READY;
        host_copy_set_checksums(copy, &checksums);
        r = cache_publish_read(cache, copy, &entry, read);
        host_copy_unuse(&cache->copies, copy);
        return r;
}

/* From a node that may not have read what this one missed. */
START_TEST(what_is_read_from_a_peer_while_replacements_are_missed_is_not_entered)
{
        struct tier *remote = nodes[1].cache.remote;
        struct cache *cache = &nodes[1].cache;
        struct object_key key = key_of(1);
        struct cache_read before, meanwhile, later;
        bool are_all_replaced = false;

        cache->on_replaced = on_key_replaced;
        cache->on_published_user = &are_all_replaced;
        cache_read_begin(cache, &before, &key);
        remote->on_missed(remote->on_shared_user);
        ck_assert(are_all_replaced); /* what is asked for, too */
        cache_read_begin(cache, &meanwhile, &key);
        ck_assert_int_eq(publish_read(cache, &meanwhile), CACHE_E_REPLACED);
        drop_what_is_unvouched(cache);
        ck_assert_int_eq(publish_read(cache, &before), CACHE_E_REPLACED);
        cache_read_begin(cache, &later, &key);
        ck_assert_int_eq(publish_read(cache, &later), CACHE_E_REPLACED);
        ck_assert_uint_ge(cache->peers_doubted_ms, uv_now(&loop) + 50000);
        cache->peers_doubted_ms = uv_now(&loop); /* a minute later */
        ck_assert_int_eq(publish_read(cache, &later), 0);
        cache_read_end(&before);
        cache_read_end(&meanwhile);
        cache_read_end(&later);
}
END_TEST

START_TEST(a_stopped_pool_is_a_miss_and_what_is_here_is_served)
{
        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[1], 1));
        put(&nodes[1], 2, 2, false);
        fake_pool_stop(nodes[1].pool, true);
        assert_misses(&nodes[1], 1);
        ck_assert(is_in_pool(&nodes[1], 1));
        ck_assert_uint_ne(find(&nodes[1], 2)->host, INDEX_NONE);
        for (uint32_t n = 100; n < 200; n++)
                put(&nodes[1], n, (uint8_t)n, false);
        ck_assert_uint_ne(find(&nodes[1], 199)->host, INDEX_NONE);
        fake_pool_stop(nodes[1].pool, false);
        wait_until(is_in_pool(&nodes[0], 199));
        assert_loads(&nodes[1], 1, 1);
}
END_TEST

START_TEST(a_restarted_node_knows_its_own_and_the_others_objects)
{
        uint64_t generation;

        put(&nodes[0], 1, 1, false);
        put(&nodes[1], 2, 2, false);
        for (int i = 0; i < 2; i++)
                wait_until(is_in_pool(&nodes[i], 1) && is_in_pool(&nodes[i], 2));
        generation = find(&nodes[1], 2)->generation;
        stop(&nodes[1]);
        start(&nodes[1]);
        ck_assert(is_in_pool(&nodes[1], 1) && is_in_pool(&nodes[1], 2));
        ck_assert(index_object_is_ours(find(&nodes[1], 2), INDEX_REMOTE));
        ck_assert(!index_object_is_ours(find(&nodes[1], 1), INDEX_REMOTE));
        ck_assert_uint_eq(find(&nodes[1], 2)->generation, generation);
        assert_loads(&nodes[1], 1, 1);
        assert_loads(&nodes[1], 2, 2);
}
END_TEST

START_TEST(a_node_whose_index_is_lost_learns_from_the_journals)
{
        char aside[128];

        put(&nodes[0], 1, 1, false);
        put(&nodes[1], 2, 2, false);
        for (int i = 0; i < 2; i++)
                wait_until(is_in_pool(&nodes[i], 1) && is_in_pool(&nodes[i], 2));
        stop(&nodes[1]);
        snprintf(aside, sizeof(aside), "%s.aside", nodes[1].index);
        ck_assert_int_eq(rename(nodes[1].index, aside), 0);
        start(&nodes[1]);
        wait_until(is_in_pool(&nodes[1], 1));
        wait_until(is_in_pool(&nodes[1], 2));
        assert_loads(&nodes[1], 1, 1);
        assert_loads(&nodes[1], 2, 2);
}
END_TEST

/* Has stored 1 as the last of some, has lost its index, and replaces 1 before the pool is read. */
static void replace_after_loss(struct node *node)
{
        char aside[128];

        for (uint32_t n = 6; n; n--)
                put(node, n, (uint8_t)n, false);
        for (uint32_t n = 1; n <= 6; n++)
                wait_until(is_in_pool(&nodes[0], n) && is_in_pool(&nodes[1], n));
        stop(node);
        snprintf(aside, sizeof(aside), "%s.aside", node->index);
        ck_assert_int_eq(rename(node->index, aside), 0);
        starts_stopped = true;
        start(node);
        put(node, 1, 0x5a, true);
        wait_until(transfers_are_idle(&node->cache.transfers));
        ck_assert(!is_in_pool(node, 1));
}

/* What was there is known again, and what is new goes down. */
static void go_on(struct node *node)
{
        fake_pool_stop(node->pool, false);
        wait_until(is_in_pool(node, 2));
        put(node, 7, 7, false);
        wait_until(is_in_pool(node, 7));
}

START_TEST(a_replace_holds_against_a_journal_that_is_read_later)
{
        replace_after_loss(&nodes[1]);
        go_on(&nodes[1]);
        ck_assert_ptr_nonnull(find(&nodes[1], 1));
        ck_assert_uint_ne(find(&nodes[1], 1)->host, INDEX_NONE);
        wait_until(is_in_pool(&nodes[1], 1) && is_in_pool(&nodes[0], 1));
        cache_drop_host(&nodes[1].cache, find(&nodes[1], 1), METRICS_FOR_SPACE);
        assert_loads(&nodes[1], 1, 0x5a);
}
END_TEST

START_TEST(what_replaced_older_bytes_and_was_lost_is_a_miss)
{
        replace_after_loss(&nodes[1]);
        cache_drop_host(&nodes[1].cache, find(&nodes[1], 1), METRICS_FOR_SPACE);
        ck_assert_ptr_null(find(&nodes[1], 1));
        go_on(&nodes[1]);
        ck_assert_ptr_null(find(&nodes[1], 1));
        wait_until(!find(&nodes[0], 1));
}
END_TEST

START_TEST(a_bundle_that_is_gone_is_a_miss_and_its_entries_go)
{
        char name[POOL_NAME_MAX];

        put(&nodes[0], 1, 1, false);
        wait_until(is_in_pool(&nodes[1], 1));
        ck_assert(fake_pool_name(pool_folder, "bundle/", 0, name));
        fake_pool_drop(pool_folder, name);
        assert_misses(&nodes[1], 1);
        wait_until(!find(&nodes[1], 1));
}
END_TEST

START_TEST(two_writers_of_one_object_end_with_one_that_loads)
{
        put(&nodes[0], 1, 1, false);
        put(&nodes[1], 1, 1, false);
        for (int i = 0; i < 2; i++)
                wait_until(is_in_pool(&nodes[i], 1));
        for (int i = 0; i < 2; i++) {
                wait_until(transfers_are_idle(&nodes[i].cache.transfers) &&
                           !nodes[i].cache.n_forgetting);
                if (find(&nodes[i], 1)->host != INDEX_NONE)
                        cache_drop_host(&nodes[i].cache, find(&nodes[i], 1), METRICS_FOR_SPACE);
                ck_assert_ptr_nonnull(find(&nodes[i], 1));
                assert_loads(&nodes[i], 1, 1);
        }
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/cache_nodes");
        TCase *tcase = tcase_create("nodes");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, begin, end);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_node_finds_what_the_other_stored);
        tcase_add_test(tcase, what_one_node_deletes_the_other_forgets);
        tcase_add_test(tcase, what_one_node_replaces_leaves_the_memory_of_the_other);
        tcase_add_test(tcase, what_was_replaced_is_known_as_long_as_others_may_not_know);
        tcase_add_test(tcase, a_replace_does_not_wait_for_a_pool_that_is_out_of_reach);
        tcase_add_test(tcase, a_node_that_missed_replacements_keeps_what_others_have_alone);
        tcase_add_test(tcase, what_a_node_missed_goes_after_a_restart_too);
        tcase_add_test(tcase, a_node_vouches_when_its_deletes_are_durable);
        tcase_add_test(tcase, what_others_replaced_is_leaving_until_its_delete_is_durable);
        tcase_add_test(tcase, what_is_right_stays_while_deletes_of_older_bytes_are_waited_for);
        tcase_add_test(tcase,
                       what_is_read_from_a_peer_while_replacements_are_missed_is_not_entered);
        tcase_add_test(tcase, a_stopped_pool_is_a_miss_and_what_is_here_is_served);
        tcase_add_test(tcase, a_restarted_node_knows_its_own_and_the_others_objects);
        tcase_add_test(tcase, a_node_whose_index_is_lost_learns_from_the_journals);
        tcase_add_test(tcase, a_replace_holds_against_a_journal_that_is_read_later);
        tcase_add_test(tcase, what_replaced_older_bytes_and_was_lost_is_a_miss);
        tcase_add_test(tcase, a_bundle_that_is_gone_is_a_miss_and_its_entries_go);
        tcase_add_test(tcase, two_writers_of_one_object_end_with_one_that_loads);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
