// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "daemon/peers.h"
#include "storage/remote.h"

static const char *phase_name(enum daemon_phase phase)
{
        static const char *const names[] = {
                [DAEMON_STARTING] = "starting",
                [DAEMON_RUNNING] = "running",
                [DAEMON_DRAINING] = "draining",
                [DAEMON_STOPPING] = "stopping",
        };

        return names[phase];
}

void admin_hex(char *text, const uint8_t *bytes, size_t n)
{
        for (size_t i = 0; i < n; i++)
                sprintf(text + 2 * i, "%02x", bytes[i]);
}

static json_int_t sum_of(const uint64_t *values, size_t n)
{
        json_int_t sum = 0;

        for (size_t i = 0; i < n; i++)
                sum += (json_int_t)values[i];
        return sum;
}

static json_int_t removed(const struct metrics *metrics, enum metrics_tier tier,
                          enum metrics_removal reason)
{
        return (json_int_t)metrics->removed_objects_total[tier][reason];
}

static json_t *counters(const struct metrics *metrics, enum metrics_tier tier)
{
        return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "hits",
                         (json_int_t)metrics->hits_total[tier], "evicted",
                         removed(metrics, tier, METRICS_FOR_SPACE), "replaced",
                         removed(metrics, tier, METRICS_REPLACED), "removed_by_admin",
                         removed(metrics, tier, METRICS_BY_ADMIN), "reclaimed",
                         removed(metrics, tier, METRICS_RECLAIMED), "pinned_bytes",
                         (json_int_t)metrics->tier_pinned_bytes[tier], "pinned_limit_bytes",
                         (json_int_t)metrics->tier_pinned_limit_bytes[tier], "corrupt",
                         (json_int_t)metrics->corrupt_objects_total[tier], "stale",
                         (json_int_t)metrics->stale_objects_total[tier], "io_errors",
                         (json_int_t)metrics->tier_io_errors_total[tier]);
}

static json_t *host_tier(struct daemon *daemon)
{
        const struct metrics *metrics = &daemon->metrics;
        struct host_usage usage;
        json_t *tier;

        host_usage(daemon->cache.host, &usage);
        tier = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:I, s:I}",
                         "name", "host", "capacity_bytes", (json_int_t)usage.configured_bytes,
                         "ready_bytes", (json_int_t)usage.ready_bytes, "used_bytes",
                         (json_int_t)usage.used_bytes, "payload_bytes",
                         (json_int_t)metrics->tier_payload_bytes[METRICS_HOST], "objects",
                         (json_int_t)metrics->tier_objects[METRICS_HOST], "arenas",
                         (json_int_t)metrics->host_arenas, "page_bytes",
                         (json_int_t)daemon->config.host.page_bytes, "leased_bytes",
                         (json_int_t)metrics->leased_bytes, "quarantined_bytes",
                         (json_int_t)metrics->quarantined_bytes, "degraded", (int)usage.stalled,
                         "degraded_reason", usage.stalled ? usage.stall_reason : "",
                         "dropped_unwritten", (json_int_t)metrics->host_dropped_objects_total,
                         "unwritten_bytes", (json_int_t)cache_unwritten_bytes(&daemon->cache));
        if (tier)
                json_object_update_new(tier, counters(metrics, METRICS_HOST));
        return tier;
}

static const char *write_policy_name(enum placement_write policy)
{
        return policy == PLACEMENT_WRITE_STORE  ? "store"
               : policy == PLACEMENT_WRITE_COLD ? "cold"
                                                : "off";
}

/* What a tier's codec was given since the start, and what it made of that. */
static json_t *codec(const struct tier_usage *usage)
{
        return json_pack("{s:I, s:I, s:f, s:I, s:I, s:f}", "encode_raw_bytes",
                         (json_int_t)usage->encoded.raw_bytes_total, "encode_stored_bytes",
                         (json_int_t)usage->encoded.stored_bytes_total, "encode_seconds",
                         usage->encoded.seconds_total, "decode_raw_bytes",
                         (json_int_t)usage->decoded.raw_bytes_total, "decode_stored_bytes",
                         (json_int_t)usage->decoded.stored_bytes_total, "decode_seconds",
                         usage->decoded.seconds_total);
}

