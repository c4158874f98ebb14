// SPDX-License-Identifier: Apache-2.0
/*
 * Our journal. A record is pending in the index from the change on that it tells of, until
 * a segment with it is in the pool: a crash loses none, and at worst tells some twice.
 *
 * Segments wait in a queue; the last one takes records, the first one is in flight. A
 * segment whose put failed keeps its number and its bytes, for it may be there. Before a
 * segment goes out the index has in its log what the segment tells.
 *
 * What we have read of the journals of others is said in front of the first record that
 * was written in its knowledge.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

struct flush {
        struct remote *remote;
        struct remote_segment *segment;
        char name[POOL_NAME_MAX];
        struct pool_buffer buffer;
        struct pool_put put;
        struct remote_op op;
};

void remote_journal_init(struct remote *remote)
{
        TAILQ_INIT(&remote->segments);
        remote->next_ordinal = 1;
        remote->next_sequence = remote->first_sequence = 1;
}

static void free_segment(struct remote_segment *segment)
{
        journal_segment_deinit(&segment->journal);
        free(segment);
}

void remote_journal_deinit(struct remote *remote)
{
        struct remote_segment *segment;

        while ((segment = TAILQ_FIRST(&remote->segments))) {
                TAILQ_REMOVE(&remote->segments, segment, link);
                free_segment(segment);
        }
}

/* ---- records ---- */

static struct remote_segment *last_segment(struct remote *remote)
{
        struct remote_segment *segment = TAILQ_LAST(&remote->segments, remote_segment_queue);

        return segment && !segment->is_sealed ? segment : NULL;
}

static struct remote_segment *new_segment(struct remote *remote)
{
        struct remote_segment *segment = calloc(1, sizeof(*segment));

        if (!segment)
                return NULL;
        journal_segment_init(&segment->journal);
        segment->ordinal = remote->next_ordinal++;
        TAILQ_INSERT_TAIL(&remote->segments, segment, link);
        return segment;
}

static int add(struct remote *remote, const struct journal_record *record)
{
        struct remote_segment *segment = last_segment(remote);
        int r = segment ? journal_segment_add(&segment->journal, record) : JOURNAL_E_FULL;

        if (r != JOURNAL_E_FULL)
                return r;
        segment = new_segment(remote);
        r = segment ? journal_segment_add(&segment->journal, record) : err_raise(-ENOMEM);
        return r > 0 ? err_raise(-EMSGSIZE) : r;
}

/* What we have read since we last said so. */
static int add_positions(struct remote *remote)
{
        struct remote_node *node;
        int r = 0;

        LIST_FOREACH(node, &remote->map.nodes, link) {
                struct journal_record record = {.kind = JOURNAL_READ, .number = node->read_to};

                if (node->is_own || node->told == node->read_to)
                        continue;
                memcpy(record.node, node->id, sizeof(record.node));
                r = add(remote, &record);
                if (r)
                        break;
                node->told = node->read_to;
        }
        return r;
}

static void persist(struct remote *remote, struct remote_group *group)
{
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];
        uint64_t sequence = remote->next_sequence++;

        journal_segment_seal(&group->journal, remote->own->id, sequence);
        remote_index_number_key(key, REMOTE_INDEX_PENDING, sequence);
        database_changes_put(group->changes, key, sizeof(key), group->journal.bytes,
                             group->journal.length);
        journal_segment_deinit(&group->journal);
        journal_segment_init(&group->journal);
}

void remote_group_init(struct remote_group *group, struct database_changes *changes)
{
        group->changes = changes;
        journal_segment_init(&group->journal);
}

void remote_group_add(struct remote *remote, struct remote_group *group,
                      const struct journal_record *record)
{
        int r = journal_segment_add(&group->journal, record);

        if (r == JOURNAL_E_FULL) {
                persist(remote, group);
                r = journal_segment_add(&group->journal, record);
        }
        if (!r && (record->kind == JOURNAL_STORED || record->kind == JOURNAL_REPLACED))
                r = add_positions(remote);
        if (!r)
                r = add(remote, record);
        if (r)
                remote_break(remote, r > 0 ? err_raise(-EMSGSIZE) : r);
}

static void flush_soon(struct remote *remote, bool urgent)
{
        uint64_t now = uv_now(remote->loop);

        remote->is_urgent |= urgent;
        if (!remote->flush_at)
                remote->flush_at = now + remote->options.linger_ms;
        if (urgent)
                remote_wake(remote);
        else
                remote_retry_soon(remote);
}

