// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/daemon.h"
#include "daemon/load.h"
#include "daemon/peers.h"
#include "daemon/prefetch.h"

/* On their way at a time: enough for a fast device, little against what acquires may want. */
#define MOVING_BYTES_MAX (UINT64_C(64) << 20)
/* Objects looked at in one turn of the loop. */
#define TURN_STEPS 4096u
/* What may be under way: of one session, and in all, those of sessions that are gone included. */
#define SESSION_ITEMS_MAX WIRE_ITEMS_MAX
#define ITEMS_MAX         (1u << 20)

struct prefetch_item {
        struct host_copy_waiter waiter;
        struct prefetch *prefetch;
        struct host_copy *copy; /* that is waited for; else NULL */
        struct wire_key_item key;
        struct peer_fetch *fetch; /* that brings it, while it does; else NULL */
        bool is_missing;          /* here: nothing is to be looked at any more */
        uint32_t status;          /* PENDING: not done */
        uint64_t bytes;           /* of moving_bytes */
};

struct prefetch {
        TAILQ_ENTRY(prefetch) link;
        struct daemon *daemon;
        struct session *session; /* NULL: gone, or answered */
        uint64_t request;
        uint16_t layout;
        uint64_t bytes;  /* of host memory, for what was found so far */
        uint32_t next;   /* item to be looked at */
        uint32_t n_left; /* items that are not done */
        uint32_t n;
        struct prefetch_item items[];
};

void prefetches_init(struct prefetches *prefetches)
{
        *prefetches = (struct prefetches){0};
        TAILQ_INIT(&prefetches->list);
}

static struct index_object *find(struct prefetch *prefetch, const struct wire_key_item *key)
{
        struct index *index = prefetch->daemon->cache.index;
        struct index_boundary *boundary =
                index_find_boundary(index, prefetch->layout, &key->boundary);

        return boundary ? index_find_serving(index, boundary, key->group, key->shard) : NULL;
}

/* ---- ends ---- */

static void answer_all(struct prefetch *prefetch)
{
        struct session *session = steal_ptr(prefetch->session);
        struct metrics *metrics = &prefetch->daemon->metrics;
        struct answer answer;

        session->n_prefetch_items -= prefetch->n;
        answer_begin(&answer, session, prefetch->request);
        for (uint32_t i = 0; i < prefetch->n; i++) {
                metrics->operation_objects_total[METRICS_PREFETCH][prefetch->items[i].status]++;
                answer_status(&answer, i, prefetch->items[i].status);
        }
        answer_end(&answer, false);
}

static void end_when_done(struct prefetch *prefetch)
{
        if (prefetch->n_left)
                return;
        if (prefetch->session)
                answer_all(prefetch);
        TAILQ_REMOVE(&prefetch->daemon->prefetches.list, prefetch, link);
        prefetch->daemon->prefetches.n_items -= prefetch->n;
        free(prefetch);
}

static void end_item(struct prefetch_item *item, uint32_t status)
{
        struct prefetches *prefetches = &item->prefetch->daemon->prefetches;

        if (item->status == KVT_WIRE_PENDING)
                item->status = status;
        item->copy = NULL;
        item->fetch = NULL;
        prefetches->moving_bytes -= item->bytes;
        item->bytes = 0;
        item->prefetch->n_left--;
}

static void cancel_fetch(struct prefetch *prefetch, struct peer_fetch *fetch)
{
        peer_fetch_cancel(fetch);
        for (uint32_t i = 0; i < prefetch->n; i++)
                if (prefetch->items[i].fetch == fetch)
                        end_item(&prefetch->items[i], KVT_WIRE_CANCELLED);
}

/* What has not begun to move never will; what moves is told to nobody. */
static void give_up(struct prefetch *prefetch)
{
        for (uint32_t i = 0; i < prefetch->n; i++)
                if (prefetch->items[i].fetch)
                        cancel_fetch(prefetch, prefetch->items[i].fetch);
        for (; prefetch->next < prefetch->n; prefetch->next++)
                if (!prefetch->items[prefetch->next].is_missing)
                        end_item(&prefetch->items[prefetch->next], KVT_WIRE_CANCELLED);
        for (uint32_t i = 0; i < prefetch->n; i++)
                if (prefetch->items[i].status == KVT_WIRE_PENDING)
                        prefetch->items[i].status = KVT_WIRE_CANCELLED;
}

/* ---- out of the tier below ---- */

