// SPDX-License-Identifier: Apache-2.0
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/arguments.h"
#include "daemon/config.h"

enum {
        OPTION_CHECK_CONFIG = 256,
        OPTION_FORMAT,
        OPTION_LOG_LEVEL,
        OPTION_SET,
};

static const struct argp_option options[] = {
        {"config", 'c', "FILE", 0, "Read FILE (default " CONFIG_DEFAULT_PATH ", if it exists)"},
        {"set", OPTION_SET, "KEY=VALUE", 0,
         "Override a key of the configuration, such as host.bytes=8GiB; may be repeated"},
        {"log-level", OPTION_LOG_LEVEL, "LEVEL", 0, "error, warning, info or debug"},
        {"check-config", OPTION_CHECK_CONFIG, NULL, 0, "Check the configuration and end"},
        {"format", OPTION_FORMAT, NULL, 0,
         "Overwrite unknown content of nvme.paths; what is stored there is lost"},
        {0},
};

static void add_override(struct argp_state *state, struct arguments *arguments, const char *text)
{
        if (arguments->n_overrides == ARGUMENTS_OVERRIDES_MAX)
                argp_error(state, "more than %u overrides: use a file", ARGUMENTS_OVERRIDES_MAX);
        arguments->overrides[arguments->n_overrides++] = text;
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
        struct arguments *arguments = state->input;
        enum log_level level;

        switch (key) {
        case 'c':
                arguments->config_path = value;
                return 0;
        case OPTION_CHECK_CONFIG:
                arguments->check_config = true;
                return 0;
        case OPTION_FORMAT:
                arguments->format = true;
                return 0;
        case OPTION_SET:
                add_override(state, arguments, value);
                return 0;
        case OPTION_LOG_LEVEL:
                if (log_level_parse(value, &level))
                        argp_error(state, "--log-level %s: use error, warning, info or debug",
                                   value);
                arguments->log_level = value;
                return 0;
        case ARGP_KEY_ARG:
                argp_error(state, "unexpected argument: %s", value);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

void arguments_parse(struct arguments *ret_arguments, int argc, char **argv)
{
        static const struct argp argp = {
                .options = options,
                .parser = parse_option,
                .doc = "Keeps inference engines' KV cache and recurrent state alive outside the "
                       "GPU.\vSIGTERM drains and ends, SIGHUP reloads. See kvtierd(8) and "
                       "kvtierd.conf(5).",
        };
        struct arguments arguments = {0};

        argp_program_version = "kvtierd " KVTIER_VERSION;
        argp_err_exit_status = 2;
        argp_parse(&argp, argc, argv, 0, NULL, &arguments);
        *ret_arguments = arguments;
}

int arguments_load_config(const struct arguments *arguments, struct config *ret_config,
                          struct why *why)
{
        const char *path = arguments->config_path;
        struct config config;
        char level[32];
        int r;

        if (!path && !access(CONFIG_DEFAULT_PATH, F_OK))
                path = CONFIG_DEFAULT_PATH;
        r = config_load(&config, path, why);
        for (size_t i = 0; i < arguments->n_overrides && !r; i++)
                r = config_apply_override(&config, arguments->overrides[i], why);
        if (!r && arguments->log_level) {
                snprintf(level, sizeof(level), "log.level=%s", arguments->log_level);
                r = config_apply_override(&config, level, why);
        }
        if (!r)
                r = config_check(&config, arguments->format, why);
        if (r)
                return r;
        *ret_config = config;
        return 0;
}
