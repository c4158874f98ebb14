// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/acquire.h"
#include "daemon/admin.h"
#include "daemon/admin_explain.h"
#include "daemon/admin_pool.h"
#include "daemon/daemon.h"
#include "daemon/handshake.h"
#include "daemon/listener.h"
#include "daemon/load.h"
#include "daemon/notify.h"
#include "daemon/peers.h"
#include "daemon/pin_table.h"
#include "daemon/rdma_port.h"
#include "daemon/remote_entry.h"
#include "daemon/removal.h"
#include "daemon/session_remote.h"
#include "daemon/tiers.h"
#include "daemon/verify.h"

#define HEARTBEAT_MS 100u
#define STATUS_MS    5000u

void daemon_wake(struct daemon *daemon)
{
        if (!daemon->is_closing)
                uv_async_send(&daemon->wake);
}

uint64_t daemon_lease_limit(const struct daemon *daemon)
{
        struct host_usage usage;

        host_usage(daemon->cache.host, &usage);
        return usage.ready_bytes / 100 * daemon->config.host.lease_share_percent;
}

uint64_t daemon_lease_limit_final(const struct daemon *daemon)
{
        return daemon->config.host.bytes / 100 * daemon->config.host.lease_share_percent;
}

int daemon_is_ready(const struct daemon *daemon, struct why *why)
{
        if (daemon->phase >= DAEMON_DRAINING)
                why_set(why, "the daemon is shutting down");
        else if (!daemon->recovered)
                why_set(why, "what the tiers kept is being recovered");
        else if (!host_n_arenas(daemon->cache.host))
                why_set(why, "no arena is up yet");
        else
                return 1;
        return 0;
}

/* ---- stopping ---- */

static void close_loop_handles(struct daemon *daemon)
{
        uv_close((uv_handle_t *)&daemon->sigterm, NULL);
        uv_close((uv_handle_t *)&daemon->sigint, NULL);
        uv_close((uv_handle_t *)&daemon->sighup, NULL);
        uv_close((uv_handle_t *)&daemon->heartbeat, NULL);
        uv_close((uv_handle_t *)&daemon->drain_timer, NULL);
        uv_close((uv_handle_t *)&daemon->reaper, NULL);
        uv_close((uv_handle_t *)&daemon->wake, NULL);
}

static void on_http_closed(void *user)
{
        close_loop_handles(user);
}

static void on_host_closed(void *user)
{
        struct daemon *daemon = user;

        daemon->cache.host = NULL;
        if (daemon->http)
                http_close(steal_ptr(daemon->http), on_http_closed, daemon);
        else
                close_loop_handles(daemon);
}

static void on_tiers_closed(void *user)
{
        struct daemon *daemon = user;

        if (daemon->cache.host)
                host_pool_close(daemon->cache.host, on_host_closed, daemon);
        else
                on_host_closed(daemon);
}

/* Everything is quiet: the parts close one after another, in the reverse order of start. */
static void close_parts(struct daemon *daemon)
{
        daemon->is_closing = true;
        if (daemon->cache.host) {
                cache_deinit(&daemon->cache);
                leases_deinit(&daemon->leases);
        }
        peers_close(daemon);
        daemon_port_close(daemon);
        tiers_close(daemon, on_tiers_closed, daemon);
}

static void say_bye(struct session *session)
{
        struct wire_bye bye = {.status = KVT_WIRE_DRAINING, .why = "the daemon is stopping"};

        message_header_init(&bye.header, WIRE_BYE, 0, session->id, session->daemon->boot_id);
        bye.header.length = sizeof(bye);
        if (session->state == SESSION_WELCOMED || session->state == SESSION_ATTACHED)
                session_send(session, &bye, sizeof(bye), -1);
}

/*
 * Clients may still copy under their leases: the memory is theirs as long as they map it,
 * and no later daemon writes to it. Only our own books are closed here.
 */
