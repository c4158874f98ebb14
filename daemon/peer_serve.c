// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/rdma_memory.h"
#include "daemon/daemon.h"
#include "daemon/finding.h"
#include "daemon/load.h"
#include "daemon/peers.h"
#include "daemon/rdma_port.h"

/* What one reader holds at a time. */
#define SERVE_BYTES   (UINT64_C(64) << 20)
#define SERVE_OBJECTS 128u
/* Objects looked at for one reader in one turn of the loop. */
#define TURN_STEPS 1024u
/* Asked for and not answered, of all readers and of one. */
#define ITEMS_MAX        (1u << 18)
#define READER_ITEMS_MAX (1u << 17)
/* Bytes of them that may wait for a reader. */
#define ANSWERS_MAX (UINT64_C(4) << 20)
#define GRANT_NS    UINT64_C(5000000000)
/* A reader that lives but does not read is not waited for. */
#define OFFER_NS UINT64_C(30000000000)

enum served_state {
        SERVED_NEW,
        SERVED_WANTED, /* in peer_serving.wanted */
        SERVED_FOUND,  /* in peer_server.found */
        SERVED_PROMOTING,
        SERVED_HASHING, /* from here on leased */
        SERVED_GRANTING,
        SERVED_OFFERED,
        SERVED_RELEASED, /* until on_reusable() */
        SERVED_GONE,
};

struct served_ask {
        TAILQ_ENTRY(served_ask) link;
        struct peer_server *server;
        uint64_t request;
        uint64_t deadline_ns; /* for what is not there; 0: it does not wait */
        uint32_t next;        /* NEW ones begin here */
        uint32_t n_open;      /* not GONE */
        uint32_t n;
        struct served *items;
};

struct served {
        struct host_copy_waiter waiter; /* first: PROMOTING, HASHING */
        struct served_ask *ask;
        struct object_key key; /* as asked for */
        enum served_state state;
        uint32_t index;
        struct host_copy *copy;
        struct rdma_grant *grant;
        uint64_t lease;
        uint64_t offered_ns;
        uint64_t serial;          /* tells those who want one object apart */
        RB_ENTRY(served) node;    /* WANTED */
        TAILQ_ENTRY(served) link; /* FOUND, or held: of the server */
};

TAILQ_HEAD(served_list, served);

struct peer_server {
        LIST_ENTRY(peer_server) link;
        struct daemon *daemon;
        struct remote_link *remote;
        char address[RDMA_ADDRESS_TEXT_MAX];
        TAILQ_HEAD(, served_ask) asks;
        struct served_ask *next_ask; /* NEW items begin here; NULL: there are none */
        uint32_t n_items;            /* of asks that are not answered to the end */
        struct served_list found;
        struct served_list held; /* PROMOTING to RELEASED, oldest first */
        uint32_t n_held;
        uint64_t held_bytes;
        bool is_closing;
        struct peer_builder offers; /* of offers_request */
        uint64_t offers_request;
        _Alignas(8) uint8_t buffer[WIRE_MESSAGE_MAX];
};

static int compare(const struct served *a, const struct served *b)
{
        int order = memcmp(&a->key, &b->key, sizeof(a->key));

        if (order)
                return order;
        return a->serial < b->serial ? -1 : a->serial > b->serial;
}

TREE_GENERATE(served_tree, served, node, compare)

/* ---- answers ---- */

static void flush(struct peer_server *server)
{
        if (server->offers.length && !server->is_closing &&
            remote_link_send(server->remote, server->buffer, server->offers.length))
                remote_link_close(server->remote);
        server->offers.length = 0;
}

