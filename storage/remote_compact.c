// SPDX-License-Identifier: Apache-2.0
/*
 * Compaction of our journal: when it has many segments, a snapshot of what is alive is
 * written behind them, and they are removed. Segments of the snapshot are filled on a
 * worker, one after another, from a view of the index that has all that was obeyed of the
 * segments which it says are read; what happens meanwhile is told behind it. A snapshot that fails
 * is left as it is, which harms nobody: the segments before it are still there.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/catalog_layout.h"
#include "storage/remote_tier.h"

struct compaction {
        struct remote *remote;
        struct database_cursor *cursor;
        char prefix; /* that the cursor walks: layouts first, then entries */
        bool is_at_end;
        int result;
        struct journal_segment segment;
        uint64_t n_segments;
        uint64_t old_first, first; /* segments [old_first, first) are to go */
        uv_work_t work;
        char name[POOL_NAME_MAX];
        struct pool_buffer buffer;
        struct pool_put put;
        struct pool_remove remove;
        struct remote_op op;
};

/* ---- filling, on a worker ---- */

/* 0, JOURNAL_E_FULL, or a negative errno. */
static int add_entry(struct compaction *compaction, const void *value, size_t value_bytes)
{
        struct remote_index_entry kept;
        struct journal_record record = {.kind = JOURNAL_STORED};

        if (remote_index_entry_decode(value, value_bytes, &kept, &record.stored) ||
            memcmp(kept.node, compaction->remote->own->id, sizeof(kept.node)))
                return 0;
        memcpy(record.bundle.node, kept.node, sizeof(kept.node));
        record.bundle.number = kept.number;
        record.part = kept.part;
        return journal_segment_add(&compaction->segment, &record);
}

static int add_layout(struct compaction *compaction, const void *key, size_t key_bytes,
                      const void *value, size_t value_bytes)
{
        struct journal_record record = {.kind = JOURNAL_LAYOUT};
        int r = catalog_layout_decode(&record.layout, key, key_bytes, value, value_bytes);

        return r ? (r < 0 ? r : 0) : journal_segment_add(&compaction->segment, &record);
}

static int open_cursor(struct compaction *compaction, char prefix)
{
        compaction->prefix = prefix;
        return database_cursor_open(&compaction->cursor, compaction->remote->index, prefix);
}

/* Until the segment is full or all is in it. */
static int fill_from(struct compaction *compaction)
{
        size_t key_bytes, value_bytes;
        const void *key, *value;
        int r = 0;

        while (database_cursor_next(compaction->cursor, &key, &key_bytes, &value, &value_bytes)) {
                r = compaction->prefix == REMOTE_INDEX_ENTRY
                            ? add_entry(compaction, value, value_bytes)
                            : add_layout(compaction, key, key_bytes, value, value_bytes);
                if (r) {
                        database_cursor_hold(compaction->cursor);
                        return r;
                }
        }
        r = database_cursor_close(compaction->cursor);
        compaction->cursor = NULL;
        return r;
}

static void fill(uv_work_t *work)
{
        struct compaction *compaction = work->data;
        int r = fill_from(compaction);

        if (!r && compaction->prefix == CATALOG_LAYOUT_PREFIX) {
                r = open_cursor(compaction, REMOTE_INDEX_ENTRY);
                if (!r)
                        r = fill_from(compaction);
        }
        compaction->is_at_end = !r;
        compaction->result = r == JOURNAL_E_FULL ? 0 : r;
}

/* ---- putting and removing ---- */

static void end(struct compaction *compaction)
{
        struct remote *remote = compaction->remote;

        if (compaction->cursor)
                database_cursor_close(compaction->cursor);
        journal_segment_deinit(&compaction->segment);
        free(compaction);
        remote->is_compacting = remote->is_snapshotting = false;
        remote_journal_work(remote);
        remote_retry_soon(remote);
        remote_idle(remote);
}

static void remove_next(struct compaction *compaction);

static void on_removed(struct pool_remove *remove, int result)
{
        struct compaction *compaction = remove->user;

        remote_note(compaction->remote, result);
        if (result && result != -ENOENT)
                end(compaction); /* the next compaction takes them along */
        else
                remove_next(compaction);
}

static void remove_next(struct compaction *compaction)
{
        struct remote *remote = compaction->remote;
        struct database_changes changes = {NULL};
        bool is_over = compaction->old_first == compaction->first || remote->is_closing;

        /* The snapshot stands: our journal goes on behind it. */
        remote->is_snapshotting = false;
        remote_journal_work(remote);
        remote->first_segment = compaction->old_first;
        remote_put_meta(remote, &changes);
        remote_change(remote, &changes, false, NULL);
        journal_name(compaction->name, remote->own->id, compaction->old_first++);
        compaction->remove = (struct pool_remove){
                .name = compaction->name,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_removed,
                .user = compaction,
        };
        if (is_over || remote->pool->ops.remove(remote->pool, &compaction->remove))
                end(compaction);
}

