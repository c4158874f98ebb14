// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/acquire.h"
#include "daemon/answer.h"
#include "daemon/daemon.h"
#include "daemon/layout_table.h"
#include "daemon/layout_use.h"
#include "daemon/set.h"
#include "daemon/store.h"

/* Of all reservations of a session: a commit enters each into the index at once. */
#define COVERS_MAX 32768u

static void count(struct session *session, enum metrics_operation operation, uint32_t status)
{
        session->daemon->metrics.operation_objects_total[operation][status]++;
}

/* ---- reserve ---- */

/* What the layout says about an object of this group. KVT_WIRE_OK or why not. */
static uint32_t check_against_layout(struct session *session, const struct wire_reserve_item *item)
{
        const struct layout *layout = session->description;
        const struct layout_group *group;
        uint64_t expected;

        if (layout_cell(layout, item->group, item->shard) < 0 ||
            (session->spans_nodes &&
             !layout_span_has(&session->span, layout, item->group, item->shard)))
                return KVT_WIRE_INVALID;
        group = &layout->groups[item->group];
        expected = layout_object_bytes(layout, item->group, item->shard);
        if (expected && item->bytes != expected)
                return KVT_WIRE_INVALID;
        if (group->kind != LAYOUT_STATE && layout->chunk_tokens &&
            item->boundary_tokens % layout->chunk_tokens) {
                session->daemon->metrics.unaligned_tokens_total +=
                        item->boundary_tokens % layout->chunk_tokens;
                return KVT_WIRE_INVALID;
        }
        if (group->kind == LAYOUT_STATE && !item->n_covers)
                layout_use_note_state(
                        index_layout_at(session->daemon->cache.index, session->layout), item->group,
                        item->boundary_tokens);
        return KVT_WIRE_OK;
}

/* What comes of one item, beside its status. */
struct reserved {
        struct lease *lease; /* or NULL */
        uint8_t refusal;     /* enum drop_reason: which limit, where the status leaves it open */
};

static uint32_t refuse(struct reserved *reserved, uint32_t status, enum drop_reason reason)
{
        reserved->refusal = (uint8_t)reason;
        return status;
}

/* May the session lease @bytes more, of which @new_bytes are leased by nobody yet? */
static uint32_t check_lease(struct session *session, uint64_t bytes, uint64_t new_bytes,
                            struct reserved *ret_reserved)
{
        struct daemon *daemon = session->daemon;
        const struct config *config = &daemon->config;

        if (session->n_leases >= config->session.leases_max)
                return refuse(ret_reserved, KVT_WIRE_REFUSED, DROP_SESSION_LEASES);
        if (config->session.bytes_max && session->leased_bytes + bytes > config->session.bytes_max)
                return refuse(ret_reserved, KVT_WIRE_REFUSED, DROP_SESSION_BYTES);
        if (daemon->cache.copies.leased_bytes + new_bytes > daemon_lease_limit(daemon))
                return refuse(ret_reserved, KVT_WIRE_BUSY, DROP_LEASE_SHARE);
        return KVT_WIRE_OK;
}

static uint32_t check_limits(struct session *session, const struct wire_reserve_item *item,
                             struct reserved *ret_reserved)
{
        struct daemon *daemon = session->daemon;
        const struct config *config = &daemon->config;
        uint64_t space = host_copy_space(item->bytes);

        if (daemon->phase >= DAEMON_DRAINING)
                return refuse(ret_reserved, KVT_WIRE_DRAINING, DROP_DRAINING);
        /* Generations and older copies are not known yet: nothing may be put beside them. */
        if (!daemon->recovered)
                return refuse(ret_reserved, KVT_WIRE_BUSY, DROP_RECOVERING);
        if (item->bytes > config->host.piece_bytes / 2 ||
            space > daemon_lease_limit_final(daemon) ||
            (config->session.bytes_max && space > config->session.bytes_max))
                return refuse(ret_reserved, KVT_WIRE_TOO_LARGE, DROP_TOO_LARGE);
        if (session->n_reserved_covers + item->n_covers > COVERS_MAX)
                return refuse(ret_reserved, KVT_WIRE_REFUSED, DROP_COVERS);
        return check_lease(session, space, space, ret_reserved);
}

/* A member of a set that is stored already: it must stay what it is until the set ends. */
static uint32_t hold_member(struct session *session, const struct index_object *object,
                            const struct index_new_object *entry, uint64_t set,
                            struct reserved *ret_reserved)
{
        struct cache *cache = &session->daemon->cache;
        struct host_copy *copy =
                object->host != INDEX_NONE ? host_copy_at(&cache->copies, object->host) : NULL;
        struct lease *lease;
        uint32_t status;
        int r;

