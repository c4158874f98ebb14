// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/acquire.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/commit.h"
#include "daemon/daemon.h"
#include "daemon/finding.h"
#include "daemon/load.h"
#include "daemon/mark.h"
#include "daemon/prefetch.h"

/* ---- answers ---- */

static void count(struct session *session, enum metrics_operation operation, uint32_t status)
{
        session->daemon->metrics.operation_objects_total[operation][status]++;
}

void load_decide(struct session *session, uint64_t request, const struct load_decision *decision)
{
        struct wire_granted granted = {
                .status = decision->status,
                .n_granted = decision->n_granted,
                .n_resident = decision->n_resident,
                .n_fitting = decision->n_fitting,
        };

        message_header_init(&granted.header, WIRE_GRANTED, request, session->id,
                            session->daemon->boot_id);
        granted.header.length = sizeof(granted);
        if (decision->token)
                memcpy(granted.token, decision->token, sizeof(granted.token));
        session_send(session, &granted, sizeof(granted), -1);
}

void load_refuse(struct session *session, uint64_t request, uint32_t status)
{
        struct answer answer;

        load_decide(session, request, &(struct load_decision){.status = status});
        answer_begin(&answer, session, request);
        answer_end(&answer, false);
}

uint32_t load_failure_status(int failure)
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

uint32_t load_promote(struct cache *cache, struct index_object *object, struct host_copy **ret_copy)
{
        struct host_copy *copy;
        struct object_key key;
        int r;

        index_key(cache->index, object, &key);
        r = cache_new_copy(cache, &key, object->raw_bytes, HOST_COPY_ARRIVING, UINT32_MAX, false,
                           &copy);
        if (r)
                return r == CACHE_E_BUSY ? KVT_WIRE_BUSY : KVT_WIRE_NO_MEMORY;
        r = transfer_up(cache, object, copy, NULL);
        if (!r)
                *ret_copy = copy; /* its transfer holds it */
        host_copy_unuse(&cache->copies, copy);
        return r ? load_failure_status(r) : KVT_WIRE_OK;
}

static bool copy_is_complete(const struct host_copy *copy, bool with_checksums)
{
        return copy->state == HOST_COPY_READY && (!with_checksums || copy->checksums);
}

/* Answers a lease whose copy is there; it may end. */
static void answer_loaded(struct load *load, struct answer *answer, struct lease *lease,
                          uint32_t index, const struct pages *pages)
{
        struct session *session = load->session;
        const struct host_copy *copy = lease->copy;
        uint64_t bytes = pages->n ? pages_bytes(pages) : copy->raw_bytes;

        if (!pages->n) {
                answer_copy(answer, index, KVT_WIRE_OK, lease->id, copy, true,
                            load->with_checksums);
        } else if (!answer_pages(answer, index, KVT_WIRE_OK, lease->id, copy, pages, true)) {
                lease_end(&session->daemon->leases, lease);
                return;
        }
        session->loaded_objects++;
        session->loaded_bytes += bytes;
        session->daemon->metrics.loaded_bytes_total += bytes;
}

/* ---- objects on their way ---- */

static void load_free(struct load *load)
{
        TAILQ_REMOVE(&load->session->loads, load, link);
        free(load->ranges);
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
                answer_loaded(load, &answer, lease, item->index, &item->pages);
        } else {
                answer_status(&answer, item->index, load_failure_status(copy->failure));
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
        bool with_checksums = item->load->with_checksums && !item->pages.n;

        /* It has arrived, but its checksums were asked for and got lost for want of memory. */
        if (copy->state == HOST_COPY_READY && !copy_is_complete(copy, with_checksums) &&
            !transfer_hash(cache, copy)) {
                TAILQ_INSERT_TAIL(&copy->waiters, waiter, link);
                return;
        }
        finish_item(item);
}

static void wait_for_copy(struct load *load, struct lease *lease, uint32_t index,
                          const struct pages *pages)
{
        struct load_item *item = &load->items[load->n_items++];
        struct host_copy *copy = lease->copy;

        *item = (struct load_item){.load = load, .lease = lease, .pages = *pages, .index = index};
        item->waiter.on_ready = on_copy_ready;
        lease->loading = item;
        load->n_left++;
        TAILQ_INSERT_TAIL(&copy->waiters, &item->waiter, link);
}

/* ---- granting ---- */

/* 0 or -ENOMEM; then nothing is leased. */
static int lease_all(struct session *session, const struct load_grant *granted,
                     struct lease **ret_leases)
{
        struct leases *leases = &session->daemon->leases;
        uint32_t n = 0;
        int r = 0;

        while (!r && n < granted->n) {
                r = lease_new(leases, session, LEASE_READ, granted->planned[n].copy,
                              &ret_leases[n]);
                n += !r;
        }
        if (r) {
                while (n--)
                        lease_end(leases, ret_leases[n]);
                return r;
        }
        for (uint32_t i = 0; granted->grant && i < granted->n; i++)
                grant_attach_lease(granted->grant, ret_leases[i]);
        return 0;
}

