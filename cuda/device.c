// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "cuda/clock.h"
#include "cuda/device.h"

#define CLOSE_NS_MAX UINT64_C(2000000000)

void cuda_on_error(void *context, cu_result error, bool is_lost)
{
        struct cuda *cuda = context;

        pthread_mutex_lock(&cuda->error_lock);
        snprintf(cuda->last_error, sizeof(cuda->last_error), "%s",
                 cuda_error_name(&cuda->driver, error));
        pthread_mutex_unlock(&cuda->error_lock);
        if (!is_lost)
                return;
        registry_lose(cuda->registry);
        atomic_store_explicit(&cuda->is_lost, true, memory_order_release);
}

/* ---- GPUs ---- */

struct gpu *cuda_find_gpu(struct cuda *cuda, uint32_t ordinal)
{
        return ordinal < CUDA_GPUS_MAX
                       ? atomic_load_explicit(&cuda->gpus[ordinal], memory_order_acquire)
                       : NULL;
}

static int add_gpu_locked(struct cuda *cuda, uint32_t ordinal, struct why *why)
{
        struct gpu_kit kit = {
                .driver = &cuda->driver,
                .registry = cuda->registry,
                .session = cuda->session,
                .host = cuda->host,
                .strategies = cuda->options.strategies,
                .blocks = cuda->options.blocks,
                .staging_bytes = cuda->options.staging_bytes,
                .measures = !(cuda->options.flags & KVT_CUDA_NO_MEASURE),
                .on_error = cuda_on_error,
                .error_context = cuda,
                .is_lost = &cuda->is_lost,
        };
        struct gpu *gpu;
        int r;

        if (cuda_find_gpu(cuda, ordinal))
                return 0;
        r = gpu_new(&gpu, &kit, ordinal, why);
        if (!r)
                atomic_store_explicit(&cuda->gpus[ordinal], gpu, memory_order_release);
        return r;
}

int cuda_add_gpu(struct cuda *cuda, uint32_t ordinal, struct why *why)
{
        int r;

        if (ordinal >= CUDA_GPUS_MAX) {
                why_set(why, "GPU %u: only ordinals below %u", ordinal, CUDA_GPUS_MAX);
                return err_raise(-ENODEV);
        }
        pthread_mutex_lock(&cuda->lock);
        r = add_gpu_locked(cuda, ordinal, why);
        pthread_mutex_unlock(&cuda->lock);
        return r;
}

/* ---- the device's table ---- */

static int place(void *context, const void *base, uint64_t bytes, uint32_t *ret_place,
                 struct why *why)
{
        struct cuda *cuda = context;
        cu_address first = (uintptr_t)base, last = first + bytes - 1;
        uint32_t type = 0, is_managed = 0;
        int ordinal = -1, ordinal_of_last = -1;
        int r;

        /* Memory that the driver has never heard of is the host's; what it manages, too. */
        if (cuda->driver.pointer_attribute(&type, CU_POINTER_MEMORY_TYPE, first) ||
            type != CU_MEMORY_DEVICE ||
            (!cuda->driver.pointer_attribute(&is_managed, CU_POINTER_IS_MANAGED, first) &&
             is_managed))
                return 0;
        if (cuda->driver.pointer_attribute(&ordinal, CU_POINTER_ORDINAL, first) || ordinal < 0) {
                why_set(why, "a view lies on a GPU that the driver does not name");
                return err_raise(-EINVAL);
        }
        if (cuda->driver.pointer_attribute(&ordinal_of_last, CU_POINTER_ORDINAL, last) ||
            ordinal_of_last != ordinal) {
                why_set(why, "a view begins on GPU %d and ends elsewhere", ordinal);
                return err_raise(-EINVAL);
        }
        r = cuda_add_gpu(cuda, (uint32_t)ordinal, why);
        *ret_place = (uint32_t)ordinal;
        return r ? r : 1;
}

/* A map may have been made before another registering, of a GPU that is not in use now. */
static struct gpu *gpu_for(struct cuda *cuda, uint32_t ordinal)
{
        struct gpu *gpu = cuda_find_gpu(cuda, ordinal);

        for (uint32_t i = 0; !gpu; i++)
                gpu = cuda_find_gpu(cuda, i);
        return gpu;
}

static void submit(void *context, struct kvt__page_job *job)
{
        struct gpu *gpu = gpu_for(context, job->place);

        lane_submit(&gpu->lanes[job->is_store ? KVT_CUDA_STORE : KVT_CUDA_LOAD], job);
}

static void map(void *context, struct kvt__mapping *mapping)
{
        registry_map(((struct cuda *)context)->registry, mapping);
}

static void unmap(void *context, struct kvt__mapping *mapping)
{
        registry_unmap(((struct cuda *)context)->registry, mapping);
}

void cuda_free(struct cuda *cuda)
{
        pthread_mutex_destroy(&cuda->lock);
        pthread_mutex_destroy(&cuda->error_lock);
        free(cuda);
}

/* What cannot be closed may still use the struct: it stays, and whatever it points to. */
void cuda_close(void *context)
{
        struct cuda *cuda = context;
        uint64_t by = clock_now_ns() + CLOSE_NS_MAX;
        bool is_over = true;

        for (uint32_t i = 0; i < CUDA_GPUS_MAX; i++)
                if (cuda->gpus[i])
                        gpu_close_begin(cuda->gpus[i], by);
        for (uint32_t i = 0; i < CUDA_GPUS_MAX; i++)
                if (cuda->gpus[i])
                        is_over = gpu_close_end(cuda->gpus[i], by) && is_over;
        if (!is_over)
                registry_lose(cuda->registry);
        registry_close(cuda->registry, CLOSE_NS_MAX);
        if (is_over)
                cuda_free(cuda);
}

void cuda_init_table(struct cuda *cuda)
{
        cuda->table = (struct kvt__page_device){.version = KVT__PAGE_DEVICE_VERSION,
                                                .context = cuda,
                                                .place = place,
                                                .submit = submit,
                                                .map = map,
                                                .unmap = unmap,
                                                .close = cuda_close};
}

/* ---- sessions ---- */

/* The version is in the same place in all versions: what else there is may not be. */
bool cuda_is_forked(struct kvt_session *session)
{
        const struct kvt__page_host *host = kvt__page_host_of(session);

        return host->version == KVT__PAGE_DEVICE_VERSION && host->is_forked(session);
}

struct cuda *cuda_of(struct kvt_session *session, enum kvt_status *ret_status)
{
        const struct kvt__page_device *device;

        *ret_status = KVT_INVALID;
        if (!session)
                return NULL;
        if (cuda_is_forked(session)) {
                *ret_status = KVT_FORKED;
                return NULL;
        }
        device = kvt__page_host_of(session)->device(session);
        if (!device || device->close != cuda_close)
                return NULL;
        *ret_status = KVT_OK;
        return device->context;
}
