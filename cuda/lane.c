// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "cuda/clock.h"
#include "cuda/lane.h"
#include "cuda/tiles.h"

#define BYTES_PER_NS     50.0 /* of the bus, at first; then as is seen */
#define BYTES_PER_NS_MIN 1.0
#define BYTES_PER_NS_MAX 1000.0
#define FASTER           1.05
#define SLOWER           0.98
#define POLL_NS_MIN      UINT64_C(10000)
#define POLL_NS_MAX      UINT64_C(200000)
#define WAIT_POLL_NS     UINT64_C(100000)
#define LATE_SHARE       8u /* what has been late for long is looked at less often */
#define JOBS_LOOKED_AT   64u
#define TIMER_SLACK_NS   1000u
#define JOIN_NS          UINT64_C(500000000)

/* ---- ends: under the lock, which goes away for the host ---- */

static void end_job(struct lane *lane, struct kvt__page_job *job, enum kvt__page_end end)
{
        lane->counts.failed_jobs += end == KVT__PAGE_FAILED || end == KVT__PAGE_LOST;
        pthread_mutex_unlock(&lane->lock);
        lane->kit.host->end(lane->kit.session, job, end);
        pthread_mutex_lock(&lane->lock);
}

static void end_task(struct lane *lane, struct lane_task *task, enum kvt__page_end end)
{
        struct kvt__page_job *job = task->job;

        TAILQ_REMOVE(&lane->active, task, link);
        task->job = NULL;
        end_job(lane, job, end);
}

static enum kvt__page_end how_it_ended(const struct lane_task *task)
{
        if (task->has_failed)
                return KVT__PAGE_FAILED;
        return task->has_stopped ? KVT__PAGE_STOPPED : KVT__PAGE_COPIED;
}

/* All that was begun may run on; nobody will ever know. */
static void lose_all(struct lane *lane)
{
        while (!lane->is_abandoned && !TAILQ_EMPTY(&lane->active))
                end_task(lane, TAILQ_FIRST(&lane->active), KVT__PAGE_LOST);
        for (unsigned i = 0; i < LANE_SLOTS; i++)
                lane->slots[i].is_busy = false;
}

static void remove_job(struct lane *lane, struct kvt__page_job *job)
{
        STAILQ_REMOVE(&lane->jobs, job, kvt__page_job, link);
        if (lane->looked_at == job)
                lane->looked_at = NULL;
}

static void fail_queue(struct lane *lane)
{
        struct kvt__page_job *job;

        while ((job = STAILQ_FIRST(&lane->jobs))) {
                remove_job(lane, job);
                end_job(lane, job, KVT__PAGE_FAILED);
        }
}

static bool is_lost(const struct lane *lane)
{
        return atomic_load_explicit(lane->kit.is_lost, memory_order_acquire);
}

/* ---- slots that are done ---- */

static void count_slot(struct lane *lane, const struct lane_slot *slot)
{
        struct kvt_cuda_counts *counts = &lane->counts.moved[slot->slot.strategy];

        counts->bytes += slot->slot.bytes;
        counts->runs += slot->slot.n_runs;
        lane->counts.unregistered_bytes += slot->unregistered_bytes;
}

/*
 * A slot that was through when it was first looked at may have been so for long, and the bus
 * idle meanwhile: the next ones are looked at earlier.
 */
static void learn_rate(struct lane *lane, struct lane_slot *slot, bool is_done)
{
        bool is_due = clock_now_ns() >= slot->due_ns;

        if (slot->was_seen || slot->waits || (!is_done && !is_due))
                return;
        if (is_done && lane->bytes_per_ns < BYTES_PER_NS_MAX)
                lane->bytes_per_ns *= FASTER;
        else if (!is_done && lane->bytes_per_ns > BYTES_PER_NS_MIN)
                lane->bytes_per_ns *= SLOWER;
        slot->was_seen = true;
}

/*
 * Has the event come that the job waits for? Errors are for whoever issues it. The lock goes
 * away meanwhile: after that an abandoned lane has no jobs and tasks to be looked at.
 */
static bool has_come(struct lane *lane, const struct kvt__page_job *job)
{
        cu_result error;

        if (!job->after)
                return true;
        pthread_mutex_unlock(&lane->lock);
        error = lane->kit.slot->driver->event_query((cu_event)job->after);
        pthread_mutex_lock(&lane->lock);
        return error != CU_E_NOT_READY;
}

