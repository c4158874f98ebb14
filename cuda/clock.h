// SPDX-License-Identifier: Apache-2.0
/* CLOCK_MONOTONIC, by which all deadlines here are. Any thread. */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <time.h>

uint64_t clock_now_ns(void);
struct timespec clock_timespec(uint64_t ns);

/* One that is waited for by this clock. */
void clock_cond_init(pthread_cond_t *ret_cond);
