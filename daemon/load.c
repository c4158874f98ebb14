// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/answer.h"
#include "daemon/daemon.h"
#include "daemon/load.h"

/* ---- answers ---- */

static void count(struct session *session, enum metrics_operation operation, uint32_t status)
{
        session->daemon->metrics.operation_objects_total[operation][status]++;
}

static void send_granted(struct session *session, uint64_t request, uint32_t status,
                         uint32_t n_granted, uint32_t n_resident, uint32_t n_fitting,
                         const uint8_t *token)
{
        struct wire_granted granted = {
                .status = status,
                .n_granted = n_granted,
                .n_resident = n_resident,
                .n_fitting = n_fitting,
        };

        message_header_init(&granted.header, WIRE_GRANTED, request, session->id,
                            session->daemon->boot_id);
        granted.header.length = sizeof(granted);
        if (token)
                memcpy(granted.token, token, sizeof(granted.token));
        session_send(session, &granted, sizeof(granted), -1);
}

void load_refuse(struct session *session, uint64_t request, uint32_t status)
{
        struct answer answer;

        send_granted(session, request, status, 0, 0, 0, NULL);
        answer_begin(&answer, session, request);
        answer_end(&answer, false);
}

static uint32_t status_of_failure(int failure)
{
        switch (failure) {
        case TIER_E_CORRUPT:
                return KVT_WIRE_CORRUPT;
        case -EIO:
        case -ENOSPC:
        case -ENXIO:
        case -ENODEV:
                return KVT_WIRE_IO_ERROR;
        case -ENOMEM:
                return KVT_WIRE_NO_MEMORY;
        default:
                return failure < 0 ? KVT_WIRE_IO_ERROR : KVT_WIRE_MISS;
        }
}

static bool copy_is_complete(const struct host_copy *copy, bool with_checksums)
{
        return copy->state == HOST_COPY_READY && (!with_checksums || copy->checksums);
}

static void count_loaded(struct session *session, const struct host_copy *copy)
{
        session->loaded_objects++;
        session->loaded_bytes += copy->raw_bytes;
        session->daemon->metrics.loaded_bytes_total += copy->raw_bytes;
}

/* ---- objects on their way ---- */

static void load_free(struct load *load)
{
        TAILQ_REMOVE(&load->session->loads, load, link);
        free(load);
}

static void finish_item(struct load_item *item)
{
        struct load *load = item->load;
        struct session *session = load->session;
        struct lease *lease = item->lease;
        struct host_copy *copy = lease->copy;
        struct answer answer;

        lease->loading = NULL;
        item->lease = NULL;
        load->n_left--;
        answer_begin(&answer, session, load->request);
        if (copy->state == HOST_COPY_READY) {
                answer_copy(&answer, item->index, KVT_WIRE_OK, lease->id, copy, true,
                            load->with_checksums);
                count_loaded(session, copy);
        } else {
                answer_status(&answer, item->index, status_of_failure(copy->failure));
                lease_end(&session->daemon->leases, lease);
        }
        answer_end(&answer, load->n_left);
        if (!load->n_left)
                load_free(load);
}

static void on_copy_ready(struct host_copy_waiter *waiter)
{
        struct load_item *item = (struct load_item *)waiter;
        struct host_copy *copy = item->lease->copy;
        struct cache *cache = &item->load->session->daemon->cache;

        /* It has arrived, but its checksums were asked for and got lost for want of memory. */
        if (copy->state == HOST_COPY_READY && !copy_is_complete(copy, item->load->with_checksums) &&
            !transfer_hash(cache, copy)) {
                TAILQ_INSERT_TAIL(&copy->waiters, waiter, link);
                return;
        }
        finish_item(item);
}

static void wait_for_copy(struct load *load, struct lease *lease, uint32_t index)
{
        struct load_item *item = &load->items[load->n_items++];
        struct host_copy *copy = lease->copy;

        *item = (struct load_item){.load = load, .lease = lease, .index = index};
        item->waiter.on_ready = on_copy_ready;
        lease->loading = item;
        load->n_left++;
        TAILQ_INSERT_TAIL(&copy->waiters, &item->waiter, link);
}

