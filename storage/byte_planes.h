// SPDX-License-Identifier: Apache-2.0
/*
 * Byte planes: the bytes of an array of numbers, sorted by their place in the number. Byte i
 * goes to plane i % n, so that all lengths are allowed; the planes lie one after another.
 *
 * Pure functions, any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Length of @plane (below @n_planes) of @length bytes. */
static inline size_t byte_planes_length(size_t length, uint32_t n_planes, uint32_t plane)
{
        return (length + n_planes - 1 - plane) / n_planes;
}

/* @n_planes is 1, 2 or 4. @planes holds @length bytes and does not overlap @bytes. */
void byte_planes_split(const uint8_t *bytes, size_t length, uint32_t n_planes, uint8_t *planes);

/* The way back. Each plane lies where planes[i] points to, at least as long as above. */
void byte_planes_join(const uint8_t *const planes[], size_t length, uint32_t n_planes,
                      uint8_t *bytes);
