// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/findings.h"
#include "client/kvtierctl/siblings.h"
#include "client/kvtierctl/symptoms.h"
#include "client/kvtierctl/table.h"

/* Fewer say nothing. */
#define OBJECTS_MIN 16u
#define PROMPTS_MIN 16u
/* By so much the hit rate has to be better without tails. */
#define TAILS_SHARE 0.05

static bool is_kind(const json_t *group, const char *kind)
{
        return !strcmp(json_text(group, "kind"), kind);
}

/* Of which a prefix needs every chunk. */
static bool is_kv(const json_t *group)
{
        return is_kind(group, "attention") || is_kind(group, "index") ||
               is_kind(group, "compressed");
}

/* A number of the groups of KV, or of those with a state, added up. */
static uint64_t sum_of(const json_t *layout, bool of_kv, const char *name)
{
        const json_t *group;
        uint64_t sum = 0;
        size_t i;

        json_array_foreach(json_object_get(layout, "groups"), i,
                           group) if (of_kv ? is_kv(group) : is_kind(group, "state")) sum +=
                json_u64(group, name);
        return sum;
}

static bool has_state_beside_kv(const json_t *layout)
{
        const json_t *group;
        bool has_kv = false, has_state = false;
        size_t i;

        json_array_foreach(json_object_get(layout, "groups"), i, group)
        {
                has_kv |= is_kv(group);
                has_state |= is_kind(group, "state");
        }
        return has_kv && has_state;
}

/* ---- chunks and states ---- */

/* "every 528 tokens"; "" where they come anywhere. */
static const char *spacing_text(const json_t *group)
{
        static char text[64];
        uint64_t spacing = json_u64(group, "spacing_tokens");

        text[0] = '\0';
        if (spacing >= 16)
                snprintf(text, sizeof(text), ", at multiples of %s tokens", text_count(spacing));
        return text;
}

static void check_chunk(json_t *list, const json_t *layout)
{
        const json_t *group;
        size_t i;

        json_array_foreach(json_object_get(layout, "groups"), i, group)
        {
                uint64_t states = json_u64(group, "states"), off = json_u64(group, "off_chunk");

                if (states < OBJECTS_MIN || off <= states / 2)
                        continue;
                findings_add(list, "chunk",
                             "attach with chunk_tokens at which states come: N, or a multiple "
                             "(kvtierctl plan derives N from the model's config.json)",
                             "layout %.12s (%.200s): %s of %s states of group %.40s came where no "
                             "chunk of %s tokens ends%s: no prompt finds them, nor the KV beside "
                             "them",
                             json_text(layout, "layout"), json_text(layout, "model"),
                             text_count(off), text_count(states), json_text(group, "name"),
                             text_count(json_u64(layout, "chunk_tokens")), spacing_text(group));
        }
}

static void check_states_stored(json_t *list, const json_t *layout)
{
        uint64_t kv = sum_of(layout, true, "stored");

        if (!has_state_beside_kv(layout) || kv < OBJECTS_MIN)
                return;
        /* Those of before a restart are offered, found here, and not stored again. */
        if (sum_of(layout, false, "stored") || sum_of(layout, false, "states") ||
            sum_of(layout, false, "hits"))
                return;
        findings_add(
                list, "states",
                "let the engine hand over states: vLLM needs prefix caching with "
                "--mamba-cache-mode align, SGLang a strategy with extra_buffer; kvtierctl why "
                "--session=N shows what a prompt lacks",
                "layout %.12s (%.200s): %s objects of KV were stored since the start, and no "
                "state: without one at the same boundary no prompt may use them",
                json_text(layout, "layout"), json_text(layout, "model"), text_count(kv));
}

static void check_states_hit(json_t *list, const json_t *layout)
{
        uint64_t states = sum_of(layout, false, "stored"), kv = sum_of(layout, true, "hits");
        const json_t *told = json_object_get(layout, "told");
        uint64_t tokens = json_u64(told, "prompts") < PROMPTS_MIN ? 0 : json_u64(told, "kv_tokens");
        char seen[128];

        if (!has_state_beside_kv(layout) || !states || sum_of(layout, false, "hits") ||
            (kv < OBJECTS_MIN && !tokens))
                return;
        if (tokens)
                snprintf(seen, sizeof(seen), "%s tokens of prompts had their KV here",
                         text_count(tokens));
        else
                snprintf(seen, sizeof(seen), "%s objects of KV were loaded", text_count(kv));
        findings_add(list, "states",
                     "kvtierctl why --session=N names the boundary that lacks its state, and why: "
                     "where it was evicted raise host.bytes; where it was never stored let the "
                     "engine keep more of them (vLLM: --prefix-cache-retention-interval)",
                     "layout %.12s (%.200s): %s since the start, but none of the %s states that "
                     "were stored was loaded: their memory serves nobody",
                     json_text(layout, "layout"), json_text(layout, "model"), seen,
                     text_count(states));
}

/* ---- steps and chunks ---- */

