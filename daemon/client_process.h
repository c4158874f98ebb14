// SPDX-License-Identifier: Apache-2.0
/*
 * Who is at the other end of a connection: credentials from the kernel and a pidfd, which
 * names the process for as long as we hold it, whatever happens to its pid.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

struct client_process {
        pid_t pid;
        uid_t uid;
        gid_t gid;
        int pidfd;        /* the receiver closes it */
        gid_t groups[64]; /* supplementary groups, as far as they are known */
        unsigned n_groups;
};

/*
 * Fills @ret_process from a connected Unix socket: SO_PEERPIDFD where the kernel has it
 * (6.5), else pidfd_open() of the process's pid with its start time checked before and
 * after. 0, or a negative errno with the reason and the remedy in @why: it has no
 * pid here (another pid namespace), has ended, or its uid is not mapped.
 */
int client_process_identify(int socket, struct client_process *ret_process, struct why *why);

/* root, the daemon's own uid, or a member of @admin_gid (-1: no such group). */
bool client_process_is_admin(const struct client_process *process, gid_t admin_gid);

/*
 * Does a socket of @mode, owned by the daemon's uid and @gid (-1: the daemon's), admit the
 * process? The file's permissions said so at connect; a descriptor may have been passed on.
 */
bool client_process_may_connect(const struct client_process *process, mode_t mode, gid_t gid);
