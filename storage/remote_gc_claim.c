// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "storage/pool_lease.h"
#include "storage/remote_gc_state.h"

/* ---- the lease, and the heartbeat before each page ---- */

static void write_lease(struct remote_gc *gc, uint32_t flags,
                        void (*on_done)(struct pool_put *put, int result))
{
        struct pool_lease lease = {
                .epoch = gc->epoch,
                .written_ns = remote_gc_now_ns(gc),
                .seconds = gc->options.lease_s,
        };

        memcpy(lease.node, gc->options.node, sizeof(lease.node));
        memcpy(lease.holder, gc->options.own, sizeof(lease.holder));
        snprintf(lease.host, sizeof(lease.host), "%s", gc->options.host);
        pool_lease_encode(gc->small, &lease);
        gc->leased_ns = lease.written_ns;
        pool_name_number(gc->name, POOL_LEASE_KIND, gc->options.node, gc->epoch);
        remote_gc_put(gc, POOL_LEASE_BYTES, flags, on_done);
}

static void on_renewed(struct pool_put *put, int result)
{
        struct remote_gc *gc = put->user;

        if (remote_gc_is_over(gc))
                return;
        if (result)
                remote_gc_fail(gc, result, gc->name);
        else
                remote_gc_do_page(gc);
}

static void on_node_again(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_gc *gc = get->user;
        struct journal_node node;

        if (remote_gc_is_over(gc))
                return;
        if (result && result != -ENOENT) {
                remote_gc_fail(gc, result, gc->name);
                return;
        }
        if (!result && (journal_node_decode(&node, gc->small, n_bytes, NULL) ||
                        node.written_ns != gc->heartbeat_ns)) {
                why_set(&gc->result.why, "it came back: its heartbeat was written anew");
                remote_gc_finish(gc, REMOTE_GC_E_ALIVE);
                return;
        }
        if (remote_gc_now_ns(gc) - gc->leased_ns >= gc->options.lease_s * REMOTE_GC_NS_PER_S / 3)
                write_lease(gc, 0, on_renewed);
        else
                remote_gc_do_page(gc);
}

/* Leases pile up with attempts that broke off: the one that counts is of the last page. */
static void list_leases(struct remote_gc *gc, void (*then)(struct remote_gc *gc, bool more))
{
        gc->seen_epoch = 0;
        remote_gc_list(gc, POOL_LEASE_KIND, NULL, then);
}

/* Notes the highest epoch of the page's names; true: @then comes again, with the next page. */
static bool has_more_leases(struct remote_gc *gc, bool more,
                            void (*then)(struct remote_gc *gc, bool more))
{
        uint64_t number;
        uint8_t node[16];

        if (more)
                memcpy(gc->last_lease, gc->names[gc->n_names - 1], sizeof(gc->last_lease));
        remote_gc_keep_named(gc, POOL_LEASE_KIND);
        for (uint32_t i = 0; i < gc->n_names; i++) {
                if (pool_name_parse_number(gc->names[i], POOL_LEASE_KIND, node, &number) &&
                    number > gc->seen_epoch)
                        gc->seen_epoch = number;
        }
        if (more)
                remote_gc_list(gc, POOL_LEASE_KIND, gc->last_lease, then);
        return more;
}

static void on_leases_again(struct remote_gc *gc, bool more)
{
        if (has_more_leases(gc, more, on_leases_again))
                return;
        if (gc->seen_epoch > gc->epoch) {
                why_set(&gc->result.why, "this node's lease lapsed, and another took it over");
                remote_gc_finish(gc, REMOTE_GC_E_BUSY);
                return;
        }
        journal_node_name(gc->name, gc->options.node);
        remote_gc_get(gc, gc->small, JOURNAL_NODE_BYTES, on_node_again);
}

void remote_gc_begin_round(struct remote_gc *gc)
{
        list_leases(gc, on_leases_again);
}