static void finish_slot(struct lane *lane, struct lane_slot *slot)
{
        slot->is_busy = false;
        count_slot(lane, slot);
        for (uint32_t i = 0; i < slot->n_tasks && !lane->is_abandoned; i++) {
                struct lane_task *task = slot->tasks[i];

                if (!--task->n_slots && task->is_issued)
                        end_task(lane, task, how_it_ended(task));
        }
}

static void collect(struct lane *lane)
{
        for (unsigned i = 0; i < LANE_SLOTS; i++) {
                struct lane_slot *slot = &lane->slots[i];
                cu_result error;

                if (!slot->is_busy)
                        continue;
                pthread_mutex_unlock(&lane->lock);
                error = slot_query(&slot->slot);
                if (error && error != CU_E_NOT_READY)
                        lane->kit.on_error(lane->kit.error_context, error, true);
                pthread_mutex_lock(&lane->lock);
                if (lane->is_abandoned || is_lost(lane))
                        return;
                learn_rate(lane, slot, !error);
                if (!error)
                        finish_slot(lane, slot);
                else if (slot->waits)
                        slot->waits = !has_come(lane, slot->tasks[0]->job);
                if (lane->is_abandoned)
                        return;
        }
}

/* ---- jobs that begin ---- */

static const struct registry_extent *find_extent(struct lane *lane, uint64_t address)
{
        if (address < lane->extent.start || address >= lane->extent.end ||
            !lane->extent.is_registered)
                registry_find(lane->kit.registry, address, &lane->extent);
        return &lane->extent;
}

static bool is_registered(struct lane *lane, const struct kvt__page_list *list)
{
        /* Arenas come and go: what is cached is of the job before. */
        lane->extent = (struct registry_extent){0, 0, 0, false, false};
        return registry_covers(lane->kit.registry, list);
}

static struct lane_task *free_task(struct lane *lane)
{
        for (unsigned i = 0; i < LANE_TASKS; i++)
                if (!lane->tasks[i].job)
                        return &lane->tasks[i];
        return NULL;
}

static bool converts(const struct kvt__page_job *job)
{
        return job->list.group->codec != CODEC_NONE;
}

static bool ends_at_once(const struct lane *lane, const struct kvt__page_job *job,
                         enum kvt__page_end *ret_end)
{
        bool has_stopped = atomic_load_explicit(job->stop, memory_order_relaxed);

        *ret_end = has_stopped ? KVT__PAGE_STOPPED : KVT__PAGE_FAILED;
        return has_stopped || job->place != lane->kit.ordinal ||
               (converts(job) && !lane->converts);
}

/*
 * Of the jobs behind @last (NULL: of the first) those end here that are not to be copied at all.
 * The last that was looked at, or NULL where no other follows.
 */
static struct kvt__page_job *end_stopped_jobs(struct lane *lane, struct kvt__page_job *last)
{
        struct kvt__page_job *job;
        enum kvt__page_end end;

        for (unsigned n = 0; n < JOBS_LOOKED_AT; n++) {
                job = last ? STAILQ_NEXT(last, link) : STAILQ_FIRST(&lane->jobs);
                if (!job)
                        return NULL;
                if (!ends_at_once(lane, job, &end)) {
                        last = job;
                        continue;
                }
                remove_job(lane, job);
                end_job(lane, job, end);
                if (lane->is_abandoned)
                        return NULL;
        }
        return last;
}

static struct kvt__page_job *next_job(struct lane *lane)
{
        end_stopped_jobs(lane, NULL);
        return lane->is_abandoned ? NULL : STAILQ_FIRST(&lane->jobs);
}

static enum kvt_cuda_strategy strategy_of(struct lane *lane, const struct kvt__page_job *job,
                                          bool registered)
{
        struct choice_shape shape = choice_shape_of(&job->list);

        return converts(job) ? KVT_CUDA_STAGED
                             : choice_find(lane->kit.choice, lane->is_store, &shape, registered);
}

static void begin_walk(struct lane_task *task)
{
        const struct kvt__page_list *list = &task->job->list;

        if (converts(task->job)) {
                kvt__tile_walk_init(&task->tiles, list);
                task->codes = task->scales = (struct kvt__object_place){list->segments, 0};
        } else {
                kvt__page_walk_init(&task->walk, list);
        }
}

