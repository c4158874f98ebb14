// SPDX-License-Identifier: Apache-2.0
/*
 * A command line that somebody else wrote, held against the rules. What it sets (TP, dtypes,
 * draft tokens) makes the plan first, for the page and the facts depend on it; then each rule is
 * asked for what is missing, and each flag for what it does.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_knowledge.h"
#include "client/kvtierctl/plan_words.h"

struct audit {
        const json_t *knowledge;
        const char *engine;
        json_t *flags; /* {"typed", "flag", "value"}; flag "" when the table does not have it */
        json_t *findings;
        struct plan *plan;
};

/* ---- parsing ---- */

/* The word that runs the engine; a container's image and a Python module count too. */
static const char *find_engine(const json_t *words, size_t *ret_i)
{
        static const char *const engines[] = {"vllm", "sglang", "lmcache"};
        const json_t *word;
        size_t i;

        json_array_foreach(words, i, word)
        {
                const char *text = json_string_value(word);
                const char *name = strrchr(text, '/') ? strrchr(text, '/') + 1 : text;

                for (size_t j = 0; j < sizeof(engines) / sizeof(engines[0]); j++) {
                        if (strncmp(name, engines[j], strlen(engines[j])))
                                continue;
                        *ret_i = i;
                        return engines[j];
                }
        }
        return NULL;
}

static const json_t *find_flag(const struct audit *audit, const char *typed)
{
        const json_t *row, *other = NULL;
        size_t i;

        json_array_foreach(plan_table(audit->knowledge, "engines", "flags"), i, row)
        {
                if (strcmp(json_text(row, "flag"), typed) &&
                    !plan_lists(json_object_get(row, "spellings"), typed))
                        continue;
                if (plan_lists(json_object_get(row, "engines"), audit->engine))
                        return row;
                other = row;
        }
        return other;
}

/* Whether the next word is this one's value. */
static bool takes_value(const json_t *row, const char *next)
{
        if (!next || (next[0] == '-' && !(next[1] >= '0' && next[1] <= '9')))
                return false;
        return !row || json_is_true(json_object_get(row, "value"));
}

/* What stands before the engine's word is Python's or a container's. */
static void parse_flags(struct audit *audit, const json_t *words, size_t first)
{
        for (size_t i = first; i < json_array_size(words); i++) {
                const char *word = json_string_value(json_array_get(words, i));
                const char *next = json_string_value(json_array_get(words, i + 1)), *equals;
                const json_t *row;
                char typed[128];

                if (word[0] != '-' || !word[1])
                        continue;
                equals = strchr(word, '=');
                snprintf(typed, sizeof(typed), "%.*s",
                         (int)(equals ? equals - word : (ptrdiff_t)strlen(word)), word);
                row = find_flag(audit, typed);
                if (equals)
                        next = equals + 1;
                else if (takes_value(row, next))
                        i++;
                else
                        next = "";
                json_array_append_new(audit->flags,
                                      json_pack("{s:s, s:s, s:s}", "typed", typed, "flag",
                                                json_text(row, "flag"), "value", next));
        }
}

/* ---- what the command line sets ---- */

static void set_number(const char *value, uint64_t *number)
{
        char *end;
        unsigned long long parsed = strtoull(value, &end, 10);

        if (end != value && !*end && *value != '-' && parsed)
                *number = parsed;
}

static void set_draft(const char *value, uint64_t *draft)
{
        json_auto_t *config = json_loads(value, 0, NULL);

        if (json_is_object(config))
                *draft = json_u64(config, "num_speculative_tokens");
        else
                set_number(value, draft);
}

static void set_option(struct plan_options *options, const char *option, const char *value)
{
        const struct {
                const char *name;
                uint64_t *number;
        } numbers[] = {
                {"tp", &options->tp},
                {"dp", &options->dp},
                {"pp", &options->pp},
                {"ep", &options->ep},
                {"block_size", &options->block_size},
                {"context", &options->context_tokens},
        };

        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
                if (!strcmp(option, numbers[i].name))
                        set_number(value, numbers[i].number);
        if (!strcmp(option, "draft"))
                set_draft(value, &options->draft_tokens);
        else if (!strcmp(option, "memory_share") && strtod(value, NULL) > 0)
                options->memory_share = strtod(value, NULL);
        else if (!strcmp(option, "kv_dtype") && plan_dtype_sixteenths(value))
                options->kv_dtype = value;
        else if (!strcmp(option, "state_dtype") && plan_dtype_sixteenths(value))
                options->state_dtype = value;
        else if (!strcmp(option, "cache_mode") &&
                 (!strcmp(value, "align") || !strcmp(value, "all") || !strcmp(value, "none")))
                options->cache_mode = value;
        else if (!strcmp(option, "quantization"))
                options->quantization = value;
}

