// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/acquire.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/daemon.h"
#include "daemon/load.h"
#include "daemon/store.h"

static void count(struct session *session, enum metrics_operation operation, uint32_t status)
{
        session->daemon->metrics.operation_objects_total[operation][status]++;
}

/* ---- reserve ---- */

/* What the layout says about an object of this group. KVT_WIRE_OK or why not. */
static uint32_t check_against_layout(struct session *session, const struct wire_reserve_item *item)
{
        const struct layout *layout = &session->description;
        const struct layout_group *group;
        uint64_t expected;

        if (layout_cell(layout, item->group, item->shard) < 0 ||
            !session->shard_is_here[item->shard])
                return KVT_WIRE_INVALID;
        group = &layout->groups[item->group];
        expected = layout_object_bytes(layout, item->group);
        if (expected && item->bytes != expected)
                return KVT_WIRE_INVALID;
        if (group->kind != LAYOUT_STATE && layout->chunk_tokens &&
            item->boundary_tokens % layout->chunk_tokens) {
                session->daemon->metrics.unaligned_tokens_total +=
                        item->boundary_tokens % layout->chunk_tokens;
                return KVT_WIRE_INVALID;
        }
        return KVT_WIRE_OK;
}

static uint32_t check_limits(struct session *session, uint64_t bytes)
{
        struct daemon *daemon = session->daemon;
        const struct config *config = &daemon->config;

        if (daemon->phase >= DAEMON_DRAINING)
                return KVT_WIRE_DRAINING;
        /* Generations and older copies are not known yet: nothing may be put beside them. */
        if (!daemon->recovered)
                return KVT_WIRE_BUSY;
        if (bytes > config->host.piece_bytes / 2 || bytes > daemon_lease_limit_final(daemon))
                return KVT_WIRE_TOO_LARGE;
        if (session->n_leases >= config->session.leases_max)
                return KVT_WIRE_REFUSED;
        if (config->session.bytes_max && session->leased_bytes + bytes > config->session.bytes_max)
                return KVT_WIRE_REFUSED;
        if (daemon->cache.copies.leased_bytes + bytes > daemon_lease_limit(daemon))
                return KVT_WIRE_BUSY;
        return KVT_WIRE_OK;
}

static struct lease_set *find_set(struct session *session, uint64_t id)
{
        struct lease_set *set;

        LIST_FOREACH(set, &session->sets, link)
                if (set->id == id)
                        return set;
        return NULL;
}

static int join_set(struct session *session, struct lease *lease, uint64_t id)
{
        struct lease_set *set = find_set(session, id);

        if (!set) {
                set = calloc(1, sizeof(*set));
                if (!set)
                        return err_raise(-ENOMEM);
                set->id = id;
                LIST_INIT(&set->members);
                LIST_INSERT_HEAD(&session->sets, set, link);
        }
        lease_join_set(lease, set);
        return 0;
}

/* A member of a set that is stored already: it must stay what it is until the set ends. */
static uint32_t hold_member(struct session *session, const struct index_object *object,
                            const struct index_new_object *entry, uint64_t set,
                            struct lease **ret_lease)
{
        struct cache *cache = &session->daemon->cache;
        struct host_copy *copy =
                object->host != INDEX_NONE ? host_copy_at(&cache->copies, object->host) : NULL;
        struct lease *lease;

        if (session->n_leases >= session->daemon->config.session.leases_max)
                return KVT_WIRE_REFUSED;
        if (lease_new(&session->daemon->leases, session, LEASE_HAVE, copy, &lease))
                return KVT_WIRE_NO_MEMORY;
        lease->entry = *entry;
        lease->entry.covers = NULL;
        lease->have_generation = object->generation;
        if (join_set(session, lease, set)) {
                lease_end(&session->daemon->leases, lease);
                return KVT_WIRE_NO_MEMORY;
        }
        *ret_lease = lease;
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
                            struct lease **ret_lease)
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
                if (!r)
                        memcpy(lease->covers, entry->covers,
                               entry->n_covers * sizeof(*lease->covers));
                lease->entry.covers = lease->covers;
        }
        if (!r && set)
                r = join_set(session, lease, set);
        if (r) {
                lease_end(&daemon->leases, lease);
                return KVT_WIRE_NO_MEMORY;
        }
        *ret_lease = lease;
        return KVT_WIRE_OK;
}

