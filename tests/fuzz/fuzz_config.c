// SPDX-License-Identifier: Apache-2.0
/*
 * The configuration as text that anyone may have written. The same bytes are tried as a
 * file and as one --set. What is accepted is in bounds and terminated; what is refused has
 * a reason that names the file.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_key.h"

#define NAME "fuzz.conf"

static void require(bool condition)
{
        if (!condition)
                abort();
}

static bool in_bounds(const struct config *config, const struct config_key_spec *spec)
{
        uint64_t number = 0;

        if (!spec->max)
                return true;
        memcpy(&number, (const char *)config + spec->offset, spec->size);
        return number >= spec->min && number <= spec->max;
}

static void require_valid(const struct config *config)
{
        for (unsigned key = 0; key < CONFIG_N_KEYS; key++)
                require(in_bounds(config, &config_keys[key]));
        require(memchr(config->socket.path, 0, sizeof(config->socket.path)) != NULL);
        require(config->socket.path[0] == '/');
        require(config->socket.mode <= 0777);
        require(memchr(config->nvme.catalog, 0, sizeof(config->nvme.catalog)) != NULL);
        require(memchr(config->pool.index, 0, sizeof(config->pool.index)) != NULL);
        require(memchr(config->pool.prefix, 0, sizeof(config->pool.prefix)) != NULL);
        require(memchr(config->s3.endpoint, 0, sizeof(config->s3.endpoint)) != NULL);
        require(config->nvme.n_paths <= CONFIG_PATHS_MAX);
        for (uint32_t i = 0; i < config->nvme.n_paths; i++) {
                require(config->nvme.paths[i][0] == '/');
                require(memchr(config->nvme.paths[i], 0, CONFIG_PATH_BYTES) != NULL);
        }
}

static void try_file(const uint8_t *data, size_t size)
{
        struct config config;
        struct why why = {""};

        if (!config_parse(&config, NAME, data, size, &why))
                require_valid(&config);
        else
                require(!strncmp(why.text, NAME ":", strlen(NAME ":")));
}

static void try_override(const uint8_t *data, size_t size)
{
        char *text = malloc(size + 1);
        struct config config;
        struct why why = {""};

        require(text != NULL);
        memcpy(text, data, size);
        text[size] = 0;
        config_defaults(&config);
        if (config_apply_override(&config, text, &why))
                require(*why.text != 0);
        require_valid(&config);
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        try_file(data, size);
        try_override(data, size);
        return 0;
}
