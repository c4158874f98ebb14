// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl why: why a prompt is not a hit. The prompt is a recent match of a session, a
 * file of digests, or a file of token ids from which the digest chain of kvtier(3) is made.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvtier.h"
#include "client/kvtierctl/command.h"
#include "client/kvtierctl/prompt.h"
#include "client/kvtierctl/table.h"

#define DIGESTS_MAX 4096u /* of one question, the daemon's limit */
#define IMAGES_MAX  64u

enum {
        OPTION_SESSION = 256,
        OPTION_NTH,
        OPTION_DIGESTS,
        OPTION_TOKENS,
        OPTION_LAYOUT,
        OPTION_SALT,
        OPTION_LORA,
        OPTION_IMAGE,
        OPTION_PROMPT_TOKENS,
};

static const struct argp_option options[] = {
        {"session", OPTION_SESSION, "SESSION", 0, "A recent match of this session", 0},
        {"nth", OPTION_NTH, "K", 0, "The match K before its last one (default 0)", 0},
        {"digests", OPTION_DIGESTS, "FILE", 0, "The prompt's digests, in hex", 1},
        {"tokens", OPTION_TOKENS, "FILE", 0, "The prompt's token ids", 1},
        {"layout", OPTION_LAYOUT, "LAYOUT", 0, "With a file: the layout (id or first digits)", 1},
        {"salt", OPTION_SALT, "TEXT", 0, "With --tokens: the salt", 2},
        {"lora", OPTION_LORA, "NAME", 0, "With --tokens: the LoRA", 2},
        {"image", OPTION_IMAGE, "ID", 0, "With --tokens: an image, in order of appearance", 2},
        {"prompt-tokens", OPTION_PROMPT_TOKENS, "N", 0,
         "With --digests: the prompt's length, of which states leave the last token", 2},
        {0},
};

struct request {
        bool has_session;
        uint64_t session, nth, prompt_tokens;
        const char *digests, *tokens; /* files */
        const char *layout;
        struct kvt_identity identity;
        const char *images[IMAGES_MAX];
};

static uint64_t number_of(const char *text, struct argp_state *state)
{
        char *end;
        unsigned long long number;

        errno = 0;
        number = strtoull(text, &end, 10);
        if (errno || *end || end == text || *text == '-' || number > UINT32_MAX)
                argp_error(state, "%s: not a number", text);
        return number;
}

static void check_request(const struct request *request, struct argp_state *state)
{
        int n = request->has_session + !!request->digests + !!request->tokens;

        if (n != 1)
                argp_error(state, "one of --session, --digests and --tokens");
        if (!request->has_session && !request->layout)
                argp_error(state, "a file needs --layout: see kvtierctl layouts");
        if (request->has_session && request->layout)
                argp_error(state, "--layout goes with a file: a session has its own");
        if (!request->has_session && request->nth)
                argp_error(state, "--nth goes with --session");
        if (!request->digests && request->prompt_tokens)
                argp_error(state, "--prompt-tokens goes with --digests");
        if (!request->tokens &&
            (request->identity.salt || request->identity.lora || request->identity.n_images))
                argp_error(state, "--salt, --lora and --image go with --tokens");
}

