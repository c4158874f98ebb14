// SPDX-License-Identifier: Apache-2.0
/* The gauges: what is true now, read from the parts just before a rendering. */
#include <stdio.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/peers.h"
#include "daemon/rdma_port.h"
#include "storage/remote.h"

_Static_assert((int)METRICS_HOST == (int)INDEX_HOST && (int)METRICS_NVME == (int)INDEX_NVME &&
                       (int)METRICS_REMOTE == (int)INDEX_REMOTE,
               "one number for a tier in both");

static void refresh_host(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        const struct config *config = &daemon->config;
        struct index_usage index;
        struct host_usage host;

        host_usage(daemon->cache.host, &host);
        index_usage(daemon->cache.index, &index);
        metrics->host_arenas = host_n_arenas(daemon->cache.host);
        metrics->host_arenas_configured = config->host.bytes / config->host.piece_bytes;
        metrics->host_stalled = host.stalled;
        metrics->tier_capacity_bytes[METRICS_HOST] = host.configured_bytes;
        metrics->tier_used_bytes[METRICS_HOST] = host.used_bytes;
        metrics->tier_payload_bytes[METRICS_HOST] = index.bytes_in[INDEX_HOST];
        metrics->tier_objects[METRICS_HOST] = index.objects_in[INDEX_HOST];
        metrics->tier_recovered[METRICS_HOST] = 1;
        metrics->index_objects = index.objects;
        metrics->index_boundaries = index.boundaries;
        metrics->index_objects_limit = index.objects_max;
        metrics->layouts = index_n_layouts(daemon->cache.index);
}

static void refresh_encoding(struct metrics *metrics, enum metrics_tier tier,
                             const struct tier_usage *usage)
{
        metrics->tier_encode_raw_bytes_total[tier] = usage->encoded.raw_bytes_total;
        metrics->tier_encode_stored_bytes_total[tier] = usage->encoded.stored_bytes_total;
        metrics->tier_encode_seconds_total[tier] = usage->encoded.seconds_total;
        metrics->tier_decode_raw_bytes_total[tier] = usage->decoded.raw_bytes_total;
        metrics->tier_decode_stored_bytes_total[tier] = usage->decoded.stored_bytes_total;
        metrics->tier_decode_seconds_total[tier] = usage->decoded.seconds_total;
}

/* Of one tier below. */
static void refresh_tier(struct daemon *daemon, enum index_tier below)
{
        struct metrics *metrics = &daemon->metrics;
        struct tier *tier = cache_tier(&daemon->cache, below);
        struct tier_usage usage;

        tier->ops.usage(tier, &usage);
        metrics->tier_capacity_bytes[below] = usage.capacity_bytes;
        metrics->tier_used_bytes[below] = usage.used_bytes;
        metrics->tier_payload_bytes[below] = usage.payload_bytes;
        metrics->tier_objects[below] = usage.objects;
        metrics->tier_recovered[below] = daemon->recovered;
        metrics->tier_degraded[below] = usage.degraded;
        metrics->tier_read_bytes_total[below] = usage.read_bytes_total;
        metrics->tier_written_bytes_total[below] = usage.written_bytes_total;
        refresh_encoding(metrics, (enum metrics_tier)below, &usage);
        metrics->tier_queued_reads[below] = usage.queued_reads;
        metrics->tier_queued_writes[below] = usage.queued_writes;
        metrics->tier_queued_bytes[below] = usage.queued_bytes;
        metrics->tier_oldest_read_seconds[below] =
                transfers_oldest_seconds(&daemon->cache.transfers, below, true);
        metrics->tier_oldest_write_seconds[below] =
                transfers_oldest_seconds(&daemon->cache.transfers, below, false);
        if (below == INDEX_NVME)
                metrics->catalog_queue_entries = usage.queued_changes;
}

