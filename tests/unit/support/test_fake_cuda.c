// SPDX-License-Identifier: Apache-2.0
/* The fake driver does what tests of kvtier's GPU copies rely on it for. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/page_kernels.h"
#include "tests/support/fake_cuda.h"

#define BYTES 8192u

/* Of the driver; it has no header here. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **ret_context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuStreamCreateWithPriority(void **ret_stream, unsigned flags, int priority);
int cuStreamQuery(void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuEventCreate(void **ret_event, unsigned flags);
int cuEventRecord(void *event, void *stream);
int cuEventQuery(void *event);
int cuMemAlloc_v2(uint64_t *ret_address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemHostAlloc(void **ret_base, size_t bytes, unsigned flags);
int cuMemFreeHost(void *base);
int cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *base);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuModuleLoadData(void **ret_module, const void *image);
int cuModuleGetFunction(void **ret_function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **arguments, void **extra);
int cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags,
                        int *ret_status);

static void *context, *stream;
static uint64_t device;
static uint8_t *host;

static void setup(void)
{
        ck_assert_int_eq(cuInit(0), 0);
        ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, 0), 0);
        ck_assert_int_eq(cuCtxPushCurrent_v2(context), 0);
        ck_assert_int_eq(cuStreamCreateWithPriority(&stream, 1, 0), 0);
        ck_assert_int_eq(cuMemAlloc_v2(&device, BYTES), 0);
        host = aligned_alloc(4096, BYTES);
        ck_assert_ptr_nonnull(host);
        memset(host, 1, BYTES);
}

static uint8_t device_byte(uint64_t at)
{
        return *(uint8_t *)fake_cuda_bytes(device + at, 1);
}

START_TEST(copies_run_in_order_and_later)
{
        fake_cuda_hold(true);
        ck_assert_int_eq(cuMemcpyAsync(device, (uintptr_t)host, 64, stream), 0);
        ck_assert_int_eq(cuMemcpyAsync(device + 64, device, 64, stream), 0);
        ck_assert(fake_cuda_wait_queued(2));
        ck_assert_int_eq(cuStreamQuery(stream), FAKE_CUDA_NOT_READY);
        ck_assert_uint_eq(device_byte(0), 0);
        fake_cuda_hold(false);
        ck_assert_int_eq(cuStreamSynchronize(stream), 0);
        ck_assert_uint_eq(device_byte(127), 1);
        ck_assert_uint_eq(device_byte(128), 0);
}
END_TEST

START_TEST(an_event_of_one_stream_holds_another_back)
{
        void *other, *third, *event;

        ck_assert_int_eq(cuStreamCreateWithPriority(&other, 1, 0), 0);
        ck_assert_int_eq(cuStreamCreateWithPriority(&third, 1, 0), 0);
        ck_assert_int_eq(cuEventCreate(&event, 2), 0);
        fake_cuda_hold_stream(stream, true);
        ck_assert_int_eq(cuMemcpyAsync(device, (uintptr_t)host, 64, stream), 0);
        ck_assert_int_eq(cuEventRecord(event, stream), 0);
        ck_assert_int_eq(cuStreamWaitEvent(other, event, 0), 0);
        ck_assert_int_eq(cuMemcpyAsync(device + 64, device, 64, other), 0);
        /* Who waits for nothing is through meanwhile. */
        ck_assert_int_eq(cuMemcpyAsync(device + 128, (uintptr_t)host, 64, third), 0);
        ck_assert_int_eq(cuStreamSynchronize(third), 0);
        ck_assert_int_eq(cuEventQuery(event), FAKE_CUDA_NOT_READY);
        ck_assert_int_eq(cuStreamQuery(other), FAKE_CUDA_NOT_READY);
        fake_cuda_hold_stream(stream, false);
        ck_assert_int_eq(cuStreamSynchronize(other), 0);
        ck_assert_int_eq(cuEventQuery(event), 0);
        ck_assert_uint_eq(device_byte(64), 1);
}
END_TEST

