// SPDX-License-Identifier: Apache-2.0
/* kvt_cuda_copy(): copies on the caller's stream, under the caller's leases. */
#include "cuda/copy.h"
#include "cuda/device.h"

static bool is_list(const struct kvt__page_group *group, const struct kvt_cuda_copy *copy)
{
        uint64_t bytes = 0;

        if (!group || !copy->slots || !copy->n_slots || !copy->segments || !copy->n_segments)
                return false;
        for (uint32_t i = 0; i < copy->n_slots; i++)
                if (copy->slots[i] >= group->n_pages)
                        return false;
        for (uint32_t i = 0; i < copy->n_segments; i++)
                bytes += copy->segments[i].bytes;
        return bytes >= copy->n_slots * group->stored_bytes;
}

/* What cannot be used here is done plainly. */
static enum kvt_cuda_strategy pick(struct gpu *gpu, const struct kvt_cuda_copy *copy,
                                   const struct kvt__page_list *list)
{
        bool is_registered = registry_covers(gpu->kit.registry, list);
        struct choice_shape shape = choice_shape_of(list);
        enum kvt_cuda_strategy strategy = copy->strategy - 1;

        if (!copy->strategy)
                return choice_find_unstaged(&gpu->choice, copy->is_store, &shape, is_registered);
        if (strategy == KVT_CUDA_STAGED)
                strategy = KVT_CUDA_KERNEL;
        if (!is_registered || (strategy == KVT_CUDA_KERNEL && !gpu->move_few) ||
            (strategy == KVT_CUDA_BATCH && !gpu->kit.driver->copy_batch))
                strategy = KVT_CUDA_PLAIN;
        return strategy;
}

/* Segments of a session are all in one kind of memory. */
static bool is_foreign(const struct gpu *gpu, const struct kvt__page_list *list)
{
        struct registry_extent extent;

        registry_find(gpu->kit.registry, (uintptr_t)list->segments[0].address, &extent);
        return extent.is_foreign;
}

static enum kvt_status copy_on(struct cuda *cuda, struct gpu *gpu, const struct kvt_cuda_copy *copy,
                               const struct kvt__page_list *list, cu_stream stream)
{
        int mode;
        bool is_lost;
        cu_result error = cuda_enter(&cuda->driver, gpu->context, &mode);

        if (!error && !copy->is_store && gpu->slot_kit.flushes && is_foreign(gpu, list))
                error = cuda->driver.flush_remote(CU_FLUSH_CONTEXT, CU_FLUSH_TO_OWNER);
        if (!error) {
                error = copy_list(gpu, list, copy->is_store, pick(gpu, copy, list), stream);
                cuda_leave(&cuda->driver, mode);
        }
        if (!error)
                return KVT_OK;
        is_lost = cuda_error_loses_context(error);
        cuda_on_error(cuda, error, is_lost);
        /* Leases that the caller would give back may be written still. */
        if (is_lost)
                cuda->host->lose(cuda->session);
        return is_lost ? KVT_UNAVAILABLE : KVT_IO_ERROR;
}

enum kvt_status kvt_cuda_copy(struct kvt_session *session, const struct kvt_cuda_copy *copy,
                              void *stream)
{
        enum kvt_status status;
        struct cuda *cuda = cuda_of(session, &status);
        const struct kvt__page_group *group;
        struct kvt__page_list list;

        if (!cuda)
                return status;
        if (!copy || copy->size != sizeof(*copy) || !copy->map || copy->is_store > 1 ||
            copy->strategy > KVT_CUDA_STRATEGIES || copy->reserved)
                return KVT_INVALID;
        group = cuda->host->find_group(copy->map, copy->group, copy->shard);
        if (!is_list(group, copy) || !cuda_find_gpu(cuda, group->place))
                return KVT_INVALID;
        if (group->codec)
                return KVT_UNSUPPORTED;
        if (atomic_load(&cuda->is_lost))
                return KVT_UNAVAILABLE;
        list = (struct kvt__page_list){.group = group,
                                       .slots = copy->slots,
                                       .n_slots = copy->n_slots,
                                       .segments = copy->segments};
        return copy_on(cuda, cuda_find_gpu(cuda, group->place), copy, &list, stream);
}