/* NULL: no room for its task. */
static struct lane_task *begin_job(struct lane *lane, struct kvt__page_job *job)
{
        struct lane_task *task = free_task(lane);

        if (!task)
                return NULL;
        remove_job(lane, job);
        *task = (struct lane_task){.job = job, .is_registered = is_registered(lane, &job->list)};
        task->strategy = strategy_of(lane, job, task->is_registered);
        begin_walk(task);
        TAILQ_INSERT_TAIL(&lane->active, task, link);
        lane->counts.moved[task->strategy].jobs++;
        return task;
}

/* ---- which comes next ---- */

static struct lane_task *open_task(struct lane *lane)
{
        struct lane_task *task;

        TAILQ_FOREACH(task, &lane->active, link)
                if (!task->is_issued)
                        return task;
        return NULL;
}

/* A task, some of which is not in slots yet, and that does not have to wait. */
static struct lane_task *ready_task(struct lane *lane)
{
        struct lane_task *task;

        TAILQ_FOREACH(task, &lane->active, link) {
                bool comes = !task->is_issued && has_come(lane, task->job);

                if (comes || lane->is_abandoned)
                        return lane->is_abandoned ? NULL : task;
        }
        return NULL;
}

/* Of the first jobs; those of a call share an event, which is asked once. */
static struct kvt__page_job *ready_job(struct lane *lane)
{
        struct kvt__page_job *job, *last = NULL;
        unsigned n = 0;

        STAILQ_FOREACH(job, &lane->jobs, link)
        {
                bool comes;

                if (n++ == JOBS_LOOKED_AT)
                        return NULL;
                if (last && last->after == job->after)
                        continue;
                comes = has_come(lane, job);
                if (comes || lane->is_abandoned)
                        return lane->is_abandoned ? NULL : job;
                last = job;
        }
        return NULL;
}

/*
 * Not what goes through the driver's own buffers, which would make this thread wait; nor what
 * is staged on its way to the arena, for which the copies of all slots behind it would wait.
 */
static bool may_wait_there(struct lane *lane, const struct kvt__page_job *job)
{
        return is_registered(lane, &job->list) &&
               (!lane->is_store || strategy_of(lane, job, true) != KVT_CUDA_STAGED);
}

/* What has to wait is issued to wait on the GPU, if it may. */
static struct lane_task *waiting_task(struct lane *lane)
{
        struct lane_task *task = open_task(lane);
        struct kvt__page_job *job;
        unsigned n = 0;

        for (unsigned i = 0; i < LANE_SLOTS; i++)
                n += lane->slots[i].is_busy && lane->slots[i].waits;
        if (n >= LANE_SLOTS / 2)
                return NULL;
        if (task)
                return task->is_registered ? task : NULL;
        job = next_job(lane);
        return job && may_wait_there(lane, job) ? begin_job(lane, job) : NULL;
}

static struct lane_task *next_task(struct lane *lane, bool *ret_waits)
{
        struct lane_task *task = ready_task(lane);
        struct kvt__page_job *job;

        *ret_waits = false;
        if (task || lane->is_abandoned)
                return task;
        job = next_job(lane) ? ready_job(lane) : NULL;
        if (job || lane->is_abandoned)
                return job ? begin_job(lane, job) : NULL;
        *ret_waits = true;
        return waiting_task(lane);
}

/* ---- slots that are filled ---- */

struct slot_pair lane_find(struct lane *lane, const uint8_t *arena, uint64_t bytes)
{
        const struct registry_extent *extent = find_extent(lane, (uintptr_t)arena);
        uint64_t in_extent = extent->end - (uintptr_t)arena;

        /* What nobody knows goes through the driver's buffers, as a whole. */
        if (!extent->is_registered && extent->end - extent->start == 1)
                in_extent = bytes;
        return (struct slot_pair){
                .arena = extent->there + ((uintptr_t)arena - extent->start),
                .bytes = bytes < in_extent ? bytes : in_extent,
                .extent = extent->start,
                .is_registered = extent->is_registered,
                .is_foreign = extent->is_foreign,
        };
}