static json_t *tier_below(struct daemon *daemon, enum index_tier below)
{
        const struct metrics *metrics = &daemon->metrics;
        struct tier *own = cache_tier(&daemon->cache, below);
        struct tier_usage usage;
        json_t *tier;

        own->ops.usage(own, &usage);
        tier = json_pack(
                "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s, s:s}", "name",
                below == INDEX_NVME ? "nvme" : "remote", "capacity_bytes",
                (json_int_t)usage.capacity_bytes, "used_bytes", (json_int_t)usage.used_bytes,
                "payload_bytes", (json_int_t)usage.payload_bytes, "objects",
                (json_int_t)usage.objects, "queued_writes", (json_int_t)usage.queued_writes,
                "queued_reads", (json_int_t)usage.queued_reads, "queued_bytes",
                (json_int_t)usage.queued_bytes, "read_bytes", (json_int_t)usage.read_bytes_total,
                "written_bytes", (json_int_t)usage.written_bytes_total, "unsynced",
                (int)usage.is_unsynced, "degraded", (int)usage.degraded, "degraded_reason",
                usage.degraded_reason, "write",
                write_policy_name(below == INDEX_NVME ? daemon->cache.write_policy
                                                      : daemon->cache.offers.write));
        if (tier) {
                json_object_update_new(tier, counters(metrics, (enum metrics_tier)below));
                json_object_update_new(tier, codec(&usage));
        }
        return tier;
}

/* What only the pool has to tell. */
static json_t *remote_tier(struct daemon *daemon)
{
        const struct metrics *metrics = &daemon->metrics;
        json_t *tier = tier_below(daemon, INDEX_REMOTE);
        struct remote_usage usage;
        struct index_usage index;
        char node[33];

        remote_usage(daemon->cache.remote, &usage);
        index_usage(daemon->cache.index, &index);
        admin_hex(node, usage.node, sizeof(usage.node));
        json_object_update_new(
                tier,
                json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:b, s:I, s:I, s:I, s:I, "
                          "s:I, s:I}",
                          "backend", config_pool_name(daemon->config.pool.backend), "node", node,
                          "nodes", (json_int_t)usage.nodes, "known_objects",
                          (json_int_t)index.objects_in[INDEX_REMOTE], "others_objects",
                          (json_int_t)index.foreign_objects, "bundles",
                          (json_int_t)usage.own_bundles, "dead_bytes", (json_int_t)usage.dead_bytes,
                          "breaker_open", (int)usage.breaker_open, "breaker_opened",
                          (json_int_t)usage.breaker_opened, "caught_up", (int)usage.caught_up,
                          "timeouts", (json_int_t)usage.timeouts, "stale_entries",
                          (json_int_t)usage.stale_entries, "journal_damaged",
                          (json_int_t)usage.journal_damaged, "offered_bytes",
                          (json_int_t)metrics->remote_offered_bytes, "refused_writes",
                          (json_int_t)metrics->remote_refused_writes_total, "dropped_unwritten",
                          (json_int_t)metrics->remote_dropped_objects_total));
        return tier;
}

static json_t *operations(const struct metrics *metrics)
{
        static const char *const names[] = {
#define OPERATION_NAME(constant, text) text,
                METRICS_OPERATIONS(OPERATION_NAME)
#undef OPERATION_NAME
        };
        json_t *all = json_object();

        for (size_t i = 0; i < METRICS_N_OPERATIONS; i++) {
                json_t *operation = json_object();

                for (uint32_t s = 0; s < KVT_WIRE_STATUS_COUNT; s++)
                        if (metrics->operation_objects_total[i][s])
                                json_object_set_new(
                                        operation, status_name(s),
                                        json_integer((json_int_t)metrics
                                                             ->operation_objects_total[i][s]));
                json_object_set_new(all, names[i], operation);
        }
        return all;
}

/* What others may do to memory here, and want. */
static json_t *rdma(const struct metrics *metrics)
{
        return json_pack("{s:I, s:I, s:I, s:I}", "connections",
                         (json_int_t)metrics->rdma_connections, "windows_bound",
                         (json_int_t)metrics->rdma_windows_bound, "peer_leased_bytes",
                         (json_int_t)metrics->peer_leased_bytes, "peer_wanted_objects",
                         (json_int_t)metrics->peer_wanted_objects);
}

/* Engines that were turned away for their layout, and what was wrong with the last. */
static json_t *layout_refusals(const struct daemon *daemon)
{
        const struct attach_refusal *last = &daemon->refusal;
        double age = last->at_ns ? (double)(uv_hrtime() - last->at_ns) / 1e9 : 0;
        json_t *object = json_pack("{s:I, s:f}", "number",
                                   (json_int_t)daemon->metrics.attach_refused_total[METRICS_LAYOUT],
                                   "age_seconds", age);
        json_t *why = json_string(last->why);

        json_object_set_new(object, "program", json_string(last->program));
        json_object_set_new(object, "why", why ? why : json_string("(not UTF-8)"));
        return object;
}