/* ---- granting ---- */

/* One object of a load that is about to be granted. */
struct planned {
        struct host_copy *copy;
        struct index_object *object; /* to be promoted; NULL when the copy is there or arriving */
        struct wire_key_item key;
};

/*
 * Leases every planned copy for the session and answers. The copies are held by the
 * caller. 0 or -ENOMEM; then nothing is leased.
 */
static int grant(struct session *session, uint64_t request, const struct planned *planned,
                 uint32_t n, uint32_t n_resident, struct grant *grant, bool with_checksums,
                 enum metrics_operation operation)
{
        struct daemon *daemon = session->daemon;
        _cleanup_free_ struct lease **leases = calloc(n, sizeof(*leases));
        struct load *load = NULL;
        struct answer answer;
        uint32_t n_leases = 0;
        int r = 0;

        load = calloc(1, sizeof(*load) + n * sizeof(load->items[0]));
        if (!leases || !load)
                r = err_raise(-ENOMEM);
        for (; !r && n_leases < n; n_leases += !r)
                r = lease_new(&daemon->leases, session, LEASE_READ, planned[n_leases].copy,
                              &leases[n_leases]);
        if (r) {
                while (n_leases--)
                        lease_end(&daemon->leases, leases[n_leases]);
                free(load);
                return r;
        }
        for (uint32_t i = 0; i < n; i++)
                grant_attach_lease(grant, leases[i]);

        load->session = session;
        load->request = request;
        load->with_checksums = with_checksums;
        TAILQ_INSERT_TAIL(&session->loads, load, link);
        send_granted(session, request, KVT_WIRE_OK, n, n_resident, n, grant->token);
        answer_begin(&answer, session, request);
        for (uint32_t i = 0; i < n; i++) {
                struct host_copy *copy = planned[i].copy;

                if (copy->state == HOST_COPY_READY && !copy_is_complete(copy, with_checksums))
                        r = transfer_hash(&daemon->cache, copy);
                if (copy->state == HOST_COPY_FAILED) {
                        answer_status(&answer, i, status_of_failure(copy->failure));
                        lease_end(&daemon->leases, leases[i]);
                } else if (copy_is_complete(copy, with_checksums) || r) {
                        answer_copy(&answer, i, KVT_WIRE_OK, leases[i]->id, copy, true,
                                    with_checksums);
                        count_loaded(session, copy);
                } else {
                        answer_copy(&answer, i, KVT_WIRE_PENDING, leases[i]->id, copy, false,
                                    false);
                        wait_for_copy(load, leases[i], i);
                }
                count(session, operation, KVT_WIRE_OK);
                r = 0;
        }
        answer_end(&answer, load->n_left);
        if (!load->n_left)
                load_free(load);
        return 0;
}

/* ---- acquire ---- */

/* Keys that are looked up together. */
#define FIND_WINDOW 64u