static void on_ready(struct host_copy_waiter *waiter)
{
        struct prefetch_item *item = (struct prefetch_item *)waiter;
        struct prefetch *prefetch = item->prefetch;
        bool is_here = item->copy->state == HOST_COPY_READY;

        end_item(item, is_here ? KVT_WIRE_OK : load_failure_status(item->copy->failure));
        daemon_wake(prefetch->daemon);
        end_when_done(prefetch);
}

static void wait_for(struct prefetch_item *item, struct host_copy *copy)
{
        item->copy = copy;
        item->waiter.on_ready = on_ready;
        TAILQ_INSERT_TAIL(&copy->waiters, &item->waiter, link);
}

static void promote(struct prefetch_item *item, struct index_object *object)
{
        struct daemon *daemon = item->prefetch->daemon;
        struct host_copy *copy;
        uint32_t status = load_promote(&daemon->cache, object, &copy);

        if (status) {
                end_item(item, status);
                return;
        }
        item->bytes = copy->space_bytes;
        daemon->prefetches.moving_bytes += item->bytes;
        wait_for(item, copy);
}

static void look_at(struct prefetch_item *item)
{
        struct prefetch *prefetch = item->prefetch;
        struct daemon *daemon = prefetch->daemon;
        struct index_object *object = find(prefetch, &item->key);
        struct host_copy *arriving;

        if (item->is_missing)
                return;
        if (!object) {
                end_item(item, KVT_WIRE_MISS);
                return;
        }
        prefetch->bytes += host_copy_space(object->raw_bytes);
        if (prefetch->bytes > daemon_lease_limit_final(daemon)) {
                end_item(item, KVT_WIRE_TOO_LARGE);
                return;
        }
        if (object->host != INDEX_NONE) {
                end_item(item, KVT_WIRE_OK);
                return;
        }
        arriving = transfer_arriving(&daemon->cache, object);
        if (arriving)
                wait_for(item, arriving);
        else
                promote(item, object);
}

/* ---- from a peer ---- */

/* It came to be known meanwhile, but not in host memory. */
static bool is_below(const struct prefetch_item *item)
{
        const struct index_object *object = find(item->prefetch, &item->key);

        return object && object->host == INDEX_NONE;
}

/* Now, if its turn has passed. */
static void bring_up(struct prefetch_item *item)
{
        struct prefetch *prefetch = item->prefetch;

        item->is_missing = false;
        item->fetch = NULL;
        if (item < prefetch->items + prefetch->next)
                look_at(item);
        else
                daemon_wake(prefetch->daemon);
}

static void on_fetched(void *user, uint32_t status)
{
        struct prefetch_item *item = user;
        struct prefetch *prefetch = item->prefetch;

        if (status == KVT_WIRE_OK && is_below(item))
                bring_up(item);
        else
                end_item(item, status);
        end_when_done(prefetch);
}

/* Asks for the wants, or ends their items. */
static void ask(struct prefetch *prefetch, struct peer *peer, struct peer_fetch_options *options)
{
        while (options->n) {
                struct peer_fetch *fetch = NULL;
                uint32_t n = 1, status = KVT_WIRE_UNSUPPORTED;

                if (peer)
                        status = peer_fetch_start(peer, options, &n, &fetch);
                for (uint32_t i = 0; i < n; i++) {
                        struct prefetch_item *item = options->wants[i].user;

                        item->fetch = fetch;
                        if (status)
                                end_item(item, status);
                }
                options->wants += n;
                options->n -= n;
        }
        daemon_wake(prefetch->daemon);
}

/* What is not here at all is asked of the peer, before anything moves. */
static void ask_for_missing(struct prefetch *prefetch, const struct assembly *assembly)
{
        const struct session *session = prefetch->session;
        _cleanup_free_ struct peer_want *wants = calloc(prefetch->n, sizeof(*wants));
        struct peer_fetch_options options = {
                .layout = prefetch->layout,
                .description = session->description,
                .wants = wants,
                .timeout_ns = assembly->batch.timeout_ns,
                .on_end = on_fetched,
        };

        for (uint32_t i = 0; wants && i < prefetch->n; i++) {
                struct prefetch_item *item = &prefetch->items[i];

                if (find(prefetch, &item->key))
                        continue;
                item->is_missing = true;
                wants[options.n++] = (struct peer_want){item->key.boundary, item->key.group,
                                                        item->key.shard, item};
        }
        ask(prefetch, peers_find(prefetch->daemon, assembly->hint), &options);
}

