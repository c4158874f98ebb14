// SPDX-License-Identifier: Apache-2.0
/*
 * The fake driver's memory. A device allocation is two mappings: one without access, whose
 * address is the device pointer, and the bytes.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake_cuda_state.h"

#define PAGE          UINT64_C(4096)
#define GRANULARITY   (UINT64_C(2) << 20)
#define DEVICE_MEMORY (UINT64_C(8) << 30)

enum { HOST_REGISTER_DEVICEMAP = 2, MEMORY_HOST = 1, MEMORY_DEVICE = 2 };

struct fake_range *fake_range_of(uint64_t address, uint64_t bytes)
{
        struct fake_range *range;

        LIST_FOREACH(range, &fake.ranges, link)
                if (address >= range->base && address - range->base < range->bytes &&
                    bytes <= range->bytes - (address - range->base))
                        return range;
        return NULL;
}

static bool overlaps(uint64_t base, uint64_t bytes)
{
        struct fake_range *range;

        LIST_FOREACH(range, &fake.ranges, link)
                if (base < range->base + range->bytes && range->base < base + bytes)
                        return true;
        return false;
}

uint8_t *fake_reach(uint64_t address, uint64_t bytes)
{
        struct fake_range *range = fake_range_of(address, bytes);

        return range ? range->bytes_at + (address - range->base) : NULL;
}

uint8_t *fake_side(uint64_t address, uint64_t bytes, bool *ret_is_device, bool *ret_is_pageable)
{
        struct fake_range *range = fake_range_of(address, bytes);

        if (!range && overlaps(address, bytes))
                fake_misuse("a copy leaves its allocation");
        *ret_is_device = range && range->is_device;
        *ret_is_pageable = !range;
        return range ? range->bytes_at + (address - range->base) : (uint8_t *)(uintptr_t)address;
}

void *fake_cuda_bytes(uint64_t address, uint64_t bytes)
{
        void *found;

        fake_lock();
        found = fake_reach(address, bytes);
        fake_unlock();
        return found;
}

static bool is_within(uint64_t address, const struct fake_range *range)
{
        return address >= range->base && address - range->base < range->bytes;
}

static bool names(const struct fake_operation *operation, const struct fake_range *range)
{
        for (size_t i = 0; i < operation->n_copies; i++)
                if (is_within(operation->copies[i].to, range) ||
                    is_within(operation->copies[i].from, range))
                        return true;
        return false;
}

/* Kernels may be about anything but what was allocated for another GPU. */
static bool may_name(const struct fake_stream *stream, const struct fake_operation *operation,
                     const struct fake_range *range)
{
        if (operation->kind != FAKE_KERNEL)
                return names(operation, range);
        return !range->is_owned || range->device == stream->context->device;
}

bool fake_is_in_use(const struct fake_range *range)
{
        struct fake_operation *operation;
        struct fake_stream *stream;

        LIST_FOREACH(stream, &fake.streams, link)
                STAILQ_FOREACH(operation, &stream->operations, link)
                        if (!stream->context->lost && may_name(stream, operation, range))
                                return true;
        return false;
}

/* ---- device memory ---- */

static void *map(uint64_t bytes, int protection)
{
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *base = mmap(NULL, bytes, protection, flags, -1, 0);

        return base == MAP_FAILED ? NULL : base;
}

CU(cuMemAlloc_v2, (uint64_t *ret_address, size_t bytes))
{
        uint64_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_range *range;
        void *base;

        if (result)
                return result;
        if (!bytes)
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        range = calloc(1, sizeof(*range));
        base = map(mapped, PROT_NONE);
        if (!range || !base || fake.figures.device_bytes + bytes > DEVICE_MEMORY ||
            !(range->bytes_at = map(mapped, PROT_READ | PROT_WRITE))) {
                if (base)
                        munmap(base, mapped);
                free(range);
                return fake_leave(FAKE_CUDA_OUT_OF_MEMORY);
        }
        range->base = (uintptr_t)base;
        range->bytes = bytes;
        range->is_device = range->is_owned = true;
        range->device = fake_current()->device;
        LIST_INSERT_HEAD(&fake.ranges, range, link);
        fake.figures.device_bytes += bytes;
        *ret_address = range->base;
        return fake_leave(FAKE_CUDA_OK);
}

/*
 * ---- the virtual memory calls ----
 *
 * A handle is a number of bytes, and a reserved range has its memory from the beginning, since
 * copies may go from one mapped allocation into the next.
 */

