// SPDX-License-Identifier: Apache-2.0
/*
 * Reading journals: a round lists what there is, then reads what is new, one segment at a
 * time: got, taken apart on a worker, obeyed in slices so that the loop goes on between
 * them. A round begins when another node hints, and every poll_ms.
 *
 * What cannot be got stops nobody but its own node, and whoever waits for it, until the
 * next round. Segments that went before we read them, into a snapshot, may have told of
 * deletions: all that is known of their node is dropped, and learned again from the snapshot.
 * That repeats replacements as well, but for those that its writer has forgotten, since all
 * that it knew of had read them, or since they were too many: it says up to where. Whoever
 * has not read so far cannot tell which of its own bytes are wrong: on_missed. That is in the
 * index before the segment counts as read, and every start says it again, until vouched().
 *
 * Our own journal is read too, at the start: what it says beyond the index was lost with the
 * index's last moments, or with the whole index.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

#define LIST_NAMES    1000u
#define SLICE_RECORDS 128u
#define TRIES_MAX     2u /* of a segment that is damaged: it may have been the way */
#define UNLISTED_MAX  2u
#define HINT_MS       100u   /* between rounds, when others hint */
#define LISTED_MAX    65536u /* of one node in one round, whatever the pool says */

struct remote_follow {
        struct remote *remote;
        bool is_active, is_wanted, has_list;
        uint64_t round_at; /* ms of the loop's clock: the last one began */
        uint64_t begun_ns;

        struct pool_list list;
        char after[POOL_NAME_MAX];

        struct remote_node *node; /* whose segment is being read */
        uint64_t number;
        uint32_t n_tries;
        char name[POOL_NAME_MAX];
        uint8_t *bytes;
        uint64_t length;
        struct pool_get get;

        uv_work_t work;
        int result;
        struct why why;
        struct remote_news *news;
        uint32_t n_news, size_news, next_news;
        uint8_t *values;
        size_t values_used, values_size;
};

int remote_follow_init(struct remote *remote)
{
        remote->follow = calloc(1, sizeof(*remote->follow));
        if (!remote->follow)
                return err_raise(-ENOMEM);
        remote->follow->remote = remote;
        remote->follow->work.data = remote->follow;
        return 0;
}

static void drop_segment(struct remote_follow *follow)
{
        free(follow->bytes);
        free(follow->news);
        free(follow->values);
        follow->bytes = NULL;
        follow->news = NULL;
        follow->values = NULL;
        follow->n_news = follow->size_news = follow->next_news = 0;
        follow->values_used = follow->values_size = 0;
}

void remote_follow_deinit(struct remote *remote)
{
        if (remote->follow)
                drop_segment(remote->follow);
        free(remote->follow);
}

/* ---- rounds ---- */

static void end_round(struct remote_follow *follow)
{
        struct remote *remote = follow->remote;

        follow->is_active = false;
        if (!remote->is_own_read) {
                /* Writes, forgets and our journal wait for it: nobody else shall. */
                remote->is_own_late = true;
                remote_fail_puts(remote, -EAGAIN);
                remote_release_forgets(remote);
                remote_end_appends(remote, -EAGAIN);
        }
        if (!remote->is_surveyed && remote->is_own_read && !remote->is_closing)
                remote_survey(remote);
        remote_journal_work(remote);
        remote_retry_soon(remote);
        if (follow->is_wanted)
                remote_follow_poll(remote);
        remote_idle(remote);
}

static void catch_up(struct remote_follow *follow)
{
        struct remote *remote = follow->remote;

        if (!remote->counts.caught_up)
                remote->counts.replay_seconds = (double)(uv_hrtime() - follow->begun_ns) / 1e9;
        remote->counts.caught_up = true;
        end_round(follow);
}

/* ---- which segment is next ---- */

/* Has it to wait for segments of another node that its writer had read? */
static bool is_blocked(const struct remote_node *node)
{
        const struct remote_node *other = node->waits_for;

        return other && other->n_listed &&
               other->listed[other->listed_at].number <= node->waits_for_number;
}

