// SPDX-License-Identifier: Apache-2.0
/*
 * Lanes: one direction of one GPU, with a thread of its own, which takes jobs in order, puts
 * their bytes into slots, and ends each job when the last slot that held some of it is done.
 *
 * The thread never waits inside the driver, with one exception (memory that is not registered
 * goes through the driver's own buffers, which takes milliseconds): it asks the slots' events
 * how far they are, when their bytes should be through by the rate seen so far, and sleeps on
 * its condition meanwhile. So it sees new jobs, cancels and the end at once, costs no core, and
 * a GPU that hangs does not hang it. Callbacks of the driver were no choice: they run on its
 * thread, which would have to take the session's lock.
 *
 * Jobs whose caller's event has come go before those that would still wait for theirs. Where
 * nothing else is to be done, these are issued, too, to begin without the thread, unless what
 * comes behind them would have to wait with them; they never take more than half of the slots.
 *
 * What of a job had begun when the GPU was lost is KVT__PAGE_LOST; what had not is
 * KVT__PAGE_FAILED.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/page_codec.h"
#include "client/page_device.h"
#include "cuda/choice.h"
#include "cuda/driver.h"
#include "cuda/kvtier-cuda.h"
#include "cuda/registry.h"
#include "cuda/slot.h"
#include "cuda/worker.h"

#define LANE_SLOTS 4u
#define LANE_TASKS 256u                /* jobs that are in slots at a time */
#define SLOT_BYTES (UINT64_C(8) << 20) /* in a slot that needs no staging */
#define SLOT_JOBS  64u

/* What a lane needs of its GPU and of the session's device. */
struct lane_kit {
        const struct slot_kit *slot;
        cu_context context;
        uint32_t ordinal; /* jobs of another GPU fail */
        struct registry *registry;
        const struct choice *choice;
        struct kvt_session *session;
        const struct kvt__page_host *host;
        /* Told of errors, perhaps under the lane's lock; @is_lost: the GPU is gone. */
        void (*on_error)(void *context, cu_result error, bool is_lost);
        void *error_context;
        const atomic_bool *is_lost; /* of the GPU */
};

/* A job, and how far it has come. */
struct lane_task {
        TAILQ_ENTRY(lane_task) link;
        struct kvt__page_job *job; /* NULL: free */
        struct kvt__page_walk walk;
        struct kvt__page_run run;    /* what is left of the last run that the walk gave */
        struct kvt__tile_walk tiles; /* in place of both, where the group has a codec */
        struct kvt__object_place codes, scales; /* and where in the object it is */
        enum kvt_cuda_strategy strategy;
        uint32_t n_slots;   /* in flight with some of it */
        bool is_issued;     /* nothing of it is to be put into slots any more */
        bool is_registered; /* all of it was, when it began */
        bool has_failed;
        bool has_stopped;
};

TAILQ_HEAD(lane_tasks, lane_task);

struct lane_slot {
        struct slot slot;
        bool is_busy;
        bool was_seen;   /* looked at when it should have been through */
        bool waits;      /* for a caller's event, as far as is known */
        uint64_t due_ns; /* when its bytes should be through */
        uint64_t unregistered_bytes;
        uint32_t n_tasks;
        struct lane_task *tasks[SLOT_JOBS];
};

struct lane_counts {
        struct kvt_cuda_counts moved[KVT_CUDA_STRATEGIES];
        uint64_t unregistered_bytes;
        uint64_t failed_jobs;
};

struct lane {
        struct lane_kit kit;
        bool is_store;
        bool converts; /* has what it takes for groups with a codec */
        struct worker worker;
        pthread_mutex_t lock;
        pthread_cond_t work;

        /* under the lock */
        STAILQ_HEAD(, kvt__page_job) jobs; /* not begun */
        /* Of the jobs: those behind it are the next in which a cancel is looked for. */
        struct kvt__page_job *looked_at;
        struct lane_tasks active; /* begun, the oldest first */
        bool is_closing;
        bool is_abandoned; /* its jobs have been ended by another thread */
        uint64_t close_by_ns;
        struct lane_counts counts;

        /* the thread's */
        cu_stream tail;   /* behind the slots: caller's events are recorded there */
        cu_stream copies; /* of what is staged */
        struct lane_slot slots[LANE_SLOTS];
        struct lane_task tasks[LANE_TASKS];
        double bytes_per_ns;           /* of the bus, as far as is known */
        struct registry_extent extent; /* around the last address looked up */
};

/* With the context current. @staging_bytes: of all its slots. 0, or the driver's error. */
cu_result lane_init(struct lane *ret_lane, const struct lane_kit *kit, bool is_store,
                    uint64_t staging_bytes);
/* Starts the thread. 0 or negative. */
int lane_start(struct lane *lane);

/*
 * For whoever fills slots, in the lane's thread: the front of @bytes of an arena, as much of it
 * as the same holds for; the pair's page is left open.
 */
struct slot_pair lane_find(struct lane *lane, const uint8_t *arena, uint64_t bytes);

/* Any thread; never blocks. */
void lane_submit(struct lane *lane, struct kvt__page_job *job);

/* Ends all jobs, those in flight by waiting until @by_ns (CLOCK_MONOTONIC) at the latest. */
void lane_close(struct lane *lane, uint64_t by_ns);
/*
 * Waits for the thread, a little beyond @by_ns. False: it hangs inside the driver; its jobs
 * have been ended as lost, and the lane must stay where it is for ever.
 */
bool lane_join(struct lane *lane, uint64_t by_ns);
/* After the thread has ended, with the context current. @is_lost: the driver is not asked. */
void lane_deinit(struct lane *lane, bool is_lost);

void lane_count(struct lane *lane, struct lane_counts *ret_counts);
