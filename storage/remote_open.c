// SPDX-License-Identifier: Apache-2.0
/*
 * Opening and closing. Who we are stands in the index and in a file beside it, so that a
 * node whose index is lost or damaged still owns its bundles and its journal.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/pool_name.h"
#include "storage/remote_tier.h"

#define NODE_FILE_BYTES (POOL_NAME_NODE_DIGITS + 1)

void remote_put_meta(struct remote *remote, struct database_changes *changes)
{
        struct remote_index_meta meta = {
                .flags = (remote->is_rebuilding ? REMOTE_META_REBUILDING : 0) |
                         (remote->is_unvouched ? REMOTE_META_MISSED : 0) |
                         (remote->is_leaving ? REMOTE_META_LEAVING : 0),
                .next_bundle = remote->next_bundle,
                .first_segment = remote->first_segment,
                .next_segment = remote->next_segment,
        };
        const char key = REMOTE_INDEX_META;

        memcpy(meta.node, remote->own->id, sizeof(meta.node));
        remote_index_meta_seal(&meta);
        database_changes_put(changes, &key, 1, &meta, sizeof(meta));
}

/* ---- who we are ---- */

/* 0, -ENOENT, or another negative errno. */
static int read_node(const char *path, uint8_t ret_id[16], struct why *why)
{
        char text[NODE_FILE_BYTES + 1] = "";
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n;

        if (fd < 0 && errno == ENOENT)
                return -ENOENT;
        n = fd < 0 ? -1 : read(fd, text, sizeof(text));
        if (n < 0) {
                int r = -errno;

                why_set(why, "%s: %s", path, strerror(-r));
                return err_raise(r);
        }
        text[POOL_NAME_NODE_DIGITS] = '\0';
        if (n == NODE_FILE_BYTES && pool_name_parse_hex(text, ret_id))
                return 0;
        why_set(why,
                "%s does not hold a node's name, %u hexadecimal digits: restore it, or remove it "
                "to begin as a new node (what the old one stored then stays in the pool until "
                "kvtierctl pool gc)",
                path, POOL_NAME_NODE_DIGITS);
        return err_raise(-EINVAL);
}

static int write_node(const char *path, const uint8_t id[16], struct why *why)
{
        char text[NODE_FILE_BYTES + 1], temporary[PATH_MAX];
        _cleanup_fd_ int fd = -1;

        pool_name_hex(text, id);
        text[POOL_NAME_NODE_DIGITS] = '\n';
        snprintf(temporary, sizeof(temporary), "%s.new", path);
        fd = open(temporary, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0 && write(fd, text, NODE_FILE_BYTES) == NODE_FILE_BYTES && !fsync(fd) &&
            !rename(temporary, path))
                return 0;
        why_set(why, "%s: %s", path, strerror(errno));
        return err_raise(errno ? -errno : -EIO);
}

static int own_node(struct remote *remote, const uint8_t id[16])
{
        remote->own = remote_map_node(&remote->map, id, true);
        if (!remote->own)
                return err_raise(-ENOMEM);
        remote->own->is_own = true;
        return 0;
}

/* ---- the index ---- */

static int open_database(struct remote *remote, struct why *why)
{
        const char *path = remote->options.index_path;
        int r = database_open(&remote->index, remote->loop, &remote_index_kind, path, why);

        if (r == DATABASE_E_DAMAGED) {
                remote_notice(remote, "the index of the pool cannot be read and is made anew (%s)",
                              why->text);
                r = database_destroy(&remote_index_kind, path, why);
                if (!r)
                        r = database_open(&remote->index, remote->loop, &remote_index_kind, path,
                                          why);
        }
        if (r == DATABASE_E_BUSY)
                return err_raise(-EBUSY);
        return r > 0 ? err_raise(-EEXIST) : r;
}

/* A new index: of a new node, or of one that lost its own. */
static int begin_index(struct remote *remote, struct why *why)
{
        struct database_changes changes = {NULL};
        uint8_t id[16];
        int r = read_node(remote->node_path, id, why);

        if (r && r != -ENOENT)
                return r;
        remote->is_rebuilding = !r;
        if (r && getrandom(id, sizeof(id), 0) != sizeof(id))
                return err_raise(-EIO);
        if (r)
                r = write_node(remote->node_path, id, why);
        if (!r)
                r = own_node(remote, id);
        if (r)
                return r;
        if (remote->is_rebuilding)
                remote_notice(remote, "the index of the pool is new; what this node stored is "
                                      "learned from its journal before it stores more");
        remote->next_bundle = remote->first_new_bundle = remote->next_segment = 1;
        remote_put_meta(remote, &changes);
        remote_change(remote, &changes, true, NULL);
        return 0;
}