START_TEST(ranges_of_host_memory_register_once)
{
        struct fake_cuda_figures figures;

        ck_assert_int_eq(cuMemHostRegister_v2(host, 4096, 0), 0);
        ck_assert_int_eq(cuMemHostRegister_v2(host + 2048, 4096, 0), FAKE_CUDA_ALREADY_REGISTERED);
        ck_assert_int_eq(cuMemHostUnregister(host + 4096), FAKE_CUDA_NOT_REGISTERED);
        fake_cuda_figures(&figures);
        ck_assert_uint_eq(figures.registered_bytes, 4096);
        ck_assert_int_eq(cuMemHostUnregister(host), 0);
}
END_TEST

START_TEST(a_copy_of_unregistered_memory_is_right_and_counted)
{
        struct fake_cuda_figures figures;

        ck_assert_int_eq(cuMemcpyAsync(device, (uintptr_t)host, 64, stream), 0);
        ck_assert_int_eq(cuStreamSynchronize(stream), 0);
        fake_cuda_figures(&figures);
        ck_assert_uint_eq(figures.n_pageable, 1);
        ck_assert_uint_eq(figures.to_device_bytes, 64);
}
END_TEST

static void launch(uint64_t from)
{
        struct kvt_cuda_few few = {.n_runs = 1, .runs = {{from, device, 100}}};
        void *arguments[] = {&few}, *module, *function;

        ck_assert_int_eq(cuModuleLoadData(&module, "any"), 0);
        ck_assert_int_eq(cuModuleGetFunction(&function, module, KVT_CUDA_MOVE_FEW), 0);
        ck_assert_int_eq(cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, stream, arguments, NULL),
                         0);
}

static int launch_few(uint64_t from)
{
        launch(from);
        return cuStreamSynchronize(stream);
}

START_TEST(a_kernel_moves_runs_of_registered_memory)
{
        ck_assert_int_eq(cuMemHostRegister_v2(host, BYTES, 0), 0);
        ck_assert_int_eq(launch_few((uintptr_t)host), 0);
        ck_assert_uint_eq(device_byte(99), 1);
        ck_assert_uint_eq(device_byte(100), 0);
}
END_TEST

