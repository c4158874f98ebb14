// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/bundle.h"
#include "storage/pool_lease.h"
#include "storage/remote_gc_state.h"

static void next_segment(struct remote_gc *gc);
static void tell_replaced(struct remote_gc *gc);

/* ---- removal of the page's names ---- */

static void remove_more(struct remote_gc *gc);

static void on_removed(struct pool_remove *remove, int result)
{
        struct remote_gc_removal *removal = remove->user;
        struct remote_gc *gc = removal->gc;

        removal->in_flight = false;
        gc->n_removing--;
        if (remote_gc_is_over(gc))
                return;
        if (result && result != -ENOENT) {
                if (!gc->removal_result)
                        snprintf(gc->name, sizeof(gc->name), "%s", removal->name);
                gc->removal_result = gc->removal_result ? gc->removal_result : result;
        } else if (gc->phase == GC_BUNDLES) {
                gc->result.bundles++;
        } else if (gc->phase == GC_JOURNAL) {
                gc->result.segments++;
        }
        remove_more(gc);
}

static int start_removal(struct remote_gc *gc, struct remote_gc_removal *removal, const char *name)
{
        int r;

        snprintf(removal->name, sizeof(removal->name), "%s", name);
        removal->gc = gc;
        removal->remove = (struct pool_remove){
                .name = removal->name,
                .deadline_ms = gc->options.deadline_ms,
                .on_done = on_removed,
                .user = removal,
        };
        r = gc->options.pool->ops.remove(gc->options.pool, &removal->remove);
        if (r)
                return r;
        removal->in_flight = true;
        gc->n_removing++;
        gc->n_in_flight++;
        return 0;
}

/* Goes on from gc->at; when all of the page is gone, the next round. */
static void remove_more(struct remote_gc *gc)
{
        for (uint32_t i = 0; i < REMOTE_GC_REMOVALS && gc->at < gc->n_names && !gc->removal_result;
             i++) {
                if (gc->removals[i].in_flight)
                        continue;
                gc->removal_result = start_removal(gc, &gc->removals[i], gc->names[gc->at]);
                if (gc->removal_result)
                        snprintf(gc->name, sizeof(gc->name), "%s", gc->names[gc->at]);
                else if (gc->phase == GC_BUNDLES)
                        gc->result.bytes += gc->sizes[gc->at];
                gc->at++;
        }
        if (gc->n_removing)
                return;
        if (gc->removal_result)
                remote_gc_fail(gc, gc->removal_result, gc->name);
        else
                remote_gc_begin_round(gc);
}

static void remove_page(struct remote_gc *gc)
{
        gc->at = 0;
        gc->removal_result = 0;
        remove_more(gc);
}

/* ---- what is told in our journal ---- */

static void on_appended(void *user, int result)
{
        struct remote_gc *gc = user;

        if (remote_gc_is_over(gc))
                return;
        gc->n_records = 0;
        if (result)
                remote_gc_fail(gc, result, "this node's journal");
        else if (gc->phase == GC_BUNDLES)
                remove_page(gc);
        else
                tell_replaced(gc);
}

static void append(struct remote_gc *gc)
{
        int r = gc->options.append(gc->options.user, gc->records, gc->n_records, on_appended, gc);

        if (r)
                remote_gc_fail(gc, r, "this node's journal");
        else
                gc->n_in_flight++;
}

/* ---- the phases ---- */

void remote_gc_enter(struct remote_gc *gc, enum remote_gc_phase phase)
{
        gc->phase = phase;
        *gc->after = '\0';
        remote_gc_begin_round(gc);
}

static void on_bundles(struct remote_gc *gc, bool more)
{
        remote_gc_keep_named(gc, "bundle");
        if (!gc->n_names) {
                remote_gc_enter(gc, GC_REPLACED);
                return;
        }
        for (gc->n_records = 0; gc->n_records < gc->n_names; gc->n_records++) {
                struct journal_record *record = &gc->records[gc->n_records];

                *record = (struct journal_record){.kind = JOURNAL_DELETED};
                bundle_name_parse(gc->names[gc->n_records], &record->bundle);
        }
        append(gc);
}

static bool see_record(void *user, const struct journal_record *record)
{
        struct remote_gc *gc = user;
        struct object_key *grown;
        uint32_t size;

        if (record->kind != JOURNAL_REPLACED)
                return true;
        if (gc->n_keys == gc->keys_size) {
                size = gc->keys_size ? 2 * gc->keys_size : REMOTE_GC_PAGE;
                grown = reallocarray(gc->keys, size, sizeof(*grown));
                if (!grown) {
                        gc->decoded = err_raise(-ENOMEM);
                        return false;
                }
                gc->keys = grown;
                gc->keys_size = size;
        }
        gc->keys[gc->n_keys++] = record->key;
        return true;
}

/* On a worker: a segment is long. */
static void take_apart(uv_work_t *work)
{
        struct remote_gc *gc = work->data;
        uint8_t node[16];
        uint64_t number = 0;
        int r;

        journal_name_parse(gc->name, node, &number);
        r = journal_segment_decode(gc->bytes, gc->n_bytes, node, number, see_record, gc,
                                   &gc->result.why);
        if (!gc->decoded)
                gc->decoded = r;
}

