// SPDX-License-Identifier: Apache-2.0
/* The pool on RADOS under the conformance suite: on the cluster of tests/remote/run. */
#include <check.h>
#include <stdlib.h>

#include "tests/remote/cluster.h"
#include "tests/unit/storage/pool_conformance.h"

/* Each test has names of its own. */
static void *make_prefix(const struct pool_subject *subject)
{
        return cluster_new_prefix();
}

static struct pool *open_rados(const struct pool_subject *subject, void *made, uv_loop_t *loop)
{
        struct pool_rados_options options = cluster_rados_options();
        struct why why = {""};
        struct pool *pool = NULL;

        options.prefix = made;
        ck_assert_msg(pool_rados_open(&pool, loop, &options, &why) == 0, "%s", why.text);
        return pool;
}

static void remove_prefix(const struct pool_subject *subject, void *made)
{
        free(made);
}

int main(void)
{
        static const struct pool_subject subject = {
                .name = "rados", .make = make_prefix, .open = open_rados, .remove = remove_prefix};

        return pool_conformance_run("remote/rados_pool", &subject, 1);
}
