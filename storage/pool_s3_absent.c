// SPDX-License-Identifier: Apache-2.0
#include "storage/pool_s3.h"

int pool_s3_check(const struct pool_s3_options *options, struct why *why)
{
        why_set(why, "this build has no S3: build it with libcurl and expat (Debian packages "
                     "libcurl4-openssl-dev and libexpat1-dev, meson option -Ds3=enabled)");
        return err_raise(-ENOTSUP);
}

int pool_s3_open(struct pool **ret_pool, uv_loop_t *loop, const struct pool_s3_options *options,
                 struct why *why)
{
        return pool_s3_check(options, why);
}
