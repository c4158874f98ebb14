// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include "cuda/clock.h"
#include "cuda/measure.h"

#define SLOTS      2u
#define SCRATCH    (SLOTS * SLOT_BYTES) /* of the arena's stand-in; pages lie twice as wide */
#define TOTAL      (UINT64_C(32) << 20) /* moved in a round: enough to fill the slots */
#define SLOT_BYTES (UINT64_C(8) << 20)  /* at most: no more than its staging buffer */
#define RUNS_MAX   512u /* of what goes one by one, so that 4 KiB take no longer than 2 MiB */
#define ROUNDS     2u   /* of which the faster counts: the first may have to wake things up */
#define NS_PER_S   1e9
#define TIMEOUT_NS UINT64_C(200000000) /* of one round: then the GPU is busy with other things */

struct bench {
        const struct measure *measure;
        const struct cuda_driver *driver;
        cu_stream copies;
        struct slot slots[SLOTS];
        void *arena;
        cu_address pages;
};

static void pause_a_little(void)
{
        struct timespec pause = {.tv_nsec = 1000000};

        nanosleep(&pause, NULL);
}

/*
 * False when it did not end in time, or in an error. It is waited for all the same: what was
 * issued uses memory that is to be freed.
 */
static bool wait_slot(struct slot *slot, uint64_t until)
{
        bool is_late = false;
        cu_result error;

        while ((error = slot_query(slot)) == CU_E_NOT_READY) {
                is_late = clock_now_ns() >= until;
                if (is_late)
                        pause_a_little();
        }
        return !error && !is_late;
}

/* Pages with as much room between them, in an order that no neighbours share. */
static uint64_t page_of(const struct bench *bench, uint64_t i, uint64_t run_bytes)
{
        uint64_t n = SCRATCH / run_bytes, shuffled = n > 4 ? i * (n / 2 + 1) % n : i;

        return bench->pages + shuffled * run_bytes * 2;
}

static void fill(struct bench *bench, struct slot *slot, uint64_t *at, uint64_t bytes,
                 uint64_t run_bytes)
{
        while (*at < bytes) {
                uint64_t in_scratch = *at % SCRATCH, in_run = *at % run_bytes;
                struct slot_pair pair = {
                        .page = page_of(bench, in_scratch / run_bytes, run_bytes) + in_run,
                        .arena = (uintptr_t)bench->arena + in_scratch,
                        .bytes = run_bytes - in_run,
                        .is_registered = true,
                };
                uint64_t taken = slot_add(slot, &pair);

                if (!taken)
                        return;
                *at += taken;
        }
}

/* Moves @bytes; how long it took, or 0. Always waits for what it has issued. */
static uint64_t move(struct bench *bench, enum kvt_cuda_strategy strategy, bool is_store,
                     uint64_t bytes, uint64_t run_bytes)
{
        uint64_t start = clock_now_ns(), until = start + TIMEOUT_NS, at = 0;
        bool is_right = true;
        unsigned i;

        for (i = 0; at < bytes && is_right; i++) {
                struct slot *slot = &bench->slots[i % SLOTS];

                is_right = i < SLOTS || wait_slot(slot, until);
                slot_begin(slot, strategy, is_store, SLOT_BYTES);
                if (is_right)
                        fill(bench, slot, &at, bytes, run_bytes);
                is_right = is_right && slot->bytes && !slot_issue(slot, NULL);
        }
        for (unsigned j = 0; j < SLOTS && j < i; j++)
                is_right = wait_slot(&bench->slots[j], until) && is_right;
        return is_right ? clock_now_ns() - start : 0;
}

static void measure_one(struct bench *bench, unsigned row, unsigned way,
                        enum kvt_cuda_strategy strategy)
{
        struct choice *choice = bench->measure->choice;
        uint64_t run_bytes = choice->run_bytes[row], bytes = TOTAL;
        bool one_by_one = strategy == KVT_CUDA_PLAIN || strategy == KVT_CUDA_BATCH;
        uint64_t best = 0;

        if (one_by_one && bytes > run_bytes * RUNS_MAX)
                bytes = run_bytes * RUNS_MAX;
        for (unsigned i = 0; i < ROUNDS; i++) {
                uint64_t ns = move(bench, strategy, way == KVT_CUDA_STORE, bytes, run_bytes);

                if (!ns)
                        return;
                best = best && best < ns ? best : ns;
        }
        atomic_store(&choice->bytes_per_second[row][way][strategy],
                     (double)bytes / (double)best * NS_PER_S);
}

static void measure_all(struct bench *bench)
{
        struct choice *choice = bench->measure->choice;

        for (unsigned row = 0; row < CHOICE_ROWS; row++)
                for (unsigned way = 0; way < 2; way++)
                        for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++)
                                if (choice->allowed & (1u << i) &&
                                    !atomic_load(&bench->measure->stop))
                                        measure_one(bench, row, way, (enum kvt_cuda_strategy)i);
        if (!atomic_load(&bench->measure->stop))
                choice_decide(choice);
}

static bool open_bench(struct bench *bench, const struct measure *measure)
{
        cu_result error = 0;
        unsigned n = 0;

        *bench = (struct bench){.measure = measure, .driver = measure->kit->driver};
        error = bench->driver->stream_create(&bench->copies, CU_STREAM_NON_BLOCKING, 0);
        for (; n < SLOTS && !error; n++)
                error = slot_init(&bench->slots[n], measure->kit, bench->copies,
                                  measure->staging_bytes);
        if (!error)
                error = bench->driver->host_allocate(&bench->arena, SCRATCH,
                                                     CU_HOST_ALLOC_PORTABLE);
        if (!error)
                error = bench->driver->allocate(&bench->pages, 2 * SCRATCH);
        return !error;
}

static void close_bench(struct bench *bench)
{
        if (bench->pages)
                bench->driver->release(bench->pages);
        if (bench->arena)
                bench->driver->host_free(bench->arena);
        for (unsigned i = 0; i < SLOTS; i++)
                if (bench->slots[i].kit)
                        slot_deinit(&bench->slots[i]);
        if (bench->copies)
                bench->driver->stream_destroy(bench->copies);
}

void measure_run(struct measure *measure)
{
        struct bench bench;
        int mode;

        if (cuda_enter(measure->kit->driver, measure->context, &mode))
                return;
        if (open_bench(&bench, measure))
                measure_all(&bench);
        close_bench(&bench);
        cuda_leave(measure->kit->driver, mode);
}