/* ---- requests ---- */

/* Deepest first, so that the root ends newest. */
static void touch_all(struct prefetch *prefetch)
{
        for (uint32_t i = prefetch->n; i-- > 0;) {
                struct index_object *object = find(prefetch, &prefetch->items[i].key);

                if (object)
                        cache_touch(&prefetch->daemon->cache, object);
        }
}

static bool may_move(const struct daemon *daemon)
{
        return daemon->prefetches.moving_bytes < MOVING_BYTES_MAX;
}

void prefetches_go_on(struct daemon *daemon)
{
        struct prefetch *prefetch, *next;
        uint32_t steps = TURN_STEPS;

        for (prefetch = TAILQ_FIRST(&daemon->prefetches.list); prefetch; prefetch = next) {
                next = TAILQ_NEXT(prefetch, link);
                for (; prefetch->next < prefetch->n && steps && may_move(daemon); steps--)
                        look_at(&prefetch->items[prefetch->next++]);
                end_when_done(prefetch);
        }
        if (!steps)
                daemon_wake(daemon);
}

static bool may_begin(const struct session *session, uint32_t n)
{
        return session->n_prefetch_items + n <= SESSION_ITEMS_MAX &&
               session->daemon->prefetches.n_items + n <= ITEMS_MAX;
}

static struct prefetch *prefetch_new(struct session *session, const struct assembly *assembly)
{
        struct daemon *daemon = session->daemon;
        struct prefetch *prefetch =
                calloc(1, sizeof(*prefetch) + assembly->n * sizeof(prefetch->items[0]));

        if (!prefetch)
                return NULL;
        prefetch->daemon = daemon;
        prefetch->session = session;
        prefetch->request = assembly->request;
        prefetch->layout = session->layout;
        prefetch->n = prefetch->n_left = assembly->n;
        for (uint32_t i = 0; i < assembly->n; i++)
                prefetch->items[i] = (struct prefetch_item){
                        .prefetch = prefetch, .key = assembly->keys[i], .status = KVT_WIRE_PENDING};
        session->n_prefetch_items += assembly->n;
        daemon->prefetches.n_items += assembly->n;
        TAILQ_INSERT_TAIL(&daemon->prefetches.list, prefetch, link);
        return prefetch;
}

static void refuse(struct session *session, const struct assembly *assembly, uint32_t status)
{
        struct answer answer;

        answer_begin(&answer, session, assembly->request);
        for (uint32_t i = 0; i < assembly->n; i++)
                answer_status(&answer, i, status);
        session->daemon->metrics.operation_objects_total[METRICS_PREFETCH][status] += assembly->n;
        answer_end(&answer, false);
}

void prefetch_request(struct session *session, const struct wire_batch *batch)
{
        struct assembly *assembly;
        struct prefetch *prefetch = NULL;
        uint32_t status = KVT_WIRE_NO_MEMORY;

        if (!assembly_add(session, batch, &assembly))
                return;
        if (session->no_loads)
                status = KVT_WIRE_MISS;
        else if (!session->daemon->recovered)
                status = KVT_WIRE_BUSY;
        else if (!may_begin(session, assembly->n))
                status = KVT_WIRE_REFUSED;
        else
                prefetch = prefetch_new(session, assembly);
        if (prefetch) {
                touch_all(prefetch);
                if (*assembly->hint)
                        ask_for_missing(prefetch, assembly);
                daemon_wake(session->daemon);
        } else {
                refuse(session, assembly, status);
        }
        assembly_free(assembly);
}

void prefetch_cancel(struct session *session, uint64_t target)
{
        struct prefetch *prefetch;

        TAILQ_FOREACH(prefetch, &session->daemon->prefetches.list, link) {
                if (prefetch->session != session || prefetch->request != target)
                        continue;
                give_up(prefetch);
                answer_all(prefetch);
                end_when_done(prefetch);
                return;
        }
}

void prefetches_hang_up(struct session *session)
{
        struct prefetch *prefetch, *next;

        for (prefetch = TAILQ_FIRST(&session->daemon->prefetches.list); prefetch; prefetch = next) {
                next = TAILQ_NEXT(prefetch, link);
                if (prefetch->session != session)
                        continue;
                prefetch->session = NULL;
                give_up(prefetch);
                end_when_done(prefetch);
        }
        session->n_prefetch_items = 0;
}