/* N: the longest page; states come at its multiples. */
static uint64_t page_tokens(const json_t *layout)
{
        const json_t *group;
        uint64_t longest = 0;
        size_t i;

        json_array_foreach(json_object_get(layout, "groups"), i, group)
        {
                uint64_t tokens = json_u64(group, "page_tokens");

                if (is_kv(group) && tokens > longest)
                        longest = tokens;
        }
        return longest;
}

/* Without states a chunk may fill over many steps. */
static void check_batch(json_t *list, const json_t *layout)
{
        uint64_t batch = json_u64(layout, "batch_tokens"), page = page_tokens(layout);

        if (!has_state_beside_kv(layout) || !batch || batch >= page)
                return;
        findings_add(
                list, "batch_tokens",
                "raise it to N or more (vLLM: --max-num-batched-tokens, SGLang: "
                "--chunked-prefill-size)",
                "layout %.12s (%.200s): the engine computes at most %s tokens in a step, and a "
                "page, N, has %s: no step reaches from one state to the next, so that prefills "
                "stall or leave no state",
                json_text(layout, "layout"), json_text(layout, "model"), text_count(batch),
                text_count(page));
}

static const char *tails_remedy(const json_t *layout)
{
        if (json_u64(layout, "chunk_tokens") > page_tokens(layout))
                return "attach with smaller chunks, down to N (vLLM: blocks_per_chunk in "
                       "kv_connector_extra_config)";
        return "a chunk is N already: kvtierctl plan tells what lowers N, such as more TP, a state "
               "in bfloat16, KV that is not FP8";
}

static void check_tails(json_t *list, const json_t *layout)
{
        const json_t *told = json_object_get(layout, "told");
        double all = json_double(told, "prompt_tokens"), tails = json_double(told, "tail_tokens");
        double hits = json_double(told, "hit_tokens");

        if (json_u64(told, "prompts") < PROMPTS_MIN || all <= tails ||
            hits > all - tails || hits / (all - tails) - hits / all < TAILS_SHARE)
                return;
        findings_add(list, "tails", tails_remedy(layout),
                     "layout %.12s (%.200s): of the tokens that the engine lacked %s were hits, %s "
                     "without the tails that fill no chunk of %s tokens (%s of the tokens, %s a "
                     "prompt): those are computed each time",
                     json_text(layout, "layout"), json_text(layout, "model"),
                     text_percent(hits, all), text_percent(hits, all - tails),
                     text_count(json_u64(layout, "chunk_tokens")), text_percent(tails, all),
                     text_count((uint64_t)(tails / json_double(told, "prompts"))));
}

/* ---- the indexer ---- */

/* vLLM's tensors that hold all layers of a group have no names that tell. */
static bool is_packed(const json_t *group)
{
        const json_t *name;
        size_t i;

        json_array_foreach(json_object_get(group, "tensor_names"), i,
                           name) if (strstr(json_string_value(name), "packed")) return true;
        return false;
}

/* Or may have, for all that can be seen. SGLang tells the geometry of its pools. */
static bool has_index(const json_t *layout)
{
        const json_t *group;
        size_t i;

        json_array_foreach(json_object_get(layout, "groups"), i, group)
        {
                if (is_kind(group, "index") || is_kind(group, "compressed") ||
                    json_u64(group, "index_tensors") || is_packed(group))
                        return true;
        }
        return strcasestr(json_text(layout, "kernel_layout"), "index") != NULL;
}

static void check_index(json_t *list, const json_t *layout)
{
        if (!json_object_get(layout, "wants_index") || has_index(layout))
                return;
        findings_add(list, "indexer",
                     "let the engine register the caches of its indexer with the others, as a "
                     "group of kind index or as tensors of the attention's; what is stored without "
                     "them: kvtierctl clear",
                     "layout %.12s (%.200s) has no indexer keys, but %s: restored prompts choose "
                     "their tokens by keys that are not theirs, and answer wrongly",
                     json_text(layout, "layout"), json_text(layout, "model"),
                     json_text(layout, "wants_index"));
}

static const struct {
        const char *name;
        void (*check)(json_t *list, const json_t *layout);
} checks[] = {
        {"chunks and states", check_chunk},
        {"states that are not stored", check_states_stored},
        {"states that are not hit", check_states_hit},
        {"tokens of a step", check_batch},
        {"tails of prompts", check_tails},
        {"indexer keys", check_index},
};

#define N_CHECKS (sizeof(checks) / sizeof(checks[0]))

void symptoms_append(json_t *list, const json_t *layouts)
{
        const json_t *layout;
        size_t i;

        json_array_foreach(layouts, i, layout)
        {
                for (size_t c = 0; json_bool(layout, "known") && c < N_CHECKS; c++)
                        checks[c].check(list, layout);
        }
        siblings_append(list, layouts);
}

const char *symptoms_check_name(size_t i)
{
        if (i == N_CHECKS)
                return "layouts that differ by dtype, draft tokens or version";
        return i < N_CHECKS ? checks[i].name : NULL;
}
