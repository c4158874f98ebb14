// SPDX-License-Identifier: Apache-2.0
/* What the rules of engines.json say of a plan: parallelism, hardware, flags, parsers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_knowledge.h"

#define BATCH_TOKENS UINT64_C(8192) /* a step that is worth a prefill */

/* ---- parallelism ---- */

static void advise_parallelism(struct plan *plan)
{
        const json_t *rule, *found = NULL;
        const struct plan_options *options = &plan->options;
        json_t *advice;
        size_t i;

        json_array_foreach(plan_table(plan->knowledge, "engines", "parallelism"), i, rule)
        {
                if (plan_holds(plan->facts, json_object_get(rule, "when"))) {
                        found = rule;
                        break;
                }
        }
        if (!found && json_object_get(plan->facts, "latent") && !options->concurrency)
                plan_add_unknown(plan, "parallelism: it turns on how many requests come at once "
                                       "(--concurrency): TP with few, attention by request (DP) "
                                       "with more than about 128");
        else if (!found)
                plan_add_unknown(plan, "parallelism: no rule of the table fits, or how many GPUs "
                                       "there are is not told (--gpu)");
        advice =
                json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:s}", "tp", (json_int_t)options->tp,
                          "ep", (json_int_t)options->ep, "dp", (json_int_t)options->dp, "pp",
                          (json_int_t)options->pp, "kv_copies", (json_int_t)plan->sizes.kv_copies,
                          "choose", found ? json_string(json_text(found, "choose")) : json_null(),
                          "why", json_text(found, "why"), "source", json_text(found, "source"));
        json_object_set_new(plan->document, "parallelism", advice);
}

/* ---- hardware ---- */

static void advise_hardware(struct plan *plan)
{
        json_t *checks = json_array();
        const json_t *rule;
        size_t i;

        json_array_foreach(plan_table(plan->knowledge, "engines", "gates"), i, rule)
        {
                if (!plan_holds(plan->facts, json_object_get(rule, "when")))
                        continue;
                json_array_append_new(checks, json_pack("{s:s, s:s, s:s, s:s}", "check",
                                                        json_text(rule, "check"), "verdict",
                                                        json_text(rule, "verdict"), "why",
                                                        json_text(rule, "why"), "source",
                                                        json_text(rule, "source")));
        }
        json_object_set_new(plan->document, "hardware", checks);
}

/* ---- parsers ---- */

/* Engines have names of their own for the same parser. Of some families not all models reason. */
static json_t *name_parsers(struct plan *plan, const json_t *row, const char *engine)
{
        const json_t *names = json_object_get(row, engine);
        const char *tool = json_text(names, "tool"), *reasoning = json_text(names, "reasoning");

        if (*tool)
                plan_add_fact(plan, "tool_parser:%s", engine);
        if (*reasoning)
                plan_add_fact(plan, "%s:%s",
                              *json_text(row, "may_reason") ? "may_reason" : "reasoning_parser",
                              engine);
        return json_pack("{s:o, s:o}", "tool", *tool ? json_string(tool) : json_null(), "reasoning",
                         *reasoning ? json_string(reasoning) : json_null());
}

static void advise_parsers(struct plan *plan)
{
        const char *family = json_text(plan->model.row, "family");
        const json_t *row =
                plan_row(plan_table(plan->knowledge, "engines", "parsers"), "family", family);

        json_object_set_new(plan->document, "parsers",
                            json_pack("{s:o, s:o, s:s}", "vllm", name_parsers(plan, row, "vllm"),
                                      "sglang", name_parsers(plan, row, "sglang"), "source",
                                      json_text(row, "source")));
        if (!json_object_get(plan->facts, "tool_parser:vllm") &&
            !json_object_get(plan->facts, "tool_parser:sglang"))
                plan_add_unknown(plan, "tool-call parser: no name for this family in the table; "
                                       "the model card has it");
        if (*json_text(row, "may_reason"))
                plan_add_unknown(plan, "reasoning parser: %s, if the model reasons: %s",
                                 json_text(json_object_get(row, "vllm"), "reasoning"),
                                 json_text(row, "may_reason"));
        else if (!json_object_get(plan->facts, "reasoning_parser:vllm") &&
                 !json_object_get(plan->facts, "reasoning_parser:sglang"))
                plan_add_unknown(plan, "reasoning parser: no name for this family in the table; "
                                       "the model card has it, if the model reasons");
}

/* ---- flags ---- */

void plan_flag_value(const struct plan *plan, const json_t *rule, char *text, size_t size)
{
        const json_t *engines = json_object_get(rule, "engines");
        const json_t *parsers =
                json_object_get(json_object_get(plan->document, "parsers"),
                                json_string_value(json_array_get(engines, 0)) ?: "");
        const char *word = json_text(rule, "value");
        uint64_t page = plan->sizes.page_tokens;
        uint64_t gpus = plan->options.tp * plan->options.dp;

        if (!strcmp(word, "{tool_parser}"))
                snprintf(text, size, "%s", json_text(parsers, "tool"));
        else if (!strcmp(word, "{reasoning_parser}"))
                snprintf(text, size, "%s", json_text(parsers, "reasoning"));
        else if (!strcmp(word, "{gpus}"))
                snprintf(text, size, "%" PRIu64, plan->n_gpus ? plan->n_gpus : gpus);
        else if (!strcmp(word, "{batch_tokens}"))
                snprintf(text, size, "%" PRIu64,
                         page ? plan_round_up(BATCH_TOKENS, page) : BATCH_TOKENS);
        else
                snprintf(text, size, "%s", word);
}

static void add_flag(struct plan *plan, json_t *flags, const json_t *rule)
{
        json_t *entry;
        char value[64];

        plan_flag_value(plan, rule, value, sizeof(value));
        entry = json_pack("{s:s, s:s, s:O, s:s, s:s, s:s}", "do", json_text(rule, "do"), "flag",
                          json_text(rule, "flag"), "engines", json_object_get(rule, "engines"),
                          "value", value, "why", json_text(rule, "why"), "source",
                          json_text(rule, "source"));
        json_array_append_new(flags, entry);
}

static void advise_flags(struct plan *plan)
{
        json_t *flags = json_array();
        const json_t *rule;
        size_t i;

        json_array_foreach(plan_table(plan->knowledge, "engines", "rules"), i, rule)
        {
                if (plan_holds(plan->facts, json_object_get(rule, "when")))
                        add_flag(plan, flags, rule);
        }
        json_object_set_new(plan->document, "flags", flags);
}

void plan_advise(struct plan *plan)
{
        advise_parallelism(plan);
        advise_hardware(plan);
        advise_parsers(plan);
        advise_flags(plan);
}
