// SPDX-License-Identifier: Apache-2.0
/* kvtierctl pin, unpin, reclaim: what stays and what goes, boundary by boundary. */
#include <stdio.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

struct request {
        const char *digest;
        const char *layout; /* NULL: the only one that has the boundary */
        bool below, prefix;
};

enum { OPTION_LAYOUT = 256, OPTION_BELOW, OPTION_PREFIX };

/* reclaim has them all, pin and unpin those behind the second. */
static const struct argp_option options[] = {
        {"below", OPTION_BELOW, NULL, 0, "All that hangs on the boundary", 0},
        {"prefix", OPTION_PREFIX, NULL, 0,
         "The boundary and what is above it, as far as nothing else needs it", 0},
        {"layout", OPTION_LAYOUT, "LAYOUT", 0,
         "The layout (id or first digits), where several have the boundary", 0},
        {0},
};

static error_t parse(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;

        switch (key) {
        case OPTION_BELOW:
                request->below = true;
                return 0;
        case OPTION_PREFIX:
                request->prefix = true;
                return 0;
        case OPTION_LAYOUT:
                request->layout = value;
                return 0;
        case ARGP_KEY_ARG:
                if (state->arg_num > 0)
                        argp_error(state, "one boundary, not more");
                request->digest = value;
                return 0;
        case ARGP_KEY_NO_ARGS:
                argp_error(state, "which boundary? Its digest, as kvtierctl ls shows it");
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

/* Of reclaim: it must be said what. */
static error_t parse_reclaim(int key, char *value, struct argp_state *state)
{
        const struct request *request = state->input;

        if (key == ARGP_KEY_END && !request->below && !request->prefix)
                argp_error(state, "say what: --below, --prefix or both");
        return parse(key, value, state);
}

static int ask(struct context *context, const char *name, const struct request *request,
               json_t **ret_answer)
{
        json_t *command =
                json_pack("{s:s, s:s, s:b, s:b}", "command", name, "digest", request->digest,
                          "below", (int)request->below, "prefix", (int)request->prefix);
        int r;

        if (command && request->layout)
                json_object_set_new(command, "layout", json_string(request->layout));
        r = command_ask(context, command, ret_answer);
        if (r == STATUS_OK && context->json)
                command_print_json(*ret_answer, false);
        return r;
}

int pin_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {
                .options = &options[2], .parser = parse, .args_doc = "KEY"};
        json_auto_t *answer = NULL;
        struct request request = {0};

        command_parse(context, &argp,
                      "Keeps a boundary and all above it where they are, until kvtierctl unpin or "
                      "the end of the daemon. KEY is its digest, as kvtierctl ls shows it.",
                      argc, argv, &request, 0);
        return ask(context, "pin", &request, &answer);
}

int unpin_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {
                .options = &options[2], .parser = parse, .args_doc = "KEY"};
        json_auto_t *answer = NULL;
        struct request request = {0};

        command_parse(context, &argp,
                      "Ends a kvtierctl pin. Pins of engines are theirs, and end with their "
                      "sessions.",
                      argc, argv, &request, 0);
        return ask(context, "unpin", &request, &answer);
}

int reclaim_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {
                .options = options, .parser = parse_reclaim, .args_doc = "KEY"};
        json_auto_t *answer = NULL;
        struct request request = {0};
        int r;

        command_parse(context, &argp,
                      "Drops what is no longer wanted from every tier. KEY is a boundary's digest, "
                      "as kvtierctl ls shows it.",
                      argc, argv, &request, 0);
        r = ask(context, "reclaim", &request, &answer);
        if (r || context->json)
                return r;
        printf("dropped %s objects, %s\n", text_count(json_u64(answer, "objects")),
               text_bytes(json_u64(answer, "bytes")));
        if (json_u64(answer, "kept"))
                printf("kept %s objects that are pinned\n", text_count(json_u64(answer, "kept")));
        return STATUS_OK;
}
