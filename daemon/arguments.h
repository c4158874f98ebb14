// SPDX-License-Identifier: Apache-2.0
/*
 * The command line of kvtierd. --help, --version and usage errors end the process here
 * (argp).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct config;

#define ARGUMENTS_OVERRIDES_MAX 64u

struct arguments {
        const char *config_path; /* NULL: CONFIG_DEFAULT_PATH if it exists, else defaults */
        bool check_config;       /* check, say so, and end */
        bool format;             /* permission to overwrite unknown content of nvme.paths */
        const char *overrides[ARGUMENTS_OVERRIDES_MAX]; /* "key=value", borrowed from argv */
        size_t n_overrides;
        const char *log_level; /* NULL: not given; wins over overrides of log.level */
};

void arguments_parse(struct arguments *ret_arguments, int argc, char **argv);

/*
 * The configuration that @arguments ask for: file, then overrides in order, then
 * config_check(). At start and again at each SIGHUP. 0 or a negative errno with @why.
 */
int arguments_load_config(const struct arguments *arguments, struct config *ret_config,
                          struct why *why);
