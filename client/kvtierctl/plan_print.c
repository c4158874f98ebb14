// SPDX-License-Identifier: Apache-2.0
/* A plan for people: the document's parts under headings, long texts broken at blanks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/table.h"

#define WIDTH 96

/* @text, broken at blanks; goes on at @column, further lines begin at @indent. */
static void print_wrapped(const char *text, int indent, int column)
{
        for (; *text; text += strspn(text, " ")) {
                int n = (int)strcspn(text, " ");

                if (column && column + 1 + n > WIDTH) {
                        putchar('\n');
                        column = 0;
                }
                if (column)
                        column += printf(" %.*s", n, text);
                else
                        column += printf("%*s%.*s", indent, "", n, text);
                text += n;
        }
        putchar('\n');
}

static const char *count_or_unknown(const json_t *value)
{
        return json_is_integer(value) ? text_count((uint64_t)json_integer_value(value)) : "unknown";
}

static const char *bytes_or_unknown(const json_t *value)
{
        return json_is_integer(value) ? text_bytes((uint64_t)json_integer_value(value)) : "unknown";
}

static const json_t *part(const struct plan *plan, const char *name)
{
        return json_object_get(plan->document, name);
}

/* ---- architecture ---- */

static void print_class(const struct plan *plan)
{
        const char *doubt = json_text(plan->document, "doubt");
        const json_t *entry;
        size_t i;

        printf("%s: %s\n", *plan->model.model_type ? plan->model.model_type : "(no model_type)",
               plan->model.class);
        print_wrapped(json_text(plan->document, "means"), 2, 0);
        json_array_foreach(part(plan, "decided_by"), i, entry)
        {
                _cleanup_free_ char *value =
                        json_dumps(json_object_get(entry, "value"), JSON_ENCODE_ANY);
                int n = printf("  %s = %s:", json_text(entry, "field"), value ? value : "?");

                print_wrapped(json_text(entry, "means"), 6, n);
        }
        if (*doubt)
                print_wrapped(doubt, 9, printf("  doubt:"));
}

static void print_sizes(const struct plan *plan)
{
        const json_t *page = part(plan, "page");

        printf("\nSizes, per rank (TP %" PRIu64 ", PP %" PRIu64 ")\n", plan->options.tp,
               plan->options.pp);
        printf("  page          %s tokens (%s)\n", count_or_unknown(part(plan, "page_tokens")),
               text_bytes(json_u64(page, "page_bytes")));
        printf("  KV            %s bytes a token (%s a layer)\n",
               count_or_unknown(part(plan, "kv_bytes_per_token")),
               text_count(json_u64(page, "attention_bytes")));
        if (plan->sizes.kv_copies > 1)
                printf("  copies        %s ranks of TP hold the same KV\n",
                       text_count(plan->sizes.kv_copies));
        if (!json_u64(part(plan, "page"), "state_bytes"))
                return;
        printf("  state         %s bytes (%s a layer: conv %s, ssm %s), worth %s tokens of KV\n",
               count_or_unknown(part(plan, "state_bytes")),
               text_count(json_u64(page, "state_bytes")), text_count(json_u64(page, "conv_bytes")),
               text_count(json_u64(page, "ssm_bytes")),
               count_or_unknown(part(plan, "state_worth_tokens")));
}

static void print_groups(const struct plan *plan)
{
        const json_t *group;
        struct table table;
        size_t i;

        table_init(&table, "GROUP KIND #LAYERS #TOKENS #PAGE #WINDOW");
        json_array_foreach(part(plan, "groups"), i, group)
        {
                uint64_t window = json_u64(group, "window_tokens");

                table_add(&table, "%s", json_text(group, "name"));
                table_add(&table, "%s", json_text(group, "kind"));
                table_add(&table, "%s", text_count(json_u64(group, "layers")));
                table_add(&table, "%s", text_count(json_u64(group, "block_tokens")));
                table_add(&table, "%s",
                          json_bool(group, "scratch") ? "not stored"
                                                      : text_bytes(json_u64(group, "page_bytes")));
                table_add(&table, "%s", window ? text_count(window) : "-");
        }
        putchar('\n');
        table_print(&table, stdout);
        table_deinit(&table);
}

/* ---- what fits ---- */

