// SPDX-License-Identifier: Apache-2.0
/* kvtierctl pool, pool gc: who shares the remote pool, and what the dead have left there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

#define NODE_DIGITS 12

struct request {
        const char *verb; /* NULL: show */
        const char *node; /* NULL: all that are dead */
        unsigned long older_than;
};

enum { OPTION_OLDER = 256 };

static const struct argp_option options[] = {
        {"older-than", OPTION_OLDER, "SECONDS", 0,
         "Dead is a node that has not been heard of for so long (default: 86400, a day)", 0},
        {0},
};

static void take_word(struct argp_state *state, struct request *request, const char *word)
{
        if (!request->verb && strcmp(word, "gc"))
                argp_error(state, "\"%s\" is not gc", word);
        else if (!request->verb)
                request->verb = word;
        else if (request->node)
                argp_error(state, "one node, not more");
        else
                request->node = word;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;
        char *end;

        switch (key) {
        case OPTION_OLDER:
                errno = 0;
                request->older_than = strtoul(value, &end, 10);
                if (errno || *end || !request->older_than || *value == '-' ||
                    request->older_than > UINT32_MAX)
                        argp_error(state, "--older-than=%s: not a number of seconds", value);
                return 0;
        case ARGP_KEY_ARG:
                take_word(state, request, value);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static json_t *command_of(const struct request *request)
{
        json_t *command = json_pack("{s:s}", "command", request->verb ? "pool gc" : "pool");

        if (command && request->node)
                json_object_set_new(command, "node", json_string(request->node));
        if (command && request->older_than)
                json_object_set_new(command, "older_than",
                                    json_integer((json_int_t)request->older_than));
        return command;
}

/* ---- pool ---- */

static void add_node(struct table *table, const json_t *node)
{
        const char *host = json_text(node, "host"), *state = json_text(node, "state");
        bool is_known = !strcmp(state, "alive") || !strcmp(state, "dead");

        table_add(table, "%.*s", NODE_DIGITS, json_text(node, "node"));
        table_add(table, "%s", *host ? host : "-");
        table_add(table, "%s%s", state, json_bool(node, "own") ? " (this)" : "");
        table_add(table, "%s",
                  is_known ? text_seconds((double)json_u64(node, "age_seconds")) : "-");
        table_add(table, "%s", text_count(json_u64(node, "bundles")));
        table_add(table, "%s", text_bytes(json_u64(node, "bytes")));
        table_add(table, "%s", text_bytes(json_u64(node, "bytes_max")));
        table_add(table, "%s", text_count(json_u64(node, "segments")));
}

static void print_own(const json_t *answer)
{
        const json_t *own = json_object_get(answer, "own");

        printf("%s pool; this node is %.*s; breaker %s, opened %s times\n",
               json_text(answer, "backend"), NODE_DIGITS, json_text(answer, "node"),
               json_text(answer, "breaker"), text_count(json_u64(answer, "opened")));
        printf("%s entries; own: %s of %s in %s bundles, %s not referred to any more\n",
               text_count(json_u64(own, "entries")), text_bytes(json_u64(own, "bytes")),
               text_bytes(json_u64(own, "bytes_max")), text_count(json_u64(own, "bundles")),
               text_bytes(json_u64(own, "dead_bytes")));
        printf("journal segments: %s read%s, %s written, %s damaged; %s stale entries, "
               "%s timeouts\n",
               text_count(json_u64(own, "segments_read")),
               json_bool(own, "caught_up") ? "" : " so far",
               text_count(json_u64(own, "segments_written")),
               text_count(json_u64(own, "segments_damaged")),
               text_count(json_u64(own, "stale_entries")), text_count(json_u64(own, "timeouts")));
        if (*json_text(answer, "last_failure"))
                printf("last failure: %s\n", json_text(answer, "last_failure"));
}

static int print_pool(const json_t *answer)
{
        const json_t *node;
        struct table table;
        size_t i;
        int r;

        print_own(answer);
        table_init(&table, "NODE HOST STATE #HEARD #BUNDLES #BYTES #CAP #SEGMENTS");
        json_array_foreach(json_object_get(answer, "nodes"), i, node) add_node(&table, node);
        r = table_print(&table, stdout);
        table_deinit(&table);
        printf("%s nodes, %s of them dead; %s in %s bundles\n",
               text_count(json_u64(answer, "nodes_total")),
               text_count(json_u64(answer, "nodes_dead")),
               text_bytes(json_u64(answer, "bytes_total")),
               text_count(json_u64(answer, "bundles_total")));
        return r ? STATUS_NEGATIVE : STATUS_OK;
}

static int show(struct context *context, const struct request *request)
{
        json_auto_t *answer = NULL;
        int r = command_ask(context, command_of(request), &answer);

        if (r)
                return r;
        if (context->json)
                command_print_json(answer, false);
        else
                r = print_pool(answer);
        if (*json_text(answer, "trouble")) {
                command_error("the nodes could not all be read: %s", json_text(answer, "trouble"));
                return STATUS_NEGATIVE;
        }
        return r;
}

/* ---- pool gc ---- */

struct progress {
        const struct context *context;
        json_t *last;
        bool is_incomplete; /* something dead was not collected */
};

static void print_node(const json_t *document)
{
        const char *host = json_text(document, "host"), *outcome = json_text(document, "outcome");

        printf("%.*s%s%s%s: ", NODE_DIGITS, json_text(document, "node"), *host ? " (" : "", host,
               *host ? ")" : "");
        if (!strcmp(outcome, "collected"))
                printf("not heard of for %s, more than %s; removed",
                       text_seconds((double)json_u64(document, "age_seconds")),
                       text_seconds((double)json_u64(document, "limit_seconds")));
        else
                printf("%s; removed", json_text(document, "why"));
        printf(" %s in %s bundles, %s journal segments\n", text_bytes(json_u64(document, "bytes")),
               text_count(json_u64(document, "bundles")),
               text_count(json_u64(document, "segments")));
}

static void on_node(void *user, json_t *document)
{
        struct progress *progress = user;
        bool is_node = json_object_get(document, "outcome");

        if (progress->context->json)
                command_print_json(document, true);
        else if (is_node)
                print_node(document);
        if (is_node)
                progress->is_incomplete |= strcmp(json_text(document, "outcome"), "collected") != 0;
        json_decref(progress->last);
        progress->last = json_incref(document);
}

static int conclude(const struct progress *progress)
{
        const json_t *last = progress->last;

        if (!json_bool(last, "ok")) {
                command_error("%s", last ? json_text(last, "error") : "an empty answer");
                return STATUS_NEGATIVE;
        }
        if (!json_bool(last, "finished")) {
                command_error("it ended early; what is left is found by the next");
                return STATUS_NEGATIVE;
        }
        if (!progress->context->json)
                printf("%s nodes, %s collected\n", text_count(json_u64(last, "nodes")),
                       text_count(json_u64(last, "collected")));
        return progress->is_incomplete ? STATUS_NEGATIVE : STATUS_OK;
}

static int collect(struct context *context, const struct request *request)
{
        json_auto_t *command = command_of(request);
        struct progress progress = {.context = context};
        struct why why = {""};
        int r = command_connect(context);

        if (r)
                return r;
        r = connection_ask(&context->connection, command, on_node, &progress, &why);
        if (r < 0) {
                command_error("%s", why.text);
                r = STATUS_UNREACHABLE;
        } else {
                r = conclude(&progress);
        }
        json_decref(progress.last);
        return r;
}

int pool_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {
                .options = options, .parser = parse, .args_doc = "[gc [NODE]]"};
        struct request request = {0};

        command_parse(context, &argp,
                      "The remote pool and the nodes that share it. With gc removes what nodes "
                      "that are dead have left there: NODE, by its first digits or its host's "
                      "name, or all.",
                      argc, argv, &request, 0);
        return request.verb ? collect(context, &request) : show(context, &request);
}