/* Answers one leased object: there, failed, or on its way. */
static void answer_granted(struct load *load, struct answer *answer, struct lease *lease,
                           uint32_t index, const struct pages *pages)
{
        struct session *session = load->session;
        struct host_copy *copy = lease->copy;
        bool with_checksums = load->with_checksums && !pages->n;
        int r = 0;

        if (copy->state == HOST_COPY_READY && !copy_is_complete(copy, with_checksums))
                r = transfer_hash(&session->daemon->cache, copy);
        if (copy->state == HOST_COPY_FAILED) {
                answer_status(answer, index, load_failure_status(copy->failure));
                lease_end(&session->daemon->leases, lease);
        } else if (copy_is_complete(copy, with_checksums) || r) {
                answer_loaded(load, answer, lease, index, pages);
        } else {
                if (pages->n)
                        answer_pages(answer, index, KVT_WIRE_PENDING, lease->id, copy, pages,
                                     false);
                else
                        answer_copy(answer, index, KVT_WIRE_PENDING, lease->id, copy, false, false);
                wait_for_copy(load, lease, index, pages);
        }
}

int load_grant(struct session *session, const struct load_grant *granted)
{
        _cleanup_free_ struct lease **leases = calloc(granted->n, sizeof(*leases));
        struct load *load = calloc(1, sizeof(*load) + granted->n * sizeof(load->items[0]));
        struct answer answer;
        int r = leases && load ? lease_all(session, granted, leases) : err_raise(-ENOMEM);

        if (r) {
                free(load);
                return r;
        }
        load->session = session;
        load->request = granted->request;
        load->with_checksums = granted->with_checksums;
        load->ranges = granted->ranges;
        TAILQ_INSERT_TAIL(&session->loads, load, link);
        load_decide(session, granted->request,
                    &(struct load_decision){KVT_WIRE_OK, granted->n, granted->n_resident,
                                            granted->n,
                                            granted->grant ? granted->grant->token : NULL});
        answer_begin(&answer, session, granted->request);
        for (uint32_t i = 0; i < granted->n; i++) {
                answer_granted(load, &answer, leases[i], i, &granted->planned[i].pages);
                count(session, granted->operation, KVT_WIRE_OK);
        }
        answer_end(&answer, load->n_left);
        if (!load->n_left)
                load_free(load);
        return 0;
}

/* ---- adopt ---- */

/* What the session would hold then, and how many leading objects are there. */
static uint32_t plan_adoption(struct session *session, struct load_grant *granted,
                              const struct assembly *adopt, struct planned *planned)
{
        uint64_t bytes_max = session->daemon->config.session.bytes_max;
        uint64_t bytes = session->leased_bytes;
        uint32_t position = 0;

        for (uint32_t i = 0; i < granted->n; i++) {
                struct grant *grant = granted->grant;
                const struct grant_member *member =
                        adopt->n ? grant_find_member(grant, &adopt->keys[i], &position)
                                 : &grant->members[i];

                if (!member)
                        return KVT_WIRE_MISS;
                planned[i].copy = member->copy;
                bytes += member->copy->space_bytes;
                granted->n_resident +=
                        granted->n_resident == i && member->copy->state == HOST_COPY_READY;
        }
        return bytes_max && bytes > bytes_max ? KVT_WIRE_REFUSED : KVT_WIRE_OK;
}

static uint32_t adopt(struct session *session, const struct assembly *adopt)
{
        struct daemon *daemon = session->daemon;
        struct grant *grant = grant_find(&daemon->leases, adopt->token);
        struct load_grant granted = {
                .request = adopt->request,
                .grant = grant,
                .with_checksums = adopt->batch.flags & WIRE_ACQUIRE_CHECKSUMS,
                .operation = METRICS_ADOPT,
        };
        _cleanup_free_ struct planned *planned = NULL;
        uint32_t status;

        if (!grant || grant->domain != session->domain || grant->layout != session->layout ||
            memcmp(grant->engine_id, session->engine_id, sizeof(grant->engine_id)))
                return KVT_WIRE_GONE;
        granted.n = adopt->n ? adopt->n : grant->n_members;
        if (session->n_leases + granted.n > daemon->config.session.leases_max)
                return KVT_WIRE_REFUSED;
        planned = calloc(granted.n, sizeof(*planned));
        if (!planned)
                return KVT_WIRE_NO_MEMORY;
        status = plan_adoption(session, &granted, adopt, planned);
        if (status)
                return status;
        granted.planned = planned;
        return load_grant(session, &granted) ? KVT_WIRE_NO_MEMORY : KVT_WIRE_OK;
}

void load_adopt(struct session *session, const struct wire_batch *batch)
{
        struct assembly *assembly;
        uint32_t status;

        if (!assembly_add(session, batch, &assembly))
                return;
        status = session->no_loads ? KVT_WIRE_MISS : adopt(session, assembly);
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
        struct load *load;

        TAILQ_FOREACH(load, &session->loads, link) {
                if (load->request == cancel->target) {
                        cancel_load(load);
                        break;
                }
        }
        acquire_cancel_waiting(session, cancel->target);
        mark_cancel(session, cancel->target);
        prefetch_cancel(session, cancel->target);
        finding_cancel(session, cancel->target);
        if (commit_cancel(session, cancel->target, cancel->header.request))
                return;
        /* Everything else was answered before this message was read. */
        answer_once(session, cancel->header.request, KVT_WIRE_OK);
}

/* ---- the end of a session ---- */

void loads_hang_up(struct session *session)
{
        struct load *load;

        assembly_free(steal_ptr(session->assembly));
        acquires_hang_up(session);
        while ((load = TAILQ_FIRST(&session->loads))) {
                for (uint32_t i = 0; i < load->n_items; i++)
                        if (load->items[i].lease)
                                stop_waiting_for(&load->items[i]);
                load_free(load);
        }
}
