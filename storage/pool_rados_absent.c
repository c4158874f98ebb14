// SPDX-License-Identifier: Apache-2.0
#include "storage/pool_rados.h"

int pool_rados_check(const struct pool_rados_options *options, struct why *why)
{
        why_set(why,
                "this build has no RADOS: build it with librados (Debian package librados-dev, "
                "meson option -Drados=enabled)");
        return err_raise(-ENOTSUP);
}

int pool_rados_open(struct pool **ret_pool, uv_loop_t *loop,
                    const struct pool_rados_options *options, struct why *why)
{
        return pool_rados_check(options, why);
}