static void answer_to(struct peer_server *server, uint64_t request,
                      const struct peer_offer_item *item, const struct peer_place *places,
                      const uint64_t *pieces, const struct digest *covers)
{
        static const struct peer_header fixed;

        for (int tries = 0; tries < 2; tries++) {
                if (server->offers.length && server->offers_request != request)
                        flush(server);
                if (!server->offers.length)
                        peer_builder_init(&server->offers, server->buffer, PEER_OFFER, request,
                                          &fixed, sizeof(fixed));
                server->offers_request = request;
                if (!peer_add_offer(&server->offers, item, places, pieces, covers))
                        break;
                flush(server);
        }
        daemon_wake(server->daemon);
}

static void answer(struct served *served, const struct peer_offer_item *item,
                   const struct peer_place *places, const uint64_t *pieces,
                   const struct digest *covers)
{
        answer_to(served->ask->server, served->ask->request, item, places, pieces, covers);
}

/* Nobody waits for it any more. */
static void ask_free(struct served_ask *ask)
{
        struct peer_server *server = ask->server;

        if (server->next_ask == ask)
                server->next_ask = TAILQ_NEXT(ask, link);
        TAILQ_REMOVE(&server->asks, ask, link);
        free(ask->items);
        free(ask);
}

/* The ask may be gone when it returns. */
static void item_gone(struct served *served)
{
        struct served_ask *ask = served->ask;

        served->state = SERVED_GONE;
        ask->server->n_items--;
        ask->server->daemon->peers->serving.n_items--;
        if (!--ask->n_open)
                ask_free(ask);
}

/* Nothing is held for it. */
static void refuse(struct served *served, uint32_t status)
{
        const struct peer_offer_item item = {.index = served->index, .status = status};

        answer(served, &item, NULL, NULL, NULL);
        item_gone(served);
}

/* ---- holding ---- */

static void hold(struct served *served, struct host_copy *copy, enum served_state state)
{
        struct peer_server *server = served->ask->server;

        served->copy = copy;
        served->state = state;
        server->n_held++;
        server->held_bytes += copy->space_bytes;
        TAILQ_INSERT_TAIL(&server->held, served, link);
}

static void let_go(struct served *served)
{
        struct peer_server *server = served->ask->server;

        server->n_held--;
        server->held_bytes -= served->copy->space_bytes;
        TAILQ_REMOVE(&server->held, served, link);
        served->copy = NULL;
        daemon_wake(server->daemon);
}

static void lease(struct served *served)
{
        struct daemon *daemon = served->ask->server->daemon;

        host_copy_lease(&daemon->cache.copies, served->copy);
        daemon->peers->serving.leased_bytes += served->copy->space_bytes;
}

/* Ends the lease, and the hold. */
static void unlease(struct served *served)
{
        struct daemon *daemon = served->ask->server->daemon;
        struct host_copy *copy = served->copy;

        daemon->peers->serving.leased_bytes -= copy->space_bytes;
        let_go(served);
        host_copy_unlease(&daemon->cache.copies, copy);
}

/* ---- granting ---- */

static void on_reusable(void *user, struct rdma_grant *grant)
{
        struct served *served = user;

        (void)grant;
        unlease(served);
        item_gone(served);
}

/* Says all of the object but where it is. @ret_covers: lent by the index. */
static bool describe(struct served *served, struct peer_offer_item *ret_item,
                     const struct digest **ret_covers)
{
        struct cache *cache = &served->ask->server->daemon->cache;
        const struct host_copy *copy = served->copy;
        const struct index_object *object;
        const struct index_boundary *boundary;
        uint32_t n_covers = 0;

        /* Dropped or replaced meanwhile: what it was is not known any more. */
        if (copy->object == INDEX_NONE || !copy->checksums)
                return false;
        object = index_object_at(cache->index, copy->object);
        boundary = index_boundary_at(cache->index, object->boundary);
        *ret_item = (struct peer_offer_item){
                .index = served->index,
                .lease = served->lease,
                .boundary = boundary->digest,
                .bytes = copy->raw_bytes,
                .committed_ns = copy->committed_ns,
                .total = copy->checksums->total,
                .boundary_tokens = boundary->boundary_tokens,
                .n_pieces = copy->checksums->n_pieces,
        };
        memcpy(ret_item->writer_boot_id, copy->writer_boot_id, sizeof(copy->writer_boot_id));
        if (boundary->parent != INDEX_NONE)
                ret_item->parent = index_boundary_at(cache->index, boundary->parent)->digest;
        if (boundary->flags & INDEX_PARENT_UNKNOWN)
                ret_item->flags |= PEER_OFFER_PARENT_UNKNOWN;
        if (boundary->flags & INDEX_TOKENS_UNKNOWN)
                ret_item->boundary_tokens = 0;
        if (object->flags & INDEX_CROPPABLE) {
                ret_item->flags |= PEER_OFFER_CROPPABLE;
                *ret_covers = index_covers(cache->index, object, &n_covers);
        }
        ret_item->n_covers = n_covers;
        return true;
}