/* Does it wait, by way of others perhaps, for one that cannot be read? */
static bool is_stuck(const struct remote *remote, const struct remote_node *node)
{
        uint32_t n = 0;

        while (!node->is_unreadable && is_blocked(node) && n++ < remote->map.n_nodes)
                node = node->waits_for;
        return node->is_unreadable;
}

static struct remote_node *choose_node(struct remote *remote)
{
        struct remote_node *node, *blocked = NULL;

        /* Ours first, unless it is from after what another wrote: we had read that too. */
        if (remote->own->n_listed && !remote->own->is_unreadable && !is_blocked(remote->own))
                return remote->own;
        LIST_FOREACH(node, &remote->map.nodes, link) {
                if (!node->n_listed || node->is_unreadable)
                        continue;
                if (!is_blocked(node))
                        return node;
                if (!is_stuck(remote, node))
                        blocked = node;
        }
        /* Whoever waits for each other has lied: one goes on without waiting. */
        if (blocked)
                blocked->waits_no_more = true;
        return blocked;
}

static void read_next(struct remote_follow *follow);

static void unlist_segment(struct remote_follow *follow)
{
        struct remote_node *node = follow->node;

        node->listed_at++;
        node->n_listed--;
        node->waits_for = NULL;
        node->waits_no_more = false;
        follow->n_tries = 0;
        drop_segment(follow);
}

/* The segment is done with, whatever it was. */
static void pass_segment(struct remote_follow *follow, struct database_changes *changes)
{
        struct remote *remote = follow->remote;
        struct remote_node *node = follow->node;

        node->read_to = follow->number;
        if (node->is_own) {
                if (remote->next_segment <= follow->number)
                        remote->next_segment = follow->number + 1;
                if (!remote->first_segment)
                        remote->first_segment = follow->number;
                remote_put_meta(remote, changes);
        } else {
                remote_put_node(remote, node, changes);
        }
        remote_change(remote, changes, false, NULL);
        unlist_segment(follow);
}

/* It went since it was listed: for what it told see its node's next segment. */
static void pass_gone(struct remote_follow *follow)
{
        struct database_changes changes = {NULL};

        if (follow->node->is_own) {
                pass_segment(follow, &changes);
        } else {
                follow->node->has_gap = follow->node->read_to > 0;
                unlist_segment(follow);
        }
}

/* Its node waits for the next round. */
static void pass_unreadable(struct remote_follow *follow, int result)
{
        struct remote_node *node = follow->node;

        if (!node->was_unreadable)
                remote_notice(follow->remote, "%s cannot be read: %s; it is tried again and again",
                              follow->name, strerror(-result));
        node->is_unreadable = node->was_unreadable = true;
        follow->n_tries = 0;
        drop_segment(follow);
}

/* Before the index was lost: our journal says so, or what it says waits for this very segment. */
static bool have_we_read(const struct remote_follow *follow)
{
        const struct remote *remote = follow->remote;
        const struct remote_node *own = remote->own;

        return remote->is_rebuilding &&
               (remote_node_position(own, follow->node) >= follow->number ||
                (own->waits_for == follow->node && own->waits_for_number >= follow->number));
}

/*
 * What it told nobody knows. Of its node's bundles some parts may have been dropped: all go,
 * until a snapshot. Some keys may have been replaced: nothing that this node has kept itself
 * can be vouched for, nor what comes from a node that has not read that segment.
 */
static void miss_segment(struct remote_follow *follow, struct database_changes *changes)
{
        struct remote *remote = follow->remote;
        struct remote_node *node = follow->node;

        if (node->floor < follow->number)
                node->floor = follow->number;
        remote->has_floors = true;
        if (node->is_own)
                remote_put_node(remote, node, changes); /* for our next snapshot */
        else if (!have_we_read(follow))
                remote_tell_missed(remote, changes);
}

