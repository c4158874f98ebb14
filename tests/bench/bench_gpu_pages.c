// SPDX-License-Identifier: Apache-2.0
/* Throughput and latency of copies: through the daemon, and on leases that are held. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench_gpu.h"

#define HELD        8u /* objects, for copies without the daemon: 64 MiB each way */
#define LATENCY_RUN 200u

struct slot {
        bool is_busy;
        unsigned way;
        struct kvt_object objects[GPU_BATCH];
        uint32_t pages[GPU_BATCH][GPU_PAGES_MAX];
};

static const struct gpu_mode modes[] = {
        {"chosen", 0, 0},
        {"without staging", 1u << KVT_CUDA_PLAIN | 1u << KVT_CUDA_BATCH | 1u << KVT_CUDA_KERNEL, 0},
        {"staged", 1u << KVT_CUDA_STAGED, 0},
        {"kernel", 1u << KVT_CUDA_KERNEL, 0},
        {"batch", 1u << KVT_CUDA_BATCH, 0},
};

/* ---- through the daemon ---- */

static void submit(const struct gpu_shape *shape, struct slot *slot, uint64_t call_number)
{
        struct kvt_call call = {.size = sizeof(call), .user = slot};
        /* What is loaded is what the round before has stored. */
        uint64_t round = bench.round - (slot->way == GPU_LOAD);

        for (uint32_t i = 0; i < GPU_BATCH; i++)
                gpu_name_chunk(shape, round, call_number * GPU_BATCH + i, &slot->objects[i],
                               slot->pages[i]);
        slot->is_busy = true;
        bench_check("submit",
                    slot->way == GPU_STORE
                            ? kvt_store_pages(bench.session, &call, bench.map, slot->objects,
                                              GPU_BATCH, NULL)
                            : kvt_load_pages(bench.session, &call, bench.map, NULL, slot->objects,
                                             GPU_BATCH, NULL));
}

double gpu_run_calls(const struct gpu_shape *shape, unsigned ways)
{
        uint64_t n_calls = bench.run_bytes / shape->page_bytes / shape->n_pages / GPU_BATCH;
        uint64_t n_started[3] = {0}, n_done = 0;
        uint64_t n_all = ways == GPU_BOTH ? 2 * n_calls : n_calls;
        static struct slot slots[2 * GPU_CALLS];
        struct kvt_completion completions[2 * GPU_CALLS];
        double began = bench_now();

        memset(slots, 0, sizeof(slots));
        for (uint32_t i = 0; i < 2 * GPU_CALLS; i++)
                slots[i].way = i < GPU_CALLS ? GPU_STORE : GPU_LOAD;
        while (n_done < n_all) {
                size_t n;

                for (uint32_t i = 0; i < 2 * GPU_CALLS; i++)
                        if (ways & slots[i].way && !slots[i].is_busy &&
                            n_started[slots[i].way] < n_calls)
                                submit(shape, &slots[i], n_started[slots[i].way]++);
                n = kvt_wait(bench.session, completions, 2 * GPU_CALLS, 20 * SECONDS);
                if (!n)
                        bench_die("kvt_wait", "nothing completed");
                for (size_t i = 0; i < n; i++) {
                        bench_check("call", completions[i].status);
                        ((struct slot *)completions[i].user)->is_busy = false;
                        n_done++;
                }
        }
        return bench_now() - began;
}

static void bench_ways(const struct gpu_mode *mode, const struct gpu_shape *shape, unsigned ways,
                       const char *name)
{
        double bytes = (double)bench.run_bytes * (ways == GPU_BOTH ? 2 : 1) / 1e9;
        double values[GPU_RUNS], limits[GPU_RUNS];

        gpu_moved(GPU_BOTH);
        for (uint32_t i = 0; i < GPU_RUNS; i++) {
                bench.round += (ways & GPU_STORE) != 0;
                limits[i] = bytes / gpu_run_dma(ways);
                values[i] = bytes / gpu_run_calls(shape, ways);
        }
        gpu_print(name, mode->name, shape->name, bench_median(values, GPU_RUNS),
                  bench_median(limits, GPU_RUNS), "GB/s", gpu_moved(ways));
}

