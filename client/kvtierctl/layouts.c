// SPDX-License-Identifier: Apache-2.0
/* kvtierctl layouts: what kinds of bytes are stored, and how they differ. */
#include <stdio.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

static void add_summary(struct table *table, const json_t *layout)
{
        table_add(table, "%s", json_text(layout, "layout"));
        table_add(table, "%s", json_bool(layout, "known") ? json_text(layout, "model") : "?");
        table_add(table, "%s", text_count(json_u64(layout, "chunk_tokens")));
        table_add(table, "%s", text_count(json_u64(layout, "objects")));
        table_add(table, "%s", text_bytes(json_u64(layout, "bytes")));
        table_add(table, "%s", text_count(json_u64(layout, "sessions")));
}

/* "65,536", or "4,096 (shards 0-3), ..." where shards hold different things. */
static void add_page_bytes(struct table *table, const json_t *group)
{
        const json_t *rows = json_object_get(group, "rows"), *row;
        char text[TABLE_CELL_MAX] = "";
        size_t i, used = 0;

        json_array_foreach(rows, i, row)
        {
                uint64_t bytes = json_u64(row, "page_bytes"), first = json_u64(row, "first_shard");

                if (used > sizeof(text) - 40) {
                        text_append(text, sizeof(text), &used, ", ...");
                        break;
                }
                text_append(text, sizeof(text), &used, "%s%s", i ? ", " : "",
                            bytes ? text_count(bytes) : "any");
                if (json_array_size(rows) > 1)
                        text_append(text, sizeof(text), &used, " (%llu-%llu)",
                                    (unsigned long long)first,
                                    (unsigned long long)(first + json_u64(row, "shards") - 1));
        }
        table_add(table, "%s", text);
}

static const char *count_or_dash(const json_t *object, const char *name)
{
        return json_u64(object, name) ? text_count(json_u64(object, name)) : "-";
}

static int print_groups(const json_t *groups)
{
        struct table table;
        const json_t *group;
        size_t i;
        int r;

        table_init(&table, "GROUP KIND CODEC #SHARDS #PAGE-TOKENS #WINDOW PAGE-BYTES");
        json_array_foreach(groups, i, group)
        {
                table_add(&table, "%s", json_text(group, "name"));
                table_add(&table, "%s", json_text(group, "kind"));
                table_add(&table, "%s", json_text(group, "codec"));
                table_add(&table, "%s", text_count(json_u64(group, "shards")));
                table_add(&table, "%s", count_or_dash(group, "page_tokens"));
                table_add(&table, "%s", count_or_dash(group, "window_tokens"));
                add_page_bytes(&table, group);
        }
        r = table_print(&table, stdout);
        table_deinit(&table);
        return r;
}

/* ", label text", unless the layout leaves it empty. */
static void print_field(const json_t *layout, const char *label, const char *name)
{
        const char *text = json_text(layout, name);

        if (text[0])
                printf(", %s%s%s", label, label[0] ? " " : "", text);
}

/* What engines told of the prompts that they looked for. */
static void print_prompts(const json_t *told)
{
        double tokens = json_double(told, "prompt_tokens"), hits = json_double(told, "hit_tokens");

        if (!json_u64(told, "prompts"))
                return;
        printf("prompts %s: of %s tokens that engines lacked %s were hits, %s without tails\n",
               text_count(json_u64(told, "prompts")), text_count((uint64_t)tokens),
               text_percent(hits, tokens),
               text_percent(hits, tokens - json_double(told, "tail_tokens")));
}

static void print_differences(const json_t *layout)
{
        const json_t *difference;
        size_t i;

        if (!json_object_get(layout, "differs_from"))
                return;
        printf("differs from %.12s of the same model in:\n", json_text(layout, "differs_from"));
        json_array_foreach(json_object_get(layout, "differences"), i, difference)
                printf("  %s: %s, there %s\n", json_text(difference, "field"),
                       json_text(difference, "this"), json_text(difference, "other"));
}

static int print_layout(const json_t *layout)
{
        if (!json_bool(layout, "known")) {
                printf("\n%.12s: what it means is not known until an engine attaches with it\n",
                       json_text(layout, "layout"));
                return 0;
        }
        printf("\n%.12s: %s", json_text(layout, "layout"),
               json_text(layout, "model")[0] ? json_text(layout, "model") : "(no model)");
        print_field(layout, "", "revision");
        print_field(layout, "engine", "engine");
        print_field(layout, "build", "engine_build");
        print_field(layout, "model", "model_dtype");
        print_field(layout, "KV", "kv_dtype");
        print_field(layout, "kernels", "kernel_layout");
        print_field(layout, "replay", "replay_mode");
        printf(", TP %llu PP %llu CP %llu, %llu draft tokens\n",
               (unsigned long long)json_u64(layout, "tp"),
               (unsigned long long)json_u64(layout, "pp"),
               (unsigned long long)json_u64(layout, "cp"),
               (unsigned long long)json_u64(layout, "draft_tokens"));
        if (print_groups(json_object_get(layout, "groups")))
                return -1;
        print_prompts(json_object_get(layout, "told"));
        print_differences(layout);
        return 0;
}

int layouts_ask(struct context *context, json_t *layouts)
{
        uint64_t after = 0;
        bool end = false;

        while (!end) {
                json_auto_t *answer = NULL;
                int r = command_ask(
                        context,
                        json_pack("{s:s, s:I}", "command", "layouts", "after", (json_int_t)after),
                        &answer);

                if (r)
                        return r;
                json_array_extend(layouts, json_object_get(answer, "layouts"));
                after = json_u64(answer, "next");
                end = json_bool(answer, "end");
        }
        return STATUS_OK;
}

int layouts_command(struct context *context, int argc, char **argv)
{
        json_auto_t *layouts = json_array();
        const json_t *layout;
        struct table table;
        size_t i;
        int r;

        command_parse(
                context, NULL,
                "Layouts (kinds of bytes): how much is stored of each, what it means, and how "
                "it differs from others of the same model.",
                argc, argv, NULL, 0);
        r = layouts_ask(context, layouts);
        if (r)
                return r;
        if (context->json) {
                json_auto_t *all = json_pack("{s:b, s:O}", "ok", 1, "layouts", layouts);

                command_print_json(all, false);
                return STATUS_OK;
        }
        table_init(&table, "LAYOUT MODEL #CHUNK #OBJECTS #BYTES #SESSIONS");
        json_array_foreach(layouts, i, layout) add_summary(&table, layout);
        r = table_print(&table, stdout);
        table_deinit(&table);
        for (i = 0; !r && i < json_array_size(layouts); i++)
                r = print_layout(json_array_get(layouts, i));
        return r ? STATUS_NEGATIVE : STATUS_OK;
}
