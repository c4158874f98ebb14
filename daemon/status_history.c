// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "daemon/status_history.h"

uint32_t status_history_count(const struct status_history *history)
{
        return history->n < STATUS_HISTORY_SIZE ? (uint32_t)history->n : STATUS_HISTORY_SIZE;
}

const struct status_sample *status_history_at(const struct status_history *history, uint32_t i)
{
        uint64_t first = history->n - status_history_count(history);

        assert(i < status_history_count(history));
        return &history->samples[(first + i) % STATUS_HISTORY_SIZE];
}

void status_history_take(struct status_history *history, const struct metrics *metrics,
                         double seconds)
{
        uint32_t count = status_history_count(history);
        uint64_t hits = 0;

        if (count &&
            seconds < status_history_at(history, count - 1)->seconds + STATUS_HISTORY_SECONDS)
                return;
        for (int tier = 0; tier < METRICS_N_TIERS; tier++)
                hits += metrics->hits_total[tier];
        history->samples[history->n++ % STATUS_HISTORY_SIZE] = (struct status_sample){
                .seconds = seconds,
                .hits = hits,
                .misses = metrics->misses_total,
                .stored_bytes = metrics->stored_bytes_total,
                .loaded_bytes = metrics->loaded_bytes_total,
        };
}
