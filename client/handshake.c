// SPDX-License-Identifier: Apache-2.0
/*
 * From a path to an attached session. A refusal in words by the daemon is remembered for
 * kvt_open() and tried again at the slowest rate: the daemon may be configured anew.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/session.h"
#include "proto/message.h"
#include "proto/presence.h"

#define HANDSHAKE_NS_MAX UINT64_C(5000000000)

static void back_off(struct kvt_session *session)
{
        session->connect_at_ns = kvt__now_ns() + session->backoff_ns;
        session->backoff_ns *= 2;
        if (session->backoff_ns > KVT__BACKOFF_NS_MAX)
                session->backoff_ns = KVT__BACKOFF_NS_MAX;
}

/* Will the same attempt fail again until somebody changes something? */
static bool is_lasting(enum kvt_status status)
{
        return status == KVT_DENIED || status == KVT_REFUSED || status == KVT_UNSUPPORTED ||
               status == KVT_INVALID || status == KVT_TOO_LARGE || status == KVT_NO_MEMORY;
}

static void refuse(struct kvt_session *session, enum kvt_status status, const char *text,
                   size_t length)
{
        kvt__session_break(session, "%.*s", (int)strnlen(text, length), text);
        if (!is_lasting(status))
                return;
        session->refusal = status;
        session->backoff_ns = KVT__BACKOFF_NS_MAX;
}

static int connect_to(const struct sockaddr_un *address)
{
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0)
                return err_raise(-errno);
        if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
                int error = errno;

                close(fd);
                return err_raise(-error);
        }
        return fd;
}

void kvt__handshake_start(struct kvt_session *session)
{
        struct wire_hello hello = {.major = WIRE_MAJOR, .minor = WIRE_MINOR};
        int fd = session->bridge ? session->remote_ops->connect(session->bridge)
                                 : connect_to(&session->address);

        if (fd < 0) {
                why_set(&session->last_error, "connecting to %s: %s",
                        session->bridge ? "the RDMA module" : session->address.sun_path,
                        strerror(-fd));
                back_off(session);
                /* No daemon: memory that nobody reads should be free for the next one. */
                kvt__arenas_sweep(&session->arenas);
                return;
        }
        session->socket = fd;
        session->phase = KVT__GREETING;
        session->refusal = KVT_OK;
        session->handshake_until_ns = kvt__now_ns() + HANDSHAKE_NS_MAX;
        message_header_init(&hello.header, WIRE_HELLO, ++session->calls.last_id, 0, NULL);
        hello.header.length = sizeof(hello);
        memcpy(hello.program, session->program, sizeof(hello.program));
        back_off(session);
        kvt__session_send(session, &hello, sizeof(hello));
}

static void send_attach(struct kvt_session *session)
{
        uint32_t flags = session->open_flags;
        struct wire_attach attach = {
                .layout_bytes = (uint32_t)session->asked.length,
                .flags = (flags & KVT_OPEN_NO_LOADS ? WIRE_ATTACH_NO_LOADS : 0) |
                         (flags & KVT_OPEN_NO_STORES ? WIRE_ATTACH_NO_STORES : 0),
        };
        struct message_builder builder;

        /* The only rank of its engine is no rank to tell of. */
        if (session->rank.n_ranks > 1) {
                attach.rank = session->rank.rank;
                attach.n_ranks = session->rank.n_ranks;
        }
        memcpy(attach.engine_id, session->engine_id, sizeof(attach.engine_id));
        message_header_init(&attach.header, WIRE_ATTACH, ++session->calls.last_id,
                            session->era->session, session->era->boot_id);
        message_builder_init(&builder, session->out_buffer, &attach, sizeof(attach));
        message_append(&builder, session->shards, session->n_shards * sizeof(session->shards[0]),
                       session->n_shards);
        message_append(&builder, session->asked.bytes, session->asked.length, 0);
        session->phase = KVT__ATTACHING;
        kvt__session_send(session, builder.buffer, builder.length);
}

/* A daemon whose memory is not what it must be is refused: it could crash the engine. */
static void refuse_memory(struct kvt_session *session, int error, const struct why *why)
{
        refuse(session, error == -ENOMEM ? KVT_NO_MEMORY : KVT_REFUSED, why->text,
               sizeof(why->text));
}

static void on_welcome(struct kvt_session *session, const struct wire_welcome *welcome, int fd)
{
        struct kvt__era *era;
        struct why why = {""};
        int r;

        if (welcome->status != KVT_OK) {
                refuse(session, (enum kvt_status)welcome->status, welcome->why,
                       sizeof(welcome->why));
                return;
        }
        if (welcome->major != WIRE_MAJOR || welcome->minor > WIRE_MINOR || fd < 0) {
                kvt__session_break(session, "the daemon's greeting makes no sense: version %u.%u%s",
                                   welcome->major, welcome->minor, fd < 0 ? ", no table" : "");
                return;
        }
        r = kvt__table_map(&session->tables, fd, welcome->table_bytes, &why);
        if (r) {
                refuse_memory(session, r, &why);
                return;
        }
        era = calloc(1, sizeof(*era));
        if (!era) {
                kvt__session_break(session, "out of memory");
                return;
        }
        era->session = welcome->session;
        memcpy(era->boot_id, welcome->boot_id, sizeof(era->boot_id));
        memcpy(era->secret, welcome->secret, sizeof(era->secret));
        TAILQ_INSERT_TAIL(&session->eras, era, link);
        session->era = era;
        session->domain = welcome->domain;
        session->host_bytes = welcome->host_bytes;
        session->n_arenas_due = welcome->n_arenas;
        session->phase = KVT__ANNOUNCING;
        if (!session->n_arenas_due)
                send_attach(session);
}

