// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/peers.h"
#include "daemon/rdma_port.h"
#include "proto/remote.h"

#define LOOK_UP_NS     UINT64_C(30000000000)
#define BACKOFF_MIN_NS UINT64_C(200000000)
#define BACKOFF_MAX_NS UINT64_C(10000000000)

/* An entry of the configuration that is no address. */
struct peer_name {
        uv_getaddrinfo_t request;
        struct peers *peers;
        char entry[CONFIG_PEER_BYTES];
        char host[CONFIG_PEER_BYTES];
        uint16_t port;
        bool is_busy;
        int failure; /* that has been logged */
};

/* ---- the table ---- */

static struct peer *find_address(struct peers *peers, const char *text)
{
        struct peer *peer;

        TAILQ_FOREACH(peer, &peers->list, link)
                if (!strcmp(peer->address_text, text))
                        return peer;
        return NULL;
}

static struct peer *add(struct peers *peers, const char *name, const struct sockaddr *address)
{
        char text[RDMA_ADDRESS_TEXT_MAX];
        struct peer *peer;

        rdma_address_format(address, text);
        peer = find_address(peers, text);
        if (peer)
                return peer;
        peer = calloc(1, sizeof(*peer));
        if (!peer)
                return NULL;
        peer->peers = peers;
        snprintf(peer->name, sizeof(peer->name), "%s", name);
        snprintf(peer->address_text, sizeof(peer->address_text), "%s", text);
        memcpy(&peer->address, address, rdma_address_bytes(address));
        peer->is_listed = true;
        peer->backoff = (struct rdma_backoff){.min_ns = BACKOFF_MIN_NS, .max_ns = BACKOFF_MAX_NS};
        LIST_INIT(&peer->fetches);
        LIST_INIT(&peer->asks);
        TAILQ_INSERT_TAIL(&peers->list, peer, link);
        return peer;
}

static void peer_free(struct peer *peer)
{
        TAILQ_REMOVE(&peer->peers->list, peer, link);
        free(peer->releases.buffer);
        free(peer);
}

struct peer *peers_find(struct daemon *daemon, const char *hint)
{
        struct sockaddr_storage address;
        char text[RDMA_ADDRESS_TEXT_MAX] = "";
        struct why why;
        struct peer *peer;

        if (!daemon->peers)
                return NULL;
        if (!rdma_address_parse(&address, hint, REMOTE_PORT, &why))
                rdma_address_format((const struct sockaddr *)&address, text);
        TAILQ_FOREACH(peer, &daemon->peers->list, link)
                if (!peer->is_self && peer->is_listed &&
                    (!strcmp(peer->name, hint) || !strcmp(peer->address_text, text)))
                        return peer;
        return NULL;
}

/* ---- names ---- */

static void set_port(struct sockaddr_storage *address, uint16_t port)
{
        if (address->ss_family == AF_INET6)
                ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
        else
                ((struct sockaddr_in *)address)->sin_port = htons(port);
}

static void take_addresses(struct peer_name *name, const struct addrinfo *found)
{
        struct peer *peer;

        TAILQ_FOREACH(peer, &name->peers->list, link)
                if (peer->from == name)
                        peer->is_listed = false;
        for (; found; found = found->ai_next) {
                struct sockaddr_storage address = {0};

                if (found->ai_family != AF_INET && found->ai_family != AF_INET6)
                        continue;
                memcpy(&address, found->ai_addr, found->ai_addrlen);
                set_port(&address, name->port);
                peer = add(name->peers, name->entry, (const struct sockaddr *)&address);
                if (!peer)
                        return;
                if (!peer->from && strcmp(peer->name, name->entry) != 0)
                        continue; /* it is listed by its address, too */
                peer->from = name;
                peer->is_listed = true;
        }
}

static void on_looked_up(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
        struct peer_name *name = request->data;

        name->is_busy = false;
        name->peers->n_working--;
        if (!status && !name->peers->is_stopping)
                take_addresses(name, found);
        if (status && status != name->failure)
                log_warning("peer_name_unknown", "name=%s error=\"%s\"",
                            log_quoted(name->host).text, uv_strerror(status));
        name->failure = status;
        uv_freeaddrinfo(found);
        daemon_wake(name->peers->daemon);
}

static void look_up(struct peer_name *name)
{
        struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

        if (name->is_busy)
                return;
        name->request.data = name;
        if (uv_getaddrinfo(&name->peers->daemon->loop, &name->request, on_looked_up, name->host,
                           NULL, &hints))
                return;
        name->is_busy = true;
        name->peers->n_working++;
}