static bool is_set(const struct audit *audit, const char *flag)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(audit->flags, i, entry)
        {
                const json_t *row = plan_row(plan_table(audit->knowledge, "engines", "flags"),
                                             "flag", json_text(entry, "flag"));

                if (!strcmp(json_text(entry, "flag"), flag) ||
                    !strcmp(json_text(row, "counts_as"), flag))
                        return true;
        }
        return false;
}

/* What a command line does not say is the engine's default, not what the plan was told. */
static void take_options(const struct audit *audit, struct plan_options *options)
{
        const json_t *entry;
        size_t i;

        options->tp = options->dp = options->pp = 1;
        options->ep = options->draft_tokens = options->block_size = 0;
        options->kv_dtype = options->state_dtype = options->cache_mode = NULL;
        json_array_foreach(audit->flags, i, entry)
        {
                const json_t *row = plan_row(plan_table(audit->knowledge, "engines", "flags"),
                                             "flag", json_text(entry, "flag"));

                set_option(options, json_text(row, "option"), json_text(entry, "value"));
        }
        if (is_set(audit, "--enable-expert-parallel"))
                options->ep = options->tp * options->dp;
        if (is_set(audit, "--enable-moe-ep") && !options->ep)
                options->ep = options->tp;
        /* The ranks of TP are then divided among requests, as far as attention goes. */
        if (is_set(audit, "--enable-dp-attention") && options->tp % options->dp == 0)
                options->tp /= options->dp;
        options->text_only = options->text_only || is_set(audit, "--language-model-only");
}

/* ---- findings ---- */

