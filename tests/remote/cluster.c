// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "tests/remote/cluster.h"

static const char *need(const char *name)
{
        const char *value = getenv(name);

        if (value)
                return value;
        fprintf(stderr, "%s is not set: tests/remote/run sets it\n", name);
        exit(EXIT_FAILURE);
}

struct pool_rados_options cluster_rados_options(void)
{
        return (struct pool_rados_options){
                .config_path = need("KVTIER_TEST_CEPH_CONF"),
                .pool = "kv",
        };
}

struct pool_s3_options cluster_s3_options(void)
{
        return (struct pool_s3_options){
                .endpoint = need("KVTIER_TEST_S3_ENDPOINT"),
                .bucket = "kvtier",
                .credentials_path = need("KVTIER_TEST_S3_CREDENTIALS"),
                .path_style = true,
                .allow_http = true,
        };
}