static void look_up_all(struct peers *peers, uint64_t now_ns)
{
        if (!peers->n_names || now_ns < peers->look_up_ns)
                return;
        peers->look_up_ns = now_ns + LOOK_UP_NS;
        for (uint32_t i = 0; i < peers->n_names; i++)
                look_up(&peers->names[i]);
}

/* "NAME:PORT" or "NAME": the configuration has been checked. */
static void add_name(struct peers *peers, const char *entry)
{
        struct peer_name *name = &peers->names[peers->n_names++];
        const char *colon = strchr(entry, ':');

        name->peers = peers;
        name->port = colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : REMOTE_PORT;
        snprintf(name->entry, sizeof(name->entry), "%s", entry);
        snprintf(name->host, sizeof(name->host), "%.*s",
                 (int)(colon ? colon - entry : (ptrdiff_t)strlen(entry)), entry);
}

/* ---- connections ---- */

static void on_open(void *user, struct remote_link *link)
{
        struct peer *peer = user;
        struct daemon *daemon = peer->peers->daemon;

        peer->is_open = true;
        rdma_backoff_reset(&peer->backoff);
        if (!memcmp(rdma_connection_peer_id(remote_link_connection(link)), daemon->boot_id,
                    sizeof(daemon->boot_id))) {
                peer->is_self = true;
                remote_link_close(link);
                return;
        }
        log_info("peer_connected", "peer=%s", peer->address_text);
        peer_reads_opened(peer);
        findings_opened(peer);
}

static void on_message(void *user, struct remote_link *link, const void *packet, size_t length)
{
        (void)link;
        peer_reads_message(user, packet, length);
}

static void wait_before_next(struct peer *peer)
{
        uint32_t random = 0;

        (void)!getrandom(&random, sizeof(random), GRND_NONBLOCK);
        peer->retry_ns = uv_hrtime() + rdma_backoff_next(&peer->backoff, random);
}

static void on_closed(void *user, struct remote_link *link, enum rdma_end end, const char *why)
{
        struct peer *peer = user;
        bool was_open = peer->is_open;

        (void)link;
        snprintf(peer->why, sizeof(peer->why), "%s: %s", rdma_end_name(end), why);
        if (!peer->peers->is_stopping && !peer->is_self) {
                log_warning("peer_disconnected", "peer=%s end=%s detail=%s", peer->address_text,
                            rdma_end_name(end), log_quoted(why).text);
                wait_before_next(peer);
        }
        peer->remote = NULL;
        peer->is_open = false;
        peer->releases.builder.length = 0;
        peer_reads_closed(peer);
        findings_closed(peer, was_open && !peer->is_self);
        daemon_port_link_gone(peer->peers->daemon);
}

static const struct remote_link_events events = {
        .on_open = on_open,
        .on_message = on_message,
        .on_closed = on_closed,
};

bool peer_connect(struct peer *peer)
{
        struct daemon *daemon = peer->peers->daemon;
        struct rdma_target target = {
                .address = peer->address,
                .domain = daemon_port_domain(daemon),
        };
        int r;

        if (peer->remote)
                return true;
        if (peer->peers->is_stopping || uv_hrtime() < peer->retry_ns)
                return false;
        if (daemon->config.rdma.listen.ss_family == peer->address.ss_family) {
                target.source = daemon->config.rdma.listen;
                set_port(&target.source, 0);
        }
        r = remote_link_open(&peer->remote, daemon_port_rdma(daemon), &target, REMOTE_PEER, &events,
                             peer);
        if (r) {
                peer->remote = NULL;
                snprintf(peer->why, sizeof(peer->why), "no connection can be made: %s",
                         r > 0 ? "there are too many" : strerror(-r));
                wait_before_next(peer);
                return false;
        }
        daemon_port_link_opened(daemon);
        return true;
}

/* ---- the whole ---- */

static void on_published(void *user, const struct index_object *object)
{
        peer_serve_published(user, object);
}

static void on_replaced(void *user, const struct object_key *key, uint64_t total)
{
        peer_reads_replaced(user, key, total);
}

