// SPDX-License-Identifier: Apache-2.0
/*
 * What the kernels of page_kernels.cu are called and given: the file is read by the compiler
 * of the device, too, and by tests that stand in for the device.
 *
 *   kvt_move_runs(const struct kvt_cuda_run *runs, uint32_t n_runs)
 *       @runs lies in registered memory of the host, and is read once
 *   kvt_move_few(struct kvt_cuda_few few)
 *       the same, with the runs among the arguments
 *
 * Both copy each run from @from to @to, which do not overlap; which side is the device's does
 * not matter. Any grid and any block of whole warps does. A warp takes a run at a time, so
 * runs are to be short (KVT_CUDA_RUN_MAX) and many.
 */
#pragma once

#include <stdint.h>

#define KVT_CUDA_MOVE_RUNS "kvt_move_runs"
#define KVT_CUDA_MOVE_FEW  "kvt_move_few"
#define KVT_CUDA_RUN_MAX   16384u /* bytes of a run; more are right, but slow */
#define KVT_CUDA_FEW_MAX   160u   /* so that the arguments stay below 4 KiB */

struct kvt_cuda_run {
        uint64_t from;
        uint64_t to;
        uint64_t bytes;
};

struct kvt_cuda_few {
        uint32_t n_runs;
        uint32_t reserved;
        struct kvt_cuda_run runs[KVT_CUDA_FEW_MAX];
};
