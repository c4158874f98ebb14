// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/tiers.h"
#include "storage/nvme.h"
#include "storage/pool_rados.h"
#include "storage/pool_s3.h"
#include "storage/remote.h"

/* ---- NVMe ---- */

static void on_nvme_notice(void *user, const char *text)
{
        (void)user;
        log_warning("nvme_notice", "text=%s", log_quoted(text).text);
}

static void on_nvme_ready(void *user)
{
        struct daemon *daemon = user;

        transfers_tier_is_ready(&daemon->cache, INDEX_NVME);
}

#define ENCODE_BYTES_MIN (64ull << 20) /* or objects of usual sizes would be stored raw */

/* For stored forms, each way: beside the host memory, and in proportion to it. */
static uint64_t encode_bytes(uint64_t host_bytes)
{
        uint64_t bytes = host_bytes / 8;

        if (bytes < ENCODE_BYTES_MIN)
                return ENCODE_BYTES_MIN;
        return bytes < NVME_ENCODE_BYTES_DEFAULT ? bytes : NVME_ENCODE_BYTES_DEFAULT;
}

static int open_nvme(struct daemon *daemon, bool format, struct why *why)
{
        const struct config *config = &daemon->config;
        const char *paths[CONFIG_PATHS_MAX];
        struct nvme_options options = {
                .paths = paths,
                .n_paths = config->nvme.n_paths,
                .bytes = config->nvme.bytes,
                .catalog_path = config->nvme.catalog,
                .sync_ms = config->nvme.sync_ms,
                .queue_depth = config->nvme.queue_depth,
                .encode_bytes = encode_bytes(config->host.bytes),
                .format = format,
                .on_notice = on_nvme_notice,
        };
        int r;

        if (!config->nvme.n_paths)
                return 0;
        for (uint32_t i = 0; i < config->nvme.n_paths; i++)
                paths[i] = config->nvme.paths[i];
        r = nvme_open(&daemon->cache.nvme, &daemon->loop, &options, why);
        if (r)
                return r;
        daemon->cache.nvme->on_ready = on_nvme_ready;
        daemon->cache.nvme->on_ready_user = daemon;
        return 0;
}

/* ---- the pool ---- */

static void on_pool_notice(void *user, const char *text)
{
        (void)user;
        log_warning("pool_notice", "text=%s", log_quoted(text).text);
}

static void on_remote_ready(void *user)
{
        struct daemon *daemon = user;

        transfers_tier_is_ready(&daemon->cache, INDEX_REMOTE);
}

static int open_pool(struct daemon *daemon, struct why *why)
{
        struct pool_rados_options rados;
        struct pool_s3_options s3;

        if (daemon->config.pool.backend == CONFIG_POOL_RADOS) {
                config_rados_options(&daemon->config, &rados);
                return pool_rados_open(&daemon->pool, &daemon->loop, &rados, why);
        }
        config_s3_options(&daemon->config, &s3);
        return pool_s3_open(&daemon->pool, &daemon->loop, &s3, why);
}

static int open_remote(struct daemon *daemon, struct why *why)
{
        const struct config *config = &daemon->config;
        struct remote_options options = {
                .index_path = config->pool.index,
                .bytes = config->pool.bytes,
                .entries_max = config->index.objects_max,
                .bundle_bytes = (uint32_t)config->pool.bundle_bytes,
                .linger_ms = config->pool.linger_ms,
                .deadline_ms = config->pool.deadline_ms,
                .read_bytes_per_s = config->pool.read_bytes_per_s,
                .write_bytes_per_s = config->pool.write_bytes_per_s,
                .queue_depth = config->pool.queue_depth,
                .on_notice = on_pool_notice,
        };
        int r;

        if (config->pool.backend == CONFIG_POOL_OFF)
                return 0;
        r = open_pool(daemon, why);
        if (r)
                return r;
        options.pool = daemon->pool;
        r = remote_open(&daemon->cache.remote, &daemon->loop, &options, why);
        if (r)
                return r;
        daemon->pool = NULL;
        daemon->cache.remote->on_ready = on_remote_ready;
        daemon->cache.remote->on_ready_user = daemon;
        return 0;
}

/* ---- both ---- */

int tiers_open(struct daemon *daemon, bool format, struct why *why)
{
        int r = open_nvme(daemon, format, why);

        return r ? r : open_remote(daemon, why);
}

/* Each step closes what is still open, and is called again when that is closed. */
static void close_next(void *user)
{
        struct daemon *daemon = user;
        struct tier *tier;

        if (daemon->cache.remote) {
                tier = steal_ptr(daemon->cache.remote);
                tier->ops.close(tier, close_next, daemon);
        } else if (daemon->pool) {
                struct pool *pool = steal_ptr(daemon->pool);

                pool->ops.close(pool, close_next, daemon);
        } else if (daemon->cache.nvme) {
                tier = steal_ptr(daemon->cache.nvme);
                tier->ops.close(tier, close_next, daemon);
        } else {
                daemon->on_tiers_closed(daemon->on_tiers_closed_user);
        }
}

void tiers_close(struct daemon *daemon, void (*on_closed)(void *user), void *user)
{
        daemon->on_tiers_closed = on_closed;
        daemon->on_tiers_closed_user = user;
        close_next(daemon);
}

void tiers_add_memory(struct daemon *daemon, const struct host_arena *arena)
{
        for (enum index_tier i = INDEX_NVME; i < INDEX_N_TIERS; i++) {
                struct tier *tier = cache_tier(&daemon->cache, i);
                int r = tier ? tier->ops.add_memory(tier, arena->id, arena->base, arena->bytes) : 0;

                if (r)
                        log_warning("arena_not_registered", "tier=%s arena=%u error=\"%s\"",
                                    tier->ops.name, arena->id, strerror(-r));
        }
}

/* A pool that is out of reach is not waited for. */
static bool remote_is_drained(const struct cache *cache)
{
        const struct transfer_lane *lane = &cache->transfers.lanes[INDEX_REMOTE];

        return !cache->remote || (transfer_lane_is_idle(lane) &&
                                  (TAILQ_EMPTY(&cache->copies.offered) || lane->paused));
}

bool tiers_are_drained(const struct daemon *daemon)
{
        const struct cache *cache = &daemon->cache;

        if (cache->nvme && cache->write_policy != PLACEMENT_WRITE_OFF &&
            (!TAILQ_EMPTY(&cache->copies.dirty) || !transfers_are_idle(&cache->transfers)))
                return false;
        return remote_is_drained(cache);
}