static void offer(struct served *served, const struct rdma_place *places)
{
        struct daemon *daemon = served->ask->server->daemon;
        struct peer_place told[PEER_PLACES_MAX];
        struct peer_offer_item item;
        const struct digest *covers = NULL;

        served->lease = ++daemon->peers->serving.last_lease;
        if (!describe(served, &item, &covers)) {
                const struct peer_offer_item missing = {.index = served->index,
                                                        .status = KVT_WIRE_MISS};

                answer(served, &missing, NULL, NULL, NULL);
                served->state = SERVED_RELEASED;
                rdma_grant_release(served->grant);
                return;
        }
        item.n_places = served->copy->n_extents;
        for (uint32_t i = 0; i < item.n_places; i++)
                told[i] =
                        (struct peer_place){places[i].address, places[i].length, places[i].key, 0};
        served->state = SERVED_OFFERED;
        served->offered_ns = uv_hrtime();
        daemon->metrics.peer_served_objects_total++;
        daemon->metrics.peer_served_bytes_total += item.bytes;
        answer(served, &item, told, served->copy->checksums->pieces, covers);
}

static void on_granted(void *user, struct rdma_grant *grant, enum rdma_result result,
                       const struct rdma_place *places)
{
        struct served *served = user;
        struct peer_offer_item item = {.index = served->index, .status = KVT_WIRE_IO_ERROR};

        (void)grant;
        if (served->state == SERVED_RELEASED)
                return;
        if (result == RDMA_RESULT_DONE) {
                offer(served, places);
                return;
        }
        if (result == RDMA_RESULT_UNSUPPORTED)
                item.status = KVT_WIRE_UNSUPPORTED;
        else if (result == RDMA_RESULT_FULL)
                item.status = KVT_WIRE_BUSY;
        served->state = SERVED_RELEASED;
        answer(served, &item, NULL, NULL, NULL);
}

/* Leased; nobody else has been told of it yet. */
static void refuse_leased(struct served *served, uint32_t status)
{
        unlease(served);
        refuse(served, status);
}

static void grant(struct served *served)
{
        struct peer_server *server = served->ask->server;
        struct rdma_extent extents[WIRE_EXTENTS_MAX];
        struct rdma_grant_options options = {
                .extents = extents,
                .n_extents = daemon_port_extents(server->daemon, served->copy, 0,
                                                 served->copy->raw_bytes, extents),
                .timeout_ns = GRANT_NS,
                .on_granted = on_granted,
                .on_reusable = on_reusable,
                .user = served,
        };
        int r = RDMA_E_INVALID;

        served->state = SERVED_GRANTING;
        if (options.n_extents == served->copy->n_extents)
                r = rdma_grant_new(&served->grant, remote_link_connection(server->remote),
                                   &options);
        if (r)
                refuse_leased(served, r == RDMA_E_FULL ? KVT_WIRE_BUSY : KVT_WIRE_IO_ERROR);
}

/* ---- finding ---- */

static void on_hashed(struct host_copy_waiter *waiter)
{
        struct served *served = (struct served *)waiter;

        if (served->copy->checksums)
                grant(served);
        else
                refuse_leased(served, KVT_WIRE_NO_MEMORY);
}

