// SPDX-License-Identifier: Apache-2.0
/* Giving a session its device, and taking it away. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"

#define BLOCKS         16u
#define BLOCKS_MAX     1024u
#define STAGING_BYTES  (UINT64_C(64) << 20)
#define STAGING_MIN    (UINT64_C(1) << 20)
#define PIECE_BYTES    (UINT64_C(128) << 20)
#define PIECE_MIN      (UINT64_C(2) << 20)
#define ALL_STRATEGIES ((1u << KVT_CUDA_STRATEGIES) - 1)
#define ALL_FLAGS      (KVT_CUDA_NO_MEASURE | KVT_CUDA_NO_REGISTER)

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
        else if (!options->devices != !options->n_devices || options->n_devices > CUDA_GPUS_MAX)
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

static void on_refused(void *context, cu_result error)
{
        cuda_on_error(context, error, false);
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
        int r = cuda_add_gpu(cuda, first, why);

        for (uint32_t i = 1; i < cuda->options.n_devices && !r; i++)
                r = cuda_add_gpu(cuda, cuda->options.devices[i], why);
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
        cuda_init_table(cuda);
        pthread_mutex_init(&cuda->lock, NULL);
        pthread_mutex_init(&cuda->error_lock, NULL);
        r = fill_in(cuda, given, why);
        if (r) {
                cuda_free(cuda);
                return r;
        }
        r = open_gpus(cuda, why);
        if (r) {
                cuda_close(cuda);
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
                cuda_close(cuda);
        return r;
}

enum kvt_status kvt_cuda_register(struct kvt_session *session,
                                  const struct kvt_cuda_options *options, char *ret_why,
                                  size_t why_bytes)
{
        struct why why = {""};
        enum kvt_status status = KVT_INVALID;

        if (session && cuda_is_forked(session))
                status = KVT_FORKED;
        else if (session)
                status = status_of(register_session(session, options, &why));
        else
                why_set(&why, "an argument is missing");
        if (ret_why && why_bytes)
                snprintf(ret_why, why_bytes, "%s", why.text);
        return status;
}

void kvt_cuda_unregister(struct kvt_session *session)
{
        enum kvt_status status;

        if (cuda_of(session, &status))
                kvt__page_host_of(session)->set_device(session, NULL, NULL);
}
