// SPDX-License-Identifier: Apache-2.0
/*
 * The state of a collection, shared by its files; nobody else includes it.
 *
 *     remote_gc.c        the phases: what is removed, and in which order
 *     remote_gc_claim.c  is the node dead, and is it ours to collect?
 *     remote_gc_step.c   requests of the pool, and the end
 *
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
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "storage/pool_name.h"
#include "storage/remote_gc.h"

#define REMOTE_GC_PAGE     128u /* names: what is done between two looks at the lease */
#define REMOTE_GC_SEGMENTS 16u  /* of the journal, which are long */
#define REMOTE_GC_REMOVALS 8u   /* in flight */
#define REMOTE_GC_NS_PER_S UINT64_C(1000000000)

enum remote_gc_phase { GC_BUNDLES, GC_REPLACED, GC_JOURNAL, GC_LEASES };

struct remote_gc_removal {
        struct pool_remove remove;
        struct remote_gc *gc;
        char name[POOL_NAME_MAX];
        bool in_flight;
};

struct remote_gc {
        struct remote_gc_options options;
        struct remote_gc_result result;
        enum remote_gc_phase phase;
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
        uint64_t seen_epoch;   /* the highest so far, while leases are listed */
        char last_lease[POOL_NAME_MAX];

        char names[REMOTE_GC_PAGE][POOL_NAME_MAX]; /* of the page */
        uint64_t sizes[REMOTE_GC_PAGE];
        uint32_t n_names, at;
        uint32_t n_removing;
        int removal_result;
        struct remote_gc_removal removals[REMOTE_GC_REMOVALS];
        char after[POOL_NAME_MAX]; /* REPLACED: the last segment of the page before */
        bool more;

        struct journal_record records[REMOTE_GC_PAGE]; /* that are being told */
        uint32_t n_records;

        /* Of the segment that is taken apart. */
        uv_work_t work;
        int decoded;
        uint64_t n_bytes;
        struct object_key *keys; /* that it replaces */
        uint32_t n_keys, keys_size, next_key;
        uint8_t *bytes; /* of a segment, lease or node */
        uint8_t small[JOURNAL_NODE_BYTES];
};

/* remote_gc_step.c: each ends the collection when it cannot start. */
uint64_t remote_gc_now_ns(const struct remote_gc *gc);
void remote_gc_finish(struct remote_gc *gc, int outcome);
void remote_gc_fail(struct remote_gc *gc, int r, const char *what);
/* First in each callback: a collection that is cancelled goes nowhere. */
bool remote_gc_is_over(struct remote_gc *gc);
int remote_gc_submit_get(struct remote_gc *gc, void *bytes, uint64_t length,
                         void (*on_done)(struct pool_get *get, int result, uint64_t n_bytes));
void remote_gc_get(struct remote_gc *gc, void *bytes, uint64_t length,
                   void (*on_done)(struct pool_get *get, int result, uint64_t n_bytes));
/* What lies in gc->small, under gc->name. */
void remote_gc_put(struct remote_gc *gc, uint64_t length, uint32_t flags,
                   void (*on_done)(struct pool_put *put, int result));
/* A page of names of @kind of the dead node, behind @after. */
void remote_gc_list(struct remote_gc *gc, const char *kind, const char *after,
                    void (*after_list)(struct remote_gc *gc, bool more));
/* Of the page: names that are no name of ours stay where they are. */
void remote_gc_keep_named(struct remote_gc *gc, const char *kind);

/* remote_gc_claim.c */
void remote_gc_on_node(struct pool_get *get, int result, uint64_t n_bytes);
/* Looks at lease and heartbeat, then does the phase's next page. */
void remote_gc_begin_round(struct remote_gc *gc);

/* remote_gc.c */
void remote_gc_enter(struct remote_gc *gc, enum remote_gc_phase phase);
void remote_gc_do_page(struct remote_gc *gc);
