// SPDX-License-Identifier: Apache-2.0
#include "cuda/copy.h"

#define BLOCK_THREADS 512u
#define BATCH_MAX     KVT_CUDA_FEW_MAX

/* Runs that wait to be enqueued; none of it has to outlive the call that does so. */
struct pending {
        const struct gpu *gpu;
        enum kvt_cuda_strategy strategy;
        cu_stream stream;
        struct kvt_cuda_few few;
};

static cu_result launch(struct pending *pending)
{
        void *arguments[] = {&pending->few};
        uint32_t blocks = pending->few.n_runs;

        if (blocks > pending->gpu->slot_kit.blocks)
                blocks = pending->gpu->slot_kit.blocks;
        return pending->gpu->kit.driver->launch(pending->gpu->move_few, blocks, 1, 1, BLOCK_THREADS,
                                                1, 1, 0, pending->stream, arguments, NULL);
}

static cu_result copy_batch(struct pending *pending)
{
        cu_address to[BATCH_MAX], from[BATCH_MAX];
        size_t bytes[BATCH_MAX];

        for (uint32_t i = 0; i < pending->few.n_runs; i++) {
                to[i] = pending->few.runs[i].to;
                from[i] = pending->few.runs[i].from;
                bytes[i] = pending->few.runs[i].bytes;
        }
        return cuda_copy_batch(pending->gpu->kit.driver, to, from, bytes, pending->few.n_runs,
                               pending->stream);
}

static cu_result flush(struct pending *pending)
{
        const struct kvt_cuda_few *few = &pending->few;
        cu_result error = 0;

        if (few->n_runs && pending->strategy == KVT_CUDA_KERNEL)
                error = launch(pending);
        else if (few->n_runs && pending->strategy == KVT_CUDA_BATCH)
                error = copy_batch(pending);
        for (uint32_t i = 0; pending->strategy == KVT_CUDA_PLAIN && i < few->n_runs && !error; i++)
                error = pending->gpu->kit.driver->copy(few->runs[i].to, few->runs[i].from,
                                                       few->runs[i].bytes, pending->stream);
        pending->few.n_runs = 0;
        return error;
}

static cu_result add(struct pending *pending, const struct kvt_cuda_run *run)
{
        pending->few.runs[pending->few.n_runs++] = *run;
        return pending->few.n_runs == BATCH_MAX ? flush(pending) : 0;
}

/* A run in parts that a strategy takes, each within one piece of what is registered. */
static cu_result add_run(struct pending *pending, const struct kvt__page_run *run, bool is_store)
{
        uint64_t at = 0,
                 most = pending->strategy == KVT_CUDA_KERNEL ? KVT_CUDA_RUN_MAX : KVT__PAGE_RUN_MAX;
        cu_result error = 0;

        while (at < run->bytes && !error) {
                uint64_t page = (uintptr_t)run->page + at, arena = (uintptr_t)run->arena + at;
                uint64_t bytes = run->bytes - at;
                struct registry_extent extent;

                registry_find(pending->gpu->kit.registry, arena, &extent);
                if (extent.end - extent.start > 1 && bytes > extent.end - arena)
                        bytes = extent.end - arena;
                bytes = bytes < most ? bytes : most;
                arena = extent.there + (arena - extent.start);
                error = add(pending, &(struct kvt_cuda_run){.from = is_store ? page : arena,
                                                            .to = is_store ? arena : page,
                                                            .bytes = bytes});
                at += bytes;
        }
        return error;
}

cu_result copy_list(const struct gpu *gpu, const struct kvt__page_list *list, bool is_store,
                    enum kvt_cuda_strategy strategy, cu_stream stream)
{
        struct pending pending = {.gpu = gpu, .strategy = strategy, .stream = stream};
        struct kvt__page_walk walk;
        struct kvt__page_run run;
        cu_result error = 0;

        kvt__page_walk_init(&walk, list);
        while (!error && kvt__page_walk_next(&walk, &run))
                error = add_run(&pending, &run, is_store);
        return error ? error : flush(&pending);
}
