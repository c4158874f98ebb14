// SPDX-License-Identifier: Apache-2.0
/*
 * Objects that are stored encoded: memory for their stored form, and helpers.
 *
 *   down:  waiting (for memory) -> ready (for a helper) -> encoded -> the devices
 *   up:    waiting (for memory) -> the devices -> ready (for a helper) -> verified
 *
 * Each way has a lane of its own, so that what is loaded never waits for what is stored:
 * its own memory, and of uv's threads a bounded number, since others need them as well (down:
 * those that it shares with the pool's, down_work.h). An
 * object that finds no memory on its way down is stored raw.
 *
 * Loop thread but for the two functions of helpers, who have their job to themselves.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "storage/nvme_tier.h"

void nvme_lane_init(struct nvme_lane *lane, uint32_t max_working, uint64_t max_bytes)
{
        TAILQ_INIT(&lane->waiting);
        TAILQ_INIT(&lane->ready);
        lane->max_working = max_working;
        lane->max_bytes = max_bytes;
}

static struct nvme_lane *lane_of(const struct nvme_job *job)
{
        return job->write ? &job->nvme->encoding : &job->nvme->decoding;
}

bool nvme_may_encode(const struct nvme *nvme, const struct tier_write *write)
{
        uint64_t raw_bytes = write->object->raw_bytes;

        /* Whatever an object of one unit shrinks to takes one unit. */
        return write->encoding.kind && raw_bytes > SEGMENT_UNIT_BYTES &&
               raw_bytes <= nvme->encoding.max_bytes;
}

/* ---- helpers' contexts: as many are kept as helpers can be at work ---- */

static struct encoding_scratch *take_scratch(struct nvme *nvme)
{
        return nvme->n_scratches ? nvme->scratches[--nvme->n_scratches] : encoding_scratch_new();
}

static void give_scratch(struct nvme *nvme, struct encoding_scratch *scratch)
{
        if (scratch && nvme->n_scratches < NVME_ENCODERS + NVME_DECODERS)
                nvme->scratches[nvme->n_scratches++] = scratch;
        else
                encoding_scratch_free(scratch);
}

static struct nvme_spare take_spare(struct nvme_lane *lane, uint32_t index)
{
        struct nvme_spare spare = lane->spares[index];

        lane->n_spares--;
        memmove(&lane->spares[index], &lane->spares[index + 1],
                (lane->n_spares - index) * sizeof(spare));
        lane->spare_bytes -= spare.room;
        return spare;
}

static void drop_oldest_spare(struct nvme_lane *lane)
{
        struct nvme_spare spare = take_spare(lane, 0);

        free(spare.bytes);
}

void nvme_drop_scratches(struct nvme *nvme)
{
        while (nvme->encoding.n_spares)
                drop_oldest_spare(&nvme->encoding);
        while (nvme->decoding.n_spares)
                drop_oldest_spare(&nvme->decoding);
        while (nvme->n_scratches)
                encoding_scratch_free(nvme->scratches[--nvme->n_scratches]);
}

/* ---- on helpers ---- */

static uint32_t segments_of(const struct tier_segment *segments, uint32_t n,
                            struct iovec ret_segments[TIER_SEGMENTS_MAX])
{
        for (uint32_t i = 0; i < n; i++)
                ret_segments[i] = (struct iovec){segments[i].bytes, segments[i].length};
        return n;
}

static void encode(struct nvme_job *job)
{
        const struct tier_write *write = job->write;
        uint64_t raw_bytes = write->object->raw_bytes, stored;
        struct iovec segments[TIER_SEGMENTS_MAX];
        uint32_t n = segments_of(write->segments, write->n_segments, segments);

        job->verdict = job->stored && job->scratch
                               ? encoding_encode(job->scratch, write->encoding, segments, n,
                                                 raw_bytes, job->stored, &job->table)
                               : err_raise(-ENOMEM);
        job->is_encoded =
                !job->verdict && segment_units(job->table.stored_bytes) < segment_units(raw_bytes);
        if (!job->is_encoded)
                return;
        stored = job->table.stored_bytes;
        memset(job->stored + stored, 0, (segment_units(stored) - 1) * SEGMENT_UNIT_BYTES - stored);
}