/* What an acquire asks for, held against what there is. */
struct plan {
        uint32_t n;          /* leading items that exist, at most those asked for */
        uint32_t n_resident; /* leading items in host memory */
        uint32_t n_fitting;  /* leading items within the lease limit */
        uint64_t new_leased_bytes;
        struct planned *items;
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

static void look_up(struct session *session, const struct assembly *acquire, struct plan *plan)
{
        uint64_t limit = daemon_lease_limit_final(session->daemon), bytes = 0;
        bool all_resident = true;

        for (uint32_t i = 0; i < acquire->n; i++) {
                const struct index_object *object;
                struct planned *planned = &plan->items[i];
                uint64_t space;

                if (i % FIND_WINDOW == 0)
                        find_window(session, acquire, plan->items, i,
                                    acquire->n - i < FIND_WINDOW ? acquire->n - i : FIND_WINDOW);
                object = planned->object;
                if (!object)
                        break;
                space = (object->raw_bytes + HOST_UNIT_BYTES - 1) / HOST_UNIT_BYTES *
                        (uint64_t)HOST_UNIT_BYTES;
                bytes += space;
                if (!planned->copy || !planned->copy->n_leases)
                        plan->new_leased_bytes += space;
                all_resident &= object->host != INDEX_NONE;
                plan->n = i + 1;
                plan->n_resident += all_resident;
                plan->n_fitting += bytes <= limit;
        }
}

/* KVT_WIRE_OK, or why the plan is not to be granted. */
static uint32_t judge(struct session *session, const struct assembly *acquire, struct plan *plan)
{
        const struct config *config = &session->daemon->config;
        uint32_t flags = acquire->batch.flags;

        if (plan->n < acquire->n && (!(flags & WIRE_ACQUIRE_PARTIAL) || !plan->n))
                return KVT_WIRE_MISS;
        if (flags & WIRE_ACQUIRE_RESIDENT && plan->n_resident < plan->n) {
                if (!(flags & WIRE_ACQUIRE_PARTIAL) || !plan->n_resident)
                        return KVT_WIRE_BUSY;
                plan->n = plan->n_resident;
        }
        if (plan->n_fitting < plan->n || plan->n > config->session.leases_max)
                return KVT_WIRE_TOO_LARGE;
        if (session->n_leases + plan->n > config->session.leases_max)
                return KVT_WIRE_REFUSED;
        if (config->session.bytes_max &&
            session->leased_bytes + plan->new_leased_bytes > config->session.bytes_max)
                return KVT_WIRE_REFUSED;
        if (session->daemon->cache.copies.leased_bytes + plan->new_leased_bytes >
            daemon_lease_limit(session->daemon))
                return KVT_WIRE_BUSY;
        return KVT_WIRE_OK;
}

/* The copy made for an earlier item of the plan that is served by the same object. */
static struct host_copy *copy_of_twin(const struct plan *plan, uint32_t i)
{
        for (uint32_t j = i; j-- > 0;)
                if (plan->items[j].object == plan->items[i].object)
                        return plan->items[j].copy;
        return NULL;
}

static int make_room(struct session *session, struct plan *plan, uint32_t i)
{
        struct cache *cache = &session->daemon->cache;
        struct planned *planned = &plan->items[i];
        struct object_key key;

        if (planned->object->flags & INDEX_READING) {
                planned->copy = copy_of_twin(plan, i);
                planned->object = NULL;
                host_copy_use(planned->copy);
                return 0;
        }
        index_key(cache->index, planned->object, &key);
        return cache_new_copy(cache, &key, planned->object->raw_bytes, HOST_COPY_ARRIVING,
                              UINT32_MAX, false, &planned->copy);
}

static void let_go(struct session *session, struct plan *plan, uint32_t n)
{
        struct cache *cache = &session->daemon->cache;

        for (uint32_t i = 0; i < n; i++) {
                struct planned *planned = &plan->items[i];

                if (planned->object && planned->copy->state == HOST_COPY_ARRIVING)
                        planned->object->flags &= (uint16_t)~INDEX_READING;
                host_copy_unuse(&cache->copies, planned->copy);
        }
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
                struct planned *planned = &plan->items[i];

                n_held = i + 1;
                if (planned->copy)
                        continue;
                r = make_room(session, plan, i);
                if (!r && planned->object)
                        planned->object->flags |= INDEX_READING;
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
                planned->object->flags &= (uint16_t)~INDEX_READING;
                r = transfer_up(cache, planned->object, planned->copy);
                if (r) {
                        planned->copy->state = HOST_COPY_FAILED;
                        planned->copy->failure = r;
                }
        }
}

static void count_hits(struct session *session, const struct plan *plan)
{
        struct metrics *metrics = &session->daemon->metrics;

        for (uint32_t i = 0; i < plan->n; i++)
                metrics->hits_total[plan->items[i].copy &&
                                                    plan->items[i].copy->state == HOST_COPY_READY
                                            ? METRICS_HOST
                                            : METRICS_NVME]++;
}