static void on_arena(struct kvt_session *session, const struct wire_arena *arena, int fd)
{
        struct why why = {""};
        int r;

        if (fd < 0) {
                kvt__session_break(session, "the daemon announced an arena without its memory");
                return;
        }
        r = kvt__arena_announce(&session->arenas, arena->arena_id, arena->bytes, arena->numa_node,
                                fd, &why);
        if (r) {
                refuse_memory(session, r, &why);
                return;
        }
        if (session->phase == KVT__ANNOUNCING && !--session->n_arenas_due)
                send_attach(session);
}

/*
 * The layout is whole: from here on calls are sent and the table is read. Of an engine that spans
 * nodes it shows nothing but what is asked for; that of a bridge never does.
 */
static void use_layout(struct kvt_session *session, uint32_t handle, const struct layout *layout,
                       const struct digest *id)
{
        struct kvt__found *found = NULL;
        struct layout_span span;

        layout_span_init(&span, layout, session->shards, session->n_shards);
        if (session->spans_nodes && !session->bridge && kvt__found_new(&found, layout, &span)) {
                kvt__session_break(session, "out of memory");
                return;
        }
        session->layout = handle;
        session->chunk_tokens = layout->chunk_tokens;
        session->layout_id = *id;
        kvt__table_set_layout(&session->tables, layout, id, session->domain, found);
        if (kvt__session_may_look(session, kvt__now_ns()))
                kvt__table_show(&session->tables);
}

/* Both sides must have hashed the same bytes: a wrong id would mix two layouts' objects. */
static bool check_layout(struct kvt_session *session, const struct wire_attached *attached,
                         struct why *why)
{
        struct kvt__layout_encoding *chosen = malloc(sizeof(*chosen));
        struct layout layout;
        struct digest id;
        bool same = false;

        if (!chosen) {
                why_set(why, "out of memory");
                return false;
        }
        if (!kvt__layout_choose(chosen, &layout, &session->asked, attached->chunk_tokens, why) &&
            !layout_id(&id, chosen->bytes, chosen->length)) {
                same = digest_equal(&id, &attached->layout_id) &&
                       attached->n_cells == layout_n_cells(&layout);
                if (same)
                        use_layout(session, attached->layout, &layout, &id);
                else
                        why_set(why, "the daemon and the library disagree about the layout's id");
        }
        free(chosen);
        return same;
}

static void come_up(struct kvt_session *session)
{
        memcpy(session->boot_id, session->era->boot_id, sizeof(session->boot_id));
        session->n_attached++;
        session->backoff_ns = KVT__BACKOFF_NS_MIN;
        session->phase = KVT__UP;
        kvt__arenas_sweep(&session->arenas);
        kvt__session_settle(session);
        if (session->layout) {
                kvt__pin_again(session);
                kvt__tell_again(session);
        }
        pthread_cond_broadcast(&session->changed);
}

static void on_attached(struct kvt_session *session, const struct wire_attached *attached)
{
        struct why why = {"out of memory"};

        if (attached->status != KVT_OK && attached->status != KVT_PENDING) {
                refuse(session, (enum kvt_status)attached->status, attached->why,
                       sizeof(attached->why));
                return;
        }
        if (attached->status == KVT_PENDING) {
                why_set(&session->last_error, "%.*s",
                        (int)strnlen(attached->why, sizeof(attached->why)), attached->why);
        } else if (session->asked_is_partial) {
                return; /* the whole layout follows */
        } else if (!check_layout(session, attached, &why)) {
                refuse(session, KVT_REFUSED, why.text, sizeof(why.text));
                return;
        }
        come_up(session);
}

/* Every row is in. */
static void on_layout(struct kvt_session *session, const struct wire_layout *message)
{
        struct layout layout;
        struct why why = {""};

        if (kvt__layout_complete(&layout, &session->asked, message_layout_encoding(message),
                                 message->layout_bytes, &message->layout_id, &why)) {
                refuse(session, KVT_REFUSED, why.text, sizeof(why.text));
                return;
        }
        use_layout(session, message->layout, &layout, &message->layout_id);
        if (session->phase == KVT__ATTACHING) {
                come_up(session);
        } else {
                kvt__pin_again(session);
                kvt__tell_again(session);
        }
        pthread_cond_broadcast(&session->changed);
}

static void on_bye(struct kvt_session *session, const struct wire_bye *bye)
{
        if (session->phase != KVT__UP)
                refuse(session, (enum kvt_status)bye->status, bye->why, sizeof(bye->why));
        else
                kvt__session_break(session, "the daemon hung up: %.*s",
                                   (int)strnlen(bye->why, sizeof(bye->why)), bye->why);
}

void kvt__handshake_step(struct kvt_session *session, const void *packet, int fd)
{
        const struct wire_header *header = packet;
        enum kvt__phase phase = session->phase;

        if (header->kind == WIRE_BYE)
                on_bye(session, packet);
        else if (header->kind == WIRE_WELCOME && phase == KVT__GREETING)
                on_welcome(session, packet, fd);
        else if (header->kind == WIRE_ARENA && phase > KVT__GREETING)
                on_arena(session, packet, fd);
        else if (header->kind == WIRE_ATTACHED && phase == KVT__ATTACHING)
                on_attached(session, packet);
        else if (header->kind == WIRE_LAYOUT && session->asked_is_partial && !session->layout &&
                 phase >= KVT__ATTACHING)
                on_layout(session, packet);
        else
                kvt__session_break(session, "the daemon sent %s out of order",
                                   message_kind_name(header->kind));
}
