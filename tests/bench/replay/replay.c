// SPDX-License-Identifier: Apache-2.0
/*
 * Hit rates of eviction and of checkpoint placement on traces of real prompts.
 *
 *   replay FOLDER [NAME...]     with the traces in FOLDER; cells by name, such as "agent"
 *   replay --file FILE [NAME...]  one trace in any of the known formats
 *   replay --list
 *
 * A cell is a trace, a model and a capacity, which is a percentage of what the trace would fill:
 * its unique chunks, and a state for each different prompt. Prints one JSON line for each cell
 * and policy:
 *   value    hit rate: tokens that need not be computed, of all tokens of the prompts
 *   written  GB put into the tier
 *   states   mean share of states in the bytes that are held
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy.h"
#include "trace_file.h"

enum { CHUNK_TOKENS = 512 };

struct model {
        const char *name;
        uint64_t kv_token_bytes;
        uint64_t state_bytes;
};

static const struct model qwen3_next = {"qwen3-next", 24576, 39518208};
static const struct model kimi_linear = {"kimi-linear", 8064, 43417600};

struct source {
        const char *name;
        const char *file;
        uint32_t squeeze; /* starts of sessions this much closer */
};

static const struct source conversation = {"conversation", "mooncake_conversation_512tok.jsonl.gz",
                                           1};
static const struct source synthetic = {"synthetic", "mooncake_synthetic_512tok.jsonl.gz", 1};
static const struct source agent = {"agent", "agentic_coding_64tok_merged.jsonl.gz", 1};
/* 72 hours in four. */
static const struct source agent_squeezed = {"agent-squeezed",
                                             "agentic_coding_64tok_merged.jsonl.gz", 18};

struct cell {
        const struct source *source;
        const struct model *model;
        double percent;
};

static const struct cell cells[] = {
        {&conversation, &qwen3_next, 1},     {&conversation, &qwen3_next, 5},
        {&conversation, &qwen3_next, 20},    {&conversation, &kimi_linear, 5},
        {&synthetic, &qwen3_next, 5},        {&synthetic, &qwen3_next, 20},
        {&synthetic, &kimi_linear, 20},      {&agent, &qwen3_next, 0.1},
        {&agent, &qwen3_next, 0.3},          {&agent, &qwen3_next, 1},
        {&agent, &kimi_linear, 0.3},         {&agent_squeezed, &qwen3_next, 1},
};

static const struct replay_policy *const policies[] = {
        &replay_min, &replay_oracle, &replay_dense, &replay_p0,  &replay_p1,
        &replay_p2,  &replay_p3,     &replay_p7,    &replay_a2q,
};

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

static void die(const char *what)
{
        fprintf(stderr, "replay: %s\n", what);
        exit(1);
}

/* "agent.kimi-linear.0.3": the trace, the model, and the percentage of what the trace fills. */
static void name_cell(const struct cell *cell, char *name, size_t size)
{
        snprintf(name, size, "%s.%s.%g", cell->source->name, cell->model->name, cell->percent);
}

static bool is_asked_for(const char *name, char **names, int n_names)
{
        for (int i = 0; i < n_names; i++) {
                size_t length = strlen(names[i]);

                if (strncmp(name, names[i], length) == 0 && (!name[length] || name[length] == '.'))
                        return true;
        }
        return !n_names;
}

/* ---- a cell ---- */

static double footprint(const struct trace *trace, const struct replay_sizes *sizes)
{
        _cleanup_free_ bool *is_end = calloc(trace->n_chunks + 1, sizeof(*is_end));
        uint32_t n_ends = 0;

        if (!is_end)
                die("no memory");
        for (uint32_t i = 0; i < trace->n_requests; i++) {
                uint32_t last = trace->requests[i].last;

                if (last != TRACE_NONE && !is_end[last]) {
                        is_end[last] = true;
                        n_ends++;
                }
        }
        return (double)trace->n_chunks * (double)sizes->chunk_bytes +
               (double)n_ends * (double)sizes->state_bytes;
}

static void print_result(const char *name, const struct replay_policy *policy,
                         const struct replay_sizes *sizes, const struct replay_result *result)
{
        printf("{\"name\": \"replay.%s.%s\", \"value\": %.2f, \"unit\": \"%%\", \"gb\": %.3f, "
               "\"written\": %.0f, \"states\": %.3f, \"runs\": 1}\n",
               name, policy->name, 100.0 * (double)result->hit_tokens / (double)result->input_tokens,
               (double)sizes->capacity_bytes / 1e9, (double)result->bytes_written / 1e9,
               result->state_share);
        fflush(stdout);
}

static void run_cell(const struct cell *cell, const struct trace *trace)
{
        struct replay_sizes sizes = {
                .chunk_bytes = trace->chunk_tokens * cell->model->kv_token_bytes,
                .state_bytes = cell->model->state_bytes,
        };
        char name[64];

        name_cell(cell, name, sizeof(name));
        sizes.capacity_bytes = (uint64_t)(footprint(trace, &sizes) * cell->percent / 100);
        for (size_t i = 0; i < N_ELEMENTS(policies); i++) {
                struct replay_result result;

                if (replay_run(policies[i], &sizes, trace, &result) < 0)
                        die(err_where());
                print_result(name, policies[i], &sizes, &result);
        }
}

static void read_source(const struct source *source, const char *folder, struct trace *trace)
{
        char path[PATH_MAX];
        struct why why;

        snprintf(path, sizeof(path), "%s/%s", folder, source->file);
        if (trace_file_read(trace, path, &why) < 0)
                die(why.text);
        if (source->squeeze > 1 && trace_squeeze(trace, source->squeeze) < 0)
                die("no memory");
}

int main(int argc, char **argv)
{
        const struct source *source = NULL;
        struct trace trace = {0};

        if (argc < 2) {
                fprintf(stderr, "usage: replay FOLDER [CELL...]\n"
                                "       replay --list\n");
                return 2;
        }
        for (size_t i = 0; i < N_ELEMENTS(cells); i++) {
                char name[64];

                name_cell(&cells[i], name, sizeof(name));
                if (strcmp(argv[1], "--list") == 0) {
                        puts(name);
                        continue;
                }
                if (!is_asked_for(name, argv + 2, argc - 2))
                        continue;
                if (source != cells[i].source) {
                        source = cells[i].source;
                        trace_deinit(&trace);
                        trace_init(&trace, CHUNK_TOKENS);
                        read_source(source, argv[1], &trace);
                }
                run_cell(&cells[i], &trace);
        }
        trace_deinit(&trace);
        return 0;
}