static uint32_t reserve_one(struct session *session, uint64_t set,
                            const struct wire_reserve_item *item, const struct digest *covers,
                            struct lease **ret_lease)
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
        };
        struct index_boundary *boundary;
        struct index_object *existing = NULL;
        uint32_t status;

        status = check_against_layout(session, item);
        if (status)
                return status;
        entry.cell = (uint16_t)layout_cell(&session->description, item->group, item->shard);
        boundary = index_find_boundary(cache->index, session->layout, &item->boundary);
        if (boundary)
                existing = index_find_object(cache->index, boundary, item->group, item->shard);
        if (existing && !(item->flags & WIRE_RESERVE_REPLACE)) {
                cache_touch(cache, existing);
                return set ? hold_member(session, existing, &entry, set, ret_lease)
                           : KVT_WIRE_ALREADY_HAVE;
        }
        status = check_limits(session, item->bytes);
        if (status)
                return status;
        return grant_space(session, item, &entry, set, ret_lease);
}

/* A set in which nothing is to be written has no commit to wait for. */
static void end_set_without_writers(struct session *session, uint64_t id)
{
        struct lease_set *set = find_set(session, id);

        if (!set || set->n_write)
                return;
        for (uint32_t n = set->n_have; n; n--)
                lease_end(&session->daemon->leases, LIST_FIRST(&set->members));
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
                struct lease *lease = NULL;
                uint32_t status = reserve_one(session, batch->set, &item, covers, &lease);

                count(session, METRICS_RESERVE, status);
                if (lease && lease->copy)
                        answer_copy(&answer, index, status, lease->id, lease->copy,
                                    status == KVT_WIRE_OK, false);
                else
                        answer_status(&answer, index, status);
        }
        answer_end(&answer, more);
        if (batch->set && !more)
                end_set_without_writers(session, batch->set);
}

/* ---- commit ---- */

/* A request with items that are answered later: when old entries are durably gone. */
struct deferred_answer {
        struct session *session;
        uint64_t request;
        uint32_t n_left;
        uint32_t failure; /* of the set it was part of, else OK */
        bool last_part_sent;
};

struct deferred_item {
        struct deferred_answer *answer;
        uint32_t index;
};

static void on_replaced_forgotten(void *user, int result)
{
        struct deferred_item *item = user;
        struct deferred_answer *deferred = item->answer;
        struct answer answer;
        uint32_t status = result < 0 ? KVT_WIRE_IO_ERROR : deferred->failure;

        deferred->n_left--;
        count(deferred->session, METRICS_COMMIT, status);
        answer_begin(&answer, deferred->session, deferred->request);
        answer_status(&answer, item->index, status);
        answer_end(&answer, deferred->n_left || !deferred->last_part_sent);
        free(item);
        if (!deferred->n_left && deferred->last_part_sent) {
                session_unref(deferred->session);
                free(deferred);
        }
}

/* The record that a replacing commit needs, made before anything is changed. */
static struct deferred_item *prepare_deferral(struct session *session, uint64_t request,
                                              uint32_t index, struct deferred_answer **deferred)
{
        struct deferred_item *item = calloc(1, sizeof(*item));

        if (!item)
                return NULL;
        if (!*deferred) {
                *deferred = calloc(1, sizeof(**deferred));
                if (!*deferred) {
                        free(item);
                        return NULL;
                }
                (*deferred)->session = session;
                (*deferred)->request = request;
                session->n_refs++;
        }
        item->answer = *deferred;
        item->index = index;
        return item;
}

static uint32_t status_of_publish(int r)
{
        switch (r) {
        case 0:
                return KVT_WIRE_OK;
        case CACHE_E_EXISTS:
                return KVT_WIRE_ALREADY_HAVE;
        case CACHE_E_INDEX_FULL:
                return KVT_WIRE_REFUSED;
        default:
                return KVT_WIRE_NO_MEMORY;
        }
}

/* The writer's checksum list must have the shape that the object's length demands. */
static bool list_fits(const struct lease *lease, uint32_t n_pieces)
{
        return !n_pieces || n_pieces == checksum_n_pieces(lease->copy->raw_bytes);
}

static void verify_written(struct cache *cache, struct host_copy *copy,
                           struct checksum_list *checksums)
{
        checksums->raw_bytes = copy->raw_bytes;
        checksums->piece_bytes = checksum_piece_bytes(copy->raw_bytes);
        /* Out of memory: the daemon's own list will be made when one is needed. */
        transfer_verify_written(cache, copy, checksums);
}

/*
 * Publishes one reservation and ends its lease. *@ret_is_deferred: the status is not final
 * yet, on_replaced_forgotten() will send it. @checksums (may be NULL) is taken over.
 */
static uint32_t publish(struct session *session, struct lease *lease,
                        struct checksum_list *checksums, uint64_t request, uint32_t index,
                        struct deferred_answer **deferred, bool *ret_is_deferred)
{
        struct daemon *daemon = session->daemon;
        struct cache *cache = &daemon->cache;
        struct deferred_item *item = NULL;
        struct index_new_object entry = lease->entry;
        struct host_copy *copy = lease->copy;
        int r;

