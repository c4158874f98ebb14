// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/acquire.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/daemon.h"
#include "daemon/layout_table.h"
#include "daemon/layout_use.h"
#include "daemon/load.h"
#include "daemon/peer_read.h"

/* Keys that are looked up together. */
#define FIND_WINDOW 64u

/* What one session may have waiting: each turn of the loop looks at all of them. */
#define WAITING_MAX      256u
#define WAITING_KEYS_MAX WIRE_ITEMS_MAX

/* What an acquire asks for, held against what there is. */
struct plan {
        uint32_t n;          /* leading items that exist, at most those asked for */
        uint32_t n_resident; /* leading items in host memory */
        uint32_t n_fitting;  /* leading items within the limits */
        struct planned *items;
        struct page_range *ranges; /* of the items that name pages */
        uint32_t *slots;           /* hash table of items (index + 1) by object */
        uint32_t slot_mask;
};

static struct index_object *find_key(struct session *session, const struct wire_key_item *key)
{
        struct cache *cache = &session->daemon->cache;
        struct index_boundary *boundary =
                index_find_boundary(cache->index, session->layout, &key->boundary);

        return boundary ? index_find_serving(cache->index, boundary, key->group, key->shard) : NULL;
}

/*
 * Finds objects and copies, a window at a time: at a million objects nearly every access
 * is a cache miss, and those of a window overlap.
 */
static void find_window(struct session *session, const struct assembly *acquire,
                        struct planned *items, uint32_t first, uint32_t n)
{
        struct cache *cache = &session->daemon->cache;

        index_prefetch(cache->index, session->layout, &acquire->keys[first].boundary,
                       sizeof(acquire->keys[0]), n, false);
        for (uint32_t i = first; i < first + n; i++) {
                items[i].key = acquire->keys[i];
                items[i].object = find_key(session, &acquire->keys[i]);
                if (items[i].object && items[i].object->host != INDEX_NONE)
                        host_copy_prefetch_id(&cache->copies, items[i].object->host);
        }
        for (uint32_t i = first; i < first + n; i++) {
                const struct index_object *object = items[i].object;

                if (!object)
                        continue;
                if (object->host != INDEX_NONE)
                        items[i].copy = host_copy_at(&cache->copies, object->host);
                else
                        items[i].copy = transfer_arriving(cache, object);
                placement_prefetch_touch(cache->index,
                                         index_boundary_at(cache->index, object->boundary));
        }
}

/* Takes over which pages the items name, in bytes. */
static void list_pages(const struct session *session, const struct assembly *acquire,
                       struct plan *plan)
{
        const struct wire_page_run *runs = acquire->runs;
        struct page_range *ranges = plan->ranges;

        for (uint32_t i = 0; acquire->n_runs && i < acquire->n; i++) {
                const struct wire_key_item *key = &acquire->keys[i];

                pages_fill(session->description, key, runs, ranges);
                plan->items[i].pages = (struct pages){ranges, key->n_runs};
                runs += key->n_runs;
                ranges += key->n_runs;
        }
}

/*
 * Pages of an object that is not in host memory, nor on its way there: the pieces that
 * they touch come into a copy for this item alone, which is nobody's twin.
 */
static void plan_pieces(struct planned *planned)
{
        planned->is_private = true;
        planned->pieces = pages_pieces(&planned->pages, planned->object->raw_bytes);
}

/* Host memory that the item's copy takes. */
static uint64_t planned_space(const struct planned *planned)
{
        uint64_t raw_bytes = planned->object->raw_bytes;

        return host_copy_space(planned->is_private ? piece_set_bytes(&planned->pieces, raw_bytes)
                                                   : raw_bytes);
}

/* Blobs serve many boundaries: several items may mean one object. */
static uint32_t find_twin(const struct plan *plan, uint32_t i)
{
        const struct index_object *object = plan->items[i].object;
        uint32_t at = (uint32_t)(((uintptr_t)object >> 3) * 2654435769u) & plan->slot_mask;

        while (plan->slots[at]) {
                uint32_t other = plan->slots[at] - 1;

                if (plan->items[other].object == object)
                        return other;
                at = (at + 1) & plan->slot_mask;
        }
        if (plan->items[i].pages.n && !plan->items[i].copy)
                plan_pieces(&plan->items[i]);
        else
                plan->slots[at] = i + 1;
        return i;
}

