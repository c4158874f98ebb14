// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/admin.h"
#include "daemon/admin_explain.h"
#include "daemon/admin_layouts.h"
#include "daemon/admin_mark.h"
#include "daemon/admin_objects.h"
#include "daemon/admin_pool.h"
#include "daemon/admin_show.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "daemon/removal.h"
#include "daemon/verify.h"

/* Room for text in one message. */
#define TEXT_MAX (WIRE_MESSAGE_MAX - (uint32_t)sizeof(struct wire_header))
/* A command, all its parts together: the digests of a long prompt are most of it. */
#define COMMAND_MAX (512u << 10)

static void send_text(struct session *session, uint64_t request, const char *text, bool more)
{
        size_t left = strlen(text);
        _Alignas(8) uint8_t packet[WIRE_MESSAGE_MAX];

        do {
                uint32_t length = left < TEXT_MAX ? (uint32_t)left : TEXT_MAX;
                struct message_builder builder;
                struct wire_header header;

                message_header_init(&header, WIRE_ADMIN_REPLY, request, session->id,
                                    session->daemon->boot_id);
                message_builder_init(&builder, packet, &header, sizeof(header));
                message_append(&builder, text, length, length);
                left -= length;
                text += length;
                message_set_more(&builder, left || more);
                session_send_message(session, &builder);
        } while (left);
}

void admin_reply(struct session *session, uint64_t request, json_t *answer, bool more)
{
        _cleanup_free_ char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
        _cleanup_free_ char *line = NULL;

        json_decref(answer);
        if (!text || asprintf(&line, "%s\n", text) < 0) {
                line = NULL;
                send_text(session, request, "{\"ok\":false,\"error\":\"out of memory\"}\n", more);
                return;
        }
        send_text(session, request, line, more);
}

json_t *admin_error(const char *format, ...)
{
        char text[512];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        return json_pack("{s:b, s:s}", "ok", 0, "error", text);
}

static json_t *kick(const struct session *asker, const json_t *arguments)
{
        const json_t *id = json_object_get(arguments, "session");
        struct session *session;

        if (!json_is_integer(id))
                return admin_error("kick: \"session\" must be a number: see kvtierctl sessions");
        session = session_by_id(asker->daemon, (uint64_t)json_integer_value(id));
        if (!session || session == asker || session->state >= SESSION_CLOSING)
                return admin_error("kick: there is no open session %" JSON_INTEGER_FORMAT,
                                   json_integer_value(id));
        session_close(session, METRICS_HANG_UP, "kicked", "kvtierctl kick");
        return json_pack("{s:b, s:I}", "ok", 1, "leases", (json_int_t)session->n_leases);
}

static void on_verify_progress(struct session *session, uint64_t request,
                               const struct verify_progress *progress)
{
        admin_reply(session, request,
                    json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "ok", 1, "done",
                              (json_int_t)progress->done, "total", (json_int_t)progress->total,
                              "bytes", (json_int_t)progress->bytes, "corrupt",
                              (json_int_t)progress->corrupt, "stale", (json_int_t)progress->stale,
                              "failed", (json_int_t)progress->failed, "finished",
                              (int)progress->finished),
                    !progress->finished);
}

static void verify(struct session *session, uint64_t request)
{
        int r = verify_start(session->daemon, session, on_verify_progress, request);

        if (r)
                admin_reply(session, request,
                            r == -EBUSY ? admin_error("verify: another verification is running")
                                        : admin_error("verify: %s", strerror(-r)),
                            false);
}

static json_t *describe_removal(const struct removal_result *result)
{
        return json_pack("{s:b, s:I, s:I, s:I}", "ok", 1, "objects", (json_int_t)result->objects,
                         "bytes", (json_int_t)result->bytes, "kept", (json_int_t)result->kept);
}

static void on_removed(struct session *session, uint64_t request,
                       const struct removal_result *result)
{
        admin_reply(session, request, describe_removal(result), false);
}

static void removal(struct session *session, uint64_t number, const json_t *arguments, bool clear)
{
        struct removal_request request = {
                .session = session,
                .request = number,
                .on_end = on_removed,
        };
        json_t *error = admin_removal(session->daemon, arguments, clear, &request);
        struct removal_result result;
        int r = 0;

        if (!error && request.is_of_boundary) {
                removal_of_boundary(session->daemon, &request, &result);
                admin_reply(session, number, describe_removal(&result), false);
                return;
        }
        if (!error)
                r = removal_start(session->daemon, &request);
        if (r)
                error = r == -EBUSY ? admin_error("another evict or clear is running")
                                    : admin_error("%s", strerror(-r));
        if (r || error)
                admin_reply(session, number, error, false);
}