int nvme_decode(struct nvme_job *job)
{
        struct iovec segments[TIER_SEGMENTS_MAX];
        uint32_t n = segments_of(job->read->segments, job->read->n_segments, segments);
        int r;

        if (!job->scratch)
                return err_raise(-ENOMEM);
        segment_get_encoding(job->header, &job->table);
        r = encoding_decode(job->scratch, &job->table, job->read->raw_bytes, job->pieces,
                            job->stored, segments, n);
        return r == ENCODING_E_DAMAGED ? TIER_E_CORRUPT : r;
}

static void help(struct nvme_job *job)
{
        uint64_t began_ns = uv_hrtime();

        if (job->write)
                encode(job);
        else if (job->stored)
                nvme_verify(job);
        else
                job->verdict = err_raise(-ENOMEM);
        job->helped_seconds = (double)(uv_hrtime() - began_ns) / 1e9;
}

static void help_up(uv_work_t *work)
{
        help(work->data);
}

static struct nvme_job *job_of(struct down_work *work)
{
        return (struct nvme_job *)((char *)work - offsetof(struct nvme_job, down_work));
}

static void help_down(struct down_work *work)
{
        help(job_of(work));
}

/* ---- lanes ---- */

/* Bytes of memory that the stored form needs. */
static uint64_t room_for(const struct nvme_job *job)
{
        uint64_t bytes =
                job->write ? job->write->object->raw_bytes : job->end - SEGMENT_HEADER_BYTES;

        return (bytes + SEGMENT_UNIT_BYTES - 1) / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES;
}

/* The smallest spare that suffices, or fresh memory; bytes stays NULL when there is none. */
static struct nvme_spare find_memory(struct nvme_lane *lane, uint64_t room)
{
        struct nvme_spare fresh = {.room = room};
        uint32_t best = lane->n_spares;
        void *memory;

        for (uint32_t i = 0; i < lane->n_spares; i++)
                if (lane->spares[i].room >= room &&
                    lane->bytes + lane->spares[i].room <= lane->max_bytes &&
                    (best == lane->n_spares || lane->spares[i].room < lane->spares[best].room))
                        best = i;
        if (best < lane->n_spares)
                return take_spare(lane, best);
        while (lane->n_spares && lane->bytes + lane->spare_bytes + room > lane->max_bytes)
                drop_oldest_spare(lane);
        if (!posix_memalign(&memory, SEGMENT_UNIT_BYTES, room))
                fresh.bytes = memory;
        return fresh;
}

static void keep_spare(struct nvme_lane *lane, struct nvme_spare spare)
{
        uint64_t max_bytes = lane->max_bytes / 8;

        if (spare.room > max_bytes) {
                free(spare.bytes);
                return;
        }
        while (lane->n_spares == NVME_SPARES_MAX || lane->spare_bytes + spare.room > max_bytes)
                drop_oldest_spare(lane);
        lane->spares[lane->n_spares++] = spare;
        lane->spare_bytes += spare.room;
}

/* False: others have to give some back first. Without memory at all, stored stays NULL. */
static bool take_memory(struct nvme_lane *lane, struct nvme_job *job)
{
        struct nvme_spare memory;
        uint64_t room = room_for(job);

        if (lane->bytes && lane->bytes + room > lane->max_bytes)
                return false;
        memory = find_memory(lane, room);
        if (!memory.bytes)
                return true;
        lane->bytes += memory.room;
        if (lane->most_bytes < lane->bytes + lane->spare_bytes)
                lane->most_bytes = lane->bytes + lane->spare_bytes;
        job->stored = memory.bytes;
        job->stored_room = memory.room;
        job->stored_segment = (struct tier_segment){
                .bytes = memory.bytes,
                .length = room,
                .arena_id = TIER_MEMORY_UNREGISTERED,
        };
        job->segments = &job->stored_segment;
        job->n_segments = 1;
        return true;
}