uint64_t remote_group_commit(struct remote *remote, struct remote_group *group, bool urgent)
{
        struct remote_segment *segment = TAILQ_LAST(&remote->segments, remote_segment_queue);

        if (group->journal.n_records)
                persist(remote, group);
        journal_segment_deinit(&group->journal);
        if (!segment)
                return 0;
        segment->end_sequence = remote->next_sequence;
        flush_soon(remote, urgent);
        return segment->ordinal;
}

/*
 * A replacement is remembered until every node that has a journal has said that it has read
 * it. A node that stores nothing may have older bytes in its own tiers all the same: it has a
 * journal, too, to be waited for, and says so for those that wait.
 */
void remote_tell_positions(struct remote *remote)
{
        bool is_waited_for = remote->n_replaced || !remote->first_segment;
        struct database_changes changes = {NULL};
        struct remote_group group;
        struct remote_node *node;

        if (!is_waited_for || !remote->is_own_read || remote->is_broken || remote->is_closing)
                return;
        remote_group_init(&group, &changes);
        LIST_FOREACH(node, &remote->map.nodes, link) {
                struct journal_record record = {.kind = JOURNAL_READ, .number = node->read_to};

                if (node->is_own || node->told == node->read_to)
                        continue;
                memcpy(record.node, node->id, sizeof(record.node));
                node->told = node->read_to;
                remote_group_add(remote, &group, &record);
        }
        remote_group_commit(remote, &group, false);
        remote_change(remote, &changes, false, NULL);
}

/* ---- what the last run left ---- */

static bool on_restored(void *user, const struct journal_record *record)
{
        struct remote *remote = user;
        int r = add(remote, record);

        if (r)
                remote_break(remote, r);
        return !r;
}

int remote_journal_restore(struct remote *remote, const void *bytes, size_t length,
                           uint64_t sequence)
{
        struct remote_segment *segment;
        int r = journal_segment_decode(bytes, length, remote->own->id, sequence, on_restored,
                                       remote, NULL);

        if (remote->first_sequence == remote->next_sequence)
                remote->first_sequence = sequence;
        remote->next_sequence = sequence + 1;
        segment = TAILQ_LAST(&remote->segments, remote_segment_queue);
        if (segment)
                segment->end_sequence = remote->next_sequence;
        flush_soon(remote, true);
        return r > 0 ? 0 : r; /* a damaged record is lost */
}

void remote_journal_put_all(struct remote *remote, struct database_changes *changes)
{
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];
        struct remote_segment *segment;

        remote->first_sequence = remote->next_sequence;
        TAILQ_FOREACH(segment, &remote->segments, link) {
                if (!segment->journal.n_records)
                        continue;
                remote_index_number_key(key, REMOTE_INDEX_PENDING, remote->next_sequence);
                journal_segment_seal(&segment->journal, remote->own->id, remote->next_sequence++);
                segment->is_sealed = true;
                segment->end_sequence = remote->next_sequence;
                database_changes_put(changes, key, sizeof(key), segment->journal.bytes,
                                     segment->journal.length);
        }
}

/* ---- into the pool ---- */

static bool may_flush(const struct remote *remote)
{
        return !remote->is_flushing && !remote->is_snapshotting && remote->is_recovered &&
               !remote->is_rebuilding && !remote->is_open && !remote->is_broken &&
               remote->is_own_read && !TAILQ_EMPTY(&remote->segments);
}

uint64_t remote_journal_wait(const struct remote *remote)
{
        uint64_t now = uv_now(remote->loop);

        if (!may_flush(remote) || !remote->flush_at)
                return UINT64_MAX;
        return remote->flush_at > now ? remote->flush_at - now : 0;
}

static void end_flush(struct flush *flush)
{
        struct remote *remote = flush->remote;

        remote->is_flushing = false;
        free(flush);
        remote_journal_work(remote);
        remote_retry_soon(remote);
}