static void refresh_remote(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        struct remote_usage usage;

        remote_usage(daemon->cache.remote, &usage);
        metrics->remote_entries = usage.entries;
        metrics->remote_nodes = usage.nodes;
        metrics->remote_bundles = usage.own_bundles;
        metrics->remote_dead_bytes = usage.dead_bytes;
        metrics->remote_caught_up = usage.caught_up;
        metrics->remote_breaker_open = usage.breaker_open;
        metrics->remote_breaker_opened_total = usage.breaker_opened;
        metrics->remote_read_requests_total = usage.read_requests;
        metrics->remote_timeouts_total = usage.timeouts;
        metrics->remote_stale_entries_total = usage.stale_entries;
        metrics->remote_journal_read_total = usage.journal_segments_read;
        metrics->remote_journal_written_total = usage.journal_segments_written;
        metrics->remote_journal_damaged_total = usage.journal_damaged;
        metrics->remote_offered_bytes = daemon->cache.copies.offered_bytes;
}

static void refresh_below(struct daemon *daemon)
{
        const struct cache *cache = &daemon->cache;

        if (cache->nvme) {
                refresh_tier(daemon, INDEX_NVME);
                daemon->metrics.write_behind_backlog_bytes =
                        cache->write_policy == PLACEMENT_WRITE_STORE
                                ? cache_unwritten_bytes(cache)
                                : cache->transfers.lanes[INDEX_NVME].down_bytes;
        }
        if (cache->remote) {
                refresh_tier(daemon, INDEX_REMOTE);
                refresh_remote(daemon);
        }
}

static void refresh_pins(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        const struct pin_table *pins = index_pins(daemon->cache.index);
        const struct session *session;

        for (int tier = 0; tier < INDEX_N_TIERS; tier++) {
                metrics->tier_pinned_bytes[tier] = pins->bytes[tier];
                metrics->tier_pinned_limit_bytes[tier] = pins->bytes_max[tier];
        }
        metrics->pins = daemon->marks.admin_pins.n;
        TAILQ_FOREACH(session, &daemon->sessions, link)
                metrics->pins += session->pins.n;
}

static void refresh_sessions(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        uint64_t now_ns = uv_hrtime(), oldest_ns = now_ns;
        const struct session *session;

        metrics->sessions = 0;
        metrics->sessions_pending = 0;
        metrics->sessions_quarantined = 0;
        metrics->quarantined_bytes = 0;
        metrics->leases = 0;
        TAILQ_FOREACH(session, &daemon->sessions, link) {
                const struct lease *oldest = TAILQ_FIRST(&session->leases);

                metrics->sessions += session->state == SESSION_ATTACHED;
                metrics->sessions_pending += session->state == SESSION_ATTACHED && !session->layout;
                metrics->leases += session->n_leases;
                if (session->state == SESSION_QUARANTINED && session->n_leases) {
                        metrics->sessions_quarantined++;
                        metrics->quarantined_bytes += session->leased_bytes;
                }
                if (oldest && oldest->since_ns < oldest_ns)
                        oldest_ns = oldest->since_ns;
        }
        metrics->sessions_limit = daemon->config.sessions.max;
        metrics->leased_bytes = daemon->cache.copies.leased_bytes;
        metrics->leased_limit_bytes = daemon_lease_limit(daemon);
        metrics->oldest_lease_seconds = (double)(now_ns - oldest_ns) / 1e9;
}

/* The second number of statm, in pages. 0: not told. */
static uint64_t resident_bytes(int statm_fd)
{
        char text[128];
        unsigned long long pages;
        ssize_t n = pread(statm_fd, text, sizeof(text) - 1, 0);

        if (n <= 0)
                return 0;
        text[n] = '\0';
        if (sscanf(text, "%*u %llu", &pages) != 1)
                return 0;
        return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void daemon_refresh_metrics(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        struct presence_table_usage presence;

        metrics->uptime_seconds = (double)(uv_hrtime() - daemon->started_ns) / 1e9;
        metrics->resident_bytes = resident_bytes(daemon->statm_fd);
        metrics->draining = daemon->phase >= DAEMON_DRAINING;
        presence_table_usage(daemon->cache.presence, &presence);
        metrics->presence_entries = presence.used;
        metrics->presence_capacity_entries = presence.capacity;
        metrics->presence_refused_total = presence.refused_total;
        refresh_host(daemon);
        refresh_below(daemon);
        refresh_sessions(daemon);
        refresh_pins(daemon);
        daemon_port_refresh(daemon);
        peers_refresh(daemon);
}
