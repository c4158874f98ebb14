// SPDX-License-Identifier: Apache-2.0
/*
 * The start, from the index alone: what is little is loaded when it is opened, entries are
 * walked on a worker and handed to the loop in batches. Of several entries of one key the
 * last one counts: the others were to be forgotten when the process ended.
 *
 * The pool is asked for nothing before the end of it.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/catalog_layout.h"
#include "storage/remote_tier.h"

#define BATCH_BYTES   (256u << 10)
#define BATCH_RECORDS 256u

struct record {
        uint32_t key_bytes;
        uint32_t is_superseded;
        uint64_t value_bytes;
};

struct recovery {
        struct remote *remote;
        void (*on_object)(void *user, const struct tier_object *object, struct tier_place place);
        void (*on_end)(void *user, int result);
        void *user;
        struct database_cursor *cursor;
        uint8_t *bytes; /* records, each with its key and value */
        size_t used, size;
        size_t last; /* where the last record begins */
        uint32_t n_records;
        bool has_held; /* the last record of the batch before is the first of this one */
        bool is_at_end;
        int result;
        uv_work_t work;
};

/* ---- when it is opened ---- */

static int first_of(int r, int other)
{
        return r ? r : other;
}

static int each(struct remote *remote, char prefix,
                int (*take)(struct remote *remote, const void *key, size_t key_bytes,
                            const void *value, size_t value_bytes))
{
        struct database_cursor *cursor;
        size_t key_bytes, value_bytes;
        const void *key, *value;
        int r = database_cursor_open(&cursor, remote->index, prefix), closed;

        if (r)
                return r;
        while (!r && database_cursor_next(cursor, &key, &key_bytes, &value, &value_bytes))
                r = take(remote, key, key_bytes, value, value_bytes);
        closed = database_cursor_close(cursor);
        return first_of(r, closed);
}

static int take_bundle(struct remote *remote, const void *key, size_t key_bytes, const void *value,
                       size_t value_bytes)
{
        struct remote_index_bundle kept;
        struct remote_bundle *bundle;
        uint64_t number;

        if (!remote_index_number_of(key, key_bytes, &number) || value_bytes != sizeof(kept))
                return 0;
        memcpy(&kept, value, sizeof(kept));
        bundle = remote_map_bundle(&remote->map, remote->own, number, true);
        if (!bundle)
                return err_raise(-ENOMEM);
        bundle->bytes = kept.bytes;
        remote->used_bytes += kept.bytes;
        remote->n_bundles++;
        return 0;
}

static int take_condemned(struct remote *remote, const void *key, size_t key_bytes,
                          const void *value, size_t value_bytes)
{
        struct remote_index_bundle kept;
        uint64_t number;

        if (!remote_index_number_of(key, key_bytes, &number) || value_bytes != sizeof(kept))
                return 0;
        memcpy(&kept, value, sizeof(kept));
        /* A put of the last run may still be on its way. */
        if (!remote_condemn(remote, number, kept.bytes, remote->options.deadline_ms))
                return err_raise(-ENOMEM);
        remote->used_bytes += kept.bytes;
        return 0;
}

static int take_pending(struct remote *remote, const void *key, size_t key_bytes, const void *value,
                        size_t value_bytes)
{
        uint64_t sequence;

        if (!remote_index_number_of(key, key_bytes, &sequence))
                return 0;
        return remote_journal_restore(remote, value, value_bytes, sequence);
}

static int take_node(struct remote *remote, const void *key, size_t key_bytes, const void *value,
                     size_t value_bytes)
{
        const struct remote_index_position *positions;
        struct remote_index_node kept;
        struct remote_node *node;
        int r = 0;

        if (key_bytes != REMOTE_INDEX_NODE_BYTES || value_bytes < sizeof(kept))
                return 0;
        memcpy(&kept, value, sizeof(kept));
        if (value_bytes != sizeof(kept) + (uint64_t)kept.n_positions * sizeof(*positions))
                return 0;
        node = remote_map_node(&remote->map, (const uint8_t *)key + 1, true);
        if (!node)
                return err_raise(-ENOMEM);
        if (!node->is_own)
                node->read_to = kept.read_to;
        node->floor = kept.floor;
        node->gap_at = kept.gap_at;
        remote->has_floors |= kept.floor > 0;
        for (uint32_t i = 0; !r && i < kept.n_positions; i++) {
                struct remote_index_position position;
                struct remote_node *of;

                memcpy(&position, (const uint8_t *)value + sizeof(kept) + i * sizeof(position),
                       sizeof(position));
                of = remote_map_node(&remote->map, position.node, true);
                r = of ? remote_node_set_position(node, of, position.number) : err_raise(-ENOMEM);
        }
        return r;
}