static uint64_t most_that_fits(const struct daemon *daemon)
{
        uint64_t limit = daemon_lease_limit_final(daemon);
        uint64_t bytes_max = daemon->config.session.bytes_max;

        return bytes_max && bytes_max < limit ? bytes_max : limit;
}

static void look_up(struct session *session, const struct assembly *acquire, struct plan *plan)
{
        uint64_t limit = most_that_fits(session->daemon), bytes = 0;
        bool all_resident = true;

        for (uint32_t i = 0; i < acquire->n; i++) {
                struct planned *planned = &plan->items[i];

                if (i % FIND_WINDOW == 0)
                        find_window(session, acquire, plan->items, i,
                                    acquire->n - i < FIND_WINDOW ? acquire->n - i : FIND_WINDOW);
                if (!planned->object || !pages_fit(&planned->pages, planned->object->raw_bytes))
                        break;
                planned->twin = find_twin(plan, i);
                if (planned->twin == i)
                        bytes += planned_space(planned);
                all_resident &= planned->object->host != INDEX_NONE;
                plan->n = i + 1;
                plan->n_resident += all_resident;
                plan->n_fitting += bytes <= limit && i < session->daemon->config.session.leases_max;
        }
}

/* Bytes that the plan's items have, each object once; and those nobody leases yet. */
static uint64_t plan_bytes(const struct plan *plan, uint64_t *ret_new_bytes)
{
        uint64_t bytes = 0;

        *ret_new_bytes = 0;
        for (uint32_t i = 0; i < plan->n; i++) {
                const struct planned *planned = &plan->items[i];
                uint64_t space = planned_space(planned);

                if (planned->twin != i)
                        continue;
                bytes += space;
                if (!planned->copy || !planned->copy->n_leases)
                        *ret_new_bytes += space;
        }
        return bytes;
}

/* KVT_WIRE_OK, or why the plan is not to be granted. */
static uint32_t judge(struct session *session, const struct assembly *acquire, struct plan *plan)
{
        const struct config *config = &session->daemon->config;
        uint32_t flags = acquire->batch.flags;
        uint64_t bytes, new_bytes;

        if (!session->daemon->recovered)
                return KVT_WIRE_BUSY;
        if (plan->n < acquire->n && (!(flags & WIRE_ACQUIRE_PARTIAL) || !plan->n))
                return KVT_WIRE_MISS;
        if (flags & WIRE_ACQUIRE_RESIDENT && plan->n_resident < plan->n) {
                if (!(flags & WIRE_ACQUIRE_PARTIAL) || !plan->n_resident)
                        return KVT_WIRE_BUSY;
                plan->n = plan->n_resident;
        }
        if (plan->n_fitting < plan->n)
                return KVT_WIRE_TOO_LARGE;
        bytes = plan_bytes(plan, &new_bytes);
        if (session->n_leases + plan->n > config->session.leases_max)
                return KVT_WIRE_REFUSED;
        if (config->session.bytes_max && session->leased_bytes + bytes > config->session.bytes_max)
                return KVT_WIRE_REFUSED;
        if (session->daemon->cache.copies.leased_bytes + new_bytes >
            daemon_lease_limit(session->daemon))
                return KVT_WIRE_BUSY;
        return KVT_WIRE_OK;
}

static int make_room(struct session *session, struct plan *plan, uint32_t i)
{
        struct cache *cache = &session->daemon->cache;
        struct planned *planned = &plan->items[i];
        uint64_t raw_bytes = planned->object->raw_bytes;
        struct object_key key;

        if (planned->twin != i) {
                planned->copy = plan->items[planned->twin].copy;
                planned->object = NULL;
                host_copy_use(planned->copy);
                return 0;
        }
        index_key(cache->index, planned->object, &key);
        if (planned->is_private) {
                pages_pack(&planned->pages, &planned->pieces, raw_bytes);
                raw_bytes = piece_set_bytes(&planned->pieces, raw_bytes);
        }
        return cache_new_copy(cache, &key, raw_bytes, HOST_COPY_ARRIVING, UINT32_MAX, false,
                              &planned->copy);
}

/* Ends the plan's own holds on the first @n items. */
static void let_go(struct session *session, struct plan *plan, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                host_copy_unuse(&session->daemon->cache.copies, plan->items[i].copy);
}

/*
 * Holds what is in host memory first, so that making room for the rest cannot evict it.
 * 0, CACHE_E_BUSY or -ENOMEM: then nothing is held.
 */
