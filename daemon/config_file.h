// SPDX-License-Identifier: Apache-2.0
/*
 * The YAML file as strings: one value a key, with the line it stands on.
 *
 * Two readings of the same bytes. libyaml's document tells where things stand, and with it
 * unknown, repeated and misplaced keys are refused in words that name the line. libcyaml
 * then maps the values by the schema. Neither knows what a value means (config_key.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/config.h"

#define CONFIG_FILE_MAX (1u << 20) /* bytes */

struct config_file {
        int32_t lines[CONFIG_N_KEYS];      /* 0: not in the file */
        const char *values[CONFIG_N_KEYS]; /* NULL: not in the file, or a list */
        const char *const *paths;          /* nvme.paths */
        uint32_t n_paths;
        void *tree; /* libcyaml's, which holds the strings */
};

/* 0, -EINVAL or -ENOMEM; @why begins with "name:line:". */
int config_file_parse(struct config_file *ret_file, const char *name, const void *text,
                      size_t length, struct why *why);

void config_file_deinit(struct config_file *file);
