// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/rdma_secret.h"
#include "daemon/daemon.h"
#include "daemon/rdma_port.h"
#include "proto/remote.h"

#define STRANGER_NS UINT64_C(10000000000)
#define LET_GO_NS   UINT64_C(500000000)
#define TELL_NS     UINT64_C(1000000000) /* between two words about refusals */
#define DOMAIN_NAME "default" /* the only one there is */

/* Between the worker that registers an arena and the end of the port. */
static pthread_mutex_t prepare_lock = PTHREAD_MUTEX_INITIALIZER;

/* An arena that is registered. */
struct arena_region {
        uint32_t arena_id;
        struct rdma_region *region;
};

/* A link that nobody owns: before its first message, or after its last. */
struct stranger {
        LIST_ENTRY(stranger) link;
        struct daemon_port *port;
        struct remote_link *remote;
        uint64_t until_ns;
        bool is_done; /* whatever comes is not read any more */
};

struct daemon_port {
        struct daemon *daemon;
        struct rdma_port *rdma;
        struct rdma_listener *listener;
        uv_poll_t poll;
        struct rdma_secret_file secret; /* constant once the port is open */
        struct arena_region *regions;
        size_t n_regions;
        struct rdma_region *prepared; /* the worker's, until its arena comes up */
        int prepare_result;
        LIST_HEAD(, stranger) strangers;
        uint32_t n_links; /* that have an owner */
        uint64_t n_refused; /* that the log has been told of */
        uint64_t n_gone;    /* likewise: devices */
        uint64_t told_ns;
        daemon_port_accept *accept[REMOTE_PEER + 1];
};

/* ---- strangers ---- */

static void forget_stranger(struct stranger *stranger)
{
        LIST_REMOVE(stranger, link);
        free(stranger);
}

static void on_first_message(void *user, struct remote_link *link, const void *packet,
                             size_t length)
{
        struct stranger *stranger = user;
        struct daemon_port *port = stranger->port;
        uint32_t service = remote_link_service(link);
        static const struct remote_link_events nobody;

        if (stranger->is_done)
                return;
        if (!port->accept[service]) {
                log_warning("rdma_service_unknown", "service=%u", service);
                remote_link_close(link);
                return;
        }
        forget_stranger(stranger);
        remote_link_hand_over(link, &nobody, NULL);
        port->accept[service](port->daemon, link, packet, length);
}

static void on_stranger_closed(void *user, struct remote_link *link, enum rdma_end end,
                               const char *why)
{
        (void)link;
        log_debug("rdma_stranger_gone", "end=%s detail=%s", rdma_end_name(end),
                  log_quoted(why).text);
        forget_stranger(user);
}

static const struct remote_link_events stranger_events = {
        .on_message = on_first_message,
        .on_closed = on_stranger_closed,
};

static struct stranger *stranger_new(struct daemon_port *port, uint64_t time_ns)
{
        struct stranger *stranger = calloc(1, sizeof(*stranger));

        if (!stranger)
                return NULL;
        stranger->port = port;
        stranger->until_ns = uv_hrtime() + time_ns;
        LIST_INSERT_HEAD(&port->strangers, stranger, link);
        return stranger;
}

static void on_connection(void *user, struct rdma_connection *connection)
{
        struct daemon_port *port = user;
        struct stranger *stranger = stranger_new(port, STRANGER_NS);

        if (!stranger) {
                rdma_connection_close(connection);
                return;
        }
        stranger->remote = remote_link_accept(connection, &stranger_events, stranger);
        if (!stranger->remote)
                forget_stranger(stranger);
}

void daemon_port_let_go(struct daemon *daemon, struct remote_link *link)
{
        struct daemon_port *port = daemon->port;
        struct stranger *stranger = stranger_new(port, LET_GO_NS);
        static const struct remote_link_events nobody;

        port->n_links--;
        if (!stranger) {
                remote_link_hand_over(link, &nobody, NULL);
                remote_link_close(link);
                return;
        }
        stranger->remote = link;
        stranger->is_done = true;
        remote_link_hand_over(link, &stranger_events, stranger);
        if (!remote_link_queued(link) && daemon->phase >= DAEMON_STOPPING)
                stranger->until_ns = uv_hrtime() + LET_GO_NS / 5;
}

void daemon_port_link_opened(struct daemon *daemon)
{
        daemon->port->n_links++;
}

void daemon_port_link_gone(struct daemon *daemon)
{
        assert(daemon->port->n_links);
        daemon->port->n_links--;
        daemon_wake(daemon);
}

/* The last one by name, the others by number: knocking fills no log. */
static void tell_refusals(struct daemon_port *port, uint64_t now_ns)
{
        struct rdma_refusal refusal;

        if (now_ns < port->told_ns + TELL_NS)
                return;
        rdma_port_last_refusal(port->rdma, &refusal);
        if (refusal.n == port->n_refused)
                return;
        log_warning("rdma_refused", "from=%s reason=%s n=%" PRIu64, refusal.address,
                    rdma_end_name(refusal.end), refusal.n - port->n_refused);
        port->n_refused = refusal.n;
        port->told_ns = now_ns;
}