static int take_meta(struct remote *remote, const struct remote_index_meta *meta, struct why *why)
{
        uint8_t id[16];
        int r = read_node(remote->node_path, id, why);

        if (r == -ENOENT)
                r = write_node(remote->node_path, meta->node, why);
        else if (!r && memcmp(id, meta->node, sizeof(id))) {
                why_set(why,
                        "%s and the index %s belong to different nodes: restore the one that "
                        "belongs to the other, or remove the index to have it made anew",
                        remote->node_path, remote->options.index_path);
                r = err_raise(-EINVAL);
        }
        if (!r)
                r = own_node(remote, meta->node);
        if (r)
                return r;
        remote->is_rebuilding = meta->flags & REMOTE_META_REBUILDING;
        remote->is_unvouched = meta->flags & REMOTE_META_MISSED;
        remote->is_leaving = meta->flags & REMOTE_META_LEAVING;
        remote->next_bundle = remote->first_new_bundle = meta->next_bundle;
        remote->first_segment = meta->first_segment;
        remote->next_segment = meta->next_segment;
        remote->own->read_to = remote->is_rebuilding ? 0 : meta->next_segment - 1;
        return 0;
}

static int open_index(struct remote *remote, struct why *why)
{
        const char key = REMOTE_INDEX_META;
        struct remote_index_meta meta;
        size_t value_bytes;
        void *value;
        int r = open_database(remote, why);

        if (r)
                return r;
        r = database_get(remote->index, &key, 1, &value, &value_bytes, why);
        if (r == DATABASE_E_ABSENT) {
                if (database_is_empty(remote->index))
                        return begin_index(remote, why);
                why_set(why, "%s holds another program's database: name an empty folder",
                        remote->options.index_path);
                return err_raise(-EEXIST);
        }
        if (!r) {
                r = remote_index_meta_decode(&meta, value, value_bytes, why);
                database_value_free(value);
        }
        if (!r)
                return take_meta(remote, &meta, why);
        remote_notice(remote, "the index of the pool is made anew: %s", why->text);
        r = database_renew(remote->index, why);
        return r ? r : begin_index(remote, why);
}

static int load(struct remote *remote, struct why *why)
{
        int r = remote_load(remote, why);

        return remote_index_is_damaged(r) ? remote_make_anew(remote, why) : r;
}

/* ---- opening ---- */

static int take_options(struct remote *remote, const struct remote_options *options,
                        struct why *why)
{
        struct remote_options *own = &remote->options;

        *own = *options;
        if (!own->bundle_bytes)
                own->bundle_bytes = REMOTE_BUNDLE_BYTES_DEFAULT;
        if (!own->linger_ms)
                own->linger_ms = REMOTE_LINGER_MS_DEFAULT;
        if (!own->deadline_ms)
                own->deadline_ms = REMOTE_DEADLINE_MS_DEFAULT;
        if (!own->heartbeat_s)
                own->heartbeat_s = REMOTE_HEARTBEAT_S_DEFAULT;
        if (!own->poll_ms)
                own->poll_ms = REMOTE_POLL_MS_DEFAULT;
        if (!own->retry_ms)
                own->retry_ms = REMOTE_RETRY_MS_DEFAULT;
        if (!own->segments_max)
                own->segments_max = REMOTE_SEGMENTS_DEFAULT;
        if (!own->encoded_bytes)
                own->encoded_bytes = REMOTE_ENCODED_BYTES_DEFAULT;
        if (!own->queue_depth)
                own->queue_depth = REMOTE_QUEUE_DEPTH_DEFAULT;
        remote->window = own->queue_depth;
        if (!own->entries_max || own->entries_max > REMOTE_ENTRIES_MAX)
                own->entries_max = REMOTE_ENTRIES_MAX;
        if (own->bundle_bytes > BUNDLE_BYTES_MAX) {
                why_set(why, "bundles of %u bytes: at most %u", own->bundle_bytes,
                        BUNDLE_BYTES_MAX);
                return err_raise(-EINVAL);
        }
        if (own->host)
                snprintf(remote->host, sizeof(remote->host), "%s", own->host);
        else if (gethostname(remote->host, sizeof(remote->host) - 1) < 0)
                remote->host[0] = '\0';
        own->host = remote->host;
        own->index_path = strdup(options->index_path);
        if (!own->index_path || asprintf(&remote->node_path, "%s.node", options->index_path) < 0) {
                remote->node_path = NULL;
                return err_raise(-ENOMEM);
        }
        return 0;
}

