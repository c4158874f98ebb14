// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"

#define DEFAULT_PATH "libcuda.so.1"

static int find_calls(struct cuda_driver *driver, const char *path, struct why *why)
{
        const char *missing = NULL;

#define FIND(member, symbol, arguments)                                                            \
        *(void **)(&driver->member) = dlsym(driver->library, #symbol);                             \
        missing = driver->member ? missing : #symbol;
        CUDA_DRIVER_CALLS(FIND)
#undef FIND
        if (!missing)
                return 0;
        why_set(why, "%s has no %s: a driver for CUDA 11.4 or later is needed", path, missing);
        return err_raise(-ENOTSUP);
}

/* cuMemcpyBatchAsync changed its arguments in 13.0: the version asked for is the older one. */
static void find_batch(struct cuda_driver *driver)
{
        cu_find_function find = NULL;
        void *function = NULL;

        *(void **)(&find) = dlsym(driver->library, "cuGetProcAddress_v2");
        if (driver->version >= CUDA_DRIVER_VERSION_BATCH && find &&
            !find("cuMemcpyBatchAsync", &function, CUDA_DRIVER_VERSION_BATCH, 0, NULL))
                *(void **)(&driver->copy_batch) = function;
}

static int start(struct cuda_driver *driver, const char *path, struct why *why)
{
        cu_result error = driver->init(0);
        int n = 0;

        if (!error)
                error = driver->driver_version(&driver->version);
        if (!error)
                error = driver->device_count(&n);
        if (error || !n) {
                why_set(why, "%s finds no GPU: %s", path,
                        error ? cuda_error_name(driver, error) : "there is none");
                return err_raise(-ENOENT);
        }
        if (driver->version < CUDA_DRIVER_VERSION_MIN) {
                why_set(why, "%s is for CUDA %d.%d: 11.4 or later is needed", path,
                        driver->version / 1000, driver->version % 1000 / 10);
                return err_raise(-ENOTSUP);
        }
        find_batch(driver);
        *(void **)(&driver->export_range) = dlsym(driver->library, "cuMemGetHandleForAddressRange");
        return 0;
}

int cuda_driver_load(struct cuda_driver *ret_driver, const char *path, struct why *why)
{
        struct cuda_driver driver = {NULL};
        const char *variable = getenv(CUDA_DRIVER_VARIABLE);
        int r;

        if (!path)
                path = variable && *variable ? variable : DEFAULT_PATH;
        driver.library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!driver.library) {
                why_set(why, "no CUDA driver: %s", dlerror());
                return err_raise(-ENOENT);
        }
        r = find_calls(&driver, path, why);
        if (!r)
                r = start(&driver, path, why);
        if (r) {
                dlclose(driver.library);
                return r;
        }
        *ret_driver = driver;
        return 0;
}

cu_result cuda_enter(const struct cuda_driver *driver, cu_context context, int *ret_mode)
{
        cu_result error;

        *ret_mode = CU_CAPTURE_THREAD_LOCAL;
        error = driver->capture_mode(ret_mode);
        if (error)
                return error;
        error = driver->context_push(context);
        if (error)
                driver->capture_mode(ret_mode);
        return error;
}

void cuda_leave(const struct cuda_driver *driver, int mode)
{
        cu_context context;

        driver->context_pop(&context);
        driver->capture_mode(&mode);
}

cu_result cuda_copy_batch(const struct cuda_driver *driver, cu_address *to, cu_address *from,
                          size_t *bytes, size_t n, cu_stream stream)
{
        struct cu_copy_attributes attributes = {.source_order = CU_SOURCE_ORDER_STREAM};
        size_t first = 0, failed = 0;

        return driver->copy_batch(to, from, bytes, n, &attributes, &first, 1, &failed, stream);
}

const char *cuda_error_name(const struct cuda_driver *driver, cu_result error)
{
        static _Thread_local char text[192];
        const char *name = NULL, *words = NULL;

        if (driver->error_name(error, &name) || !name)
                name = "unknown error";
        if (driver->error_text(error, &words) || !words)
                words = "";
        snprintf(text, sizeof(text), "%s (%d)%s%s", name, error, *words ? ": " : "", words);
        return text;
}

bool cuda_error_loses_context(cu_result error)
{
        switch (error) {
        case CU_E_DEINITIALIZED:
        case CU_E_ECC:
        case CU_E_NVLINK:
        case CU_E_CONTAINED:
        case CU_E_ILLEGAL_ADDRESS:
        case CU_E_LAUNCH_TIMEOUT:
        case CU_E_CONTEXT_IS_DESTROYED:
        case CU_E_ASSERT:
        case CU_E_UNKNOWN:
                return true;
        default:
                return error >= CU_E_HARDWARE_STACK && error <= CU_E_TENSOR_MEMORY_LEAK &&
                       error != CU_E_COOPERATIVE_TOO_LARGE;
        }
}
