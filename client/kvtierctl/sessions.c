// SPDX-License-Identifier: Apache-2.0
/* kvtierctl sessions, kick: who is attached, and ending one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

/* What an engine sees of the store, and leaves in it. */
static const char *mode_of(const json_t *session)
{
        bool loads = json_bool(session, "loads"), stores = json_bool(session, "stores");

        if (json_bool(session, "admin"))
                return "admin";
        return loads && stores ? "normal" : loads ? "no stores" : stores ? "no loads" : "bypass";
}

/* "2/4", "-" for a session that told none. Valid until the next call. */
static const char *rank_of(const json_t *session)
{
        static char text[32];

        if (!json_u64(session, "n_ranks"))
                return "-";
        snprintf(text, sizeof(text), "%u/%u", (unsigned)json_u64(session, "rank"),
                 (unsigned)json_u64(session, "n_ranks"));
        return text;
}

/* "2/4" of an engine that has others elsewhere, else "all". Valid until the next call. */
static const char *shards_of(const json_t *session)
{
        static char text[32];
        uint64_t here = json_u64(session, "shards"), n = json_u64(session, "n_shards");

        if (here == n)
                return n ? "all" : "-";
        snprintf(text, sizeof(text), "%u/%u", (unsigned)here, (unsigned)n);
        return text;
}

static void add_session(struct table *table, const json_t *session)
{
        const char *layout = json_text(session, "layout");

        table_add(table, "%llu", (unsigned long long)json_u64(session, "session"));
        table_add(table, "%s", json_text(session, "state"));
        table_add(table, "%llu", (unsigned long long)json_u64(session, "pid"));
        table_add(table, "%llu", (unsigned long long)json_u64(session, "uid"));
        table_add(table, "%s", json_text(session, "program"));
        table_add(table, "%s", rank_of(session));
        table_add(table, "%s", shards_of(session));
        table_add(table, "%.12s", layout[0] ? layout : "-");
        table_add(table, "%s", mode_of(session));
        table_add(table, "%s", text_seconds(json_double(session, "age_seconds")));
        table_add(table, "%s", text_count(json_u64(session, "leases")));
        table_add(table, "%s", text_bytes(json_u64(session, "leased_bytes")));
        table_add(table, "%s", text_count(json_u64(session, "pins")));
        table_add(table, "%s", text_bytes(json_u64(session, "stored_bytes")));
        table_add(table, "%s", text_bytes(json_u64(session, "loaded_bytes")));
}

int sessions_command(struct context *context, int argc, char **argv)
{
        json_auto_t *answer = NULL;
        const json_t *session;
        struct table table;
        size_t i;
        int r;

        command_parse(context, NULL,
                      "Processes that are attached, or whose leases stay in quarantine until "
                      "they are gone.",
                      argc, argv, NULL, 0);
        r = command_ask(context, json_pack("{s:s}", "command", "sessions"), &answer);
        if (r)
                return r;
        if (context->json) {
                command_print_json(answer, false);
                return STATUS_OK;
        }
        table_init(&table, "#SESSION STATE #PID #UID PROGRAM RANK SHARDS LAYOUT MODE #AGE #LEASES "
                           "#LEASED #PINS #STORED #LOADED");
        json_array_foreach(json_object_get(answer, "sessions"), i, session)
                add_session(&table, session);
        r = table_print(&table, stdout);
        table_deinit(&table);
        return r ? STATUS_NEGATIVE : STATUS_OK;
}

static error_t parse_session(int key, char *value, struct argp_state *state)
{
        unsigned long long *session = state->input;
        char *end;

        switch (key) {
        case ARGP_KEY_ARG:
                errno = 0;
                *session = strtoull(value, &end, 10);
                if (state->arg_num > 0 || errno || *end || end == value || *session > INT64_MAX)
                        argp_error(state, "one session's number: see kvtierctl sessions");
                return 0;
        case ARGP_KEY_NO_ARGS:
                argp_error(state, "which session? See kvtierctl sessions");
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

int kick_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {.parser = parse_session, .args_doc = "SESSION"};
        json_auto_t *answer = NULL;
        unsigned long long session = 0;
        int r;

        command_parse(context, &argp,
                      "Ends a session. Its leases stay in quarantine until its process is gone.",
                      argc, argv, &session, 0);
        r = command_ask(context,
                        json_pack("{s:s, s:I}", "command", "kick", "session", (json_int_t)session),
                        &answer);
        if (r)
                return r;
        if (context->json)
                command_print_json(answer, false);
        else
                printf("session %llu ends; %s leases in quarantine until its process is gone\n",
                       session, text_count(json_u64(answer, "leases")));
        return STATUS_OK;
}