START_TEST(a_kernel_on_unregistered_memory_loses_the_context_for_good)
{
        ck_assert_int_eq(launch_few((uintptr_t)host), FAKE_CUDA_ILLEGAL_ADDRESS);
        ck_assert_int_eq(cuMemcpyAsync(device, device, 1, stream), FAKE_CUDA_ILLEGAL_ADDRESS);
        ck_assert_int_eq(cuStreamQuery(stream), FAKE_CUDA_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(faults_come_when_asked_for_and_as_often)
{
        fake_cuda_fail("cuMemcpyAsync", FAKE_CUDA_INVALID_VALUE, 1, 2);
        ck_assert_int_eq(cuMemcpyAsync(device, device, 1, stream), 0);
        ck_assert_int_eq(cuMemcpyAsync(device, device, 1, stream), FAKE_CUDA_INVALID_VALUE);
        ck_assert_int_eq(cuMemcpyAsync(device, device, 1, stream), FAKE_CUDA_INVALID_VALUE);
        ck_assert_int_eq(cuMemcpyAsync(device, device, 1, stream), 0);
        ck_assert_uint_eq(fake_cuda_calls("cuMemcpyAsync"), 4);
}
END_TEST

START_TEST(a_lost_context_stops_what_is_queued)
{
        fake_cuda_lose(FAKE_CUDA_LAUNCH_FAILED, 1);
        ck_assert_int_eq(cuMemcpyAsync(device, (uintptr_t)host, 1, stream), 0);
        ck_assert_int_eq(cuMemcpyAsync(device + 1, (uintptr_t)host, 1, stream), 0);
        ck_assert_int_eq(cuStreamSynchronize(stream), FAKE_CUDA_LAUNCH_FAILED);
        ck_assert_uint_eq(device_byte(0), 1);
        ck_assert_uint_eq(device_byte(1), 0);
}
END_TEST

START_TEST(the_host_cannot_touch_device_memory)
{
        int ends[2];

        ck_assert_int_eq(pipe(ends), 0);
        ck_assert_int_eq(write(ends[1], (void *)(uintptr_t)device, 1), -1);
        ck_assert_int_eq(errno, EFAULT);
}
END_TEST

START_TEST(memory_unregistered_under_a_copy_ends_the_process)
{
        ck_assert_int_eq(cuMemHostRegister_v2(host, BYTES, 0), 0);
        fake_cuda_hold(true);
        ck_assert_int_eq(cuMemcpyAsync(device, (uintptr_t)host, 64, stream), 0);
        cuMemHostUnregister(host);
}
END_TEST

/* A kernel may be about any memory, but not about what was allocated for another GPU. */
START_TEST(memory_is_freed_beside_the_kernel_of_another_gpu)
{
        void *other, *pinned;
        uint64_t there;

        ck_assert_int_eq(cuMemHostRegister_v2(host, BYTES, 0), 0);
        ck_assert_int_eq(cuDevicePrimaryCtxRetain(&other, 1), 0);
        ck_assert_int_eq(cuCtxPushCurrent_v2(other), 0);
        ck_assert_int_eq(cuMemAlloc_v2(&there, BYTES), 0);
        ck_assert_int_eq(cuMemHostAlloc(&pinned, BYTES, 0), 0);
        ck_assert_int_eq(cuCtxPushCurrent_v2(context), 0);
        fake_cuda_hold(true);
        launch((uintptr_t)host);
        ck_assert_int_eq(cuCtxPushCurrent_v2(other), 0);
        ck_assert_int_eq(cuMemFree_v2(there), 0);
        ck_assert_int_eq(cuMemFreeHost(pinned), 0);
        fake_cuda_hold(false);
}
END_TEST

START_TEST(memory_freed_under_a_kernel_of_its_gpu_ends_the_process)
{
        void *pinned;

        ck_assert_int_eq(cuMemHostRegister_v2(host, BYTES, 0), 0);
        ck_assert_int_eq(cuMemHostAlloc(&pinned, BYTES, 0), 0);
        fake_cuda_hold(true);
        launch((uintptr_t)host);
        cuMemFreeHost(pinned);
}
END_TEST

START_TEST(a_version_of_a_function_goes_with_the_version_asked_for)
{
        void *older, *newer;

        ck_assert_int_eq(cuGetProcAddress_v2("cuMemcpyBatchAsync", &older, 12080, 0, NULL), 0);
        ck_assert_int_eq(cuGetProcAddress_v2("cuMemcpyBatchAsync", &newer, 13000, 0, NULL), 0);
        ck_assert_ptr_ne(older, newer);
        fake_cuda_hide("cuMemcpyBatchAsync");
        ck_assert_int_ne(cuGetProcAddress_v2("cuMemcpyBatchAsync", &older, 12080, 0, NULL), 0);
        ck_assert_ptr_null(older);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("fake_cuda");
        TCase *tcase = tcase_create("fake_cuda");
        SRunner *runner;
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, copies_run_in_order_and_later);
        tcase_add_test(tcase, an_event_of_one_stream_holds_another_back);
        tcase_add_test(tcase, ranges_of_host_memory_register_once);
        tcase_add_test(tcase, a_copy_of_unregistered_memory_is_right_and_counted);
        tcase_add_test(tcase, a_kernel_moves_runs_of_registered_memory);
        tcase_add_test(tcase, a_kernel_on_unregistered_memory_loses_the_context_for_good);
        tcase_add_test(tcase, faults_come_when_asked_for_and_as_often);
        tcase_add_test(tcase, a_lost_context_stops_what_is_queued);
        tcase_add_test(tcase, the_host_cannot_touch_device_memory);
        tcase_add_test_raise_signal(tcase, memory_unregistered_under_a_copy_ends_the_process,
                                    SIGABRT);
        tcase_add_test(tcase, memory_is_freed_beside_the_kernel_of_another_gpu);
        tcase_add_test_raise_signal(tcase, memory_freed_under_a_kernel_of_its_gpu_ends_the_process,
                                    SIGABRT);
        tcase_add_test(tcase, a_version_of_a_function_goes_with_the_version_asked_for);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