int remote_load(struct remote *remote, struct why *why)
{
        int r = each(remote, REMOTE_INDEX_BUNDLE, take_bundle);

        r = first_of(r, each(remote, REMOTE_INDEX_CONDEMNED, take_condemned));
        r = first_of(r, each(remote, REMOTE_INDEX_PENDING, take_pending));
        r = first_of(r, each(remote, REMOTE_INDEX_NODE, take_node));
        r = first_of(r, each(remote, REMOTE_INDEX_REPLACED, remote_replaced_restore));
        if (r)
                why_set(why, "index of the pool %s: %s", remote->options.index_path, strerror(-r));
        return r;
}

/* ---- entries, on a worker ---- */

static struct record *record_at(const struct recovery *recovery, size_t at)
{
        return (struct record *)(recovery->bytes + at);
}

static size_t record_bytes(const struct record *record)
{
        return (sizeof(*record) + record->key_bytes + record->value_bytes + 7) / 8 * 8;
}

static int append(struct recovery *recovery, const void *key, size_t key_bytes, const void *value,
                  size_t value_bytes)
{
        struct record record = {.key_bytes = (uint32_t)key_bytes, .value_bytes = value_bytes};
        size_t needed = record_bytes(&record);
        uint8_t *at;

        if (recovery->size - recovery->used < needed) {
                size_t size = 2 * recovery->size + needed;
                uint8_t *bytes = realloc(recovery->bytes, size);

                if (!bytes)
                        return err_raise(-ENOMEM);
                recovery->bytes = bytes;
                recovery->size = size;
        }
        at = recovery->bytes + recovery->used;
        memcpy(at, &record, sizeof(record));
        memcpy(at + sizeof(record), key, key_bytes);
        memcpy(at + sizeof(record) + key_bytes, value, value_bytes);
        recovery->last = recovery->used;
        recovery->used += needed;
        recovery->n_records++;
        return 0;
}

/* The one that was held back moves to the front. */
static void begin_batch(struct recovery *recovery)
{
        size_t held = recovery->has_held ? recovery->used - recovery->last : 0;

        if (held)
                memmove(recovery->bytes, recovery->bytes + recovery->last, held);
        recovery->used = held;
        recovery->last = 0;
        recovery->n_records = held ? 1 : 0;
}

static bool is_same_object(const struct record *record, const void *key, size_t key_bytes)
{
        return record->key_bytes == REMOTE_INDEX_ENTRY_KEY_BYTES &&
               key_bytes == REMOTE_INDEX_ENTRY_KEY_BYTES &&
               !memcmp(record + 1, key, 1 + sizeof(struct object_key));
}

static void read_batch(uv_work_t *work)
{
        struct recovery *recovery = work->data;
        size_t key_bytes, value_bytes;
        const void *key, *value;
        int r = 0;

        if (!recovery->cursor)
                r = database_cursor_open(&recovery->cursor, recovery->remote->index,
                                         REMOTE_INDEX_ENTRY);
        begin_batch(recovery);
        while (!r && recovery->used < BATCH_BYTES && recovery->n_records < BATCH_RECORDS) {
                if (!database_cursor_next(recovery->cursor, &key, &key_bytes, &value,
                                          &value_bytes)) {
                        recovery->is_at_end = true;
                        break;
                }
                if (recovery->n_records &&
                    is_same_object(record_at(recovery, recovery->last), key, key_bytes))
                        record_at(recovery, recovery->last)->is_superseded = true;
                r = append(recovery, key, key_bytes, value, value_bytes);
        }
        /* The next one may be of the same object: the last waits for it. */
        recovery->has_held = !recovery->is_at_end && recovery->n_records;
        recovery->result = r;
}

/* ---- entries, on the loop ---- */

static struct remote_node *node_of(struct remote *remote, const uint8_t id[16])
{
        if (!memcmp(id, remote->own->id, sizeof(remote->own->id)))
                return remote->own;
        return remote_map_node(&remote->map, id, true);
}

/* NULL: the entry is of no use. */
static struct remote_entry *take_entry(struct remote *remote, const struct object_key *key,
                                       uint64_t claim, const struct remote_index_entry *kept,
                                       const struct bundle_part *part)
{
        struct remote_node *node = node_of(remote, kept->node);
        struct remote_bundle *bundle =
                node ? remote_map_bundle(&remote->map, node, kept->number, !node->is_own) : NULL;
        struct remote_entry *entry;

        if (!bundle || bundle->state != REMOTE_BUNDLE_LIVE)
                return NULL;
        entry = remote_map_add(&remote->map, key, bundle, kept->part);
        if (!entry) {
                remote->counts.entries_refused++;
                remote_release_bundle(remote, bundle);
                return NULL;
        }
        entry->claim = claim;
        if (remote->map.next_claim <= claim)
                remote->map.next_claim = claim + 1;
        entry->raw_bytes = part->object.raw_bytes;
        entry->stored_bytes = (uint32_t)part->stored_bytes;
        entry->checksum_total = part->checksums.total;
        entry->flags = kept->flags & 1 ? REMOTE_ENTRY_LEARNED : 0;
        if (node->is_own) {
                bundle->live_bytes += entry->stored_bytes;
                remote->n_objects++;
                remote->payload_bytes += entry->stored_bytes;
        }
        return entry;
}