/* False: the slot is full. */
static bool put_run(struct lane *lane, struct lane_slot *slot, struct lane_task *task)
{
        struct slot_pair pair = lane_find(lane, task->run.arena, task->run.bytes);
        uint64_t taken;

        pair.page = (uintptr_t)task->run.page;
        taken = slot_add(&slot->slot, &pair);
        task->run.page += taken;
        task->run.arena += taken;
        task->run.bytes -= taken;
        if (!pair.is_registered)
                slot->unregistered_bytes += taken;
        return taken;
}

/* True when all of the task is in slots. */
static bool put_task(struct lane *lane, struct lane_slot *slot, struct lane_task *task)
{
        slot->tasks[slot->n_tasks++] = task;
        task->n_slots++;
        if (converts(task->job)) {
                task->is_issued = tiles_put(lane, slot, task);
                return task->is_issued;
        }
        while (task->run.bytes || kvt__page_walk_next(&task->walk, &task->run))
                if (!put_run(lane, slot, task))
                        return false;
        task->is_issued = true;
        return true;
}

/* May the next job share the slot with those that are in it? */
static bool fits(struct lane *lane, const struct lane_slot *slot)
{
        struct kvt__page_job *job = slot->n_tasks < SLOT_JOBS ? next_job(lane) : NULL;

        return job && job->after == slot->tasks[0]->job->after &&
               slot->slot.bytes < slot->slot.bytes_max && converts(job) == slot->slot.converts &&
               (!slot->waits || may_wait_there(lane, job)) &&
               strategy_of(lane, job, is_registered(lane, &job->list)) == slot->slot.strategy;
}

static void fill(struct lane *lane, struct lane_slot *slot, struct lane_task *task)
{
        slot->n_tasks = 0;
        slot->unregistered_bytes = 0;
        slot_begin(&slot->slot, task->strategy, lane->is_store, SLOT_BYTES);
        slot->slot.converts = converts(task->job);
        while (task && put_task(lane, slot, task))
                task = fits(lane, slot) ? begin_job(lane, STAILQ_FIRST(&lane->jobs)) : NULL;
}

/* Of the caller's, as long as the jobs are there. */
struct events {
        cu_event after;
        cu_event done[SLOT_JOBS];
};

static struct events events_of(const struct lane_slot *slot)
{
        struct events events = {.after = slot->tasks[0]->job->after};

        for (uint32_t i = 0; i < slot->n_tasks; i++)
                events.done[i] = slot->tasks[i]->job->done;
        return events;
}

/* Behind this slot and those before it. Without the lock. */
static void record_done(struct lane *lane, struct lane_slot *slot, const struct events *events)
{
        const struct cuda_driver *driver = lane->kit.slot->driver;

        for (uint32_t i = 0; i < slot->n_tasks; i++) {
                struct lane_task *task = slot->tasks[i];
                cu_result error;

                if (!events->done[i] || task->has_failed)
                        continue;
                error = driver->stream_wait(lane->tail, slot->slot.event, 0);
                if (!error && task->is_issued)
                        error = driver->event_record(events->done[i], lane->tail);
                if (!error)
                        continue;
                lane->kit.on_error(lane->kit.error_context, error, cuda_error_loses_context(error));
                task->has_failed = task->is_issued = true;
        }
}

static void fail_slot(struct lane *lane, struct lane_slot *slot, cu_result error)
{
        bool loses = cuda_error_loses_context(error) || !slot->slot.is_recorded;

        lane->kit.on_error(lane->kit.error_context, error, loses);
        for (uint32_t i = 0; i < slot->n_tasks; i++)
                slot->tasks[i]->has_failed = slot->tasks[i]->is_issued = true;
}

/* The bus takes slots one after the other. */
static void set_due(struct lane *lane, struct lane_slot *slot)
{
        uint64_t ahead = slot->slot.bytes;

        for (unsigned i = 0; i < LANE_SLOTS; i++)
                if (lane->slots[i].is_busy)
                        ahead += lane->slots[i].slot.bytes;
        slot->due_ns = clock_now_ns() + (uint64_t)((double)ahead / lane->bytes_per_ns);
        slot->is_busy = true;
        slot->was_seen = false;
}

