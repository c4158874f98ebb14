// SPDX-License-Identifier: Apache-2.0
/*
 * One request at a time, but for removals, of which a few are in flight:
 *
 *   READ_NODE -> PROBE_BUNDLES -> PROBE_JOURNAL -> PUT_NODE           (no heartbeat)
 *   READ_NODE -> LIST_LEASES -> [READ_LEASE] -> TAKE_LEASE -> round
 *   round:  CHECK_LEASE -> CHECK_NODE -> [RENEW] -> the phase's page -> round
 *   BUNDLES:  list, append, remove       until a page is empty
 *   REPLACED: list, get each, append     until the end of the journal
 *   JOURNAL:  list, remove               until a page is empty
 *   LEASES:   list, remove;  then the node object, and the end
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/bundle.h"
#include "storage/pool_lease.h"
#include "storage/pool_name.h"
#include "storage/remote_gc.h"

#define PAGE     128u /* names: what is done between two looks at lease and heartbeat */
#define SEGMENTS 16u  /* of the journal, which are long */
#define REMOVALS 8u   /* in flight */
#define NS_PER_S UINT64_C(1000000000)

enum phase { GC_BUNDLES, GC_REPLACED, GC_JOURNAL, GC_LEASES };

struct removal {
        struct pool_remove remove;
        struct remote_gc *gc;
        char name[POOL_NAME_MAX];
        bool in_flight;
};

struct remote_gc {
        struct remote_gc_options options;
        struct remote_gc_result result;
        enum phase phase;
        bool cancelled;
        uint32_t n_in_flight;

        struct pool_get get;
        struct pool_put put;
        struct pool_list list;
        struct pool_buffer buffer;
        char name[POOL_NAME_MAX];
        char prefix[POOL_NAME_MAX];
        void (*after_list)(struct remote_gc *gc, bool more);

        uint64_t heartbeat_ns; /* as it was when it was found dead */
        uint64_t epoch;        /* of our lease; before: the highest that there is */
        uint64_t leased_ns;    /* when it was written last */

        char names[PAGE][POOL_NAME_MAX]; /* of the page */
        uint64_t sizes[PAGE];
        uint32_t n_names, at;
        uint32_t n_removing;
        int removal_result;
        struct removal removals[REMOVALS];
        char after[POOL_NAME_MAX]; /* REPLACED: the last segment of the page before */
        bool more;

        struct journal_record *records;
        uint32_t n_records, records_size;
        uint8_t *bytes; /* of a segment, lease or node */
        uint8_t small[JOURNAL_NODE_BYTES];
};

static void begin_round(struct remote_gc *gc);
static void next_segment(struct remote_gc *gc);

static uint64_t now_ns(const struct remote_gc *gc)
{
        struct timespec now;

        if (gc->options.now_ns)
                return gc->options.now_ns();
        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void end(struct remote_gc *gc, int outcome)
{
        assert(!gc->n_in_flight);
        gc->result.outcome = outcome;
        gc->options.on_end(gc->options.user, &gc->result);
        free(gc->records);
        free(gc->bytes);
        free(gc);
}

static void fail(struct remote_gc *gc, int r, const char *what)
{
        const char *said = gc->options.pool->ops.last_failure(gc->options.pool);

        why_set(&gc->result.why, "%s: %s%s%s", what, strerror(-r), *said ? ": " : "", said);
        end(gc, r);
}

/* Of each callback: is it the end? A collection that is cancelled goes nowhere. */
static bool is_over(struct remote_gc *gc)
{
        gc->n_in_flight--;
        if (!gc->cancelled)
                return false;
        if (!gc->n_in_flight) {
                why_set(&gc->result.why, "broken off: what is left is found by the next");
                end(gc, -ECANCELED);
        }
        return true;
}

/* ---- requests ---- */

static int submit_get(struct remote_gc *gc, void *bytes, uint64_t length,
                      void (*on_done)(struct pool_get *get, int result, uint64_t n_bytes))
{
        int r;

        gc->get = (struct pool_get){
                .name = gc->name,
                .length = length,
                .bytes = bytes,
                .deadline_ms = gc->options.deadline_ms,
                .on_done = on_done,
                .user = gc,
        };
        r = gc->options.pool->ops.get(gc->options.pool, &gc->get);
        gc->n_in_flight += !r;
        return r;
}

static void start_get(struct remote_gc *gc, void *bytes, uint64_t length,
                      void (*on_done)(struct pool_get *get, int result, uint64_t n_bytes))
{
        int r = submit_get(gc, bytes, length, on_done);

        if (r)
                fail(gc, r, gc->name);
}

static void start_put(struct remote_gc *gc, uint64_t length, uint32_t flags,
                      void (*on_done)(struct pool_put *put, int result))
{
        int r;

        gc->buffer = (struct pool_buffer){.bytes = gc->small, .length = length};
        gc->put = (struct pool_put){
                .name = gc->name,
                .buffers = &gc->buffer,
                .n_buffers = 1,
                .flags = flags,
                .deadline_ms = gc->options.deadline_ms,
                .on_done = on_done,
                .user = gc,
        };
        r = gc->options.pool->ops.put(gc->options.pool, &gc->put);
        if (r)
                fail(gc, r, gc->name);
        else
                gc->n_in_flight++;
}

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        struct remote_gc *gc = list->user;

        /* A pool that gives more or longer names than were asked for is not believed. */
        if (gc->n_names == list->max || strlen(name) >= POOL_NAME_MAX)
                return;
        snprintf(gc->names[gc->n_names], POOL_NAME_MAX, "%s", name);
        gc->sizes[gc->n_names++] = bytes;
}