CU(cuMemGetAllocationGranularity, (size_t *ret_bytes, const void *kind, int option))
{
        *ret_bytes = GRANULARITY;
        return FAKE_CUDA_OK;
}

CU(cuMemAddressReserve,
   (uint64_t *ret_address, size_t bytes, size_t alignment, uint64_t wish, uint64_t flags))
{
        struct fake_range *range = calloc(1, sizeof(*range));
        void *base = map(bytes, PROT_NONE);
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        if (!range || !base || !(range->bytes_at = map(bytes, PROT_READ | PROT_WRITE)))
                fake_misuse("no memory");
        range->base = *ret_address = (uintptr_t)base;
        range->bytes = bytes;
        range->is_device = true;
        range->device = fake_current()->device;
        LIST_INSERT_HEAD(&fake.ranges, range, link);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuMemCreate, (uint64_t *ret_handle, size_t bytes, const void *kind, uint64_t flags))
{
        *ret_handle = bytes;
        return bytes % GRANULARITY ? FAKE_CUDA_INVALID_VALUE : FAKE_CUDA_OK;
}

CU(cuMemMap, (uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        return fake_leave(handle == bytes && fake_range_of(address, bytes)
                                  ? FAKE_CUDA_OK
                                  : FAKE_CUDA_INVALID_VALUE);
}

CU(cuMemSetAccess, (uint64_t address, size_t bytes, const void *access, size_t n))
{
        return FAKE_CUDA_OK;
}

CU(cuMemFree_v2, (uint64_t address))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_range *range;
        uint64_t mapped;

        if (result)
                return result;
        if (!address)
                return fake_leave(FAKE_CUDA_OK);
        range = fake_range_of(address, 1);
        if (!range || !range->is_device || range->base != address)
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        if (fake_is_in_use(range))
                fake_misuse("device memory is freed under a copy");
        mapped = (range->bytes + PAGE - 1) / PAGE * PAGE;
        munmap((void *)(uintptr_t)range->base, mapped);
        munmap(range->bytes_at, mapped);
        fake.figures.device_bytes -= range->bytes;
        LIST_REMOVE(range, link);
        free(range);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuMemGetInfo_v2, (size_t *ret_free, size_t *ret_total))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_total = DEVICE_MEMORY;
        *ret_free = DEVICE_MEMORY - fake.figures.device_bytes;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuDeviceTotalMem_v2, (size_t *ret_bytes, int device))
{
        *ret_bytes = DEVICE_MEMORY;
        return FAKE_CUDA_OK;
}

CU(cuMemGetAddressRange_v2, (uint64_t *ret_base, size_t *ret_bytes, uint64_t address))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_range *range;

        if (result)
                return result;
        range = fake_range_of(address, 1);
        if (!range || !range->is_device)
                return fake_leave(FAKE_CUDA_NOT_FOUND);
        if (ret_base)
                *ret_base = range->base;
        if (ret_bytes)
                *ret_bytes = range->bytes;
        return fake_leave(FAKE_CUDA_OK);
}

/* From now on the bytes are those of a file, which stands for the dma-buf: of the last export. */
static int share(uint8_t *bytes_at, size_t bytes)
{
        int fd = memfd_create("fake-dmabuf", MFD_CLOEXEC);

        if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
            pwrite(fd, bytes_at, bytes, 0) != (ssize_t)bytes ||
            mmap(bytes_at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
                    MAP_FAILED)
                fake_misuse("no memory to share");
        return fd;
}

CU(cuMemGetHandleForAddressRange,
   (void *ret_handle, uint64_t base, size_t bytes, int kind, uint64_t flags))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_range *range;

        if (result)
                return result;
        range = fake_range_of(base, 1);
        if (base % PAGE || bytes % PAGE || !bytes || kind != 1 || flags || !range ||
            !range->is_device ||
            bytes > (range->bytes + PAGE - 1) / PAGE * PAGE - (base - range->base))
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        *(int *)ret_handle = share(range->bytes_at + (base - range->base), bytes);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuFlushGPUDirectRDMAWrites, (int target, int scope))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        return result ? result : fake_leave(FAKE_CUDA_OK);
}

/* ---- host memory ---- */

static int add_host(void *base, size_t bytes, bool is_owned)
{
        struct fake_range *range = calloc(1, sizeof(*range));

        if (!range)
                return FAKE_CUDA_OUT_OF_MEMORY;
        range->base = (uintptr_t)base;
        range->bytes_at = base;
        range->bytes = bytes;
        range->is_owned = is_owned;
        range->device = fake_current()->device;
        LIST_INSERT_HEAD(&fake.ranges, range, link);
        fake.figures.registered_bytes += bytes;
        if (fake.figures.registered_bytes > fake.figures.registered_max_bytes)
                fake.figures.registered_max_bytes = fake.figures.registered_bytes;
        return FAKE_CUDA_OK;
}

