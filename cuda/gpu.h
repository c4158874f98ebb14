// SPDX-License-Identifier: Apache-2.0
/*
 * One GPU: its primary context, the kernels in it, a lane for each direction, and a thread that
 * measures once which strategy is the fastest (cuda/measure.h). Immutable but for these.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cuda/choice.h"
#include "cuda/driver.h"
#include "cuda/kvtier-cuda.h"
#include "cuda/lane.h"
#include "cuda/measure.h"
#include "cuda/slot.h"

/* What all GPUs of a session have in common. */
struct gpu_kit {
        const struct cuda_driver *driver;
        struct registry *registry;
        struct kvt_session *session;
        const struct kvt__page_host *host;
        uint32_t strategies; /* bits; never 0 */
        uint32_t blocks;
        uint64_t staging_bytes; /* 0: none */
        bool measures;
        void (*on_error)(void *context, cu_result error, bool is_lost);
        void *error_context;
        const atomic_bool *is_lost;
};

struct gpu {
        struct gpu *next; /* of those that were left behind */
        struct gpu_kit kit;
        uint32_t ordinal;
        cu_device device;
        cu_context context;
        int numa_node; /* of the host, -1: not told */
        cu_module module;
        cu_function move_few; /* NULL: no kernels */
        struct slot_kit slot_kit;
        struct choice choice;
        struct lane lanes[2]; /* by direction */
        struct worker measuring;
        bool is_measuring; /* its thread has to be joined */
        struct measure measure;
        struct worker releasing;
        bool is_released; /* by its thread */
};

/*
 * Opens the GPU and starts its threads; the caller's current context stays what it is. 0;
 * -ENODEV: no such GPU, or it cannot be used; -ENOTSUP: CUDA MPS; -ENOMEM; @why says it.
 */
int gpu_new(struct gpu **ret_gpu, const struct gpu_kit *kit, uint32_t ordinal, struct why *why);

/* Does it take groups with a codec: are there kernels, and staging buffers? */
bool gpu_converts(const struct gpu *gpu);

/* Ends all its jobs until @by_ns; false: it hangs or is lost, and is left as it is for ever. */
void gpu_close_begin(struct gpu *gpu, uint64_t by_ns);
bool gpu_close_end(struct gpu *gpu, uint64_t by_ns);
