// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/kvtierctl/connection.h"
#include "proto/message.h"
#include "proto/status.h"

#define ANSWER_SECONDS 30
#define TEXT_MAX       (WIRE_MESSAGE_MAX - (uint32_t)sizeof(struct wire_header)) /* of a message */
#define ANSWER_MAX     (256u << 20) /* of text: a daemon that never ends a line is broken */

/* Text as it comes in; whole lines are taken off its front. */
struct answer {
        char *text;
        size_t length;
        size_t capacity;
};

static int say_unreachable(const struct connection *connection, int error, struct why *why)
{
        if (error == EACCES || error == EPERM)
                why_set(why,
                        "you may not connect to %s: be root, or join the socket's group "
                        "(socket.group in kvtierd.conf)",
                        connection->path);
        else
                why_set(why,
                        "kvtierd does not answer at %s: %s; start it with \"systemctl start "
                        "kvtierd\" (or \"kvtierd -c FILE\"), or name its socket with "
                        "--socket=PATH",
                        connection->path, strerror(error));
        return -error;
}

static int say_silent(const struct connection *connection, int error, struct why *why)
{
        if (error == EAGAIN)
                why_set(why,
                        "kvtierd at %s has not answered for %d seconds: it hangs, or the "
                        "machine does; see its log (journalctl -u kvtierd)",
                        connection->path, ANSWER_SECONDS);
        else
                why_set(why, "kvtierd at %s has hung up: %s", connection->path,
                        error ? strerror(error) : "end of stream");
        return error ? -error : -ECONNRESET;
}

static int connect_to(struct connection *connection, struct why *why)
{
        struct timeval timeout = {.tv_sec = ANSWER_SECONDS};
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct ucred peer;
        socklen_t length = sizeof(peer);

        if (strlen(connection->path) >= sizeof(address.sun_path)) {
                why_set(why, "the socket's path has more than %zu bytes: %s",
                        sizeof(address.sun_path) - 1, connection->path);
                return -ENAMETOOLONG;
        }
        strcpy(address.sun_path, connection->path);
        connection->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (connection->fd < 0 ||
            setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) ||
            setsockopt(connection->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) ||
            connect(connection->fd, (const struct sockaddr *)&address, sizeof(address)))
                return say_unreachable(connection, errno, why);
        if (!getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
                connection->daemon_pid = peer.pid;
        return 0;
}

static int send_packet(struct connection *connection, const void *packet, size_t length,
                       struct why *why)
{
        /* Who has hung up already may have said why: that is to be read. */
        if (send(connection->fd, packet, length, MSG_NOSIGNAL) < 0 && errno != EPIPE)
                return say_silent(connection, errno, why);
        return 0;
}

/* Reads a message of @kind; one that says good-bye is an error with its reason. */
static int receive(struct connection *connection, uint8_t packet[WIRE_MESSAGE_MAX], uint16_t kind,
                   struct why *why)
{
        const struct wire_header *header = (const void *)packet;
        ssize_t length = recv(connection->fd, packet, WIRE_MESSAGE_MAX, 0);
        struct why reason = {""};

        if (length <= 0)
                return say_silent(connection, length ? errno : 0, why);
        if (message_check(packet, (size_t)length, &reason) == MESSAGE_E_INVALID) {
                why_set(why, "what answers at %s is no kvtierd: %s", connection->path, reason.text);
                return -EPROTO;
        }
        if (header->kind == WIRE_BYE) {
                why_set(why, "kvtierd ended the session: %s",
                        ((const struct wire_bye *)(const void *)packet)->why);
                return -ECONNABORTED;
        }
        if (header->kind != kind) {
                why_set(why, "kvtierd answered with %s where %s was due",
                        message_kind_name(header->kind), message_kind_name(kind));
                return -EPROTO;
        }
        return 0;
}