static void remove_host(struct fake_range *range)
{
        if (fake_is_in_use(range))
                fake_misuse("host memory is unregistered under a copy");
        fake.figures.registered_bytes -= range->bytes;
        LIST_REMOVE(range, link);
        free(range);
}

CU(cuMemHostRegister_v2, (void *base, size_t bytes, unsigned flags))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        if (!base || !bytes)
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        if (overlaps((uintptr_t)base, bytes))
                return fake_leave(FAKE_CUDA_ALREADY_REGISTERED);
        return fake_leave(add_host(base, bytes, false));
}

CU(cuMemHostUnregister, (void *base))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_range *range;

        if (result)
                return result;
        range = fake_range_of((uintptr_t)base, 1);
        if (!range || range->is_device || range->is_owned || range->base != (uintptr_t)base)
                return fake_leave(FAKE_CUDA_NOT_REGISTERED);
        remove_host(range);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuMemHostAlloc, (void **ret_base, size_t bytes, unsigned flags))
{
        uint64_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_base = bytes ? map(mapped, PROT_READ | PROT_WRITE) : NULL;
        if (!*ret_base)
                return fake_leave(bytes ? FAKE_CUDA_OUT_OF_MEMORY : FAKE_CUDA_INVALID_VALUE);
        result = add_host(*ret_base, bytes, true);
        if (result)
                munmap(*ret_base, mapped);
        return fake_leave(result);
}

CU(cuMemFreeHost, (void *base))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_range *range;
        uint64_t mapped;

        if (result)
                return result;
        range = fake_range_of((uintptr_t)base, 1);
        if (!range || range->is_device || !range->is_owned || range->base != (uintptr_t)base)
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        mapped = (range->bytes + PAGE - 1) / PAGE * PAGE;
        remove_host(range);
        munmap(base, mapped);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuMemHostGetDevicePointer_v2, (uint64_t *ret_address, void *base, unsigned flags))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_range *range;

        if (result)
                return result;
        range = fake_range_of((uintptr_t)base, 1);
        if (!range || range->is_device)
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        *ret_address = (uintptr_t)base;
        return fake_leave(FAKE_CUDA_OK);
}

/* ---- what a pointer is ---- */

static bool answer(void *ret_value, int attribute, const struct fake_range *range, uint64_t address)
{
        switch (attribute) {
        case 1: /* context */
                *(void **)ret_value = range ? &fake.primary[range->device] : NULL;
                return true;
        case 2: /* kind of memory */
                *(unsigned *)ret_value = !range             ? 0
                                         : range->is_device ? MEMORY_DEVICE
                                                            : MEMORY_HOST;
                return true;
        case 3: /* for the device */
                *(uint64_t *)ret_value = range ? address : 0;
                return true;
        case 4: /* for the host */
                *(void **)ret_value =
                        range && !range->is_device ? (void *)(uintptr_t)address : NULL;
                return true;
        case 8: /* is it managed */
                *(unsigned *)ret_value = 0;
                return true;
        case 9: /* device */
                *(int *)ret_value = range ? range->device : -2;
                return true;
        case 11: /* begin of the allocation */
                *(uint64_t *)ret_value = range ? range->base : 0;
                return true;
        case 12: /* its bytes */
                *(size_t *)ret_value = range ? range->bytes : 0;
                return true;
        case 13: /* is it mapped */
                *(bool *)ret_value = range != NULL;
                return true;
        default:
                return false;
        }
}

CU(cuPointerGetAttribute, (void *ret_value, int attribute, uint64_t address))
{
        int result = fake_enter(__func__, FAKE_INIT);
        struct fake_range *range;

        if (result)
                return result;
        range = fake_range_of(address, 1);
        if (!range || !answer(ret_value, attribute, range, address))
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuPointerGetAttributes, (unsigned n, const int *wanted, void **ret_values, uint64_t address))
{
        int result = fake_enter(__func__, FAKE_INIT);
        struct fake_range *range;

        if (result)
                return result;
        range = fake_range_of(address, 1);
        for (unsigned i = 0; i < n; i++)
                if (!answer(ret_values[i], wanted[i], range, address))
                        return fake_leave(FAKE_CUDA_INVALID_VALUE);
        return fake_leave(FAKE_CUDA_OK);
}