/* In host memory and held; leased now. */
static void serve_copy(struct served *served)
{
        struct daemon *daemon = served->ask->server->daemon;
        struct host_copy *copy = served->copy;

        if (!copy->n_leases &&
            daemon->cache.copies.leased_bytes + copy->space_bytes > daemon_lease_limit(daemon)) {
                let_go(served);
                refuse(served, KVT_WIRE_BUSY);
                return;
        }
        lease(served);
        if (copy->checksums) {
                grant(served);
                return;
        }
        served->state = SERVED_HASHING;
        if (transfer_hash(&daemon->cache, copy)) {
                refuse_leased(served, KVT_WIRE_NO_MEMORY);
                return;
        }
        served->waiter.on_ready = on_hashed;
        TAILQ_INSERT_TAIL(&copy->waiters, &served->waiter, link);
}

static void on_promoted(struct host_copy_waiter *waiter)
{
        struct served *served = (struct served *)waiter;
        struct host_copy *copy = served->copy;

        if (copy->state == HOST_COPY_READY) {
                serve_copy(served);
                return;
        }
        let_go(served);
        refuse(served, load_failure_status(copy->failure));
}

static void wait_for_promotion(struct served *served, struct host_copy *copy)
{
        hold(served, copy, SERVED_PROMOTING);
        served->waiter.on_ready = on_promoted;
        TAILQ_INSERT_TAIL(&copy->waiters, &served->waiter, link);
}

static void promote(struct served *served, struct index_object *object)
{
        struct host_copy *copy;
        uint32_t status = load_promote(&served->ask->server->daemon->cache, object, &copy);

        if (status)
                refuse(served, status);
        else
                wait_for_promotion(served, copy);
}

static struct index_object *find(const struct served *served)
{
        struct index *index = served->ask->server->daemon->cache.index;
        uint16_t layout = index_find_layout(index, served->key.domain, &served->key.layout);
        struct index_boundary *boundary =
                layout ? index_find_boundary(index, layout, &served->key.boundary) : NULL;

        return boundary ? index_find_serving(index, boundary, served->key.group, served->key.shard)
                        : NULL;
}

static void want(struct served *served)
{
        struct peer_serving *serving = &served->ask->server->daemon->peers->serving;

        if (!served->ask->deadline_ns) {
                refuse(served, KVT_WIRE_MISS);
                return;
        }
        served->state = SERVED_WANTED;
        RB_INSERT(served_tree, &serving->wanted, served);
        serving->n_wanted++;
}

static void unwant(struct served *served)
{
        struct peer_serving *serving = &served->ask->server->daemon->peers->serving;

        RB_REMOVE(served_tree, &serving->wanted, served);
        serving->n_wanted--;
}

static void look_at(struct served *served)
{
        struct cache *cache = &served->ask->server->daemon->cache;
        struct index_object *object = find(served);
        struct host_copy *arriving;

        if (!object) {
                want(served);
                return;
        }
        cache_touch(cache, object);
        if (object->host != INDEX_NONE) {
                hold(served, host_copy_at(&cache->copies, object->host), SERVED_FOUND);
                serve_copy(served);
                return;
        }
        arriving = transfer_arriving(cache, object);
        if (arriving)
                wait_for_promotion(served, arriving);
        else if (index_object_is_in(object, INDEX_NVME))
                promote(served, object);
        else
                refuse(served, KVT_WIRE_MISS);
}

/* ---- turns ---- */

static struct served *next_item(struct peer_server *server)
{
        struct served *served = TAILQ_FIRST(&server->found);
        struct served_ask *ask = server->next_ask;

        if (served) {
                TAILQ_REMOVE(&server->found, served, link);
                return served;
        }
        if (!ask)
                return NULL;
        served = &ask->items[ask->next++];
        if (ask->next == ask->n)
                server->next_ask = TAILQ_NEXT(ask, link);
        return served;
}

