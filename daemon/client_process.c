// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/client_process.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* What the kernel shows for an id that has no mapping in our user namespace. */
#define OVERFLOW_ID 65534

/* Field 22 of /proc/PID/stat, behind a name that may contain anything. 0: not readable. */
static unsigned long long start_time(pid_t pid)
{
        unsigned long long ticks = 0;
        char path[64], text[1024];
        char *field;
        size_t n;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        file = fopen(path, "re");
        if (!file)
                return 0;
        n = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        text[n] = '\0';
        field = strrchr(text, ')');
        for (unsigned i = 3; field && i <= 22; i++) {
                field = strchr(field + 1, ' ');
                if (i == 22 && field)
                        ticks = strtoull(field + 1, NULL, 10);
        }
        return ticks;
}

static bool process_is_gone(int pidfd)
{
        struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

        return poll(&poll_fd, 1, 0) > 0;
}

/*
 * The pid may have been reused between connect and now. The process that connected is
 * older than its connection, so a start time that did not change across pidfd_open and a
 * process that lives on mean the same process, unless the pid was reused before the first
 * look: a window that only SO_PEERPIDFD closes.
 */
static int open_by_pid(pid_t pid, int *ret_pidfd)
{
        unsigned long long before = start_time(pid);
        _cleanup_fd_ int pidfd = -1;

        if (!before)
                return -ESRCH;
        pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (pidfd < 0)
                return -errno;
        if (start_time(pid) != before || process_is_gone(pidfd))
                return -ESRCH;
        *ret_pidfd = steal_fd(&pidfd);
        return 0;
}

static int open_pidfd(int socket, pid_t pid, int *ret_pidfd)
{
        int pidfd = -1;
        socklen_t length = sizeof(pidfd);

        if (!getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length)) {
                if (process_is_gone(pidfd)) {
                        close(pidfd);
                        return -ESRCH;
                }
                *ret_pidfd = pidfd;
                return 0;
        }
        if (errno != ENOPROTOOPT && errno != EINVAL)
                return -errno;
        if (pid <= 0)
                return -ENOENT;
        return open_by_pid(pid, ret_pidfd);
}

static void read_groups(int socket, struct client_process *process)
{
        socklen_t length = sizeof(process->groups);

        if (!getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, process->groups, &length))
                process->n_groups = length / sizeof(process->groups[0]);
}

int client_process_identify(int socket, struct client_process *ret_process, struct why *why)
{
        struct ucred credentials;
        socklen_t length = sizeof(credentials);
        int r;

        if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length)) {
                why_set(why, "the process's credentials cannot be read: %s", strerror(errno));
                return err_raise(-errno);
        }
        ret_process->pid = credentials.pid;
        ret_process->uid = credentials.uid;
        ret_process->gid = credentials.gid;
        if (credentials.uid == OVERFLOW_ID && getuid() != OVERFLOW_ID) {
                why_set(why, "the client's uid has no mapping in the daemon's user namespace: "
                             "run both in one user namespace");
                return err_raise(-EPERM);
        }
        r = open_pidfd(socket, credentials.pid, &ret_process->pidfd);
        if (r == -ENOENT) {
                why_set(why, "the client is in another pid namespace and this kernel has no "
                             "SO_PEERPIDFD (Linux 6.5): share the pid namespace (hostPID: true)");
                return err_raise(-EPERM);
        }
        if (r) {
                why_set(why, "the client's process cannot be watched: %s", strerror(-r));
                return err_raise(r);
        }
        read_groups(socket, ret_process);
        return 0;
}

static bool is_member(const struct client_process *process, gid_t gid)
{
        if (process->gid == gid)
                return true;
        for (unsigned i = 0; i < process->n_groups; i++)
                if (process->groups[i] == gid)
                        return true;
        return false;
}

bool client_process_is_admin(const struct client_process *process, gid_t admin_gid)
{
        if (process->uid == 0 || process->uid == geteuid())
                return true;
        return admin_gid != (gid_t)-1 && is_member(process, admin_gid);
}

bool client_process_may_connect(const struct client_process *process, mode_t mode, gid_t gid)
{
        if (process->uid == 0 || process->uid == geteuid() || mode & S_IWOTH)
                return true;
        return mode & S_IWGRP && is_member(process, gid == (gid_t)-1 ? getegid() : gid);
}
