// SPDX-License-Identifier: Apache-2.0
/*
 * The CUDA driver, as far as this library uses it: loaded at run time, so that one binary runs
 * with and without a GPU, and written down here alone, so that no header of CUDA is needed.
 * Whoever stands in for a driver (tests) exports the symbols of CUDA_DRIVER_CALLS. Names and
 * numbers are those of CUDA's binary interface, which does not change.
 *
 * The table is filled once and then only read: any thread. A driver is never unloaded: its
 * threads may run on.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef int cu_result; /* CUresult: 0, or CU_E_* */
typedef int cu_device; /* CUdevice: ordinal's handle */
typedef uint64_t cu_address;
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef struct cu_module *cu_module;
typedef struct cu_function *cu_function;

enum {
        CU_E_INVALID_VALUE = 1,
        CU_E_OUT_OF_MEMORY = 2,
        CU_E_DEINITIALIZED = 4,
        CU_E_ECC = 214,
        CU_E_NVLINK = 220,
        CU_E_CONTAINED = 226,
        CU_E_NOT_READY = 600,
        CU_E_ILLEGAL_ADDRESS = 700,
        CU_E_LAUNCH_TIMEOUT = 702,
        CU_E_CONTEXT_IS_DESTROYED = 709,
        CU_E_ASSERT = 710,
        CU_E_HARDWARE_STACK = 714,
        CU_E_COOPERATIVE_TOO_LARGE = 720,
        CU_E_TENSOR_MEMORY_LEAK = 721,
        CU_E_NOT_SUPPORTED = 801,
        CU_E_UNKNOWN = 999,
};

enum {
        CU_ATTRIBUTE_PCI_BUS = 33,
        CU_ATTRIBUTE_PCI_DEVICE = 34,
        CU_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
        CU_ATTRIBUTE_PCI_DOMAIN = 50,
        CU_ATTRIBUTE_REMOTE_FLUSH = 117, /* bits: CU_REMOTE_FLUSH_HOST */
        CU_ATTRIBUTE_REMOTE_ORDER = 118, /* CU_REMOTE_ORDER_OWNER or above: no flush is needed */
        CU_ATTRIBUTE_DMABUF = 124,
        CU_ATTRIBUTE_MPS_ENABLED = 133,
        CU_ATTRIBUTE_HOST_NUMA_ID = 134,
};

enum {
        CU_POINTER_MEMORY_TYPE = 2, /* unsigned: CU_MEMORY_* */
        CU_POINTER_IS_MANAGED = 8,  /* unsigned */
        CU_POINTER_ORDINAL = 9,     /* int */
};

#define CU_MEMORY_DEVICE           2u
#define CU_STREAM_NON_BLOCKING     1u
#define CU_EVENT_DISABLE_TIMING    2u
#define CU_HOST_REGISTER_PORTABLE  1u
#define CU_HOST_REGISTER_DEVICEMAP 2u
#define CU_HOST_ALLOC_PORTABLE     1u
#define CU_HOST_ALLOC_DEVICEMAP    2u
#define CU_REMOTE_FLUSH_HOST       1 /* by flush_remote */
#define CU_REMOTE_ORDER_OWNER      100
#define CU_FLUSH_CONTEXT           0   /* what was written to the current context's memory */
#define CU_FLUSH_TO_OWNER          100 /* is seen there */
#define CU_RANGE_DMABUF            1
#define CU_CAPTURE_THREAD_LOCAL    1 /* graphs that other threads capture are not this one's */

/* CUmemcpyAttributes: how the copies of a batch see their sources. */
struct cu_copy_attributes {
        uint32_t source_order; /* CU_SOURCE_ORDER_STREAM */
        uint32_t source_hint[2];
        uint32_t target_hint[2];
        uint32_t flags;
};
#define CU_SOURCE_ORDER_STREAM 1u