static void stop(struct daemon *daemon, const char *reason)
{
        struct session *session;

        if (daemon->phase >= DAEMON_STOPPING)
                return;
        log_info("stopping", "reason=\"%s\" unwritten_bytes=%" PRIu64, reason,
                 cache_unwritten_bytes(&daemon->cache));
        daemon->phase = DAEMON_STOPPING;
        presence_table_set_state(daemon->cache.presence, PRESENCE_STOPPED);
        listener_close(daemon);
        daemon_port_stop(daemon);
        peers_stop(daemon);
        verify_cancel(daemon);
        removal_cancel(daemon);
        admin_pool_cancel(daemon, NULL);
        marks_deinit(daemon);
        transfers_stop(&daemon->cache);
        TAILQ_FOREACH(session, &daemon->sessions, link) {
                say_bye(session);
                session_close(session, METRICS_DAEMON_STOP, "daemon_stop", NULL);
                session_end_leases(session);
        }
        daemon_wake(daemon);
}

static bool is_quiet(const struct daemon *daemon)
{
        return TAILQ_EMPTY(&daemon->sessions) && daemon_port_is_quiet(daemon) &&
               peers_are_quiet(daemon) && !daemon->verify && daemon->recovered &&
               admin_pool_is_quiet(daemon) && transfers_are_idle(&daemon->cache.transfers) &&
               !daemon->cache.n_forgetting && !daemon->cache.n_syncing;
}

static void on_turn(uv_check_t *check)
{
        struct daemon *daemon = check->data;

        if (daemon->is_closing)
                return;
        acquires_retry(daemon);
        sessions_reap(daemon);
        removal_go_on(daemon);
        if (remote_entries_go_on(&daemon->cache))
                daemon_wake(daemon);
        marks_go_on(daemon);
        prefetches_go_on(daemon);
        peers_go_on(daemon);
        verify_go_on(daemon);
        if (daemon->phase == DAEMON_DRAINING && tiers_are_drained(daemon))
                stop(daemon, "drained");
        if (daemon->phase == DAEMON_STOPPING && is_quiet(daemon))
                close_parts(daemon);
}

static void on_drain_time(uv_timer_t *timer)
{
        stop(timer->data, "drain.seconds have passed");
}

void daemon_drain(struct daemon *daemon, const char *reason)
{
        if (daemon->phase >= DAEMON_DRAINING) {
                stop(daemon, "asked twice");
                return;
        }
        log_info("draining", "reason=%s seconds=%u unwritten_bytes=%" PRIu64, reason,
                 daemon->config.drain.seconds, cache_unwritten_bytes(&daemon->cache));
        daemon->phase = DAEMON_DRAINING;
        presence_table_set_state(daemon->cache.presence, PRESENCE_DRAINING);
        notify_stopping(daemon->config.drain.seconds + 10 +
                        (daemon->cache.remote ? 2 * daemon->config.pool.deadline_ms / 1000 : 0));
        transfers_drain(&daemon->cache);
        uv_timer_start(&daemon->drain_timer, on_drain_time,
                       (uint64_t)daemon->config.drain.seconds * 1000, 0);
        daemon_wake(daemon);
}

/* ---- signals ---- */

static void on_stop_signal(uv_signal_t *signal, int number)
{
        daemon_drain(signal->data, number == SIGINT ? "SIGINT" : "SIGTERM");
}

static void limit_pins(struct daemon *daemon)
{
        const struct config *config = &daemon->config;
        struct pin_table *pins = index_pins(daemon->cache.index);
        struct tier *nvme = daemon->cache.nvme;
        struct tier_usage usage = {0};

        if (nvme)
                nvme->ops.usage(nvme, &usage);
        if (daemon->cache.remote)
                pins->bytes_max[INDEX_REMOTE] =
                        config->pool.bytes / 100 * config->pool.pinned_share_percent;
        pins->bytes_max[INDEX_HOST] = config->host.bytes / 100 * config->host.pinned_share_percent;
        pins->bytes_max[INDEX_NVME] =
                usage.capacity_bytes / 100 * config->nvme.pinned_share_percent;
}

static void apply_config(struct daemon *daemon)
{
        log_set_level(daemon->config.log.level);
        limit_pins(daemon);
        daemon->cache.write_policy = daemon->config.nvme.write;
        daemon->cache.encodings[INDEX_NVME] = daemon->config.nvme.codec;
        daemon->cache.offers = (struct offer_policy){
                .write = daemon->config.pool.write,
                .all = daemon->config.pool.admit_all,
                .tokens_min = daemon->config.pool.admit_tokens,
        };
        daemon->cache.encodings[INDEX_REMOTE] = daemon->config.pool.codec;
        transfers_pump(&daemon->cache);
}

