// SPDX-License-Identifier: Apache-2.0
/* kvtierd: command line, configuration, run, exit status. */
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/arguments.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/log_journal.h"

/*
 * The file of a container's daemon permits CAP_IPC_LOCK, without which registered buffers count
 * against RLIMIT_MEMLOCK, but does not make it effective: a kernel refuses to start such a file
 * where the capability is withheld.
 */
static void take_ipc_lock(void)
{
        struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
        struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
        const uint32_t bit = CAP_TO_MASK(CAP_IPC_LOCK);

        if (syscall(SYS_capget, &header, data) || !(data[0].permitted & ~data[0].effective & bit))
                return;
        data[0].effective |= bit;
        syscall(SYS_capset, &header, data);
}

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
        take_ipc_lock();
        log_set_level(config.log.level);
        log_set_journal(log_journal_send);
        return daemon_main(&arguments, &config);
}