static const struct {
        const char *name;
        json_t *(*run)(struct daemon *daemon, const json_t *arguments);
} commands[] = {
        {"status", admin_status},
        {"layouts", admin_layouts},
        {"ls", admin_ls},
};

static json_t *run(struct session *session, const char *name, const json_t *arguments)
{
        if (!strcmp(name, "sessions"))
                return admin_sessions(session);
        if (!strcmp(name, "kick"))
                return kick(session, arguments);
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
                if (!strcmp(commands[i].name, name))
                        return commands[i].run(session->daemon, arguments);
        return admin_error("\"%s\" is not a command of this daemon", name);
}

/* Commands that need to know what lies on NVMe. */
static bool touches_tiers(const char *name)
{
        return !strcmp(name, "verify") || !strcmp(name, "evict") || !strcmp(name, "clear") ||
               !strcmp(name, "show") || admin_is_mark(name);
}

static void explain(struct session *session, uint64_t request, const json_t *arguments)
{
        bool waits;
        json_t *answer = admin_explain(session, request, arguments, &waits);

        if (!waits)
                admin_reply(session, request, answer, false);
}

static void run_command(struct session *session, uint64_t request, const char *text, size_t length)
{
        json_error_t error;
        json_auto_t *arguments = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
        const char *name = json_string_value(json_object_get(arguments, "command"));

        if (!arguments)
                admin_reply(session, request,
                            admin_error("not JSON: %s at byte %d", error.text, error.position),
                            false);
        else if (!name)
                admin_reply(session, request, admin_error("no \"command\": it must be a string"),
                            false);
        else if (!session->daemon->recovered && touches_tiers(name))
                admin_reply(session, request,
                            admin_error("the NVMe tier is being recovered: try again"), false);
        else if (!strcmp(name, "show"))
                admin_show(session, request, arguments);
        else if (admin_is_mark(name))
                admin_mark(session, request, name, arguments);
        else if (!strcmp(name, "verify"))
                verify(session, request);
        else if (!strcmp(name, "evict") || !strcmp(name, "clear"))
                removal(session, request, arguments, *name == 'c');
        else if (admin_is_pool(name))
                admin_pool(session, request, name, arguments);
        else if (!strcmp(name, "why"))
                explain(session, request, arguments);
        else
                admin_reply(session, request, run(session, name, arguments), false);
}

/* Keeps a part of a command that is longer than a message. False: it does not. */
static bool keep_part(struct session *session, const struct wire_header *header)
{
        struct session_command *command = &session->command;
        char *text;

        if (command->length && command->request != header->request)
                command->length = 0; /* the rest of that one never came */
        if (command->length + header->n_items > COMMAND_MAX)
                return false;
        text = realloc(command->text, command->length + header->n_items + 1);
        if (!text)
                return false;
        command->text = text;
        command->request = header->request;
        memcpy(command->text + command->length, message_text(header), header->n_items);
        command->length += header->n_items;
        return true;
}

static void forget_parts(struct session *session)
{
        free(session->command.text);
        session->command = (struct session_command){0};
}

void admin_command(struct session *session, const struct wire_header *header)
{
        bool is_whole = !(header->flags & WIRE_MORE) && !session->command.length;

        if (!session->is_admin)
                admin_reply(session, header->request,
                            admin_error("uid %u may not give admin commands: be root, or join the "
                                        "group of admin.group",
                                        session->uid),
                            false);
        else if (is_whole)
                run_command(session, header->request, message_text(header), header->n_items);
        else if (!keep_part(session, header))
                session_close(session, METRICS_GARBAGE, "garbage", "an ADMIN command too long");
        else if (!(header->flags & WIRE_MORE)) {
                run_command(session, header->request, session->command.text,
                            session->command.length);
                forget_parts(session);
        }
}

void admin_hang_up(struct session *session)
{
        verify_session_gone(session->daemon, session);
        removal_session_gone(session->daemon, session);
        admin_pool_cancel(session->daemon, session);
        admin_explain_session_gone(session);
        forget_parts(session);
}
