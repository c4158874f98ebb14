// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

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
        static char keyring[512];

        snprintf(keyring, sizeof(keyring), "%s/kvtier.keyring", need("KVTIER_TEST_CLUSTER"));
        return (struct pool_rados_options){
                .config_path = need("KVTIER_TEST_CEPH_CONF"),
                .user = "client.kvtier",
                .keyring_path = keyring,
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

struct pool_s3_options cluster_s3_tls_options(void)
{
        struct pool_s3_options options = cluster_s3_options();

        options.endpoint = need("KVTIER_TEST_S3_TLS_ENDPOINT");
        options.ca_path = need("KVTIER_TEST_S3_CA");
        options.allow_http = false;
        return options;
}

void cluster_shell(const char *format, ...)
{
        char command[1024], line[1600];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(command, sizeof(command), format, arguments);
        va_end(arguments);
        snprintf(line, sizeof(line), "exec >>%s/log 2>&1; cd %s && export CEPH_CONF=%s && { %s; }",
                 need("KVTIER_TEST_CLUSTER"), need("KVTIER_TEST_CLUSTER"),
                 need("KVTIER_TEST_CEPH_CONF"), command);
        ck_assert_msg(system(line) == 0, "failed: %s", command);
}

char *cluster_new_prefix(void)
{
        static uint32_t n;
        char *prefix;

        ck_assert_int_gt(asprintf(&prefix, "t%llx.%x.%x", (unsigned long long)time(NULL),
                                  (unsigned)getpid(), n++),
                         0);
        return prefix;
}