        status = check_lease(session, copy ? copy->space_bytes : 0,
                             copy && !copy->n_leases ? copy->space_bytes : 0, ret_reserved);
        if (status)
                return status;
        if (lease_new(&session->daemon->leases, session, LEASE_HAVE, copy, &lease))
                return KVT_WIRE_NO_MEMORY;
        lease->entry = *entry;
        lease->entry.covers = NULL;
        lease->entry.raw_bytes = object->raw_bytes;
        lease->have_generation = object->generation;
        r = set_join(lease, set);
        if (r) {
                lease_end(&session->daemon->leases, lease);
                return r == SET_E_FULL ? KVT_WIRE_REFUSED : KVT_WIRE_NO_MEMORY;
        }
        ret_reserved->lease = lease;
        return KVT_WIRE_ALREADY_HAVE;
}

static uint32_t status_of_space(int r)
{
        switch (r) {
        case 0:
                return KVT_WIRE_OK;
        case CACHE_E_BUSY:
                return KVT_WIRE_BUSY;
        case CACHE_E_FRAGMENTED:
                return KVT_WIRE_REFUSED;
        default:
                return KVT_WIRE_NO_MEMORY;
        }
}

static uint32_t grant_space(struct session *session, const struct wire_reserve_item *item,
                            const struct index_new_object *entry, uint64_t set,
                            struct reserved *ret_reserved)
{
        struct daemon *daemon = session->daemon;
        struct object_key key = {
                .layout = session->layout_id,
                .boundary = entry->digest,
                .domain = session->domain,
                .group = entry->group,
                .shard = entry->shard,
        };
        struct host_copy *copy;
        struct lease *lease;
        int r;

        r = cache_new_copy(&daemon->cache, &key, item->bytes, HOST_COPY_WRITING, item->numa_node,
                           item->flags & WIRE_RESERVE_CONTIGUOUS, &copy);
        if (r)
                return status_of_space(r);
        r = lease_new(&daemon->leases, session, LEASE_WRITE, copy, &lease);
        host_copy_unuse(&daemon->cache.copies, copy);
        if (r)
                return KVT_WIRE_NO_MEMORY;

        lease->entry = *entry;
        lease->entry.covers = NULL;
        lease->replace = item->flags & WIRE_RESERVE_REPLACE;
        lease_enter_reservation(&daemon->leases, lease);
        if (entry->n_covers) {
                lease->covers = malloc(entry->n_covers * sizeof(*lease->covers));
                r = lease->covers ? 0 : err_raise(-ENOMEM);
                if (!r) {
                        memcpy(lease->covers, entry->covers,
                               entry->n_covers * sizeof(*lease->covers));
                        session->n_reserved_covers += entry->n_covers;
                }
                lease->entry.covers = lease->covers;
        }
        if (!r && set)
                r = set_join(lease, set);
        if (r) {
                lease_end(&daemon->leases, lease);
                return r == SET_E_FULL ? KVT_WIRE_REFUSED : KVT_WIRE_NO_MEMORY;
        }
        ret_reserved->lease = lease;
        return KVT_WIRE_OK;
}

static uint32_t reserve_one(struct session *session, uint64_t set,
                            const struct wire_reserve_item *item, const struct digest *covers,
                            struct reserved *ret_reserved)
{
        struct cache *cache = &session->daemon->cache;
        struct index_new_object entry = {
                .layout = session->layout,
                .group = item->group,
                .shard = item->shard,
                .digest = item->boundary,
                .parent = item->parent,
                .parent_unknown = item->flags & WIRE_RESERVE_PARENT_UNKNOWN,
                .croppable = item->flags & WIRE_RESERVE_CROPPABLE,
                .boundary_tokens = item->boundary_tokens,
                .raw_bytes = (uint32_t)item->bytes,
                .covers = covers,
                .n_covers = item->n_covers,
                .origin = {.is_known = item->flags & WIRE_RESERVE_HIT,
                           .is_branch = item->flags & WIRE_RESERVE_BRANCH,
                           .began_tokens = item->hit_tokens},
        };
        struct index_boundary *boundary;
        struct index_object *existing = NULL;
        uint32_t status;

        status = check_against_layout(session, item);
        if (status)
                return status;
        entry.cell = (uint16_t)layout_cell(session->description, item->group, item->shard);
        boundary = index_find_boundary(cache->index, session->layout, &item->boundary);
        if (boundary)
                existing = index_find_object(cache->index, boundary, item->group, item->shard);
        if (existing && !(item->flags & WIRE_RESERVE_REPLACE)) {
                cache_touch(cache, existing);
                return set ? hold_member(session, existing, &entry, set, ret_reserved)
                           : KVT_WIRE_ALREADY_HAVE;
        }
        status = check_limits(session, item, ret_reserved);
        if (status)
                return status;
        return grant_space(session, item, &entry, set, ret_reserved);
}

