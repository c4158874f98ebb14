// SPDX-License-Identifier: Apache-2.0
/*
 * The way out of the pool. An entry that is forgotten leaves the index; an own bundle of
 * which nothing, or less than half, is alive then goes whole:
 *
 *     live -> going (what else lived in it vanishes; the journal says deleted) ->
 *     removing (when that is in the pool, and its readers have ended) -> gone
 *
 * From the first step on it is among the condemned in the index, so that a crash forgets
 * none. It counts against the cap until it is gone. A forget that made a bundle go waits for
 * the first attempt to remove it, so that its on_freed means room; not when the pool does
 * not answer.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

struct removal {
        struct remote *remote;
        struct remote_bundle *bundle;
        char name[POOL_NAME_MAX];
        struct pool_remove remove;
};

/* ---- entries ---- */

void remote_drop_entry(struct remote *remote, struct remote_entry *entry,
                       struct database_changes *changes)
{
        struct remote_bundle *bundle = entry->bundle;
        uint8_t key[REMOTE_INDEX_ENTRY_KEY_BYTES];

        remote_index_entry_key(key, &entry->key, entry->claim);
        database_changes_delete(changes, key, sizeof(key));
        if (bundle->node->is_own) {
                bundle->live_bytes -= entry->stored_bytes;
                bundle->dead_bytes += entry->stored_bytes;
                remote->payload_bytes -= entry->stored_bytes;
                remote->n_objects--;
        }
        remote_map_drop(&remote->map, entry);
}

static void tell_vanished(struct remote *remote, const struct remote_vanished *vanished)
{
        if (remote->tier.on_vanished && !remote->is_closing)
                remote->tier.on_vanished(remote->tier.on_shared_user, &vanished->key,
                                         vanished->place, vanished->replaced,
                                         vanished->checksum_total);
}

void remote_queue_vanished(struct remote *remote, const struct object_key *key,
                           struct tier_place place, bool replaced, uint64_t checksum_total)
{
        struct remote_vanished *vanished = calloc(1, sizeof(*vanished));

        if (!vanished) {
                remote_break(remote, err_raise(-ENOMEM));
                return;
        }
        vanished->key = *key;
        vanished->place = place;
        vanished->replaced = replaced;
        vanished->checksum_total = checksum_total;
        STAILQ_INSERT_TAIL(&remote->vanished, vanished, link);
        remote_wake(remote);
}

void remote_vanish(struct remote *remote, struct remote_entry *entry,
                   struct database_changes *changes, bool replaced, uint64_t checksum_total)
{
        /* A place that was not handed over yet is told by the end of its write, one that
         * was given back by the end of its forget. */
        if (!(entry->flags & (REMOTE_ENTRY_ENTERING | REMOTE_ENTRY_FORGOTTEN)))
                remote_queue_vanished(remote, &entry->key, remote_map_place(&remote->map, entry),
                                      replaced, checksum_total);
        remote_drop_entry(remote, entry, changes);
}

void remote_tell_vanished(struct remote *remote)
{
        struct remote_vanished *vanished;

        while ((vanished = STAILQ_FIRST(&remote->vanished))) {
                STAILQ_REMOVE_HEAD(&remote->vanished, link);
                tell_vanished(remote, vanished);
                free(vanished);
        }
}

/* The caller gave it back before it was told. */
static void untell_vanished(struct remote *remote, struct tier_place place)
{
        struct remote_vanished *vanished;

        STAILQ_FOREACH(vanished, &remote->vanished, link)
        {
                if (vanished->place.claim == place.claim)
                        vanished->place = (struct tier_place){0, 0};
        }
}

void remote_release_bundle(struct remote *remote, struct remote_bundle *bundle)
{
        if (!bundle->node->is_own && !bundle->n_entries && !bundle->n_reads)
                remote_map_drop_bundle(&remote->map, bundle);
}

/* ---- forgets ---- */

static struct tier_forget *request_of(struct remote_forget *forget)
{
        return (void *)((char *)forget - offsetof(struct tier_forget, tier_private));
}

static void queue_freed(struct remote *remote, struct remote_forget *forget)
{
        STAILQ_INSERT_TAIL(&remote->freed_forgets, forget, link);
        remote_wake(remote);
}

void remote_tell_freed(struct remote *remote)
{
        struct remote_forget *forget;

        while ((forget = STAILQ_FIRST(&remote->freed_forgets))) {
                struct tier_forget *request = request_of(forget);

                STAILQ_REMOVE_HEAD(&remote->freed_forgets, link);
                request->on_freed(request, forget->result);
        }
}