/* The segment is in the pool. */
static void finish_segment(struct flush *flush)
{
        struct remote *remote = flush->remote;
        struct remote_segment *segment = flush->segment;
        uint8_t key[REMOTE_INDEX_NUMBER_BYTES];
        struct database_changes changes = {NULL};

        for (; remote->first_sequence < segment->end_sequence; remote->first_sequence++) {
                remote_index_number_key(key, REMOTE_INDEX_PENDING, remote->first_sequence);
                database_changes_delete(&changes, key, sizeof(key));
        }
        remote_replaced_sealed(remote, segment->ordinal, remote->next_segment, &changes);
        remote->own->read_to = remote->next_segment++;
        if (!remote->first_segment)
                remote->first_segment = remote->own->read_to;
        remote_put_meta(remote, &changes);
        remote_change(remote, &changes, false, NULL);
        remote->done_ordinal = segment->ordinal;
        remote_end_appends(remote, 0);
        remote->counts.journal_segments_written++;
        TAILQ_REMOVE(&remote->segments, segment, link);
        free_segment(segment);
        remote->flush_at = TAILQ_EMPTY(&remote->segments)
                                   ? 0
                                   : uv_now(remote->loop) + remote->options.linger_ms;
        if (remote->pool->ops.hint)
                remote->pool->ops.hint(remote->pool);
        if (remote->next_segment - remote->first_segment > remote->options.segments_max)
                remote_compact(remote);
}

static void submit(struct flush *flush);

static void on_put(struct pool_put *put, int result)
{
        struct flush *flush = put->user;
        struct remote *remote = flush->remote;
        struct remote_segment *segment = flush->segment;

        remote_note(remote, result);
        if (result == -EEXIST && !segment->was_tried) {
                /* Of a life that a power loss took from the index. */
                remote->next_segment++;
                submit(flush);
        } else if (result && !(result == -EEXIST && segment->was_tried)) {
                segment->was_tried = true;
                remote->flush_at = uv_now(remote->loop) + remote->options.retry_ms;
                remote->is_urgent = false;
                remote_release_forgets(remote);
                remote_end_appends(remote, result);
                end_flush(flush);
        } else {
                finish_segment(flush);
                remote_start_removes(remote);
                end_flush(flush);
        }
        remote_idle(remote);
}

static void submit(struct flush *flush)
{
        struct remote *remote = flush->remote;
        struct remote_segment *segment = flush->segment;
        int r;

        journal_segment_seal(&segment->journal, remote->own->id, remote->next_segment);
        segment->is_sealed = true;
        journal_name(flush->name, remote->own->id, remote->next_segment);
        flush->buffer = (struct pool_buffer){segment->journal.bytes, segment->journal.length};
        flush->put = (struct pool_put){
                .name = flush->name,
                .buffers = &flush->buffer,
                .n_buffers = 1,
                .flags = POOL_EXCLUSIVE,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_put,
                .user = flush,
        };
        r = remote->pool->ops.put(remote->pool, &flush->put);
        if (!r) {
                remote_busy(remote);
                return;
        }
        segment->was_refused = true;
        remote->flush_at = uv_now(remote->loop) + remote->options.retry_ms;
        end_flush(flush);
}

/* The index has in its log what the segment tells. */
static void on_logged(struct remote *remote, void *user, int result)
{
        struct flush *flush = user;

        if (result) {
                remote->is_flushing = false;
                free(flush);
        } else {
                submit(flush);
        }
}

static void start_flush(struct remote *remote, struct remote_segment *segment)
{
        struct database_changes nothing = {NULL};
        struct flush *flush = calloc(1, sizeof(*flush));

        if (!flush) {
                remote->flush_at = uv_now(remote->loop) + remote->options.retry_ms;
                return;
        }
        flush->remote = remote;
        flush->segment = segment;
        flush->op.then = on_logged;
        flush->op.user = flush;
        remote->is_flushing = true;
        remote->is_urgent = false;
        /* What comes from now on belongs to the next one. */
        segment->is_sealed = true;
        remote_change(remote, &nothing, false, &flush->op);
}

static void work(struct remote *remote)
{
        struct remote_segment *segment = TAILQ_FIRST(&remote->segments);

        if (!may_flush(remote) || !segment->journal.n_records)
                return;
        if (!remote->is_urgent && !segment->is_sealed && !TAILQ_NEXT(segment, link) &&
            remote->flush_at > uv_now(remote->loop) && !remote->is_closing)
                return;
        if ((segment->was_tried || segment->was_refused) && remote->flush_at > uv_now(remote->loop))
                return;
        start_flush(remote, segment);
}

void remote_journal_work(struct remote *remote)
{
        work(remote);
        /* What does not go out now does not before the next start. */
        if (remote->is_closing && !remote->is_flushing && !remote->is_snapshotting)
                remote_end_appends(remote, -ECANCELED);
}
