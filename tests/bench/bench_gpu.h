// SPDX-License-Identifier: Apache-2.0
/*
 * What the benches of GPU copies share: a GPU, an engine's pages of several sizes in one
 * tensor, and sessions, each with its own choice of strategies. Any failure ends the process.
 */
#pragma once

#include <stdint.h>

#include "client/kvtier.h"
#include "cuda/kvtier-cuda.h"
#include "tests/bench/bench_daemon.h"
#include "tests/gpu/gpu_memory.h"

#define GPU_CHUNK_TOKENS 4096u
#define GPU_PAGES_MAX    2048u /* of a chunk */
#define GPU_BATCH        4u    /* chunks of a call */
#define GPU_CALLS        4u    /* in flight, of each direction */
#define GPU_SHAPES       10u
#define GPU_SHAPES_BIG   5u /* the first ones: chunks of 8 MiB */
#define GPU_SHAPES_EXACT 8u /* then some of 1 MiB; the last ones have codecs, and 8 MiB */
#define GPU_RUNS         5u

enum gpu_way { GPU_STORE = 1, GPU_LOAD = 2, GPU_BOTH = 3 };

struct gpu_shape {
        const char *name;
        uint64_t page_bytes;
        uint32_t n_pages; /* of a chunk */
        enum kvt_codec codec;
};

extern const struct gpu_shape gpu_shapes[GPU_SHAPES];

/* Which strategies a session may take. */
struct gpu_mode {
        const char *name;
        uint32_t strategies; /* as kvt_cuda_options */
        uint32_t blocks;
};

struct gpu_bench {
        struct gpu gpu;
        cu_stream other; /* a second stream */
        uint64_t run_bytes, tensor_bytes, host_bytes, piece_bytes;
        cu_address tensor;
        uint8_t *pinned; /* tensor_bytes of shared memory, registered */
        uint32_t *order; /* of pages, random */
        uint64_t round;  /* makes the keys of each run new ones */
        struct kvt_session *session;
        struct kvt_page_map *map;
};

extern struct gpu_bench bench;

/* Opens bench.session and its map, and waits until all is registered; its seconds. */
double gpu_open_session(const struct gpu_mode *mode);
void gpu_close_session(void);

/* Pages in no order. */
void gpu_shuffle(const struct gpu_shape *shape);
void gpu_name_chunk(const struct gpu_shape *shape, uint64_t round, uint64_t number,
                    struct kvt_object *ret_object, uint32_t *pages);

/* Seconds that plain copies of bench.run_bytes take, at once where both ways are asked for. */
double gpu_run_dma(unsigned ways);

/* Seconds that the daemon's calls take for run_bytes in each of the ways. */
double gpu_run_calls(const struct gpu_shape *shape, unsigned ways);

/* What moved since the last call of it: "kernel" or "batch 90 % kernel 10 %". */
const char *gpu_moved(unsigned ways);

/* One JSON line. @strategy may be NULL. */
void gpu_print(const char *name, const char *mode, const char *shape, double value, double limit,
               const char *unit, const char *strategy);

void gpu_bench_pages(void);
void gpu_bench_codecs(void);
void gpu_bench_copies(void);
void gpu_bench_latency(void);
void gpu_bench_product(void);