static void on_damaged_slice(uv_idle_t *slice)
{
        struct remote *remote = slice->data;
        struct remote_follow *follow = remote->follow;
        struct database_changes changes = {NULL};
        bool is_over = follow->node->is_own ||
                       remote_drop_bundles_of(remote, follow->node, SLICE_RECORDS, &changes);

        remote_tell_vanished(remote);
        if (!is_over && !remote->is_closing) {
                remote_change(remote, &changes, false, NULL);
                return;
        }
        uv_idle_stop(slice);
        if (remote->is_closing) {
                database_changes_deinit(&changes);
                drop_segment(follow);
                end_round(follow);
                return;
        }
        miss_segment(follow, &changes);
        pass_segment(follow, &changes);
        read_next(follow);
}

static void pass_damaged(struct remote_follow *follow, const char *why)
{
        struct remote *remote = follow->remote;

        remote->counts.journal_damaged++;
        remote_notice(remote, "%s is skipped: %s%s", follow->name, why,
                      follow->node->is_own ? ""
                                           : "; what it told is missed, so what this node has kept "
                                             "itself may be outdated and is dropped");
        uv_idle_start(&remote->slice, on_damaged_slice);
}

/* ---- obeying ---- */

static void on_slice(uv_idle_t *slice)
{
        struct remote *remote = slice->data;
        struct remote_follow *follow = remote->follow;
        struct database_changes changes = {NULL};
        uint32_t end = follow->next_news + SLICE_RECORDS;

        if (end > follow->n_news)
                end = follow->n_news;
        for (; follow->next_news < end && !remote->is_closing; follow->next_news++)
                remote_apply(remote, follow->node, follow->number, &follow->news[follow->next_news],
                             follow->values, &changes);
        /* Before any write can ask whether it is current. */
        remote_tell_vanished(remote);
        if (remote->is_closing || follow->next_news == follow->n_news) {
                uv_idle_stop(slice);
                if (remote->is_closing) {
                        database_changes_deinit(&changes); /* what memory has is lost anyway */
                        drop_segment(follow);
                        end_round(follow);
                        return;
                }
                remote->counts.journal_segments_read++;
                follow->node->was_unreadable = false;
                if (follow->n_news && follow->news[0].kind == JOURNAL_SNAPSHOT)
                        follow->node->gap_at = 0;
                remote_replaced_trim(remote, &changes);
                pass_segment(follow, &changes);
                read_next(follow);
                return;
        }
        remote_change(remote, &changes, false, NULL);
}

/* The index forgets what the node's journal says no more: it was compacted behind us. */
static void on_gap_slice(uv_idle_t *slice)
{
        struct remote *remote = slice->data;
        struct remote_follow *follow = remote->follow;
        struct database_changes changes = {NULL};
        bool is_over = remote_drop_bundles_of(remote, follow->node, SLICE_RECORDS, &changes);

        remote_change(remote, &changes, false, NULL);
        remote_tell_vanished(remote);
        if (!is_over && !remote->is_closing)
                return;
        follow->node->has_gap = !is_over;
        if (!follow->node->gap_at)
                follow->node->gap_at = follow->node->read_to + 1;
        uv_idle_stop(slice);
        uv_idle_start(slice, on_slice);
}

/* The first segment of another node that is to be obeyed before this one. */
static bool must_wait(struct remote_follow *follow)
{
        struct remote *remote = follow->remote;

        for (uint32_t i = 0; i < follow->n_news && !follow->node->waits_no_more; i++) {
                const struct remote_news *news = &follow->news[i];
                struct remote_node *other;

                if (news->kind != JOURNAL_READ)
                        continue;
                other = remote_map_node(&remote->map, news->node, false);
                if (!other || other == follow->node || !other->n_listed ||
                    other->listed[other->listed_at].number > news->number)
                        continue;
                follow->node->waits_for = other;
                follow->node->waits_for_number = news->number;
                return true;
        }
        return false;
}

/* ---- taking apart, on a worker ---- */