static void print_choices(void)
{
        struct kvt_cuda_measure rows[32];
        size_t n = 0;

        if (kvt_cuda_measured(bench.session, 0, rows, 32, &n) != KVT_OK)
                return;
        for (size_t i = 0; i < n; i++)
                for (unsigned j = 0; j < 2; j++)
                        printf("{\"name\": \"gpu_measured\", \"way\": \"%s\", \"run_bytes\": %llu, "
                               "\"plain\": %.1f, \"batch\": %.1f, \"kernel\": %.1f, \"staged\": "
                               "%.1f, \"chosen\": %u}\n",
                               j == KVT_CUDA_STORE ? "store" : "load",
                               (unsigned long long)rows[i].run_bytes,
                               rows[i].bytes_per_second[j][0] / 1e9,
                               rows[i].bytes_per_second[j][1] / 1e9,
                               rows[i].bytes_per_second[j][2] / 1e9,
                               rows[i].bytes_per_second[j][3] / 1e9, rows[i].chosen[j]);
}

void gpu_bench_pages(void)
{
        for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
                double seconds = gpu_open_session(&modes[i]);

                gpu_print("register", modes[i].name, "arenas",
                          seconds / ((double)bench.host_bytes / (1024.0 * MIB)), 0, "s/GiB", NULL);
                if (!i)
                        print_choices();
                for (unsigned j = 0; j < GPU_SHAPES_BIG; j++) {
                        gpu_shuffle(&gpu_shapes[j]);
                        bench.round++;
                        gpu_run_calls(&gpu_shapes[j], GPU_STORE);
                        bench_ways(&modes[i], &gpu_shapes[j], GPU_STORE, "store");
                        bench.round++; /* loads name the round before */
                        bench_ways(&modes[i], &gpu_shapes[j], GPU_LOAD, "load");
                        bench.round--;
                        if (i < 2)
                                bench_ways(&modes[i], &gpu_shapes[j], GPU_BOTH, "both");
                }
                gpu_close_session();
        }
}

void gpu_bench_codecs(void)
{
        static const struct gpu_mode by_blocks[] = {
                {"16 blocks", 0, 16}, {"32 blocks", 0, 32}, {"64 blocks", 0, 64}};

        for (size_t i = 0; i < sizeof(by_blocks) / sizeof(by_blocks[0]); i++) {
                gpu_open_session(&by_blocks[i]);
                for (unsigned j = GPU_SHAPES_EXACT; j < GPU_SHAPES; j++) {
                        gpu_shuffle(&gpu_shapes[j]);
                        bench.round++;
                        gpu_run_calls(&gpu_shapes[j], GPU_STORE);
                        bench_ways(&by_blocks[i], &gpu_shapes[j], GPU_STORE, "store");
                        bench.round++;
                        bench_ways(&by_blocks[i], &gpu_shapes[j], GPU_LOAD, "load");
                        bench.round--;
                }
                gpu_close_session();
        }
}

/* ---- on leases ---- */

static struct kvt_object held[2 * HELD];
static uint32_t held_pages[2 * HELD][GPU_PAGES_MAX];

typedef enum kvt_status (*submit_fn)(struct kvt_session *, const struct kvt_call *,
                                     struct kvt_object *, size_t, uint64_t *);

static void call_all(submit_fn submit_call)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_completion completion;
        uint64_t id;

        bench_check("submit", submit_call(bench.session, &call, held, 2 * HELD, &id));
        bench_check("kvt_wait_call",
                    kvt_wait_call(bench.session, id, &completion, 20 * SECONDS));
        bench_check("call", completion.status);
}

static void copy_held(const struct gpu_shape *shape, bool is_store, uint32_t strategy,
                      cu_stream stream)
{
        uint64_t object_bytes = shape->page_bytes * shape->n_pages;

        for (uint64_t done = 0, i = 0; done < bench.run_bytes; done += object_bytes, i++) {
                uint32_t number = (uint32_t)(i % HELD) + (is_store ? 0 : HELD);
                struct kvt_cuda_copy copy = {.size = sizeof(copy),
                                             .map = bench.map,
                                             .group = held[number].group,
                                             .is_store = is_store,
                                             .slots = held[number].slots,
                                             .n_slots = held[number].n_slots,
                                             .n_segments = held[number].n_segments,
                                             .segments = held[number].segments,
                                             .strategy = strategy};

                bench_check("kvt_cuda_copy", kvt_cuda_copy(bench.session, &copy, stream));
        }
}

static double run_held(const struct gpu_shape *shape, unsigned ways, uint32_t strategy)
{
        double began = bench_now();

        if (ways & GPU_STORE)
                copy_held(shape, true, strategy, bench.gpu.stream);
        if (ways & GPU_LOAD)
                copy_held(shape, false, strategy, bench.other);
        gpu_wait(&bench.gpu);
        gpu_wait_stream(&bench.gpu, bench.other);
        return bench_now() - began;
}

