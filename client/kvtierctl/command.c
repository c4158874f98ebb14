// SPDX-License-Identifier: Apache-2.0
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/command.h"

enum {
        OPTION_SOCKET = 256,
        OPTION_JSON,
};

static const struct argp_option common_options[] = {
        {"socket", OPTION_SOCKET, "PATH", 0, "The daemon's socket", 10},
        {"json", OPTION_JSON, NULL, 0, "JSON instead of tables", 10},
        {0},
};

static error_t parse_common(int key, char *value, struct argp_state *state)
{
        struct context *context = state->input;

        switch (key) {
        case OPTION_SOCKET:
                context->socket = value;
                return 0;
        case OPTION_JSON:
                context->json = true;
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static const struct argp common_argp = {.options = common_options, .parser = parse_common};

struct inputs {
        struct context *context;
        void *own;
};

static error_t hand_down(int key, char *value, struct argp_state *state)
{
        const struct inputs *inputs = state->input;

        (void)value;
        if (key != ARGP_KEY_INIT)
                return ARGP_ERR_UNKNOWN;
        state->child_inputs[0] = inputs->context;
        state->child_inputs[1] = inputs->own;
        return 0;
}

void command_parse(struct context *context, const struct argp *argp, const char *doc, int argc,
                   char **argv, void *input, unsigned flags)
{
        static const struct argp nothing;
        struct argp_child children[] = {
                {.argp = &common_argp},
                {.argp = argp ? argp : &nothing},
                {0},
        };
        const struct argp whole = {.parser = hand_down, .doc = doc, .children = children};
        struct inputs inputs = {context, input};

        argp_parse(&whole, argc, argv, flags, NULL, &inputs);
}

void command_error(const char *format, ...)
{
        va_list arguments;

        fflush(stdout);
        fputs("kvtierctl: ", stderr);
        va_start(arguments, format);
        vfprintf(stderr, format, arguments);
        va_end(arguments);
        fputc('\n', stderr);
}

int command_connect(struct context *context)
{
        struct why why = {""};

        if (context->is_connected)
                return STATUS_OK;
        if (connection_open(&context->connection, context->socket, &why) < 0) {
                command_error("%s", why.text);
                return STATUS_UNREACHABLE;
        }
        context->is_connected = true;
        return STATUS_OK;
}

static void keep_last(void *user, json_t *document)
{
        json_t **last = user;

        json_decref(*last);
        *last = json_incref(document);
}

static int ask(struct context *context, const json_t *command, json_t **ret_answer)
{
        json_auto_t *answer = NULL;
        struct why why = {""};

        if (!command) {
                command_error("out of memory");
                return STATUS_NEGATIVE;
        }
        if (connection_ask(&context->connection, command, keep_last, &answer, &why) < 0) {
                command_error("%s", why.text);
                return STATUS_UNREACHABLE;
        }
        if (!json_bool(answer, "ok")) {
                if (context->json && answer)
                        command_print_json(answer, false);
                command_error("%s", answer ? json_text(answer, "error") : "an empty answer");
                return STATUS_NEGATIVE;
        }
        *ret_answer = steal_ptr(answer);
        return STATUS_OK;
}

int command_ask(struct context *context, json_t *command, json_t **ret_answer)
{
        int r = command_connect(context);

        if (r == STATUS_OK)
                r = ask(context, command, ret_answer);
        json_decref(command);
        return r;
}

void command_print_json(const json_t *document, bool compact)
{
        json_dumpf(document, stdout, compact ? JSON_COMPACT : JSON_INDENT(2));
        putchar('\n');
        fflush(stdout);
}

uint64_t json_u64(const json_t *object, const char *name)
{
        json_int_t value = json_integer_value(json_object_get(object, name));

        return value > 0 ? (uint64_t)value : 0;
}

double json_double(const json_t *object, const char *name)
{
        return json_number_value(json_object_get(object, name));
}

bool json_bool(const json_t *object, const char *name)
{
        return json_is_true(json_object_get(object, name));
}

const char *json_text(const json_t *object, const char *name)
{
        const char *text = json_string_value(json_object_get(object, name));

        return text ? text : "";
}
