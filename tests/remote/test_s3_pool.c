// SPDX-License-Identifier: Apache-2.0
/* The pool on S3 under the conformance suite: on the cluster of tests/remote/run. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/remote/cluster.h"
#include "tests/unit/storage/pool_conformance.h"

/* Each test has names of its own. */
static void *make_prefix(const struct pool_subject *subject)
{
        return cluster_new_prefix();
}

static struct pool *open_s3(const struct pool_subject *subject, void *made, uv_loop_t *loop)
{
        struct pool_s3_options options =
                strcmp(subject->name, "tls") ? cluster_s3_options() : cluster_s3_tls_options();
        struct why why = {""};
        struct pool *pool = NULL;

        options.prefix = made;
        ck_assert_msg(pool_s3_open(&pool, loop, &options, &why) == 0, "%s", why.text);
        return pool;
}

static void remove_prefix(const struct pool_subject *subject, void *made)
{
        free(made);
}

int main(void)
{
        static const struct pool_subject subjects[] = {
                {.name = "plain",
                 .has_no_hints = true,
                 .make = make_prefix,
                 .open = open_s3,
                 .remove = remove_prefix},
                {.name = "tls",
                 .has_no_hints = true,
                 .make = make_prefix,
                 .open = open_s3,
                 .remove = remove_prefix},
        };

        return pool_conformance_run("remote/s3_pool", subjects, 2);
}
