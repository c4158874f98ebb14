// SPDX-License-Identifier: Apache-2.0
/*
 * What the kernels of codec_kernels.cu are called and given; as page_kernels.h.
 *
 *   kvt_encode_tiles(const struct kvt_cuda_tiles *runs, uint32_t n_runs)   pages to codes
 *   kvt_decode_tiles(const struct kvt_cuda_tiles *runs, uint32_t n_runs)   codes to pages
 *       @runs lies in memory of the device, or in registered memory of the host
 *
 * The bits are those of proto/codec.h. Any grid and any block of whole warps does. A warp takes
 * a run at a time, so runs are to be short (KVT_CUDA_TILES_MAX) and many.
 */
#pragma once

#include <stdint.h>

#define KVT_CUDA_ENCODE_TILES "kvt_encode_tiles"
#define KVT_CUDA_DECODE_TILES "kvt_decode_tiles"
#define KVT_CUDA_TILES_MAX    8192u /* numbers of a run; more are right, but slow */

/* Tiles that lie together in the engine's memory. */
struct kvt_cuda_tiles {
        uint64_t page;   /* bf16 numbers: even */
        uint64_t codes;  /* a multiple of 8 */
        uint64_t scales; /* a multiple of a scale's bytes */
        uint32_t n_tiles;
        uint16_t codec;     /* enum codec, not NONE */
        uint16_t pad_bytes; /* encode: zeros behind the scales */
};
