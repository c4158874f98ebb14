// SPDX-License-Identifier: Apache-2.0
/*
 * The device of a session: what kvtier-cuda.h offers, and the table that the client calls
 * (client/page_device.h). GPUs are added as options and page maps name them, and stay until the
 * end, so that a job finds its own by a number and without a lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/copy.h"
#include "cuda/gpu.h"
#include "cuda/kvtier-cuda.h"
#include "cuda/registry.h"

#define GPUS_MAX       64u
#define BLOCKS         16u
#define BLOCKS_MAX     1024u
#define STAGING_BYTES  (UINT64_C(64) << 20)
#define STAGING_MIN    (UINT64_C(1) << 20)
#define PIECE_BYTES    (UINT64_C(128) << 20)
#define PIECE_MIN      (UINT64_C(2) << 20)
#define ALL_STRATEGIES ((1u << KVT_CUDA_STRATEGIES) - 1)
#define ALL_FLAGS      (KVT_CUDA_NO_MEASURE | KVT_CUDA_NO_REGISTER)
#define CLOSE_NS_MAX   UINT64_C(2000000000)
#define INFO_BYTES_MAX 4096u

struct cuda {
        struct kvt__page_device table;
        struct kvt_session *session;
        const struct kvt__page_host *host;
        struct cuda_driver driver;
        struct kvt_cuda_options options; /* with defaults filled in */
        struct registry *registry;
        atomic_bool is_lost;
        _Atomic(struct gpu *) gpus[GPUS_MAX]; /* by ordinal */
        pthread_mutex_t lock;                 /* for adding GPUs, and the error */
        pthread_mutex_t error_lock;
        char last_error[256];
};

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void on_error(void *context, cu_result error, bool is_lost)
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

static void on_refused(void *context, cu_result error)
{
        on_error(context, error, false);
}

/* ---- GPUs ---- */

static struct gpu *find_gpu(struct cuda *cuda, uint32_t ordinal)
{
        return ordinal < GPUS_MAX ? atomic_load_explicit(&cuda->gpus[ordinal], memory_order_acquire)
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
                .on_error = on_error,
                .error_context = cuda,
                .is_lost = &cuda->is_lost,
        };
        struct gpu *gpu;
        int r;

        if (find_gpu(cuda, ordinal))
                return 0;
        r = gpu_new(&gpu, &kit, ordinal, why);
        if (!r)
                atomic_store_explicit(&cuda->gpus[ordinal], gpu, memory_order_release);
        return r;
}

