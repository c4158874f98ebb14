// SPDX-License-Identifier: Apache-2.0
/*
 * The state of the remote tier, shared by its files; nobody else includes it.
 *
 *     remote.c          operations and usage           remote_open.c     opening and closing
 *     remote_write.c    bundles on their way out       remote_read.c     ranges on their way in
 *     remote_forget.c   entries and bundles that go    remote_recover.c  the start
 *     remote_anew.c     a damaged index
 *     remote_journal.c  our journal                    remote_compact.c  its snapshots
 *     remote_follow.c   reading journals               remote_apply.c    what stands in them
 *     remote_replaced.c what replacing commits said    remote_layouts.c  layouts that are kept
 *     remote_survey.c   our bundles in the pool        remote_index.c    records in the index
 *     remote_append.c   records of a collection        remote_beat.c     our heartbeat
 *     remote_breaker.c  failures, probes, bandwidth    remote_scratch.c  memory of reads
 *     remote_map.c      what memory knows              remote_gc*.c, remote_nodes.c  stand alone
 *
 * A change is made in memory (remote_map.h) and queued to the index in the same turn of the
 * loop, so that memory is never behind; who needs it to survive waits for the index.
 */
#pragma once

#include <sys/queue.h>

#include <uv.h>

#include "storage/database.h"
#include "storage/journal.h"
#include "storage/remote.h"
#include "storage/remote_breaker.h"
#include "storage/remote_change.h"
#include "storage/remote_follow.h"
#include "storage/remote_forget.h"
#include "storage/remote_index.h"
#include "storage/remote_journal.h"
#include "storage/remote_map.h"
#include "storage/remote_scratch.h"

#define REMOTE_WRITES_MAX   1024u /* objects on their way; then TIER_E_PAUSED */
#define REMOTE_OPEN_MAX     8u    /* bundles that wait for more */
#define REMOTE_ENCODERS_MAX 2u    /* of uv's workers: what is loaded needs them as well */
#define REMOTE_SCRATCH_MAX  (128u << 20)
#define REMOTE_GET_BYTES    (16u << 20) /* of neighbours read together */
#define REMOTE_GAP_BYTES    (64u << 10) /* between neighbours */
#define REMOTE_CHANGES_MAX  8192u       /* of the index, not acknowledged; then TIER_E_PAUSED */
#define REMOTE_RETRY_MS_MAX 30000u
#define REMOTE_FAILURES_MAX 4u         /* in a row: the breaker opens */
#define REMOTE_REPLACED_MAX (1u << 15) /* remembered; a snapshot has them in one segment */

struct remote;
struct recovery;

TAILQ_HEAD(remote_put_queue, remote_put);
TAILQ_HEAD(remote_job_queue, remote_job);
TAILQ_HEAD(remote_get_queue, remote_get);
TAILQ_HEAD(remote_append_queue, remote_append);

struct remote {
        struct tier tier; /* first */
        uv_loop_t *loop;
        struct pool *pool;
        struct remote_options options; /* defaults filled in */
        char host[POOL_HOST_MAX];
        char *node_path; /* file with our id, beside the index */
        struct database *index;
        struct remote_map map;
        struct remote_node *own;
        uint64_t next_bundle;
        uint64_t first_new_bundle; /* of this run; it counts when is_own_read */

        uv_idle_t turn;    /* what callbacks may not do from inside a call */
        uv_timer_t linger; /* of bundles */
        uv_timer_t poll;
        uv_idle_t slice;           /* of a segment that is obeyed, or of what a damaged index had */
        struct recovery *recovery; /* the latter */
        uv_timer_t retry;          /* removes, journal, probes, heartbeats, bandwidth */
        uint32_t n_handles;
        uint32_t n_busy; /* pool requests, works and changes of the index that go on */
        bool is_recovered, is_rebuilding, is_closing, is_broken, is_paused, is_full;
        bool is_listing;   /* our bundles in the pool */
        bool is_surveyed;  /* they were listed since the start */
        bool is_own_read;  /* what lies in the pool of our journal is known */
        bool is_own_late;  /* a round ended without it: no write is taken until it is */
        bool is_held;      /* closing: by the turn that has not come yet */
        bool is_unvouched; /* on_missed was called, and is repeated at the next start, until ... */
        bool is_vouched;   /* ... vouched() has been, and no forget waits for readers */
        bool is_leaving;   /* something was learned to be replaced, and may be in a tier above:
                              until tier.h's is_leaving says no */
        uint64_t opened_ns;
        void (*on_closed)(void *user);
        void *on_closed_user;

