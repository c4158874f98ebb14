// SPDX-License-Identifier: Apache-2.0
/*
 * The part of the configuration that is about the pool: the sections pool, rados and s3.
 * Credentials are files, or the daemon's environment, and never stand here.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "daemon/encoding_choice.h"
#include "daemon/placement.h"

#define CONFIG_PATH_BYTES 512u /* of one path, terminating zero included */
#define CONFIG_NAME_BYTES 129u /* of a user, pool, bucket; likewise */

struct config;
struct pool_rados_options;
struct pool_s3_options;

enum config_pool_backend {
        CONFIG_POOL_OFF,
        CONFIG_POOL_RADOS,
        CONFIG_POOL_S3,
};

struct config_pool {
        enum config_pool_backend backend;
        uint64_t bytes;                /* of this node in the pool */
        char index[CONFIG_PATH_BYTES]; /* a folder; resolved when it was left out */
        char prefix[CONFIG_NAME_BYTES];
        enum placement_write write;
        uint32_t admit_all;
        uint32_t admit_tokens;
        struct encoding_choice codec;
        uint64_t bundle_bytes;
        uint32_t linger_ms;
        uint32_t deadline_ms;
        uint64_t read_bytes_per_s; /* 0: no limit */
        uint64_t write_bytes_per_s;
        uint32_t queue_depth;
        uint32_t pinned_share_percent;
};

struct config_rados {
        char config[CONFIG_PATH_BYTES]; /* "": where librados looks; so below */
        char user[CONFIG_NAME_BYTES];
        char keyring[CONFIG_PATH_BYTES];
        char pool[CONFIG_NAME_BYTES];
};

struct config_s3 {
        char endpoint[CONFIG_PATH_BYTES];
        char region[CONFIG_NAME_BYTES];
        char bucket[CONFIG_NAME_BYTES];
        char credentials[CONFIG_PATH_BYTES];
        char ca[CONFIG_PATH_BYTES];
        uint32_t path_style;
        uint32_t allow_http;
};

/* "off", "rados", "s3" and NULL. */
extern const char *const config_pool_names[];
const char *config_pool_name(enum config_pool_backend backend);

/* What a backend is to be opened with; texts are borrowed from @config. */
void config_rados_options(const struct config *config, struct pool_rados_options *ret_options);
void config_s3_options(const struct config *config, struct pool_s3_options *ret_options);

/* Is the backend's part right, as far as this machine alone can tell? 0, or with @why why not. */
int config_check_backend(const struct config *config, struct why *why);
