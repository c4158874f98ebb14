// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/handshake.h"

void handshake_put_text(char *field, size_t size, const char *text)
{
        size_t length = strnlen(text, size - 1);

        memset(field, 0, size);
        memcpy(field, text, length);
}

static void init_welcome(struct wire_welcome *welcome, const uint8_t boot_id[16], uint64_t request,
                         uint64_t session, uint32_t status, const char *text)
{
        memset(welcome, 0, sizeof(*welcome));
        message_header_init(&welcome->header, WIRE_WELCOME, request, session, boot_id);
        welcome->header.length = sizeof(*welcome);
        welcome->major = WIRE_MAJOR;
        welcome->minor = WIRE_MINOR;
        welcome->status = status;
        welcome->session = session;
        memcpy(welcome->boot_id, boot_id, sizeof(welcome->boot_id));
        handshake_put_text(welcome->why, sizeof(welcome->why), text);
}

/*
 * Closing a socket with unread input resets the connection, and the client would see that
 * before the refusal. So no more is let in, and what has come is read.
 */
static void drain_input(int socket)
{
        uint8_t byte;

        shutdown(socket, SHUT_RD);
        while (recv(socket, &byte, sizeof(byte), MSG_DONTWAIT) > 0)
                ;
}

void handshake_refusal(struct wire_welcome *ret_welcome, const uint8_t boot_id[16],
                       uint32_t status, const char *text)
{
        init_welcome(ret_welcome, boot_id, 0, 0, status, text);
}

void handshake_refuse(int socket, const uint8_t boot_id[16], uint32_t status, const char *text)
{
        struct wire_welcome welcome;

        init_welcome(&welcome, boot_id, 0, 0, status, text);
        /* A client that cannot be told is refused all the same. */
        if (send(socket, &welcome, sizeof(welcome), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
                log_debug("refusal_not_sent", "error=\"%s\"", strerror(errno));
        drain_input(socket);
}

void handshake_announce(struct session *session, const struct host_arena *arena)
{
        struct wire_arena message = {
                .arena_id = arena->id,
                .numa_node = arena->numa_node,
                .bytes = arena->bytes,
                .page_bytes = arena->page_bytes,
        };

        if (!session->wants_table || !session->carrier->shares_memory ||
            (session->state != SESSION_WELCOMED && session->state != SESSION_ATTACHED))
                return;
        message_header_init(&message.header, WIRE_ARENA, 0, session->id, session->daemon->boot_id);
        message.header.length = sizeof(message);
        session_send(session, &message, sizeof(message), arena->fd);
}

/*
 * A daemon serves its own minor and the one before; newer clients speak ours. There is no
 * minor before 0 yet: a check comes with minor 2.
 */
static bool version_is_served(const struct wire_hello *hello)
{
        return hello->major == WIRE_MAJOR;
}

static uint16_t lower_minor(uint16_t a, uint16_t b)
{
        return a < b ? a : b;
}

/* The name goes into JSON and log lines: printable ASCII without quotes stays. */
static void take_program(struct session *session, const struct wire_hello *hello)
{
        memcpy(session->program, hello->program, sizeof(session->program));
        session->program[sizeof(session->program) - 1] = '\0';
        for (char *c = session->program; *c; c++)
                if (*c < ' ' || *c > '~' || *c == '"')
                        *c = '?';
}

static void turn_away(struct session *session, const struct wire_hello *hello, uint32_t status,
                      const char *text)
{
        struct wire_welcome welcome;

        init_welcome(&welcome, session->daemon->boot_id, hello->header.request, session->id, status,
                     text);
        session_send(session, &welcome, sizeof(welcome), -1);
        if (status == KVT_WIRE_UNSUPPORTED)
                session_close(session, METRICS_GARBAGE, "version", text);
        else
                session_close(session, METRICS_HANG_UP, "refused", text);
}

void handshake_hello(struct session *session, const struct wire_hello *hello)
{
        struct daemon *daemon = session->daemon;
        struct wire_welcome welcome;
        struct why why;
        size_t n_arenas = host_n_arenas(daemon->cache.host);
        bool shares_memory;

        take_program(session, hello);
        session->wants_table = !(hello->flags & WIRE_HELLO_ADMIN);
        if (!version_is_served(hello)) {
                why_set(&why, "protocol %u.%u is not served: this daemon speaks %u.%u",
                        hello->major, hello->minor, WIRE_MAJOR, WIRE_MINOR);
                turn_away(session, hello, KVT_WIRE_UNSUPPORTED, why.text);
                daemon->metrics.attach_refused_total[METRICS_VERSION]++;
                return;
        }
        if (!session->wants_table && !session->carrier->shares_memory) {
                turn_away(session, hello, KVT_WIRE_DENIED, "kvtierctl works on the node itself");
                daemon->metrics.attach_refused_total[METRICS_NOT_PERMITTED]++;
                return;
        }
        if (!session_may_stay(session)) {
                why_set(&why, "sessions.max of %u is reached", daemon->config.sessions.max);
                turn_away(session, hello, KVT_WIRE_REFUSED, why.text);
                daemon->metrics.attach_refused_total[METRICS_TOO_MANY]++;
                return;
        }

        shares_memory = session->wants_table && session->carrier->shares_memory;
        init_welcome(&welcome, daemon->boot_id, hello->header.request, session->id, KVT_WIRE_OK,
                     "");
        welcome.minor = lower_minor(hello->minor, WIRE_MINOR);
        memcpy(welcome.secret, session->secret, sizeof(welcome.secret));
        welcome.host_bytes = daemon->config.host.bytes;
        welcome.leases_max = daemon->config.session.leases_max;
        welcome.domain = session->domain;
        if (shares_memory) {
                welcome.table_bytes = presence_table_size(daemon->cache.presence);
                welcome.n_arenas = (uint32_t)n_arenas;
        }
        session->state = SESSION_WELCOMED;
        session_send(session, &welcome, sizeof(welcome),
                     shares_memory ? presence_table_fd(daemon->cache.presence) : -1);
        for (size_t i = 0; i < n_arenas; i++)
                handshake_announce(session, host_arena_at(daemon->cache.host, i));
        log_info("session_opened", "session=%" PRIu64 " pid=%d uid=%u from=%s program=%s admin=%d",
                 session->id, (int)session->pid, session->uid, session->from,
                 log_quoted(session->program).text, session->is_admin);
}