static void *grow(void *memory, size_t *size, size_t used, size_t needed)
{
        void *more;

        if (*size - used >= needed)
                return memory;
        more = realloc(memory, 2 * *size + needed);
        if (more)
                *size = 2 * *size + needed;
        return more;
}

static bool add_value(struct remote_follow *follow, struct remote_news *news,
                      const struct journal_record *record)
{
        size_t bytes = (remote_index_entry_bytes(&record->stored) + 7) / 8 * 8;
        void *values = grow(follow->values, &follow->values_size, follow->values_used, bytes);

        if (!values)
                return false;
        follow->values = values;
        news->value_at = follow->values_used;
        news->value_bytes = remote_index_entry_bytes(&record->stored);
        remote_index_entry_encode(follow->values + news->value_at, &record->bundle, record->part,
                                  true, &record->stored);
        follow->values_used += bytes;
        return true;
}

static bool on_record(void *user, const struct journal_record *record)
{
        struct remote_follow *follow = user;
        struct remote_news *news;
        bool is_added = true;

        if (follow->n_news == follow->size_news) {
                uint32_t size = 2 * follow->size_news + 256;

                news = realloc(follow->news, size * sizeof(*news));
                if (!news) {
                        follow->result = err_raise(-ENOMEM);
                        return false;
                }
                follow->news = news;
                follow->size_news = size;
        }
        news = &follow->news[follow->n_news];
        *news = (struct remote_news){
                .kind = record->kind,
                .bundle = record->bundle,
                .part = record->part,
                .key = record->key,
                .checksum_total = record->checksum_total,
                .number = record->number,
                .layout = record->layout,
        };
        memcpy(news->node, record->node, sizeof(news->node));
        if (record->kind == JOURNAL_STORED) {
                news->object = record->stored.object;
                news->stored_bytes = record->stored.stored_bytes;
                news->checksum_total = record->stored.checksums.total;
                is_added = add_value(follow, news, record);
        }
        if (is_added)
                follow->n_news++;
        else
                follow->result = err_raise(-ENOMEM);
        return is_added;
}

static void take_apart(uv_work_t *work)
{
        struct remote_follow *follow = work->data;
        int r = journal_segment_decode(follow->bytes, follow->length, follow->node->id,
                                       follow->number, on_record, follow, &follow->why);

        if (!follow->result)
                follow->result = r;
}

static void on_taken_apart(uv_work_t *work, int status)
{
        struct remote_follow *follow = work->data;
        struct remote *remote = follow->remote;
        int r = status < 0 ? err_raise(status) : follow->result;

        if (r == -ENOMEM || status < 0) {
                drop_segment(follow);
                end_round(follow); /* the next one tries again */
        } else if (r) {
                drop_segment(follow);
                if (r != JOURNAL_E_DAMAGED || ++follow->n_tries >= TRIES_MAX)
                        pass_damaged(follow,
                                     follow->why.text[0] ? follow->why.text : "it is another's");
                else
                        read_next(follow);
        } else if (must_wait(follow)) {
                drop_segment(follow);
                read_next(follow);
        } else {
                uv_idle_start(&remote->slice, follow->node->has_gap ? on_gap_slice : on_slice);
        }
}

/* ---- getting ---- */

static void on_got(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_follow *follow = get->user;
        struct remote *remote = follow->remote;
        int r;

        remote_note(remote, result);
        if (remote->is_closing) {
                drop_segment(follow);
                end_round(follow);
        } else if (result) {
                if (result == -ENOENT)
                        pass_gone(follow);
                else
                        pass_unreadable(follow, result);
                read_next(follow);
        } else {
                follow->length = n_bytes < get->length ? n_bytes : get->length;
                follow->result = 0;
                follow->why.text[0] = '\0';
                r = uv_queue_work(remote->loop, &follow->work, take_apart, on_taken_apart);
                if (r) {
                        drop_segment(follow);
                        end_round(follow);
                }
        }
}

/* From now on numbers of bundles that are free are free. */
static void take_own_read(struct remote *remote)
{
        if (remote->is_own_read)
                return;
        remote->is_own_read = true;
        remote->is_own_late = false;
        remote->first_new_bundle = remote->next_bundle;
        remote_ready(remote);
        remote_wake(remote);
}

