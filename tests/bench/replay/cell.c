// SPDX-License-Identifier: Apache-2.0
#include "cell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

/* KV bytes a token and state bytes of a sequence. The dense one is Llama 3.1 8B. */
static const struct cell_model models[] = {
        {"dense", 131072, 0},
        {"qwen3-next", 24576, 39518208},
        {"kimi-linear", 8064, 43417600},
};

/* Squeezed: the sessions start within four hours instead of 72. */
static const struct cell_source sources[] = {
        {"conversation", "mooncake_conversation_512tok.jsonl.gz", 1},
        {"synthetic", "mooncake_synthetic_512tok.jsonl.gz", 1},
        {"agent", "agentic_coding_64tok_merged.jsonl.gz", 1},
        {"agent-squeezed", "agentic_coding_64tok_merged.jsonl.gz", 18},
};

const char *const cell_names[] = {
        "conversation.dense.1",
        "conversation.dense.5",
        "conversation.dense.20",
        "conversation.qwen3-next.1",
        "conversation.qwen3-next.5",
        "conversation.qwen3-next.20",
        "conversation.kimi-linear.1",
        "conversation.kimi-linear.5",
        "conversation.kimi-linear.20",
        "synthetic.dense.1",
        "synthetic.dense.5",
        "synthetic.dense.20",
        "synthetic.qwen3-next.1",
        "synthetic.qwen3-next.5",
        "synthetic.qwen3-next.20",
        "synthetic.kimi-linear.1",
        "synthetic.kimi-linear.5",
        "synthetic.kimi-linear.20",
        "agent.dense.0.1",
        "agent.dense.0.3",
        "agent.dense.1",
        "agent.qwen3-next.0.1",
        "agent.qwen3-next.0.3",
        "agent.qwen3-next.1",
        "agent.kimi-linear.0.1",
        "agent.kimi-linear.0.3",
        "agent.kimi-linear.1",
        "agent-squeezed.qwen3-next.1",
        NULL,
};

/* The part of @name before the next dot is @part. */
static bool begins_with(const char *name, const char *part)
{
        size_t length = strlen(part);

        return strncmp(name, part, length) == 0 && name[length] == '.';
}

static const struct cell_source *source_of(const char *name)
{
        for (size_t i = 0; i < N_ELEMENTS(sources); i++)
                if (begins_with(name, sources[i].name))
                        return &sources[i];
        return NULL;
}

static const struct cell_model *model_of(const char *name)
{
        for (size_t i = 0; i < N_ELEMENTS(models); i++)
                if (begins_with(name, models[i].name))
                        return &models[i];
        return NULL;
}

int cell_parse(struct cell *ret_cell, const char *name, struct why *why)
{
        struct cell cell = {.source = source_of(name)};
        const char *rest = name;
        char *end;

        if (cell.source)
                rest += strlen(cell.source->name) + 1;
        cell.model = cell.source ? model_of(rest) : NULL;
        if (cell.model)
                rest += strlen(cell.model->name) + 1;
        if (!cell.model) {
                why_set(why, "%s: no %s of this name", name, cell.source ? "model" : "trace");
                return err_raise(-EINVAL);
        }
        cell.percent = strtod(rest, &end);
        if (end == rest || *end || !(cell.percent > 0 && cell.percent <= 100)) {
                why_set(why, "%s: ends with a percentage above 0, at most 100", name);
                return err_raise(-EINVAL);
        }
        *ret_cell = cell;
        return 0;
}

static int count_ends(const struct trace *trace, uint32_t *ret_n)
{
        _cleanup_free_ bool *is_end = calloc(trace->n_chunks + 1, sizeof(*is_end));
        uint32_t n = 0;

        if (!is_end)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < trace->n_requests; i++) {
                uint32_t last = trace->requests[i].last;

                if (last != TRACE_NONE && !is_end[last]) {
                        is_end[last] = true;
                        n++;
                }
        }
        *ret_n = n;
        return 0;
}

int cell_sizes(const struct cell *cell, const struct trace *trace, struct replay_sizes *ret_sizes)
{
        struct replay_sizes sizes = {
                .chunk_bytes = trace->chunk_tokens * cell->model->kv_token_bytes,
                .state_bytes = cell->model->state_bytes,
        };
        uint32_t n_ends = 0;
        double all;
        int r;

        r = count_ends(trace, &n_ends);
        if (r < 0)
                return r;
        all = (double)trace->n_chunks * (double)sizes.chunk_bytes +
              (double)n_ends * (double)sizes.state_bytes;
        sizes.capacity_bytes = (uint64_t)(all * cell->percent / 100);
        *ret_sizes = sizes;
        return 0;
}
