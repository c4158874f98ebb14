// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/acquire.h"
#include "daemon/answer.h"
#include "daemon/assembly.h"
#include "daemon/commit.h"
#include "daemon/daemon.h"
#include "daemon/layout_table.h"
#include "daemon/layout_use.h"
#include "daemon/set.h"

static void count(struct session *session, uint32_t status)
{
        session->daemon->metrics.operation_objects_total[METRICS_COMMIT][status]++;
}

/* ---- items that are answered later: when old entries are durably gone ---- */

/* Exists while one of them, or a part of the request that is being handled, is open. */
struct deferred_commit {
        LIST_ENTRY(deferred_commit) link; /* of the session */
        struct session *session;
        uint64_t request;
        uint64_t cancel; /* request of the CANCEL that is answered after it, or 0 */
        uint32_t n_left;
        uint32_t failure; /* of the set, else OK */
        bool last_part_came;
};

struct deferred_item {
        struct deferred_commit *commit;
        uint32_t index;
        uint32_t status; /* of the publication */
};

/* One part of a request, while it is handled. */
struct part {
        struct session *session;
        uint64_t request;
        struct deferred_commit *deferred; /* NULL: nothing of the request is deferred */
};

static struct deferred_commit *find_deferred(struct session *session, uint64_t request)
{
        struct deferred_commit *commit;

        LIST_FOREACH(commit, &session->deferred_commits, link)
                if (commit->request == request)
                        return commit;
        return NULL;
}

static void end_when_all_is_answered(struct deferred_commit *commit)
{
        struct session *session = commit->session;

        if (commit->n_left)
                return;
        LIST_REMOVE(commit, link);
        if (commit->cancel)
                answer_once(session, commit->cancel, KVT_WIRE_OK);
        free(commit);
        session_unref(session);
}

static void on_forgotten(void *user, int result)
{
        struct deferred_item *item = user;
        struct deferred_commit *commit = item->commit;
        uint32_t status = commit->failure ? commit->failure : item->status;
        struct answer answer;

        if (!status && result < 0)
                status = KVT_WIRE_IO_ERROR;
        commit->n_left--;
        count(commit->session, status);
        answer_begin(&answer, commit->session, commit->request);
        answer_status(&answer, item->index, status);
        answer_end(&answer, commit->n_left || !commit->last_part_came);
        free(item);
        end_when_all_is_answered(commit);
}

static void part_begin(struct part *part, struct session *session, uint64_t request)
{
        *part = (struct part){session, request, find_deferred(session, request)};
        if (part->deferred)
                part->deferred->n_left++;
}

static void part_end(struct part *part, struct answer *answer, bool more)
{
        if (part->deferred) {
                part->deferred->n_left--;
                part->deferred->last_part_came = !more;
        }
        answer_end(answer, more || (part->deferred && part->deferred->n_left));
        if (part->deferred)
                end_when_all_is_answered(part->deferred);
}

/* The record that a replacing commit needs, made before anything is changed. */
static struct deferred_item *prepare_deferral(struct part *part, uint32_t index)
{
        struct deferred_item *item = calloc(1, sizeof(*item));

        if (item && !part->deferred) {
                part->deferred = calloc(1, sizeof(*part->deferred));
                if (part->deferred) {
                        part->deferred->session = part->session;
                        part->deferred->request = part->request;
                        part->deferred->n_left = 1; /* the part */
                        part->session->n_refs++;
                        LIST_INSERT_HEAD(&part->session->deferred_commits, part->deferred, link);
                }
        }
        if (!item || !part->deferred) {
                free(item);
                return NULL;
        }
        item->commit = part->deferred;
        item->index = index;
        return item;
}

bool commit_cancel(struct session *session, uint64_t target, uint64_t request)
{
        struct deferred_commit *commit = find_deferred(session, target);

        if (!commit || commit->cancel)
                return false;
        commit->cancel = request;
        return true;
}

/* ---- publishing ---- */

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

static void note_refusal(struct session *session, const struct index_new_object *entry,
                         enum drop_reason reason)
{
        struct drop drop = {
                .digest = entry->digest,
                .boundary_tokens = entry->boundary_tokens,
                .layout = entry->layout,
                .group = entry->group,
                .shard = entry->shard,
                .tier = METRICS_N_TIERS,
                .reason = (uint8_t)reason,
        };

        drop_ring_note(&session->daemon->cache.drops, &drop);
}