/* Jobs are gone, and the caller's events with them, once the lane has been abandoned. */
static void issue_slot(struct lane *lane, struct lane_slot *slot)
{
        struct events events = events_of(slot);
        cu_result error;

        pthread_mutex_unlock(&lane->lock);
        error = slot_issue(&slot->slot, events.after);
        if (error)
                fail_slot(lane, slot, error);
        pthread_mutex_lock(&lane->lock);
        if (lane->is_abandoned)
                return;
        pthread_mutex_unlock(&lane->lock);
        if (!error)
                record_done(lane, slot, &events);
        pthread_mutex_lock(&lane->lock);
        if (!lane->is_abandoned)
                set_due(lane, slot);
}

/* Tasks of which nothing more is wanted; they end with what is on its way of them. */
static void stop_tasks(struct lane *lane)
{
        struct lane_task *task, *next;

        for (task = TAILQ_FIRST(&lane->active); task && !lane->is_abandoned; task = next) {
                next = TAILQ_NEXT(task, link);
                if (task->is_issued ||
                    (!lane->is_closing &&
                     !atomic_load_explicit(task->job->stop, memory_order_relaxed)))
                        continue;
                task->is_issued = task->has_stopped = true;
                task->has_failed = lane->is_closing;
                if (!task->n_slots)
                        end_task(lane, task, how_it_ended(task));
        }
}

/* False: there is nothing to issue now, or no slot for it. */
static bool issue(struct lane *lane)
{
        struct lane_slot *slot = NULL;
        struct lane_task *task;
        bool waits;

        for (unsigned i = 0; i < LANE_SLOTS && !slot; i++)
                if (!lane->slots[i].is_busy)
                        slot = &lane->slots[i];
        task = slot ? next_task(lane, &waits) : NULL;
        if (!task || lane->is_abandoned)
                return false;
        slot->waits = waits;
        fill(lane, slot, task);
        if (!lane->is_abandoned)
                issue_slot(lane, slot);
        return true;
}

/* ---- the thread ---- */

static uint64_t next_look(const struct lane *lane, uint64_t now)
{
        uint64_t next = UINT64_MAX;

        for (unsigned i = 0; i < LANE_SLOTS; i++) {
                const struct lane_slot *slot = &lane->slots[i];
                uint64_t late, look = slot->due_ns;

                if (!slot->is_busy)
                        continue;
                if (look > now + POLL_NS_MAX)
                        look = now + POLL_NS_MAX;
                if (look < now + POLL_NS_MIN) {
                        late = now > slot->due_ns ? (now - slot->due_ns) / LATE_SHARE : 0;
                        look = now + (late < POLL_NS_MIN   ? POLL_NS_MIN
                                      : late > POLL_NS_MAX ? POLL_NS_MAX
                                                           : late);
                }
                next = look < next ? look : next;
        }
        /* Jobs that wait for their callers' events here. */
        if (!STAILQ_EMPTY(&lane->jobs) && next > now + WAIT_POLL_NS)
                next = now + WAIT_POLL_NS;
        return next;
}

static void rest(struct lane *lane)
{
        uint64_t now = clock_now_ns(), next = next_look(lane, now);
        struct timespec until = clock_timespec(next);

        if (next == UINT64_MAX)
                pthread_cond_wait(&lane->work, &lane->lock);
        else
                pthread_cond_timedwait(&lane->work, &lane->lock, &until);
}

static bool is_over(struct lane *lane)
{
        if (lane->is_abandoned)
                return true;
        if (lane->is_closing && !TAILQ_EMPTY(&lane->active) && clock_now_ns() >= lane->close_by_ns)
                lane->kit.on_error(lane->kit.error_context, CU_E_LAUNCH_TIMEOUT, true);
        if (is_lost(lane))
                lose_all(lane);
        if (is_lost(lane) || lane->is_closing)
                fail_queue(lane);
        return lane->is_abandoned ||
               (lane->is_closing && TAILQ_EMPTY(&lane->active) && STAILQ_EMPTY(&lane->jobs));
}

/* False: nothing is to be done now. */
static bool step(struct lane *lane)
{
        collect(lane);
        if (lane->is_abandoned || is_lost(lane))
                return true;
        stop_tasks(lane);
        if (!lane->is_abandoned)
                lane->looked_at = end_stopped_jobs(lane, lane->looked_at);
        return !lane->is_abandoned && !lane->is_closing && issue(lane);
}

