// SPDX-License-Identifier: Apache-2.0
/* The gauges: what is true now, read from the parts just before a rendering. */
#include "daemon/daemon.h"
#include "daemon/rdma_port.h"

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

static void refresh_nvme(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        struct tier *nvme = daemon->cache.nvme;
        struct tier_usage usage;

        if (!nvme)
                return;
        nvme->ops.usage(nvme, &usage);
        metrics->tier_capacity_bytes[METRICS_NVME] = usage.capacity_bytes;
        metrics->tier_used_bytes[METRICS_NVME] = usage.used_bytes;
        metrics->tier_payload_bytes[METRICS_NVME] = usage.payload_bytes;
        metrics->tier_objects[METRICS_NVME] = usage.objects;
        metrics->tier_recovered[METRICS_NVME] = daemon->recovered;
        metrics->tier_degraded[METRICS_NVME] = usage.degraded;
        metrics->tier_read_bytes_total[METRICS_NVME] = usage.read_bytes_total;
        metrics->tier_written_bytes_total[METRICS_NVME] = usage.written_bytes_total;
        refresh_encoding(metrics, METRICS_NVME, &usage);
        metrics->tier_queued_reads[METRICS_NVME] = usage.queued_reads;
        metrics->tier_queued_writes[METRICS_NVME] = usage.queued_writes;
        metrics->tier_queued_bytes[METRICS_NVME] = usage.queued_bytes;
        metrics->catalog_queue_entries = usage.queued_changes;
        metrics->tier_oldest_read_seconds[METRICS_NVME] =
                transfers_oldest_seconds(&daemon->cache.transfers, INDEX_NVME, true);
        metrics->tier_oldest_write_seconds[METRICS_NVME] =
                transfers_oldest_seconds(&daemon->cache.transfers, INDEX_NVME, false);
        metrics->write_behind_backlog_bytes =
                daemon->cache.write_policy == PLACEMENT_WRITE_STORE
                        ? cache_unwritten_bytes(&daemon->cache)
                        : daemon->cache.transfers.lanes[INDEX_NVME].down_bytes;
}

static void refresh_pins(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        const struct pin_table *pins = index_pins(daemon->cache.index);
        const struct session *session;

        metrics->tier_pinned_bytes[METRICS_HOST] = pins->bytes[INDEX_HOST];
        metrics->tier_pinned_bytes[METRICS_NVME] = pins->bytes[INDEX_NVME];
        metrics->tier_pinned_limit_bytes[METRICS_HOST] = pins->bytes_max[INDEX_HOST];
        metrics->tier_pinned_limit_bytes[METRICS_NVME] = pins->bytes_max[INDEX_NVME];
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

void daemon_refresh_metrics(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        struct presence_table_usage presence;

        metrics->uptime_seconds = (double)(uv_hrtime() - daemon->started_ns) / 1e9;
        metrics->draining = daemon->phase >= DAEMON_DRAINING;
        presence_table_usage(daemon->cache.presence, &presence);
        metrics->presence_entries = presence.used;
        metrics->presence_capacity_entries = presence.capacity;
        metrics->presence_refused_total = presence.refused_total;
        refresh_host(daemon);
        refresh_nvme(daemon);
        refresh_sessions(daemon);
        refresh_pins(daemon);
        daemon_port_refresh(daemon);
}
