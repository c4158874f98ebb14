// SPDX-License-Identifier: Apache-2.0
/*
 * What page maps cost beyond the copy: kvt_store_pages() and kvt_load_pages() of chunks whose
 * pages lie anywhere in an engine's memory, against plain memcpy of the same bytes, chunk by
 * chunk in one piece.
 *
 *   bench_pages KVTIERD [RUNS]
 *
 * Chunks of 1 MiB (pages of 1 MiB: 16 MiB), some calls in flight, slots in random order, so
 * that hardly anything can be merged. The last rows are of pages that are converted (codecs):
 * bytes are those of the pages. Runs of both take turns; one JSON line a row; the ratio
 * is that of the medians.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench_daemon.h"

#define STORED       (384 * MIB) /* of one run */
#define TENSOR       (256 * MIB) /* the engine's pages */
#define CHUNK_TOKENS 4096u
#define PAGES_MAX    256u /* of a chunk */
#define BATCH_MAX    8u
#define CALLS        4u /* in flight */
#define N_SHAPES     5u

struct shape {
        const char *name;
        uint64_t page_bytes;
        uint32_t n_pages; /* of a chunk */
        uint32_t batch;   /* chunks of a call */
        enum kvt_codec codec;
};

static const struct shape shapes[N_SHAPES] = {{"4k", 4096, 256, 8, KVT_CODEC_NONE},
                                              {"64k", 65536, 16, 8, KVT_CODEC_NONE},
                                              {"1m", MIB, 16, 1, KVT_CODEC_NONE},
                                              {"64k_fp8", 65536, 16, 8, KVT_CODEC_FP8_TILE128},
                                              {"64k_mxfp8", 65536, 16, 8, KVT_CODEC_MXFP8}};

struct slot {
        bool is_busy;
        struct kvt_object objects[BATCH_MAX];
        uint32_t pages[BATCH_MAX][PAGES_MAX];
};

static struct {
        struct kvt_session *session;
        struct kvt_page_map *map;
        uint8_t *tensor;
        uint8_t *arena;  /* memory like the daemon's, for plain memcpy */
        uint32_t *order; /* of pages */
        uint64_t round;  /* makes the keys of each run new ones */
} bench;

static void open_session(void)
{
        struct kvt_group groups[N_SHAPES];
        struct kvt_page_view views[N_SHAPES];
        struct kvt_page_group pages[N_SHAPES];
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "bench",
                                    .engine = "bench_pages",
                                    .chunk_tokens = CHUNK_TOKENS,
                                    .groups = groups,
                                    .n_groups = N_SHAPES};
        char why[256] = "";

        for (uint16_t i = 0; i < N_SHAPES; i++) {
                uint64_t bytes = shapes[i].page_bytes;

                groups[i] = (struct kvt_group){.name = shapes[i].name,
                                               .kind = KVT_GROUP_ATTENTION,
                                               .page_tokens = CHUNK_TOKENS / shapes[i].n_pages,
                                               .page_bytes = bytes,
                                               .codec = shapes[i].codec};
                views[i] = (struct kvt_page_view){
                        .base = bench.tensor, .page_stride = bytes, .row_bytes = bytes};
                pages[i] = (struct kvt_page_group){
                        .group = i, .n_views = 1, .n_pages = TENSOR / bytes, .views = &views[i]};
        }
        bench.session = bench_open(&layout);
        if (kvt_page_map_new(bench.session, pages, N_SHAPES, &bench.map, why, sizeof(why)) !=
            KVT_OK)
                bench_die("kvt_page_map_new", why);
}

static void shuffle(uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                bench.order[i] = i;
        for (uint32_t i = n - 1; i; i--) {
                uint32_t other = (uint32_t)random() % (i + 1), page = bench.order[i];

                bench.order[i] = bench.order[other];
                bench.order[other] = page;
        }
}

/* ---- one run ---- */

