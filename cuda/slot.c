// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "cuda/slot.h"

#define BLOCK_THREADS 512u
#define WARP          32u

/* ---- memory ---- */

static cu_result allocate(struct slot *slot, uint64_t staging_bytes)
{
        const struct cuda_driver *driver = slot->kit->driver;
        cu_result error;

        error = driver->stream_create(&slot->stream, CU_STREAM_NON_BLOCKING,
                                      slot->kit->priority);
        if (!error)
                error = driver->event_create(&slot->event, CU_EVENT_DISABLE_TIMING);
        if (!error)
                error = driver->event_create(&slot->step, CU_EVENT_DISABLE_TIMING);
        if (!error && slot->kit->move_runs)
                error = driver->host_allocate((void **)&slot->runs,
                                              SLOT_RUNS_MAX * sizeof(slot->runs[0]),
                                              CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_DEVICEMAP);
        if (!error && slot->kit->move_runs)
                error = driver->host_address(&slot->runs_there, slot->runs, 0);
        /* An engine that has taken all of the memory leaves none to stage in. */
        if (!error && slot->kit->move_runs && staging_bytes &&
            !driver->allocate(&slot->staging, staging_bytes))
                slot->staging_bytes = staging_bytes;
        return error;
}

cu_result slot_init(struct slot *ret_slot, const struct slot_kit *kit, cu_stream copies,
                    uint64_t staging_bytes)
{
        cu_result error;

        *ret_slot = (struct slot){.kit = kit, .copies = copies};
        ret_slot->batch = calloc(3 * SLOT_RUNS_MAX, sizeof(ret_slot->batch[0]));
        if (!kit->move_runs)
                ret_slot->runs = calloc(SLOT_RUNS_MAX, sizeof(ret_slot->runs[0]));
        error = allocate(ret_slot, staging_bytes);
        if (!error && (!ret_slot->batch || !ret_slot->runs))
                error = CU_E_OUT_OF_MEMORY;
        if (error)
                slot_deinit(ret_slot);
        return error;
}

void slot_deinit(struct slot *slot)
{
        const struct cuda_driver *driver = slot->kit->driver;

        if (slot->staging)
                driver->release(slot->staging);
        if (slot->kit->move_runs && slot->runs)
                driver->host_free(slot->runs);
        else
                free(slot->runs);
        if (slot->event)
                driver->event_destroy(slot->event);
        if (slot->step)
                driver->event_destroy(slot->step);
        if (slot->stream)
                driver->stream_destroy(slot->stream);
        free(slot->batch);
        *slot = (struct slot){.kit = slot->kit};
}

/* ---- filling ---- */

void slot_begin(struct slot *slot, enum kvt_cuda_strategy strategy, bool is_store,
                uint64_t bytes_max)
{
        slot->strategy = strategy;
        slot->is_store = is_store;
        slot->converts = false;
        slot->bytes = 0;
        slot->bytes_max = bytes_max;
        if (strategy == KVT_CUDA_STAGED && slot->staging_bytes < bytes_max)
                slot->bytes_max = slot->staging_bytes;
        slot->extent = 0;
        slot->is_registered = true;
        slot->is_foreign = false;
        slot->n_runs = slot->n_spans = 0;
}

static bool uses_kernel(const struct slot *slot)
{
        return slot->strategy == KVT_CUDA_KERNEL || slot->strategy == KVT_CUDA_STAGED;
}

static uint32_t runs_max(const struct slot *slot)
{
        return slot->strategy == KVT_CUDA_PLAIN ? SLOT_PLAIN_MAX : SLOT_RUNS_MAX;
}

/* Continues the last run; copies of the driver's may be of any length, a kernel's are short. */
static bool extend_run(struct slot *slot, const struct slot_pair *pair, uint64_t bytes)
{
        struct kvt_cuda_run *last = slot->n_runs ? &slot->runs[slot->n_runs - 1] : NULL;
        uint64_t from = slot->is_store ? pair->page : pair->arena;
        uint64_t to = slot->is_store ? pair->arena : pair->page;

        if (!last || uses_kernel(slot) || slot->extent != pair->extent ||
            last->from + last->bytes != from || last->to + last->bytes != to)
                return false;
        last->bytes += bytes;
        return true;
}

static bool add_run(struct slot *slot, const struct slot_pair *pair, uint64_t other, uint64_t bytes)
{
        uint64_t page = pair->page;

        if (extend_run(slot, pair, bytes))
                return true;
        if (slot->n_runs == runs_max(slot))
                return false;
        slot->runs[slot->n_runs++] = (struct kvt_cuda_run){
                .from = slot->is_store ? page : other,
                .to = slot->is_store ? other : page,
                .bytes = bytes,
        };
        return true;
}

