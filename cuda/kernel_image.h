// SPDX-License-Identifier: Apache-2.0
/* The compiled kernels of kernels.cu, for all architectures, as the driver loads them. */
#pragma once

/* NULL: this build has none, since there was no nvcc. */
const void *kernel_image(void);
