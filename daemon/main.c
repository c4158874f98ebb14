// SPDX-License-Identifier: Apache-2.0
/* kvtierd: command line, configuration, run, exit status. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "daemon/arguments.h"
#include "daemon/config.h"
#include "daemon/daemon.h"

int main(int argc, char **argv)
{
        static struct arguments arguments;
        static struct config config;
        struct why why = {""};

        arguments_parse(&arguments, argc, argv);
        if (arguments_load_config(&arguments, &config, &why)) {
                fprintf(stderr, "kvtierd: %s\n", why.text);
                return 2;
        }
        if (arguments.check_config) {
                printf("%s: ok\n", config.file[0] ? config.file : "built-in defaults");
                return 0;
        }
        log_set_level(config.log.level);
        return daemon_main(&arguments, &config);
}