static bool is_any_unreadable(const struct remote *remote)
{
        const struct remote_node *node;

        LIST_FOREACH(node, &remote->map.nodes, link) {
                if (node->is_unreadable)
                        return true;
        }
        return false;
}

/* The next segment that one can hope to read; NULL: the round is over, or goes on later. */
static struct remote_node *next_node(struct remote_follow *follow)
{
        struct remote *remote = follow->remote;
        struct remote_node *node = choose_node(remote);

        if (follow->has_list && !remote->own->n_listed)
                take_own_read(remote);
        if (!node && !is_any_unreadable(remote)) {
                catch_up(follow);
                return NULL;
        }
        if (!node || remote->is_open || remote->is_closing) {
                end_round(follow);
                return NULL;
        }
        follow->node = node;
        follow->number = node->listed[node->listed_at].number;
        journal_name(follow->name, node->id, follow->number);
        if (node->listed[node->listed_at].bytes <= JOURNAL_SEGMENT_BYTES)
                return node;
        pass_damaged(follow, "it is longer than a segment can be");
        return NULL;
}

static void read_next(struct remote_follow *follow)
{
        struct remote *remote = follow->remote;
        struct remote_node *node = next_node(follow);
        uint64_t length;

        if (!node)
                return;
        length = node->listed[node->listed_at].bytes;
        if (!length)
                length = JOURNAL_SEGMENT_BYTES;
        follow->bytes = malloc(length);
        follow->get = (struct pool_get){
                .name = follow->name,
                .length = length,
                .bytes = follow->bytes,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_got,
                .user = follow,
        };
        if (!follow->bytes || remote->pool->ops.get(remote->pool, &follow->get)) {
                drop_segment(follow);
                end_round(follow);
        }
}

/* ---- listing ---- */

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        struct remote_follow *follow = list->user;
        struct remote *remote = follow->remote;
        struct remote_node *node;
        uint8_t id[16];
        uint64_t number;

        strncpy(follow->after, name, sizeof(follow->after) - 1);
        if (!journal_name_parse(name, id, &number))
                return;
        node = remote_map_node(&remote->map, id, true);
        if (!node)
                return;
        node->was_listed = true;
        if (!node->first_number || node->first_number > number)
                node->first_number = number;
        if (number <= node->read_to || (node->is_own && remote->is_own_read) ||
            node->n_listed == LISTED_MAX)
                return;
        if (node->n_listed == node->listed_size) {
                uint32_t size = 2 * node->listed_size + 8;
                struct remote_listed *listed = realloc(node->listed, size * sizeof(*listed));

                if (!listed)
                        return; /* the next round finds it */
                node->listed = listed;
                node->listed_size = size;
        }
        node->listed[node->n_listed++] = (struct remote_listed){number, bytes};
}

/* Segments go in their order: while one that we have read is there, none behind it went. */
static void look_for_gaps(struct remote *remote)
{
        struct remote_node *node;

        LIST_FOREACH(node, &remote->map.nodes, link) {
                node->n_unlisted = node->was_listed ? 0 : node->n_unlisted + 1;
                if (!node->is_own && node->read_to && node->first_number > node->read_to + 1)
                        node->has_gap = true;
        }
}

static void drop_node(struct remote *remote, struct remote_node *node,
                      struct database_changes *changes)
{
        uint8_t key[REMOTE_INDEX_NODE_BYTES] = {REMOTE_INDEX_NODE};

        remote_replaced_drop_node(remote, node, changes);
        memcpy(key + 1, node->id, sizeof(node->id));
        database_changes_delete(changes, key, sizeof(key));
        if (!remote_node_first_bundle(node))
                remote_map_drop_node(&remote->map, node);
}

