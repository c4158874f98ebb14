// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/listener.h"
#include "daemon/session_socket.h"

#define ACCEPTS_A_TURN 64

static void on_connection(uv_poll_t *poll, int status, int events)
{
        struct daemon *daemon = poll->data;

        (void)events;
        if (status < 0) {
                log_error("listen_failed", "error=\"%s\"", uv_strerror(status));
                return;
        }
        for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
                int fd = accept4(daemon->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                int r;

                if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
                        return;
                if (fd < 0) {
                        /* Out of descriptors: the connection stays queued; look again soon. */
                        log_warning("accept_failed", "error=\"%s\"", strerror(errno));
                        uv_poll_stop(&daemon->listen_poll);
                        daemon->accepting = false;
                        return;
                }
                r = session_socket_new(daemon, fd);
                if (r)
                        log_warning("session_failed", "error=\"%s\" at=%s", strerror(-r),
                                    err_where());
        }
}

void listener_resume(struct daemon *daemon)
{
        if (daemon->accepting || daemon->listen_fd < 0)
                return;
        uv_poll_start(&daemon->listen_poll, UV_READABLE, on_connection);
        daemon->accepting = true;
}

static int somebody_answers(const struct sockaddr_un *address)
{
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0)
                return 0;
        return !connect(fd, (const struct sockaddr *)address, sizeof(*address)) || errno == EAGAIN;
}

static int bind_socket(struct daemon *daemon, int fd, struct why *why)
{
        const struct config *config = &daemon->config;
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        const char *path = config->socket.path;
        mode_t mask;
        int r = 0;

        memcpy(address.sun_path, path, strlen(path) + 1);
        if (somebody_answers(&address)) {
                why_set(why, "socket.path: a daemon already answers on %s", path);
                return err_raise(-EADDRINUSE);
        }
        if (unlink(path) && errno != ENOENT) {
                why_set(why, "socket.path: %s cannot be replaced: %s", path, strerror(errno));
                return err_raise(-errno);
        }
        /* The mode must hold from the first moment: nobody connects in between. */
        mask = umask(0777 & ~config->socket.mode);
        if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
                r = -errno;
        umask(mask);
        if (!r && config->socket.gid != CONFIG_NO_GID &&
            lchown(path, (uid_t)-1, config->socket.gid)) {
                r = -errno;
                why_set(why,
                        "socket.group: %s cannot be given to group %u: %s: make uid %u a member "
                        "of it (under systemd: SupplementaryGroups=)",
                        path, (unsigned)config->socket.gid, strerror(-r), (unsigned)geteuid());
                return err_raise(r);
        }
        if (!r && listen(fd, 512))
                r = -errno;
        if (r) {
                why_set(why, "socket.path: cannot listen on %s: %s", path, strerror(-r));
                return err_raise(r);
        }
        return 0;
}

int listener_open(struct daemon *daemon, struct why *why)
{
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int r;

        if (fd < 0) {
                why_set(why, "no socket: %s", strerror(errno));
                return err_raise(-errno);
        }
        r = bind_socket(daemon, fd, why);
        if (r)
                return r;
        r = uv_poll_init(&daemon->loop, &daemon->listen_poll, fd);
        if (r)
                return err_raise(r);
        daemon->listen_poll.data = daemon;
        daemon->listen_fd = steal_fd(&fd);
        listener_resume(daemon);
        return 0;
}

void listener_close(struct daemon *daemon)
{
        if (daemon->listen_fd < 0)
                return;
        uv_close((uv_handle_t *)&daemon->listen_poll, NULL);
        if (unlink(daemon->config.socket.path) && errno != ENOENT)
                log_warning("socket_not_removed", "error=\"%s\"", strerror(errno));
        close(steal_fd(&daemon->listen_fd));
}