static bool may_go_on(const struct peer_server *server)
{
        return !server->is_closing && server->daemon->recovered && server->n_held < SERVE_OBJECTS &&
               server->held_bytes < SERVE_BYTES;
}

static void pump(struct peer_server *server)
{
        uint32_t steps = TURN_STEPS;
        struct served *served;

        for (; steps && may_go_on(server); steps--) {
                served = next_item(server);
                if (!served)
                        return;
                look_at(served);
        }
        if (!steps)
                daemon_wake(server->daemon);
}

void peer_serve_go_on(struct daemon *daemon)
{
        struct peer_server *server;

        LIST_FOREACH(server, &daemon->peers->serving.servers, link) {
                pump(server);
                flush(server);
        }
}

static void published(struct daemon *daemon, const struct object_key *key)
{
        struct peer_serving *serving = &daemon->peers->serving;
        struct served wanted = {.key = *key}, *found;

        while ((found = RB_NFIND(served_tree, &serving->wanted, &wanted)) &&
               object_key_equal(&found->key, key)) {
                unwant(found);
                found->state = SERVED_FOUND;
                TAILQ_INSERT_TAIL(&found->ask->server->found, found, link);
                daemon_wake(daemon);
        }
}

void peer_serve_published(struct daemon *daemon, const struct index_object *object)
{
        struct index *index = daemon->cache.index;
        const struct digest *covers = NULL;
        struct object_key key;
        uint32_t n_covers = 0;

        if (!daemon->peers->serving.n_wanted)
                return;
        index_key(index, object, &key);
        published(daemon, &key);
        if (object->flags & INDEX_CROPPABLE)
                covers = index_covers(index, object, &n_covers);
        for (uint32_t i = 0; i < n_covers; i++) {
                key.boundary = covers[i];
                published(daemon, &key);
        }
}

static void end_wanted(struct served_ask *ask, uint32_t status)
{
        ask->n_open++; /* so that it stays */
        ask->deadline_ns = 0;
        for (uint32_t i = 0; i < ask->n; i++) {
                if (ask->items[i].state != SERVED_WANTED)
                        continue;
                unwant(&ask->items[i]);
                refuse(&ask->items[i], status);
        }
        if (!--ask->n_open)
                ask_free(ask);
}

void peer_serve_expire(struct daemon *daemon, uint64_t now_ns)
{
        struct peer_server *server;

        LIST_FOREACH(server, &daemon->peers->serving.servers, link) {
                struct served_ask *ask, *next;
                const struct served *oldest = TAILQ_FIRST(&server->held);

                for (ask = TAILQ_FIRST(&server->asks); ask; ask = next) {
                        next = TAILQ_NEXT(ask, link);
                        if (ask->deadline_ns && now_ns >= ask->deadline_ns)
                                end_wanted(ask, KVT_WIRE_TIMEOUT);
                }
                if (oldest && oldest->state == SERVED_OFFERED && !server->is_closing &&
                    now_ns > oldest->offered_ns + OFFER_NS) {
                        log_warning("peer_slow", "peer=%s detail=\"an offer of %u s is not read\"",
                                    server->address, (unsigned)(OFFER_NS / 1000000000));
                        server->is_closing = true;
                        remote_link_close(server->remote);
                }
        }
}

/* ---- what the reader sends ---- */

static void add_items(struct served_ask *ask, const struct peer_ask *message)
{
        struct peer_serving *serving = &ask->server->daemon->peers->serving;
        const struct peer_boundary *boundary;
        const struct peer_cell *cells;
        struct peer_cursor cursor;

        peer_cursor_init(&cursor, message);
        while (!peer_next_boundary(&cursor, &boundary, &cells)) {
                for (uint32_t i = 0; i < boundary->n_cells; i++) {
                        struct served *served = &ask->items[ask->n];

                        served->ask = ask;
                        served->index = ask->n++;
                        served->serial = ++serving->last_lease;
                        served->key = (struct object_key){.layout = message->layout,
                                                          .boundary = boundary->boundary,
                                                          .domain = DOMAIN_DEFAULT,
                                                          .group = cells[i].group,
                                                          .shard = cells[i].shard};
                }
        }
        ask->n_open = ask->n;
        serving->n_items += ask->n;
        ask->server->n_items += ask->n;
}

