// SPDX-License-Identifier: Apache-2.0
/*
 * Sixteen bytes at a time, in vectors of the compiler: a step takes two neighbouring vectors
 * apart into their even and odd bytes, or zips two such together again. Four planes are two
 * such steps. What is left at the end goes byte by byte.
 */
#include <assert.h>
#include <string.h>

#include "storage/byte_planes.h"

#define VECTOR_BYTES 16u

typedef uint8_t vector __attribute__((vector_size(VECTOR_BYTES)));

static inline vector load(const uint8_t *bytes)
{
        vector v;

        memcpy(&v, bytes, sizeof(v));
        return v;
}

static inline void store(uint8_t *bytes, vector v)
{
        memcpy(bytes, &v, sizeof(v));
}

static inline vector even(vector a, vector b)
{
        return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                       30);
}

static inline vector odd(vector a, vector b)
{
        return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29,
                                       31);
}

static inline vector zip_low(vector a, vector b)
{
        return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                       23);
}

static inline vector zip_high(vector a, vector b)
{
        return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                       15, 31);
}

/* These four return how many bytes of each plane they have done. */
static size_t split2(const uint8_t *bytes, size_t length, uint8_t *const planes[])
{
        size_t n = 0;

        for (; (n + VECTOR_BYTES) * 2 <= length; n += VECTOR_BYTES) {
                vector a = load(bytes + n * 2), b = load(bytes + n * 2 + VECTOR_BYTES);

                store(planes[0] + n, even(a, b));
                store(planes[1] + n, odd(a, b));
        }
        return n;
}

static size_t split4(const uint8_t *bytes, size_t length, uint8_t *const planes[])
{
        size_t n = 0;

        for (; (n + VECTOR_BYTES) * 4 <= length; n += VECTOR_BYTES) {
                const uint8_t *at = bytes + n * 4;
                vector a = load(at), b = load(at + VECTOR_BYTES);
                vector c = load(at + 2 * VECTOR_BYTES), d = load(at + 3 * VECTOR_BYTES);
                vector even_low = even(a, b), even_high = even(c, d);
                vector odd_low = odd(a, b), odd_high = odd(c, d);

                store(planes[0] + n, even(even_low, even_high));
                store(planes[1] + n, even(odd_low, odd_high));
                store(planes[2] + n, odd(even_low, even_high));
                store(planes[3] + n, odd(odd_low, odd_high));
        }
        return n;
}

static size_t join2(const uint8_t *const planes[], size_t length, uint8_t *bytes)
{
        size_t n = 0;

        for (; (n + VECTOR_BYTES) * 2 <= length; n += VECTOR_BYTES) {
                vector a = load(planes[0] + n), b = load(planes[1] + n);

                store(bytes + n * 2, zip_low(a, b));
                store(bytes + n * 2 + VECTOR_BYTES, zip_high(a, b));
        }
        return n;
}

static size_t join4(const uint8_t *const planes[], size_t length, uint8_t *bytes)
{
        size_t n = 0;

        for (; (n + VECTOR_BYTES) * 4 <= length; n += VECTOR_BYTES) {
                vector a = load(planes[0] + n), b = load(planes[1] + n);
                vector c = load(planes[2] + n), d = load(planes[3] + n);
                vector even_low = zip_low(a, c), even_high = zip_high(a, c);
                vector odd_low = zip_low(b, d), odd_high = zip_high(b, d);
                uint8_t *at = bytes + n * 4;

                store(at, zip_low(even_low, odd_low));
                store(at + VECTOR_BYTES, zip_high(even_low, odd_low));
                store(at + 2 * VECTOR_BYTES, zip_low(even_high, odd_high));
                store(at + 3 * VECTOR_BYTES, zip_high(even_high, odd_high));
        }
        return n;
}

void byte_planes_split(const uint8_t *bytes, size_t length, uint32_t n_planes, uint8_t *planes)
{
        uint8_t *at[4];
        size_t n;

        assert(n_planes == 1 || n_planes == 2 || n_planes == 4);
        if (n_planes == 1) {
                memcpy(planes, bytes, length);
                return;
        }
        for (uint32_t i = 0; i < n_planes; i++) {
                at[i] = planes;
                planes += byte_planes_length(length, n_planes, i);
        }
        n = n_planes == 2 ? split2(bytes, length, at) : split4(bytes, length, at);
        for (size_t i = n * n_planes; i < length; i++)
                at[i % n_planes][i / n_planes] = bytes[i];
}

void byte_planes_join(const uint8_t *const planes[], size_t length, uint32_t n_planes,
                      uint8_t *bytes)
{
        size_t n;

        assert(n_planes == 1 || n_planes == 2 || n_planes == 4);
        if (n_planes == 1) {
                memcpy(bytes, planes[0], length);
                return;
        }
        n = n_planes == 2 ? join2(planes, length, bytes) : join4(planes, length, bytes);
        for (size_t i = n * n_planes; i < length; i++)
                bytes[i] = planes[i % n_planes][i / n_planes];
}
