// SPDX-License-Identifier: Apache-2.0
/* kvtierctl plan: reads the tables and a config.json, prints the plan; asks no daemon. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_knowledge.h"

enum {
        OPTION_GPU = 256,
        OPTION_HOST,
        OPTION_NVME,
        OPTION_WEIGHTS,
        OPTION_SHARE,
        OPTION_TP,
        OPTION_EP,
        OPTION_DP,
        OPTION_PP,
        OPTION_KV_DTYPE,
        OPTION_STATE_DTYPE,
        OPTION_CACHE_MODE,
        OPTION_DRAFT,
        OPTION_BLOCK_SIZE,
        OPTION_CONTEXT,
        OPTION_CONCURRENCY,
        OPTION_PROMPTS,
        OPTION_TEXT_ONLY,
        OPTION_CHECK,
        OPTION_KNOWLEDGE,
};

static const struct argp_option options[] = {
        {"gpu", OPTION_GPU, "NAME[xNUMBER]", 0, "The GPUs, such as H200x8", 0},
        {"host", OPTION_HOST, "BYTES", 0, "Host memory for kvtierd, such as 512GiB", 0},
        {"nvme", OPTION_NVME, "BYTES", 0, "NVMe for kvtierd", 0},
        {"weights", OPTION_WEIGHTS, "BYTES", 0, "Weights of the whole model", 0},
        {"memory-share", OPTION_SHARE, "SHARE", 0, "Of a GPU, for weights and KV: 0.9", 0},
        {"tp", OPTION_TP, "NUMBER", 0, "Tensor parallelism: 1", 0},
        {"ep", OPTION_EP, "NUMBER", 0, "Expert parallelism", 0},
        {"dp", OPTION_DP, "NUMBER", 0, "Data parallelism: 1", 0},
        {"pp", OPTION_PP, "NUMBER", 0, "Pipeline parallelism: 1", 0},
        {"kv-dtype", OPTION_KV_DTYPE, "TYPE", 0, "Of the KV: the model's, fp8, nvfp4 ...", 0},
        {"state-dtype", OPTION_STATE_DTYPE, "TYPE", 0, "Of recurrent states", 0},
        {"cache-mode", OPTION_CACHE_MODE, "MODE", 0, "Of recurrent states: align, all, none", 0},
        {"draft", OPTION_DRAFT, "NUMBER", 0, "Draft tokens: 0", 0},
        {"block-size", OPTION_BLOCK_SIZE, "TOKENS", 0, "A forced KV block", 0},
        {"context", OPTION_CONTEXT, "TOKENS", 0, "Of a session: 32768", 0},
        {"concurrency", OPTION_CONCURRENCY, "NUMBER", 0, "Requests at once", 0},
        {"prompts", OPTION_PROMPTS, "TOKENS,...", 0, "Prompt lengths: 1000,8000,32000", 0},
        {"text-only", OPTION_TEXT_ONLY, NULL, 0, "No images will be asked about", 0},
        {"check", OPTION_CHECK, "COMMAND", 0, "Audits an engine's command line", 0},
        {"knowledge", OPTION_KNOWLEDGE, "FOLDER", 0, "Other tables than the installed ones", 0},
        {0},
};

struct request {
        struct plan_options options;
        const char *config;
        const char *command; /* NULL: no audit */
        const char *knowledge;
};

static uint64_t parse_number(struct argp_state *state, const char *value, char **ret_end)
{
        unsigned long long number;

        errno = 0;
        number = strtoull(value, ret_end, 10);
        if (errno || *ret_end == value || value[0] < '0' || value[0] > '9')
                argp_error(state, "%s: a number is needed", value);
        return number;
}

static uint64_t parse_count(struct argp_state *state, const char *value)
{
        char *end;
        uint64_t number = parse_number(state, value, &end);

        if (*end || number > UINT64_C(1) << 40)
                argp_error(state, "%s: a whole number up to 1099511627776 is needed", value);
        return number;
}

static uint64_t parse_bytes(struct argp_state *state, const char *value)
{
        static const struct {
                const char *name;
                uint64_t bytes;
        } units[] = {
                {"", 1},
                {"KB", 1000},
                {"MB", 1000000},
                {"GB", UINT64_C(1000000000)},
                {"KiB", 1024},
                {"TB", UINT64_C(1000000000000)},
                {"MiB", 1u << 20},
                {"GiB", UINT64_C(1) << 30},
                {"TiB", UINT64_C(1) << 40},
        };
        char *end;
        uint64_t number = parse_number(state, value, &end);

        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
                if (!strcmp(end, units[i].name) && number <= (UINT64_C(1) << 55) / units[i].bytes)
                        return number * units[i].bytes;
        argp_error(state, "%s: bytes, or a number with KiB, MiB, GiB, TiB, GB or TB behind it",
                   value);
        return 0;
}

