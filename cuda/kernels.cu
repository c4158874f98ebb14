// SPDX-License-Identifier: Apache-2.0
/* All kernels, as one image. */
#include "cuda/codec_kernels.cu"
#include "cuda/page_kernels.cu"