/* The forgets that wait for the end of @bundle wait no longer. */
static void release_forgets(struct remote *remote, struct remote_bundle *bundle)
{
        struct remote_forget *forget;

        while ((forget = STAILQ_FIRST(&bundle->forgets))) {
                STAILQ_REMOVE_HEAD(&bundle->forgets, link);
                forget->bundle = NULL;
                if (forget->is_deleted)
                        queue_freed(remote, forget);
        }
}

void remote_release_forgets(struct remote *remote)
{
        struct remote_bundle *bundle;

        TAILQ_FOREACH(bundle, &remote->going, link) {
                release_forgets(remote, bundle);
        }
}

static void on_forgotten(struct remote *remote, void *user, int result)
{
        struct remote_forget *forget = user;
        struct tier_forget *request = request_of(forget);

        forget->is_deleted = true;
        forget->result = result;
        if (request->on_deleted)
                request->on_deleted(request, result);
        if (forget->bundle && (remote->is_open || remote->is_broken))
                release_forgets(remote, forget->bundle);
        else if (!forget->bundle)
                queue_freed(remote, forget);
}

/* Nobody reads it any more. */
static void forget_entry(struct remote *remote, struct remote_forget *forget,
                         struct remote_entry *entry)
{
        struct remote_bundle *bundle = entry->bundle;
        struct database_changes changes = {NULL};
        struct journal_record record = {
                .kind = JOURNAL_DROPPED,
                .bundle = {.number = bundle->number},
                .part = entry->part,
        };
        struct remote_group group;

        remote_drop_entry(remote, entry, &changes);
        remote_examine(remote, bundle);
        if (bundle->node->is_own && bundle->state != REMOTE_BUNDLE_LIVE) {
                forget->bundle = bundle;
                STAILQ_INSERT_TAIL(&bundle->forgets, forget, link);
        } else if (bundle->node->is_own) {
                memcpy(record.bundle.node, bundle->node->id, sizeof(record.bundle.node));
                remote_group_init(&group, &changes);
                remote_group_add(remote, &group, &record);
                remote_group_commit(remote, &group, false);
        }
        remote_release_bundle(remote, bundle);
        forget->op.then = on_forgotten;
        forget->op.user = forget;
        remote_change(remote, &changes, forget->sync, &forget->op);
}

void remote_forget(struct tier *tier, struct tier_place place, const struct object_key *key,
                   bool sync, struct tier_forget *request)
{
        struct remote *remote = (struct remote *)tier;
        struct remote_forget *forget = (struct remote_forget *)request->tier_private;
        struct remote_entry *entry = remote_map_at(&remote->map, place);

        memset(forget, 0, sizeof(*forget));
        forget->place = place;
        forget->sync = sync;
        if (!entry || !object_key_equal(&entry->key, key)) {
                untell_vanished(remote, place);
                queue_freed(remote, forget);
        } else if (entry->n_reads) {
                entry->flags |= REMOTE_ENTRY_FORGOTTEN;
                STAILQ_INSERT_TAIL(&remote->forgets, forget, link);
        } else {
                forget_entry(remote, forget, entry);
        }
}

void remote_readers_ended(struct remote *remote, struct remote_bundle *bundle)
{
        struct remote_forget *forget, *next;

        /* The last job's count holds @bundle until we are done with it. */
        for (forget = STAILQ_FIRST(&remote->forgets); forget; forget = next) {
                struct remote_entry *entry = remote_map_at(&remote->map, forget->place);

                next = STAILQ_NEXT(forget, link);
                if (entry && entry->n_reads)
                        continue;
                STAILQ_REMOVE(&remote->forgets, forget, remote_forget, link);
                if (entry)
                        forget_entry(remote, forget, entry);
                else
                        queue_freed(remote, forget);
        }
        remote_forget_missed(remote);
        bundle->n_reads--;
        if (bundle->node->is_own && bundle->state == REMOTE_BUNDLE_GOING)
                remote_wake(remote);
        else
                remote_release_bundle(remote, bundle);
}

/* ---- bundles ---- */

void remote_examine(struct remote *remote, struct remote_bundle *bundle)
{
        if (!bundle->node->is_own || bundle->state != REMOTE_BUNDLE_LIVE ||
            (bundle->n_entries && bundle->live_bytes >= bundle->dead_bytes))
                return;
        bundle->state = REMOTE_BUNDLE_GOING;
        remote->n_bundles--;
        TAILQ_INSERT_TAIL(&remote->going, bundle, link);
        remote_wake(remote);
}

