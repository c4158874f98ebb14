// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "cuda/kernel_image.h"

#ifdef KVT_CUDA_KERNELS
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".hidden kvt_cuda_kernels\n"
        ".global kvt_cuda_kernels\n"
        "kvt_cuda_kernels:\n"
        ".incbin \"" KVT_CUDA_KERNELS "\"\n"
        ".byte 0\n"
        ".popsection\n");

extern const char kvt_cuda_kernels[] __attribute__((visibility("hidden")));

const void *kernel_image(void)
{
        return kvt_cuda_kernels;
}
#else
const void *kernel_image(void)
{
        return NULL;
}
#endif
