// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/support/powerfs_client.h"

bool powerfs_is_available(const char **ret_reason)
{
        _cleanup_fd_ int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

        if (fd >= 0 && !geteuid())
                return true;
        if (ret_reason)
                *ret_reason = fd < 0 ? "/dev/fuse cannot be opened" : "mounting needs root";
        return false;
}

static int make_directories(struct powerfs_mount *mount)
{
        snprintf(mount->scratch, sizeof(mount->scratch), "/tmp/powerfs.XXXXXX");
        if (!mkdtemp(mount->scratch)) {
                mount->scratch[0] = 0;
                return err_raise(-errno);
        }
        snprintf(mount->backing, sizeof(mount->backing), "%s/backing", mount->scratch);
        snprintf(mount->mountpoint, sizeof(mount->mountpoint), "%s/mount", mount->scratch);
        /* Open to other users, since a daemon under test may run as one. */
        if (chmod(mount->scratch, 0755) || mkdir(mount->backing, 0777) ||
            chmod(mount->backing, 0777) || mkdir(mount->mountpoint, 0755))
                return err_raise(-errno);
        return 0;
}

int powerfs_new(unsigned flags, struct powerfs_mount **ret_mount)
{
        _cleanup_(powerfs_freep) struct powerfs_mount *mount = calloc(1, sizeof(*mount));
        int r;

        if (!mount)
                return err_raise(-ENOMEM);
        mount->flags = flags;
        r = make_directories(mount);
        if (!r)
                r = powerfs_start(mount);
        if (r)
                return r;
        *ret_mount = steal_ptr(mount);
        return 0;
}

static _Noreturn void run_server(const struct powerfs_mount *mount, int ready_fd, pid_t parent)
{
        char ready[32];
        int fd = dup(ready_fd);

        snprintf(ready, sizeof(ready), "--ready-fd=%d", fd);
        /* A test that crashes or is killed, even by group, must leave no mount behind. */
        if (fd < 0 || setpgid(0, 0) || prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != parent)
                _exit(126);
        execl(POWERFS_BINARY, "powerfs", ready, mount->backing, mount->mountpoint,
              mount->flags & POWERFS_NO_FALLOCATE ? "--no-fallocate" : NULL, NULL);
        _exit(127);
}

static int wait_for_server(struct powerfs_mount *mount)
{
        int status;

        while (waitpid(mount->pid, &status, 0) < 0) {
                if (errno != EINTR)
                        return err_raise(-errno);
        }
        mount->pid = 0;
        return status ? err_raise(-EIO) : 0;
}

int powerfs_start(struct powerfs_mount *mount)
{
        _cleanup_fd_ int ready_fd = -1, server_fd = -1;
        pid_t parent = getpid();
        int pipe_fds[2];
        char byte;

        if (pipe2(pipe_fds, O_CLOEXEC))
                return err_raise(-errno);
        ready_fd = pipe_fds[0];
        server_fd = pipe_fds[1];
        mount->pid = fork();
        if (!mount->pid)
                run_server(mount, server_fd, parent);
        if (mount->pid < 0) {
                mount->pid = 0;
                return err_raise(-errno);
        }
        close(steal_fd(&server_fd));
        if (read(ready_fd, &byte, 1) == 1)
                return 0;
        wait_for_server(mount);
        return err_raise(-ENODEV);
}

int powerfs_stop(struct powerfs_mount *mount)
{
        if (!mount->pid)
                return 0;
        if (kill(mount->pid, SIGTERM))
                return err_raise(-errno);
        return wait_for_server(mount);
}

static int open_control(const struct powerfs_mount *mount, int flags)
{
        char path[128];

        snprintf(path, sizeof(path), "%s/.powerfs-control", mount->mountpoint);
        return open(path, flags | O_CLOEXEC);
}

int powerfs_command(struct powerfs_mount *mount, const char *format, ...)
{
        _cleanup_fd_ int fd = open_control(mount, O_WRONLY);
        char line[128];
        va_list arguments;
        int length;

        if (fd < 0)
                return err_raise(-errno);
        va_start(arguments, format);
        length = vsnprintf(line, sizeof(line), format, arguments);
        va_end(arguments);
        if (length < 0 || (size_t)length >= sizeof(line))
                return err_raise(-EINVAL);
        return write(fd, line, (size_t)length) < 0 ? err_raise(-errno) : 0;
}

int powerfs_cut(struct powerfs_mount *mount, uint64_t seed)
{
        return powerfs_command(mount, "cut %" PRIu64, seed);
}

int powerfs_get_state(struct powerfs_mount *mount, struct powerfs_state *ret_state)
{
        _cleanup_fd_ int fd = open_control(mount, O_RDONLY);
        struct powerfs_state state = {0};
        char text[256], power[8];
        ssize_t length;

        if (fd < 0)
                return err_raise(-errno);
        length = read(fd, text, sizeof(text) - 1);
        if (length < 0)
                return err_raise(-errno);
        text[length] = 0;
        if (sscanf(text,
                   "power %7s changes %" SCNu64 " unsynced_writes %" SCNu64
                   " unsynced_names %u kept %u lost %u torn %u",
                   power, &state.n_changes, &state.n_unsynced_writes, &state.n_unsynced_names,
                   &state.n_kept, &state.n_lost, &state.n_torn) != 7)
                return err_raise(-EPROTO);
        state.is_on = !strcmp(power, "on");
        *ret_state = state;
        return 0;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
        return remove(path);
}

struct powerfs_mount *powerfs_free(struct powerfs_mount *mount)
{
        if (!mount)
                return NULL;
        powerfs_stop(mount);
        if (mount->scratch[0]) {
                /* Left over only when the server crashed. */
                umount2(mount->mountpoint, MNT_DETACH);
                nftw(mount->scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
        }
        free(mount);
        return NULL;
}