static void run(void *argument)
{
        struct lane *lane = argument;
        const struct cuda_driver *driver = lane->kit.slot->driver;
        int mode;
        cu_result error = cuda_enter(driver, lane->kit.context, &mode);

        prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
        if (error)
                lane->kit.on_error(lane->kit.error_context, error, true);
        pthread_mutex_lock(&lane->lock);
        while (!is_over(lane)) {
                if (!is_lost(lane) && step(lane))
                        continue;
                if (!lane->is_abandoned && (!lane->is_closing || !TAILQ_EMPTY(&lane->active)))
                        rest(lane);
        }
        pthread_mutex_unlock(&lane->lock);
        if (!error)
                cuda_leave(driver, mode);
}

/* ---- from outside ---- */

cu_result lane_init(struct lane *ret_lane, const struct lane_kit *kit, bool is_store,
                    uint64_t staging_bytes)
{
        cu_result error;
        unsigned n = 0;

        *ret_lane = (struct lane){.kit = *kit, .is_store = is_store, .bytes_per_ns = BYTES_PER_NS};
        pthread_mutex_init(&ret_lane->lock, NULL);
        clock_cond_init(&ret_lane->work);
        STAILQ_INIT(&ret_lane->jobs);
        TAILQ_INIT(&ret_lane->active);
        error = kit->slot->driver->stream_create(&ret_lane->tail, CU_STREAM_NON_BLOCKING, 0);
        if (!error)
                error = kit->slot->driver->stream_create(&ret_lane->copies, CU_STREAM_NON_BLOCKING,
                                                         0);
        while (!error && n < LANE_SLOTS) {
                error = slot_init(&ret_lane->slots[n].slot, kit->slot, ret_lane->copies,
                                  staging_bytes / LANE_SLOTS);
                n += !error;
        }
        ret_lane->converts = !error && kit->slot->encode_tiles && kit->slot->decode_tiles;
        for (unsigned i = 0; i < n; i++)
                ret_lane->converts = ret_lane->converts && ret_lane->slots[i].slot.staging_bytes;
        if (error)
                lane_deinit(ret_lane, false);
        return error;
}

void lane_deinit(struct lane *lane, bool is_lost_now)
{
        for (unsigned i = 0; i < LANE_SLOTS && !is_lost_now; i++)
                if (lane->slots[i].slot.kit)
                        slot_deinit(&lane->slots[i].slot);
        if (lane->copies && !is_lost_now)
                lane->kit.slot->driver->stream_destroy(lane->copies);
        if (lane->tail && !is_lost_now)
                lane->kit.slot->driver->stream_destroy(lane->tail);
        pthread_cond_destroy(&lane->work);
        pthread_mutex_destroy(&lane->lock);
}

int lane_start(struct lane *lane)
{
        return worker_start(&lane->worker, run, lane);
}

void lane_submit(struct lane *lane, struct kvt__page_job *job)
{
        pthread_mutex_lock(&lane->lock);
        STAILQ_INSERT_TAIL(&lane->jobs, job, link);
        pthread_cond_signal(&lane->work);
        pthread_mutex_unlock(&lane->lock);
}

void lane_close(struct lane *lane, uint64_t by_ns)
{
        pthread_mutex_lock(&lane->lock);
        lane->is_closing = true;
        lane->close_by_ns = by_ns;
        pthread_cond_signal(&lane->work);
        pthread_mutex_unlock(&lane->lock);
}

static void abandon(struct lane *lane)
{
        pthread_mutex_lock(&lane->lock);
        lane->is_abandoned = true;
        while (!TAILQ_EMPTY(&lane->active))
                end_task(lane, TAILQ_FIRST(&lane->active), KVT__PAGE_LOST);
        fail_queue(lane);
        pthread_mutex_unlock(&lane->lock);
}

bool lane_join(struct lane *lane, uint64_t by_ns)
{
        if (worker_join(&lane->worker, by_ns + JOIN_NS))
                return true;
        abandon(lane);
        return false;
}

void lane_count(struct lane *lane, struct lane_counts *ret_counts)
{
        pthread_mutex_lock(&lane->lock);
        *ret_counts = lane->counts;
        pthread_mutex_unlock(&lane->lock);
}
