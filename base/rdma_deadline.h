// SPDX-License-Identifier: Apache-2.0
/*
 * Deadlines, and how long to wait between attempts. One thread; the caller has the clock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/tree.h"

#define RDMA_NEVER UINT64_MAX

struct rdma_deadline {
        RB_ENTRY(rdma_deadline) entry;
        uint64_t at_ns;
        void (*on_passed)(struct rdma_deadline *deadline); /* it is no longer set then */
        bool is_set;
};

RB_HEAD(rdma_deadline_tree, rdma_deadline);

struct rdma_deadlines {
        struct rdma_deadline_tree tree;
};

void rdma_deadlines_init(struct rdma_deadlines *deadlines);

/* Sets or moves it. */
void rdma_deadline_set(struct rdma_deadlines *deadlines, struct rdma_deadline *deadline,
                       uint64_t at_ns);
void rdma_deadline_clear(struct rdma_deadlines *deadlines, struct rdma_deadline *deadline);

/* The earliest, or RDMA_NEVER. */
uint64_t rdma_deadlines_next_ns(struct rdma_deadlines *deadlines);

/* Calls those that have passed, the earliest first; they may set and clear any. */
void rdma_deadlines_run(struct rdma_deadlines *deadlines, uint64_t now_ns);

/*
 * What an owner waits before it opens a connection again: twice as long each time, up to a
 * maximum, and somewhat less by chance, so that a node that comes back is not met by all at once.
 */
struct rdma_backoff {
        uint64_t min_ns;
        uint64_t max_ns;
        uint64_t next_ns; /* 0 before the first failure */
};

/* After a failure: how long to wait. @random is any number. */
uint64_t rdma_backoff_next(struct rdma_backoff *backoff, uint32_t random);

/* After a success. */
void rdma_backoff_reset(struct rdma_backoff *backoff);
