// SPDX-License-Identifier: Apache-2.0
/*
 * A pool (pool.h) on S3, by libcurl's multi interface on the loop: AWS, MinIO, radosgw.
 *
 * Requests are signed with SigV4 by libcurl; payloads are not, as objects carry checksums.
 * Credentials come from a file or the environment (AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN) and appear nowhere else; a file is read again
 * when the server refuses what it held. Proxies are those of the environment, as libcurl
 * takes them.
 *
 * POOL_EXCLUSIVE needs a server that knows If-None-Match on a put. There are no hints: nodes
 * poll. A request that is late is taken from libcurl, which then has no part of it left.
 */
#pragma once

#include <stdbool.h>

#include <uv.h>

#include "base/error.h"
#include "storage/pool.h"

struct pool_s3_options {
        const char *endpoint;         /* "https://host[:port]"; http:// only with allow_http */
        const char *region;           /* NULL: us-east-1 */
        const char *bucket;           /* exists */
        const char *prefix;           /* of all names; nodes that share it share the pool */
        const char *credentials_path; /* AWS credentials file, profile "default"; NULL: the
                                         environment */
        const char *ca_path;          /* PEM bundle; NULL: the system's */
        bool path_style;              /* https://host/bucket/... instead of bucket.host */
        bool allow_http;
};

/* Are the options right, as far as this machine alone can tell? As pool_s3_open(). */
int pool_s3_check(const struct pool_s3_options *options, struct why *why);

/*
 * Reads the credentials. 0, -ENOTSUP (a build without libcurl) or another negative errno
 * for options that can never be right, with @why filled.
 */
int pool_s3_open(struct pool **ret_pool, uv_loop_t *loop, const struct pool_s3_options *options,
                 struct why *why);
