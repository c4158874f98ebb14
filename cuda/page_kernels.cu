// SPDX-License-Identifier: Apache-2.0
/*
 * Kernels that move runs of bytes (page_kernels.h).
 *
 * A warp takes a run at a time, 4 KiB of it in flight: eight loads of 16 bytes a thread before
 * the first store, since a load from the host takes a microsecond and more. Sources and targets
 * that are not aligned to 16 bytes, or not alike, go in smaller words. Loads and stores leave
 * no lines behind in L1: nothing is read twice.
 */
#include "cuda/page_kernels.h"

#define WARP   32u
#define UNROLL 8u

template <typename word>
static __device__ __forceinline__ word load(const word *from)
{
        return __ldcs(from);
}

template <typename word>
static __device__ __forceinline__ void store(word *to, word value)
{
        __stcs(to, value);
}

/* @n words by the threads of a warp. */
template <typename word>
static __device__ __forceinline__ void move_words(uint64_t to_bytes, uint64_t from_bytes,
                                                  uint64_t n, uint32_t thread)
{
        const word *from = reinterpret_cast<const word *>(from_bytes);
        word *to = reinterpret_cast<word *>(to_bytes);
        uint64_t at = thread;

        for (; at + (UNROLL - 1) * WARP < n; at += UNROLL * WARP) {
                word words[UNROLL];

#pragma unroll
                for (uint32_t i = 0; i < UNROLL; i++)
                        words[i] = load(from + at + i * WARP);
#pragma unroll
                for (uint32_t i = 0; i < UNROLL; i++)
                        store(to + at + i * WARP, words[i]);
        }
        for (; at < n; at += WARP)
                store(to + at, load(from + at));
}

template <typename word>
static __device__ __forceinline__ void move_run(const struct kvt_cuda_run &run, uint32_t thread)
{
        uint64_t whole = run.bytes / sizeof(word) * sizeof(word);

        move_words<word>(run.to, run.from, whole / sizeof(word), thread);
        move_words<unsigned char>(run.to + whole, run.from + whole, run.bytes - whole, thread);
}

static __device__ __forceinline__ void move(const struct kvt_cuda_run &run, uint32_t thread)
{
        uint32_t offsets = static_cast<uint32_t>(run.from | run.to);

        if (offsets % 16 == 0)
                move_run<uint4>(run, thread);
        else if (offsets % 8 == 0)
                move_run<unsigned long long>(run, thread);
        else if (offsets % 4 == 0)
                move_run<unsigned int>(run, thread);
        else
                move_run<unsigned char>(run, thread);
}

/* What one thread of the warp holds. */
static __device__ __forceinline__ struct kvt_cuda_run told(const struct kvt_cuda_run &run,
                                                           uint32_t by)
{
        struct kvt_cuda_run heard;

        heard.from = __shfl_sync(~0u, run.from, by);
        heard.to = __shfl_sync(~0u, run.to, by);
        heard.bytes = __shfl_sync(~0u, run.bytes, by);
        return heard;
}

/*
 * Each warp takes neighbouring runs, as many as any other, and few runs still use all of the
 * grid: neighbouring warps are on different SMs. A warp reads up to 32 of its runs at once, from
 * one place, since they may lie in the host's memory: spread over it, they would take as much of
 * the bus as several times their bytes.
 */
static __device__ __forceinline__ void move_all(const struct kvt_cuda_run *runs, uint32_t n_runs)
{
        uint32_t n_warps = blockDim.x / WARP * gridDim.x, thread = threadIdx.x % WARP;
        uint32_t warp = threadIdx.x / WARP * gridDim.x + blockIdx.x;
        uint32_t n_each = (n_runs + n_warps - 1) / n_warps;
        uint32_t first = min(warp * n_each, n_runs), end = min(first + n_each, n_runs);

        for (; first < end; first += WARP) {
                struct kvt_cuda_run run = {0, 0, 0};

                if (first + thread < end)
                        run = runs[first + thread];
                for (uint32_t i = 0; i < WARP && first + i < end; i++)
                        move(told(run, i), thread);
        }
}

extern "C" __global__ void kvt_move_runs(const struct kvt_cuda_run *runs, uint32_t n_runs)
{
        move_all(runs, n_runs);
}

extern "C" __global__ void kvt_move_few(const __grid_constant__ struct kvt_cuda_few few)
{
        move_all(few.runs, few.n_runs);
}
