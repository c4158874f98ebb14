// SPDX-License-Identifier: Apache-2.0
/* kvtierctl verify: the daemon reads and checks every object on NVMe; this shows how far. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

#define BAR_WIDTH 40

struct progress {
        const struct context *context;
        bool shows_bar;
        json_t *last;
};

static void draw_bar(const json_t *document)
{
        uint64_t done = json_u64(document, "done"), total = json_u64(document, "total");
        int filled = total ? (int)((double)BAR_WIDTH * (double)done / (double)total) : BAR_WIDTH;
        char bar[BAR_WIDTH + 1];

        if (filled > BAR_WIDTH)
                filled = BAR_WIDTH;
        memset(bar, '.', BAR_WIDTH);
        memset(bar, '#', (size_t)filled);
        bar[BAR_WIDTH] = '\0';
        fprintf(stderr, "\r[%s] %s of %s objects, %s  ", bar, text_count(done), text_count(total),
                text_bytes(json_u64(document, "bytes")));
        fflush(stderr);
}

static void on_progress(void *user, json_t *document)
{
        struct progress *progress = user;

        if (progress->context->json)
                command_print_json(document, true);
        else if (progress->shows_bar && json_bool(document, "ok"))
                draw_bar(document);
        json_decref(progress->last);
        progress->last = json_incref(document);
}

static int conclude(const struct context *context, const json_t *last)
{
        uint64_t corrupt = json_u64(last, "corrupt"), stale = json_u64(last, "stale");
        uint64_t failed = json_u64(last, "failed");

        if (!json_bool(last, "ok")) {
                command_error("%s", last ? json_text(last, "error") : "an empty answer");
                return STATUS_NEGATIVE;
        }
        if (!json_bool(last, "finished")) {
                command_error("the verification ended early");
                return STATUS_NEGATIVE;
        }
        if (!context->json)
                printf("%s objects, %s read: %s corrupt, %s stale, %s unreadable%s\n",
                       text_count(json_u64(last, "done")), text_bytes(json_u64(last, "bytes")),
                       text_count(corrupt), text_count(stale), text_count(failed),
                       corrupt || stale || failed ? "; they have been dropped" : "");
        return corrupt || stale || failed ? STATUS_NEGATIVE : STATUS_OK;
}

int verify_command(struct context *context, int argc, char **argv)
{
        json_auto_t *command = json_pack("{s:s}", "command", "verify");
        struct progress progress = {.context = context, .shows_bar = isatty(STDERR_FILENO)};
        struct why why = {""};
        int r;

        command_parse(context, NULL,
                      "Reads and checks every object on NVMe, beside normal service. What fails "
                      "is dropped.",
                      argc, argv, NULL, 0);
        r = command_connect(context);
        if (r)
                return r;
        r = connection_ask(&context->connection, command, on_progress, &progress, &why);
        if (progress.shows_bar && !context->json)
                fputs("\r\033[K", stderr);
        if (r < 0) {
                command_error("%s", why.text);
                r = STATUS_UNREACHABLE;
        } else {
                r = conclude(context, progress.last);
        }
        json_decref(progress.last);
        return r;
}