static void announce(struct remote *remote, struct remote_bundle *bundle)
{
        struct remote_index_bundle value = {.bytes = bundle->bytes};
        struct journal_record record = {
                .kind = JOURNAL_DELETED,
                .bundle = {.number = bundle->number},
        };
        struct database_changes changes = {NULL};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];
        struct remote_group group;

        while (bundle->first_entry)
                remote_vanish(remote, remote_map_slot(&remote->map, bundle->first_entry), &changes,
                              false, 0);
        remote_index_number_key(key, REMOTE_INDEX_BUNDLE, bundle->number);
        database_changes_delete(&changes, key, sizeof(key));
        remote_index_number_key(key, REMOTE_INDEX_CONDEMNED, bundle->number);
        database_changes_put(&changes, key, sizeof(key), &value, sizeof(value));
        memcpy(record.bundle.node, bundle->node->id, sizeof(record.bundle.node));
        remote_group_init(&group, &changes);
        remote_group_add(remote, &group, &record);
        bundle->ordinal = remote_group_commit(remote, &group, true);
        bundle->is_announced = true;
        remote_change(remote, &changes, false, NULL);
}

void remote_announce_going(struct remote *remote)
{
        struct remote_bundle *bundle;

        TAILQ_FOREACH(bundle, &remote->going, link) {
                if (!bundle->is_announced)
                        announce(remote, bundle);
        }
}

struct remote_bundle *remote_condemn(struct remote *remote, uint64_t number, uint64_t bytes,
                                     uint32_t delay_ms)
{
        struct remote_bundle *bundle = remote_map_bundle(&remote->map, remote->own, number, true);

        if (!bundle) {
                remote_break(remote, err_raise(-ENOMEM)); /* the next start finds it */
                return NULL;
        }
        bundle->bytes = bytes;
        bundle->state = REMOTE_BUNDLE_GOING;
        bundle->is_announced = true;
        bundle->not_before = uv_now(remote->loop) + delay_ms;
        TAILQ_INSERT_TAIL(&remote->going, bundle, link);
        remote_wake(remote);
        return bundle;
}

/* ---- removing ---- */

static void on_removed(struct pool_remove *remove, int result)
{
        struct removal *removal = remove->user;
        struct remote *remote = removal->remote;
        struct remote_bundle *bundle = removal->bundle;
        struct database_changes changes = {NULL};
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];

        free(removal);
        remote->n_removes--;
        release_forgets(remote, bundle);
        if (result && result != -ENOENT) {
                bundle->state = REMOTE_BUNDLE_GOING;
                bundle->not_before = uv_now(remote->loop) + remote->options.retry_ms;
        } else {
                remote_index_number_key(key, REMOTE_INDEX_CONDEMNED, bundle->number);
                database_changes_delete(&changes, key, sizeof(key));
                remote_change(remote, &changes, false, NULL);
                remote->used_bytes -= bundle->bytes;
                TAILQ_REMOVE(&remote->going, bundle, link);
                remote_map_drop_bundle(&remote->map, bundle);
                if (remote->is_full) {
                        remote->is_full = false;
                        remote->is_paused = true; /* who was refused is told */
                }
        }
        remote_note(remote, result);
        remote_ready(remote);
        remote_start_removes(remote);
        remote_idle(remote);
}

static int start_remove(struct remote *remote, struct remote_bundle *bundle)
{
        struct removal *removal = calloc(1, sizeof(*removal));
        struct bundle_id id = {.number = bundle->number};
        int r;

        if (!removal)
                return err_raise(-ENOMEM);
        memcpy(id.node, bundle->node->id, sizeof(id.node));
        bundle_name(removal->name, &id);
        removal->remote = remote;
        removal->bundle = bundle;
        removal->remove = (struct pool_remove){
                .name = removal->name,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_removed,
                .user = removal,
        };
        r = remote->pool->ops.remove(remote->pool, &removal->remove);
        if (r) {
                free(removal);
                return r;
        }
        bundle->state = REMOTE_BUNDLE_REMOVING;
        remote->n_removes++;
        remote_busy(remote);
        return 0;
}

void remote_start_removes(struct remote *remote)
{
        uint64_t now = uv_now(remote->loop);
        struct remote_bundle *bundle;

        if (remote->is_open || remote->is_closing || !remote->is_recovered)
                return;
        TAILQ_FOREACH(bundle, &remote->going, link) {
                if (remote->n_removes >= remote->options.queue_depth)
                        return; /* the end of one starts the next */
                if (bundle->state != REMOTE_BUNDLE_GOING || !bundle->is_announced ||
                    bundle->ordinal > remote->done_ordinal || bundle->n_reads ||
                    bundle->not_before > now)
                        continue;
                if (start_remove(remote, bundle))
                        bundle->not_before = now + remote->options.retry_ms;
        }
        remote_retry_soon(remote);
}