static void on_listed(struct pool_list *list, int result, bool more)
{
        struct remote_gc *gc = list->user;

        if (is_over(gc))
                return;
        if (result && result != -ENOENT)
                fail(gc, result, gc->prefix);
        else
                gc->after_list(gc, more && gc->n_names);
}

/* The names of @kind of the dead node, behind @after. */
static void start_list(struct remote_gc *gc, const char *kind, const char *after,
                       void (*after_list)(struct remote_gc *gc, bool more))
{
        int r;

        pool_name_prefix(gc->prefix, kind, gc->options.node);
        gc->n_names = 0;
        gc->after_list = after_list;
        gc->list = (struct pool_list){
                .prefix = gc->prefix,
                .after = after,
                .max = gc->phase == GC_REPLACED ? SEGMENTS : PAGE,
                .deadline_ms = gc->options.deadline_ms,
                .on_name = on_name,
                .on_done = on_listed,
                .user = gc,
        };
        r = gc->options.pool->ops.list(gc->options.pool, &gc->list);
        if (r)
                fail(gc, r, gc->prefix);
        else
                gc->n_in_flight++;
}

/* ---- removal of the page's names ---- */

static void remove_more(struct remote_gc *gc);

static void on_removed(struct pool_remove *remove, int result)
{
        struct removal *removal = remove->user;
        struct remote_gc *gc = removal->gc;

        removal->in_flight = false;
        gc->n_removing--;
        if (is_over(gc))
                return;
        if (result && result != -ENOENT && !gc->removal_result) {
                snprintf(gc->name, sizeof(gc->name), "%s", removal->name);
                gc->removal_result = result;
        } else if (gc->phase == GC_BUNDLES) {
                gc->result.bundles++;
        } else if (gc->phase == GC_JOURNAL) {
                gc->result.segments++;
        }
        remove_more(gc);
}

static int start_removal(struct remote_gc *gc, struct removal *removal, const char *name)
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
        for (uint32_t i = 0; i < REMOVALS && gc->at < gc->n_names && !gc->removal_result; i++) {
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
                fail(gc, gc->removal_result, gc->name);
        else
                begin_round(gc);
}

static void remove_page(struct remote_gc *gc)
{
        gc->at = 0;
        gc->removal_result = 0;
        remove_more(gc);
}

/* ---- what is told in our journal ---- */

static int add_record(struct remote_gc *gc, const struct journal_record *record)
{
        struct journal_record *grown;
        uint32_t size;

        if (gc->n_records == gc->records_size) {
                size = gc->records_size ? 2 * gc->records_size : PAGE;
                grown = reallocarray(gc->records, size, sizeof(*grown));
                if (!grown)
                        return err_raise(-ENOMEM);
                gc->records = grown;
                gc->records_size = size;
        }
        gc->records[gc->n_records++] = *record;
        return 0;
}

static void on_appended(void *user, int result)
{
        struct remote_gc *gc = user;

        if (is_over(gc))
                return;
        gc->n_records = 0;
        if (result)
                fail(gc, result, "this node's journal");
        else if (gc->phase == GC_BUNDLES)
                remove_page(gc);
        else
                next_segment(gc);
}

static void append(struct remote_gc *gc)
{
        int r = gc->options.append(gc->options.user, gc->records, gc->n_records, on_appended, gc);

        if (r)
                fail(gc, r, "this node's journal");
        else
                gc->n_in_flight++;
}

