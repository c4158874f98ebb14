// SPDX-License-Identifier: Apache-2.0
/*
 * A pool (pool.h) on Ceph RADOS, by librados.
 *
 * All objects lie in one namespace of one RADOS pool. RADOS lists only by walking a whole
 * pool, so that names are kept beside the objects as well: as omap keys of one directory
 * object a kind. A name enters the directory while its object is written (a put is done when
 * both are) and leaves it after the object is gone; list() asks for each object, so that a
 * name that was left behind by a crash is not seen. The pool must be replicated, as others
 * have no omap.
 * Ceph warns about a directory of more than 200,000 names (LARGE_OMAP_OBJECTS).
 *
 * A request that is late is cancelled in librados and ends when librados has let go of it,
 * which takes no answer from the cluster: nothing is copied for the sake of late replies.
 * Hints are notifies on a watched object.
 */
#pragma once

#include <uv.h>

#include "base/error.h"
#include "storage/pool.h"

struct pool_rados_options {
        const char *config_path;  /* ceph.conf; NULL: where librados looks */
        const char *user;         /* "client.kvtier"; NULL: "client.admin" */
        const char *keyring_path; /* NULL: what the config says. Never a key itself. */
        const char *pool;         /* exists */
        const char *prefix;       /* the namespace; nodes that share it share the pool */
};

/* Are the options right, as far as this machine alone can tell? As pool_rados_open(). */
int pool_rados_check(const struct pool_rados_options *options, struct why *why);

/*
 * Connects in the background: a cluster that is out of reach is no failure here. 0,
 * -ENOTSUP (a build without librados) or another negative errno for options that can never
 * be right, with @why filled.
 */
int pool_rados_open(struct pool **ret_pool, uv_loop_t *loop,
                    const struct pool_rados_options *options, struct why *why);
