// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "daemon/config.h"
#include "storage/pool_rados.h"
#include "storage/pool_s3.h"

const char *const config_pool_names[] = {
        [CONFIG_POOL_OFF] = "off", [CONFIG_POOL_RADOS] = "rados", [CONFIG_POOL_S3] = "s3", NULL};

const char *config_pool_name(enum config_pool_backend backend)
{
        return config_pool_names[backend];
}

static const char *or_null(const char *text)
{
        return *text ? text : NULL;
}

void config_rados_options(const struct config *config, struct pool_rados_options *ret_options)
{
        *ret_options = (struct pool_rados_options){
                .config_path = or_null(config->rados.config),
                .user = or_null(config->rados.user),
                .keyring_path = or_null(config->rados.keyring),
                .pool = config->rados.pool,
                .prefix = config->pool.prefix,
        };
}

void config_s3_options(const struct config *config, struct pool_s3_options *ret_options)
{
        *ret_options = (struct pool_s3_options){
                .endpoint = config->s3.endpoint,
                .region = or_null(config->s3.region),
                .bucket = config->s3.bucket,
                .prefix = config->pool.prefix,
                .credentials_path = or_null(config->s3.credentials),
                .ca_path = or_null(config->s3.ca),
                .path_style = config->s3.path_style,
                .allow_http = config->s3.allow_http,
        };
}

int config_check_backend(const struct config *config, struct why *why)
{
        struct pool_rados_options rados;
        struct pool_s3_options s3;

        if (config->pool.backend == CONFIG_POOL_RADOS) {
                config_rados_options(config, &rados);
                return pool_rados_check(&rados, why);
        }
        config_s3_options(config, &s3);
        return pool_s3_check(&s3, why);
}