/* ---- the phases ---- */

/* Names that are no name of ours (somebody else's objects) stay, and are no page. */
static void keep_named(struct remote_gc *gc, const char *kind)
{
        uint8_t node[16];
        uint64_t number;
        uint32_t n = 0;

        for (uint32_t i = 0; i < gc->n_names; i++) {
                if (!pool_name_parse_number(gc->names[i], kind, node, &number) ||
                    memcmp(node, gc->options.node, sizeof(node)))
                        continue;
                memmove(gc->names[n], gc->names[i], POOL_NAME_MAX);
                gc->sizes[n++] = gc->sizes[i];
        }
        gc->n_names = n;
}

static void enter(struct remote_gc *gc, enum phase phase)
{
        gc->phase = phase;
        *gc->after = '\0';
        begin_round(gc);
}

static void on_bundles(struct remote_gc *gc, bool more)
{
        struct journal_record record = {.kind = JOURNAL_DELETED};
        int r = 0;

        keep_named(gc, "bundle");
        if (!gc->n_names) {
                enter(gc, GC_REPLACED);
                return;
        }
        gc->n_records = 0;
        for (uint32_t i = 0; i < gc->n_names && !r; i++) {
                bundle_name_parse(gc->names[i], &record.bundle);
                r = add_record(gc, &record);
        }
        if (r)
                fail(gc, r, "a page of bundles");
        else
                append(gc);
}

static bool see_record(void *user, const struct journal_record *record)
{
        struct journal_record told = {.kind = JOURNAL_REPLACED, .key = record->key};
        struct remote_gc *gc = user;

        if (record->kind == JOURNAL_REPLACED)
                gc->removal_result = add_record(gc, &told);
        return !gc->removal_result;
}

static void on_segment(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_gc *gc = get->user;
        uint8_t node[16];
        uint64_t number = 0;
        int r;

        if (is_over(gc))
                return;
        if (result && result != -ENOENT) {
                fail(gc, result, gc->name);
                return;
        }
        journal_name_parse(gc->name, node, &number);
        gc->removal_result = 0;
        r = result ? 0
                   : journal_segment_decode(gc->bytes, n_bytes > get->length ? 0 : n_bytes, node,
                                            number, see_record, gc, &gc->result.why);
        if (r == JOURNAL_E_NEWER) {
                end(gc, REMOTE_GC_E_NEWER);
                return;
        }
        if (r == -ENOMEM || gc->removal_result) {
                fail(gc, -ENOMEM, gc->name);
                return;
        }
        gc->result.damaged += r != 0;
        *gc->result.why.text = '\0';
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
                start_get(gc, gc->bytes, JOURNAL_SEGMENT_BYTES + 1, on_segment);
        } else if (gc->more) {
                begin_round(gc);
        } else {
                enter(gc, GC_JOURNAL);
        }
}

static void on_segments(struct remote_gc *gc, bool more)
{
        if (gc->n_names)
                snprintf(gc->after, sizeof(gc->after), "%s", gc->names[gc->n_names - 1]);
        gc->more = more;
        gc->at = 0;
        gc->n_records = 0;
        keep_named(gc, "journal");
        next_segment(gc);
}

static void on_read_segments(struct remote_gc *gc, bool more)
{
        keep_named(gc, "journal");
        if (gc->n_names)
                remove_page(gc);
        else
                enter(gc, GC_LEASES);
}

static void on_node_removed(struct pool_remove *remove, int result)
{
        struct remote_gc *gc = ((struct removal *)remove->user)->gc;

        if (is_over(gc))
                return;
        if (result && result != -ENOENT)
                fail(gc, result, "the node's object");
        else
                end(gc, 0);
}

static void remove_node(struct remote_gc *gc)
{
        struct removal *removal = &gc->removals[0];
        int r;

        journal_node_name(gc->name, gc->options.node);
        r = start_removal(gc, removal, gc->name);
        removal->remove.on_done = on_node_removed;
        if (r)
                fail(gc, r, gc->name);
}

static void on_old_leases(struct remote_gc *gc, bool more)
{
        keep_named(gc, POOL_LEASE_KIND);
        if (gc->n_names)
                remove_page(gc);
        else
                remove_node(gc);
}