static void note_stored(struct session *session, const struct index_new_object *entry)
{
        struct layout_entry *layout = index_layout_at(session->daemon->cache.index, entry->layout);
        struct layout_group_use *use = layout_use_group(layout, entry->group);

        if (use)
                use->stored++;
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
 * Publishes one reservation. *@ret_is_deferred: the status is not final yet, on_forgotten()
 * will send it. @checksums (may be NULL) is taken over. The caller ends the lease, whatever
 * came of it.
 */
static uint32_t publish(struct part *part, struct lease *lease, struct checksum_list *checksums,
                        uint32_t index, bool *ret_is_deferred)
{
        _cleanup_free_ struct checksum_list *given = checksums;
        struct session *session = part->session;
        struct daemon *daemon = session->daemon;
        struct host_copy *copy = lease->copy;
        struct deferred_item *item = NULL;
        int r = 0;

        *ret_is_deferred = false;
        if (lease->replace) {
                item = prepare_deferral(part, index);
                r = item ? 0 : -ENOMEM;
        }
        if (!r) {
                copy->state = HOST_COPY_READY;
                r = cache_publish(&daemon->cache, copy, &lease->entry, lease->replace, on_forgotten,
                                  item, ret_is_deferred);
        }
        if (*ret_is_deferred) {
                item->status = status_of_publish(r);
                part->deferred->n_left++;
        } else {
                free(item);
        }
        if (!r) {
                session->stored_objects++;
                session->stored_bytes += copy->raw_bytes;
                note_stored(session, &lease->entry);
                if (given)
                        verify_written(&daemon->cache, copy, steal_ptr(given));
        }
        if (r && r != CACHE_E_EXISTS)
                note_refusal(session, &lease->entry,
                             r == CACHE_E_INDEX_FULL ? DROP_INDEX_FULL : DROP_NO_MEMORY);
        lease->is_settled = true;
        return status_of_publish(r);
}

/* A remote session has to bring the bytes before: what is in the memory else is another's. */
static uint32_t check_fill(const struct lease *lease)
{
        if (lease->session->carrier->shares_memory || lease->fill == LEASE_FILLED)
                return KVT_WIRE_OK;
        return lease->fill == LEASE_UNFILLABLE ? lease->fill_status : KVT_WIRE_INVALID;
}

/* KVT_WIRE_OK: it may be published. INVALID: it stays as it is; else it ends. */
static uint32_t check_writer(const struct lease *lease, uint32_t n_pieces)
{
        return list_fits(lease, n_pieces) ? check_fill(lease) : KVT_WIRE_INVALID;
}

/* NULL: none was given, or no memory; then the daemon makes its own when one is needed. */
static struct checksum_list *given_list(const uint64_t *pieces, uint32_t n_pieces)
{
        struct checksum_list *list;

        if (!n_pieces)
                return NULL;
        list = calloc(1, sizeof(*list));
        if (list) {
                list->n_pieces = n_pieces;
                memcpy(list->pieces, pieces, n_pieces * sizeof(*pieces));
        }
        return list;
}

static void commit_singles(struct session *session, const struct wire_batch *batch)
{
        struct wire_commit_item item;
        struct message_cursor cursor;
        const uint64_t *pieces;
        struct answer answer;
        uint32_t index = batch->first;
        bool more = batch->header.flags & WIRE_MORE;
        struct part part;

        part_begin(&part, session, batch->header.request);
        answer_begin(&answer, session, batch->header.request);
        message_cursor_init(&cursor, batch);
        for (; !message_next_commit(&cursor, &item, &pieces); index++) {
                struct lease *lease = lease_find(&session->daemon->leases, session, item.lease);
                bool is_deferred = false;
                uint32_t status;

                if (!lease || lease->kind != LEASE_WRITE) {
                        status = KVT_WIRE_GONE;
                } else {
                        status = lease->set ? KVT_WIRE_INVALID : check_writer(lease, item.n_pieces);
                        if (!status)
                                status = publish(&part, lease, given_list(pieces, item.n_pieces),
                                                 index, &is_deferred);
                        if (status != KVT_WIRE_INVALID) {
                                lease_end(&session->daemon->leases, lease);
                                acquires_reservation_ended(session->daemon);
                        }
                }
                if (is_deferred)
                        continue;
                count(session, status);
                answer_status(&answer, index, status);
        }
        part_end(&part, &answer, more);
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
        (*n_write)++;
        return check_writer(lease, commit->n_pieces);
}

/* The members that were stored before are still what the set relied on. */
static bool members_hold(struct session *session, const struct lease_set *set)
{
        struct lease *lease;

        LIST_FOREACH(lease, &set->members, set_link)
                if (lease->kind == LEASE_HAVE && !member_holds(session, lease))
                        return false;
        return true;
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
        LIST_FOREACH(lease, &set->members, set_link)
                lease->named = false;
        if (!status && !members_hold(session, set))
                status = KVT_WIRE_STALE;
        if (!status && n_write != set->n_write)
                status = KVT_WIRE_INVALID;
        return status;
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

        if (!object)
                return;
        cache->drop_reason = DROP_SET_FAILED;
        cache_drop(cache, object, METRICS_FOR_SPACE);
}

/*
 * Publishes the members in one turn of the loop. Only memory or a full index can fail
 * here, which may also cost a member that was stored before; then the members published so
 * far go again, and nobody has seen them. Their leases last until all are published: room
 * in the index for one must not be made by evicting another. *@ret_deferred[i]: the item is
 * answered later.
 */
static uint32_t publish_members(struct part *part, struct lease_set *set, struct assembly *assembly,
                                struct index_new_object *published, bool *ret_deferred)
{
        struct session *session = part->session;
        uint32_t n_published = 0, status = KVT_WIRE_OK;

        for (uint32_t i = 0; i < assembly->n && !status; i++) {
                struct assembly_commit *commit = &assembly->commits[i];
                struct lease *lease = lease_find(&session->daemon->leases, session, commit->lease);

                if (!lease || lease->kind != LEASE_WRITE)
                        continue;
                published[n_published] = lease->entry;
                status = publish(part, lease, given_list(commit->pieces, commit->n_pieces), i,
                                 &ret_deferred[i]);
                if (status == KVT_WIRE_OK)
                        n_published++;
                else if (status == KVT_WIRE_ALREADY_HAVE)
                        status = KVT_WIRE_OK; /* lost the race to a visible object: committed */
        }
        if (!status && !members_hold(session, set))
                status = KVT_WIRE_STALE;
        for (uint32_t i = 0; status && i < n_published; i++)
                unpublish(session, &published[i]);
        return status;
}

static void publish_set(struct part *part, struct lease_set *set, struct assembly *assembly,
                        struct answer *answer)
{
        struct session *session = part->session;
        _cleanup_free_ struct index_new_object *published =
                calloc(assembly->n + 1, sizeof(*published));
        _cleanup_free_ bool *is_deferred = calloc(assembly->n + 1, sizeof(*is_deferred));
        uint32_t status = KVT_WIRE_NO_MEMORY;

        if (published && is_deferred)
                status = publish_members(part, set, assembly, published, is_deferred);
        if (part->deferred)
                part->deferred->failure = status;
        for (uint32_t i = 0; i < assembly->n; i++) {
                if (is_deferred && is_deferred[i])
                        continue;
                count(session, status);
                answer_status(answer, i, status);
        }
        set_end(&session->daemon->leases, set);
        acquires_reservation_ended(session->daemon);
}

/* Its writers lose what they wrote because of a member that was stored already. */
static void note_stale_set(struct session *session, struct lease_set *set)
{
        struct lease *lease;

        LIST_FOREACH(lease, &set->members, set_link) {
                if (lease->kind != LEASE_WRITE)
                        continue;
                note_refusal(session, &lease->entry, DROP_SET_STALE);
                lease->is_settled = true;
        }
}

static void commit_set(struct session *session, struct assembly *assembly)
{
        struct lease_set *set = set_find(session, assembly->batch.set);
        uint32_t status = set ? check_set(session, set, assembly) : KVT_WIRE_GONE;
        struct answer answer;
        struct part part;

        part_begin(&part, session, assembly->request);
        answer_begin(&answer, session, assembly->request);
        if (!status) {
                publish_set(&part, set, assembly, &answer);
        } else {
                for (uint32_t i = 0; i < assembly->n; i++) {
                        count(session, status);
                        answer_status(&answer, i, status);
                }
                /* After INVALID nothing has changed. */
                if (set && status != KVT_WIRE_INVALID) {
                        if (status != KVT_WIRE_GONE)
                                note_stale_set(session, set);
                        set_end(&session->daemon->leases, set);
                        acquires_reservation_ended(session->daemon);
                }
        }
        part_end(&part, &answer, false);
}

void commit_request(struct session *session, const struct wire_batch *batch)
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
