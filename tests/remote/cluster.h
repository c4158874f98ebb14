// SPDX-License-Identifier: Apache-2.0
/*
 * The servers that tests/remote/run has started, as its test programs find them: by the
 * environment. A program that is run without them ends with a word of that.
 */
#pragma once

#include "storage/pool_rados.h"
#include "storage/pool_s3.h"

/* The RADOS pool "kv", as a user who may use that and no other. */
struct pool_rados_options cluster_rados_options(void);
/* The bucket "kvtier", plain. */
struct pool_s3_options cluster_s3_options(void);
/* The same, by TLS. */
struct pool_s3_options cluster_s3_tls_options(void);

/* A shell command in the cluster's folder, "ceph" and "rados" with its config; must succeed. */
void cluster_shell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A prefix that no test had before; free() it. */
char *cluster_new_prefix(void);