static bool add_span(struct slot *slot, const struct slot_pair *pair, uint64_t offset,
                     uint64_t bytes)
{
        struct slot_span *last = slot->n_spans ? &slot->spans[slot->n_spans - 1] : NULL;

        if (last && slot->extent == pair->extent && last->arena + last->bytes == pair->arena &&
            last->offset + last->bytes == offset) {
                last->bytes += bytes;
                return true;
        }
        if (slot->n_spans == SLOT_SPANS_MAX)
                return false;
        slot->spans[slot->n_spans++] =
                (struct slot_span){.arena = pair->arena, .offset = offset, .bytes = bytes};
        return true;
}

bool slot_add_span(struct slot *slot, const struct slot_pair *pair, uint64_t offset)
{
        bool is_added = add_span(slot, pair, offset, pair->bytes);

        slot->extent = pair->extent;
        slot->is_registered = slot->is_registered && pair->is_registered;
        slot->is_foreign = slot->is_foreign || pair->is_foreign;
        return is_added;
}

bool slot_has_room_for_tiles(const struct slot *slot)
{
        return slot->n_runs < SLOT_RUNS_MAX * sizeof(slot->runs[0]) / sizeof(slot->tiles[0]);
}

void slot_add_tiles(struct slot *slot, const struct kvt_cuda_tiles *tiles)
{
        slot->tiles[slot->n_runs++] = *tiles;
}

uint64_t slot_add(struct slot *slot, const struct slot_pair *pair)
{
        bool is_staged = slot->strategy == KVT_CUDA_STAGED;
        uint64_t bytes = pair->bytes, room = slot->bytes_max - slot->bytes, other = pair->arena;

        if (bytes > room)
                bytes = room;
        if (uses_kernel(slot) && bytes > KVT_CUDA_RUN_MAX)
                bytes = KVT_CUDA_RUN_MAX;
        /* Room for the run first: a span without one would copy what nobody gathered. */
        if (!bytes || (slot->n_runs == runs_max(slot) && uses_kernel(slot)) ||
            (is_staged && !add_span(slot, pair, slot->bytes, bytes)))
                return 0;
        if (is_staged)
                other = slot->staging + slot->bytes;
        if (!add_run(slot, pair, other, bytes))
                return 0;
        slot->extent = pair->extent;
        slot->is_registered = slot->is_registered && pair->is_registered;
        slot->is_foreign = slot->is_foreign || pair->is_foreign;
        slot->bytes += bytes;
        return bytes;
}

/* ---- issuing ---- */

static cu_result copy_each(struct slot *slot)
{
        const struct cuda_driver *driver = slot->kit->driver;
        cu_result error = 0;

        for (uint32_t i = 0; i < slot->n_runs && !error; i++)
                error = driver->copy(slot->runs[i].to, slot->runs[i].from, slot->runs[i].bytes,
                                     slot->stream);
        return error;
}

/* @n copies that stand in the batch arrays. */
static cu_result copy_batch(struct slot *slot, size_t n, cu_stream stream)
{
        size_t *bytes = (void *)(slot->batch + 2 * SLOT_RUNS_MAX);

        _Static_assert(sizeof(size_t) == sizeof(slot->batch[0]), "lengths share the array");
        return cuda_copy_batch(slot->kit->driver, slot->batch, slot->batch + SLOT_RUNS_MAX, bytes,
                               n, stream);
}

static void put_in_batch(struct slot *slot, uint32_t i, uint64_t to, uint64_t from, uint64_t bytes)
{
        slot->batch[i] = to;
        slot->batch[SLOT_RUNS_MAX + i] = from;
        slot->batch[2 * SLOT_RUNS_MAX + i] = bytes;
}

static cu_result copy_runs_as_batch(struct slot *slot)
{
        for (uint32_t i = 0; i < slot->n_runs; i++)
                put_in_batch(slot, i, slot->runs[i].to, slot->runs[i].from, slot->runs[i].bytes);
        return copy_batch(slot, slot->n_runs, slot->stream);
}

static cu_function kernel_of(const struct slot *slot)
{
        if (!slot->converts)
                return slot->kit->move_runs;
        return slot->is_store ? slot->kit->encode_tiles : slot->kit->decode_tiles;
}