static void do_page(struct remote_gc *gc)
{
        switch (gc->phase) {
        case GC_BUNDLES:
                start_list(gc, "bundle", NULL, on_bundles);
                break;
        case GC_REPLACED:
                start_list(gc, "journal", *gc->after ? gc->after : NULL, on_segments);
                break;
        case GC_JOURNAL:
                start_list(gc, "journal", NULL, on_read_segments);
                break;
        case GC_LEASES:
                start_list(gc, POOL_LEASE_KIND, NULL, on_old_leases);
                break;
        }
}

/* ---- the lease, and the heartbeat before each page ---- */

static void write_lease(struct remote_gc *gc, uint32_t flags,
                        void (*on_done)(struct pool_put *put, int result))
{
        struct pool_lease lease = {
                .epoch = gc->epoch,
                .written_ns = now_ns(gc),
                .seconds = gc->options.lease_s,
        };

        memcpy(lease.node, gc->options.node, sizeof(lease.node));
        memcpy(lease.holder, gc->options.own, sizeof(lease.holder));
        snprintf(lease.host, sizeof(lease.host), "%s", gc->options.host);
        pool_lease_encode(gc->small, &lease);
        gc->leased_ns = lease.written_ns;
        pool_name_number(gc->name, POOL_LEASE_KIND, gc->options.node, gc->epoch);
        start_put(gc, POOL_LEASE_BYTES, flags, on_done);
}

static void on_renewed(struct pool_put *put, int result)
{
        struct remote_gc *gc = put->user;

        if (is_over(gc))
                return;
        if (result)
                fail(gc, result, gc->name);
        else
                do_page(gc);
}

static void on_node_again(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_gc *gc = get->user;
        struct journal_node node;

        if (is_over(gc))
                return;
        if (result && result != -ENOENT) {
                fail(gc, result, gc->name);
                return;
        }
        if (!result && (journal_node_decode(&node, gc->small, n_bytes, NULL) ||
                        node.written_ns != gc->heartbeat_ns)) {
                why_set(&gc->result.why, "it came back: its heartbeat was written anew");
                end(gc, REMOTE_GC_E_ALIVE);
                return;
        }
        if (now_ns(gc) - gc->leased_ns >= gc->options.lease_s * NS_PER_S / 3)
                write_lease(gc, 0, on_renewed);
        else
                do_page(gc);
}

/* The highest epoch of the page's names; 0: there is no lease. */
static uint64_t highest_epoch(struct remote_gc *gc)
{
        uint64_t epoch = 0, number;
        uint8_t node[16];

        keep_named(gc, POOL_LEASE_KIND);
        for (uint32_t i = 0; i < gc->n_names; i++) {
                if (pool_name_parse_number(gc->names[i], POOL_LEASE_KIND, node, &number) &&
                    number > epoch)
                        epoch = number;
        }
        return epoch;
}

static void on_leases_again(struct remote_gc *gc, bool more)
{
        if (highest_epoch(gc) > gc->epoch) {
                why_set(&gc->result.why, "this node's lease lapsed, and another took it over");
                end(gc, REMOTE_GC_E_BUSY);
                return;
        }
        journal_node_name(gc->name, gc->options.node);
        start_get(gc, gc->small, JOURNAL_NODE_BYTES, on_node_again);
}

static void begin_round(struct remote_gc *gc)
{
        start_list(gc, POOL_LEASE_KIND, NULL, on_leases_again);
}

static void on_leased(struct pool_put *put, int result)
{
        struct remote_gc *gc = put->user;

        if (is_over(gc))
                return;
        if (result == -EEXIST) {
                why_set(&gc->result.why, "another node has just begun to take it over");
                end(gc, REMOTE_GC_E_BUSY);
        } else if (result) {
                fail(gc, result, gc->name);
        } else {
                enter(gc, GC_BUNDLES);
        }
}

static void take_lease(struct remote_gc *gc)
{
        gc->epoch++;
        write_lease(gc, POOL_EXCLUSIVE, on_leased);
}

static void on_lease(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_gc *gc = get->user;
        struct pool_lease lease;
        uint64_t left_s;
        int r;

        if (is_over(gc))
                return;
        if (result && result != -ENOENT) {
                fail(gc, result, gc->name);
                return;
        }
        /* A damaged one holds nothing, and neither does our own: it is of an earlier run. */
        r = result ? POOL_LEASE_E_DAMAGED
                   : pool_lease_decode(&lease, gc->small, n_bytes, &gc->result.why);
        if (r == POOL_LEASE_E_NEWER) {
                end(gc, REMOTE_GC_E_NEWER);
                return;
        }
        left_s = r || !memcmp(lease.holder, gc->options.own, sizeof(lease.holder))
                         ? 0
                         : pool_lease_left_s(&lease, now_ns(gc));
        *gc->result.why.text = '\0';
        if (!left_s) {
                take_lease(gc);
                return;
        }
        why_set(&gc->result.why, "%s is taking it over; its lease ends in at most %" PRIu64 " s",
                lease.host, left_s);
        end(gc, REMOTE_GC_E_BUSY);
}

