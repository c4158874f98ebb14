// SPDX-License-Identifier: Apache-2.0
/*
 * A GPU's memory and one stream on it, for tests and benches: of whatever driver the library
 * would load (KVT_CUDA_DRIVER, or libcuda.so.1). Any failure ends the test. One thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cuda/driver.h"

struct gpu {
        struct cuda_driver driver;
        int ordinal;
        cu_context context; /* the primary one; current in each call, and not beyond */
        cu_stream stream;
        bool maps; /* gpu_allocate() takes memory of the virtual memory calls */
};

#define GPU_WHY_BYTES 256

/* False, with the reason in @ret_why (GPU_WHY_BYTES), where there is no GPU of this number. */
bool gpu_open(struct gpu *ret_gpu, int ordinal, char *ret_why);
void gpu_close(struct gpu *gpu);

/* Of cuMemAlloc, or mapped (two allocations in one range): that is never given back. */
cu_address gpu_allocate(struct gpu *gpu, uint64_t bytes);
void gpu_release(struct gpu *gpu, cu_address address);

/* Copies that are over when they return. */
void gpu_write(struct gpu *gpu, cu_address to, const void *from, uint64_t bytes);
void gpu_read(struct gpu *gpu, void *to, cu_address from, uint64_t bytes);

void gpu_copy(struct gpu *gpu, cu_address to, cu_address from, uint64_t bytes, cu_stream stream);

/* Waits for a stream; for the GPU's own. */
void gpu_wait_stream(struct gpu *gpu, cu_stream stream);
void gpu_wait(struct gpu *gpu);

/* One more. */
cu_stream gpu_stream(struct gpu *gpu);

void gpu_enter(struct gpu *gpu);
void gpu_leave(struct gpu *gpu);

cu_event gpu_event(struct gpu *gpu);
void gpu_check(const struct gpu *gpu, cu_result result, const char *what);
