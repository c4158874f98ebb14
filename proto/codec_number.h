// SPDX-License-Identifier: Apache-2.0
/*
 * The numbers of the codecs: bf16 to e4m3 and back, and the scales. Written so that every
 * machine gets the same bits: rounding is done on integers, to nearest and ties to even; of
 * floating point there are single multiplications and divisions whose operands and results
 * are normal numbers or zero, so that neither contraction nor flushing of subnormals can
 * change them. The kernels of cuda/ are compiled from this file, too.
 *
 * What a tile is, and what comes of infinities and NaN: codec.h. Pure; any thread.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define CODEC_NUMBER __host__ __device__ static inline
#else
#define CODEC_NUMBER static inline __attribute__((always_inline))
#endif

#define CODEC_BF16_LARGEST  0x7f7fu /* finite */
#define CODEC_BF16_INFINITY 0x7f80u
#define CODEC_BF16_NORMAL   0x0080u /* the smallest normal number, 2^-126 */
#define CODEC_E4M3_LARGEST  0x7eu   /* 448 */
#define CODEC_E4M3_NAN      0x7fu
/* 448 * 2^-117: with this scale the smallest e4m3 number still is a normal bf16 one. */
#define CODEC_TILE_LEAST 0x0960u
#define CODEC_E8M0_LEAST 10u /* 2^-117 */

CODEC_NUMBER float codec_float(uint32_t bits)
{
        float number;

        memcpy(&number, &bits, sizeof(number));
        return number;
}

CODEC_NUMBER uint32_t codec_bits(float number)
{
        uint32_t bits;

        memcpy(&bits, &number, sizeof(bits));
        return bits;
}

/* @a where the claim holds, or 0: without a branch, for loops that are to be wide. */
CODEC_NUMBER uint32_t codec_if(int claim, uint32_t a)
{
        return a & (0u - (uint32_t)claim);
}

CODEC_NUMBER float codec_multiply(float a, float b)
{
#ifdef __CUDA_ARCH__
        return __fmul_rn(a, b);
#else
        return a * b;
#endif
}

CODEC_NUMBER float codec_divide(float a, float b)
{
#ifdef __CUDA_ARCH__
        return __fdiv_rn(a, b);
#else
        return a / b;
#endif
}

/*
 * A bf16 number without its sign as it counts for the tile: infinity is the largest finite
 * number, subnormals are zero, and so is NaN.
 */
CODEC_NUMBER uint32_t codec_magnitude(uint32_t bf16)
{
        uint32_t magnitude = bf16 & 0x7fffu;
        uint32_t finite = magnitude < CODEC_BF16_LARGEST ? magnitude : CODEC_BF16_LARGEST;

        return codec_if(magnitude <= CODEC_BF16_INFINITY, finite) &
               codec_if(magnitude >= CODEC_BF16_NORMAL, ~0u);
}

/* ---- scales, of the largest magnitude of a tile ---- */

CODEC_NUMBER float codec_fp8_largest(uint32_t magnitude)
{
        return codec_float((magnitude > CODEC_TILE_LEAST ? magnitude : CODEC_TILE_LEAST) << 16);
}

/* What is stored: a number is its e4m3 code times this. */
CODEC_NUMBER float codec_fp8_scale(uint32_t magnitude)
{
        return codec_divide(codec_fp8_largest(magnitude), 448.0f);
}

CODEC_NUMBER float codec_fp8_inverse(uint32_t magnitude)
{
        return codec_divide(448.0f, codec_fp8_largest(magnitude));
}

/* The smallest power of two with which the largest is at most 448, as its e8m0 byte. */
CODEC_NUMBER uint32_t codec_mxfp8_scale(uint32_t magnitude)
{
        uint32_t exponent = (magnitude >> 7) + ((magnitude & 0x7fu) > 0x60u);

        return exponent > CODEC_E8M0_LEAST + 8 ? exponent - 8 : CODEC_E8M0_LEAST;
}

CODEC_NUMBER float codec_mxfp8_factor(uint32_t e8m0)
{
        return codec_float(e8m0 << 23);
}

CODEC_NUMBER float codec_mxfp8_inverse(uint32_t e8m0)
{
        return codec_float((254 - e8m0) << 23);
}

/* ---- elements ---- */

/* The e4m3 code of a number of at most 448 (or a little above) that is not negative. */
CODEC_NUMBER uint32_t codec_round_e4m3(float number)
{
        uint32_t bits = codec_bits(number), exponent = bits >> 23;
        /* Below 2^-6 the step is 2^-9, whatever the exponent. */
        uint32_t below = codec_if(exponent < 121, 121 - exponent);
        uint32_t shift = 20 + (below < 11 ? below : 11);
        uint32_t low = (bits & 0x7fffffu) | 0x800000u, high = bits - (120u << 23);
        uint32_t digits = codec_if(exponent < 121, low) | codec_if(exponent >= 121, high);
        uint32_t code = (digits + (1u << (shift - 1)) - 1 + (digits >> shift & 1)) >> shift;

        return code < CODEC_E4M3_LARGEST ? code : CODEC_E4M3_LARGEST;
}

CODEC_NUMBER uint8_t codec_encode_number(uint32_t bf16, float inverse)
{
        float finite = codec_float(codec_magnitude(bf16) << 16);
        uint32_t code = codec_round_e4m3(codec_multiply(finite, inverse));

        code |= codec_if((bf16 & 0x7fffu) > CODEC_BF16_INFINITY, CODEC_E4M3_NAN);
        return (uint8_t)((bf16 >> 8 & 0x80u) | code);
}

/* Below infinity. */
CODEC_NUMBER uint16_t codec_decode_number(uint32_t e4m3, float scale)
{
        uint32_t code = e4m3 & 0x7fu;
        /* Below 2^-6 a code counts steps of 2^-9: 2^-6 + code * 2^-9 has it as its digits. */
        uint32_t least = codec_if(code < 8, 121u << 23);
        uint32_t exponent = codec_if(code < 8, 1u << 23) + (120u << 23);
        float number = codec_float((code << 20) + exponent) - codec_float(least);
        uint32_t bits = codec_bits(codec_multiply(number, scale));
        uint32_t bf16 = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;

        bf16 = bf16 < CODEC_BF16_LARGEST ? bf16 : CODEC_BF16_LARGEST;
        bf16 = codec_if(code != CODEC_E4M3_NAN, bf16) | codec_if(code == CODEC_E4M3_NAN, 0x7fc0u);
        return (uint16_t)((e4m3 & 0x80u) << 8 | bf16);
}