static cu_result launch(struct slot *slot)
{
        const struct cuda_driver *driver = slot->kit->driver;
        uint32_t warps = BLOCK_THREADS / WARP;
        uint32_t blocks = (slot->n_runs + warps - 1) / warps;
        void *arguments[] = {&slot->runs_there, &slot->n_runs};

        /* Few runs still take all SMs that they may: each warp of a block has the same bus. */
        if (slot->n_runs < slot->kit->blocks)
                blocks = slot->n_runs;
        else if (blocks < slot->kit->blocks)
                blocks = slot->kit->blocks;
        if (blocks > slot->kit->blocks)
                blocks = slot->kit->blocks;
        return driver->launch(kernel_of(slot), blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, slot->stream,
                              arguments, NULL);
}

/*
 * Between staging buffer and arena: several spans as one batch, since each copy for itself costs
 * as much as 100 KiB of the bus. Batches do not take what is not registered.
 */
static cu_result copy_spans(struct slot *slot)
{
        const struct cuda_driver *driver = slot->kit->driver;
        bool as_batch = driver->copy_batch && slot->n_spans > 1 && slot->is_registered;
        cu_result error = 0;

        for (uint32_t i = 0; i < slot->n_spans && !error; i++) {
                uint64_t staged = slot->staging + slot->spans[i].offset;
                uint64_t arena = slot->spans[i].arena, bytes = slot->spans[i].bytes;
                uint64_t to = slot->is_store ? arena : staged;
                uint64_t from = slot->is_store ? staged : arena;

                if (as_batch)
                        put_in_batch(slot, i, to, from, bytes);
                else
                        error = driver->copy(to, from, bytes, slot->copies);
        }
        return as_batch ? copy_batch(slot, slot->n_spans, slot->copies) : error;
}

/* What @to does from here on comes behind what @from has. */
static cu_result step(struct slot *slot, cu_stream from, cu_stream to)
{
        const struct cuda_driver *driver = slot->kit->driver;
        cu_result error = driver->event_record(slot->step, from);

        return error ? error : driver->stream_wait(to, slot->step, 0);
}

static cu_result wait_after(struct slot *slot, cu_event after)
{
        return after ? slot->kit->driver->stream_wait(slot->stream, after, 0) : 0;
}

static cu_result issue_staged_store(struct slot *slot, cu_event after)
{
        cu_result error = wait_after(slot, after);

        if (!error)
                error = launch(slot);
        if (!error)
                error = step(slot, slot->stream, slot->copies);
        return error ? error : copy_spans(slot);
}

/* What is loaded into the staging buffer touches no page yet. */
static cu_result issue_staged_load(struct slot *slot, cu_event after)
{
        cu_result error = copy_spans(slot);

        if (!error)
                error = step(slot, slot->copies, slot->stream);
        if (!error)
                error = wait_after(slot, after);
        return error ? error : launch(slot);
}

static cu_result issue(struct slot *slot, cu_event after)
{
        cu_result error = 0;

        if (slot->is_foreign && !slot->is_store && slot->kit->flushes)
                error = slot->kit->driver->flush_remote(CU_FLUSH_CONTEXT, CU_FLUSH_TO_OWNER);
        if (error)
                return error;
        if (slot->strategy == KVT_CUDA_STAGED)
                return slot->is_store ? issue_staged_store(slot, after)
                                      : issue_staged_load(slot, after);
        error = wait_after(slot, after);
        if (error)
                return error;
        if (slot->strategy == KVT_CUDA_PLAIN)
                return copy_each(slot);
        return slot->strategy == KVT_CUDA_BATCH ? copy_runs_as_batch(slot) : launch(slot);
}

/*
 * Behind both streams, whatever failed on the way: what was enqueued on one of them may use the
 * slot's memory still.
 */
static cu_result record(struct slot *slot, bool has_failed)
{
        bool ends_in_copies = slot->strategy == KVT_CUDA_STAGED && slot->is_store;
        cu_result error = 0;

        if (has_failed && slot->strategy == KVT_CUDA_STAGED)
                error = ends_in_copies ? step(slot, slot->stream, slot->copies)
                                       : step(slot, slot->copies, slot->stream);
        if (error)
                return error;
        return slot->kit->driver->event_record(slot->event,
                                               ends_in_copies ? slot->copies : slot->stream);
}

cu_result slot_issue(struct slot *slot, cu_event after)
{
        cu_result error = issue(slot, after);
        cu_result late = record(slot, error != 0);

        slot->is_recorded = !late;
        return error ? error : late;
}

cu_result slot_query(struct slot *slot)
{
        return slot->kit->driver->event_query(slot->event);
}
