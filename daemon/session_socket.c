// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/client_process.h"
#include "daemon/daemon.h"
#include "daemon/handshake.h"
#include "daemon/session_socket.h"

/*
 * What a client that does not read may pile up before it is disconnected: more than the
 * answer to one request of WIRE_ITEMS_MAX objects of 10 MiB with their checksums.
 */
#define OUTPUT_MAX (UINT64_C(32) << 20)
/* That kvtierctl may open beyond sessions.max. */
#define ADMIN_SESSIONS 8u
/* Messages of one session handled in a row, so that no session starves the others. */
#define MESSAGES_A_TURN 16

/* ---- output ---- */

static int send_packet(int socket, const void *packet, uint32_t length, int fd)
{
        union {
                char bytes[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control;
        struct iovec vector = {.iov_base = (void *)(uintptr_t)packet, .iov_len = length};
        struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};

        if (fd >= 0) {
                struct cmsghdr *header;

                memset(&control, 0, sizeof(control));
                message.msg_control = control.bytes;
                message.msg_controllen = sizeof(control.bytes);
                header = CMSG_FIRSTHDR(&message);
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(header), &fd, sizeof(fd));
        }
        for (;;) {
                if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
                        return 0;
                if (errno != EINTR)
                        return -errno;
        }
}

static void on_socket(uv_poll_t *poll, int status, int events);

static void set_polling(struct session *session, bool writable)
{
        session->polls_writable = writable;
        uv_poll_start(&session->socket_poll, UV_READABLE | (writable ? UV_WRITABLE : 0), on_socket);
}

static void send_by_socket(struct session *session, const void *packet, uint32_t length, int fd)
{
        struct session_output *output;
        int r;

        if (session->fd < 0)
                return;
        if (TAILQ_EMPTY(&session->output)) {
                r = send_packet(session->fd, packet, length, fd);
                if (!r)
                        return;
                if (r != -EAGAIN) {
                        session_close(session, METRICS_HANG_UP, "hang_up", strerror(-r));
                        return;
                }
        }
        if (session->output_bytes + length > OUTPUT_MAX) {
                session_close(session, METRICS_NOT_READING, "not_reading",
                              "the client does not read its answers");
                return;
        }
        output = malloc(sizeof(*output) + length);
        if (!output) {
                session_close(session, METRICS_SOCKET_ERROR, "no_memory", NULL);
                return;
        }
        output->length = length;
        output->fd = fd;
        memcpy(output->packet, packet, length);
        TAILQ_INSERT_TAIL(&session->output, output, link);
        session->output_bytes += length;
        if (!session->polls_writable)
                set_polling(session, true);
}

static void drop_output(struct session *session)
{
        struct session_output *output;

        while ((output = TAILQ_FIRST(&session->output))) {
                TAILQ_REMOVE(&session->output, output, link);
                free(output);
        }
        session->output_bytes = 0;
}

static void flush_output(struct session *session)
{
        struct session_output *output;

        while ((output = TAILQ_FIRST(&session->output))) {
                int r = send_packet(session->fd, output->packet, output->length, output->fd);

                if (r == -EAGAIN)
                        return;
                if (r) {
                        session_close(session, METRICS_HANG_UP, "hang_up", strerror(-r));
                        return;
                }
                TAILQ_REMOVE(&session->output, output, link);
                session->output_bytes -= output->length;
                free(output);
        }
        set_polling(session, false);
}

/* ---- input ---- */

/* Descriptors that a client sends are nothing we asked for. */
static void close_received(struct msghdr *message)
{
        struct cmsghdr *header;

        for (header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
                size_t bytes;

                if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
                        continue;
                bytes = header->cmsg_len - CMSG_LEN(0);
                for (size_t i = 0; i + sizeof(int) <= bytes; i += sizeof(int)) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(header) + i, sizeof(fd));
                        close(fd);
                }
        }
}

