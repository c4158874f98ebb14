// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_memory.h"

void gpu_check(const struct gpu *gpu, cu_result result, const char *what)
{
        if (!result)
                return;
        fprintf(stderr, "gpu: %s: %s\n", what, cuda_error_name(&gpu->driver, result));
        abort();
}

void gpu_enter(struct gpu *gpu)
{
        gpu_check(gpu, gpu->driver.context_push(gpu->context), "cuCtxPushCurrent");
}

void gpu_leave(struct gpu *gpu)
{
        cu_context context;

        gpu_check(gpu, gpu->driver.context_pop(&context), "cuCtxPopCurrent");
}

bool gpu_open(struct gpu *ret_gpu, int ordinal, char *ret_why)
{
        struct why why = {""};
        cu_device device;
        int n = 0;

        memset(ret_gpu, 0, sizeof(*ret_gpu));
        if (cuda_driver_load(&ret_gpu->driver, NULL, &why)) {
                snprintf(ret_why, GPU_WHY_BYTES, "no GPU: %.200s", why.text);
                return false;
        }
        gpu_check(ret_gpu, ret_gpu->driver.device_count(&n), "cuDeviceGetCount");
        if (ordinal >= n) {
                snprintf(ret_why, GPU_WHY_BYTES, "no GPU %d: there are %d", ordinal, n);
                return false;
        }
        ret_gpu->ordinal = ordinal;
        gpu_check(ret_gpu, ret_gpu->driver.device_get(&device, ordinal), "cuDeviceGet");
        gpu_check(ret_gpu, ret_gpu->driver.primary_retain(&ret_gpu->context, device),
                  "cuDevicePrimaryCtxRetain");
        ret_gpu->stream = gpu_stream(ret_gpu);
        return true;
}

cu_stream gpu_stream(struct gpu *gpu)
{
        cu_stream stream = NULL;

        gpu_enter(gpu);
        gpu_check(gpu, gpu->driver.stream_create(&stream, CU_STREAM_NON_BLOCKING, 0),
                  "cuStreamCreate");
        gpu_leave(gpu);
        return stream;
}

void gpu_close(struct gpu *gpu)
{
        gpu_enter(gpu);
        gpu_check(gpu, gpu->driver.stream_destroy(gpu->stream), "cuStreamDestroy");
        gpu_leave(gpu);
        gpu_check(gpu, gpu->driver.primary_release(gpu->ordinal), "cuDevicePrimaryCtxRelease");
}

/* ---- virtual memory calls ---- */

struct location {
        int type; /* 1: a device */
        int id;
};

struct allocation {
        int type; /* 1: pinned */
        int handle_types;
        struct location location;
        void *security;
        uint8_t flags[8];
};

struct access {
        struct location location;
        int flags; /* 3: read and write */
};

static cu_address map_memory(struct gpu *gpu, uint64_t bytes)
{
        void *library = gpu->driver.library;
        cu_result (*granularity)(size_t *, const struct allocation *, int) =
                (cu_result(*)(size_t *, const struct allocation *, int))dlsym(
                        library, "cuMemGetAllocationGranularity");
        cu_result (*reserve)(cu_address *, size_t, size_t, cu_address, uint64_t) =
                (cu_result(*)(cu_address *, size_t, size_t, cu_address, uint64_t))dlsym(
                        library, "cuMemAddressReserve");
        cu_result (*create)(uint64_t *, size_t, const struct allocation *, uint64_t) =
                (cu_result(*)(uint64_t *, size_t, const struct allocation *, uint64_t))dlsym(
                        library, "cuMemCreate");
        cu_result (*map)(cu_address, size_t, size_t, uint64_t, uint64_t) =
                (cu_result(*)(cu_address, size_t, size_t, uint64_t, uint64_t))dlsym(library,
                                                                                    "cuMemMap");
        cu_result (*allow)(cu_address, size_t, const struct access *, size_t) =
                (cu_result(*)(cu_address, size_t, const struct access *, size_t))dlsym(
                        library, "cuMemSetAccess");
        struct allocation kind = {.type = 1, .location = {1, gpu->ordinal}};
        struct access access = {.location = {1, gpu->ordinal}, .flags = 3};
        uint64_t handle, half;
        cu_address address;
        size_t step;

        if (!granularity || !reserve || !create || !map || !allow) {
                fprintf(stderr, "gpu: the driver has no virtual memory calls\n");
                abort();
        }
        gpu_check(gpu, granularity(&step, &kind, 0), "cuMemGetAllocationGranularity");
        half = (bytes / 2 + step) / step * step;
        gpu_check(gpu, reserve(&address, 2 * half, 0, 0, 0), "cuMemAddressReserve");
        /* Of two parts: one address range, two allocations. */
        for (unsigned i = 0; i < 2; i++) {
                gpu_check(gpu, create(&handle, half, &kind, 0), "cuMemCreate");
                gpu_check(gpu, map(address + i * half, half, 0, handle, 0), "cuMemMap");
        }
        gpu_check(gpu, allow(address, 2 * half, &access, 1), "cuMemSetAccess");
        return address;
}

/* ---- memory ---- */

cu_address gpu_allocate(struct gpu *gpu, uint64_t bytes)
{
        cu_address address = 0;

        gpu_enter(gpu);
        if (gpu->maps)
                address = map_memory(gpu, bytes);
        else
                gpu_check(gpu, gpu->driver.allocate(&address, bytes), "cuMemAlloc");
        gpu_leave(gpu);
        return address;
}

void gpu_release(struct gpu *gpu, cu_address address)
{
        if (gpu->maps)
                return;
        gpu_enter(gpu);
        gpu_check(gpu, gpu->driver.release(address), "cuMemFree");
        gpu_leave(gpu);
}

/* ---- copies ---- */

void gpu_wait_stream(struct gpu *gpu, cu_stream stream)
{
        cu_result result;

        gpu_enter(gpu);
        while ((result = gpu->driver.stream_query(stream)) == CU_E_NOT_READY)
                sched_yield();
        gpu_check(gpu, result, "cuStreamQuery");
        gpu_leave(gpu);
}

void gpu_wait(struct gpu *gpu)
{
        gpu_wait_stream(gpu, gpu->stream);
}

void gpu_copy(struct gpu *gpu, cu_address to, cu_address from, uint64_t bytes, cu_stream stream)
{
        gpu_enter(gpu);
        gpu_check(gpu, gpu->driver.copy(to, from, bytes, stream), "cuMemcpyAsync");
        gpu_leave(gpu);
}

void gpu_write(struct gpu *gpu, cu_address to, const void *from, uint64_t bytes)
{
        gpu_copy(gpu, to, (uintptr_t)from, bytes, gpu->stream);
        gpu_wait(gpu);
}

void gpu_read(struct gpu *gpu, void *to, cu_address from, uint64_t bytes)
{
        gpu_copy(gpu, (uintptr_t)to, from, bytes, gpu->stream);
        gpu_wait(gpu);
}

cu_event gpu_event(struct gpu *gpu)
{
        cu_event event = NULL;

        gpu_enter(gpu);
        gpu_check(gpu, gpu->driver.event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        gpu_leave(gpu);
        return event;
}
