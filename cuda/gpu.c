// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "cuda/kernel_image.h"

#define MPS_PIPES  "/tmp/nvidia-mps"
#define RELEASE_NS UINT64_C(1000000000)

/* GPUs that could not be closed; their threads, or the GPU, may still use what they hold. */
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu *left_behind;

static int fail(const struct gpu *gpu, cu_result error, const char *what, struct why *why)
{
        why_set(why, "GPU %u cannot be used: %s: %s", gpu->ordinal, what,
                cuda_error_name(gpu->kit.driver, error));
        return err_raise(error == CU_E_OUT_OF_MEMORY ? -ENOMEM : -ENODEV);
}

/* ---- what the GPU is ---- */

/* Older drivers do not say it: then the pipe of a running MPS says that clients go there. */
static bool is_under_mps(const struct gpu *gpu)
{
        const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
        char path[512];
        int is_enabled = 0;

        if (!gpu->kit.driver->device_attribute(&is_enabled, CU_ATTRIBUTE_MPS_ENABLED, gpu->device))
                return is_enabled;
        snprintf(path, sizeof(path), "%s/control", directory && *directory ? directory : MPS_PIPES);
        return !access(path, F_OK);
}

static int attribute(const struct gpu *gpu, int which)
{
        int value = -1;

        return gpu->kit.driver->device_attribute(&value, which, gpu->device) ? -1 : value;
}

static int find_numa_node(const struct gpu *gpu)
{
        int node = attribute(gpu, CU_ATTRIBUTE_HOST_NUMA_ID);
        char path[128];
        FILE *file;

        if (node >= 0)
                return node;
        snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node",
                 (unsigned)attribute(gpu, CU_ATTRIBUTE_PCI_DOMAIN),
                 (unsigned)attribute(gpu, CU_ATTRIBUTE_PCI_BUS),
                 (unsigned)attribute(gpu, CU_ATTRIBUTE_PCI_DEVICE));
        file = fopen(path, "re");
        if (file) {
                if (fscanf(file, "%d", &node) != 1)
                        node = -1;
                fclose(file);
        }
        return node;
}

static int look_up(struct gpu *gpu, struct why *why)
{
        cu_result error = gpu->kit.driver->device_get(&gpu->device, (int)gpu->ordinal);

        if (error)
                return fail(gpu, error, "cuDeviceGet", why);
        if (is_under_mps(gpu)) {
                why_set(why,
                        "GPU %u is shared by CUDA MPS, whose server would go on copying after "
                        "the death of this process: kvtier cannot be used with it",
                        gpu->ordinal);
                return err_raise(-ENOTSUP);
        }
        if (attribute(gpu, CU_ATTRIBUTE_UNIFIED_ADDRESSING) != 1) {
                why_set(why, "GPU %u has no unified addresses", gpu->ordinal);
                return err_raise(-ENODEV);
        }
        gpu->numa_node = find_numa_node(gpu);
        error = gpu->kit.driver->primary_retain(&gpu->context, gpu->device);
        return error ? fail(gpu, error, "cuDevicePrimaryCtxRetain", why) : 0;
}

/* ---- what is made on it ---- */

/* A GPU or driver that cannot run them is one without. */
static void load_kernels(struct gpu *gpu)
{
        const struct cuda_driver *driver = gpu->kit.driver;
        const void *image = kernel_image();

        gpu->slot_kit = (struct slot_kit){
                .driver = driver,
                .blocks = gpu->kit.blocks,
                .flushes = attribute(gpu, CU_ATTRIBUTE_REMOTE_ORDER) < CU_REMOTE_ORDER_OWNER,
        };
        if (!image || driver->module_load(&gpu->module, image)) {
                gpu->module = NULL;
                return;
        }
        if (driver->module_function(&gpu->slot_kit.move_runs, gpu->module, KVT_CUDA_MOVE_RUNS) ||
            driver->module_function(&gpu->move_few, gpu->module, KVT_CUDA_MOVE_FEW) ||
            driver->module_function(&gpu->slot_kit.encode_tiles, gpu->module,
                                    KVT_CUDA_ENCODE_TILES) ||
            driver->module_function(&gpu->slot_kit.decode_tiles, gpu->module,
                                    KVT_CUDA_DECODE_TILES))
                gpu->slot_kit.move_runs = gpu->move_few = NULL;
}

static bool has_staging(const struct gpu *gpu)
{
        for (unsigned way = 0; way < 2; way++)
                for (unsigned i = 0; i < LANE_SLOTS; i++)
                        if (!gpu->lanes[way].slots[i].slot.staging_bytes)
                                return false;
        return true;
}

bool gpu_converts(const struct gpu *gpu)
{
        return gpu->lanes[KVT_CUDA_STORE].converts && gpu->lanes[KVT_CUDA_LOAD].converts;
}

static uint32_t possible(const struct gpu *gpu)
{
        uint32_t strategies = 1u << KVT_CUDA_PLAIN;

        if (gpu->kit.driver->copy_batch)
                strategies |= 1u << KVT_CUDA_BATCH;
        if (gpu->slot_kit.move_runs)
                strategies |= 1u << KVT_CUDA_KERNEL;
        if (gpu->slot_kit.move_runs && has_staging(gpu))
                strategies |= 1u << KVT_CUDA_STAGED;
        return strategies & gpu->kit.strategies;
}

/* What gathers is short and has to come between the kernels of a model, not behind them. */
static int find_priority(const struct gpu *gpu)
{
        int least = 0, greatest = 0;

        return gpu->kit.driver->stream_priorities(&least, &greatest) ? 0 : greatest;
}