static void on_leased(struct pool_put *put, int result)
{
        struct remote_gc *gc = put->user;

        if (remote_gc_is_over(gc))
                return;
        if (result == -EEXIST) {
                why_set(&gc->result.why, "another node has just begun to take it over");
                remote_gc_finish(gc, REMOTE_GC_E_BUSY);
        } else if (result) {
                remote_gc_fail(gc, result, gc->name);
        } else {
                remote_gc_enter(gc, GC_BUNDLES);
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

        if (remote_gc_is_over(gc))
                return;
        if (result && result != -ENOENT) {
                remote_gc_fail(gc, result, gc->name);
                return;
        }
        /* A damaged one holds nothing, and neither does our own: it is of an earlier run. */
        r = result ? POOL_LEASE_E_DAMAGED
                   : pool_lease_decode(&lease, gc->small, n_bytes, &gc->result.why);
        if (r == POOL_LEASE_E_NEWER) {
                remote_gc_finish(gc, REMOTE_GC_E_NEWER);
                return;
        }
        left_s = r || !memcmp(lease.holder, gc->options.own, sizeof(lease.holder))
                         ? 0
                         : pool_lease_left_s(&lease, remote_gc_now_ns(gc));
        *gc->result.why.text = '\0';
        if (!left_s) {
                take_lease(gc);
                return;
        }
        why_set(&gc->result.why, "%s is taking it over; its lease ends in at most %" PRIu64 " s",
                lease.host, left_s);
        remote_gc_finish(gc, REMOTE_GC_E_BUSY);
}

static void on_leases(struct remote_gc *gc, bool more)
{
        if (has_more_leases(gc, more, on_leases))
                return;
        gc->epoch = gc->seen_epoch; /* 0: there is no lease */
        if (!gc->epoch) {
                take_lease(gc);
                return;
        }
        pool_name_number(gc->name, POOL_LEASE_KIND, gc->options.node, gc->epoch);
        remote_gc_get(gc, gc->small, POOL_LEASE_BYTES, on_lease);
}

/* ---- is it dead? ---- */

static void on_heartbeat_put(struct pool_put *put, int result)
{
        struct remote_gc *gc = put->user;

        if (remote_gc_is_over(gc))
                return;
        if (result && result != -EEXIST) {
                remote_gc_fail(gc, result, gc->name);
                return;
        }
        why_set(&gc->result.why,
                "it has no heartbeat to tell its age by; one was put: if it has not written its "
                "own by then, it counts as dead in %" PRIu64 " s",
                gc->result.limit_s);
        remote_gc_finish(gc, REMOTE_GC_E_NO_HEARTBEAT);
}

static void put_heartbeat(struct remote_gc *gc)
{
        struct journal_node node = {.written_ns = remote_gc_now_ns(gc), .heartbeat_s = 1};

        memcpy(node.node, gc->options.node, sizeof(node.node));
        journal_node_encode(gc->small, &node);
        journal_node_name(gc->name, gc->options.node);
        remote_gc_put(gc, JOURNAL_NODE_BYTES, 0, on_heartbeat_put);
}

static void on_probed_journal(struct remote_gc *gc, bool more)
{
        remote_gc_keep_named(gc, "journal");
        if (gc->n_names) {
                put_heartbeat(gc);
                return;
        }
        why_set(&gc->result.why, "the pool has nothing of this node");
        remote_gc_finish(gc, REMOTE_GC_E_UNKNOWN);
}

static void on_probed_bundles(struct remote_gc *gc, bool more)
{
        remote_gc_keep_named(gc, "bundle");
        if (gc->n_names)
                put_heartbeat(gc);
        else
                remote_gc_list(gc, "journal", NULL, on_probed_journal);
}

/* What a node says of its pace is believed up to a day: else its orphans stay for ever. */
#define HEARTBEAT_S_MAX 86400u

/* Judges the heartbeat: dead, alive, or one that says nothing. */
static void judge(struct remote_gc *gc, const struct journal_node *node)
{
        uint64_t now = remote_gc_now_ns(gc), limit_s = gc->result.limit_s;
        uint64_t heartbeat_s =
                node->heartbeat_s < HEARTBEAT_S_MAX ? node->heartbeat_s : HEARTBEAT_S_MAX;
        uint64_t ahead_s =
                node->written_ns > now ? (node->written_ns - now) / REMOTE_GC_NS_PER_S : 0;

        if (limit_s < 2 * heartbeat_s)
                limit_s = 2 * heartbeat_s;
        gc->result.limit_s = limit_s;
        gc->result.age_s =
                node->written_ns < now ? (now - node->written_ns) / REMOTE_GC_NS_PER_S : 0;
        memcpy(gc->result.host, node->host, sizeof(gc->result.host));
        gc->heartbeat_ns = node->written_ns;
        if (ahead_s > limit_s) {
                put_heartbeat(gc);
        } else if (gc->result.age_s <= limit_s) {
                why_set(&gc->result.why,
                        "it is alive: its heartbeat is %" PRIu64 " s old; dead is what has none "
                        "for more than %" PRIu64 " s",
                        gc->result.age_s, limit_s);
                remote_gc_finish(gc, REMOTE_GC_E_ALIVE);
        } else {
                list_leases(gc, on_leases);
        }
}

void remote_gc_on_node(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct remote_gc *gc = get->user;
        struct journal_node node;
        int r;

        if (remote_gc_is_over(gc))
                return;
        if (result && result != -ENOENT) {
                remote_gc_fail(gc, result, gc->name);
                return;
        }
        r = result ? JOURNAL_E_DAMAGED
                   : journal_node_decode(&node, gc->small, n_bytes, &gc->result.why);
        if (!r && memcmp(node.node, gc->options.node, sizeof(node.node)))
                r = JOURNAL_E_DAMAGED;
        if (r == JOURNAL_E_NEWER)
                remote_gc_finish(gc, REMOTE_GC_E_NEWER);
        else if (!r)
                judge(gc, &node);
        else if (!result)
                put_heartbeat(gc);
        else
                remote_gc_list(gc, "bundle", NULL, on_probed_bundles);
}
