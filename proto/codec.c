// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <string.h>

#include "proto/codec.h"
#include "proto/codec_number.h"

/*
 * The loops have constant lengths and no branches, and are compiled twice: for any processor,
 * and for those with AVX2, which shift each element by a count of its own.
 */
#if defined(__x86_64__)
#define HAS_AVX2     1
#define WITH_AVX2    __attribute__((target("avx2")))
#define INTO_CALLERS static inline __attribute__((always_inline))
#else
#define HAS_AVX2     0
#define INTO_CALLERS static inline __attribute__((always_inline))
#endif

static const struct {
        const char *name;
        uint32_t tile_numbers;
        uint32_t scale_bytes;
} codecs[CODEC_COUNT] = {
        [CODEC_NONE] = {"none", 0, 0},
        [CODEC_FP8_TILE128] = {"fp8-tile128", 128, 4},
        [CODEC_MXFP8] = {"mxfp8", 32, 1},
};

const char *codec_name(uint8_t codec)
{
        return codec < CODEC_COUNT ? codecs[codec].name : "unknown";
}

uint32_t codec_tile_numbers(uint8_t codec)
{
        return codec < CODEC_COUNT ? codecs[codec].tile_numbers : 0;
}

uint32_t codec_scale_bytes(uint8_t codec)
{
        return codec < CODEC_COUNT ? codecs[codec].scale_bytes : 0;
}

uint32_t codec_tile_bytes(uint8_t codec)
{
        uint32_t n = codec_tile_numbers(codec);

        return n ? n * CODEC_NUMBER_BYTES : 1;
}

uint64_t codec_stored_bytes(uint8_t codec, uint64_t page_bytes)
{
        uint32_t numbers = codec_tile_numbers(codec);
        uint64_t bytes;

        if (!numbers)
                return page_bytes;
        bytes = page_bytes / codec_tile_bytes(codec) * (numbers + codec_scale_bytes(codec));
        return (bytes + CODEC_PAGE_ALIGN - 1) / CODEC_PAGE_ALIGN * CODEC_PAGE_ALIGN;
}

INTO_CALLERS uint32_t largest_of(const uint16_t *numbers, uint32_t n)
{
        uint32_t largest = 0;

        for (uint32_t i = 0; i < n; i++) {
                uint32_t magnitude = codec_magnitude(numbers[i]);

                largest = magnitude > largest ? magnitude : largest;
        }
        return largest;
}

INTO_CALLERS void encode_tiles(uint8_t codec, uint32_t n, const uint8_t *from, size_t n_tiles,
                               uint8_t *ret_codes, uint8_t *ret_scales)
{
        uint16_t numbers[CODEC_TILE_MAX];
        uint8_t codes[CODEC_TILE_MAX];

        for (size_t tile = 0; tile < n_tiles; tile++) {
                uint32_t largest;
                float inverse;

                memcpy(numbers, from + tile * n * CODEC_NUMBER_BYTES, n * CODEC_NUMBER_BYTES);
                largest = largest_of(numbers, n);
                if (codec == CODEC_FP8_TILE128) {
                        float scale = codec_fp8_scale(largest);

                        memcpy(ret_scales + tile * sizeof(scale), &scale, sizeof(scale));
                        inverse = codec_fp8_inverse(largest);
                } else {
                        ret_scales[tile] = (uint8_t)codec_mxfp8_scale(largest);
                        inverse = codec_mxfp8_inverse(ret_scales[tile]);
                }
                for (uint32_t i = 0; i < n; i++)
                        codes[i] = codec_encode_number(numbers[i], inverse);
                memcpy(ret_codes + tile * n, codes, n);
        }
}

INTO_CALLERS void decode_tiles(uint8_t codec, uint32_t n, const uint8_t *codes,
                               const uint8_t *scales, size_t n_tiles, uint8_t *to)
{
        uint16_t numbers[CODEC_TILE_MAX];

        for (size_t tile = 0; tile < n_tiles; tile++) {
                float scale;

                if (codec == CODEC_FP8_TILE128)
                        memcpy(&scale, scales + tile * sizeof(scale), sizeof(scale));
                else
                        scale = codec_mxfp8_factor(scales[tile]);
                for (uint32_t i = 0; i < n; i++)
                        numbers[i] = codec_decode_number(codes[tile * n + i], scale);
                memcpy(to + tile * n * CODEC_NUMBER_BYTES, numbers, n * CODEC_NUMBER_BYTES);
        }
}

INTO_CALLERS void encode_any(uint8_t codec, const uint8_t *numbers, size_t n_tiles,
                             uint8_t *ret_codes, uint8_t *ret_scales)
{
        if (codec == CODEC_FP8_TILE128)
                encode_tiles(CODEC_FP8_TILE128, 128, numbers, n_tiles, ret_codes, ret_scales);
        else
                encode_tiles(CODEC_MXFP8, 32, numbers, n_tiles, ret_codes, ret_scales);
}

INTO_CALLERS void decode_any(uint8_t codec, const uint8_t *codes, const uint8_t *scales,
                             size_t n_tiles, uint8_t *ret_numbers)
{
        if (codec == CODEC_FP8_TILE128)
                decode_tiles(CODEC_FP8_TILE128, 128, codes, scales, n_tiles, ret_numbers);
        else
                decode_tiles(CODEC_MXFP8, 32, codes, scales, n_tiles, ret_numbers);
}

#if HAS_AVX2
WITH_AVX2 static void encode_avx2(uint8_t codec, const uint8_t *numbers, size_t n_tiles,
                                  uint8_t *ret_codes, uint8_t *ret_scales)
{
        encode_any(codec, numbers, n_tiles, ret_codes, ret_scales);
}

WITH_AVX2 static void decode_avx2(uint8_t codec, const uint8_t *codes, const uint8_t *scales,
                                  size_t n_tiles, uint8_t *ret_numbers)
{
        decode_any(codec, codes, scales, n_tiles, ret_numbers);
}
#endif

void codec_encode(uint8_t codec, const void *numbers, size_t n_tiles, uint8_t *ret_codes,
                  uint8_t *ret_scales)
{
#if HAS_AVX2
        if (__builtin_cpu_supports("avx2")) {
                encode_avx2(codec, numbers, n_tiles, ret_codes, ret_scales);
                return;
        }
#endif
        encode_any(codec, numbers, n_tiles, ret_codes, ret_scales);
}

void codec_decode(uint8_t codec, const uint8_t *codes, const uint8_t *scales, size_t n_tiles,
                  void *ret_numbers)
{
#if HAS_AVX2
        if (__builtin_cpu_supports("avx2")) {
                decode_avx2(codec, codes, scales, n_tiles, ret_numbers);
                return;
        }
#endif
        decode_any(codec, codes, scales, n_tiles, ret_numbers);
}