static int shake_hands(struct connection *connection, struct why *why)
{
        _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
        const struct wire_welcome *welcome = (const void *)packet;
        struct wire_hello hello = {
                .major = WIRE_MAJOR,
                .minor = WIRE_MINOR,
                .flags = WIRE_HELLO_ADMIN,
                .program = "kvtierctl",
        };
        int r;

        message_header_init(&hello.header, WIRE_HELLO, ++connection->request, 0, NULL);
        hello.header.length = sizeof(hello);
        r = send_packet(connection, &hello, sizeof(hello), why);
        if (r < 0)
                return r;
        r = receive(connection, packet, WIRE_WELCOME, why);
        if (r < 0)
                return r;
        if (welcome->status != KVT_WIRE_OK) {
                why_set(why, "kvtierd refused: %s", welcome->why);
                return -ECONNREFUSED;
        }
        connection->session = welcome->session;
        memcpy(connection->boot_id, welcome->boot_id, sizeof(connection->boot_id));
        return 0;
}

int connection_open(struct connection *connection, const char *path, struct why *why)
{
        int r;

        *connection = (struct connection){.fd = -1, .path = path};
        r = connect_to(connection, why);
        if (r == 0)
                r = shake_hands(connection, why);
        if (r < 0)
                connection_close(connection);
        return r;
}

void connection_close(struct connection *connection)
{
        if (connection->fd >= 0)
                close(connection->fd);
        connection->fd = -1;
}

static int send_command(struct connection *connection, const json_t *command, struct why *why)
{
        _cleanup_free_ char *text = json_dumps(command, JSON_COMPACT);
        _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
        struct message_builder builder;
        struct wire_header header;
        int r = 0;

        if (!text) {
                why_set(why, "out of memory");
                return -ENOMEM;
        }
        message_header_init(&header, WIRE_ADMIN, ++connection->request, connection->session,
                            connection->boot_id);
        for (size_t left = strlen(text), at = 0; left && !r;) {
                uint32_t length = left < TEXT_MAX ? (uint32_t)left : TEXT_MAX;

                message_builder_init(&builder, packet, &header, sizeof(header));
                message_append(&builder, text + at, length, length);
                left -= length;
                at += length;
                message_set_more(&builder, left);
                r = send_packet(connection, packet, builder.length, why);
        }
        return r;
}

static int append(struct answer *answer, const char *text, size_t length, struct why *why)
{
        if (answer->length + length > answer->capacity) {
                size_t capacity = 2 * (answer->length + length);
                char *more = capacity <= ANSWER_MAX ? realloc(answer->text, capacity) : NULL;

                if (!more) {
                        why_set(why, "the answer is too long");
                        return -ENOMEM;
                }
                answer->text = more;
                answer->capacity = capacity;
        }
        memcpy(answer->text + answer->length, text, length);
        answer->length += length;
        return 0;
}

static int take_lines(struct answer *answer, void (*on_document)(void *user, json_t *document),
                      void *user, struct why *why)
{
        char *newline;

        while (answer->length && (newline = memchr(answer->text, '\n', answer->length))) {
                size_t length = (size_t)(newline - answer->text);
                json_error_t error;
                json_t *document = json_loadb(answer->text, length, 0, &error);

                if (!document) {
                        why_set(why, "kvtierd's answer is not JSON: %s", error.text);
                        return -EPROTO;
                }
                on_document(user, document);
                json_decref(document);
                answer->length -= length + 1;
                memmove(answer->text, newline + 1, answer->length);
        }
        return 0;
}

static int receive_answer(struct connection *connection, struct answer *answer,
                          void (*on_document)(void *user, json_t *document), void *user,
                          struct why *why)
{
        _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];
        const struct wire_header *header = (const void *)packet;
        int r;

        do {
                r = receive(connection, packet, WIRE_ADMIN_REPLY, why);
                if (r == 0)
                        r = append(answer, message_text(header), header->n_items, why);
                if (r == 0)
                        r = take_lines(answer, on_document, user, why);
        } while (r == 0 && header->flags & WIRE_MORE);
        return r;
}

int connection_ask(struct connection *connection, const json_t *command,
                   void (*on_document)(void *user, json_t *document), void *user, struct why *why)
{
        struct answer answer = {0};
        int r = send_command(connection, command, why);

        if (r == 0)
                r = receive_answer(connection, &answer, on_document, user, why);
        if (r == 0 && answer.length) {
                why_set(why, "kvtierd's answer ends in the middle of a line");
                r = -EPROTO;
        }
        free(answer.text);
        return r;
}