static void report(struct recovery *recovery, const struct record *record,
                   struct database_changes *changes)
{
        const uint8_t *key = (const uint8_t *)(record + 1);
        struct remote *remote = recovery->remote;
        struct remote_entry *entry = NULL;
        struct remote_index_entry kept;
        struct bundle_part part;
        uint64_t claim = remote_index_claim_of(key, record->key_bytes);
        struct object_key object_key;

        if (claim && !record->is_superseded) {
                memcpy(&object_key, key + 1, sizeof(object_key));
                if (!remote_index_entry_decode(key + record->key_bytes, record->value_bytes, &kept,
                                               &part) &&
                    object_key_equal(&object_key, &part.object.key))
                        entry = take_entry(remote, &object_key, claim, &kept, &part);
        }
        if (entry)
                recovery->on_object(recovery->user, &part.object,
                                    remote_map_place(&remote->map, entry));
        else
                database_changes_delete(changes, key, record->key_bytes);
}

/*
 * Own bundles whose last entry went, or never came, before the process ended; what is dead in
 * the others is what is not alive.
 */
static void judge_bundles(struct remote *remote)
{
        struct remote_bundle *bundle;

        for (bundle = remote_node_first_bundle(remote->own); bundle;
             bundle = remote_bundle_next(bundle)) {
                if (bundle->state != REMOTE_BUNDLE_LIVE)
                        continue;
                if (bundle->bytes > bundle->live_bytes)
                        bundle->dead_bytes = bundle->bytes - bundle->live_bytes;
                if (!bundle->n_entries)
                        remote_examine(remote, bundle);
        }
}

static void finish(struct recovery *recovery, int result)
{
        struct remote *remote = recovery->remote;

        if (!result)
                judge_bundles(remote);
        remote->is_recovered = !result;
        recovery->on_end(recovery->user, result);
        free(recovery->bytes);
        free(recovery);
        remote_wake(remote);
        if (!result)
                remote_begin_following(remote);
        remote_retry_soon(remote);
        remote_idle(remote);
}

static void on_anew_slice(uv_idle_t *slice)
{
        struct remote *remote = slice->data;
        struct why why = {""};
        int r;

        if (!remote_drop_entries(remote))
                return;
        uv_idle_stop(slice);
        r = remote_make_anew(remote, &why);
        if (r)
                remote_notice(remote, "the index of the pool is damaged: %s", why.text);
        finish(remote->recovery, r);
}

/* After a walk that did not end nobody knows what a bundle has: nothing is judged. */
static void end_recovery(struct recovery *recovery, int result)
{
        struct remote *remote = recovery->remote;
        int r = recovery->cursor ? database_cursor_close(recovery->cursor) : 0;

        result = first_of(result, r);
        if (!remote_index_is_damaged(result)) {
                finish(recovery, result);
                return;
        }
        remote->recovery = recovery;
        uv_idle_start(&remote->slice, on_anew_slice);
}

static void on_batch(uv_work_t *work, int status)
{
        struct recovery *recovery = work->data;
        struct remote *remote = recovery->remote;
        struct database_changes changes = {NULL};
        size_t end = recovery->has_held ? recovery->last : recovery->used;
        int r = status < 0 ? err_raise(status) : recovery->result;

        for (size_t at = 0; !r && at < end; at += record_bytes(record_at(recovery, at)))
                report(recovery, record_at(recovery, at), &changes);
        if (changes.length)
                remote_change(remote, &changes, false, NULL);
        if (!r && !recovery->is_at_end)
                r = uv_queue_work(remote->loop, &recovery->work, read_batch, on_batch);
        else
                end_recovery(recovery, r);
}

static int take_layout(struct remote *remote, const void *key, size_t key_bytes, const void *value,
                       size_t value_bytes)
{
        struct tier_layout layout;
        int r = catalog_layout_decode(&layout, key, key_bytes, value, value_bytes);

        if (r < 0)
                return r;
        if (!r)
                remote_layout_found(remote, &layout);
        return 0;
}

void remote_recover(struct tier *tier,
                    void (*on_object)(void *user, const struct tier_object *object,
                                      struct tier_place place),
                    void (*on_end)(void *user, int result), void *user)
{
        struct remote *remote = (struct remote *)tier;
        struct recovery *recovery = calloc(1, sizeof(*recovery));
        int r;

        if (!recovery) {
                on_end(user, err_raise(-ENOMEM));
                return;
        }
        recovery->remote = remote;
        recovery->on_object = on_object;
        recovery->on_end = on_end;
        recovery->user = user;
        recovery->work.data = recovery;
        remote_busy(remote);
        r = each(remote, CATALOG_LAYOUT_PREFIX, take_layout);
        if (!r)
                r = uv_queue_work(remote->loop, &recovery->work, read_batch, on_batch);
        if (r)
                end_recovery(recovery, r);
}
