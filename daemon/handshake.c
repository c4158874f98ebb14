// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/handshake.h"

static void put_text(char *field, size_t size, const char *text)
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
        put_text(welcome->why, sizeof(welcome->why), text);
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

        if (!session->wants_table ||
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

        take_program(session, hello);
        session->wants_table = !(hello->flags & WIRE_HELLO_ADMIN);
        if (!version_is_served(hello)) {
                why_set(&why, "protocol %u.%u is not served: this daemon speaks %u.%u",
                        hello->major, hello->minor, WIRE_MAJOR, WIRE_MINOR);
                turn_away(session, hello, KVT_WIRE_UNSUPPORTED, why.text);
                daemon->metrics.attach_refused_total[METRICS_VERSION]++;
                return;
        }
        if (!session_may_stay(session)) {
                why_set(&why, "sessions.max of %u is reached", daemon->config.sessions.max);
                turn_away(session, hello, KVT_WIRE_REFUSED, why.text);
                daemon->metrics.attach_refused_total[METRICS_TOO_MANY]++;
                return;
        }

        init_welcome(&welcome, daemon->boot_id, hello->header.request, session->id, KVT_WIRE_OK,
                     "");
        welcome.minor = lower_minor(hello->minor, WIRE_MINOR);
        memcpy(welcome.secret, session->secret, sizeof(welcome.secret));
        welcome.host_bytes = daemon->config.host.bytes;
        welcome.leases_max = daemon->config.session.leases_max;
        welcome.domain = session->domain;
        if (session->wants_table) {
                welcome.table_bytes = presence_table_size(daemon->cache.presence);
                welcome.n_arenas = (uint32_t)n_arenas;
        }
        session->state = SESSION_WELCOMED;
        session_send(session, &welcome, sizeof(welcome),
                     session->wants_table ? presence_table_fd(daemon->cache.presence) : -1);
        for (size_t i = 0; i < n_arenas; i++)
                handshake_announce(session, host_arena_at(daemon->cache.host, i));
        log_info("session_opened", "session=%" PRIu64 " pid=%d uid=%u program=\"%s\" admin=%d",
                 session->id, (int)session->pid, session->uid, session->program, session->is_admin);
}

/* ---- attach ---- */

static uint32_t choose_chunk(const struct daemon *daemon, const struct layout *layout)
{
        uint32_t lcm = layout_page_lcm(layout);

        return (daemon->config.chunk_tokens + lcm - 1) / lcm * lcm;
}

/* Which shards the engine has here; every shard of the layout must be among them. */
static uint32_t take_shards(struct session *session, const struct wire_attach *attach,
                            struct why *why)
{
        const struct layout *layout = &session->description;
        const uint16_t *shards = message_attach_shards(attach);

        if (!attach->header.n_items)
                memset(session->shard_is_here, 1, LAYOUT_SHARDS_MAX);
        for (uint32_t i = 0; i < attach->header.n_items; i++) {
                if (shards[i] >= LAYOUT_SHARDS_MAX) {
                        why_set(why, "shard %u: at most %u shards are supported", shards[i],
                                LAYOUT_SHARDS_MAX);
                        return KVT_WIRE_INVALID;
                }
                session->shard_is_here[shards[i]] = 1;
        }
        for (uint16_t g = 0; g < layout->n_groups; g++) {
                for (uint16_t s = 0; s < layout->groups[g].n_shards; s++) {
                        if (session->shard_is_here[s])
                                continue;
                        why_set(why,
                                "group %.*s: shard %u of %u is on another node, and no peer "
                                "can answer for it: attach with every shard on this node",
                                layout->groups[g].name.length, layout->groups[g].name.bytes, s,
                                layout->groups[g].n_shards);
                        return KVT_WIRE_REFUSED;
                }
        }
        return KVT_WIRE_OK;
}