static void print_chunks(const struct plan *plan)
{
        const json_t *tail;
        struct table table;
        size_t i;

        if (!json_array_size(part(plan, "chunk_tokens")))
                return;
        printf("\nChunks, and what no chunk holds of a prompt\n");
        table_init(&table, "#CHUNK #PROMPT #LOST #SHARE");
        json_array_foreach(part(plan, "tails"), i, tail)
        {
                table_add(&table, "%s", text_count(json_u64(tail, "chunk_tokens")));
                table_add(&table, "%s", text_count(json_u64(tail, "prompt_tokens")));
                table_add(&table, "%s", text_count(json_u64(tail, "lost_tokens")));
                table_add(&table, "%s", text_percent(json_double(tail, "lost_share"), 1));
        }
        table_print(&table, stdout);
        table_deinit(&table);
}

static void print_users(const struct plan *plan)
{
        const json_t *users = part(plan, "users");

        printf("\nSessions of %s tokens (%s a rank, %s in a tier)\n",
               text_count(json_u64(users, "context_tokens")),
               bytes_or_unknown(json_object_get(users, "session_bytes")),
               bytes_or_unknown(json_object_get(users, "stored_bytes")));
        printf("  GPU           %s (weights of a rank: %s; without them: %s)\n",
               count_or_unknown(json_object_get(users, "gpu")),
               bytes_or_unknown(json_object_get(users, "weight_bytes")),
               count_or_unknown(json_object_get(users, "gpu_at_most")));
        printf("  warm in host  %s\n", count_or_unknown(json_object_get(users, "host")));
        printf("  warm in NVMe  %s\n", count_or_unknown(json_object_get(users, "nvme")));
}

/* ---- advice ---- */

static void print_parallelism(const struct plan *plan)
{
        const json_t *parallelism = part(plan, "parallelism");
        const char *choice = json_text(parallelism, "choose");

        printf("\nParallelism: %s\n", *choice ? choice : "unknown");
        if (*choice)
                print_wrapped(json_text(parallelism, "why"), 2, 0);
}

static void print_hardware(const struct plan *plan)
{
        const json_t *gpu = part(plan, "gpu"), *check;
        size_t i;

        if (json_is_object(gpu))
                printf("\nHardware: %s x %s (compute capability %s), %s each, %s\n",
                       text_count(json_u64(gpu, "number")), json_text(gpu, "name"),
                       count_or_unknown(json_object_get(gpu, "sm")),
                       text_bytes(json_u64(gpu, "memory_bytes")), json_text(gpu, "link"));
        else if (json_array_size(part(plan, "hardware")))
                printf("\nHardware\n");
        json_array_foreach(part(plan, "hardware"), i, check) print_wrapped(
                json_text(check, "why"), 6,
                printf("  %s: %s:", json_text(check, "check"), json_text(check, "verdict")));
}

static void print_flags(const struct plan *plan)
{
        const json_t *flag, *engine;
        size_t i, j;

        printf("\nFlags\n");
        json_array_foreach(part(plan, "flags"), i, flag)
        {
                const char *value = json_text(flag, "value");

                printf("  %s %s%s%s (", json_text(flag, "do"), json_text(flag, "flag"),
                       *value ? " " : "", value);
                json_array_foreach(json_object_get(flag, "engines"), j, engine)
                        printf("%s%s", j ? ", " : "", json_string_value(engine));
                printf(")\n");
                print_wrapped(json_text(flag, "why"), 6, 0);
        }
}

static void print_daemon(const struct plan *plan)
{
        json_t *keys = json_object_get(plan->document, "kvtierd"), *value;
        const char *key;

        printf("\nkvtierd\n");
        json_object_foreach(keys, key, value)
                printf("  --set %s=%" JSON_INTEGER_FORMAT "\n", key, json_integer_value(value));
}

static void print_unknown(const struct plan *plan)
{
        const json_t *entry;
        size_t i;

        if (json_array_size(plan->unknown))
                printf("\nUnknown\n");
        json_array_foreach(plan->unknown, i, entry)
                print_wrapped(json_string_value(entry), 4, printf("  -"));
}

static void print_check(const struct plan *plan)
{
        const json_t *check = part(plan, "check"), *finding;
        size_t i;

        printf("\nThe command line (%s)\n", json_text(check, "engine"));
        json_array_foreach(json_object_get(check, "findings"), i, finding)
        {
                const char *value = json_text(finding, "value");

                printf("  %s %s%s%s\n", json_text(finding, "verdict"), json_text(finding, "flag"),
                       *value ? " " : "", value);
                print_wrapped(json_text(finding, "why"), 6, 0);
        }
}

void plan_print(const struct plan *plan)
{
        print_class(plan);
        print_sizes(plan);
        print_groups(plan);
        print_chunks(plan);
        print_users(plan);
        print_parallelism(plan);
        print_hardware(plan);
        if (part(plan, "check"))
                print_check(plan);
        else
                print_flags(plan);
        print_daemon(plan);
        print_unknown(plan);
}