static uint32_t count_cells(const struct peer_ask *message)
{
        const struct peer_boundary *boundary;
        const struct peer_cell *cells;
        struct peer_cursor cursor;
        uint32_t n = 0;

        peer_cursor_init(&cursor, message);
        while (!peer_next_boundary(&cursor, &boundary, &cells))
                n += boundary->n_cells;
        return n;
}

static void refuse_ask(struct peer_server *server, uint64_t request, uint32_t n)
{
        for (uint32_t i = 0; i < n && !server->is_closing; i++) {
                const struct peer_offer_item busy = {.index = i, .status = KVT_WIRE_BUSY};

                answer_to(server, request, &busy, NULL, NULL, NULL);
        }
}

static bool has_room(const struct peer_server *server, uint32_t n)
{
        return server->n_items + n <= READER_ITEMS_MAX &&
               server->daemon->peers->serving.n_items + n <= ITEMS_MAX;
}

/* All of it is BUSY when there are too many, or no memory for them. */
static void take_ask(struct peer_server *server, const struct peer_ask *message)
{
        struct served_ask *ask = calloc(1, sizeof(*ask));
        uint32_t n = count_cells(message);
        uint64_t now_ns = uv_hrtime();

        if (ask && has_room(server, n))
                ask->items = calloc(n, sizeof(*ask->items));
        if (!ask || !ask->items) {
                free(ask);
                refuse_ask(server, message->header.request, n);
                return;
        }
        ask->server = server;
        ask->request = message->header.request;
        if (message->timeout_ns)
                ask->deadline_ns = message->timeout_ns < UINT64_MAX - now_ns
                                           ? now_ns + message->timeout_ns
                                           : UINT64_MAX;
        add_items(ask, message);
        TAILQ_INSERT_TAIL(&server->asks, ask, link);
        if (!server->next_ask)
                server->next_ask = ask;
        daemon_wake(server->daemon);
}

static bool take_releases(struct peer_server *server, const struct peer_header *message)
{
        struct peer_cursor cursor;
        uint64_t id;

        peer_cursor_init(&cursor, message);
        while (!peer_next_lease(&cursor, &id)) {
                struct served *served;

                TAILQ_FOREACH(served, &server->held, link)
                        if (served->lease == id && served->state == SERVED_OFFERED)
                                break;
                if (!served)
                        return false;
                served->state = SERVED_RELEASED;
                rdma_grant_release(served->grant);
        }
        return true;
}

/* What has not been looked at, and what is waited for, is answered. */
static void take_cancel(struct peer_server *server, uint64_t request)
{
        struct served_ask *ask;
        struct served *served, *next;

        TAILQ_FOREACH(ask, &server->asks, link)
                if (ask->request == request)
                        break;
        if (!ask)
                return;
        ask->n_open++; /* so that it stays */
        for (served = TAILQ_FIRST(&server->found); served; served = next) {
                next = TAILQ_NEXT(served, link);
                if (served->ask != ask)
                        continue;
                TAILQ_REMOVE(&server->found, served, link);
                refuse(served, KVT_WIRE_CANCELLED);
        }
        if (server->next_ask == ask)
                server->next_ask = TAILQ_NEXT(ask, link);
        while (ask->next < ask->n)
                refuse(&ask->items[ask->next++], KVT_WIRE_CANCELLED);
        ask->n_open--;
        end_wanted(ask, KVT_WIRE_CANCELLED);
}

static void breaks_rules(struct peer_server *server, const char *why)
{
        log_warning("peer_protocol", "peer=%s detail=%s", server->address, log_quoted(why).text);
        server->is_closing = true;
        remote_link_close(server->remote);
}

