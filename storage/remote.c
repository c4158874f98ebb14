// SPDX-License-Identifier: Apache-2.0
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/remote_tier.h"

void remote_notice(struct remote *remote, const char *format, ...)
{
        char text[512];
        va_list arguments;

        if (!remote->options.on_notice)
                return;
        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        remote->options.on_notice(remote->options.user, text);
}

/* ---- changes of the index ---- */

void remote_break(struct remote *remote, int result)
{
        if (remote->is_broken || !result)
                return;
        remote->is_broken = true;
        remote_release_forgets(remote);
        remote_wake(remote);
        remote_notice(remote,
                      "the index of the pool failed: %s. Nothing is stored there until the next "
                      "start; what is known is read",
                      strerror(-result));
}

static void on_changed(struct database_op *op, int result)
{
        struct remote_op *remote_op = (struct remote_op *)op;
        struct remote *remote = remote_op->remote;

        remote_break(remote, result);
        remote_op->then(remote, remote_op->user, result);
        remote_ready(remote); /* it may have waited for the queue to shrink */
        remote_idle(remote);
}

static void forget_op(struct remote *remote, void *user, int result)
{
        (void)remote;
        (void)result;
        free(user);
}

void remote_change(struct remote *remote, struct database_changes *changes, bool sync,
                   struct remote_op *op)
{
        struct remote_op *wanted = op;
        int r;

        if (!wanted) {
                op = calloc(1, sizeof(*op));
                if (!op) {
                        database_changes_deinit(changes);
                        remote_break(remote, -ENOMEM);
                        return;
                }
                op->then = forget_op;
                op->user = op;
        }
        op->remote = remote;
        op->op.on_done = on_changed;
        remote_busy(remote);
        r = database_submit(remote->index, &op->op, changes, sync);
        if (!r)
                return;
        database_changes_deinit(changes);
        op->op.result = r;
        STAILQ_INSERT_TAIL(&remote->failed_ops, &op->op, link);
        remote_wake(remote);
}

static void end_failed_ops(struct remote *remote)
{
        struct database_op *op;

        while ((op = STAILQ_FIRST(&remote->failed_ops))) {
                STAILQ_REMOVE_HEAD(&remote->failed_ops, link);
                on_changed(op, op->result);
        }
}

/* ---- the turn ---- */

static void on_turn(uv_idle_t *turn)
{
        struct remote *remote = turn->data;

        uv_idle_stop(turn);
        remote_busy(remote);
        end_failed_ops(remote);
        remote_begin_reads(remote);
        remote_start_puts(remote);
        remote_announce_going(remote);
        remote_tell_vanished(remote);
        remote_journal_work(remote);
        if (remote->is_broken)
                remote_end_appends(remote, -EIO);
        remote_start_removes(remote);
        remote_tell_freed(remote);
        if (remote->is_held) {
                remote->is_held = false;
                remote_idle(remote);
        }
        remote_idle(remote);
}

void remote_wake(struct remote *remote)
{
        uv_idle_start(&remote->turn, on_turn);
}

void remote_ready(struct remote *remote)
{
        bool has_room = remote->n_writes <= REMOTE_WRITES_MAX / 2 && !remote->is_open &&
                        !remote->is_rebuilding && !remote->is_own_late && !remote->is_broken &&
                        remote->no_space_until <= uv_now(remote->loop) &&
                        database_queued(remote->index) <= REMOTE_CHANGES_MAX / 2;

        if (!remote->is_paused || !has_room || remote->is_closing)
                return;
        remote->is_paused = false;
        if (remote->tier.on_ready)
                remote->tier.on_ready(remote->tier.on_ready_user);
}

/* ---- usage ---- */

