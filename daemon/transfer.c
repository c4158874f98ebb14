// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "daemon/transfer_struct.h"

void transfers_init(struct transfers *transfers)
{
        memset(transfers, 0, sizeof(*transfers));
        for (int tier = 0; tier < INDEX_N_TIERS; tier++) {
                TAILQ_INIT(&transfers->lanes[tier].down);
                TAILQ_INIT(&transfers->lanes[tier].waiting);
        }
        RB_INIT(&transfers->up);
}

bool transfer_lane_is_idle(const struct transfer_lane *lane)
{
        return !lane->n_down && TAILQ_EMPTY(&lane->waiting);
}

bool transfers_are_idle(const struct transfers *transfers)
{
        for (int tier = 0; tier < INDEX_N_TIERS; tier++)
                if (!transfer_lane_is_idle(&transfers->lanes[tier]))
                        return false;
        return !transfers->n_up && !transfers->n_hashing;
}

static uint64_t oldest_in(const struct transfer_list *list, uint64_t oldest_ns)
{
        const struct transfer *transfer;

        TAILQ_FOREACH(transfer, list, link)
                if (transfer->began_ns < oldest_ns)
                        oldest_ns = transfer->began_ns;
        return oldest_ns;
}

double transfers_oldest_seconds(struct transfers *transfers, enum index_tier tier, bool up)
{
        const struct transfer_lane *lane = &transfers->lanes[tier];
        uint64_t now_ns = uv_hrtime(), oldest_ns = now_ns;

        if (up) {
                oldest_ns = transfer_oldest_up(transfers, tier, oldest_ns);
        } else {
                oldest_ns = oldest_in(&lane->down, oldest_ns);
                oldest_ns = oldest_in(&lane->waiting, oldest_ns);
        }
        return (double)(now_ns - oldest_ns) / 1e9;
}

double transfer_seconds_since(uint64_t began_ns)
{
        return (double)(uv_hrtime() - began_ns) / 1e9;
}

void transfer_free(struct transfer *transfer)
{
        free(transfer->covers);
        free(transfer);
}

void transfers_progress(struct cache *cache)
{
        transfers_pump(cache);
        if (cache->on_progress)
                cache->on_progress(cache->on_progress_user);
}