static void take_find(struct peer_server *server, const void *packet)
{
        _Alignas(8) uint8_t answer[WIRE_MESSAGE_MAX];
        uint32_t length = finding_answer(server->daemon, packet, answer);

        if (remote_link_queued(server->remote) > ANSWERS_MAX)
                breaks_rules(server, "its answers are not read");
        else if (remote_link_send(server->remote, answer, length))
                remote_link_close(server->remote);
}

static void on_message(void *user, struct remote_link *link, const void *packet, size_t length)
{
        struct peer_server *server = user;
        const struct peer_header *header = packet;
        struct why why = {""};

        (void)link;
        if (server->is_closing)
                return;
        if (peer_message_check(packet, length, &why)) {
                breaks_rules(server, why.text);
                return;
        }
        switch (header->kind) {
        case PEER_ASK:
                take_ask(server, packet);
                return;
        case PEER_RELEASE:
                if (!take_releases(server, header))
                        breaks_rules(server, "a release of what is not leased");
                return;
        case PEER_CANCEL:
                take_cancel(server, header->request);
                return;
        case PEER_FIND:
                take_find(server, packet);
                return;
        default:
                breaks_rules(server, "an answer from the asking side");
        }
}

/* ---- the connection ---- */

/* Grants have ended with the connection; what is left waits for something of ours. */
static void drop_item(struct served *served)
{
        if (served->state == SERVED_WANTED)
                unwant(served);
        if (served->state == SERVED_PROMOTING || served->state == SERVED_HASHING)
                TAILQ_REMOVE(&served->copy->waiters, &served->waiter, link);
        assert(served->state < SERVED_GRANTING || served->state == SERVED_GONE);
        if (served->state == SERVED_HASHING)
                unlease(served);
        else if (served->state == SERVED_PROMOTING)
                let_go(served);
}

static void on_closed(void *user, struct remote_link *link, enum rdma_end end, const char *why)
{
        struct peer_server *server = user;
        struct daemon *daemon = server->daemon;
        struct served_ask *ask;

        (void)link;
        log_info("peer_reader_gone", "peer=%s end=%s detail=%s", server->address,
                 rdma_end_name(end), log_quoted(why).text);
        server->is_closing = true;
        while ((ask = TAILQ_FIRST(&server->asks))) {
                TAILQ_REMOVE(&server->asks, ask, link);
                for (uint32_t i = 0; i < ask->n; i++)
                        drop_item(&ask->items[i]);
                daemon->peers->serving.n_items -= ask->n_open;
                free(ask->items);
                free(ask);
        }
        assert(!server->n_held);
        LIST_REMOVE(server, link);
        free(server);
        daemon_port_link_gone(daemon);
}

void peer_serve_accept(struct daemon *daemon, struct remote_link *link, const void *packet,
                       size_t length)
{
        static const struct remote_link_events events = {
                .on_message = on_message,
                .on_closed = on_closed,
        };
        struct peer_server *server = calloc(1, sizeof(*server));

        if (!server || daemon->peers->is_stopping) {
                free(server);
                remote_link_close(link);
                return;
        }
        server->daemon = daemon;
        server->remote = link;
        TAILQ_INIT(&server->asks);
        TAILQ_INIT(&server->found);
        TAILQ_INIT(&server->held);
        rdma_connection_peer_address(remote_link_connection(link), server->address);
        LIST_INSERT_HEAD(&daemon->peers->serving.servers, server, link);
        remote_link_hand_over(link, &events, server);
        daemon_port_link_opened(daemon);
        log_info("peer_reader", "peer=%s", server->address);
        on_message(server, link, packet, length);
}

void peer_serve_stop(struct daemon *daemon)
{
        struct peer_server *server;

        LIST_FOREACH(server, &daemon->peers->serving.servers, link) {
                server->is_closing = true;
                remote_link_close(server->remote);
        }
}