static void on_reload_signal(uv_signal_t *signal, int number)
{
        struct daemon *daemon = signal->data;
        struct config_changes changes;
        struct why why = {""};
        struct config *fresh;
        char names[512];

        (void)number;
        notify_reloading();
        fresh = malloc(sizeof(*fresh));
        if (!fresh || arguments_load_config(daemon->arguments, fresh, &why)) {
                daemon->metrics.config_reload_failures_total++;
                log_error("reload_refused", "reason=%s",
                          log_quoted(fresh ? why.text : "out of memory").text);
        } else {
                config_reload(&daemon->config, fresh, &changes);
                apply_config(daemon);
                daemon->metrics.config_reloads_total++;
                config_key_names(changes.taken, names, sizeof(names));
                log_info("reloaded", "changed=\"%s\"", names);
                config_key_names(changes.need_restart, names, sizeof(names));
                if (changes.need_restart)
                        log_warning("restart_needed", "keys=\"%s\"", names);
        }
        free(fresh);
        notify_ready();
}

static int start_signals(struct daemon *daemon)
{
        uv_signal_init(&daemon->loop, &daemon->sigterm);
        uv_signal_init(&daemon->loop, &daemon->sigint);
        uv_signal_init(&daemon->loop, &daemon->sighup);
        daemon->sigterm.data = daemon->sigint.data = daemon->sighup.data = daemon;
        if (uv_signal_start(&daemon->sigterm, on_stop_signal, SIGTERM) ||
            uv_signal_start(&daemon->sigint, on_stop_signal, SIGINT) ||
            uv_signal_start(&daemon->sighup, on_reload_signal, SIGHUP))
                return err_raise(-EIO);
        signal(SIGPIPE, SIG_IGN);
        return 0;
}

/* ---- the pulse ---- */

static void serve_when_ready(struct daemon *daemon)
{
        if (daemon->phase != DAEMON_STARTING || !daemon_is_ready(daemon, NULL))
                return;
        daemon->phase = DAEMON_RUNNING;
        presence_table_set_state(daemon->cache.presence, PRESENCE_SERVING);
        notify_ready();
        daemon->watchdog_due_ns = 0; /* tells the state with the next beat */
        log_info("ready", "seconds=%.3f", (double)(uv_hrtime() - daemon->started_ns) / 1e9);
}

static void tell_manager(struct daemon *daemon, uint64_t now_ns)
{
        uint64_t period_ms = notify_watchdog_period_ms();
        struct host_usage host;

        if (now_ns < daemon->watchdog_due_ns)
                return;
        if (!period_ms || period_ms > STATUS_MS)
                period_ms = STATUS_MS;
        daemon->watchdog_due_ns = now_ns + period_ms * 1000000;
        notify_watchdog();
        if (daemon->is_closing)
                return;
        host_usage(daemon->cache.host, &host);
        notify_status("%u sessions, host memory %" PRIu64 " of %" PRIu64 " MiB up%s",
                      daemon->n_sessions, host.ready_bytes >> 20, host.configured_bytes >> 20,
                      host.stalled ? ", waiting for free memory" : "");
}

static void on_heartbeat(uv_timer_t *timer)
{
        struct daemon *daemon = timer->data;
        uint64_t now_ns = uv_hrtime();

        if (daemon->cache.presence)
                presence_table_beat(daemon->cache.presence, now_ns);
        if (daemon->heartbeat_due_ns)
                metrics_observe(&daemon->metrics.loop_lag_seconds,
                                now_ns > daemon->heartbeat_due_ns
                                        ? (double)(now_ns - daemon->heartbeat_due_ns) / 1e9
                                        : 0);
        daemon->heartbeat_due_ns = now_ns + HEARTBEAT_MS * 1000000u;
        tell_manager(daemon, now_ns);
        if (daemon->is_closing)
                return;
        status_history_take(&daemon->history, &daemon->metrics,
                            (double)(now_ns - daemon->started_ns) / 1e9);
        listener_resume(daemon);
        sessions_expire(daemon, now_ns);
        daemon_port_expire(daemon, now_ns);
        peers_expire(daemon, now_ns);
        admin_explain_expire(daemon, now_ns);
        serve_when_ready(daemon);
}