/* A node without a journal is gone for good: its bundles went before. */
static void on_unlisted_slice(uv_idle_t *slice)
{
        struct remote *remote = slice->data;
        struct remote_follow *follow = remote->follow;
        struct remote_node *node = follow->node;
        struct database_changes changes = {NULL};

        while (node && (node->is_own || node->n_unlisted < UNLISTED_MAX))
                node = LIST_NEXT(node, link);
        follow->node = node;
        if (!node || remote->is_closing) {
                uv_idle_stop(slice);
                read_next(follow);
                return;
        }
        if (remote_drop_bundles_of(remote, node, SLICE_RECORDS, &changes)) {
                follow->node = LIST_NEXT(node, link);
                drop_node(remote, node, &changes);
        }
        remote_change(remote, &changes, false, NULL);
        remote_tell_vanished(remote);
}

static int list_on(struct remote_follow *follow);

static void on_listed(struct pool_list *list, int result, bool more)
{
        struct remote_follow *follow = list->user;
        struct remote *remote = follow->remote;

        remote_note(remote, result);
        if (result || remote->is_closing) {
                end_round(follow);
                return;
        }
        if (more) {
                if (list_on(follow))
                        end_round(follow);
                return;
        }
        follow->has_list = true;
        look_for_gaps(remote);
        follow->node = LIST_FIRST(&remote->map.nodes);
        uv_idle_start(&remote->slice, on_unlisted_slice);
}

static int list_on(struct remote_follow *follow)
{
        follow->list = (struct pool_list){
                .prefix = "journal/",
                .after = follow->after[0] ? follow->after : NULL,
                .max = LIST_NAMES,
                .deadline_ms = follow->remote->options.deadline_ms,
                .on_name = on_name,
                .on_done = on_listed,
                .user = follow,
        };
        return follow->remote->pool->ops.list(follow->remote->pool, &follow->list);
}

/* What could not be forgotten when the segment was read, for copies of it were leaving. */
static void trim_later(struct remote *remote)
{
        struct database_changes changes = {NULL};

        if (!remote->is_leaving)
                return;
        remote_replaced_trim(remote, &changes);
        remote_change(remote, &changes, false, NULL);
}

void remote_follow_poll(struct remote *remote)
{
        struct remote_follow *follow = remote->follow;
        struct remote_node *node;

        if (!remote->is_recovered || remote->is_closing || remote->is_open)
                return;
        follow->is_wanted = follow->is_active;
        if (follow->is_active)
                return;
        trim_later(remote);
        LIST_FOREACH(node, &remote->map.nodes, link) {
                node->listed_at = node->n_listed = 0;
                node->first_number = 0;
                node->was_listed = node->is_unreadable = false;
                node->waits_for = NULL;
        }
        follow->after[0] = '\0';
        follow->round_at = uv_now(remote->loop);
        follow->is_active = true;
        remote_busy(remote);
        if (list_on(follow)) {
                follow->is_active = false;
                remote_idle(remote);
        }
}

static void on_poll(uv_timer_t *timer)
{
        remote_follow_poll(timer->data);
}

/* Every node's hint asks all others to list all journals: not more often than pays. */
static void on_hint(void *user)
{
        struct remote *remote = user;
        uint64_t now = uv_now(remote->loop), pause = remote->options.poll_ms / 2;
        uint64_t next = remote->follow->round_at + (pause < HINT_MS ? pause : HINT_MS);

        if (now >= next)
                remote_follow_poll(remote);
        else if (!remote->is_closing)
                uv_timer_start(&remote->poll, on_poll, next - now, remote->options.poll_ms);
}

void remote_begin_following(struct remote *remote)
{
        if (remote->is_closing)
                return;
        if (remote->is_unvouched && remote->tier.on_missed)
                remote->tier.on_missed(remote->tier.on_shared_user);
        remote_replaced_say_again(remote);
        remote->follow->begun_ns = uv_hrtime();
        remote->pool->on_hint = on_hint;
        remote->pool->on_hint_user = remote;
        uv_timer_start(&remote->poll, on_poll, remote->options.poll_ms, remote->options.poll_ms);
        remote_follow_poll(remote);
}