static void add_image(struct request *request, const char *id, struct argp_state *state)
{
        if (request->identity.n_images == IMAGES_MAX)
                argp_error(state, "more than %u images", IMAGES_MAX);
        request->images[request->identity.n_images++] = id;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;

        switch (key) {
        case OPTION_SESSION:
                request->has_session = true;
                request->session = number_of(value, state);
                return 0;
        case OPTION_NTH:
                request->nth = number_of(value, state);
                return 0;
        case OPTION_DIGESTS:
                request->digests = value;
                return 0;
        case OPTION_TOKENS:
                request->tokens = value;
                return 0;
        case OPTION_LAYOUT:
                request->layout = value;
                return 0;
        case OPTION_SALT:
                request->identity.salt = value;
                request->identity.salt_bytes = (uint32_t)strlen(value);
                return 0;
        case OPTION_LORA:
                request->identity.lora = value;
                request->identity.lora_bytes = (uint32_t)strlen(value);
                return 0;
        case OPTION_IMAGE:
                add_image(request, value, state);
                return 0;
        case OPTION_PROMPT_TOKENS:
                request->prompt_tokens = number_of(value, state);
                return 0;
        case ARGP_KEY_END:
                check_request(request, state);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

/* ---- the question ---- */

/* The chunk tokens of the layout that begins with request->layout, and its whole id. */
static int find_chunk(struct context *context, const struct request *request, uint32_t *ret_chunk)
{
        uint64_t after = 0;
        bool end = false;
        unsigned found = 0;

        while (!end) {
                json_auto_t *answer = NULL;
                const json_t *layout;
                size_t i;
                int r = command_ask(
                        context,
                        json_pack("{s:s, s:I}", "command", "layouts", "after", (json_int_t)after),
                        &answer);

                if (r)
                        return r;
                json_array_foreach(json_object_get(answer, "layouts"), i, layout)
                {
                        if (strncasecmp(json_text(layout, "layout"), request->layout,
                                        strlen(request->layout)))
                                continue;
                        found++;
                        *ret_chunk = (uint32_t)json_u64(layout, "chunk_tokens");
                }
                after = json_u64(answer, "next");
                end = json_bool(answer, "end");
        }
        if (found == 1 && *ret_chunk)
                return STATUS_OK;
        command_error(found > 1    ? "more than one layout begins with %s"
                      : found == 1 ? "the chunk tokens of layout %s are not known"
                                   : "no layout begins with %s",
                      request->layout);
        return STATUS_NEGATIVE;
}

static int digests_of_tokens(struct context *context, const struct request *request,
                             struct prompt *prompt)
{
        uint32_t chunk = 0;
        int r = find_chunk(context, request, &chunk);

        if (r)
                return r;
        prompt->n_digests = prompt->n_tokens / chunk;
        prompt->digests = calloc(prompt->n_digests + 1, sizeof(*prompt->digests));
        if (!prompt->digests ||
            kvt_digest_chain(&request->identity, prompt->tokens, prompt->n_tokens, chunk,
                             prompt->digests, NULL) != KVT_OK) {
                command_error("out of memory");
                return STATUS_NEGATIVE;
        }
        return STATUS_OK;
}

static json_t *question_of(const struct request *request, const struct prompt *prompt)
{
        size_t n = prompt->n_digests < DIGESTS_MAX ? prompt->n_digests : DIGESTS_MAX;
        uint64_t prompt_tokens = request->tokens ? prompt->n_tokens : request->prompt_tokens;
        char *hex = prompt_hex(prompt, n);
        json_t *question;

        question =
                hex ? json_pack("{s:s, s:s, s:s, s:I}", "command", "why", "layout", request->layout,
                                "digests", hex, "prompt_tokens", (json_int_t)prompt_tokens)
                    : NULL;
        free(hex);
        return question;
}

static int ask_of_file(struct context *context, const struct request *request, json_t **ret_answer)
{
        struct prompt prompt = {0};
        struct why why = {""};
        int r = STATUS_OK;

        if (prompt_read(&prompt, request->tokens ? request->tokens : request->digests,
                        request->tokens != NULL, &why)) {
                command_error("%s", why.text);
                r = STATUS_NEGATIVE;
        }
        if (!r && request->tokens)
                r = digests_of_tokens(context, request, &prompt);
        if (!r)
                r = command_ask(context, question_of(request, &prompt), ret_answer);
        if (!r && json_u64(*ret_answer, "boundaries") < prompt.n_digests)
                command_error("only the first %llu of %zu boundaries are looked at",
                              (unsigned long long)json_u64(*ret_answer, "boundaries"),
                              prompt.n_digests);
        prompt_deinit(&prompt);
        return r;
}

/* ---- the answer ---- */

static const char *span(uint64_t from, uint64_t to)
{
        static char texts[4][64];
        static unsigned next;
        char *text = texts[next++ % 4];

        if (from == to)
                snprintf(text, sizeof(texts[0]), "%s", text_count(from));
        else
                snprintf(text, sizeof(texts[0]), "%s-%s", text_count(from), text_count(to));
        return text;
}

static void print_gap(const json_t *gap)
{
        uint64_t first = json_u64(gap, "first_shard"), n = json_u64(gap, "shards");
        uint64_t last_s = json_u64(gap, "last_ns") / 1000000000u;
        uint64_t now_s = (uint64_t)time(NULL);

        printf("    group %s shard%s %s: %s", json_text(gap, "name"), n > 1 ? "s" : "",
               span(first, first + n - 1), json_text(gap, "text"));
        if (last_s)
                printf(", %s ago",
                       now_s > last_s ? text_seconds((double)(now_s - last_s)) : "less than 1 s");
        putchar('\n');
}

static void print_other_layout(const json_t *run)
{
        const json_t *difference;
        size_t i;

        if (!json_object_get(run, "other_layout"))
                return;
        printf("    layout %.12s has it, which differs in:\n", json_text(run, "other_layout"));
        json_array_foreach(json_object_get(run, "differences"), i, difference)
                printf("      %s: %s, there %s\n", json_text(difference, "field"),
                       json_text(difference, "this"), json_text(difference, "other"));
}

static void print_run(const json_t *run, uint64_t chunk)
{
        uint64_t from = json_u64(run, "from"), to = json_u64(run, "to");
        const json_t *gap;
        size_t i;

        printf("boundary %s (tokens %s): %s in host memory, %s on NVMe only, ", span(from, to),
               span((from - 1) * chunk + 1, to * chunk), text_count(json_u64(run, "in_host")),
               text_count(json_u64(run, "in_nvme_only")));
        if (json_u64(run, "in_remote_only"))
                printf("%s in the pool only, ", text_count(json_u64(run, "in_remote_only")));
        printf("%s missing%s\n", text_count(json_u64(run, "missing")),
               json_bool(run, "above_limit") ? "; may not be used"
               : json_bool(run, "usable")    ? "; usable"
                                             : "");
        json_array_foreach(json_object_get(run, "gaps"), i, gap) print_gap(gap);
        if (json_bool(run, "more_gaps"))
                printf("    and more\n");
        print_other_layout(run);
}

static void print_match(const json_t *match)
{
        if (!match)
                return;
        printf("match %llu of %llu: %s ago, asked %s times, %s digests",
               (unsigned long long)json_u64(match, "nth"),
               (unsigned long long)json_u64(match, "of"),
               text_seconds((double)json_u64(match, "age_ms") / 1000),
               text_count(json_u64(match, "times")), text_count(json_u64(match, "digests")));
        if (json_u64(match, "prompt_tokens"))
                printf(", %s tokens", text_count(json_u64(match, "prompt_tokens")));
        printf("; found boundary %s then\n", text_count(json_u64(match, "boundaries")));
}

static void print_answer(const json_t *answer)
{
        uint64_t chunk = json_u64(answer, "chunk_tokens");
        const json_t *run;
        size_t i;

        print_match(json_object_get(answer, "match"));
        printf("layout %.12s: %s objects a boundary, %s tokens a chunk\n",
               json_text(answer, "layout"), text_count(json_u64(answer, "cells")),
               text_count(chunk));
        if (json_u64(answer, "first"))
                printf("boundaries up to %s were not kept, and are taken for complete\n",
                       text_count(json_u64(answer, "first")));
        json_array_foreach(json_object_get(answer, "runs"), i, run) print_run(run, chunk);
        printf("%s\n", json_text(answer, "why"));
}

int why_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {.options = options, .parser = parse};
        struct request request = {.identity.size = sizeof(request.identity)};
        json_auto_t *answer = NULL;
        int r;

        request.identity.images = request.images;
        command_parse(context, &argp,
                      "Why a prompt is not a hit: boundary by boundary what is there, what is "
                      "missing and why.\vThe prompt is a recent match of a session, or a file of "
                      "digests or token ids: JSON, or text with spaces or lines between. Token ids "
                      "need an engine that makes its digests as kvtier(3) says.",
                      argc, argv, &request, 0);
        if (request.has_session)
                r = command_ask(context,
                                json_pack("{s:s, s:I, s:I}", "command", "why", "session",
                                          (json_int_t)request.session, "nth",
                                          (json_int_t)request.nth),
                                &answer);
        else
                r = ask_of_file(context, &request, &answer);
        if (r)
                return r;
        if (context->json)
                command_print_json(answer, false);
        else
                print_answer(answer);
        return STATUS_OK;
}
