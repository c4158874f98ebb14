// SPDX-License-Identifier: Apache-2.0
/*
 * A libcuda.so.1 without a GPU, for tests of what is above it: a shared object that the code
 * under test loads in its place, and that the test itself links, to cause faults and to see
 * what was asked of the driver.
 *
 * Device memory is memory that the host cannot touch at the addresses it has: whoever
 * dereferences a device pointer dies. Streams are threads that run copies and kernels later,
 * in order; events, contexts and registered host memory behave as the driver's, as far as
 * kvtier relies on them. Stricter than the driver where that finds faults: host memory that
 * is unregistered or device memory that is freed under a copy, the use of what is destroyed, a
 * call of the driver from a host function and a copy that leaves its allocation end the process
 * with a message.
 *
 * Kernels are functions of fake_cuda_kernel.c with the same parameters; each of their
 * accesses has to lie in device memory or registered host memory, or the context is lost.
 *
 * Any thread. Of one process: a forked child has to start with a fresh one (exec).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default)

/* Results that tests name; the driver's numbers. */
enum fake_cuda_result {
        FAKE_CUDA_OK = 0,
        FAKE_CUDA_INVALID_VALUE = 1,
        FAKE_CUDA_OUT_OF_MEMORY = 2,
        FAKE_CUDA_NOT_INITIALIZED = 3,
        FAKE_CUDA_NO_DEVICE = 100,
        FAKE_CUDA_INVALID_DEVICE = 101,
        FAKE_CUDA_INVALID_CONTEXT = 201,
        FAKE_CUDA_INVALID_HANDLE = 400,
        FAKE_CUDA_NOT_FOUND = 500,
        FAKE_CUDA_NOT_READY = 600,
        FAKE_CUDA_ILLEGAL_ADDRESS = 700,
        FAKE_CUDA_CONTEXT_IS_DESTROYED = 709,
        FAKE_CUDA_ALREADY_REGISTERED = 712,
        FAKE_CUDA_NOT_REGISTERED = 713,
        FAKE_CUDA_LAUNCH_FAILED = 719,
        FAKE_CUDA_NOT_SUPPORTED = 801,
        FAKE_CUDA_CAPTURE_UNSUPPORTED = 900,
};

/* ---- faults ---- */

/*
 * The driver's function @name ("cuMemHostRegister", without a version) returns @result and
 * does nothing else, @count times (0: from now on), after @skip calls that work. One fault
 * each function; FAKE_CUDA_OK takes it back.
 */
void fake_cuda_fail(const char *name, int result, unsigned skip, unsigned count);

/* As if no driver were there that has it: cuGetProcAddress and dlsym users see NULL or 500. */
void fake_cuda_hide(const char *name);

/* All contexts are lost with @result as soon as @n_operations more have been run. */
void fake_cuda_lose(int result, unsigned n_operations);

/*
 * While held, streams begin nothing new; what is submitted waits. fake_cuda_wait_queued()
 * waits until at least @n copies or kernels wait so; false after ten seconds.
 */
void fake_cuda_hold(bool is_held);
void fake_cuda_hold_stream(void *stream, bool is_held); /* this one alone */
bool fake_cuda_wait_queued(unsigned n);

/*
 * As if some other thread captured a graph, in the mode that torch takes: threads that did not
 * say that they have nothing to do with it (cuThreadExchangeStreamCaptureMode) are refused what
 * might, and spoil it.
 */
void fake_cuda_capture(bool is_capturing);

/*
 * Calls of the driver's function @name begin when it is taken back, with NULL; false: there was
 * none in ten seconds.
 */
void fake_cuda_hang(const char *name);
bool fake_cuda_wait_hanging(void);

/* What cuDeviceGetAttribute answers, for all devices. */
void fake_cuda_set_attribute(int attribute, int value);

/* 2 at first; before cuInit. */
void fake_cuda_set_devices(int n);

/* ---- what was asked ---- */

struct fake_cuda_figures {
        uint64_t registered_bytes; /* now */
        uint64_t registered_max_bytes;
        uint64_t to_host_bytes, to_device_bytes; /* by copies and kernels */
        uint64_t n_copies;                       /* run; an entry of a batch is one */
        uint64_t n_batches, n_kernels;
        uint64_t n_pageable;    /* copies whose host side was not registered */
        uint64_t n_slow_hosts;  /* host functions that took 20 ms or more */
        uint32_t blocks_max;    /* of one kernel */
        uint32_t n_streams, n_events, n_modules, n_contexts; /* alive */
        uint64_t device_bytes;                               /* allocated */
        uint64_t n_spoilt; /* calls that spoilt a graph */
};

void fake_cuda_figures(struct fake_cuda_figures *ret_figures);

/* Calls of a function so far, those that failed, too. */
uint64_t fake_cuda_calls(const char *name);

/* Host access to device memory: its address for the host. NULL outside of an allocation. */
void *fake_cuda_bytes(uint64_t address, uint64_t bytes);

#pragma GCC visibility pop
