// SPDX-License-Identifier: Apache-2.0
/*
 * Kernels that gather and encode, or decode and scatter (codec_kernels.h).
 *
 * A thread has eight numbers of a tile at a time, so that it reads or writes 16 bytes of a page
 * and 8 of the codes; as many neighbours as share a tile find its largest magnitude together.
 * A warp takes 256 numbers in a step, and loads those of four steps before it converts the
 * first. What the numbers become is proto/codec_number.h's, which the host compiles, too.
 */
#include "cuda/codec_kernels.h"
#include "proto/codec_number.h"

#define LANES   32u
#define NUMBERS 8u /* of a thread in a step */
#define STEP    (LANES * NUMBERS)
#define STEPS   4u /* in flight */
#define FP8     1u
#define MXFP8   2u

#define ALL_LANES 0xffffffffu

/* Eight numbers, by words that their address allows. */
union numbers {
        uint4 words16;
        uint2 words8[2];
        uint16_t words2[NUMBERS];
};

static __device__ __forceinline__ void load_numbers(union numbers *ret, uint64_t address,
                                                    uint32_t aligned)
{
        if (aligned == 16) {
                ret->words16 = __ldcs(reinterpret_cast<const uint4 *>(address));
        } else if (aligned == 8) {
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                        ret->words8[i] = __ldcs(reinterpret_cast<const uint2 *>(address) + i);
        } else {
#pragma unroll
                for (uint32_t i = 0; i < NUMBERS; i++)
                        ret->words2[i] = __ldcs(reinterpret_cast<const uint16_t *>(address) + i);
        }
}

static __device__ __forceinline__ void store_numbers(uint64_t address, const union numbers &numbers,
                                                     uint32_t aligned)
{
        if (aligned == 16) {
                __stcs(reinterpret_cast<uint4 *>(address), numbers.words16);
        } else if (aligned == 8) {
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                        __stcs(reinterpret_cast<uint2 *>(address) + i, numbers.words8[i]);
        } else {
#pragma unroll
                for (uint32_t i = 0; i < NUMBERS; i++)
                        __stcs(reinterpret_cast<uint16_t *>(address) + i, numbers.words2[i]);
        }
}

static __device__ __forceinline__ uint32_t alignment(uint64_t address)
{
        return address % 16 == 0 ? 16 : address % 8 == 0 ? 8 : 2;
}

/* The largest magnitude of the tile that @numbers are of, in all of its threads. */
template <uint32_t tile_numbers>
static __device__ __forceinline__ uint32_t largest_of(const union numbers &numbers)
{
        uint32_t largest = 0;

#pragma unroll
        for (uint32_t i = 0; i < NUMBERS; i++)
                largest = max(largest, codec_magnitude(numbers.words2[i]));
#pragma unroll
        for (uint32_t i = 1; i < tile_numbers / NUMBERS; i *= 2)
                largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, i));
        return largest;
}

/* Stores the scale of tile @tile, if this thread is the first of it; what to multiply by. */
template <uint32_t codec>
static __device__ __forceinline__ float put_scale(const struct kvt_cuda_tiles &run, uint32_t tile,
                                                  uint32_t largest, bool is_first)
{
        if (codec == FP8) {
                if (is_first)
                        reinterpret_cast<float *>(run.scales)[tile] = codec_fp8_scale(largest);
                return codec_fp8_inverse(largest);
        }
        uint32_t scale = codec_mxfp8_scale(largest);

        if (is_first)
                reinterpret_cast<uint8_t *>(run.scales)[tile] = static_cast<uint8_t>(scale);
        return codec_mxfp8_inverse(scale);
}

template <uint32_t codec>
static __device__ __forceinline__ float get_scale(const struct kvt_cuda_tiles &run, uint32_t tile)
{
        return codec == FP8
                       ? reinterpret_cast<const float *>(run.scales)[tile]
                       : codec_mxfp8_factor(reinterpret_cast<const uint8_t *>(run.scales)[tile]);
}

static __device__ __forceinline__ uint2 encode(const union numbers &numbers, float inverse)
{
        uint32_t words[2] = {0, 0};

#pragma unroll
        for (uint32_t i = 0; i < NUMBERS; i++)
                words[i / 4] |= static_cast<uint32_t>(
                                        codec_encode_number(numbers.words2[i], inverse))
                                << i % 4 * 8;
        return make_uint2(words[0], words[1]);
}