static void fill_next(struct compaction *compaction);

static void on_put(struct pool_put *put, int result)
{
        struct compaction *compaction = put->user;
        struct remote *remote = compaction->remote;

        remote_note(remote, result);
        /* Whatever became of it, the number is used. */
        remote->own->read_to = remote->next_segment++;
        if (result || remote->is_closing) {
                end(compaction);
                return;
        }
        remote->counts.journal_segments_written++;
        compaction->n_segments++;
        if (compaction->is_at_end)
                remove_next(compaction);
        else
                fill_next(compaction);
}

static void on_filled(uv_work_t *work, int status)
{
        struct compaction *compaction = work->data;
        struct remote *remote = compaction->remote;
        uint64_t number = remote->next_segment;
        int r = status < 0 ? status : compaction->result;

        if (!r && !compaction->segment.n_records) {
                remove_next(compaction);
                return;
        }
        if (!r) {
                journal_segment_seal(&compaction->segment, remote->own->id, number);
                journal_name(compaction->name, remote->own->id, number);
                compaction->buffer =
                        (struct pool_buffer){compaction->segment.bytes, compaction->segment.length};
                compaction->put = (struct pool_put){
                        .name = compaction->name,
                        .buffers = &compaction->buffer,
                        .n_buffers = 1,
                        .flags = POOL_EXCLUSIVE,
                        .deadline_ms = remote->options.deadline_ms,
                        .on_done = on_put,
                        .user = compaction,
                };
                r = remote->pool->ops.put(remote->pool, &compaction->put);
        }
        if (r)
                end(compaction);
}

static void fill_next(struct compaction *compaction)
{
        journal_segment_deinit(&compaction->segment);
        journal_segment_init(&compaction->segment);
        if (uv_queue_work(compaction->remote->loop, &compaction->work, fill, on_filled))
                end(compaction);
}

/* What memory alone knows: it fits one segment. */
static int begin_segment(struct compaction *compaction)
{
        struct remote *remote = compaction->remote;
        struct journal_record record = {.kind = JOURNAL_SNAPSHOT};
        const struct remote_replaced *replaced;
        struct remote_node *node;
        int r = journal_segment_add(&compaction->segment, &record);

        LIST_FOREACH(node, &remote->map.nodes, link) {
                record = (struct journal_record){.kind = JOURNAL_READ, .number = node->read_to};
                memcpy(record.node, node->id, sizeof(record.node));
                if (!r && !node->is_own && node->read_to)
                        r = journal_segment_add(&compaction->segment, &record);
        }
        /* Of ourselves: what we replaced up to there is not repeated below. */
        record = (struct journal_record){.kind = JOURNAL_READ, .number = remote->own->floor};
        memcpy(record.node, remote->own->id, sizeof(record.node));
        if (!r && remote->own->floor)
                r = journal_segment_add(&compaction->segment, &record);
        TAILQ_FOREACH(replaced, &remote->replaced_list, link) {
                record = (struct journal_record){
                        .kind = JOURNAL_REPLACED,
                        .key = replaced->key,
                        .checksum_total = replaced->checksum_total,
                };
                if (!r && replaced->node->is_own && replaced->number != UINT64_MAX)
                        r = journal_segment_add(&compaction->segment, &record);
        }
        return r > 0 ? err_raise(-EMSGSIZE) : r;
}

/* What was obeyed by the time that positions were noted is in the index now. */
static void on_noted(struct remote *remote, void *user, int result)
{
        struct compaction *compaction = user;

        if (result || remote->is_closing || open_cursor(compaction, CATALOG_LAYOUT_PREFIX) ||
            uv_queue_work(remote->loop, &compaction->work, fill, on_filled))
                end(compaction);
}

void remote_compact(struct remote *remote)
{
        struct database_changes nothing = {NULL};
        struct compaction *compaction;

        if (remote->is_compacting || remote->is_closing || remote->is_rebuilding)
                return;
        compaction = calloc(1, sizeof(*compaction));
        if (!compaction)
                return;
        compaction->remote = remote;
        compaction->work.data = compaction;
        compaction->old_first = remote->first_segment;
        compaction->first = remote->next_segment;
        journal_segment_init(&compaction->segment);
        if (begin_segment(compaction)) {
                journal_segment_deinit(&compaction->segment);
                free(compaction);
                return;
        }
        remote->is_compacting = remote->is_snapshotting = true;
        remote_busy(remote);
        compaction->op.then = on_noted;
        compaction->op.user = compaction;
        remote_change(remote, &nothing, false, &compaction->op);
}
