// SPDX-License-Identifier: Apache-2.0
/*
 * Bytes that anybody can check: those of an object are a function of its number and its
 * generation, so that a reader knows whose bytes it was given, and how old they are.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/key.h"

/* In the number of an object: its bytes shrink, as 16-bit floats do: half of them are noise. */
#define CONTENT_SHRINKS (UINT64_C(1) << 62)

/* Digest of the boundary that test objects call @number. */
void content_digest(struct digest *ret_digest, uint64_t number);

/* The bytes [offset, offset + length) of the object; @offset is a multiple of 8. */
void content_fill(void *bytes, uint64_t offset, uint64_t length, uint64_t number,
                  uint64_t generation);

/* Are they what content_fill() writes? */
bool content_is(const void *bytes, uint64_t offset, uint64_t length, uint64_t number,
                uint64_t generation);