static void add(struct audit *audit, const char *verdict, const json_t *entry, const char *source,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

/* @entry: the flag as it is typed, or should be, and its value. */
static void add(struct audit *audit, const char *verdict, const json_t *entry, const char *source,
                const char *format, ...)
{
        char text[512];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        json_array_append_new(audit->findings,
                              json_pack("{s:s, s:s, s:s, s:s, s:s}", "verdict", verdict, "flag",
                                        json_text(entry, "typed"), "value",
                                        json_text(entry, "value"), "why", text, "source", source));
}

static bool applies(const struct audit *audit, const json_t *rule, const char *action)
{
        return !strcmp(json_text(rule, "do"), action) &&
               plan_lists(json_object_get(rule, "engines"), audit->engine) &&
               plan_holds(audit->plan->facts, json_object_get(rule, "when"));
}

static void find_missing(struct audit *audit)
{
        const json_t *rule;
        size_t i;

        json_array_foreach(plan_table(audit->knowledge, "engines", "rules"), i, rule)
        {
                json_auto_t *entry = NULL;
                char value[64];

                if (!applies(audit, rule, "set") || is_set(audit, json_text(rule, "flag")))
                        continue;
                plan_flag_value(audit->plan, rule, value, sizeof(value));
                entry = json_pack("{s:s, s:s}", "typed", json_text(rule, "flag"), "value", value);
                add(audit, "missing", entry, json_text(rule, "source"), "%s",
                    json_text(rule, "why"));
        }
}

/* A number of tokens that should be whole pages. */
static bool check_alignment(struct audit *audit, const json_t *entry, const json_t *rule)
{
        uint64_t page = audit->plan->sizes.page_tokens, tokens = 0, rest;
        const char *value = json_text(entry, "value");

        set_number(value, &tokens);
        if (!page || !tokens)
                return false;
        rest = tokens % page;
        if (!rest)
                return false;
        if (tokens < page)
                add(audit, "wrong", entry, json_text(rule, "source"),
                    "below one page of %" PRIu64 " tokens: use a multiple of it; %s", page,
                    json_text(rule, "why"));
        else
                add(audit, "wrong", entry, json_text(rule, "source"),
                    "no multiple of the page of %" PRIu64 " tokens (%" PRIu64 " over): use %" PRIu64
                    " or %" PRIu64 "; %s",
                    page, rest, tokens - rest, tokens - rest + page, json_text(rule, "why"));
        return true;
}

/* Whether a rule has something to say against this flag. */
static bool check_rules(struct audit *audit, const json_t *entry)
{
        const char *flag = json_text(entry, "flag");
        const char *value = json_text(entry, "value");
        const json_t *rule;
        size_t i;

        json_array_foreach(plan_table(audit->knowledge, "engines", "rules"), i, rule)
        {
                char right[64];

                if (strcmp(json_text(rule, "flag"), flag))
                        continue;
                if (applies(audit, rule, "leave")) {
                        add(audit, "remove", entry, json_text(rule, "source"), "%s",
                            json_text(rule, "why"));
                        return true;
                }
                if (applies(audit, rule, "align") && check_alignment(audit, entry, rule))
                        return true;
                plan_flag_value(audit->plan, rule, right, sizeof(right));
                if (applies(audit, rule, "set") && json_bool(rule, "exact") &&
                    strcmp(right, value)) {
                        add(audit, "wrong", entry, json_text(rule, "source"),
                            "the name for this family is %s; %s", right, json_text(rule, "why"));
                        return true;
                }
        }
        return false;
}

static bool check_value(struct audit *audit, const json_t *entry, const json_t *row)
{
        const json_t *values = json_object_get(row, "values"), *rule;
        const char *value = json_text(entry, "value");
        size_t i;

        if (json_bool(row, "value") && !*value) {
                add(audit, "wrong", entry, json_text(row, "source"), "needs a value");
                return true;
        }
        if (values && !plan_lists(values, value)) {
                add(audit, "wrong", entry, json_text(row, "source"),
                    "no value that the engine takes; %s", json_text(row, "brings"));
                return true;
        }
        json_array_foreach(plan_table(audit->knowledge, "engines", "values"), i, rule)
        {
                const char *begin = json_text(rule, "value");

                if (strcmp(json_text(rule, "flag"), json_text(row, "flag")) ||
                    strncmp(value, begin, strlen(begin)) ||
                    !plan_holds(audit->plan->facts, json_object_get(rule, "when")))
                        continue;
                add(audit, "wrong", entry, json_text(rule, "source"), "%s", json_text(rule, "why"));
                return true;
        }
        return false;
}

/* A flag that runs into its value, as "--reasoning-parser-glm45". */
static void add_unknown_flag(struct audit *audit, const json_t *entry)
{
        const char *typed = json_text(entry, "typed");
        const json_t *row;
        size_t i;

        json_array_foreach(plan_table(audit->knowledge, "engines", "flags"), i, row)
        {
                const char *flag = json_text(row, "flag");
                size_t n = strlen(flag);

                if (strncmp(typed, flag, n) || typed[n] != '-' || !json_bool(row, "value"))
                        continue;
                add(audit, "wrong", entry, json_text(row, "source"), "no flag; is %s %s meant?",
                    flag, typed + n + 1);
                return;
        }
        add(audit, "unknown", entry, "", "not in the table of flags: look it up");
}

static void check_flags(struct audit *audit)
{
        const json_t *flags = plan_table(audit->knowledge, "engines", "flags"), *entry;
        size_t i;

        json_array_foreach(audit->flags, i, entry)
        {
                const json_t *row = *json_text(entry, "flag")
                                            ? plan_row(flags, "flag", json_text(entry, "flag"))
                                            : NULL;

                if (!row)
                        add_unknown_flag(audit, entry);
                else if (!plan_lists(json_object_get(row, "engines"), audit->engine))
                        add(audit, "wrong", entry, json_text(row, "source"),
                            "no flag of %s, but of another engine", audit->engine);
                else if (!check_rules(audit, entry) && !check_value(audit, entry, row))
                        add(audit, "keep", entry, json_text(row, "source"), "%s",
                            json_text(row, "brings"));
        }
}

static int split_command(struct audit *audit, const char *command, struct why *why)
{
        json_auto_t *words = NULL;
        size_t i = 0;
        int r = plan_words_split(command, &words, why);

        if (r < 0)
                return r;
        audit->engine = find_engine(words, &i);
        if (!audit->engine) {
                why_set(why, "the command line runs neither vllm nor sglang nor lmcache: give all "
                             "of it, as \"vllm serve MODEL --flag ...\"");
                return err_raise(-EINVAL);
        }
        parse_flags(audit, words, i + 1);
        return 0;
}

int plan_audit(const json_t *knowledge, const json_t *config, const struct plan_options *options,
               const char *command, struct plan **ret_plan, struct why *why)
{
        struct plan_options set = *options;
        struct audit audit = {
                .knowledge = knowledge,
                .flags = json_array(),
                .findings = json_array(),
        };
        json_auto_t *check =
                json_pack("{s:o, s:o}", "flags", audit.flags, "findings", audit.findings);
        int r;

        if (!check) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        r = split_command(&audit, command, why);
        if (r < 0)
                return r;
        take_options(&audit, &set);
        r = plan_new(knowledge, config, &set, &audit.plan, why);
        if (r < 0)
                return r;
        find_missing(&audit);
        check_flags(&audit);
        json_object_set_new(check, "engine", json_string(audit.engine));
        /* The options' texts live there as long as the plan. */
        json_object_set_new(audit.plan->document, "check", steal_ptr(check));
        *ret_plan = audit.plan;
        return 0;
}

size_t plan_count_faults(const struct plan *plan)
{
        const json_t *finding;
        size_t i, n = 0;

        json_array_foreach(json_object_get(json_object_get(plan->document, "check"), "findings"), i,
                           finding)
        {
                const char *verdict = json_text(finding, "verdict");

                n += strcmp(verdict, "keep") && strcmp(verdict, "unknown");
        }
        return n;
}
