// SPDX-License-Identifier: Apache-2.0
/*
 * The device of a session: the table that the client calls (client/page_device.h), the GPUs
 * behind it, and the registry of arenas. GPUs are added as options and page maps name them, and
 * stay until the end, so that a job finds its own by a number and without a lock.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "client/page_device.h"
#include "cuda/driver.h"
#include "cuda/gpu.h"
#include "cuda/kvtier-cuda.h"
#include "cuda/registry.h"

#define CUDA_GPUS_MAX 64u

struct cuda {
        struct kvt__page_device table;
        struct kvt_session *session;
        const struct kvt__page_host *host;
        struct cuda_driver driver;
        struct kvt_cuda_options options; /* with defaults filled in */
        struct registry *registry;
        atomic_bool is_lost;
        _Atomic(struct gpu *) gpus[CUDA_GPUS_MAX]; /* by ordinal */
        pthread_mutex_t lock;                      /* for adding GPUs, and the error */
        pthread_mutex_t error_lock;
        char last_error[256];
};

void cuda_init_table(struct cuda *cuda);

/* NULL: not in use. Any thread. */
struct gpu *cuda_find_gpu(struct cuda *cuda, uint32_t ordinal);
/* 0 also when it is there already. Any thread. */
int cuda_add_gpu(struct cuda *cuda, uint32_t ordinal, struct why *why);

/* Remembers the error; @is_lost: nothing more is expected of the GPUs. Any thread. */
void cuda_on_error(void *cuda, cu_result error, bool is_lost);

/* The table's close(): ends all, and frees @cuda unless something of it hangs. */
void cuda_close(void *cuda);
/* Of one that nothing has been made of. */
void cuda_free(struct cuda *cuda);

bool cuda_is_forked(struct kvt_session *session);
/* NULL with a status: the session has no device of ours. */
struct cuda *cuda_of(struct kvt_session *session, enum kvt_status *ret_status);