        /* Writes. */
        struct remote_put_queue open_puts, ready_puts;
        uint32_t n_open_puts, n_puts, n_writes;
        uint32_t n_encoding;     /* of these puts on workers */
        uint64_t encoded_bytes;  /* memory of their stored forms */
        uint64_t write_bytes;    /* of objects on their way */
        uint64_t reserved_bytes; /* room in the pool for them */

        /* Reads. */
        struct remote_job_queue new_jobs, failed_jobs;
        struct remote_get_queue gets;
        uint32_t n_gets, n_jobs;
        struct remote_scratch scratch;
        uint64_t scratch_bytes, job_bytes;

        /* Forgets. */
        struct remote_forget_queue forgets;       /* wait for readers */
        struct remote_forget_queue freed_forgets; /* to be told on the next turn */
        STAILQ_HEAD(, database_op) failed_ops;    /* changes that could not be queued */
        TAILQ_HEAD(, remote_bundle) going;
        uint32_t n_removes, n_bundles; /* own bundles with entries */

        /* Our journal. */
        struct remote_segment_queue segments;
        uint64_t next_ordinal, done_ordinal, next_sequence, first_sequence;
        uint64_t first_segment, next_segment; /* numbers in the pool */
        bool is_flushing, is_urgent, is_compacting, is_snapshotting;
        uint64_t flush_at; /* ms of the loop's clock; 0: nothing waits */

        struct remote_append_queue appends; /* wait for it to be in the pool */

        /* Others'. */
        struct remote_follow *follow;
        STAILQ_HEAD(, remote_vanished) vanished;
        struct remote_replaced_tree replaced;
        struct remote_replaced_queue replaced_list;
        uint32_t n_replaced;
        bool has_floors; /* some node has one */

        /* Trouble. */
        uint32_t n_failures;
        bool is_open; /* the breaker */
        bool is_probing;
        uint32_t retry_ms;
        double window;           /* puts and gets in flight, each: fewer when they time out */
        uint64_t no_space_until; /* ms of the loop's clock: the pool said that it is full */
        uint64_t probe_at, heartbeat_at;
        struct remote_pace read_pace, write_pace;

        struct remote_layout *layouts; /* those that are kept */
        uint32_t n_layouts;
        uint64_t layout_bytes;
        struct remote_usage counts; /* what is only counted */
        uint64_t used_bytes, payload_bytes, n_objects;
        uint64_t read_bytes, written_bytes, io_errors, corrupt;
        struct tier_encoding_usage encoded, decoded;
};

/* remote.c */
void remote_tier_init(struct remote *remote);
void remote_notice(struct remote *remote, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
void remote_wake(struct remote *remote); /* the turn comes */
void remote_ready(struct remote *remote);
void remote_busy(struct remote *remote);
void remote_idle(struct remote *remote); /* closing goes on when nothing is busy */

/* remote_open.c */
void remote_put_meta(struct remote *remote, struct database_changes *changes);
void remote_close(struct tier *tier, void (*on_closed)(void *user), void *user);

/* remote_write.c */
uint64_t remote_footprint(struct tier *tier, uint64_t raw_bytes, uint32_t n_covers);
int remote_write(struct tier *tier, struct tier_write *write);
void remote_start_puts(struct remote *remote);
void remote_fail_puts(struct remote *remote, int result); /* those that have not begun */

/* remote_read.c */
int remote_read(struct tier *tier, struct tier_read *read);
int remote_read_pieces(struct tier *tier, struct tier_read *read);
void remote_begin_reads(struct remote *remote);
void remote_start_gets(struct remote *remote);
void remote_fail_gets(struct remote *remote, int result);

/* remote_recover.c */
void remote_recover(struct tier *tier,
                    void (*on_object)(void *user, const struct tier_object *object,
                                      struct tier_place place),
                    void (*on_end)(void *user, int result), void *user);
/* All but entries: what can be read of it, also when that fails. Blocks. */
int remote_load(struct remote *remote, struct why *why);

/* remote_anew.c */
bool remote_index_is_damaged(int result);
/* Some of them; true: the daemon has been told that all it was told of is gone. */
bool remote_drop_entries(struct remote *remote);
/* There are no entries. What can be learned again is forgotten; blocks. */
int remote_make_anew(struct remote *remote, struct why *why);
