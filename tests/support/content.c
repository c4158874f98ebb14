// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tests/support/content.h"

static uint64_t mix(uint64_t word)
{
        word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
        return word ^ word >> 31;
}

static uint64_t seed_of(uint64_t number, uint64_t generation)
{
        return mix(mix(number + 1) + generation);
}

static uint64_t word_at(uint64_t seed, uint64_t index)
{
        return mix(seed + index * UINT64_C(0x9e3779b97f4a7c15));
}

/* The bits of the words that an object has. */
static uint64_t mask_of(uint64_t number)
{
        return number & CONTENT_SHRINKS ? UINT64_C(0x07ff07ff07ff07ff) : UINT64_MAX;
}

void content_digest(struct digest *ret_digest, uint64_t number)
{
        uint64_t seed = seed_of(number, UINT64_MAX);

        for (uint64_t i = 0; i < DIGEST_BYTES / 8; i++) {
                uint64_t word = word_at(seed, i);

                memcpy(ret_digest->bytes + 8 * i, &word, 8);
        }
}

void content_fill(void *bytes, uint64_t offset, uint64_t length, uint64_t number,
                  uint64_t generation)
{
        uint64_t seed = seed_of(number, generation), mask = mask_of(number), word;
        uint8_t *to = bytes;
        uint64_t i = offset / 8;

        for (; length >= 8; i++, to += 8, length -= 8) {
                word = word_at(seed, i) & mask;
                memcpy(to, &word, 8);
        }
        word = word_at(seed, i) & mask;
        memcpy(to, &word, length);
}

bool content_is(const void *bytes, uint64_t offset, uint64_t length, uint64_t number,
                uint64_t generation)
{
        uint64_t seed = seed_of(number, generation), mask = mask_of(number), word;
        const uint8_t *at = bytes;
        uint64_t i = offset / 8;

        for (; length >= 8; i++, at += 8, length -= 8) {
                word = word_at(seed, i) & mask;
                if (memcmp(at, &word, 8))
                        return false;
        }
        word = word_at(seed, i) & mask;
        return !memcmp(at, &word, length);
}