static void bench_held(const struct gpu_shape *shape, unsigned ways, const char *name,
                       uint32_t strategy)
{
        static const char *const names[] = {"chosen", "plain", "batch", "kernel"};
        double bytes = (double)bench.run_bytes * (ways == GPU_BOTH ? 2 : 1) / 1e9;
        /* Plain copies take seconds. */
        uint32_t n_runs = strategy == 1 + KVT_CUDA_PLAIN ? 1 : GPU_RUNS;
        double values[GPU_RUNS], limits[GPU_RUNS];

        for (uint32_t i = 0; i < n_runs; i++) {
                limits[i] = bytes / gpu_run_dma(ways);
                values[i] = bytes / run_held(shape, ways, strategy);
        }
        gpu_print(name, names[strategy], shape->name, bench_median(values, n_runs),
                  bench_median(limits, n_runs), "GB/s", NULL);
}

void gpu_bench_copies(void)
{
        gpu_open_session(&modes[0]);
        for (unsigned j = 0; j < GPU_SHAPES_BIG; j++) {
                gpu_shuffle(&gpu_shapes[j]);
                bench.round++;
                for (uint32_t i = 0; i < 2 * HELD; i++) {
                        gpu_name_chunk(&gpu_shapes[j], bench.round, i, &held[i], held_pages[i]);
                        held[i].bytes = gpu_shapes[j].page_bytes * gpu_shapes[j].n_pages;
                        held[i].slots = held_pages[i];
                }
                call_all(kvt_reserve);
                for (uint32_t strategy = 0; strategy < 4; strategy++) {
                        bench_held(&gpu_shapes[j], GPU_STORE, "copy_store", strategy);
                        bench_held(&gpu_shapes[j], GPU_LOAD, "copy_load", strategy);
                }
                call_all(kvt_abort);
        }
        gpu_close_session();
}

/* ---- one object ---- */

static double one_plain(bool is_store)
{
        double began = bench_now();
        cu_address host = (uintptr_t)bench.pinned;

        gpu_copy(&bench.gpu, is_store ? host : bench.tensor, is_store ? bench.tensor : host, MIB,
                 bench.gpu.stream);
        gpu_wait(&bench.gpu);
        return bench_now() - began;
}

static double one_call(const struct gpu_shape *shape, bool is_store, uint64_t number)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        static uint32_t pages[GPU_PAGES_MAX];
        struct kvt_completion completion;
        struct kvt_object object;
        uint64_t id;
        double began;

        gpu_name_chunk(shape, bench.round, number, &object, pages);
        began = bench_now();
        bench_check("submit", is_store ? kvt_store_pages(bench.session, &call, bench.map, &object,
                                                         1, &id)
                                       : kvt_load_pages(bench.session, &call, bench.map, NULL,
                                                        &object, 1, &id));
        bench_check("wait", kvt_wait_call(bench.session, id, &completion, 20 * SECONDS));
        bench_check("call", completion.status);
        return bench_now() - began;
}

static void bench_latency(const struct gpu_mode *mode, const struct gpu_shape *shape, bool is_store)
{
        double values[LATENCY_RUN], limits[LATENCY_RUN];

        gpu_moved(GPU_BOTH);
        for (uint32_t i = 0; i < LATENCY_RUN; i++) {
                limits[i] = 1e6 * one_plain(is_store);
                values[i] = 1e6 * one_call(shape, is_store, i);
        }
        bench_median(values, LATENCY_RUN);
        bench_median(limits, LATENCY_RUN);
        gpu_print(is_store ? "one_store_p50" : "one_load_p50", mode->name, shape->name,
                  values[LATENCY_RUN / 2], limits[LATENCY_RUN / 2], "us", gpu_moved(GPU_BOTH));
        gpu_print(is_store ? "one_store_p99" : "one_load_p99", mode->name, shape->name,
                  values[LATENCY_RUN * 99 / 100], limits[LATENCY_RUN * 99 / 100], "us", NULL);
}

void gpu_bench_latency(void)
{
        gpu_open_session(&modes[0]);
        for (unsigned j = GPU_SHAPES_BIG; j < GPU_SHAPES_EXACT; j++) {
                gpu_shuffle(&gpu_shapes[j]);
                bench.round++;
                bench_latency(&modes[0], &gpu_shapes[j], true);
                bench_latency(&modes[0], &gpu_shapes[j], false);
        }
        gpu_close_session();
}