static int hold(struct session *session, struct plan *plan)
{
        uint32_t n_held = 0;
        int r = 0;

        for (uint32_t i = 0; i < plan->n; i++) {
                if (!plan->items[i].copy)
                        continue;
                host_copy_use(plan->items[i].copy);
                plan->items[i].object = NULL;
        }
        for (uint32_t i = 0; i < plan->n && !r; i++) {
                n_held = i + 1;
                if (!plan->items[i].copy)
                        r = make_room(session, plan, i);
        }
        if (!r)
                return 0;
        /* Items behind the failed one hold a use only where a copy was there before. */
        let_go(session, plan, n_held - 1);
        for (uint32_t i = n_held; i < plan->n; i++)
                if (plan->items[i].copy)
                        host_copy_unuse(&session->daemon->cache.copies, plan->items[i].copy);
        return r == CACHE_E_BUSY ? CACHE_E_BUSY : -ENOMEM;
}

static void start_promotions(struct session *session, struct plan *plan)
{
        struct cache *cache = &session->daemon->cache;

        for (uint32_t i = 0; i < plan->n; i++) {
                struct planned *planned = &plan->items[i];
                int r;

                if (!planned->object)
                        continue;
                r = transfer_up(cache, planned->object, planned->copy,
                                planned->is_private ? &planned->pieces : NULL);
                planned->object = NULL;
                if (r) {
                        planned->copy->state = HOST_COPY_FAILED;
                        planned->copy->failure = r;
                }
        }
}

/* From which it comes up. */
static enum metrics_tier tier_of(const struct index_object *object)
{
        return object->place.claim || !(object->flags & INDEX_REMOTE_HERE) ? METRICS_NVME
                                                                           : METRICS_REMOTE;
}

static void count_hits(struct session *session, const struct plan *plan)
{
        struct metrics *metrics = &session->daemon->metrics;
        struct layout_entry *layout =
                index_layout_at(session->daemon->cache.index, session->layout);

        for (uint32_t i = 0; i < plan->n; i++) {
                const struct planned *planned = &plan->items[i];
                struct layout_group_use *use = layout_use_group(layout, planned->key.group);
                bool is_here = planned->copy && planned->copy->state == HOST_COPY_READY;

                metrics->hits_total[is_here ? METRICS_HOST : tier_of(planned->object)]++;
                if (use)
                        use->hits++;
                metrics->page_loads_total += planned->pages.n > 0;
                metrics->page_loads_asked_bytes_total += pages_bytes(&planned->pages);
        }
}

static void touch_all(struct session *session, const struct plan *plan)
{
        /* Deepest first, so that the root ends newest. */
        for (uint32_t i = plan->n; i-- > 0;)
                cache_touch(&session->daemon->cache, plan->items[i].object);
}

/*
 * A grant of what other sessions can adopt: whole objects, not pages, which are for who
 * asked alone. NULL when there is nothing. 0 or a negative errno.
 */
static int grant_members(struct session *session, const struct plan *plan, struct grant **ret_grant)
{
        struct leases *leases = &session->daemon->leases;
        struct grant *grant;
        uint32_t n = 0;
        int r;

        for (uint32_t i = 0; i < plan->n; i++)
                n += !plan->items[i].pages.n;
        *ret_grant = NULL;
        if (!n)
                return 0;
        r = grant_new(leases, session->engine_id, session->domain, session->layout, n, &grant);
        if (r)
                return r;
        for (uint32_t i = 0; i < plan->n; i++) {
                const struct planned *planned = &plan->items[i];

                if (!planned->pages.n)
                        grant_add_member(leases, grant, planned->copy, &planned->key.boundary,
                                         planned->key.group, planned->key.shard);
        }
        *ret_grant = grant;
        return 0;
}

/* The plan's copies are held. 0, or a negative errno: then nothing is leased. */
static int grant_held(struct session *session, const struct assembly *acquire, struct plan *plan)
{
        struct daemon *daemon = session->daemon;
        struct load_grant granted = {
                .request = acquire->request,
                .planned = plan->items,
                .n = plan->n,
                .n_resident = plan->n_resident,
                .ranges = plan->ranges,
                .with_checksums = acquire->batch.flags & WIRE_ACQUIRE_CHECKSUMS,
                .operation = METRICS_ACQUIRE,
        };
        int r = grant_members(session, plan, &granted.grant);

        if (r)
                return r;
        start_promotions(session, plan);
        r = load_grant(session, &granted);
        if (!r)
                plan->ranges = NULL;
        else if (granted.grant)
                grant_free_unused(&daemon->leases, granted.grant);
        return r;
}

