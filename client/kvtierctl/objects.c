// SPDX-License-Identifier: Apache-2.0
/* kvtierctl ls, show: stored objects. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

#define PAGE 1000 /* objects of one answer, the daemon's limit */

struct request {
        const char *name;   /* of what is asked: the argument */
        const char *layout; /* NULL: any */
        unsigned long long limit;
};

enum { OPTION_LAYOUT = 256 };

static error_t parse_request(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;
        char *end;

        switch (key) {
        case OPTION_LAYOUT:
                request->layout = value;
                return 0;
        case 'n':
                errno = 0;
                request->limit = strtoull(value, &end, 10);
                if (errno || *end || end == value || !request->limit || value[0] == '-')
                        argp_error(state, "-n %s: not a number of objects", value);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static error_t parse_named(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;

        switch (key) {
        case ARGP_KEY_ARG:
                if (state->arg_num > 0)
                        argp_error(state, "one argument, not more");
                request->name = value;
                return 0;
        case ARGP_KEY_NO_ARGS:
                argp_error(state, "an argument is missing");
                return 0;
        default:
                return parse_request(key, value, state);
        }
}

/* ---- ls ---- */

/* "host+nvme" of the tiers for which @prefix and the name say true. */
static const char *tiers_of(const json_t *object, const char *prefix, const char *none)
{
        static const char *const names[] = {"host", "nvme", "remote"};
        static char text[32];
        char member[32];

        text[0] = '\0';
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
                snprintf(member, sizeof(member), "%s%s", prefix, names[i]);
                if (json_bool(object, member))
                        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s",
                                 text[0] ? "+" : "", names[i]);
        }
        return text[0] ? text : none;
}

static void add_object(struct table *table, const json_t *object)
{
        table_add(table, "%s", json_text(object, "digest"));
        table_add(table, "%llu", (unsigned long long)json_u64(object, "group"));
        table_add(table, "%llu", (unsigned long long)json_u64(object, "shard"));
        table_add(table, "%s", text_count(json_u64(object, "tokens")));
        table_add(table, "%s", text_bytes(json_u64(object, "bytes")));
        table_add(table, "%s", tiers_of(object, "in_", "-"));
        table_add(table, "%.12s", json_text(object, "layout"));
}

/* One page into @objects; says whether it was the last. */
static int ask_page(struct context *context, const struct request *request, uint64_t *after,
                    json_t *objects, bool *ret_end)
{
        json_auto_t *answer = NULL;
        uint64_t left = request->limit - json_array_size(objects);
        json_t *command =
                json_pack("{s:s, s:I, s:I}", "command", "ls", "limit",
                          (json_int_t)(left < PAGE ? left : PAGE), "after", (json_int_t)*after);
        int r;

        if (command && request->layout)
                json_object_set_new(command, "layout", json_string(request->layout));
        r = command_ask(context, command, &answer);
        if (r)
                return r;
        json_array_extend(objects, json_object_get(answer, "objects"));
        *after = json_u64(answer, "next");
        *ret_end = json_bool(answer, "end");
        return STATUS_OK;
}

static int print_objects(const json_t *objects, bool end)
{
        struct table table;
        const json_t *object;
        size_t i;
        int r;

        table_init(&table, "KEY #GROUP #SHARD #TOKENS #BYTES TIERS LAYOUT");
        json_array_foreach(objects, i, object) add_object(&table, object);
        r = table_print(&table, stdout);
        table_deinit(&table);
        if (!end)
                printf("(more: raise -n)\n");
        return r ? STATUS_NEGATIVE : STATUS_OK;
}

int ls_command(struct context *context, int argc, char **argv)
{
        static const struct argp_option options[] = {
                {"layout", OPTION_LAYOUT, "LAYOUT", 0, "Only this layout (id or first digits)", 0},
                {"limit", 'n', "N", 0, "At most N objects (default 100)", 0},
                {0},
        };
        static const struct argp argp = {.options = options, .parser = parse_request};
        json_auto_t *objects = json_array();
        struct request request = {.limit = 100};
        uint64_t after = 0;
        bool end = false;
        int r = STATUS_OK;

        command_parse(context, &argp, "Stored objects.", argc, argv, &request, 0);
        while (r == STATUS_OK && !end && json_array_size(objects) < request.limit)
                r = ask_page(context, &request, &after, objects, &end);
        if (r)
                return r;
        if (context->json) {
                json_auto_t *all =
                        json_pack("{s:b, s:O, s:b}", "ok", 1, "objects", objects, "end", (int)end);

                command_print_json(all, false);
                return STATUS_OK;
        }
        return print_objects(objects, end);
}

