// SPDX-License-Identifier: Apache-2.0
/*
 * A pool (pool.h) on Ceph RADOS, by librados. Bundles lie in one namespace of one RADOS
 * pool; what is listed lies where listing costs what was asked for, not a walk over all.
 */
#pragma once

#include <uv.h>

#include "base/error.h"
#include "storage/pool.h"

struct pool_rados_options {
        const char *config_path;  /* ceph.conf; NULL: where librados looks */
        const char *user;         /* "client.kvtier"; NULL: client.admin */
        const char *keyring_path; /* NULL: what the config says. Never a key itself. */
        const char *pool;         /* exists */
        const char *prefix;       /* of all names; nodes that share it share the pool */
};

/*
 * Connects in the background: a cluster that is out of reach is no failure here. 0,
 * -ENOTSUP (a build without librados) or another negative errno for options that can never
 * be right, with @why filled.
 */
int pool_rados_open(struct pool **ret_pool, uv_loop_t *loop,
                    const struct pool_rados_options *options, struct why *why);
