// SPDX-License-Identifier: Apache-2.0
/* kvtierctl evict, clear: dropping what is stored, of a layout or of one boundary. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

#define ANY (-1)

struct request {
        const char *layout; /* NULL: any, of a boundary */
        const char *digest; /* NULL: the whole layout */
        const char *tier;
        long group; /* of the boundary's objects, or ANY */
        long shard;
};

enum { OPTION_DIGEST = 256, OPTION_GROUP, OPTION_SHARD, OPTION_TIER };

/* evict has them all, clear those behind the first. */
static const struct argp_option options[] = {
        {"tier", OPTION_TIER, "TIER", 0, "host (the default), nvme or remote", 0},
        {"digest", OPTION_DIGEST, "KEY", 0,
         "Only one boundary: its digest, as kvtierctl ls shows it. LAYOUT may be left out then", 0},
        {"group", OPTION_GROUP, "N", 0, "Only this group of the boundary", 0},
        {"shard", OPTION_SHARD, "N", 0, "Only this shard of the boundary", 0},
        {0},
};

static long parse_part(struct argp_state *state, const char *what, const char *value)
{
        char *end;
        long part;

        errno = 0;
        part = strtol(value, &end, 10);
        if (errno || *end || end == value || part < 0 || part > UINT16_MAX)
                argp_error(state, "--%s=%s: not a number from 0 to 65535", what, value);
        return part;
}

static void check(struct argp_state *state, const struct request *request)
{
        if (!request->layout && !request->digest)
                argp_error(state, "say what: a layout, or a boundary with --digest");
        if (!request->digest && (request->group != ANY || request->shard != ANY))
                argp_error(state, "--group and --shard go with --digest");
}

static error_t parse(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;

        switch (key) {
        case OPTION_DIGEST:
                request->digest = value;
                return 0;
        case OPTION_GROUP:
                request->group = parse_part(state, "group", value);
                return 0;
        case OPTION_SHARD:
                request->shard = parse_part(state, "shard", value);
                return 0;
        case OPTION_TIER:
                request->tier = value;
                return 0;
        case ARGP_KEY_ARG:
                if (state->arg_num > 0)
                        argp_error(state, "one layout, not more");
                request->layout = value;
                return 0;
        case ARGP_KEY_END:
                check(state, request);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static json_t *command_of(const char *name, const struct request *request)
{
        json_t *command = json_pack("{s:s}", "command", name);

        if (command && request->layout)
                json_object_set_new(command, "layout", json_string(request->layout));
        if (command && request->digest)
                json_object_set_new(command, "digest", json_string(request->digest));
        if (command && request->group != ANY)
                json_object_set_new(command, "group", json_integer(request->group));
        if (command && request->shard != ANY)
                json_object_set_new(command, "shard", json_integer(request->shard));
        if (command && request->tier)
                json_object_set_new(command, "tier", json_string(request->tier));
        return command;
}

static int drop(struct context *context, const char *name, const struct request *request)
{
        json_auto_t *answer = NULL;
        int r = command_ask(context, command_of(name, request), &answer);

        if (r)
                return r;
        if (context->json) {
                command_print_json(answer, false);
        } else {
                printf("dropped %s objects, %s\n", text_count(json_u64(answer, "objects")),
                       text_bytes(json_u64(answer, "bytes")));
                if (json_u64(answer, "kept"))
                        printf("kept %s objects that are in use or pinned\n",
                               text_count(json_u64(answer, "kept")));
        }
        if (request->digest && !json_u64(answer, "objects") && !json_u64(answer, "kept")) {
                command_error("nothing of that is stored there under %s", request->digest);
                return STATUS_NEGATIVE;
        }
        return STATUS_OK;
}

int evict_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {
                .options = options, .parser = parse, .args_doc = "[LAYOUT]"};
        struct request request = {.group = ANY, .shard = ANY};

        command_parse(context, &argp,
                      "Drops the objects of a layout (its id or first digits), or of one boundary, "
                      "from one tier.",
                      argc, argv, &request, 0);
        return drop(context, "evict", &request);
}

int clear_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {
                .options = &options[1], .parser = parse, .args_doc = "[LAYOUT]"};
        struct request request = {.group = ANY, .shard = ANY};

        command_parse(context, &argp,
                      "Drops the objects of a layout (its id or first digits), or of one boundary, "
                      "from every tier.",
                      argc, argv, &request, 0);
        return drop(context, "clear", &request);
}