/* ---- show ---- */

static void print_host(const json_t *host)
{
        if (json_is_null(host)) {
                printf("  host        no\n");
                return;
        }
        printf("  host        %s, %s leases, %s extents, checksums %s, %s\n",
               json_text(host, "state"), text_count(json_u64(host, "leases")),
               text_count(json_u64(host, "extents")),
               json_bool(host, "checksums") ? "known" : "not yet",
               json_bool(host, "unwritten") ? "not written down" : "nothing to write down");
}

/* Who wrote it and when; what cannot be read any more does not say. */
static void print_writer(const json_t *object, const char *this_run)
{
        const char *writer = json_text(object, "writer_boot_id");
        uint64_t stored_ns = json_u64(object, "stored_ns");
        time_t seconds = (time_t)(stored_ns / 1000000000);
        char text[32] = "";
        struct tm utc;

        if (!writer[0]) {
                printf("  written     unknown: it cannot be read\n");
                return;
        }
        if (gmtime_r(&seconds, &utc))
                strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &utc);
        printf("  written     %s.%03u UTC, to run %s%s\n", text,
               (unsigned)(stored_ns / 1000000 % 1000), writer,
               strcmp(writer, this_run) ? "" : " (this one)");
}

static void print_pinned(const json_t *object)
{
        const char *tiers = tiers_of(object, "pinned_in_", NULL);

        if (tiers)
                printf("  pinned      in %s\n", tiers);
}

static void print_object(const json_t *object, const char *this_run)
{
        const char *parent = json_text(object, "parent");

        printf("%s group %llu shard %llu\n", json_text(object, "digest"),
               (unsigned long long)json_u64(object, "group"),
               (unsigned long long)json_u64(object, "shard"));
        printf("  layout      %s\n", json_text(object, "layout"));
        printf("  parent      %s\n", json_bool(object, "parent_unknown") ? "unknown"
                                     : parent[0]                         ? parent
                                                                         : "none: a root");
        printf("  tokens      %s\n", text_count(json_u64(object, "tokens")));
        printf("  bytes       %s (%s)\n", text_count(json_u64(object, "bytes")),
               text_bytes(json_u64(object, "bytes")));
        printf("  generation  %llu\n", (unsigned long long)json_u64(object, "generation"));
        print_writer(object, this_run);
        printf("  children    %s\n", text_count(json_u64(object, "children")));
        if (json_bool(object, "croppable"))
                printf("  croppable   serves %s more boundaries\n",
                       text_count(json_u64(object, "covers")));
        print_host(json_object_get(object, "host"));
        printf("  nvme        %s\n", json_bool(object, "in_nvme") ? "yes" : "no");
        if (json_bool(object, "in_remote"))
                printf("  remote      %s\n",
                       json_bool(object, "own_in_remote") ? "yes" : "yes, another node's");
        print_pinned(object);
}

int show_command(struct context *context, int argc, char **argv)
{
        static const struct argp_option options[] = {
                {"layout", OPTION_LAYOUT, "LAYOUT", 0, "Only this layout (id or first digits)", 0},
                {0},
        };
        static const struct argp argp = {
                .options = options, .parser = parse_named, .args_doc = "KEY"};
        json_auto_t *answer = NULL;
        struct request request = {0};
        const json_t *objects, *object;
        json_t *command;
        size_t i;
        int r;

        command_parse(context, &argp,
                      "The objects of one boundary: KEY is its digest, as kvtierctl ls shows it.",
                      argc, argv, &request, 0);
        command = json_pack("{s:s, s:s}", "command", "show", "digest", request.name);
        if (command && request.layout)
                json_object_set_new(command, "layout", json_string(request.layout));
        r = command_ask(context, command, &answer);
        if (r)
                return r;
        objects = json_object_get(answer, "objects");
        if (context->json)
                command_print_json(answer, false);
        else
                json_array_foreach(objects, i, object)
                        print_object(object, json_text(answer, "boot_id"));
        if (!json_array_size(objects)) {
                command_error("nothing is stored under %s", request.name);
                return STATUS_NEGATIVE;
        }
        return STATUS_OK;
}
