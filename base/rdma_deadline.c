// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "base/rdma_deadline.h"

static int compare(struct rdma_deadline *a, struct rdma_deadline *b)
{
        if (a->at_ns != b->at_ns)
                return a->at_ns < b->at_ns ? -1 : 1;
        return a == b ? 0 : a < b ? -1 : 1;
}

TREE_GENERATE(rdma_deadline_tree, rdma_deadline, entry, compare)

void rdma_deadlines_init(struct rdma_deadlines *deadlines)
{
        RB_INIT(&deadlines->tree);
}

void rdma_deadline_set(struct rdma_deadlines *deadlines, struct rdma_deadline *deadline,
                       uint64_t at_ns)
{
        rdma_deadline_clear(deadlines, deadline);
        deadline->at_ns = at_ns;
        deadline->is_set = true;
        RB_INSERT(rdma_deadline_tree, &deadlines->tree, deadline);
}

void rdma_deadline_clear(struct rdma_deadlines *deadlines, struct rdma_deadline *deadline)
{
        if (!deadline->is_set)
                return;
        RB_REMOVE(rdma_deadline_tree, &deadlines->tree, deadline);
        deadline->is_set = false;
}

uint64_t rdma_deadlines_next_ns(struct rdma_deadlines *deadlines)
{
        struct rdma_deadline *first = RB_MIN(rdma_deadline_tree, &deadlines->tree);

        return first ? first->at_ns : RDMA_NEVER;
}

void rdma_deadlines_run(struct rdma_deadlines *deadlines, uint64_t now_ns)
{
        for (;;) {
                struct rdma_deadline *first = RB_MIN(rdma_deadline_tree, &deadlines->tree);

                if (!first || first->at_ns > now_ns)
                        return;
                rdma_deadline_clear(deadlines, first);
                first->on_passed(first);
        }
}

uint64_t rdma_backoff_next(struct rdma_backoff *backoff, uint32_t random)
{
        uint64_t wait = backoff->next_ns ? backoff->next_ns : backoff->min_ns;

        backoff->next_ns = wait > backoff->max_ns / 2 ? backoff->max_ns : wait * 2;
        return wait - wait / 4 * (random % 256) / 256;
}

void rdma_backoff_reset(struct rdma_backoff *backoff)
{
        backoff->next_ns = 0;
}
