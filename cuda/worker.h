// SPDX-License-Identifier: Apache-2.0
/*
 * A thread that can be waited for with a deadline, since one that hangs inside the driver must
 * not hang whoever closes a session.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct worker {
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t over;
        bool is_over;
        void (*run)(void *argument);
        void *argument;
};

/* 0 or negative. @worker stays in place until worker_join() has returned true. */
int worker_start(struct worker *worker, void (*run)(void *argument), void *argument);

/* Waits until @by_ns (CLOCK_MONOTONIC). False: it runs on, and @worker must stay for ever. */
bool worker_join(struct worker *worker, uint64_t by_ns);
