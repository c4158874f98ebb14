// SPDX-License-Identifier: Apache-2.0
#include "cuda/clock.h"

#define NS_PER_SECOND UINT64_C(1000000000)

uint64_t clock_now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

struct timespec clock_timespec(uint64_t ns)
{
        return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SECOND),
                                 .tv_nsec = (long)(ns % NS_PER_SECOND)};
}

void clock_cond_init(pthread_cond_t *ret_cond)
{
        pthread_condattr_t monotonic;

        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(ret_cond, &monotonic);
        pthread_condattr_destroy(&monotonic);
}