static void on_wake(uv_async_t *async)
{
        (void)async; /* the turn itself is what was asked for */
}

static void start_pulse(struct daemon *daemon)
{
        uv_timer_init(&daemon->loop, &daemon->heartbeat);
        uv_timer_init(&daemon->loop, &daemon->drain_timer);
        uv_check_init(&daemon->loop, &daemon->reaper);
        uv_async_init(&daemon->loop, &daemon->wake, on_wake);
        daemon->heartbeat.data = daemon->drain_timer.data = daemon;
        daemon->reaper.data = daemon->wake.data = daemon;
        uv_timer_start(&daemon->heartbeat, on_heartbeat, 0, HEARTBEAT_MS);
        uv_check_start(&daemon->reaper, on_turn);
}

/* ---- parts ---- */

/* Worker. */
static void prepare_arena(void *user, void *base, uint64_t bytes)
{
        daemon_port_prepare(user, base, bytes);
}

static void on_arena(void *user, const struct host_arena *arena)
{
        struct daemon *daemon = user;
        struct session *session;

        /* The tier that would register it is on its way out, and nobody will use it. */
        if (daemon->is_closing)
                return;
        tiers_add_memory(daemon, arena);
        daemon_port_add_arena(daemon, arena);
        TAILQ_FOREACH(session, &daemon->sessions, link)
                handshake_announce(session, arena);
        log_debug("arena_up", "arena=%u bytes=%" PRIu64, arena->id, arena->bytes);
        serve_when_ready(daemon);
}

static void on_host_stalled(void *user, const char *reason)
{
        (void)user;
        log_warning("host_memory_short", "reason=%s", log_quoted(reason).text);
}

static int open_host(struct daemon *daemon)
{
        const struct config *config = &daemon->config;
        struct host_options options = {
                .total_bytes = config->host.bytes,
                .piece_bytes = config->host.piece_bytes,
                .page_bytes = config->host.page_bytes,
                .prepare = prepare_arena,
                .on_arena = on_arena,
                .on_stalled = on_host_stalled,
                .user = daemon,
        };

        return host_pool_new(&daemon->cache.host, &daemon->loop, &options);
}

static void on_recovered(void *user, int result)
{
        struct daemon *daemon = user;
        struct index_usage usage;

        daemon->recovered = true;
        if (result) {
                log_error("recovery_failed", "error=\"%s\"", strerror(-result));
                daemon->failed = true;
                stop(daemon, "recovery failed");
                return;
        }
        index_usage(daemon->cache.index, &usage);
        log_info("recovered", "objects=%" PRIu64 " seconds=%.3f", usage.objects,
                 (double)(uv_hrtime() - daemon->started_ns) / 1e9);
        serve_when_ready(daemon);
}

static int is_ready_for_http(void *user, struct why *why)
{
        return daemon_is_ready(user, why);
}

static void refresh_for_http(void *user, struct metrics *metrics)
{
        const struct daemon *daemon = user;

        (void)metrics;
        /* The last scrapes of a stopping daemon see the last gauges. */
        if (!daemon->is_closing)
                daemon_refresh_metrics(user);
}

static char *document_for_http(void *user, enum status_document which)
{
        struct daemon *daemon = user;

        return daemon->is_closing ? NULL : status_document(daemon, which);
}

static int open_http(struct daemon *daemon, struct why *why)
{
        struct http_options options = {
                .listen = &daemon->config.metrics.listen,
                .metrics = &daemon->metrics,
                .refresh = refresh_for_http,
                .is_ready = is_ready_for_http,
                .document = document_for_http,
                .user = daemon,
        };

        if (daemon->config.metrics.listen.ss_family == AF_UNSPEC)
                return 0;
        return http_new(&daemon->http, &daemon->loop, &options, why);
}