static void init_queues(struct remote *remote)
{
        TAILQ_INIT(&remote->open_puts);
        TAILQ_INIT(&remote->ready_puts);
        TAILQ_INIT(&remote->new_jobs);
        TAILQ_INIT(&remote->failed_jobs);
        TAILQ_INIT(&remote->gets);
        STAILQ_INIT(&remote->forgets);
        STAILQ_INIT(&remote->freed_forgets);
        STAILQ_INIT(&remote->failed_ops);
        TAILQ_INIT(&remote->going);
        TAILQ_INIT(&remote->appends);
        STAILQ_INIT(&remote->vanished);
        RB_INIT(&remote->replaced);
        TAILQ_INIT(&remote->replaced_list);
        remote_journal_init(remote);
        remote_pace_init(&remote->read_pace, remote->options.read_bytes_per_s);
        remote_pace_init(&remote->write_pace, remote->options.write_bytes_per_s);
}

static void free_remote(struct remote *remote)
{
        struct remote_vanished *vanished;

        while ((vanished = STAILQ_FIRST(&remote->vanished))) {
                STAILQ_REMOVE_HEAD(&remote->vanished, link);
                free(vanished);
        }
        remote_scratch_trim(&remote->scratch);
        remote_journal_deinit(remote);
        remote_follow_deinit(remote);
        remote_replaced_deinit(remote);
        remote_map_deinit(&remote->map);
        free(remote->node_path);
        free(remote->layouts);
        free((void *)(uintptr_t)remote->options.index_path);
        free(remote);
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct remote *remote = handle->data;
        void (*on_closed)(void *user) = remote->on_closed;
        void *user = remote->on_closed_user;

        if (--remote->n_handles)
                return;
        free_remote(remote);
        if (on_closed)
                on_closed(user);
}

static void close_handles(struct remote *remote)
{
        uv_close((uv_handle_t *)&remote->turn, on_handle_closed);
        uv_close((uv_handle_t *)&remote->linger, on_handle_closed);
        uv_close((uv_handle_t *)&remote->poll, on_handle_closed);
        uv_close((uv_handle_t *)&remote->slice, on_handle_closed);
        uv_close((uv_handle_t *)&remote->retry, on_handle_closed);
}

static void init_handles(struct remote *remote)
{
        uv_idle_init(remote->loop, &remote->turn);
        uv_timer_init(remote->loop, &remote->linger);
        uv_timer_init(remote->loop, &remote->poll);
        uv_timer_init(remote->loop, &remote->retry);
        uv_idle_init(remote->loop, &remote->slice);
        remote->turn.data = remote->linger.data = remote->poll.data = remote->retry.data = remote;
        remote->slice.data = remote;
        remote->n_handles = 5;
}

static void on_index_closed(void *user)
{
        close_handles(user);
}

int remote_open(struct tier **ret_tier, uv_loop_t *loop, const struct remote_options *options,
                struct why *why)
{
        struct remote *remote = calloc(1, sizeof(*remote));
        int r;

        if (!remote)
                return err_raise(-ENOMEM);
        remote_tier_init(remote);
        remote->loop = loop;
        remote->opened_ns = uv_hrtime();
        r = take_options(remote, options, why);
        init_queues(remote);
        if (!r)
                r = remote_map_init(&remote->map, remote->options.entries_max);
        if (!r)
                r = remote_follow_init(remote);
        if (r) {
                free_remote(remote);
                return r;
        }
        init_handles(remote);
        r = open_index(remote, why);
        if (!r)
                r = load(remote, why);
        if (r) {
                remote->is_closing = true;
                if (remote->index)
                        database_close(remote->index, on_index_closed, remote);
                else
                        close_handles(remote);
                return r;
        }
        remote->pool = options->pool;
        *ret_tier = &remote->tier;
        return 0;
}

/* ---- closing ---- */

static void on_pool_closed(void *user)
{
        struct remote *remote = user;

        database_close(remote->index, on_index_closed, remote);
}

void remote_busy(struct remote *remote)
{
        remote->n_busy++;
}

void remote_idle(struct remote *remote)
{
        if (--remote->n_busy || !remote->is_closing || !remote->pool)
                return;
        remote->n_busy++; /* once */
        remote->pool->on_hint = NULL;
        remote->pool->ops.close(remote->pool, on_pool_closed, remote);
}

void remote_close(struct tier *tier, void (*on_closed)(void *user), void *user)
{
        struct remote *remote = (struct remote *)tier;

        remote->on_closed = on_closed;
        remote->on_closed_user = user;
        remote->is_closing = true;
        uv_timer_stop(&remote->poll);
        uv_timer_stop(&remote->retry);
        /* Our journal's last records go out first, if the pool takes them. */
        remote->is_held = true;
        remote_busy(remote);
        remote_wake(remote);
}