static cu_result make_lanes(struct gpu *gpu)
{
        struct lane_kit kit = {
                .slot = &gpu->slot_kit,
                .context = gpu->context,
                .ordinal = gpu->ordinal,
                .registry = gpu->kit.registry,
                .choice = &gpu->choice,
                .session = gpu->kit.session,
                .host = gpu->kit.host,
                .on_error = gpu->kit.on_error,
                .error_context = gpu->kit.error_context,
                .is_lost = gpu->kit.is_lost,
        };
        uint64_t staging;
        cu_result error;

        gpu->slot_kit.priority = find_priority(gpu);
        staging = gpu->kit.strategies & (1u << KVT_CUDA_STAGED) ? gpu->kit.staging_bytes / 2 : 0;
        error = lane_init(&gpu->lanes[KVT_CUDA_STORE], &kit, true, staging);
        if (error)
                return error;
        error = lane_init(&gpu->lanes[KVT_CUDA_LOAD], &kit, false, staging);
        if (error)
                lane_deinit(&gpu->lanes[KVT_CUDA_STORE], false);
        return error;
}

static void run_measure(void *argument)
{
        measure_run(argument);
}

/* A GPU that is not measured is used by guesses. */
static void start_measure(struct gpu *gpu)
{
        gpu->measure = (struct measure){
                .kit = &gpu->slot_kit,
                .context = gpu->context,
                .choice = &gpu->choice,
                .staging_bytes = gpu->kit.staging_bytes / 2 / LANE_SLOTS,
        };
        gpu->is_measuring =
                gpu->kit.measures && !worker_start(&gpu->measuring, run_measure, &gpu->measure);
}

static int start_lanes(struct gpu *gpu)
{
        int r = lane_start(&gpu->lanes[KVT_CUDA_STORE]);

        if (r)
                return r;
        r = lane_start(&gpu->lanes[KVT_CUDA_LOAD]);
        if (r) {
                /* It has no jobs to wait for. */
                lane_close(&gpu->lanes[KVT_CUDA_STORE], 0);
                lane_join(&gpu->lanes[KVT_CUDA_STORE], INT64_MAX);
        }
        return r;
}

/* With the context current. */
static int make_parts(struct gpu *gpu, struct why *why)
{
        cu_result error;
        int r;

        load_kernels(gpu);
        error = make_lanes(gpu);
        if (error)
                return fail(gpu, error, "streams and buffers", why);
        choice_init(&gpu->choice, possible(gpu));
        r = start_lanes(gpu);
        if (r) {
                why_set(why, "no threads for GPU %u", gpu->ordinal);
                lane_deinit(&gpu->lanes[KVT_CUDA_STORE], false);
                lane_deinit(&gpu->lanes[KVT_CUDA_LOAD], false);
                return r;
        }
        start_measure(gpu);
        return 0;
}

static void release(struct gpu *gpu)
{
        if (gpu->module)
                gpu->kit.driver->module_unload(gpu->module);
}

/* Within its context. */
static int make(struct gpu *gpu, struct why *why)
{
        const struct cuda_driver *driver = gpu->kit.driver;
        int mode, r;
        cu_result error = cuda_enter(driver, gpu->context, &mode);

        if (error)
                return fail(gpu, error, "cuCtxPushCurrent", why);
        r = make_parts(gpu, why);
        if (r)
                release(gpu);
        cuda_leave(driver, mode);
        return r;
}

int gpu_new(struct gpu **ret_gpu, const struct gpu_kit *kit, uint32_t ordinal, struct why *why)
{
        struct gpu *gpu = calloc(1, sizeof(*gpu));
        int r;

        if (!gpu) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        gpu->kit = *kit;
        gpu->ordinal = ordinal;
        r = look_up(gpu, why);
        if (r) {
                free(gpu);
                return r;
        }
        r = make(gpu, why);
        if (r) {
                kit->driver->primary_release(gpu->device);
                free(gpu);
                return r;
        }
        *ret_gpu = gpu;
        return 0;
}

/* ---- the end ---- */

void gpu_close_begin(struct gpu *gpu, uint64_t by_ns)
{
        atomic_store(&gpu->measure.stop, true);
        for (unsigned way = 0; way < 2; way++)
                lane_close(&gpu->lanes[way], by_ns);
}

static void leave_behind(struct gpu *gpu)
{
        pthread_mutex_lock(&left_lock);
        gpu->next = left_behind;
        left_behind = gpu;
        pthread_mutex_unlock(&left_lock);
}

/* What has no end in sight is waited for by these calls: whatever runs on the GPU, of anyone. */
static void run_release(void *argument)
{
        struct gpu *gpu = argument;
        const struct cuda_driver *driver = gpu->kit.driver;
        int mode;

        if (cuda_enter(driver, gpu->context, &mode))
                return;
        for (unsigned way = 0; way < 2; way++)
                lane_deinit(&gpu->lanes[way], false);
        release(gpu);
        cuda_leave(driver, mode);
        driver->primary_release(gpu->device);
        gpu->is_released = true;
}

bool gpu_close_end(struct gpu *gpu, uint64_t by_ns)
{
        bool is_over = !gpu->is_measuring || worker_join(&gpu->measuring, by_ns);

        for (unsigned way = 0; way < 2; way++)
                is_over = lane_join(&gpu->lanes[way], by_ns) && is_over;
        if (!is_over || atomic_load(gpu->kit.is_lost) ||
            worker_start(&gpu->releasing, run_release, gpu) ||
            !worker_join(&gpu->releasing, by_ns + RELEASE_NS) || !gpu->is_released) {
                leave_behind(gpu);
                return false;
        }
        free(gpu);
        return true;
}