static void touch_all(struct session *session, const struct plan *plan)
{
        /* Deepest first, so that the root ends newest. */
        for (uint32_t i = plan->n; i-- > 0;)
                cache_touch(&session->daemon->cache, plan->items[i].object);
}

static uint32_t grant_plan(struct session *session, const struct assembly *acquire,
                           struct plan *plan)
{
        struct daemon *daemon = session->daemon;
        bool with_checksums = acquire->batch.flags & WIRE_ACQUIRE_CHECKSUMS;
        struct grant *granted;
        int r;

        r = hold(session, plan);
        if (r)
                return r == CACHE_E_BUSY ? KVT_WIRE_BUSY : KVT_WIRE_NO_MEMORY;
        r = grant_new(&daemon->leases, session->engine_id, session->domain, session->layout,
                      plan->n, &granted);
        if (!r) {
                for (uint32_t i = 0; i < plan->n; i++)
                        grant_add_member(&daemon->leases, granted, plan->items[i].copy,
                                         &plan->items[i].key.boundary, plan->items[i].key.group,
                                         plan->items[i].key.shard);
                start_promotions(session, plan);
                r = grant(session, acquire->request, plan->items, plan->n, plan->n_resident,
                          granted, with_checksums, METRICS_ACQUIRE);
                if (r)
                        grant_free_unused(&daemon->leases, granted);
        }
        for (uint32_t i = 0; i < plan->n; i++)
                host_copy_unuse(&daemon->cache.copies, plan->items[i].copy);
        return r ? KVT_WIRE_NO_MEMORY : KVT_WIRE_OK;
}

static void refuse(struct session *session, const struct assembly *acquire, const struct plan *plan,
                   uint32_t status)
{
        struct answer answer;

        send_granted(session, acquire->request, status, 0, plan->n_resident, plan->n_fitting, NULL);
        answer_begin(&answer, session, acquire->request);
        for (uint32_t i = 0; i < acquire->n; i++) {
                /* Behind the first missing one nothing was looked at. */
                uint32_t item = i < plan->n ? status : KVT_WIRE_MISS;

                count(session, METRICS_ACQUIRE, item);
                answer_status(&answer, i, item);
        }
        answer_end(&answer, false);
        if (status == KVT_WIRE_MISS) {
                session->daemon->metrics.misses_total += acquire->n - plan->n;
                session->daemon->metrics.match_hint_refused_total++;
        }
}

/* Every item that is missing is being written by somebody now. */
static bool may_wait(struct session *session, const struct assembly *acquire)
{
        for (uint32_t i = 0; i < acquire->n; i++) {
                const struct wire_key_item *key = &acquire->keys[i];

                if (!find_key(session, key) &&
                    !lease_is_reserved(&session->daemon->leases, session->layout, &key->boundary,
                                       key->group, key->shard))
                        return false;
        }
        return true;
}