/* clang-format off */
/* call(member, symbol, arguments); every driver of CUDA 11.4 and later has them. */
#define CUDA_DRIVER_CALLS(call)                                                                    \
        call(init, cuInit, (unsigned flags))                                                       \
        call(driver_version, cuDriverGetVersion, (int *ret_version))                               \
        call(error_name, cuGetErrorName, (cu_result error, const char **ret_name))                 \
        call(error_text, cuGetErrorString, (cu_result error, const char **ret_text))               \
        call(device_count, cuDeviceGetCount, (int *ret_n))                                         \
        call(device_get, cuDeviceGet, (cu_device *ret_device, int ordinal))                        \
        call(device_attribute, cuDeviceGetAttribute, (int *ret, int attribute, cu_device device))  \
        call(primary_retain, cuDevicePrimaryCtxRetain, (cu_context *ret, cu_device device))        \
        call(primary_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                    \
        call(context_push, cuCtxPushCurrent_v2, (cu_context context))                              \
        call(context_pop, cuCtxPopCurrent_v2, (cu_context *ret_context))                           \
        call(context_current, cuCtxGetCurrent, (cu_context *ret_context))                          \
        call(context_device, cuCtxGetDevice, (cu_device *ret_device))                              \
        call(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                         \
        call(pointer_attribute, cuPointerGetAttribute,                                             \
             (void *ret_value, int attribute, cu_address address))                                 \
        call(host_register, cuMemHostRegister_v2, (void *base, size_t bytes, unsigned flags))      \
        call(host_unregister, cuMemHostUnregister, (void *base))                                   \
        call(host_address, cuMemHostGetDevicePointer_v2,                                           \
             (cu_address *ret_address, void *base, unsigned flags))                                \
        call(host_allocate, cuMemHostAlloc, (void **ret_base, size_t bytes, unsigned flags))       \
        call(host_free, cuMemFreeHost, (void *base))                                               \
        call(allocate, cuMemAlloc_v2, (cu_address *ret_address, size_t bytes))                     \
        call(release, cuMemFree_v2, (cu_address address))                                          \
        call(address_range, cuMemGetAddressRange_v2,                                               \
             (cu_address *ret_base, size_t *ret_bytes, cu_address address))                        \
        call(flush_remote, cuFlushGPUDirectRDMAWrites, (int target, int scope))                    \
        call(copy, cuMemcpyAsync,                                                                  \
             (cu_address to, cu_address from, size_t bytes, cu_stream stream))                     \
        call(stream_create, cuStreamCreateWithPriority,                                            \
             (cu_stream *ret_stream, unsigned flags, int priority))                                \
        call(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                               \
        call(stream_priorities, cuCtxGetStreamPriorityRange, (int *ret_least, int *ret_greatest))  \
        call(stream_wait, cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned flags))   \
        call(stream_query, cuStreamQuery, (cu_stream stream))                                      \
        call(event_create, cuEventCreate, (cu_event *ret_event, unsigned flags))                   \
        call(event_destroy, cuEventDestroy_v2, (cu_event event))                                   \
        call(event_record, cuEventRecord, (cu_event event, cu_stream stream))                      \
        call(event_query, cuEventQuery, (cu_event event))                                          \
        call(module_load, cuModuleLoadData, (cu_module *ret_module, const void *image))            \
        call(module_unload, cuModuleUnload, (cu_module module))                                    \
        call(module_function, cuModuleGetFunction,                                                 \
             (cu_function *ret_function, cu_module module, const char *name))                      \
        call(launch, cuLaunchKernel,                                                               \
             (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,             \
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,         \
              cu_stream stream, void **arguments, void **extra))
/* clang-format on */

/* cuMemcpyBatchAsync as of 12.8; asked for by cuGetProcAddress_v2, which 12.0 brought. */
typedef cu_result (*cu_copy_batch)(cu_address *to, cu_address *from, size_t *bytes, size_t n,
                                   struct cu_copy_attributes *attributes, size_t *first_of,
                                   size_t n_attributes, size_t *ret_failed, cu_stream stream);
/* cuMemGetHandleForAddressRange, which 11.7 brought. */
typedef cu_result (*cu_export_range)(void *ret_handle, cu_address base, size_t bytes, int kind,
                                     uint64_t flags);
typedef cu_result (*cu_find_function)(const char *symbol, void **ret_function, int version,
                                      uint64_t flags, int *ret_status);

#define CUDA_DRIVER_VERSION_MIN   11040
#define CUDA_DRIVER_VERSION_BATCH 12080
#define CUDA_DRIVER_VARIABLE      "KVT_CUDA_DRIVER"

struct cuda_driver {
        void *library;                /* of dlopen() */
        int version;                  /* 13000 for CUDA 13.0 */
        cu_copy_batch copy_batch;     /* NULL: the driver has none */
        cu_export_range export_range; /* NULL: likewise */
#define CUDA_DRIVER_MEMBER(member, symbol, arguments) cu_result(*member) arguments;
        CUDA_DRIVER_CALLS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/*
 * Loads and initialises it. @path NULL: the environment variable, or else libcuda.so.1. 0;
 * -ENOENT: there is none, or it finds no GPU; -ENOTSUP: too old; the reason is in @why.
 */
int cuda_driver_load(struct cuda_driver *ret_driver, const char *path, struct why *why);

/* @n copies by copy_batch, which the driver has; in the order of the stream. */
cu_result cuda_copy_batch(const struct cuda_driver *driver, cu_address *to, cu_address *from,
                          size_t *bytes, size_t n, cu_stream stream);

/*
 * Makes @context this thread's, for calls beside whatever the application does there: while
 * one of its threads captures a graph, the driver refuses allocations and queries by any thread
 * that has not said that they have nothing to do with it, and the graph is spoilt. 0, or the
 * driver's error: then there is nothing to leave. What was before comes back with leave().
 */
cu_result cuda_enter(const struct cuda_driver *driver, cu_context context, int *ret_mode);
void cuda_leave(const struct cuda_driver *driver, int mode);

/* "CUDA_ERROR_UNKNOWN (999): unknown error", until this thread asks again. Never NULL. */
const char *cuda_error_name(const struct cuda_driver *driver, cu_result error);

/* After such an error nothing works any more in this context: whatever ran may still run. */
bool cuda_error_loses_context(cu_result error);