/* An object is at most half an arena piece: else a piece could hold one and waste the rest. */
static bool refuse_large(const struct daemon *daemon, const struct layout *layout, struct why *why)
{
        uint64_t limit = daemon->config.host.piece_bytes / 2;
        uint16_t group;
        uint64_t bytes = layout_largest_object(layout, &group);

        if (bytes <= limit)
                return false;
        why_set(why,
                "group %.*s: the layout's largest object has %" PRIu64 " bytes; half an arena "
                "piece is %" PRIu64 ": raise host.piece_bytes or lower chunk_tokens",
                layout->groups[group].name.length, layout->groups[group].name.bytes, bytes, limit);
        return true;
}

static uint32_t take_layout(struct session *session, const struct wire_attach *attach,
                            struct why *why)
{
        struct daemon *daemon = session->daemon;
        struct layout asked;
        int length;

        if (layout_decode(&asked, message_attach_layout(attach), attach->layout_bytes, why))
                return KVT_WIRE_INVALID;
        if (!asked.chunk_tokens)
                asked.chunk_tokens = choose_chunk(daemon, &asked);
        if (layout_validate(&asked, why))
                return KVT_WIRE_INVALID;
        if (refuse_large(daemon, &asked, why))
                return KVT_WIRE_REFUSED;

        session->layout_encoding = malloc(LAYOUT_BYTES_MAX);
        session->shard_is_here = calloc(LAYOUT_SHARDS_MAX, 1);
        if (!session->layout_encoding || !session->shard_is_here)
                return KVT_WIRE_NO_MEMORY;
        length = layout_encode(&asked, session->layout_encoding, LAYOUT_BYTES_MAX);
        if (length < 0 ||
            layout_decode(&session->description, session->layout_encoding, (size_t)length, why))
                return KVT_WIRE_INVALID;
        if (layout_id(&session->layout_id, session->layout_encoding, (size_t)length))
                return KVT_WIRE_NO_MEMORY;
        if (index_layout(daemon->cache.index, session->domain, &session->layout_id,
                         &session->layout)) {
                why_set(why, "too many layouts are stored: clear some by kvtierctl clear");
                return KVT_WIRE_REFUSED;
        }
        /* Without room for it the layout is only not listed in full. */
        if (index_describe_layout(daemon->cache.index, session->layout, session->layout_encoding,
                                  (size_t)length) < 0)
                return KVT_WIRE_NO_MEMORY;
        return take_shards(session, attach, why);
}

static void forget_layout(struct session *session)
{
        free(steal_ptr(session->layout_encoding));
        free(steal_ptr(session->shard_is_here));
        session->layout = 0;
        memset(&session->description, 0, sizeof(session->description));
}

void handshake_attach(struct session *session, const struct wire_attach *attach)
{
        struct daemon *daemon = session->daemon;
        struct wire_attached attached = {0};
        struct why why = {""};

        if (session->state != SESSION_WELCOMED || !session->wants_table) {
                session_close(session, METRICS_GARBAGE, "garbage", "ATTACH in the wrong state");
                return;
        }
        message_header_init(&attached.header, WIRE_ATTACHED, attach->header.request, session->id,
                            daemon->boot_id);
        attached.header.length = sizeof(attached);
        attached.status = take_layout(session, attach, &why);
        if (attached.status) {
                daemon->metrics.attach_refused_total[METRICS_LAYOUT]++;
                put_text(attached.why, sizeof(attached.why), why.text);
                log_warning("attach_refused", "session=%" PRIu64 " status=%s reason=\"%s\"",
                            session->id, status_name(attached.status), why.text);
                forget_layout(session);
        } else {
                memcpy(session->engine_id, attach->engine_id, sizeof(session->engine_id));
                attached.layout = session->layout;
                attached.chunk_tokens = session->description.chunk_tokens;
                attached.n_cells = layout_n_cells(&session->description);
                attached.layout_id = session->layout_id;
                session->state = SESSION_ATTACHED;
                daemon->metrics.sessions_opened_total++;
        }
        session_send(session, &attached, sizeof(attached), -1);
}
