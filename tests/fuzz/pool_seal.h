// SPDX-License-Identifier: Apache-2.0
/*
 * Puts checksums right in what a fuzzer has written, so that it gets behind them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

struct bundle_part;

/* The checksum at offset 16 of what begins like a bundle, a journal segment or a node. */
void pool_seal(uint8_t *bytes, size_t length);

/*
 * Checksum and total of the part's record at @record; with @offset (may be NULL) also where
 * its bytes begin, which goes on to where they end. Returns its length, 0: it has none.
 */
size_t pool_seal_part(uint8_t *record, size_t length, uint64_t *offset);

/* What holds of each part that was accepted out of @bytes. */
void pool_check_part(const struct bundle_part *part, const uint8_t *bytes, size_t length);