static enum drop_reason reason_of_status(uint32_t status, bool contiguous)
{
        switch (status) {
        case KVT_WIRE_INVALID:
                return DROP_NOT_IN_LAYOUT;
        case KVT_WIRE_BUSY:
                return DROP_NO_ROOM;
        case KVT_WIRE_REFUSED:
                return contiguous ? DROP_FRAGMENTED : DROP_COVERS;
        default:
                return DROP_NO_MEMORY;
        }
}

static void note_refusal(struct session *session, const struct wire_reserve_item *item,
                         uint32_t status, const struct reserved *reserved)
{
        struct drop drop = {
                .digest = item->boundary,
                .boundary_tokens = item->boundary_tokens,
                .layout = session->layout,
                .group = item->group,
                .shard = item->shard,
                .tier = METRICS_N_TIERS,
                .reason = reserved->refusal,
        };

        if (status == KVT_WIRE_OK || status == KVT_WIRE_ALREADY_HAVE)
                return;
        if (!drop.reason)
                drop.reason =
                        (uint8_t)reason_of_status(status, item->flags & WIRE_RESERVE_CONTIGUOUS);
        drop_ring_note(&session->daemon->cache.drops, &drop);
}

/* A set in which nothing is to be written has no commit to wait for. */
static void end_set_without_writers(struct session *session, uint64_t id)
{
        struct lease_set *set = set_find(session, id);

        if (set && !set->n_write)
                set_end(&session->daemon->leases, set);
}

void store_reserve(struct session *session, const struct wire_batch *batch)
{
        struct wire_reserve_item item;
        struct message_cursor cursor;
        const struct digest *covers;
        struct answer answer;
        uint32_t index = batch->first;
        bool more = batch->header.flags & WIRE_MORE;

        answer_begin(&answer, session, batch->header.request);
        message_cursor_init(&cursor, batch);
        index_prefetch(session->daemon->cache.index, session->layout,
                       (const struct digest *)(batch + 1), sizeof(item), batch->header.n_items,
                       false);
        for (; !message_next_reserve(&cursor, &item, &covers); index++) {
                struct reserved reserved = {0};
                uint32_t status = KVT_WIRE_REFUSED;
                const struct lease *lease;

                /* Its library asks for nothing then: why is no news to anybody. */
                if (!session->no_stores) {
                        status = reserve_one(session, batch->set, &item, covers, &reserved);
                        note_refusal(session, &item, status, &reserved);
                }
                lease = reserved.lease;
                count(session, METRICS_RESERVE, status);
                if (lease && lease->copy)
                        answer_copy(&answer, index, status, lease->id, lease->copy,
                                    status == KVT_WIRE_OK, false);
                else if (lease)
                        answer_held(&answer, index, status, lease);
                else
                        answer_status(&answer, index, status);
        }
        answer_end(&answer, more);
        if (batch->set && !more)
                end_set_without_writers(session, batch->set);
}

/* ---- abort ---- */

static uint32_t abort_one(struct session *session, uint64_t id, bool is_member_only)
{
        struct lease *lease = lease_find(&session->daemon->leases, session, id);
        uint64_t set;

        if (!lease || lease->kind == LEASE_READ)
                return KVT_WIRE_GONE;
        set = lease->set && is_member_only ? lease->set->id : 0;
        if (lease->set && !is_member_only)
                set_end(&session->daemon->leases, lease->set);
        else
                lease_end(&session->daemon->leases, lease);
        if (set)
                end_set_without_writers(session, set);
        acquires_reservation_ended(session->daemon);
        return KVT_WIRE_OK;
}

void store_abort(struct session *session, const struct wire_batch *batch)
{
        /* Behind the first part it may be this abort that has ended the set. */
        bool of_set = batch->set && (batch->first || set_find(session, batch->set));
        bool is_member_only = batch->flags & WIRE_ABORT_MEMBERS;
        struct message_cursor cursor;
        struct answer answer;
        uint32_t index = batch->first;
        uint64_t lease;

        answer_begin(&answer, session, batch->header.request);
        message_cursor_init(&cursor, batch);
        for (; !message_next_lease(&cursor, &lease); index++) {
                struct lease *found = lease_find(&session->daemon->leases, session, lease);
                uint32_t status;

                /* The abort of one member ends its set, and with it the others of this batch. */
                if (!found && of_set && !set_find(session, batch->set))
                        status = KVT_WIRE_OK;
                else
                        status = abort_one(session, lease, is_member_only);
                count(session, METRICS_ABORT, status);
                answer_status(&answer, index, status);
        }
        answer_end(&answer, batch->header.flags & WIRE_MORE);
}