static uint32_t grant_plan(struct session *session, const struct assembly *acquire,
                           struct plan *plan)
{
        int r = hold(session, plan);

        if (r)
                return r == CACHE_E_BUSY ? KVT_WIRE_BUSY : KVT_WIRE_NO_MEMORY;
        r = grant_held(session, acquire, plan);
        let_go(session, plan, plan->n);
        return r ? KVT_WIRE_NO_MEMORY : KVT_WIRE_OK;
}

static void refuse(struct session *session, const struct assembly *acquire, const struct plan *plan,
                   uint32_t status)
{
        struct answer answer;

        load_decide(session, acquire->request,
                    &(struct load_decision){.status = status,
                                            .n_resident = plan->n_resident,
                                            .n_fitting = plan->n_fitting});
        answer_begin(&answer, session, acquire->request);
        for (uint32_t i = 0; i < acquire->n; i++) {
                /* Behind the first missing one nothing was looked at. */
                uint32_t item = i < plan->n ? status : KVT_WIRE_MISS;

                session->daemon->metrics.operation_objects_total[METRICS_ACQUIRE][item]++;
                answer_status(&answer, i, item);
        }
        answer_end(&answer, false);
        if (status == KVT_WIRE_MISS) {
                session->daemon->metrics.misses_total += acquire->n - plan->n;
                session->daemon->metrics.match_hint_refused_total++;
        }
}

/* A power of two, at most half of it in use. */
static uint32_t n_slots_for(uint32_t n)
{
        uint32_t n_slots = 2;

        while (n_slots < 2 * n)
                n_slots *= 2;
        return n_slots;
}

/* Decides an acquire and answers it. */
static void decide(struct session *session, const struct assembly *acquire)
{
        uint32_t n_slots = n_slots_for(acquire->n);
        _cleanup_free_ struct planned *items = calloc(acquire->n, sizeof(*items));
        _cleanup_free_ uint32_t *slots = calloc(n_slots, sizeof(*slots));
        struct plan plan = {.items = items, .slots = slots, .slot_mask = n_slots - 1};
        uint32_t status = KVT_WIRE_NO_MEMORY;

        if (acquire->n_runs)
                plan.ranges = calloc(acquire->n_runs, sizeof(*plan.ranges));
        if (!acquire->n) {
                status = KVT_WIRE_INVALID;
        } else if (items && slots && (plan.ranges || !acquire->n_runs)) {
                list_pages(session, acquire, &plan);
                look_up(session, acquire, &plan);
                status = judge(session, acquire, &plan);
        }
        if (!status) {
                count_hits(session, &plan);
                touch_all(session, &plan);
                status = grant_plan(session, acquire, &plan);
        }
        if (status)
                refuse(session, acquire, &plan, status);
        free(plan.ranges);
}

/* ---- waiting ---- */

static bool is_reserved(struct session *session, const struct wire_key_item *key)
{
        return lease_is_reserved(&session->daemon->leases, session->layout, &key->boundary,
                                 key->group, key->shard) ||
               peer_reads_expect(session->daemon, session->layout, &key->boundary, key->group,
                                 key->shard);
}

/* Goes on to the first item that is missing. False: there is none, or nobody writes it. */
static bool still_waits(struct waiting_acquire *waiting)
{
        const struct assembly *acquire = waiting->acquire;

        while (waiting->n_found < acquire->n &&
               find_key(waiting->session, &acquire->keys[waiting->n_found]))
                waiting->n_found++;
        return waiting->n_found < acquire->n &&
               is_reserved(waiting->session, &acquire->keys[waiting->n_found]);
}

/* Is every item that is missing, of which there is one at least, being written now? */
static bool may_wait(struct waiting_acquire *waiting)
{
        const struct assembly *acquire = waiting->acquire;

        if (!still_waits(waiting))
                return false;
        for (uint32_t i = waiting->n_found + 1; i < acquire->n; i++)
                if (!is_reserved(waiting->session, &acquire->keys[i]) &&
                    !find_key(waiting->session, &acquire->keys[i]))
                        return false;
        return true;
}

/* What it counts for against WAITING_KEYS_MAX. */
static uint32_t weight(const struct assembly *acquire)
{
        return acquire->n + acquire->n_runs;
}