/* Decides an acquire and answers it. */
static void decide(struct session *session, const struct assembly *acquire)
{
        _cleanup_free_ struct planned *items = calloc(acquire->n, sizeof(*items));
        struct plan plan = {.items = items};
        uint32_t status = KVT_WIRE_NO_MEMORY;

        if (!acquire->n) {
                status = KVT_WIRE_INVALID;
        } else if (items) {
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
}

static bool start_waiting(struct session *session, struct assembly *acquire)
{
        struct waiting_load *waiting;

        if (!(acquire->batch.flags & WIRE_ACQUIRE_WAIT) || !acquire->batch.timeout_ns)
                return false;
        for (uint32_t i = 0; i < acquire->n; i++) {
                if (find_key(session, &acquire->keys[i]))
                        continue;
                if (!may_wait(session, acquire))
                        return false;
                waiting = calloc(1, sizeof(*waiting));
                if (!waiting)
                        return false;
                waiting->session = session;
                waiting->acquire = acquire;
                waiting->deadline_ns = uv_hrtime() + acquire->batch.timeout_ns;
                TAILQ_INSERT_TAIL(&session->waiting, waiting, link);
                return true;
        }
        return false;
}

void load_acquire(struct session *session, const struct wire_batch *batch)
{
        struct assembly *acquire;

        if (!assembly_add(session, batch, &acquire))
                return;
        if (start_waiting(session, acquire)) {
                send_granted(session, acquire->request, KVT_WIRE_PENDING, 0, 0, 0, NULL);
                return;
        }
        decide(session, acquire);
        assembly_free(acquire);
}

/* ---- waiting ---- */

void loads_reservation_ended(struct daemon *daemon, const struct index_new_object *entry)
{
        struct waiting_load *waiting;
        struct session *session;
        bool any = false;

        (void)entry;
        TAILQ_FOREACH(session, &daemon->sessions, link)
        TAILQ_FOREACH(waiting, &session->waiting, link)
        any = waiting->is_ripe = true;
        if (any)
                daemon_wake(daemon);
}

static void waiting_free(struct waiting_load *waiting)
{
        TAILQ_REMOVE(&waiting->session->waiting, waiting, link);
        assembly_free(waiting->acquire);
        free(waiting);
}

static void retry_one(struct waiting_load *waiting, uint64_t now_ns)
{
        struct session *session = waiting->session;
        bool late = now_ns >= waiting->deadline_ns;
        bool complete = true;

        if (!waiting->is_ripe && !late)
                return;
        waiting->is_ripe = false;
        for (uint32_t i = 0; i < waiting->acquire->n && complete; i++)
                complete = find_key(session, &waiting->acquire->keys[i]);
        if (!complete && !late && may_wait(session, waiting->acquire))
                return;
        if (!complete && late)
                load_refuse(session, waiting->acquire->request, KVT_WIRE_TIMEOUT);
        else
                decide(session, waiting->acquire);
        waiting_free(waiting);
}

void loads_retry(struct daemon *daemon)
{
        uint64_t now_ns = uv_hrtime();
        struct session *session;

        TAILQ_FOREACH(session, &daemon->sessions, link)
        {
                struct waiting_load *waiting, *next;

                for (waiting = TAILQ_FIRST(&session->waiting); waiting; waiting = next) {
                        next = TAILQ_NEXT(waiting, link);
                        retry_one(waiting, now_ns);
                }
        }
}

/* ---- adopt ---- */

/* Members are usually asked for in the order in which they were granted. */
static const struct grant_member *find_member(const struct grant *grant,
                                              const struct wire_key_item *key, uint32_t *position)
{
        for (uint32_t i = 0; i < grant->n_members; i++) {
                uint32_t at = (*position + i) % grant->n_members;
                const struct grant_member *member = &grant->members[at];

                if (member->group == key->group && member->shard == key->shard &&
                    digest_equal(&member->boundary, &key->boundary)) {
                        *position = at + 1;
                        return member;
                }
        }
        return NULL;
}

static uint32_t plan_adoption(const struct grant *grant, const struct assembly *adopt,
                              struct planned *planned, uint32_t n)
{
        uint32_t position = 0;

        for (uint32_t i = 0; i < n; i++) {
                const struct grant_member *member =
                        adopt->n ? find_member(grant, &adopt->keys[i], &position)
                                 : &grant->members[i];

                if (!member)
                        return KVT_WIRE_MISS;
                planned[i].copy = member->copy;
        }
        return KVT_WIRE_OK;
}

static uint32_t adopt(struct session *session, const struct assembly *adopt)
{
        struct daemon *daemon = session->daemon;
        struct grant *granted = grant_find(&daemon->leases, adopt->token);
        _cleanup_free_ struct planned *planned = NULL;
        uint32_t n, status;

        if (!granted || granted->domain != session->domain || granted->layout != session->layout ||
            memcmp(granted->engine_id, session->engine_id, sizeof(granted->engine_id)))
                return KVT_WIRE_GONE;
        n = adopt->n ? adopt->n : granted->n_members;
        if (session->n_leases + n > daemon->config.session.leases_max)
                return KVT_WIRE_REFUSED;
        planned = calloc(n, sizeof(*planned));
        if (!planned)
                return KVT_WIRE_NO_MEMORY;
        status = plan_adoption(granted, adopt, planned, n);
        if (status)
                return status;
        return grant(session, adopt->request, planned, n, n, granted,
                     adopt->batch.flags & WIRE_ACQUIRE_CHECKSUMS, METRICS_ADOPT)
                       ? KVT_WIRE_NO_MEMORY
                       : KVT_WIRE_OK;
}

void load_adopt(struct session *session, const struct wire_batch *batch)
{
        struct assembly *assembly;
        uint32_t status;

        if (!assembly_add(session, batch, &assembly))
                return;
        status = adopt(session, assembly);
        if (status) {
                count(session, METRICS_ADOPT, status);
                load_refuse(session, assembly->request, status);
        }
        assembly_free(assembly);
}

/* ---- release and cancel ---- */

static void stop_waiting_for(struct load_item *item)
{
        struct lease *lease = item->lease;

        TAILQ_REMOVE(&lease->copy->waiters, &item->waiter, link);
        lease->loading = NULL;
        item->lease = NULL;
        item->load->n_left--;
}

void load_release(struct session *session, const struct wire_batch *batch)
{
        struct message_cursor cursor;
        struct answer answer;
        uint32_t index = batch->first;
        uint64_t id;

        answer_begin(&answer, session, batch->header.request);
        message_cursor_init(&cursor, batch);
        for (; !message_next_lease(&cursor, &id); index++) {
                struct lease *lease = lease_find(&session->daemon->leases, session, id);
                uint32_t status = KVT_WIRE_GONE;

                /* One that is still on its way is given back by cancelling its acquire. */
                if (lease && lease->kind == LEASE_READ && lease->loading) {
                        status = KVT_WIRE_PENDING;
                } else if (lease && lease->kind == LEASE_READ) {
                        lease_end(&session->daemon->leases, lease);
                        status = KVT_WIRE_OK;
                }
                count(session, METRICS_RELEASE, status);
                answer_status(&answer, index, status);
        }
        answer_end(&answer, batch->header.flags & WIRE_MORE);
}

static void cancel_load(struct load *load)
{
        struct session *session = load->session;
        struct answer answer;

        answer_begin(&answer, session, load->request);
        for (uint32_t i = 0; i < load->n_items; i++) {
                struct load_item *item = &load->items[i];
                struct lease *lease = item->lease;

                if (!lease)
                        continue;
                stop_waiting_for(item);
                lease_end(&session->daemon->leases, lease);
                answer_status(&answer, item->index, KVT_WIRE_CANCELLED);
        }
        answer_end(&answer, false);
        load_free(load);
}

void load_cancel(struct session *session, const struct wire_cancel *cancel)
{
        struct waiting_load *waiting;
        struct load *load;

        TAILQ_FOREACH(load, &session->loads, link)
        {
                if (load->request == cancel->target) {
                        cancel_load(load);
                        break;
                }
        }
        TAILQ_FOREACH(waiting, &session->waiting, link)
        {
                if (waiting->acquire->request == cancel->target) {
                        load_refuse(session, cancel->target, KVT_WIRE_CANCELLED);
                        waiting_free(waiting);
                        break;
                }
        }
        /* Everything else was answered before this message was read. */
        answer_once(session, cancel->header.request, KVT_WIRE_OK);
}

/* ---- the end of a session ---- */

void loads_hang_up(struct session *session)
{
        struct waiting_load *waiting;
        struct load *load;

        assembly_free(steal_ptr(session->assembly));
        while ((waiting = TAILQ_FIRST(&session->waiting)))
                waiting_free(waiting);
        while ((load = TAILQ_FIRST(&session->loads))) {
                for (uint32_t i = 0; i < load->n_items; i++)
                        if (load->items[i].lease)
                                stop_waiting_for(&load->items[i]);
                load_free(load);
        }
}

void loads_end_session(struct session *session)
{
        loads_hang_up(session);
}
