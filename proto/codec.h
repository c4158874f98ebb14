// SPDX-License-Identifier: Apache-2.0
/*
 * Codecs: what a group's pages look like in objects when that is not what they look like in
 * the engine's memory. The one place that knows their sizes, and the reference for their
 * bits.
 *
 * A page is a sequence of bf16 numbers, cut into tiles of neighbours. The largest magnitude M
 * of a tile gives its scale s; each number x is stored as the e4m3 number nearest to x / s
 * (ties to even), of at most 448.
 *
 *   FP8_TILE128  128 numbers, s = M / 448 in fp32
 *   MXFP8        32 numbers, s = the smallest power of two with M / s <= 448, as e8m0 (the
 *                format of the OCP microscaling specification 1.0)
 *
 *   page in an object = e4m3[n] of its tiles in order | scale of each tile, little-endian
 *                     | zeros up to a multiple of 16 bytes
 *
 * What comes back for a finite x, with u = 2^-126:
 *   FP8_TILE128  |x' - x| <= max(|x| / 16, s / 1024, u) + |x'| / 256, and no more than
 *                max(M * (1 / 28 + 1 / 256), u); M itself comes back as it was
 *   MXFP8        |x' - x| <= max(|x| / 16, s / 1024, u), and no more than max(M / 14, u)
 * (both but for a part in 2^20, which the arithmetic of fp32 adds). s is never below 2^-117,
 * so that subnormal numbers come back as zero. Signs stay, that of zero too. Infinity is
 * taken as the largest finite bf16 number: the tile's scale is then such that most others
 * are zero. NaN stays NaN, but for its payload, and does not count for M.
 *
 * Pure functions, any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Numbers are part of layouts: append only. */
enum codec {
        CODEC_NONE = 0, /* objects hold the engine's bytes */
        CODEC_FP8_TILE128 = 1,
        CODEC_MXFP8 = 2,
        CODEC_COUNT,
};

#define CODEC_PAGE_ALIGN   16u
#define CODEC_TILE_MAX     128u /* numbers of a tile */
#define CODEC_SCALE_MAX    4u   /* bytes of a scale */
#define CODEC_NUMBER_BYTES 2u   /* bf16 */

/* "none", "fp8-tile128", "mxfp8"; "unknown". Never NULL. */
const char *codec_name(uint8_t codec);

/* Numbers of a tile, and bytes of its scale; 0 without a codec. */
uint32_t codec_tile_numbers(uint8_t codec);
uint32_t codec_scale_bytes(uint8_t codec);

/* Of a tile in the engine's memory; 1 without a codec: pages have to be a multiple of it. */
uint32_t codec_tile_bytes(uint8_t codec);

/* Bytes that a page of @page_bytes (whole tiles) has in an object. */
uint64_t codec_stored_bytes(uint8_t codec, uint64_t page_bytes);

/* @n_tiles of bf16 numbers, without need of alignment. Not for CODEC_NONE. */
void codec_encode(uint8_t codec, const void *numbers, size_t n_tiles, uint8_t *ret_codes,
                  uint8_t *ret_scales);
void codec_decode(uint8_t codec, const uint8_t *codes, const uint8_t *scales, size_t n_tiles,
                  void *ret_numbers);