/* OK: it is to be decided now. PENDING: it waits, and is taken over. Else it is refused. */
static uint32_t start_waiting(struct session *session, struct assembly *acquire)
{
        struct waiting_acquire *waiting, first = {.session = session, .acquire = acquire};
        uint64_t now_ns = uv_hrtime();

        if (!(acquire->batch.flags & WIRE_ACQUIRE_WAIT) || !acquire->batch.timeout_ns ||
            !may_wait(&first))
                return KVT_WIRE_OK;
        if (session->n_waiting >= WAITING_MAX ||
            session->n_waiting_keys + weight(acquire) > WAITING_KEYS_MAX)
                return KVT_WIRE_REFUSED;
        waiting = malloc(sizeof(*waiting));
        if (!waiting)
                return KVT_WIRE_NO_MEMORY;
        *waiting = first;
        waiting->seen = session->daemon->n_reservations_ended;
        waiting->deadline_ns = now_ns + acquire->batch.timeout_ns;
        if (waiting->deadline_ns < now_ns)
                waiting->deadline_ns = UINT64_MAX;
        TAILQ_INSERT_TAIL(&session->waiting, waiting, link);
        session->n_waiting++;
        session->n_waiting_keys += weight(acquire);
        session->daemon->n_waiting++;
        return KVT_WIRE_PENDING;
}

static uint32_t check_pages(const struct session *session, const struct assembly *acquire)
{
        const struct wire_page_run *runs = acquire->runs;
        uint32_t status = KVT_WIRE_OK;

        for (uint32_t i = 0; acquire->n_runs && !status && i < acquire->n; i++) {
                const struct wire_key_item *key = &acquire->keys[i];

                if (key->n_runs)
                        status = pages_check(session->description, key, runs);
                runs += key->n_runs;
        }
        return status;
}

void acquire_request(struct session *session, const struct wire_batch *batch)
{
        struct assembly *acquire;
        uint32_t status;

        if (!assembly_add(session, batch, &acquire))
                return;
        status = session->no_loads ? KVT_WIRE_MISS : check_pages(session, acquire);
        if (!status)
                status = start_waiting(session, acquire);
        if (status == KVT_WIRE_PENDING) {
                load_decide(session, acquire->request, &(struct load_decision){.status = status});
                return;
        }
        if (status)
                load_refuse(session, acquire->request, status);
        else
                decide(session, acquire);
        assembly_free(acquire);
}

void acquires_reservation_ended(struct daemon *daemon)
{
        daemon->n_reservations_ended++;
        if (daemon->n_waiting)
                daemon_wake(daemon);
}

static void waiting_free(struct waiting_acquire *waiting)
{
        struct session *session = waiting->session;

        TAILQ_REMOVE(&session->waiting, waiting, link);
        session->n_waiting--;
        session->n_waiting_keys -= weight(waiting->acquire);
        session->daemon->n_waiting--;
        assembly_free(waiting->acquire);
        free(waiting);
}

static void retry_one(struct waiting_acquire *waiting, uint64_t now_ns)
{
        struct session *session = waiting->session;
        bool late = now_ns >= waiting->deadline_ns;

        if (waiting->seen == session->daemon->n_reservations_ended && !late)
                return;
        waiting->seen = session->daemon->n_reservations_ended;
        if (still_waits(waiting) && !late)
                return;
        if (late && waiting->n_found < waiting->acquire->n)
                load_refuse(session, waiting->acquire->request, KVT_WIRE_TIMEOUT);
        else
                decide(session, waiting->acquire);
        waiting_free(waiting);
}

void acquires_retry(struct daemon *daemon)
{
        uint64_t now_ns = daemon->n_waiting ? uv_hrtime() : 0;
        struct session *session;

        if (!daemon->n_waiting)
                return;
        TAILQ_FOREACH(session, &daemon->sessions, link) {
                struct waiting_acquire *waiting, *next;

                for (waiting = TAILQ_FIRST(&session->waiting); waiting; waiting = next) {
                        next = TAILQ_NEXT(waiting, link);
                        retry_one(waiting, now_ns);
                }
        }
}

void acquire_cancel_waiting(struct session *session, uint64_t request)
{
        struct waiting_acquire *waiting;

        TAILQ_FOREACH(waiting, &session->waiting, link) {
                if (waiting->acquire->request != request)
                        continue;
                load_refuse(session, request, KVT_WIRE_CANCELLED);
                waiting_free(waiting);
                return;
        }
}

void acquires_hang_up(struct session *session)
{
        struct waiting_acquire *waiting;

        while ((waiting = TAILQ_FIRST(&session->waiting)))
                waiting_free(waiting);
}