        *ret_is_deferred = false;
        if (lease->replace) {
                item = prepare_deferral(session, request, index, deferred);
                if (!item) {
                        free(checksums);
                        return KVT_WIRE_NO_MEMORY;
                }
        }
        copy->state = HOST_COPY_READY;
        r = cache_publish(cache, copy, &entry, lease->replace, on_replaced_forgotten, item,
                          ret_is_deferred);
        if (*ret_is_deferred)
                (*deferred)->n_left++;
        else
                free(item);
        if (!r) {
                session->stored_objects++;
                session->stored_bytes += copy->raw_bytes;
                if (checksums)
                        verify_written(cache, copy, steal_ptr(checksums));
        }
        free(checksums);
        lease_end(&daemon->leases, lease);
        acquires_reservation_ended(daemon);
        return status_of_publish(r);
}

static void finish_deferral(struct deferred_answer *deferred)
{
        if (!deferred)
                return;
        deferred->last_part_sent = true;
        if (!deferred->n_left) {
                session_unref(deferred->session);
                free(deferred);
        }
}

static struct checksum_list *copy_checksums(const struct wire_commit_item *item,
                                            const uint64_t *pieces)
{
        struct checksum_list *list;

        if (!item->n_pieces)
                return NULL;
        list = calloc(1, sizeof(*list));
        if (list) {
                list->n_pieces = item->n_pieces;
                memcpy(list->pieces, pieces, item->n_pieces * sizeof(*pieces));
        }
        return list;
}

static void commit_singles(struct session *session, const struct wire_batch *batch)
{
        struct deferred_answer *deferred = NULL;
        struct wire_commit_item item;
        struct message_cursor cursor;
        const uint64_t *pieces;
        struct answer answer;
        uint32_t index = batch->first;
        bool more = batch->header.flags & WIRE_MORE;

        answer_begin(&answer, session, batch->header.request);
        message_cursor_init(&cursor, batch);
        for (; !message_next_commit(&cursor, &item, &pieces); index++) {
                struct lease *lease = lease_find(&session->daemon->leases, session, item.lease);
                bool is_deferred = false;
                uint32_t status;

                if (!lease || lease->kind != LEASE_WRITE)
                        status = KVT_WIRE_GONE;
                else if (lease->set || !list_fits(lease, item.n_pieces))
                        status = KVT_WIRE_INVALID;
                else
                        status = publish(session, lease, copy_checksums(&item, pieces),
                                         batch->header.request, index, &deferred, &is_deferred);
                if (is_deferred)
                        continue;
                count(session, METRICS_COMMIT, status);
                answer_status(&answer, index, status);
        }
        answer_end(&answer, more || (deferred && deferred->n_left));
        finish_deferral(deferred);
}

/* ---- sets ---- */

static bool member_holds(struct session *session, const struct lease *lease)
{
        struct cache *cache = &session->daemon->cache;
        struct index_boundary *boundary =
                index_find_boundary(cache->index, lease->entry.layout, &lease->entry.digest);
        struct index_object *object =
                boundary ? index_find_object(cache->index, boundary, lease->entry.group,
                                             lease->entry.shard)
                         : NULL;

        return object && object->generation == lease->have_generation;
}

static uint32_t check_named(struct session *session, const struct lease_set *set,
                            const struct assembly_commit *commit, uint32_t *n_write)
{
        struct lease *lease = lease_find(&session->daemon->leases, session, commit->lease);

        if (!lease)
                return KVT_WIRE_GONE;
        if (lease->set != set || lease->named)
                return KVT_WIRE_INVALID;
        lease->named = true;
        if (lease->kind != LEASE_WRITE)
                return KVT_WIRE_OK;
        if (!list_fits(lease, commit->n_pieces))
                return KVT_WIRE_INVALID;
        (*n_write)++;
        return KVT_WIRE_OK;
}

/* KVT_WIRE_OK when the commit names just the set's writers and its other members hold. */
static uint32_t check_set(struct session *session, struct lease_set *set,
                          const struct assembly *assembly)
{
        uint32_t status = KVT_WIRE_OK;
        uint32_t n_write = 0;
        struct lease *lease;

        for (uint32_t i = 0; i < assembly->n && !status; i++)
                status = check_named(session, set, &assembly->commits[i], &n_write);
        LIST_FOREACH(lease, &set->members, set_link) {
                lease->named = false;
                if (!status && lease->kind == LEASE_HAVE && !member_holds(session, lease))
                        status = KVT_WIRE_STALE;
        }
        if (!status && n_write != set->n_write)
                status = KVT_WIRE_INVALID;
        return status;
}

static void end_set(struct session *session, struct lease_set *set)
{
        uint32_t n = set->n_write + set->n_have;

        while (n--) {
                struct lease *lease = LIST_FIRST(&set->members);
                bool wrote = lease->kind == LEASE_WRITE;

                lease_end(&session->daemon->leases, lease);
                if (wrote)
                        acquires_reservation_ended(session->daemon);
        }
}

