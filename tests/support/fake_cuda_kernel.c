// SPDX-License-Identifier: Apache-2.0
/*
 * The fake driver's modules and kernels: what the kernels of cuda/page_kernels.cu do, done by
 * the host when their turn comes in the stream. An image is not looked at; a module has all of
 * the kernels. And the driver's way of finding its functions.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/codec_kernels.h"
#include "cuda/page_kernels.h"
#include "proto/codec.h"
#include "tests/support/fake_cuda_state.h"

/* ---- kernels ---- */

/* How many of @bytes lie in the same range; 0: nothing that a GPU could reach. */
static uint64_t together(uint64_t address, uint64_t bytes, bool *ret_is_device)
{
        const struct fake_range *range = fake_range_of(address, 1);
        uint64_t left = range ? range->bytes - (address - range->base) : 0;

        *ret_is_device = range && range->is_device;
        return left < bytes ? left : bytes;
}

static bool move_run(struct kvt_cuda_run run)
{
        while (run.bytes) {
                bool to_device, from_device;
                uint64_t n = together(run.to, run.bytes, &to_device);

                n = together(run.from, n, &from_device);
                if (!n)
                        return false;
                memmove(fake_reach(run.to, n), fake_reach(run.from, n), n);
                if (from_device && !to_device)
                        fake.figures.to_host_bytes += n;
                if (to_device && !from_device)
                        fake.figures.to_device_bytes += n;
                run.from += n;
                run.to += n;
                run.bytes -= n;
        }
        return true;
}

static bool move_few(const struct fake_launch *launch)
{
        struct kvt_cuda_few few;

        memcpy(&few, launch->parameters, sizeof(few));
        if (few.n_runs > KVT_CUDA_FEW_MAX)
                fake_misuse("a kernel is given more runs than it has room for");
        for (uint32_t i = 0; i < few.n_runs; i++)
                if (!move_run(few.runs[i]))
                        return false;
        return true;
}

static bool move_runs(const struct fake_launch *launch)
{
        uint64_t address;
        uint32_t n;

        memcpy(&address, launch->parameters, sizeof(address));
        memcpy(&n, launch->parameters + sizeof(address), sizeof(n));
        for (uint32_t i = 0; i < n; i++) {
                struct kvt_cuda_run run;
                uint8_t *at = fake_reach(address + i * sizeof(run), sizeof(run));

                if (!at)
                        return false;
                memcpy(&run, at, sizeof(run));
                if (!move_run(run))
                        return false;
        }
        return true;
}

/* Both sides of a run have to be the device's. */
static bool convert_run(const struct kvt_cuda_tiles *run, bool is_encode)
{
        uint8_t codec = (uint8_t)run->codec;
        uint8_t *page = fake_reach(run->page, (uint64_t)run->n_tiles * codec_tile_bytes(codec));
        uint8_t *codes = fake_reach(run->codes, (uint64_t)run->n_tiles * codec_tile_numbers(codec));
        uint64_t n_scales = (uint64_t)run->n_tiles * codec_scale_bytes(codec);
        uint8_t *scales = fake_reach(run->scales, n_scales + run->pad_bytes);

        if (!codec || codec >= CODEC_COUNT || run->page % CODEC_NUMBER_BYTES || run->codes % 8 ||
            run->scales % codec_scale_bytes(codec))
                fake_misuse("a kernel is given tiles that it cannot read");
        if (!page || !codes || !scales)
                return false;
        if (!is_encode) {
                codec_decode(codec, codes, scales, run->n_tiles, page);
                return true;
        }
        codec_encode(codec, page, run->n_tiles, codes, scales);
        memset(scales + n_scales, 0, run->pad_bytes);
        return true;
}

static bool convert_tiles(const struct fake_launch *launch, bool is_encode)
{
        uint64_t address;
        uint32_t n;

        memcpy(&address, launch->parameters, sizeof(address));
        memcpy(&n, launch->parameters + sizeof(address), sizeof(n));
        for (uint32_t i = 0; i < n; i++) {
                struct kvt_cuda_tiles run;
                uint8_t *at = fake_reach(address + i * sizeof(run), sizeof(run));

                if (!at)
                        return false;
                memcpy(&run, at, sizeof(run));
                if (!convert_run(&run, is_encode))
                        return false;
        }
        return true;
}