/* 0: a packet of *@ret_length bytes, -EAGAIN: none, -EPIPE: hung up, other: failure. */
static int receive_packet(struct session *session, size_t *ret_length)
{
        union {
                char bytes[CMSG_SPACE(16 * sizeof(int))];
                struct cmsghdr align;
        } control;
        struct iovec vector = {.iov_base = session->daemon->packet_in,
                               .iov_len = sizeof(session->daemon->packet_in)};
        struct msghdr message = {
                .msg_iov = &vector,
                .msg_iovlen = 1,
                .msg_control = control.bytes,
                .msg_controllen = sizeof(control.bytes),
        };
        ssize_t n;

        do {
                n = recvmsg(session->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        } while (n < 0 && errno == EINTR);
        if (n < 0)
                return errno == ECONNRESET ? -EPIPE : -errno;
        close_received(&message);
        if (n == 0)
                return -EPIPE;
        if (message.msg_flags & MSG_TRUNC)
                return -EMSGSIZE;
        *ret_length = (size_t)n;
        return 0;
}

static void read_socket(struct session *session)
{
        for (unsigned i = 0; i < MESSAGES_A_TURN && session->state < SESSION_CLOSING; i++) {
                size_t length = 0;
                int r = receive_packet(session, &length);

                if (r == -EAGAIN)
                        return;
                if (r == -EPIPE) {
                        session_close(session, METRICS_HANG_UP, "hang_up", NULL);
                } else if (r == -EMSGSIZE) {
                        session_close(session, METRICS_GARBAGE, "garbage",
                                      "a message longer than 65536 bytes");
                } else if (r) {
                        session_close(session, METRICS_SOCKET_ERROR, "socket_error", strerror(-r));
                } else {
                        session_take(session, session->daemon->packet_in, length);
                }
        }
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
        struct session *session = poll->data;

        if (status < 0) {
                session_close(session, METRICS_SOCKET_ERROR, "socket_error", uv_strerror(status));
                return;
        }
        if (events & UV_WRITABLE && session->state < SESSION_CLOSING)
                flush_output(session);
        if (events & UV_READABLE && session->state < SESSION_CLOSING)
                read_socket(session);
}

/* ---- life and death ---- */

static void on_handle_closed(uv_handle_t *handle)
{
        struct session *session = handle->data;

        session->n_handles--;
        session_free_when_gone(session);
}

static void stop_watching_process(struct session *session)
{
        if (session->pidfd < 0)
                return;
        uv_poll_stop(&session->pidfd_poll);
        uv_close((uv_handle_t *)&session->pidfd_poll, on_handle_closed);
        close(steal_fd(&session->pidfd));
}

static void on_process_exit(uv_poll_t *poll, int status, int events)
{
        struct session *session = poll->data;

        (void)status;
        (void)events;
        if (session->state < SESSION_CLOSING)
                session_close(session, METRICS_DEATH, "death", NULL);
        session_end_leases(session);
        stop_watching_process(session);
        daemon_wake(session->daemon);
}

static void close_socket(struct session *session)
{
        drop_output(session);
        uv_poll_stop(&session->socket_poll);
        uv_close((uv_handle_t *)&session->socket_poll, on_handle_closed);
        close(steal_fd(&session->fd));
}

const struct session_carrier session_socket_carrier = {
        .send = send_by_socket,
        .close = close_socket,
        .forget = stop_watching_process,
        .shares_memory = true,
};

/* ---- birth ---- */

static int init_polls(struct session *session)
{
        struct daemon *daemon = session->daemon;
        int r;

        r = uv_poll_init(&daemon->loop, &session->socket_poll, session->fd);
        if (r)
                return err_raise(r);
        session->socket_poll.data = session;
        session->n_handles++;
        r = uv_poll_init(&daemon->loop, &session->pidfd_poll, session->pidfd);
        if (r) {
                session->state = SESSION_QUARANTINED; /* no more than a handle to close */
                daemon->n_quarantined++;
                uv_close((uv_handle_t *)&session->socket_poll, on_handle_closed);
                return err_raise(r);
        }
        session->pidfd_poll.data = session;
        session->n_handles++;
        uv_poll_start(&session->pidfd_poll, UV_READABLE, on_process_exit);
        set_polling(session, false);
        return 0;
}

/*
 * Whatever the clients do, somebody must be able to look at it, and to kick them. Whether
 * it is kvtierctl that has connected is known with its HELLO.
 */
static bool is_full(const struct daemon *daemon, const struct client_process *process)
{
        uint32_t max = daemon->config.sessions.max;

        if (client_process_is_admin(process, daemon->config.admin.gid))
                return daemon->n_sessions >= max + ADMIN_SESSIONS;
        return daemon->n_sessions >= max || daemon->n_quarantined >= max;
}

/* KVT_WIRE_OK, or why the process is not let in. */
static uint32_t judge_process(struct daemon *daemon, const struct client_process *process,
                              struct why *why)
{
        const struct config *config = &daemon->config;

        if (is_full(daemon, process)) {
                why_set(why, "sessions.max of %u is reached", config->sessions.max);
                daemon->metrics.attach_refused_total[METRICS_TOO_MANY]++;
                return KVT_WIRE_REFUSED;
        }
        if (!client_process_may_connect(process, config->socket.mode, config->socket.gid)) {
                why_set(why, "uid %u may not use this socket: join the group of socket.group",
                        process->uid);
                daemon->metrics.attach_refused_total[METRICS_NOT_PERMITTED]++;
                return KVT_WIRE_DENIED;
        }
        return KVT_WIRE_OK;
}

/* Both descriptors are taken over, also on failure. */
static int begin_session(struct daemon *daemon, int socket, const struct client_process *process)
{
        struct session *session = session_new(daemon, &session_socket_carrier);
        int r;

        if (!session) {
                close(socket);
                close(process->pidfd);
                return err_raise(-ENOMEM);
        }
        session->pid = process->pid;
        session->uid = process->uid;
        session->gid = process->gid;
        session->is_admin = client_process_is_admin(process, daemon->config.admin.gid);
        session->fd = socket;
        session->pidfd = process->pidfd;
        r = init_polls(session);
        if (!r)
                return 0;
        daemon->n_sessions--;
        close(steal_fd(&session->fd));
        close(steal_fd(&session->pidfd));
        /* With a handle it is freed when that has closed. */
        if (!session->n_handles) {
                TAILQ_REMOVE(&daemon->sessions, session, link);
                free(session);
        }
        return r;
}

int session_socket_new(struct daemon *daemon, int fd)
{
        _cleanup_fd_ int socket = fd;
        struct client_process process = {.pidfd = -1};
        uint32_t status = KVT_WIRE_DENIED;
        struct why why = {""};

        if (client_process_identify(socket, &process, &why))
                daemon->metrics.attach_refused_total[METRICS_PROCESS]++;
        else
                status = judge_process(daemon, &process, &why);
        if (!status)
                return begin_session(daemon, steal_fd(&socket), &process);

        log_warning("session_refused", "pid=%d uid=%u reason=%s", (int)process.pid, process.uid,
                    log_quoted(why.text).text);
        handshake_refuse(socket, daemon->boot_id, status, why.text);
        close_fdp(&process.pidfd);
        return 0;
}
