// SPDX-License-Identifier: Apache-2.0
/*
 * What fits: chunks that are whole pages and what they lose of prompts, sessions in GPU memory,
 * and those that host memory and NVMe keep warm. A tier keeps one copy of what ranks hold alike,
 * whole chunks only, and one state of each recurrent layer.
 */
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"

#define CHUNK_TOKENS_LEAST UINT64_C(256) /* kvtierd's own default */
#define PIECE_BYTES        (UINT64_C(1) << 30)
#define BLOCK_BYTES        UINT64_C(4096)
#define N_CHUNKS           3u

static const uint64_t default_prompts[] = {1000, 8000, 32000};

/* The smallest chunk that is worth an object, then twice and four times that. */
static uint64_t chunk_of(const struct plan *plan, unsigned i)
{
        return plan_round_up(CHUNK_TOKENS_LEAST, plan->sizes.page_tokens) << i;
}

static void add_tail(json_t *tails, uint64_t chunk, uint64_t prompt)
{
        uint64_t lost = prompt % chunk;

        json_array_append_new(tails, json_pack("{s:I, s:I, s:I, s:f}", "chunk_tokens",
                                               (json_int_t)chunk, "prompt_tokens",
                                               (json_int_t)prompt, "lost_tokens", (json_int_t)lost,
                                               "lost_share", (double)lost / (double)prompt));
}

static void fit_chunks(struct plan *plan)
{
        const struct plan_options *options = &plan->options;
        const uint64_t *prompts = options->n_prompts ? options->prompts : default_prompts;
        size_t n = options->n_prompts ? options->n_prompts
                                      : sizeof(default_prompts) / sizeof(default_prompts[0]);
        json_t *chunks = json_array(), *tails = json_array();

        for (unsigned i = 0; i < N_CHUNKS && plan->sizes.page_tokens; i++) {
                json_array_append_new(chunks, json_integer((json_int_t)chunk_of(plan, i)));
                for (size_t j = 0; j < n; j++)
                        if (prompts[j])
                                add_tail(tails, chunk_of(plan, i), prompts[j]);
        }
        json_object_set_new(plan->document, "chunk_tokens", chunks);
        json_object_set_new(plan->document, "tails", tails);
}

/* ---- users ---- */

/*
 * How many states a session keeps of each layer. In mode align vLLM keeps the last at the end of a
 * page beside the one it works on, and Mamba-2 one more for a page that ends within a prefill
 * (kv_cache_interface.py, MambaSpec.max_memory_usage_bytes; mamba_mixer2.py).
 */
static uint64_t resident_states(const struct plan *plan)
{
        uint64_t states = 1 + plan->options.draft_tokens;

        if (!strcmp(plan_cache_mode(plan), "align"))
                states += plan->model.state == PLAN_STATE_MAMBA2 ? 2 : 1;
        return states;
}

/* What a session takes on one rank: whole pages, of tokens and of states. */
static uint64_t rank_session_bytes(const struct plan *plan)
{
        const struct plan_sizes *sizes = &plan->sizes;
        uint64_t tokens = plan_round_up(plan->options.context_tokens, sizes->page_tokens);
        uint64_t state = sizes->state_bytes;

        if (sizes->page_bytes > sizes->layer_state_bytes)
                state = plan_round_up(plan->model.state_layers * sizes->page_bytes,
                                      plan->options.pp) /
                        plan->options.pp;
        if (!tokens)
                tokens = plan->options.context_tokens;
        return tokens * sizes->kv_bytes_per_token + sizes->window_bytes +
               state * resident_states(plan);
}

/* What it takes in a tier, of all ranks and stages. */
static uint64_t stored_session_bytes(const struct plan *plan)
{
        const struct plan_sizes *sizes = &plan->sizes;
        uint64_t ranks = plan->options.tp / (sizes->kv_copies ? sizes->kv_copies : 1);
        uint64_t chunk = chunk_of(plan, 0), tokens = plan->options.context_tokens;

        if (chunk)
                tokens -= tokens % chunk;
        return plan->options.pp *
               (ranks * (tokens * sizes->kv_bytes_per_token + sizes->window_bytes) +
                plan->options.tp * sizes->state_bytes);
}

/* Experts are spread over all ranks, so replicas do not hold the model each. */
static uint64_t rank_weight_bytes(const struct plan *plan)
{
        const struct plan_options *options = &plan->options;
        uint64_t ranks = options->tp * options->pp;

        if (json_object_get(plan->facts, "moe") && json_object_get(plan->facts, "ep") &&
            ranks < options->ep * options->pp)
                ranks = options->ep * options->pp;
        return options->weight_bytes / ranks;
}

