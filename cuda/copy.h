// SPDX-License-Identifier: Apache-2.0
/* Copies of one object on a stream of the caller's, for kvt_cuda_copy(). Any thread. */
#pragma once

#include <stdbool.h>

#include "client/page_copy.h"
#include "cuda/gpu.h"

/*
 * Enqueues the list on @stream by @strategy, which has to be possible. With the GPU's context
 * current. 0, or the driver's error: some of it may have been enqueued.
 */
cu_result copy_list(const struct gpu *gpu, const struct kvt__page_list *list, bool is_store,
                    enum kvt_cuda_strategy strategy, cu_stream stream);