/* 0 when it is there already. */
static int add_gpu(struct cuda *cuda, uint32_t ordinal, struct why *why)
{
        int r;

        if (ordinal >= GPUS_MAX) {
                why_set(why, "GPU %u: only ordinals below %u", ordinal, GPUS_MAX);
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
        r = add_gpu(cuda, (uint32_t)ordinal, why);
        *ret_place = (uint32_t)ordinal;
        return r ? r : 1;
}

static void submit(void *context, struct kvt__page_job *job)
{
        struct gpu *gpu = find_gpu(context, job->place);

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

static void cuda_free(struct cuda *cuda)
{
        pthread_mutex_destroy(&cuda->lock);
        pthread_mutex_destroy(&cuda->error_lock);
        free(cuda);
}

/* What cannot be closed may still use the struct: it stays, and whatever it points to. */
static void close_all(void *context)
{
        struct cuda *cuda = context;
        uint64_t by = now_ns() + CLOSE_NS_MAX;
        bool is_over = true;

        for (uint32_t i = 0; i < GPUS_MAX; i++)
                if (cuda->gpus[i])
                        gpu_close_begin(cuda->gpus[i], by);
        for (uint32_t i = 0; i < GPUS_MAX; i++)
                if (cuda->gpus[i])
                        is_over = gpu_close_end(cuda->gpus[i], by) && is_over;
        if (!is_over)
                registry_lose(cuda->registry);
        registry_close(cuda->registry, CLOSE_NS_MAX);
        if (is_over)
                cuda_free(cuda);
}

/* ---- register ---- */

static enum kvt_status status_of(int r)
{
        switch (r) {
        case 0:
                return KVT_OK;
        case -ENOMEM:
                return KVT_NO_MEMORY;
        case -ENOTSUP:
        case -EPROTO:
                return KVT_UNSUPPORTED;
        case -EEXIST:
                return KVT_REFUSED;
        case -EINVAL:
                return KVT_INVALID;
        default:
                return KVT_UNAVAILABLE;
        }
}

static int check_options(const struct kvt_cuda_options *options, struct why *why)
{
        const char *fault = NULL;

        if (options->flags & ~ALL_FLAGS || options->strategies & ~ALL_STRATEGIES)
                fault = "flags or strategies have unknown bits";
        else if (!options->devices != !options->n_devices || options->n_devices > GPUS_MAX)
                fault = "devices and n_devices do not fit together";
        else if (options->piece_bytes < PIECE_MIN || options->piece_bytes % PIECE_MIN)
                fault = "piece_bytes is not a multiple of 2 MiB";
        else if (options->blocks > BLOCKS_MAX)
                fault = "blocks is above 1024";
        else if (options->staging_bytes < STAGING_MIN)
                fault = "staging_bytes is below 1 MiB";
        why_set(why, "%s", fault ? fault : "");
        return fault ? err_raise(-EINVAL) : 0;
}

/* A struct of an older version is shorter; what it lacks is zero. */
static int take_options(struct kvt_cuda_options *ret_options, const struct kvt_cuda_options *given,
                        struct why *why)
{
        struct kvt_cuda_options options = {0};

        if (given && (given->size < sizeof(given->size) || given->size > sizeof(options))) {
                why_set(why,
                        "kvt_cuda_options.size is not set, or the struct is of a newer version");
                return err_raise(-EINVAL);
        }
        if (given)
                memcpy(&options, given, given->size);
        options.strategies = options.strategies ? options.strategies : ALL_STRATEGIES;
        options.blocks = options.blocks ? options.blocks : BLOCKS;
        options.staging_bytes = options.staging_bytes ? options.staging_bytes : STAGING_BYTES;
        options.piece_bytes = options.piece_bytes ? options.piece_bytes : PIECE_BYTES;
        *ret_options = options;
        return check_options(&options, why);
}

/* The first GPU: by the options, or the caller's context, or 0. */
static uint32_t first_ordinal(struct cuda *cuda)
{
        cu_context context = NULL;
        cu_device device = 0;

        if (cuda->options.devices)
                return cuda->options.devices[0];
        if (cuda->driver.context_current(&context) || !context ||
            cuda->driver.context_device(&device))
                return 0;
        /* A device's handle is its ordinal. */
        return (uint32_t)device;
}

static int open_gpus(struct cuda *cuda, struct why *why)
{
        uint32_t first = first_ordinal(cuda);
        int r = add_gpu(cuda, first, why);

        for (uint32_t i = 1; i < cuda->options.n_devices && !r; i++)
                r = add_gpu(cuda, cuda->options.devices[i], why);
        if (!r)
                r = registry_start(cuda->registry, cuda->gpus[first]->device,
                                   cuda->gpus[first]->numa_node);
        return r;
}

static int make_registry(struct cuda *cuda)
{
        struct registry_options options = {
                .driver = &cuda->driver,
                .let_go = cuda->host->let_go,
                .on_refused = on_refused,
                .context = cuda,
                .piece_bytes = cuda->options.piece_bytes,
                .leaves_unregistered = cuda->options.flags & KVT_CUDA_NO_REGISTER,
        };

        return registry_new(&cuda->registry, &options);
}

static int fill_in(struct cuda *cuda, const struct kvt_cuda_options *given, struct why *why)
{
        int r = take_options(&cuda->options, given, why);

        if (!r)
                r = cuda_driver_load(&cuda->driver, cuda->options.driver, why);
        return r ? r : make_registry(cuda);
}

static int cuda_new(struct cuda **ret_cuda, struct kvt_session *session,
                    const struct kvt_cuda_options *given, struct why *why)
{
        struct cuda *cuda = calloc(1, sizeof(*cuda));
        int r;

        if (!cuda) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        cuda->session = session;
        cuda->host = kvt__page_host_of(session);
        cuda->table = (struct kvt__page_device){.version = KVT__PAGE_DEVICE_VERSION,
                                                .context = cuda,
                                                .place = place,
                                                .submit = submit,
                                                .map = map,
                                                .unmap = unmap,
                                                .close = close_all};
        pthread_mutex_init(&cuda->lock, NULL);
        pthread_mutex_init(&cuda->error_lock, NULL);
        r = fill_in(cuda, given, why);
        if (r) {
                cuda_free(cuda);
                return r;
        }
        r = open_gpus(cuda, why);
        if (r) {
                close_all(cuda);
                return r;
        }
        if (gpu_converts(cuda->gpus[first_ordinal(cuda)]))
                cuda->table.codecs = 1u << CODEC_FP8_TILE128 | 1u << CODEC_MXFP8;
        /* The caller's list need not stay. */
        cuda->options.devices = NULL;
        *ret_cuda = cuda;
        return 0;
}

static int register_session(struct kvt_session *session, const struct kvt_cuda_options *options,
                            struct why *why)
{
        const struct kvt__page_host *host = kvt__page_host_of(session);
        struct cuda *cuda = NULL;
        int r;

        if (host->version != KVT__PAGE_DEVICE_VERSION) {
                why_set(why, "libkvtier has devices of version %u, libkvtier-cuda is of %u",
                        host->version, KVT__PAGE_DEVICE_VERSION);
                return err_raise(-EPROTO);
        }
        if (host->device(session)) {
                why_set(why, "the session has a device already");
                return err_raise(-EEXIST);
        }
        r = cuda_new(&cuda, session, options, why);
        if (r)
                return r;
        r = host->set_device(session, &cuda->table, why);
        if (r)
                close_all(cuda);
        return r;
}

/* The version is in the same place in all versions: what else there is may not be. */
static bool is_forked(struct kvt_session *session)
{
        const struct kvt__page_host *host = kvt__page_host_of(session);

        return host->version == KVT__PAGE_DEVICE_VERSION && host->is_forked(session);
}

enum kvt_status kvt_cuda_register(struct kvt_session *session,
                                  const struct kvt_cuda_options *options, char *ret_why,
                                  size_t why_bytes)
{
        struct why why = {""};
        enum kvt_status status = KVT_INVALID;

        if (session && is_forked(session))
                status = KVT_FORKED;
        else if (session)
                status = status_of(register_session(session, options, &why));
        else
                why_set(&why, "an argument is missing");
        if (ret_why && why_bytes)
                snprintf(ret_why, why_bytes, "%s", why.text);
        return status;
}

/* NULL with a status: not ours to look at. */
static struct cuda *cuda_of(struct kvt_session *session, enum kvt_status *ret_status)
{
        const struct kvt__page_device *device;

        *ret_status = KVT_INVALID;
        if (!session)
                return NULL;
        if (is_forked(session)) {
                *ret_status = KVT_FORKED;
                return NULL;
        }
        device = kvt__page_host_of(session)->device(session);
        if (!device || device->close != close_all)
                return NULL;
        *ret_status = KVT_OK;
        return device->context;
}

void kvt_cuda_unregister(struct kvt_session *session)
{
        enum kvt_status status;

        if (cuda_of(session, &status))
                kvt__page_host_of(session)->set_device(session, NULL, NULL);
}

/* ---- what there is to see ---- */

static void count_gpu(struct gpu *gpu, struct kvt_cuda_info *info)
{
        struct lane_counts counts;

        info->n_devices++;
        info->has_kernels = gpu->move_few != NULL;
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
        for (uint32_t i = 0; i < GPUS_MAX; i++)
                if (find_gpu(cuda, i))
                        count_gpu(find_gpu(cuda, i), &info);
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
        struct gpu *gpu = cuda ? find_gpu(cuda, device) : NULL;

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

/* ---- copies on the caller's stream ---- */

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

static enum kvt_status copy_on(struct cuda *cuda, struct gpu *gpu, const struct kvt_cuda_copy *copy,
                               const struct kvt__page_list *list, cu_stream stream)
{
        int mode;
        cu_result error = cuda_enter(&cuda->driver, gpu->context, &mode);

        if (!error) {
                error = copy_list(gpu, list, copy->is_store, pick(gpu, copy, list), stream);
                cuda_leave(&cuda->driver, mode);
        }
        if (error)
                on_error(cuda, error, cuda_error_loses_context(error));
        return error ? KVT_IO_ERROR : KVT_OK;
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
        if (!is_list(group, copy) || !find_gpu(cuda, group->place))
                return KVT_INVALID;
        if (group->codec)
                return KVT_UNSUPPORTED;
        if (atomic_load(&cuda->is_lost))
                return KVT_UNAVAILABLE;
        list = (struct kvt__page_list){.group = group,
                                       .slots = copy->slots,
                                       .n_slots = copy->n_slots,
                                       .segments = copy->segments};
        return copy_on(cuda, find_gpu(cuda, group->place), copy, &list, stream);
}