/* The port goes on with the others. */
static void tell_gone(struct daemon_port *port)
{
        struct rdma_port_stats stats;

        rdma_port_stats(port->rdma, &stats);
        if (stats.devices_gone == port->n_gone)
                return;
        log_warning("rdma_device_gone", "n=%" PRIu64 " text=\"%s\"", stats.devices_gone,
                    "its connections have ended, and it is not used again before a restart");
        port->n_gone = stats.devices_gone;
}

void daemon_port_expire(struct daemon *daemon, uint64_t now_ns)
{
        struct stranger *stranger;

        if (!daemon->port)
                return;
        LIST_FOREACH(stranger, &daemon->port->strangers, link)
                if (now_ns > stranger->until_ns)
                        remote_link_close(stranger->remote);
        tell_refusals(daemon->port, now_ns);
        tell_gone(daemon->port);
}

/* ---- the port ---- */

static void on_readable(uv_poll_t *poll, int status, int events)
{
        struct daemon_port *port = poll->data;

        (void)status;
        (void)events;
        rdma_port_run(port->rdma);
}

static int open_rdma(struct daemon_port *port, struct why *why)
{
        struct rdma_port_options options = {
                .identity = remote_identity(port->daemon->boot_id),
                .find_secret = rdma_secret_find,
                .user = &port->secret,
                .connections_max = port->daemon->config.sessions.max,
                .message_bytes = REMOTE_FRAME_BYTES,
                .n_credits = REMOTE_CREDITS,
                .whole_regions = port->daemon->config.rdma.whole_regions,
                .busy_poll = port->daemon->config.rdma.busy_poll,
                /* A sign of life waits behind what is on the device: on a slow wire not long. */
                .flight_bytes = UINT64_C(2) << 20,
                .chunk_bytes = 512u << 10,
        };
        int r;

        r = rdma_port_open(&port->rdma, &options, why);
        if (r) {
                why_prefix(why, "rdma.listen");
                return r < 0 ? r : err_raise(-ENOTSUP);
        }
        if (rdma_port_warning(port->rdma))
                log_warning("rdma_notice", "text=%s",
                            log_quoted(rdma_port_warning(port->rdma)).text);
        return 0;
}

static int listen_on(struct daemon_port *port, struct why *why)
{
        const struct config *config = &port->daemon->config;
        struct rdma_listener_options options = {
                .address = config->rdma.listen,
                .allowed = config->rdma.allow,
                .n_allowed = config->rdma.n_allow,
                .on_connection = on_connection,
                .user = port,
        };
        int r;

        r = rdma_listener_open(&port->listener, port->rdma, &options, why);
        if (r) {
                why_prefix(why, "rdma.listen");
                return r < 0 ? r : err_raise(-EINVAL);
        }
        log_info("rdma_listening", "port=%u", rdma_listener_port(port->listener));
        return 0;
}

static int load_secret(struct daemon_port *port, struct why *why)
{
        int r = rdma_secret_load(&port->secret, port->daemon->config.rdma.secret, why);

        if (r) {
                why_prefix(why, "rdma.secret");
                return r < 0 ? r : err_raise(-EINVAL);
        }
        if (strcmp(port->secret.domain, DOMAIN_NAME) != 0) {
                why_set(why,
                        "rdma.secret: the domain is \"%s\": use " DOMAIN_NAME ", there is no other",
                        port->secret.domain);
                return err_raise(-EINVAL);
        }
        return 0;
}

int daemon_port_open(struct daemon *daemon, struct why *why)
{
        struct daemon_port *port;
        int r;

        if (daemon->config.rdma.listen.ss_family == AF_UNSPEC)
                return 0;
        port = calloc(1, sizeof(*port));
        if (!port)
                return err_raise(-ENOMEM);
        port->daemon = daemon;
        LIST_INIT(&port->strangers);
        r = load_secret(port, why);
        if (!r)
                r = open_rdma(port, why);
        if (!r) {
                r = uv_poll_init(&daemon->loop, &port->poll, rdma_port_fd(port->rdma));
                if (r)
                        rdma_port_close(port->rdma);
        }
        if (r) {
                explicit_bzero(port, sizeof(*port));
                free(port);
                return r;
        }
        port->poll.data = port;
        uv_poll_start(&port->poll, UV_READABLE, on_readable);
        daemon->port = port;
        return listen_on(port, why);
}

void daemon_port_stop(struct daemon *daemon)
{
        struct stranger *stranger;

        if (!daemon->port)
                return;
        if (daemon->port->listener)
                rdma_listener_close(steal_ptr(daemon->port->listener));
        LIST_FOREACH(stranger, &daemon->port->strangers, link)
                remote_link_close(stranger->remote);
}

bool daemon_port_is_quiet(const struct daemon *daemon)
{
        return !daemon->port || (!daemon->port->n_links && LIST_EMPTY(&daemon->port->strangers));
}

