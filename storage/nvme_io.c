// SPDX-License-Identifier: Apache-2.0
/*
 * Jobs and their requests to the devices.
 *
 * A job is one object: its header, then its bytes, cut at the borders of segments (memory),
 * extents (disk), registered slots and at NVME_REQUEST_BYTES; a read of pieces steps over
 * the gaps between them. Those of an encoded object are read in two steps: its header says
 * where they lie. Requests are made only when one of the queue_depth places is free, so that
 * memory does not grow with the queue.
 * Reads go first, since somebody waits for them; after NVME_READS_IN_ROW requests a waiting
 * write has its turn. Within reads and within writes the order is that of arrival.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "storage/nvme_tier.h"

static uint64_t round_up(uint64_t bytes)
{
        return (bytes + SEGMENT_UNIT_BYTES - 1) / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES;
}

struct nvme_job *nvme_job_new(struct nvme *nvme)
{
        struct nvme_job *job = calloc(1, sizeof(*job));

        if (!job)
                return NULL;
        job->nvme = nvme;
        if (nvme->n_free_headers) {
                uint16_t block = nvme->free_headers[--nvme->n_free_headers];

                job->header = (void *)(nvme->header_blocks + block * SEGMENT_HEADER_BYTES);
                job->header_buffer = nvme->header_buffer;
                return job;
        }
        job->header_buffer = IO_NO_BUFFER;
        if (posix_memalign((void **)&job->header, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)) {
                free(job);
                return NULL;
        }
        return job;
}

static void free_header(struct nvme_job *job)
{
        struct nvme *nvme = job->nvme;
        uint8_t *block = (uint8_t *)job->header;

        if (block >= nvme->header_blocks &&
            block < nvme->header_blocks + NVME_HEADER_BLOCKS * SEGMENT_HEADER_BYTES)
                nvme->free_headers[nvme->n_free_headers++] =
                        (uint16_t)((size_t)(block - nvme->header_blocks) / SEGMENT_HEADER_BYTES);
        else
                free(block);
}

struct nvme_job *nvme_job_free(struct nvme_job *job)
{
        if (!job)
                return NULL;
        nvme_release_memory(job);
        free_header(job);
        free(job->entry);
        free(job);
        return NULL;
}

/* Index of the first memory whose arena id is not below @arena_id. */
static uint32_t find_memory(const struct nvme *nvme, uint32_t arena_id)
{
        uint32_t low = 0, high = nvme->n_memories;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (nvme->memories[middle].arena_id < arena_id)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* The registered slot of @bytes, and how far it reaches; IO_NO_BUFFER when there is none. */
static int32_t find_buffer(const struct nvme *nvme, uint32_t arena_id, const uint8_t *bytes,
                           uint64_t *length)
{
        const struct nvme_memory *memory;
        uint32_t index = find_memory(nvme, arena_id);
        uint64_t at, rest;

        if (index == nvme->n_memories)
                return IO_NO_BUFFER;
        memory = &nvme->memories[index];
        if (memory->arena_id != arena_id || !memory->slots || bytes < memory->base ||
            bytes >= memory->base + memory->length)
                return IO_NO_BUFFER;
        at = (uint64_t)(bytes - memory->base);
        rest = IO_BUFFER_BYTES_MAX - at % IO_BUFFER_BYTES_MAX;
        if (*length > rest)
                *length = rest;
        return memory->slots[at / IO_BUFFER_BYTES_MAX];
}

/* The memory of the next request: the header first, then the object's segments. */
static void next_memory(struct nvme_job *job, struct io_request *io, uint64_t *length)
{
        const struct tier_segment *segment;
        uint64_t left;

        if (!job->offset) {
                io->bytes = (uint8_t *)job->header;
                io->buffer = job->header_buffer;
                *length = SEGMENT_HEADER_BYTES;
                return;
        }
        assert(job->segment < job->n_segments);
        segment = &job->segments[job->segment];
        left = round_up(segment->length) - job->segment_offset;
        if (*length > left)
                *length = left;
        io->bytes = (uint8_t *)segment->bytes + job->segment_offset;
        io->buffer = find_buffer(job->nvme, segment->arena_id, io->bytes, length);
        job->segment_offset += *length;
        if (*length == left) {
                job->segment++;
                job->segment_offset = 0;
        }
}

static uint64_t extent_bytes(const struct nvme_job *job)
{
        return (uint64_t)job->extents.at[job->extent].count * SEGMENT_UNIT_BYTES;
}

static void advance(struct nvme_job *job, uint64_t bytes)
{
        job->offset += bytes;
        job->extent_offset += bytes;
        while (job->extent < job->extents.n && job->extent_offset >= extent_bytes(job)) {
                job->extent_offset -= extent_bytes(job);
                job->extent++;
        }
}

/* As next_run(), in the stored form: its pieces end anywhere, and may share a unit. */
static bool next_stored_run(const struct nvme_job *job, uint64_t from, struct piece_run *ret_run)
{
        bool is_found = false;
        uint64_t at = 0;

        for (uint32_t i = 0; i < job->table.n_pieces; i++) {
                uint64_t first = at / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES, end;

                at += job->table.lengths[i];
                end = round_up(at);
                if (!piece_set_has(job->pieces, i) || end <= from)
                        continue;
                if (is_found && first > ret_run->end)
                        break;
                if (!is_found)
                        ret_run->first = first > from ? first : from;
                ret_run->end = end;
                is_found = true;
        }
        return is_found;
}

/*
 * The next run of neighbouring pieces to read, in whole units behind the header: it begins
 * at byte @from or later (@from: 0, or the end of the run before). False: there is none.
 */
static bool next_run(const struct nvme_job *job, uint64_t from, struct piece_run *ret_run)
{
        if (job->is_encoded)
                return next_stored_run(job, from, ret_run);
        if (!piece_set_next(job->pieces, job->read->raw_bytes, from, ret_run))
                return false;
        ret_run->end = round_up(ret_run->end);
        return true;
}

/* Behind the header, or a run of pieces: on to the next run, which exists. */
static void skip_gap(struct nvme_job *job)
{
        uint64_t from = job->offset - SEGMENT_HEADER_BYTES;
        struct piece_run run = {from, from};

        next_run(job, from, &run);
        advance(job, run.first - from);
        job->stop = SEGMENT_HEADER_BYTES + run.end;
        /* A stored form lies in its memory as it does on the disk. */
        if (job->is_encoded)
                job->segment_offset = run.first;
}

static void make_request(struct nvme_job *job, struct io_request *io)
{
        const struct segment_extent *extent;
        uint64_t length;

        if (job->offset == job->stop)
                skip_gap(job);
        extent = &job->extents.at[job->extent];
        length = extent_bytes(job) - job->extent_offset;
        if (length > job->stop - job->offset)
                length = job->stop - job->offset;
        if (length > NVME_REQUEST_BYTES)
                length = NVME_REQUEST_BYTES;
        next_memory(job, io, &length);
        io->file = extent->member;
        io->is_write = job->write;
        io->length = (uint32_t)length;
        io->offset = extent->first * SEGMENT_UNIT_BYTES + job->extent_offset;
        advance(job, length);
}

/* Bytes that the object has queued or in flight at each of its members, gaps included. */
static void count_in_flight(struct nvme_job *job, bool add)
{
        struct nvme *nvme = job->nvme;

        for (uint32_t i = 0; i < job->extents.n; i++) {
                const struct segment_extent *extent = &job->extents.at[i];
                uint64_t bytes = (uint64_t)extent->count * SEGMENT_UNIT_BYTES;

                nvme->space.members[extent->member].bytes_in_flight += add ? bytes : -bytes;
                nvme->queued_bytes += add ? bytes : -bytes;
        }
}

static struct nvme_job_queue *queue_of(struct nvme_job *job)
{
        return job->write ? &job->nvme->writes : &job->nvme->reads;
}

static void leave_queue(struct nvme_job *job)
{
        TAILQ_REMOVE(queue_of(job), job, queue_link);
        job->is_submitted = true;
}

static void submit_requests(struct nvme *nvme);

static void on_request_done(struct io_request *io, int result)
{
        struct nvme_request *request = (struct nvme_request *)io;
        struct nvme_job *job = request->job;
        struct nvme *nvme = job->nvme;

        SLIST_INSERT_HEAD(&nvme->free_requests, request, link);
        job->n_requests--;
        if (result) {
                nvme->io_errors++;
                job->result = result;
                if (!job->is_submitted)
                        leave_queue(job); /* the rest would be in vain */
        } else if (io->is_write) {
                nvme->written_bytes += io->length;
        } else {
                nvme->read_bytes += io->length;
        }
        /* The devices first, then what is done with the object. */
        submit_requests(nvme);
        if (job->is_submitted && !job->n_requests) {
                count_in_flight(job, false);
                nvme_job_done(job);
        }
}

static struct nvme_job *choose_job(struct nvme *nvme)
{
        struct nvme_job *read = TAILQ_FIRST(&nvme->reads);
        struct nvme_job *write = TAILQ_FIRST(&nvme->writes);

        if (read && (!write || nvme->n_reads_in_row < NVME_READS_IN_ROW)) {
                nvme->n_reads_in_row++;
                return read;
        }
        nvme->n_reads_in_row = 0;
        return write;
}

static void submit_requests(struct nvme *nvme)
{
        struct nvme_request *request;
        struct nvme_job *job;

        while ((request = SLIST_FIRST(&nvme->free_requests)) && (job = choose_job(nvme))) {
                SLIST_REMOVE_HEAD(&nvme->free_requests, link);
                request->job = job;
                request->io.on_done = on_request_done;
                make_request(job, &request->io);
                job->n_requests++;
                if (job->offset == job->end)
                        leave_queue(job);
                io_submit(nvme->io, &request->io);
        }
}

static void set_end(struct nvme_job *job)
{
        struct piece_run run = {0, 0};

        if (!job->pieces) {
                job->end = 0;
                for (uint32_t i = 0; i < job->extents.n; i++)
                        job->end += (uint64_t)job->extents.at[i].count * SEGMENT_UNIT_BYTES;
                job->stop = job->end;
                return;
        }
        job->end = job->stop = SEGMENT_HEADER_BYTES;
        if (job->is_encoded && !job->has_table)
                return;
        while (next_run(job, run.end, &run))
                job->end = SEGMENT_HEADER_BYTES + run.end;
}

void nvme_job_resume(struct nvme_job *job)
{
        count_in_flight(job, true);
        job->is_submitted = false;
        TAILQ_INSERT_TAIL(queue_of(job), job, queue_link);
        submit_requests(job->nvme);
}

void nvme_job_start(struct nvme_job *job)
{
        bool needs_header = job->is_encoded && job->pieces && !job->has_table;

        set_end(job);
        if (!job->segments) {
                job->segments = job->write ? job->write->segments : job->read->segments;
                job->n_segments = job->write ? job->write->n_segments : job->read->n_segments;
        }
        if (job->is_encoded && job->read && !needs_header)
                nvme_wait_for_memory(job);
        else
                nvme_job_resume(job);
}

static void remove_slots(struct nvme *nvme, struct nvme_memory *memory)
{
        for (uint32_t i = 0; memory->slots && i < memory->n_slots; i++)
                if (memory->slots[i] != IO_NO_BUFFER)
                        io_remove_buffer(nvme->io, memory->slots[i]);
        free(memory->slots);
        memory->slots = NULL;
}

/* All of it, or none. */
static int register_memory(struct nvme *nvme, struct nvme_memory *memory)
{
        memory->n_slots =
                (uint32_t)((memory->length + IO_BUFFER_BYTES_MAX - 1) / IO_BUFFER_BYTES_MAX);
        memory->slots = malloc(memory->n_slots * sizeof(*memory->slots));
        if (!memory->slots)
                return -ENOMEM;
        for (uint32_t i = 0; i < memory->n_slots; i++)
                memory->slots[i] = IO_NO_BUFFER;
        for (uint32_t i = 0; i < memory->n_slots; i++) {
                uint64_t at = i * IO_BUFFER_BYTES_MAX, length = memory->length - at;
                int r;

                if (length > IO_BUFFER_BYTES_MAX)
                        length = IO_BUFFER_BYTES_MAX;
                r = nvme->force & NVME_FORCE_UNREGISTERED
                            ? -ENOMEM
                            : io_add_buffer(nvme->io, memory->base + at, length, &memory->slots[i]);
                if (r) {
                        remove_slots(nvme, memory);
                        return r;
                }
        }
        return 0;
}

int nvme_add_memory(struct tier *tier, uint32_t arena_id, void *base, uint64_t length)
{
        struct nvme *nvme = (struct nvme *)tier;
        struct nvme_memory *memories =
                realloc(nvme->memories, (nvme->n_memories + 1) * sizeof(*memories));
        struct nvme_memory *memory;
        uint32_t index;
        int r;

        if (!memories)
                return err_raise(-ENOMEM);
        nvme->memories = memories;
        index = find_memory(nvme, arena_id);
        memory = &memories[index];
        memmove(memory + 1, memory, (nvme->n_memories - index) * sizeof(*memory));
        nvme->n_memories++;
        *memory = (struct nvme_memory){.arena_id = arena_id, .base = base, .length = length};
        r = register_memory(nvme, memory);
        /* On the thread pool nothing is registered, which has been said. */
        if (r && !(nvme->degraded & (NVME_DEGRADED_UNREGISTERED | NVME_DEGRADED_THREADS))) {
                nvme->degraded |= NVME_DEGRADED_UNREGISTERED;
                nvme_notice(nvme,
                            "memory could not be registered with io_uring (%s): transfers "
                            "cost more; raise the memlock limit",
                            strerror(-r));
        }
        return 0;
}

void nvme_remove_memory(struct tier *tier, uint32_t arena_id)
{
        struct nvme *nvme = (struct nvme *)tier;
        uint32_t index = find_memory(nvme, arena_id);

        if (index == nvme->n_memories || nvme->memories[index].arena_id != arena_id)
                return;
        remove_slots(nvme, &nvme->memories[index]);
        nvme->n_memories--;
        memmove(&nvme->memories[index], &nvme->memories[index + 1],
                (nvme->n_memories - index) * sizeof(*nvme->memories));
}

void nvme_drop_memories(struct nvme *nvme)
{
        while (nvme->n_memories)
                nvme_remove_memory(&nvme->tier, nvme->memories[0].arena_id);
        free(nvme->memories);
        nvme->memories = NULL;
}
