// SPDX-License-Identifier: Apache-2.0
/*
 * The file that holds a domain's name and its secret: one line "DOMAIN SECRET", and lines
 * that begin with # or are empty. The secret is text without blanks, RDMA_SECRET_MIN to
 * RDMA_SECRET_MAX bytes, taken as it stands. A file that everybody may read is refused: what
 * is in it admits to all of the domain's bytes. Any thread; blocks.
 */
#pragma once

#include "base/rdma.h"

enum {
        RDMA_SECRET_E_INVALID = 1, /* the reason is in `why` */
};

struct rdma_secret_file {
        char domain[RDMA_DOMAIN_BYTES];
        struct rdma_secret secret;
};

/* find_secret() of a port whose user is the rdma_secret_file. */
int rdma_secret_find(void *user, const char *domain, struct rdma_secret *ret_secret);

/* 0, RDMA_SECRET_E_INVALID or the negative errno of reading @path, each with the reason. */
int rdma_secret_load(struct rdma_secret_file *ret_file, const char *path, struct why *why);
