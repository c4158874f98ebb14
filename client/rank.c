// SPDX-License-Identifier: Apache-2.0
#include "client/layout.h"
#include "client/session.h"
#include "proto/layout_span.h"

void kvt__rank_init(struct kvt__rank *ret_rank, const struct layout *layout, uint32_t rank,
                    uint32_t n_ranks)
{
        *ret_rank = (struct kvt__rank){
                .rank = rank,
                .n_ranks = n_ranks ? n_ranks : 1,
                .most_shards = layout_most_shards(layout),
                .n_groups = layout->n_groups,
        };
        for (uint16_t i = 0; i < layout->n_groups; i++)
                if (layout->groups[i].kind != LAYOUT_SCRATCH)
                        ret_rank->group_shards[i] = layout->groups[i].n_shards;
}

/* Has @rank a shard of this node that holds shard @shard of a group of @n? */
static bool holds(const struct kvt_session *session, uint32_t rank, uint16_t n, uint16_t shard)
{
        uint32_t n_ranks = session->rank.n_ranks, n_shards = session->n_shards;
        uint32_t first = rank * n_shards / n_ranks, end = (rank + 1) * n_shards / n_ranks;

        /* More ranks than shards: neighbours share one. */
        if (end == first)
                end = first + 1;
        for (uint32_t i = first; i < end; i++)
                if (layout_shard_of(session->shards[i], n, session->rank.most_shards) == shard)
                        return true;
        return false;
}

int kvt_is_mine(struct kvt_session *session, uint16_t group, uint16_t shard, uint32_t boundary)
{
        uint32_t n_holders = 0, turn = UINT32_MAX;
        uint16_t n;

        if (!session || kvt__is_forked(session) || group >= session->rank.n_groups)
                return 0;
        n = session->rank.group_shards[group];
        if (shard >= n)
                return 0;
        for (uint32_t rank = 0; rank < session->rank.n_ranks; rank++) {
                if (!holds(session, rank, n, shard))
                        continue;
                if (rank == session->rank.rank)
                        turn = n_holders;
                n_holders++;
        }
        return turn != UINT32_MAX && boundary % n_holders == turn;
}
