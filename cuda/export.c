// SPDX-License-Identifier: Apache-2.0
/* kvt_cuda_export(): memory of a GPU as a dma-buf, for the buffer of a remote session. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "cuda/kvtier-cuda.h"

static int fail(const struct cuda_driver *driver, cu_result error, const char *what,
                struct why *why)
{
        why_set(why, "%s: %s", what, cuda_error_name(driver, error));
        return err_raise(error == CU_E_NOT_SUPPORTED ? -ENOTSUP : -ENODEV);
}

static int attribute(const struct cuda_driver *driver, int which, cu_device device)
{
        int value = 0;

        return driver->device_attribute(&value, which, device) ? 0 : value;
}

/* Which GPU has it, and that this one can do it. */
static int find_device(const struct cuda_driver *driver, cu_address base, cu_device *ret_device,
                       struct why *why)
{
        uint32_t type = 0, is_managed = 0;
        int ordinal = -1;
        cu_result error;

        if (driver->pointer_attribute(&type, CU_POINTER_MEMORY_TYPE, base) ||
            type != CU_MEMORY_DEVICE ||
            (!driver->pointer_attribute(&is_managed, CU_POINTER_IS_MANAGED, base) && is_managed) ||
            driver->pointer_attribute(&ordinal, CU_POINTER_ORDINAL, base)) {
                why_set(why, "base is not in the memory of a GPU");
                return err_raise(-EINVAL);
        }
        error = driver->device_get(ret_device, ordinal);
        if (error)
                return fail(driver, error, "cuDeviceGet", why);
        if (!driver->export_range || !attribute(driver, CU_ATTRIBUTE_DMABUF, *ret_device)) {
                why_set(why,
                        "the driver of GPU %d cannot export its memory (dma-buf): it takes CUDA "
                        "11.7, Linux 5.12 and the open kernel modules",
                        ordinal);
                return err_raise(-ENOTSUP);
        }
        if (attribute(driver, CU_ATTRIBUTE_REMOTE_ORDER, *ret_device) < CU_REMOTE_ORDER_OWNER &&
            !(attribute(driver, CU_ATTRIBUTE_REMOTE_FLUSH, *ret_device) & CU_REMOTE_FLUSH_HOST)) {
                why_set(why, "GPU %d cannot tell when it sees what an RDMA device has written",
                        ordinal);
                return err_raise(-ENOTSUP);
        }
        return 0;
}

/* Whole pages of the host's around it: that is what the driver exports. */
static int export_pages(const struct cuda_driver *driver, cu_address base, uint64_t bytes,
                        struct kvt_dmabuf *ret_dmabuf, struct why *why)
{
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        cu_address first = base / page * page, end = (base + bytes + page - 1) / page * page;
        cu_address start = 0;
        size_t length = 0;
        int fd = -1;
        cu_result error = driver->address_range(&start, &length, base);

        if (error)
                return fail(driver, error, "cuMemGetAddressRange", why);
        if (base - start > length || bytes > length - (base - start)) {
                why_set(why, "base and bytes leave the allocation");
                return err_raise(-EINVAL);
        }
        error = driver->export_range(&fd, first, end - first, CU_RANGE_DMABUF, 0);
        if (error)
                return fail(driver, error, "cuMemGetHandleForAddressRange", why);
        /* The driver's own flags are not told. */
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        *ret_dmabuf = (struct kvt_dmabuf){
                .size = sizeof(*ret_dmabuf),
                .base = (void *)(uintptr_t)base,
                .bytes = bytes,
                .offset = base - first,
                .fd = fd,
        };
        return 0;
}

static int export(const char *path, cu_address base, uint64_t bytes, struct kvt_dmabuf *ret_dmabuf,
                  struct why *why)
{
        struct cuda_driver driver;
        cu_context context;
        cu_device device;
        cu_result error;
        int mode, r = cuda_driver_load(&driver, path, why);

        if (!r)
                r = find_device(&driver, base, &device, why);
        if (r)
                return r;
        error = driver.primary_retain(&context, device);
        if (error)
                return fail(&driver, error, "cuDevicePrimaryCtxRetain", why);
        error = cuda_enter(&driver, context, &mode);
        if (error) {
                r = fail(&driver, error, "cuCtxPushCurrent", why);
        } else {
                r = export_pages(&driver, base, bytes, ret_dmabuf, why);
                cuda_leave(&driver, mode);
        }
        driver.primary_release(device);
        return r;
}

static enum kvt_status status_of(int r)
{
        switch (r) {
        case 0:
                return KVT_OK;
        case -ENOTSUP:
                return KVT_UNSUPPORTED;
        case -EINVAL:
                return KVT_INVALID;
        default:
                return KVT_UNAVAILABLE;
        }
}

enum kvt_status kvt_cuda_export(const char *driver, void *base, uint64_t bytes,
                                struct kvt_dmabuf *ret_dmabuf, char *ret_why, size_t why_bytes)
{
        cu_address address = (uintptr_t)base;
        struct why why = {""};
        enum kvt_status status = KVT_INVALID;

        if (!base || !bytes || bytes > UINT64_MAX - address || !ret_dmabuf)
                why_set(&why, "an argument is missing, or bytes is too large");
        else
                status = status_of(export(driver, address, bytes, ret_dmabuf, &why));
        if (ret_why && why_bytes)
                snprintf(ret_why, why_bytes, "%s", why.text);
        return status;
}