/* All threads of the warp, whether or not they have numbers: tiles are searched together. */
template <uint32_t codec, uint32_t tile_numbers>
static __device__ __forceinline__ void encode_run(const struct kvt_cuda_tiles &run, uint32_t lane)
{
        uint32_t n = run.n_tiles * tile_numbers, aligned = alignment(run.page);

        for (uint32_t start = 0; start < n; start += STEPS * STEP) {
                union numbers numbers[STEPS];

#pragma unroll
                for (uint32_t i = 0; i < STEPS; i++) {
                        uint32_t at = start + i * STEP + lane * NUMBERS;

                        numbers[i].words16 = make_uint4(0, 0, 0, 0);
                        if (at < n)
                                load_numbers(&numbers[i], run.page + at * 2ull, aligned);
                }
#pragma unroll
                for (uint32_t i = 0; i < STEPS; i++) {
                        uint32_t at = start + i * STEP + lane * NUMBERS;
                        uint32_t largest = largest_of<tile_numbers>(numbers[i]);
                        bool is_first = at < n && at % tile_numbers == 0;
                        float inverse = put_scale<codec>(run, at / tile_numbers, largest, is_first);

                        if (at < n)
                                __stcs(reinterpret_cast<uint2 *>(run.codes + at),
                                       encode(numbers[i], inverse));
                }
        }
        for (uint32_t i = lane; i < run.pad_bytes; i += LANES)
                reinterpret_cast<uint8_t *>(run.scales)[run.n_tiles * (codec == FP8 ? 4 : 1) + i] =
                        0;
}

template <uint32_t codec, uint32_t tile_numbers>
static __device__ __forceinline__ void decode_run(const struct kvt_cuda_tiles &run, uint32_t lane)
{
        uint32_t n = run.n_tiles * tile_numbers, aligned = alignment(run.page);

        for (uint32_t start = 0; start < n; start += STEPS * STEP) {
                uint2 codes[STEPS];
                float scales[STEPS];

#pragma unroll
                for (uint32_t i = 0; i < STEPS; i++) {
                        uint32_t at = start + i * STEP + lane * NUMBERS;

                        if (at >= n)
                                continue;
                        codes[i] = __ldcs(reinterpret_cast<const uint2 *>(run.codes + at));
                        scales[i] = get_scale<codec>(run, at / tile_numbers);
                }
#pragma unroll
                for (uint32_t i = 0; i < STEPS; i++) {
                        uint32_t at = start + i * STEP + lane * NUMBERS;
                        union numbers numbers;

                        if (at >= n)
                                continue;
#pragma unroll
                        for (uint32_t j = 0; j < NUMBERS; j++)
                                numbers.words2[j] = codec_decode_number(
                                        (j < 4 ? codes[i].x : codes[i].y) >> j % 4 * 8 & 0xffu,
                                        scales[i]);
                        store_numbers(run.page + at * 2ull, numbers, aligned);
                }
        }
}

/* Neighbouring runs go to different SMs, so that few runs use all of the grid. */
template <bool is_encode>
static __device__ __forceinline__ void convert_all(const struct kvt_cuda_tiles *runs,
                                                   uint32_t n_runs)
{
        uint32_t warps_a_block = blockDim.x / LANES, lane = threadIdx.x % LANES;
        uint32_t warp = threadIdx.x / LANES * gridDim.x + blockIdx.x;

        for (uint32_t i = warp; i < n_runs; i += warps_a_block * gridDim.x) {
                const struct kvt_cuda_tiles run = runs[i];

                if (is_encode && run.codec == FP8)
                        encode_run<FP8, 128>(run, lane);
                else if (is_encode)
                        encode_run<MXFP8, 32>(run, lane);
                else if (run.codec == FP8)
                        decode_run<FP8, 128>(run, lane);
                else
                        decode_run<MXFP8, 32>(run, lane);
        }
}

extern "C" __global__ void kvt_encode_tiles(const struct kvt_cuda_tiles *runs, uint32_t n_runs)
{
        convert_all<true>(runs, n_runs);
}

extern "C" __global__ void kvt_decode_tiles(const struct kvt_cuda_tiles *runs, uint32_t n_runs)
{
        convert_all<false>(runs, n_runs);
}