static void parse_prompts(struct argp_state *state, char *value, struct plan_options *plan)
{
        char *rest = NULL;

        plan->n_prompts = 0;
        for (char *word = strtok_r(value, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
                if (plan->n_prompts == PLAN_PROMPTS_MAX)
                        argp_error(state, "--prompts: at most %d", PLAN_PROMPTS_MAX);
                else
                        plan->prompts[plan->n_prompts++] = parse_count(state, word);
        }
}

static void parse_share(struct argp_state *state, const char *value, struct plan_options *plan)
{
        char *end;

        plan->memory_share = strtod(value, &end);
        if (end == value || *end || !(plan->memory_share > 0 && plan->memory_share <= 1))
                argp_error(state, "--memory-share %s: above 0, up to 1", value);
}

static uint64_t *count_of(struct plan_options *plan, int key)
{
        switch (key) {
        case OPTION_TP:
                return &plan->tp;
        case OPTION_EP:
                return &plan->ep;
        case OPTION_DP:
                return &plan->dp;
        case OPTION_PP:
                return &plan->pp;
        case OPTION_DRAFT:
                return &plan->draft_tokens;
        case OPTION_BLOCK_SIZE:
                return &plan->block_size;
        case OPTION_CONTEXT:
                return &plan->context_tokens;
        case OPTION_CONCURRENCY:
                return &plan->concurrency;
        default:
                return NULL;
        }
}

static const char **text_of(struct request *request, int key)
{
        switch (key) {
        case OPTION_GPU:
                return &request->options.gpu;
        case OPTION_KV_DTYPE:
                return &request->options.kv_dtype;
        case OPTION_STATE_DTYPE:
                return &request->options.state_dtype;
        case OPTION_CACHE_MODE:
                return &request->options.cache_mode;
        case OPTION_CHECK:
                return &request->command;
        case OPTION_KNOWLEDGE:
                return &request->knowledge;
        default:
                return NULL;
        }
}

static error_t parse_rest(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;

        switch (key) {
        case OPTION_HOST:
                request->options.host_bytes = parse_bytes(state, value);
                return 0;
        case OPTION_NVME:
                request->options.nvme_bytes = parse_bytes(state, value);
                return 0;
        case OPTION_WEIGHTS:
                request->options.weight_bytes = parse_bytes(state, value);
                return 0;
        case OPTION_SHARE:
                parse_share(state, value, &request->options);
                return 0;
        case OPTION_PROMPTS:
                parse_prompts(state, value, &request->options);
                return 0;
        case OPTION_TEXT_ONLY:
                request->options.text_only = true;
                return 0;
        case ARGP_KEY_ARG:
                if (request->config)
                        argp_error(state, "unexpected argument: %s", value);
                request->config = value;
                return 0;
        case ARGP_KEY_NO_ARGS:
                argp_error(state, "no config.json");
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static error_t parse_request(int key, char *value, struct argp_state *state)
{
        struct request *request = state->input;
        uint64_t *count = count_of(&request->options, key);
        const char **text = text_of(request, key);

        if (count)
                *count = parse_count(state, value);
        else if (text)
                *text = value;
        else
                return parse_rest(key, value, state);
        return 0;
}

static const struct argp plan_argp = {
        .options = options,
        .parser = parse_request,
        .args_doc = "CONFIG.json",
};

/* A checkpoint has an index beside its configuration that knows the bytes of its weights. */
static uint64_t weights_beside(const char *config)
{
        const char *slash = strrchr(config, '/');
        json_auto_t *index = NULL;
        struct why why;
        char path[4096];

        if (snprintf(path, sizeof(path), "%.*smodel.safetensors.index.json",
                     slash ? (int)(slash + 1 - config) : 0, config) >= (int)sizeof(path) ||
            plan_read_json(path, &index, &why) < 0)
                return 0;
        return json_u64(json_object_get(index, "metadata"), "total_size");
}

static int make(const struct request *request, const json_t *knowledge, struct plan **ret_plan,
                json_t **ret_config, struct why *why)
{
        struct plan_options plan = request->options;
        int r = plan_read_json(request->config, ret_config, why);

        if (r < 0)
                return r;
        if (!plan.weight_bytes)
                plan.weight_bytes = weights_beside(request->config);
        if (request->command)
                return plan_audit(knowledge, *ret_config, &plan, request->command, ret_plan, why);
        r = plan_new(knowledge, *ret_config, &plan, ret_plan, why);
        if (r < 0)
                why_prefix(why, "%s", request->config);
        return r;
}

int plan_command(struct context *context, int argc, char **argv)
{
        json_auto_t *knowledge = NULL, *config = NULL;
        _cleanup_(plan_freep) struct plan *plan = NULL;
        struct request request = {0};
        struct why why = {""};

        command_parse(context, &plan_argp,
                      "A serving design from a model's config.json: class, sizes, page, users, "
                      "parallelism, flags. Asks no daemon.",
                      argc, argv, &request, 0);
        if (plan_knowledge_load(request.knowledge, &knowledge, &why) < 0 ||
            make(&request, knowledge, &plan, &config, &why) < 0) {
                command_error("%s", why.text);
                return STATUS_NEGATIVE;
        }
        if (context->json)
                command_print_json(plan->document, false);
        else
                plan_print(plan);
        return plan_count_faults(plan) ? STATUS_NEGATIVE : STATUS_OK;
}