static void submit(const struct shape *shape, struct slot *slot, uint64_t number, bool is_store)
{
        uint32_t n_pages = (uint32_t)(TENSOR / shape->page_bytes);
        struct kvt_call call = {.size = sizeof(call), .user = slot};

        for (uint32_t i = 0; i < shape->batch; i++) {
                uint64_t chunk = number * shape->batch + i;
                uint64_t name[3] = {bench.round, chunk, shape->page_bytes};

                for (uint32_t j = 0; j < shape->n_pages; j++)
                        slot->pages[i][j] = bench.order[(chunk * shape->n_pages + j) % n_pages];
                slot->objects[i] = (struct kvt_object){.group = (uint16_t)(shape - shapes),
                                                       .boundary_tokens = CHUNK_TOKENS,
                                                       .slots = slot->pages[i],
                                                       .n_slots = shape->n_pages};
                memcpy(slot->objects[i].digest.bytes, name, sizeof(name));
        }
        slot->is_busy = true;
        bench_check("submit", is_store ? kvt_store_pages(bench.session, &call, bench.map,
                                                         slot->objects, shape->batch, NULL)
                                       : kvt_load_pages(bench.session, &call, bench.map, NULL,
                                                        slot->objects, shape->batch, NULL));
}

static void run_calls(const struct shape *shape, bool is_store)
{
        uint64_t n_calls = STORED / shape->page_bytes / shape->n_pages / shape->batch;
        uint64_t n_started = 0, n_done = 0;
        static struct slot slots[CALLS];
        struct kvt_completion completions[CALLS];

        memset(slots, 0, sizeof(slots));
        while (n_done < n_calls) {
                size_t n;

                for (uint32_t i = 0; i < CALLS && n_started < n_calls; i++)
                        if (!slots[i].is_busy)
                                submit(shape, &slots[i], n_started++, is_store);
                n = kvt_wait(bench.session, completions, CALLS, 10 * SECONDS);
                if (!n)
                        bench_die("kvt_wait", "nothing completed");
                for (size_t i = 0; i < n; i++) {
                        bench_check("call", completions[i].status);
                        ((struct slot *)completions[i].user)->is_busy = false;
                        n_done++;
                }
        }
}

static void run_memcpy(const struct shape *shape, bool is_store)
{
        uint64_t chunk = shape->page_bytes * shape->n_pages;

        for (uint64_t done = 0; done < STORED; done += chunk) {
                uint8_t *arena = bench.arena + done % BENCH_HOST;
                uint8_t *tensor = bench.tensor + done % TENSOR;

                if (is_store)
                        memcpy(arena, tensor, chunk);
                else
                        memcpy(tensor, arena, chunk);
        }
}

static double measure(void (*run)(const struct shape *shape, bool is_store),
                      const struct shape *shape, bool is_store)
{
        double begin = bench_now();

        run(shape, is_store);
        return STORED / (bench_now() - begin) / 1e9;
}

static void bench_shape(const struct shape *shape, uint32_t n_runs)
{
        double stores[RUNS_MAX], store_limits[RUNS_MAX], loads[RUNS_MAX], load_limits[RUNS_MAX];

        shuffle((uint32_t)(TENSOR / shape->page_bytes));
        for (uint32_t i = 0; i < n_runs; i++) {
                bench.round++;
                store_limits[i] = measure(run_memcpy, shape, true);
                stores[i] = measure(run_calls, shape, true);
                load_limits[i] = measure(run_memcpy, shape, false);
                loads[i] = measure(run_calls, shape, false);
        }
        bench_print_row("page_store", shape->name, stores, store_limits, n_runs);
        bench_print_row("page_load", shape->name, loads, load_limits, n_runs);
}

int main(int argc, char **argv)
{
        uint32_t n_runs = argc > 2 ? (uint32_t)atoi(argv[2]) : 9;

        if (argc < 2 || !n_runs || n_runs > RUNS_MAX) {
                fprintf(stderr, "usage: bench_pages KVTIERD [RUNS, at most %u]\n", RUNS_MAX);
                return 2;
        }
        bench_start_daemon(argv[1]);
        bench.tensor = bench_memory(TENSOR);
        bench.arena = bench_shared_memory(BENCH_HOST);
        bench.order = (void *)bench_memory(TENSOR / shapes[0].page_bytes * sizeof(uint32_t));
        open_session();
        /* Touches every page of the arenas once. */
        shuffle((uint32_t)(TENSOR / MIB));
        for (uint64_t stored = 0; stored < 2 * BENCH_HOST; stored += STORED) {
                bench.round++;
                run_calls(&shapes[2], true);
        }
        for (uint32_t i = 0; i < N_SHAPES; i++)
                bench_shape(&shapes[i], n_runs);
        kvt_close(bench.session);
        kvt_page_map_free(bench.map);
        bench_stop_daemon();
        return 0;
}