int peers_open(struct daemon *daemon)
{
        const struct config *config = &daemon->config;
        struct peers *peers;

        if (!daemon->port)
                return 0;
        peers = calloc(1, sizeof(*peers));
        if (peers)
                peers->names = calloc(CONFIG_PEERS_MAX, sizeof(*peers->names));
        if (!peers || !peers->names) {
                free(peers);
                return err_raise(-ENOMEM);
        }
        peers->daemon = daemon;
        TAILQ_INIT(&peers->list);
        RB_INIT(&peers->reads.expected);
        TAILQ_INIT(&peers->findings);
        LIST_INIT(&peers->serving.servers);
        RB_INIT(&peers->serving.wanted);
        daemon->peers = peers;
        for (uint32_t i = 0; i < config->rdma.n_peers; i++) {
                const char *entry = config->rdma.peers[i];
                struct sockaddr_storage address;
                struct why why;

                if (rdma_address_parse(&address, entry, REMOTE_PORT, &why))
                        add_name(peers, entry);
                else if (!add(peers, entry, (const struct sockaddr *)&address))
                        return err_raise(-ENOMEM);
        }
        daemon->cache.on_published = on_published;
        daemon->cache.on_replaced = on_replaced;
        daemon->cache.on_published_user = daemon;
        daemon_port_serve(daemon, REMOTE_PEER, peer_serve_accept);
        return 0;
}

void peers_stop(struct daemon *daemon)
{
        struct peers *peers = daemon->peers;
        struct peer *peer;

        if (!peers)
                return;
        peers->is_stopping = true;
        for (uint32_t i = 0; i < peers->n_names; i++)
                if (peers->names[i].is_busy)
                        uv_cancel((uv_req_t *)&peers->names[i].request);
        TAILQ_FOREACH(peer, &peers->list, link)
                if (peer->remote)
                        remote_link_close(peer->remote);
        peer_serve_stop(daemon);
}

bool peers_are_quiet(const struct daemon *daemon)
{
        return !daemon->peers || !daemon->peers->n_working;
}

void peers_close(struct daemon *daemon)
{
        struct peers *peers = steal_ptr(daemon->peers);
        struct peer *peer;

        if (!peers)
                return;
        daemon->cache.on_published = NULL;
        daemon->cache.on_replaced = NULL;
        while ((peer = TAILQ_FIRST(&peers->list)))
                peer_free(peer);
        free(peers->names);
        free(peers);
}

void peers_go_on(struct daemon *daemon)
{
        struct peer *peer;

        if (!daemon->peers)
                return;
        peer_serve_go_on(daemon);
        TAILQ_FOREACH(peer, &daemon->peers->list, link)
                peer_reads_flush(peer);
}

void peers_expire(struct daemon *daemon, uint64_t now_ns)
{
        struct peers *peers = daemon->peers;
        struct peer *peer, *next;

        if (!peers || peers->is_stopping)
                return;
        look_up_all(peers, now_ns);
        peer_serve_expire(daemon, now_ns);
        findings_expire(daemon, now_ns);
        for (peer = TAILQ_FIRST(&peers->list); peer; peer = next) {
                next = TAILQ_NEXT(peer, link);
                peer_reads_expire(peer, now_ns);
                if (!peer->is_listed && !peer->remote && LIST_EMPTY(&peer->fetches))
                        peer_free(peer);
        }
}

/* ---- what is shown ---- */

static const char *state_of(const struct peer *peer)
{
        if (peer->is_self)
                return "self";
        if (peer->is_open)
                return "connected";
        if (peer->remote)
                return "connecting";
        return peer->retry_ns > uv_hrtime() ? "unreachable" : "idle";
}

void peers_refresh(struct daemon *daemon)
{
        struct metrics *metrics = &daemon->metrics;
        struct peer *peer;

        if (!daemon->peers)
                return;
        metrics->peers = metrics->peers_connected = 0;
        TAILQ_FOREACH(peer, &daemon->peers->list, link) {
                metrics->peers += !peer->is_self;
                metrics->peers_connected += peer->is_open;
        }
        metrics->peer_expected_objects = daemon->peers->reads.n_expected;
        metrics->peer_wanted_objects = daemon->peers->serving.n_wanted;
        metrics->peer_leased_bytes = daemon->peers->serving.leased_bytes;
}

json_t *peers_status(const struct daemon *daemon)
{
        json_t *all = json_array();
        const struct peer *peer;

        if (!all || !daemon->peers)
                return all;
        TAILQ_FOREACH(peer, &daemon->peers->list, link)
                json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "name",
                                                     peer->name, "address", peer->address_text,
                                                     "state", state_of(peer), "why",
                                                     peer->is_open ? "" : peer->why, "read_objects",
                                                     (json_int_t)peer->read_objects, "read_bytes",
                                                     (json_int_t)peer->read_bytes));
        return all;
}
