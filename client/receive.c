// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/session.h"
#include "proto/message.h"

/* Callers get the lock between two messages; deadlines are looked at after this many. */
#define MESSAGES_MAX 64

struct packet {
        size_t length;
        int fd;      /* -1: none */
        bool is_odd; /* cut off, or with more descriptors than any kind has */
};

static void take_fds(struct packet *packet, struct msghdr *header)
{
        for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
                size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                for (size_t i = 0; i < n; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
                        if (packet->fd < 0) {
                                packet->fd = fd;
                        } else {
                                packet->is_odd = true;
                                close(fd);
                        }
                }
        }
}

/* 1: a packet; 0: nothing now; negative: the connection has ended. */
static int receive_packet(int socket, void *buffer, struct packet *ret_packet)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(4 * sizeof(int))];
        } control;
        struct iovec bytes = {.iov_base = buffer, .iov_len = WIRE_MESSAGE_MAX};
        struct msghdr header = {
                .msg_iov = &bytes,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control),
        };
        ssize_t length;

        do
                length = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        while (length < 0 && errno == EINTR);
        if (length < 0 && errno == EAGAIN)
                return 0;
        if (length <= 0)
                return length ? -errno : -EPIPE;
        *ret_packet = (struct packet){.length = (size_t)length, .fd = -1};
        take_fds(ret_packet, &header);
        if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
                ret_packet->is_odd = true;
        return 1;
}

/* Only a message of this very session speaks about its leases. */
static bool is_ours(const struct kvt_session *session, const struct wire_header *header)
{
        return session->phase == KVT__UP && header->session == session->era->session &&
               !memcmp(header->boot_id, session->era->boot_id, sizeof(header->boot_id));
}

static void dispatch(struct kvt_session *session, const struct packet *packet)
{
        const struct wire_header *header = (const void *)session->in_buffer;
        struct why why = {""};
        int r = message_check(session->in_buffer, packet->length, &why);

        if (packet->is_odd || r == MESSAGE_E_INVALID) {
                kvt__session_break(session, "the daemon sent garbage: %s",
                                   packet->is_odd ? "a packet that is too large" : why.text);
                return;
        }
        /* A newer daemon may say things that this library need not know. */
        if (r == MESSAGE_E_UNSUPPORTED)
                return;
        if (header->kind != WIRE_GRANTED && header->kind != WIRE_RESULT &&
            header->kind != WIRE_RECENT && header->kind != WIRE_FOUND &&
            header->kind != WIRE_FORGET)
                kvt__handshake_step(session, header, packet->fd);
        else if (is_ours(session, header) &&
                 (header->kind == WIRE_FOUND || header->kind == WIRE_FORGET))
                kvt__answer_found(session, header);
        else if (is_ours(session, header) && header->kind == WIRE_RECENT)
                kvt__answer_recent(session, (const void *)header);
        else if (is_ours(session, header))
                kvt__answer(session, header);
        else
                kvt__session_break(session, "the daemon answered for another session");
}

void kvt__receive(struct kvt_session *session)
{
        bool is_open = true;

        for (unsigned i = 0; i < MESSAGES_MAX && is_open; i++) {
                struct packet packet = {.fd = -1};
                int r;

                /* Under the lock, so that no fork() copies a descriptor that just came. */
                pthread_mutex_lock(&session->lock);
                r = receive_packet(session->socket, session->in_buffer, &packet);
                if (r < 0)
                        kvt__session_break(session, "the daemon hung up: %s", strerror(-r));
                else if (r && !session->broken)
                        dispatch(session, &packet);
                is_open = r && !session->broken;
                if (packet.fd >= 0)
                        close(packet.fd);
                pthread_mutex_unlock(&session->lock);
        }
}