/* Takes back what a set has published before one of its members failed. */
static void unpublish(struct session *session, const struct index_new_object *entry)
{
        struct cache *cache = &session->daemon->cache;
        struct index_boundary *boundary =
                index_find_boundary(cache->index, entry->layout, &entry->digest);
        struct index_object *object =
                boundary ? index_find_object(cache->index, boundary, entry->group, entry->shard)
                         : NULL;

        if (object)
                cache_drop(cache, object, METRICS_FOR_SPACE);
}

/*
 * Publishes the members in one turn of the loop. Only memory or a full index can fail
 * here; then the members before it go again, and nobody has seen them. *@ret_deferred[i]:
 * the item is answered later.
 */
static uint32_t publish_members(struct session *session, struct assembly *assembly,
                                struct index_new_object *published, bool *ret_deferred,
                                struct deferred_answer **deferred)
{
        uint32_t n_published = 0, status = KVT_WIRE_OK;

        for (uint32_t i = 0; i < assembly->n && !status; i++) {
                struct assembly_commit *commit = &assembly->commits[i];
                struct lease *lease = lease_find(&session->daemon->leases, session, commit->lease);

                if (!lease || lease->kind != LEASE_WRITE)
                        continue;
                published[n_published] = lease->entry;
                status = publish(session, lease, steal_ptr(commit->checksums), assembly->request, i,
                                 deferred, &ret_deferred[i]);
                if (status == KVT_WIRE_OK)
                        n_published++;
                else if (status == KVT_WIRE_ALREADY_HAVE)
                        status = KVT_WIRE_OK; /* lost the race to a visible object: committed */
        }
        for (uint32_t i = 0; status && i < n_published; i++)
                unpublish(session, &published[i]);
        return status;
}

static void publish_set(struct session *session, struct assembly *assembly, struct answer *answer,
                        struct deferred_answer **deferred)
{
        _cleanup_free_ struct index_new_object *published =
                calloc(assembly->n + 1, sizeof(*published));
        _cleanup_free_ bool *is_deferred = calloc(assembly->n + 1, sizeof(*is_deferred));
        uint32_t status = KVT_WIRE_NO_MEMORY;
        struct lease_set *set;

        if (published && is_deferred)
                status = publish_members(session, assembly, published, is_deferred, deferred);
        if (*deferred)
                (*deferred)->failure = status;
        for (uint32_t i = 0; i < assembly->n; i++) {
                if (is_deferred && is_deferred[i])
                        continue;
                count(session, METRICS_COMMIT, status);
                answer_status(answer, i, status);
        }
        /* What is left of it: members that were stored already, or all after a failure. */
        set = find_set(session, assembly->batch.set);
        if (set)
                end_set(session, set);
}

static void commit_set(struct session *session, struct assembly *assembly)
{
        struct lease_set *set = find_set(session, assembly->batch.set);
        struct deferred_answer *deferred = NULL;
        struct answer answer;
        uint32_t status = set ? check_set(session, set, assembly) : KVT_WIRE_GONE;

        answer_begin(&answer, session, assembly->request);
        if (!status) {
                publish_set(session, assembly, &answer, &deferred);
        } else {
                for (uint32_t i = 0; i < assembly->n; i++) {
                        count(session, METRICS_COMMIT, status);
                        answer_status(&answer, i, status);
                }
                if (status == KVT_WIRE_STALE)
                        end_set(session, set);
        }
        answer_end(&answer, deferred && deferred->n_left);
        finish_deferral(deferred);
}

void store_commit(struct session *session, const struct wire_batch *batch)
{
        struct assembly *assembly;

        if (!batch->set) {
                commit_singles(session, batch);
                return;
        }
        if (!assembly_add(session, batch, &assembly))
                return;
        commit_set(session, assembly);
        assembly_free(assembly);
}

/* ---- abort ---- */

static uint32_t abort_one(struct session *session, uint64_t id)
{
        struct lease *lease = lease_find(&session->daemon->leases, session, id);

        if (!lease || lease->kind == LEASE_READ)
                return KVT_WIRE_GONE;
        if (lease->set) {
                end_set(session, lease->set);
                return KVT_WIRE_OK;
        }
        lease_end(&session->daemon->leases, lease);
        acquires_reservation_ended(session->daemon);
        return KVT_WIRE_OK;
}

void store_abort(struct session *session, const struct wire_batch *batch)
{
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
                if (!found && batch->set && !find_set(session, batch->set))
                        status = KVT_WIRE_OK;
                else
                        status = abort_one(session, lease);
                count(session, METRICS_ABORT, status);
                answer_status(&answer, index, status);
        }
        answer_end(&answer, batch->header.flags & WIRE_MORE);
}