static void describe_trouble(const struct remote *remote, struct tier_usage *usage)
{
        const char *failure = remote->pool->ops.last_failure(remote->pool);

        if (remote->is_broken)
                snprintf(usage->degraded_reason, sizeof(usage->degraded_reason),
                         "its index failed: nothing is stored until the next start");
        else if (remote->is_open)
                snprintf(usage->degraded_reason, sizeof(usage->degraded_reason),
                         "the pool is out of reach%s%.100s", failure[0] ? ": " : "", failure);
        else if (remote->is_rebuilding)
                snprintf(usage->degraded_reason, sizeof(usage->degraded_reason),
                         "its index was lost and is rebuilt: nothing is stored until then");
        usage->degraded = usage->degraded_reason[0];
}

static void usage_of(struct tier *tier, struct tier_usage *ret_usage)
{
        const struct remote *remote = (const struct remote *)tier;

        *ret_usage = (struct tier_usage){
                .capacity_bytes = remote->options.bytes,
                .used_bytes = remote->used_bytes,
                .payload_bytes = remote->payload_bytes,
                .objects = remote->n_objects,
                .queued_writes = remote->n_writes,
                .queued_reads = remote->n_jobs,
                .queued_bytes = remote->write_bytes + remote->job_bytes,
                .queued_changes = database_queued(remote->index),
                .read_bytes_total = remote->read_bytes,
                .written_bytes_total = remote->written_bytes,
                .io_errors_total = remote->io_errors,
                .corrupt_total = remote->corrupt,
                .stale_total = remote->counts.stale_entries,
                .encoded = remote->encoded,
                .decoded = remote->decoded,
        };
        describe_trouble(remote, ret_usage);
}

struct pool *remote_pool(const struct tier *tier)
{
        return ((const struct remote *)tier)->pool;
}

void remote_usage(const struct tier *tier, struct remote_usage *ret_usage)
{
        const struct remote *remote = (const struct remote *)tier;
        const struct remote_node *own = remote->own;
        struct remote_bundle *bundle;

        *ret_usage = remote->counts;
        memcpy(ret_usage->node, own->id, sizeof(ret_usage->node));
        ret_usage->entries = remote->map.n_entries;
        ret_usage->own_bytes = remote->used_bytes;
        ret_usage->dead_bytes = remote->used_bytes - remote->payload_bytes;
        ret_usage->nodes = remote->map.n_nodes;
        ret_usage->breaker_open = remote->is_open;
        ret_usage->own_bundles = remote->n_bundles;
        TAILQ_FOREACH(bundle, &remote->going, link) {
                ret_usage->condemned_bundles++;
        }
}

/* ---- operations ---- */

static bool is_own(const struct tier *tier, struct tier_place place)
{
        (void)tier;
        return remote_place_is_own(place);
}

struct synced {
        struct remote_op op;
        void (*on_synced)(void *user, int result);
        void *user;
};

static void on_synced(struct remote *remote, void *user, int result)
{
        struct synced *synced = user;

        (void)remote;
        synced->on_synced(synced->user, result);
        free(synced);
}

/* The index alone: what is in the pool is durable by itself. */
static void sync_index(struct tier *tier, void (*then)(void *user, int result), void *user)
{
        struct remote *remote = (struct remote *)tier;
        struct database_changes changes = {NULL};
        struct synced *synced = calloc(1, sizeof(*synced));

        if (!synced) {
                then(user, err_raise(-ENOMEM));
                return;
        }
        synced->op.then = on_synced;
        synced->op.user = synced;
        synced->on_synced = then;
        synced->user = user;
        remote_put_meta(remote, &changes);
        remote_change(remote, &changes, true, &synced->op);
}

void remote_tier_init(struct remote *remote)
{
        static const struct tier_ops ops = {
                .name = "remote",
                .recover = remote_recover,
                .footprint = remote_footprint,
                .write = remote_write,
                .read = remote_read,
                .read_pieces = remote_read_pieces,
                .forget = remote_forget,
                .usage = usage_of,
                .keep_layout = remote_keep_layout,
                .forget_layout = remote_forget_layout,
                .is_own = is_own,
                .replaced = remote_replaced,
                .is_replaced = remote_is_replaced,
                .vouched = remote_vouched,
                .sync = sync_index,
                .close = remote_close,
        };

        tier_init(&remote->tier, &ops);
}