static void on_taken_apart(uv_work_t *work, int status)
{
        struct remote_gc *gc = work->data;
        int r = status < 0 ? status : gc->decoded;

        if (remote_gc_is_over(gc))
                return;
        if (r == JOURNAL_E_NEWER) {
                remote_gc_finish(gc, REMOTE_GC_E_NEWER);
        } else if (r == -ENOMEM || status < 0) {
                remote_gc_fail(gc, r, gc->name);
        } else {
                gc->result.damaged += r != 0;
                *gc->result.why.text = '\0';
                tell_replaced(gc);
        }
}

static void on_segment(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_gc *gc = get->user;
        int r;

        if (remote_gc_is_over(gc))
                return;
        if (result == -ENOENT) {
                next_segment(gc);
                return;
        }
        gc->n_bytes = n_bytes > get->length ? 0 : n_bytes;
        gc->n_keys = gc->next_key = 0;
        gc->decoded = 0;
        gc->work.data = gc;
        r = result ? result
                   : uv_queue_work(gc->options.loop, &gc->work, take_apart, on_taken_apart);
        if (r)
                remote_gc_fail(gc, r, gc->name);
        else
                gc->n_in_flight++;
}

/* The next keys of the segment, then the next segment. */
static void tell_replaced(struct remote_gc *gc)
{
        for (; gc->n_records < REMOTE_GC_PAGE && gc->next_key < gc->n_keys; gc->n_records++)
                gc->records[gc->n_records] = (struct journal_record){
                        .kind = JOURNAL_REPLACED, .key = gc->keys[gc->next_key++]};
        if (gc->n_records)
                append(gc);
        else
                next_segment(gc);
}

/* The segment at gc->at, or the next page. */
static void next_segment(struct remote_gc *gc)
{
        if (gc->at < gc->n_names) {
                snprintf(gc->name, sizeof(gc->name), "%s", gc->names[gc->at++]);
                remote_gc_get(gc, gc->bytes, JOURNAL_SEGMENT_BYTES + 1, on_segment);
        } else if (gc->more) {
                remote_gc_begin_round(gc);
        } else {
                remote_gc_enter(gc, GC_JOURNAL);
        }
}

static void on_segments(struct remote_gc *gc, bool more)
{
        if (gc->n_names)
                snprintf(gc->after, sizeof(gc->after), "%s", gc->names[gc->n_names - 1]);
        gc->more = more;
        gc->at = 0;
        gc->n_records = 0;
        remote_gc_keep_named(gc, "journal");
        next_segment(gc);
}

static void on_read_segments(struct remote_gc *gc, bool more)
{
        remote_gc_keep_named(gc, "journal");
        if (gc->n_names)
                remove_page(gc);
        else
                remote_gc_enter(gc, GC_LEASES);
}

static void on_node_removed(struct pool_remove *remove, int result)
{
        struct remote_gc *gc = ((struct remote_gc_removal *)remove->user)->gc;

        if (remote_gc_is_over(gc))
                return;
        if (result && result != -ENOENT)
                remote_gc_fail(gc, result, "the node's object");
        else
                remote_gc_finish(gc, 0);
}

static void remove_node(struct remote_gc *gc)
{
        struct remote_gc_removal *removal = &gc->removals[0];
        int r;

        journal_node_name(gc->name, gc->options.node);
        r = start_removal(gc, removal, gc->name);
        removal->remove.on_done = on_node_removed;
        if (r)
                remote_gc_fail(gc, r, gc->name);
}

static void on_old_leases(struct remote_gc *gc, bool more)
{
        remote_gc_keep_named(gc, POOL_LEASE_KIND);
        if (gc->n_names)
                remove_page(gc);
        else
                remove_node(gc);
}

void remote_gc_do_page(struct remote_gc *gc)
{
        switch (gc->phase) {
        case GC_BUNDLES:
                remote_gc_list(gc, "bundle", NULL, on_bundles);
                break;
        case GC_REPLACED:
                remote_gc_list(gc, "journal", *gc->after ? gc->after : NULL, on_segments);
                break;
        case GC_JOURNAL:
                remote_gc_list(gc, "journal", NULL, on_read_segments);
                break;
        case GC_LEASES:
                remote_gc_list(gc, POOL_LEASE_KIND, NULL, on_old_leases);
                break;
        }
}

int remote_gc_start(struct remote_gc **ret_gc, const struct remote_gc_options *options)
{
        struct remote_gc *gc;
        int r;

        if (!memcmp(options->node, options->own, sizeof(options->node)))
                return REMOTE_GC_E_OWN;
        gc = calloc(1, sizeof(*gc));
        if (!gc)
                return err_raise(-ENOMEM);
        gc->bytes = malloc(JOURNAL_SEGMENT_BYTES + 1);
        if (!gc->bytes) {
                free(gc);
                return err_raise(-ENOMEM);
        }
        gc->options = *options;
        if (!gc->options.older_than_s)
                gc->options.older_than_s = REMOTE_GC_OLDER_S_DEFAULT;
        if (!gc->options.lease_s)
                gc->options.lease_s = REMOTE_GC_LEASE_S_DEFAULT;
        if (!gc->options.deadline_ms)
                gc->options.deadline_ms = REMOTE_GC_DEADLINE_MS_DEFAULT;
        gc->result.limit_s = gc->options.older_than_s;
        journal_node_name(gc->name, options->node);
        r = remote_gc_submit_get(gc, gc->small, JOURNAL_NODE_BYTES, remote_gc_on_node);
        if (r) {
                free(gc->bytes);
                free(gc);
                return r;
        }
        *ret_gc = gc;
        return 0;
}

void remote_gc_cancel(struct remote_gc *gc)
{
        gc->cancelled = true;
}