static void on_leases(struct remote_gc *gc, bool more)
{
        gc->epoch = highest_epoch(gc);
        if (!gc->epoch) {
                take_lease(gc);
                return;
        }
        pool_name_number(gc->name, POOL_LEASE_KIND, gc->options.node, gc->epoch);
        start_get(gc, gc->small, POOL_LEASE_BYTES, on_lease);
}

/* ---- is it dead? ---- */

static void on_heartbeat_put(struct pool_put *put, int result)
{
        struct remote_gc *gc = put->user;

        if (is_over(gc))
                return;
        if (result && result != -EEXIST) {
                fail(gc, result, gc->name);
                return;
        }
        why_set(&gc->result.why,
                "it has no heartbeat to tell its age by; one was put: if it has not written its "
                "own by then, it counts as dead in %" PRIu64 " s",
                gc->result.limit_s);
        end(gc, REMOTE_GC_E_NO_HEARTBEAT);
}

static void put_heartbeat(struct remote_gc *gc)
{
        struct journal_node node = {.written_ns = now_ns(gc), .heartbeat_s = 1};

        memcpy(node.node, gc->options.node, sizeof(node.node));
        journal_node_encode(gc->small, &node);
        journal_node_name(gc->name, gc->options.node);
        start_put(gc, JOURNAL_NODE_BYTES, 0, on_heartbeat_put);
}

static void on_probed_journal(struct remote_gc *gc, bool more)
{
        keep_named(gc, "journal");
        if (gc->n_names) {
                put_heartbeat(gc);
                return;
        }
        why_set(&gc->result.why, "the pool has nothing of this node");
        end(gc, REMOTE_GC_E_UNKNOWN);
}

static void on_probed_bundles(struct remote_gc *gc, bool more)
{
        keep_named(gc, "bundle");
        if (gc->n_names)
                put_heartbeat(gc);
        else
                start_list(gc, "journal", NULL, on_probed_journal);
}

/* Judges the heartbeat: dead, alive, or one that says nothing. */
static void judge(struct remote_gc *gc, const struct journal_node *node)
{
        uint64_t now = now_ns(gc), limit_s = gc->result.limit_s;
        uint64_t ahead_s = node->written_ns > now ? (node->written_ns - now) / NS_PER_S : 0;

        if (limit_s < 2 * (uint64_t)node->heartbeat_s)
                limit_s = 2 * (uint64_t)node->heartbeat_s;
        gc->result.limit_s = limit_s;
        gc->result.age_s = node->written_ns < now ? (now - node->written_ns) / NS_PER_S : 0;
        memcpy(gc->result.host, node->host, sizeof(gc->result.host));
        gc->heartbeat_ns = node->written_ns;
        if (ahead_s > limit_s) {
                put_heartbeat(gc);
        } else if (gc->result.age_s <= limit_s) {
                why_set(&gc->result.why,
                        "it is alive: its heartbeat is %" PRIu64 " s old; dead is what has none "
                        "for more than %" PRIu64 " s",
                        gc->result.age_s, limit_s);
                end(gc, REMOTE_GC_E_ALIVE);
        } else {
                start_list(gc, POOL_LEASE_KIND, NULL, on_leases);
        }
}

static void on_node(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_gc *gc = get->user;
        struct journal_node node;
        int r;

        if (is_over(gc))
                return;
        if (result && result != -ENOENT) {
                fail(gc, result, gc->name);
                return;
        }
        r = result ? JOURNAL_E_DAMAGED
                   : journal_node_decode(&node, gc->small, n_bytes, &gc->result.why);
        if (!r && memcmp(node.node, gc->options.node, sizeof(node.node)))
                r = JOURNAL_E_DAMAGED;
        if (r == JOURNAL_E_NEWER)
                end(gc, REMOTE_GC_E_NEWER);
        else if (!r)
                judge(gc, &node);
        else if (!result)
                put_heartbeat(gc);
        else
                start_list(gc, "bundle", NULL, on_probed_bundles);
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
        r = submit_get(gc, gc->small, JOURNAL_NODE_BYTES, on_node);
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