static void on_poll_closed(uv_handle_t *handle)
{
        struct daemon_port *port = handle->data;

        free(port->regions);
        explicit_bzero(port, sizeof(*port));
        free(port);
}

void daemon_port_close(struct daemon *daemon)
{
        struct daemon_port *port;

        pthread_mutex_lock(&prepare_lock);
        port = steal_ptr(daemon->port);
        pthread_mutex_unlock(&prepare_lock);
        if (!port)
                return;
        if (port->listener)
                rdma_listener_close(port->listener);
        for (size_t i = 0; i < port->n_regions; i++)
                if (rdma_region_free(port->regions[i].region))
                        log_error("rdma_region_busy", "arena=%u", port->regions[i].arena_id);
        rdma_region_free(port->prepared);
        uv_poll_stop(&port->poll);
        rdma_port_close(port->rdma);
        uv_close((uv_handle_t *)&port->poll, on_poll_closed);
}

/* ---- memory ---- */

void daemon_port_prepare(struct daemon *daemon, void *base, uint64_t bytes)
{
        struct daemon_port *port;

        pthread_mutex_lock(&prepare_lock);
        port = daemon->port;
        if (port) {
                /* Left, when its arena did not come up. */
                rdma_region_free(steal_ptr(port->prepared));
                port->prepare_result = rdma_region_new(&port->prepared, port->rdma, base, bytes);
        }
        pthread_mutex_unlock(&prepare_lock);
}

void daemon_port_add_arena(struct daemon *daemon, const struct host_arena *arena)
{
        struct daemon_port *port = daemon->port;
        struct arena_region *regions;
        struct rdma_region *region;
        int r;

        if (!port)
                return;
        /* The worker begins the next one after this. */
        region = steal_ptr(port->prepared);
        r = port->prepare_result;
        if (r) {
                log_warning("rdma_arena_not_registered",
                            "arena=%u error=\"%s\" remedy=\"%s\"", arena->id,
                            strerror(r < 0 ? -r : ENOMEM),
                            r == -ENODEV ? "its devices are gone: bring them back and restart"
                                         : "raise RLIMIT_MEMLOCK");
                return;
        }
        regions = reallocarray(port->regions, port->n_regions + 1, sizeof(*regions));
        if (!regions) {
                rdma_region_free(region);
                log_warning("rdma_arena_not_registered", "arena=%u error=\"out of memory\"",
                            arena->id);
                return;
        }
        port->regions = regions;
        regions[port->n_regions++] = (struct arena_region){arena->id, region};
}

static struct rdma_region *find_region(const struct daemon_port *port, uint32_t arena_id)
{
        for (size_t i = 0; i < port->n_regions; i++)
                if (port->regions[i].arena_id == arena_id)
                        return port->regions[i].region;
        return NULL;
}

uint32_t daemon_port_extents(const struct daemon *daemon, const struct host_copy *copy,
                             uint64_t offset, uint64_t length,
                             struct rdma_extent ret_extents[WIRE_EXTENTS_MAX])
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < copy->n_extents && length && n < WIRE_EXTENTS_MAX; i++) {
                const struct host_extent *extent = &copy->extents[i];
                uint64_t here = extent->length - offset;

                if (offset >= extent->length) {
                        offset -= extent->length;
                        continue;
                }
                if (here > length)
                        here = length;
                ret_extents[n].region = find_region(daemon->port, extent->arena_id);
                if (!ret_extents[n].region)
                        return 0;
                ret_extents[n].address =
                        (uint8_t *)host_address(daemon->cache.host, extent) + offset;
                ret_extents[n++].length = here;
                length -= here;
                offset = 0;
        }
        return length ? 0 : n;
}

/* ---- */

struct rdma_port *daemon_port_rdma(const struct daemon *daemon)
{
        return daemon->port ? daemon->port->rdma : NULL;
}

const char *daemon_port_domain(const struct daemon *daemon)
{
        return daemon->port->secret.domain;
}

void daemon_port_serve(struct daemon *daemon, enum remote_service service,
                       daemon_port_accept *accept)
{
        if (daemon->port)
                daemon->port->accept[service] = accept;
}

void daemon_port_refresh(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        struct rdma_port_stats stats;

        if (!daemon->port)
                return;
        rdma_port_stats(daemon->port->rdma, &stats);
        metrics->rdma_connections = stats.connections;
        metrics->rdma_queue_pairs = stats.queue_pairs;
        metrics->rdma_regions = stats.regions;
        metrics->rdma_windows = stats.windows;
        metrics->rdma_windows_bound = stats.windows_bound;
        metrics->rdma_devices_gone = stats.devices_gone;
        metrics->rdma_opened_total = stats.opened;
        memcpy(metrics->rdma_ended_total, stats.ended, sizeof(metrics->rdma_ended_total));
        metrics->rdma_messages_sent_total = stats.messages_sent;
        metrics->rdma_messages_received_total = stats.messages_received;
        metrics->rdma_read_bytes_total = stats.read_bytes;
        metrics->rdma_written_bytes_total = stats.written_bytes;
        metrics->rdma_timeouts_total = stats.timeouts;
}