static void on_cache_progress(void *user)
{
        struct daemon *daemon = user;

        if (daemon->phase >= DAEMON_DRAINING)
                daemon_wake(daemon);
}

static int open_cache(struct daemon *daemon)
{
        struct cache *cache = &daemon->cache;
        uint64_t objects_max = daemon->config.index.objects_max;
        int r;

        r = presence_table_new(&cache->presence, objects_max, daemon->boot_id,
                               HEARTBEAT_MS * UINT64_C(1000000));
        if (r)
                return r;
        r = index_new(&cache->index, objects_max, cache->presence);
        if (r)
                return r;
        cache->loop = &daemon->loop;
        cache->metrics = &daemon->metrics;
        cache->on_progress = on_cache_progress;
        cache->on_progress_user = daemon;
        memcpy(cache->boot_id, daemon->boot_id, sizeof(cache->boot_id));
        return 0;
}

static int start(struct daemon *daemon, bool format, struct why *why)
{
        int r;

        r = start_signals(daemon);
        if (!r)
                r = open_cache(daemon);
        if (!r)
                r = tiers_open(daemon, format, why);
        if (!r)
                r = daemon_port_open(daemon, why);
        if (!r)
                daemon_port_serve(daemon, REMOTE_SESSION, session_remote_accept);
        if (!r)
                r = peers_open(daemon);
        if (!r)
                r = open_host(daemon);
        if (r)
                return r;
        r = cache_init(&daemon->cache);
        leases_init(&daemon->leases, &daemon->cache.copies);
        daemon->leases.drops = &daemon->cache.drops;
        apply_config(daemon);
        if (!r)
                r = listener_open(daemon, why);
        if (!r)
                r = open_http(daemon, why);
        if (!r)
                cache_recover(&daemon->cache, on_recovered, daemon);
        return r;
}

static void free_cache(struct daemon *daemon)
{
        index_free(daemon->cache.index);
        presence_table_free(daemon->cache.presence);
}

int daemon_main(const struct arguments *arguments, const struct config *config)
{
        struct daemon *daemon = calloc(1, sizeof(*daemon));
        struct why why = {""};
        int r;

        if (!daemon || uv_loop_init(&daemon->loop)) {
                log_error("start_failed", "reason=\"out of memory\"");
                free(daemon);
                return 1;
        }
        daemon->config = *config;
        daemon->arguments = arguments;
        daemon->listen_fd = -1;
        daemon->next_session = 1;
        daemon->started_ns = uv_hrtime();
        daemon->statm_fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
        TAILQ_INIT(&daemon->sessions);
        TAILQ_INIT(&daemon->questions);
        marks_init(&daemon->marks);
        prefetches_init(&daemon->prefetches);
        start_pulse(daemon);
        r = getrandom(daemon->boot_id, sizeof(daemon->boot_id), 0) == sizeof(daemon->boot_id)
                    ? start(daemon, arguments->format, &why)
                    : err_raise(-EIO);
        if (r) {
                log_error("start_failed", "reason=%s error=\"%s\" at=%s", log_quoted(why.text).text,
                          strerror(-r), err_where());
                daemon->failed = true;
                daemon->recovered = true;
                daemon->phase = DAEMON_STOPPING;
                listener_close(daemon);
                close_parts(daemon);
        } else {
                log_info("started",
                         "version=%s socket=%s host_bytes=%" PRIu64 " nvme_bytes=%" PRIu64
                         " pool=%s metrics_port=%u",
                         KVTIER_VERSION, config->socket.path, config->host.bytes,
                         config->nvme.n_paths ? config->nvme.bytes : 0,
                         config_pool_name(config->pool.backend),
                         daemon->http ? http_port(daemon->http) : 0);
        }
        uv_run(&daemon->loop, UV_RUN_DEFAULT);
        uv_loop_close(&daemon->loop);
        free_cache(daemon);
        if (daemon->statm_fd >= 0)
                close(daemon->statm_fd);
        r = daemon->failed;
        if (!r)
                log_info("stopped", "seconds=%.3f",
                         (double)(uv_hrtime() - daemon->started_ns) / 1e9);
        free(daemon);
        return r;
}