/* Bytes of a GPU for weights and KV. */
static double gpu_room(const struct plan *plan)
{
        return (double)json_u64(plan->gpu, "memory_bytes") * plan->options.memory_share;
}

static json_t *gpu_users(const struct plan *plan, uint64_t weight_bytes)
{
        double room = gpu_room(plan) - (double)weight_bytes;
        uint64_t session = rank_session_bytes(plan);

        if (!plan->gpu || !plan->sizes.is_known || !session)
                return json_null();
        if (room < 0)
                return json_integer(0);
        return json_integer((json_int_t)((uint64_t)room / session * plan->options.dp));
}

/* Room that is known to be missing is a fact for the gates. */
static void add_weight_fact(struct plan *plan)
{
        if (!plan->gpu || !plan->options.weight_bytes)
                return;
        if ((double)plan->options.weight_bytes > gpu_room(plan) * (double)plan->n_gpus)
                plan_add_fact(plan, "weights_beyond_gpus");
        else if ((double)rank_weight_bytes(plan) > gpu_room(plan))
                plan_add_fact(plan, "weights_beyond_rank");
}

static json_t *tier_users(const struct plan *plan, uint64_t bytes)
{
        uint64_t session = stored_session_bytes(plan);

        if (!bytes || !plan->sizes.is_known || !session)
                return json_null();
        return json_integer((json_int_t)(bytes / session));
}

/* What the figures leave out, as far as it is known that they do. */
static void add_user_unknowns(struct plan *plan)
{
        const struct plan_options *options = &plan->options;

        if (!options->weight_bytes && plan->gpu)
                plan_add_unknown(plan,
                                 "weights: their bytes are neither told (--weights) nor beside "
                                 "the configuration (model.safetensors.index.json); users "
                                 "are at most what an empty GPU would hold");
        if (rank_weight_bytes(plan) < options->weight_bytes / (options->tp * options->pp))
                plan_add_unknown(plan, "weights: attention and shared experts lie whole on each "
                                       "replica, how much that is the configuration does not say; "
                                       "all weights are divided by EP, so users are fewer");
        if (options->draft_tokens)
                plan_add_unknown(plan,
                                 "draft: the KV of the layers that draft (MTP, EAGLE; n-grams "
                                 "have none) is in no figure, so users are fewer");
        if (!options->host_bytes)
                plan_add_unknown(plan, "host memory: not told (--host), nor its warm sessions");
        if (!options->nvme_bytes)
                plan_add_unknown(plan, "NVMe: not told (--nvme), nor its warm sessions");
}

static void fit_users(struct plan *plan)
{
        const struct plan_options *options = &plan->options;
        bool is_known = plan->sizes.is_known;
        json_t *users;

        add_weight_fact(plan);
        add_user_unknowns(plan);
        users = json_pack(
                "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "context_tokens",
                (json_int_t)options->context_tokens, "session_bytes",
                is_known ? json_integer((json_int_t)rank_session_bytes(plan)) : json_null(),
                "stored_bytes",
                is_known ? json_integer((json_int_t)stored_session_bytes(plan)) : json_null(),
                "weight_bytes",
                options->weight_bytes ? json_integer((json_int_t)rank_weight_bytes(plan))
                                      : json_null(),
                "gpu",
                options->weight_bytes ? gpu_users(plan, rank_weight_bytes(plan)) : json_null(),
                "gpu_at_most", gpu_users(plan, 0), "host", tier_users(plan, options->host_bytes),
                "nvme", tier_users(plan, options->nvme_bytes), "memory_share",
                options->memory_share);
        json_object_set_new(plan->document, "users", users);
}

/* ---- kvtierd ---- */

/* Whole arenas of their default size, and whole pages of the file system. */
static void fit_daemon(struct plan *plan)
{
        uint64_t host = plan->options.host_bytes / PIECE_BYTES * PIECE_BYTES;
        uint64_t nvme = plan->options.nvme_bytes / BLOCK_BYTES * BLOCK_BYTES;
        json_t *keys = json_object();

        if (host)
                json_object_set_new(keys, "host.bytes", json_integer((json_int_t)host));
        if (nvme)
                json_object_set_new(keys, "nvme.bytes", json_integer((json_int_t)nvme));
        if (plan->sizes.page_tokens)
                json_object_set_new(keys, "chunk_tokens",
                                    json_integer((json_int_t)chunk_of(plan, 0)));
        json_object_set_new(plan->document, "kvtierd", keys);
}

void plan_fit(struct plan *plan)
{
        fit_chunks(plan);
        fit_users(plan);
        fit_daemon(plan);
}