static bool encode_tiles(const struct fake_launch *launch)
{
        return convert_tiles(launch, true);
}

static bool decode_tiles(const struct fake_launch *launch)
{
        return convert_tiles(launch, false);
}

static const struct fake_kernel kernels[] = {
        {KVT_CUDA_MOVE_RUNS, {8, 4}, move_runs},
        {KVT_CUDA_MOVE_FEW, {sizeof(struct kvt_cuda_few)}, move_few},
        {KVT_CUDA_ENCODE_TILES, {8, 4}, encode_tiles},
        {KVT_CUDA_DECODE_TILES, {8, 4}, decode_tiles},
};

const struct fake_kernel *fake_kernel_find(const char *name)
{
        for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
                if (!strcmp(kernels[i].name, name))
                        return &kernels[i];
        return NULL;
}

/* ---- modules ---- */

/* A lost context does not let its modules go. */
static char all_modules;

CU(cuModuleLoadData, (void **ret_module, const void *image))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_module = &all_modules;
        fake.figures.n_modules++;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuModuleUnload, (void *module))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        fake.figures.n_modules--;
        return fake_leave(FAKE_CUDA_OK);
}

CU(cuModuleGetFunction, (const void **ret_function, void *module, const char *name))
{
        int result = fake_enter(__func__, FAKE_CONTEXT);

        if (result)
                return result;
        *ret_function = fake_kernel_find(name);
        return fake_leave(*ret_function ? FAKE_CUDA_OK : FAKE_CUDA_NOT_FOUND);
}

/* The driver copies the arguments before it returns. */
static struct fake_launch *pack(const struct fake_kernel *kernel, void **arguments)
{
        size_t bytes = 0, at = 0;
        struct fake_launch *launch;

        for (size_t i = 0; kernel->parameters[i]; i++)
                bytes += kernel->parameters[i];
        launch = calloc(1, sizeof(*launch) + bytes);
        if (!launch)
                fake_misuse("no memory");
        launch->kernel = kernel;
        for (size_t i = 0; kernel->parameters[i]; i++) {
                memcpy(launch->parameters + at, arguments[i], kernel->parameters[i]);
                at += kernel->parameters[i];
        }
        return launch;
}

CU(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                    void *stream, void **arguments, void **extra))
{
        unsigned blocks = grid_x * grid_y * grid_z, threads = block_x * block_y * block_z;
        int result = fake_enter(__func__, FAKE_CONTEXT);
        struct fake_operation *operation;

        if (result)
                return result;
        if (!blocks || !threads || threads > 1024 || threads % 32)
                return fake_leave(FAKE_CUDA_INVALID_VALUE);
        if (fake_stream_of(stream)->context != fake_current())
                return fake_leave(FAKE_CUDA_INVALID_HANDLE);
        operation = fake_operation_new(FAKE_KERNEL, 0);
        operation->launch = pack(function, arguments);
        operation->launch->blocks = blocks;
        operation->launch->threads = threads;
        if (fake.figures.blocks_max < blocks)
                fake.figures.blocks_max = blocks;
        fake_submit(fake_stream_of(stream), operation);
        return fake_leave(FAKE_CUDA_OK);
}

/* ---- functions by name ---- */

/* As of @version, which decides for functions that have changed. */
CU(cuGetProcAddress_v2,
   (const char *name, void **ret_function, int version, uint64_t flags, int *ret_status))
{
        static const char *const suffixes[] = {"_v2", ""};
        bool is_old = !strcmp(name, "cuMemcpyBatchAsync") && version < 13000;
        void *self;
        Dl_info info;

        *ret_function = NULL;
        if (dladdr(&fake, &info) && (self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD))) {
                for (size_t i = is_old; i < 2 && !*ret_function && !fake_is_hidden(name); i++) {
                        char symbol[80];

                        snprintf(symbol, sizeof(symbol), "%s%s", name, suffixes[i]);
                        *ret_function = dlsym(self, symbol);
                }
                dlclose(self);
        }
        if (ret_status)
                *ret_status = *ret_function ? 0 : 1;
        return *ret_function ? FAKE_CUDA_OK : FAKE_CUDA_NOT_FOUND;
}
