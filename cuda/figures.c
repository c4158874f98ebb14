// SPDX-License-Identifier: Apache-2.0
/* What there is to see of a session's device. */
#include <string.h>

#include "cuda/device.h"

#define INFO_BYTES_MAX 4096u

static void count_gpu(struct gpu *gpu, struct kvt_cuda_info *info)
{
        struct lane_counts counts;

        info->n_devices++;
        info->has_kernels = (info->n_devices == 1 || info->has_kernels) && gpu->move_few;
        for (unsigned way = 0; way < 2; way++) {
                lane_count(&gpu->lanes[way], &counts);
                info->failed_jobs += counts.failed_jobs;
                info->unregistered_bytes_moved += counts.unregistered_bytes;
                for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++) {
                        info->moved[way][i].bytes += counts.moved[i].bytes;
                        info->moved[way][i].runs += counts.moved[i].runs;
                        info->moved[way][i].jobs += counts.moved[i].jobs;
                }
        }
}

enum kvt_status kvt_cuda_info(struct kvt_session *session, struct kvt_cuda_info *ret_info)
{
        enum kvt_status status;
        struct cuda *cuda = cuda_of(session, &status);
        struct kvt_cuda_info info = {0};
        struct registry_counts counts;

        if (!cuda)
                return status;
        if (!ret_info || ret_info->size < sizeof(info.size) || ret_info->size > INFO_BYTES_MAX)
                return KVT_INVALID;
        info.size = ret_info->size;
        info.driver_version = (uint32_t)cuda->driver.version;
        info.has_batch = cuda->driver.copy_batch != NULL;
        info.is_lost = atomic_load(&cuda->is_lost);
        registry_count(cuda->registry, &counts);
        info.mapped_bytes = counts.mapped_bytes;
        info.registered_bytes = counts.registered_bytes;
        info.refused_bytes = counts.refused_bytes;
        for (uint32_t i = 0; i < CUDA_GPUS_MAX; i++)
                if (cuda_find_gpu(cuda, i))
                        count_gpu(cuda_find_gpu(cuda, i), &info);
        pthread_mutex_lock(&cuda->error_lock);
        memcpy(info.last_error, cuda->last_error, sizeof(info.last_error));
        pthread_mutex_unlock(&cuda->error_lock);
        memset(ret_info, 0, info.size);
        memcpy(ret_info, &info, info.size < sizeof(info) ? info.size : sizeof(info));
        return KVT_OK;
}

static void tell_row(const struct choice *choice, unsigned row, struct kvt_cuda_measure *measure)
{
        *measure = (struct kvt_cuda_measure){.run_bytes = choice->run_bytes[row]};
        for (unsigned way = 0; way < 2; way++) {
                measure->chosen[way] = atomic_load(&choice->chosen[row][way]);
                for (unsigned i = 0; i < KVT_CUDA_STRATEGIES; i++)
                        measure->bytes_per_second[way][i] =
                                atomic_load(&choice->bytes_per_second[row][way][i]);
        }
}

enum kvt_status kvt_cuda_measured(struct kvt_session *session, uint32_t device,
                                  struct kvt_cuda_measure *ret_measures, size_t max, size_t *ret_n)
{
        enum kvt_status status;
        struct cuda *cuda = cuda_of(session, &status);
        struct gpu *gpu = cuda ? cuda_find_gpu(cuda, device) : NULL;

        if (!cuda)
                return status;
        if (!ret_n || (max && !ret_measures))
                return KVT_INVALID;
        if (!gpu)
                return KVT_MISS;
        *ret_n = CHOICE_ROWS;
        for (unsigned row = 0; row < CHOICE_ROWS && row < max; row++)
                tell_row(&gpu->choice, row, &ret_measures[row]);
        return atomic_load(&gpu->choice.is_measured) ? KVT_OK : KVT_PENDING;
}