static void on_helped(uv_work_t *work, int status);
static void on_helped_down(struct down_work *work, int status);

static void start_helper(struct nvme_lane *lane, struct nvme_job *job)
{
        lane->n_working++;
        job->scratch = take_scratch(job->nvme);
        job->work.data = job;
        if (job->write)
                down_work_queue(job->nvme->loop, &job->down_work, help_down, on_helped_down);
        else
                uv_queue_work(job->nvme->loop, &job->work, help_up, on_helped);
}

static void pump(struct nvme_lane *lane)
{
        struct nvme_job *job;

        while ((job = TAILQ_FIRST(&lane->waiting)) && take_memory(lane, job)) {
                TAILQ_REMOVE(&lane->waiting, job, queue_link);
                if (job->read && job->stored)
                        nvme_job_resume(job);
                else
                        TAILQ_INSERT_TAIL(&lane->ready, job, queue_link);
        }
        while ((job = TAILQ_FIRST(&lane->ready)) && lane->n_working < lane->max_working) {
                TAILQ_REMOVE(&lane->ready, job, queue_link);
                start_helper(lane, job);
        }
}

static void count(struct tier_encoding_usage *usage, uint64_t raw_bytes, uint64_t stored_bytes,
                  double seconds)
{
        usage->raw_bytes_total += raw_bytes;
        usage->stored_bytes_total += stored_bytes;
        usage->seconds_total += seconds;
}

/* Stored bytes of what was asked for. */
static uint64_t stored_bytes_of(const struct nvme_job *job)
{
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < job->table.n_pieces; i++)
                if (!job->pieces || piece_set_has(job->pieces, i))
                        bytes += job->table.lengths[i];
        return bytes;
}

static void on_helped(uv_work_t *work, int status)
{
        struct nvme_job *job = work->data;
        struct nvme *nvme = job->nvme;
        struct nvme_lane *lane = lane_of(job);

        lane->n_working--;
        give_scratch(nvme, steal_ptr(job->scratch));
        if (job->write) {
                uint64_t raw_bytes = job->write->object->raw_bytes;

                /* What found no memory tells nothing of how well it would have shrunk. */
                if (!status && job->verdict >= 0)
                        count(&nvme->encoded, raw_bytes,
                              job->is_encoded ? job->table.stored_bytes : raw_bytes,
                              job->helped_seconds);
                if (!job->is_encoded)
                        nvme_release_memory(job);
                nvme_encoded(job);
        } else {
                if (!job->verdict)
                        count(&nvme->decoded,
                              job->pieces ? piece_set_bytes(job->pieces, job->read->raw_bytes)
                                          : job->read->raw_bytes,
                              stored_bytes_of(job), job->helped_seconds);
                nvme_verified(job);
        }
        pump(lane);
}

static void on_helped_down(struct down_work *work, int status)
{
        on_helped(&job_of(work)->work, status);
}

void nvme_wait_for_memory(struct nvme_job *job)
{
        struct nvme_lane *lane = lane_of(job);

        TAILQ_INSERT_TAIL(&lane->waiting, job, queue_link);
        pump(lane);
}

void nvme_wait_for_helper(struct nvme_job *job)
{
        struct nvme_lane *lane = lane_of(job);

        TAILQ_INSERT_TAIL(&lane->ready, job, queue_link);
        pump(lane);
}

void nvme_release_memory(struct nvme_job *job)
{
        struct nvme_lane *lane = lane_of(job);

        if (!job->stored)
                return;
        keep_spare(lane, (struct nvme_spare){steal_ptr(job->stored), job->stored_room});
        lane->bytes -= job->stored_room;
        job->segments = NULL;
        pump(lane);
}
