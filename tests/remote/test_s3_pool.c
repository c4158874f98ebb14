// SPDX-License-Identifier: Apache-2.0
/* The pool on S3 under the conformance suite: on the cluster of tests/remote/run. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/remote/cluster.h"
#include "tests/unit/storage/pool_conformance.h"

/* Each test has names of its own. */
static void *make_prefix(const struct pool_subject *subject)
{
        static uint32_t n;
        char *prefix = calloc(1, 64);

        ck_assert_ptr_nonnull(prefix);
        snprintf(prefix, 64, "conformance/%d.%u", (int)getpid(), n++);
        return prefix;
}

static struct pool *open_s3(const struct pool_subject *subject, void *made, uv_loop_t *loop)
{
        struct pool_s3_options options = cluster_s3_options();
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
        static const struct pool_subject subject = {
                .name = "s3", .make = make_prefix, .open = open_s3, .remove = remove_prefix};

        return pool_conformance_run("remote/s3_pool", &subject, 1);
}