json_t *admin_status(struct daemon *daemon, const json_t *arguments)
{
        const struct metrics *metrics = &daemon->metrics;
        char boot_id[2 * sizeof(daemon->boot_id) + 1];
        json_t *tiers = json_array();

        (void)arguments;
        daemon_refresh_metrics(daemon);
        admin_hex(boot_id, daemon->boot_id, sizeof(daemon->boot_id));
        json_array_append_new(tiers, host_tier(daemon));
        if (daemon->cache.nvme)
                json_array_append_new(tiers, tier_below(daemon, INDEX_NVME));
        if (daemon->cache.remote)
                json_array_append_new(tiers, remote_tier(daemon));
        return json_pack(
                "{s:b, s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
                "s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}",
                "ok", 1, "version", KVTIER_VERSION, "phase", phase_name(daemon->phase), "boot_id",
                boot_id, "uptime_seconds", metrics->uptime_seconds, "sessions",
                (json_int_t)metrics->sessions, "pending", (json_int_t)metrics->sessions_pending,
                "quarantined", (json_int_t)metrics->sessions_quarantined, "leases",
                (json_int_t)metrics->leases, "pins", (json_int_t)metrics->pins, "pins_refused",
                (json_int_t)metrics->pins_refused_total, "objects",
                (json_int_t)metrics->index_objects, "objects_max",
                (json_int_t)metrics->index_objects_limit, "hits",
                sum_of(metrics->hits_total, METRICS_N_TIERS), "misses",
                (json_int_t)metrics->misses_total, "stored_bytes",
                (json_int_t)metrics->stored_bytes_total, "loaded_bytes",
                (json_int_t)metrics->loaded_bytes_total, "unaligned_tokens",
                (json_int_t)metrics->unaligned_tokens_total, "tiers", tiers, "operations",
                operations(metrics), "peers", peers_status(daemon), "rdma", rdma(metrics),
                "layout_refusals", layout_refusals(daemon), "checksums",
                json_pack("{s:I, s:f}", "bytes", (json_int_t)metrics->checksum_bytes_total,
                          "seconds", metrics->checksum_seconds_total));
}

const char *admin_session_state(const struct session *session)
{
        static const char *const names[] = {
                [SESSION_GREETING] = "greeting",       [SESSION_WELCOMED] = "welcomed",
                [SESSION_ATTACHED] = "attached",       [SESSION_CLOSING] = "closing",
                [SESSION_QUARANTINED] = "quarantined",
        };

        if (session->state == SESSION_ATTACHED && !session->layout)
                return "pending";
        return names[session->state];
}

static json_t *describe_session(const struct session *session)
{
        char layout[2 * DIGEST_BYTES + 1] = "", engine[33];
        uint64_t now_ns = uv_hrtime();

        if (session->layout)
                admin_hex(layout, session->layout_id.bytes, DIGEST_BYTES);
        admin_hex(engine, session->engine_id, sizeof(session->engine_id));
        return json_pack(
                "{s:I, s:s, s:I, s:I, s:s, s:b, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
                "s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:s, s:s}",
                "session", (json_int_t)session->id, "state", admin_session_state(session), "pid",
                (json_int_t)session->pid, "uid", (json_int_t)session->uid, "program",
                session->program, "admin", !session->wants_table, "engine_id", engine, "layout",
                layout, "age_seconds", (double)(now_ns - session->opened_ns) / 1e9, "leases",
                (json_int_t)session->n_leases, "leased_bytes", (json_int_t)session->leased_bytes,
                "stored_objects", (json_int_t)session->stored_objects, "stored_bytes",
                (json_int_t)session->stored_bytes, "loaded_objects",
                (json_int_t)session->loaded_objects, "loaded_bytes",
                (json_int_t)session->loaded_bytes, "pins", (json_int_t)session->pins.n, "loads",
                !session->no_loads, "stores", !session->no_stores, "rank",
                (json_int_t)session->rank, "n_ranks", (json_int_t)session->n_ranks, "shards",
                (json_int_t)layout_span_count(&session->span), "n_shards",
                (json_int_t)session->span.n_shards, "batch_tokens",
                (json_int_t)session->batch_tokens, "close_reason",
                session->close_reason ? session->close_reason : "", "from", session->from);
}

json_t *admin_sessions(const struct session *asker)
{
        json_t *sessions = json_array();
        const struct session *session;

        TAILQ_FOREACH(session, &asker->daemon->sessions, link)
                if (session != asker)
                        json_array_append_new(sessions, describe_session(session));
        return json_pack("{s:b, s:o}", "ok", 1, "sessions", sessions);
}
