// SPDX-License-Identifier: Apache-2.0
/*
 * The last minutes of a few counters, for the status page: who opens it sees what led to the
 * moment. A ring of samples, one each STATUS_HISTORY_SECONDS; rates are the reader's affair.
 * Loop thread only.
 */
#pragma once

#include <stdint.h>

#include "daemon/metrics.h"

#define STATUS_HISTORY_SIZE    150u
#define STATUS_HISTORY_SECONDS 2.0

struct status_sample {
        double seconds; /* since the daemon started */
        uint64_t hits, misses, stored_bytes, loaded_bytes;
};

/* All zeros is an empty one. */
struct status_history {
        struct status_sample samples[STATUS_HISTORY_SIZE];
        uint64_t n; /* taken so far: sample i lies at i % STATUS_HISTORY_SIZE */
};

/* Takes a sample when the last one is old enough. */
void status_history_take(struct status_history *history, const struct metrics *metrics,
                         double seconds);

/* How many there are, and the @i-th of them, oldest first. */
uint32_t status_history_count(const struct status_history *history);
const struct status_sample *status_history_at(const struct status_history *history, uint32_t i);
