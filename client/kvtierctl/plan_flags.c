// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_flags.h"
#include "client/kvtierctl/plan_knowledge.h"
#include "client/kvtierctl/plan_words.h"

/* ---- parsing ---- */

/* "vllm", "sglang.launch_server", "vllm-openai:v0.9", but no file or folder named like that. */
static bool is_engine(const char *word, const char *engine)
{
        const char *slash = strrchr(word, '/');
        const char *name = slash ? slash + 1 : word, *rest = name + strlen(engine);

        if (strncmp(name, engine, strlen(engine)))
                return false;
        return !*rest || *rest == '.' || *rest == ':' || *rest == '@' ||
               !strncmp(rest, "-openai", 7);
}

/*
 * How sure it is that a word which is called like an engine runs it: 3 as "-m sglang.x" and
 * "vllm serve", 1 as a flag's value or a folder, 2 as anything else, such as an image.
 */
static unsigned sureness(const json_t *words, size_t i)
{
        const char *word = json_string_value(json_array_get(words, i));
        const char *before = i ? json_string_value(json_array_get(words, i - 1)) : NULL;
        const char *next = json_string_value(json_array_get(words, i + 1));

        if (before && !strcmp(before, "-m"))
                return 3;
        if (next && (!strcmp(next, "serve") || !strcmp(next, "server")))
                return 3;
        return before && (*before == '-' || strchr("/.~", *word)) ? 1 : 2;
}

/* The word that runs the engine; a container's image and a Python module count too. */
static const char *find_engine(const json_t *words, size_t *ret_i)
{
        static const char *const engines[] = {"vllm", "sglang", "lmcache"};
        const char *found = NULL;
        const json_t *word;
        unsigned most = 0;
        size_t i;

        json_array_foreach(words, i, word)
        {
                for (size_t j = 0; j < sizeof(engines) / sizeof(engines[0]); j++) {
                        if (!json_is_string(word) ||
                            !is_engine(json_string_value(word), engines[j]) ||
                            sureness(words, i) <= most)
                                continue;
                        most = sureness(words, i);
                        *ret_i = i;
                        found = engines[j];
                }
        }
        return found;
}

/* vLLM takes "_" for "-" in names of flags. */
static bool is_same_flag(const char *flag, const char *typed, size_t n)
{
        if (strlen(flag) != n)
                return false;
        for (size_t i = 0; i < n; i++)
                if (flag[i] != typed[i] && !(flag[i] == '-' && typed[i] == '_'))
                        return false;
        return true;
}

static bool is_spelled(const json_t *row, const char *typed, size_t n)
{
        const json_t *spelling;
        size_t i;

        if (is_same_flag(json_text(row, "flag"), typed, n))
                return true;
        json_array_foreach(json_object_get(row, "spellings"), i, spelling)
        {
                if (is_same_flag(json_string_value(spelling) ?: "", typed, n))
                        return true;
        }
        return false;
}

/*
 * The row of this engine's flag, else that of another engine's, or NULL. vLLM takes the members of
 * JSON one by one: "--speculative-config.method mtp".
 */
static const json_t *find_flag(const struct plan_flags *flags, const char *typed, size_t n)
{
        const char *dot = memchr(typed, '.', n);
        const json_t *row, *other = NULL;
        size_t i;

        n = dot ? (size_t)(dot - typed) : n;

        json_array_foreach(plan_table(flags->knowledge, "engines", "flags"), i, row)
        {
                if (!is_spelled(row, typed, n) || (dot && !json_bool(row, "dotted")))
                        continue;
                if (plan_lists(json_object_get(row, "engines"), flags->engine))
                        return row;
                other = row;
        }
        return other;
}

const json_t *plan_flags_row(const struct plan_flags *flags, const json_t *entry)
{
        const char *typed = json_text(entry, "typed");

        return find_flag(flags, typed, strlen(typed));
}

/* Whether the next word is this one's value. */
static bool takes_value(const json_t *row, const char *next)
{
        if (!next || (next[0] == '-' && !(next[1] >= '0' && next[1] <= '9')))
                return false;
        return !row || json_is_true(json_object_get(row, "value"));
}

/* What stands before the engine's word is Python's or a container's, behind an end another's. */
static void parse_flags(struct plan_flags *flags, const json_t *words, size_t first)
{
        for (size_t i = first; i < json_array_size(words); i++) {
                const char *word = json_string_value(json_array_get(words, i));
                const char *next = json_string_value(json_array_get(words, i + 1));
                size_t n = strcspn(word ?: "", "=");
                const json_t *row;

                if (!word)
                        break;
                if (word[0] != '-' || !word[1])
                        continue;
                row = find_flag(flags, word, n);
                if (word[n])
                        next = word + n + 1;
                else if (takes_value(row, next))
                        i++;
                else
                        next = "";
                json_array_append_new(flags->entries,
                                      json_pack("{s:s%, s:s, s:s}", "typed", word, n, "flag",
                                                json_text(row, "flag"), "value", next));
        }
}

/* ---- what the command line sets ---- */

/* vLLM takes 8k for 8000 and 8K for 8192. */
bool plan_flags_number(const char *value, uint64_t *number)
{
        static const struct {
                const char *suffix;
                uint64_t factor;
        } suffixes[] = {{"", 1}, {"k", 1000}, {"K", 1024}, {"m", 1000000}, {"M", 1 << 20}};
        char *end;
        unsigned long long parsed = strtoull(value, &end, 10);

        if (*value < '0' || *value > '9' || !parsed || parsed > UINT64_C(1) << 40)
                return false;
        for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
                if (strcmp(end, suffixes[i].suffix))
                        continue;
                *number = parsed * suffixes[i].factor;
                return true;
        }
        return false;
}

static bool set_draft(const char *value, uint64_t *draft)
{
        json_auto_t *config = json_loads(value, 0, NULL);

        if (!json_is_object(config))
                return plan_flags_number(value, draft);
        if (!json_u64(config, "num_speculative_tokens"))
                return false;
        *draft = json_u64(config, "num_speculative_tokens");
        return true;
}

static bool set_share(const char *value, double *share)
{
        char *end;
        double parsed = strtod(value, &end);

        if (end == value || *end || !(parsed > 0 && parsed <= 1))
                return false;
        *share = parsed;
        return true;
}

static bool set_dtype(const char *value, const char **dtype)
{
        if (plan_dtype_sixteenths(value))
                *dtype = value;
        return *dtype == value || !strcmp(value, "auto");
}

/* The option that a flag sets; of the dotted ones only that for the member which counts. */
static const char *option_of(const json_t *row, const json_t *entry)
{
        const char *dot = strchr(json_text(entry, "typed"), '.');

        return dot && strcmp(dot + 1, json_text(row, "option_member")) ? ""
                                                                       : json_text(row, "option");
}

/* Whether @value is one that the plan can reckon with. */
static bool set_option(struct plan_options *options, const char *option, const char *value)
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
                        return plan_flags_number(value, numbers[i].number);
        if (!strcmp(option, "draft"))
                return set_draft(value, &options->draft_tokens);
        if (!strcmp(option, "memory_share"))
                return set_share(value, &options->memory_share);
        if (!strcmp(option, "kv_dtype"))
                return set_dtype(value, &options->kv_dtype);
        if (!strcmp(option, "state_dtype"))
                return set_dtype(value, &options->state_dtype);
        if (!strcmp(option, "cache_mode") && plan_is_cache_mode(value))
                options->cache_mode = value;
        if (!strcmp(option, "quantization"))
                options->quantization = value;
        return true;
}

bool plan_flags_is_default(const json_t *row, const json_t *entry)
{
        const char *value = json_string_value(json_object_get(row, "default"));

        return value && !strcmp(value, json_text(entry, "value"));
}

bool plan_flags_has(const struct plan_flags *flags, const char *flag)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(flags->entries, i, entry)
        {
                const json_t *row = plan_flags_row(flags, entry);

                if (!plan_flags_is_default(row, entry) &&
                    (!strcmp(json_text(entry, "flag"), flag) ||
                     !strcmp(json_text(row, "counts_as"), flag)))
                        return true;
        }
        return false;
}

/* What a command line does not say is the engine's default, not what the plan was told. */
void plan_flags_apply(const struct plan_flags *flags, struct plan_options *options)
{
        const json_t *entry;
        size_t i;

        /* LMCache serves an engine that it does not tell of. */
        if (!strcmp(flags->engine, "lmcache"))
                return;
        options->tp = options->dp = options->pp = 1;
        options->ep = options->draft_tokens = options->block_size = 0;
        options->kv_dtype = options->state_dtype = options->cache_mode = NULL;
        json_array_foreach(flags->entries, i, entry)
        {
                const json_t *row = plan_flags_row(flags, entry);

                set_option(options, option_of(row, entry), json_text(entry, "value"));
        }
        if (plan_flags_has(flags, "--enable-expert-parallel"))
                options->ep = options->tp * options->dp;
        if (plan_flags_has(flags, "--enable-moe-ep") && !options->ep)
                options->ep = options->tp;
        /* The ranks of TP are then divided among requests, as far as attention goes. */
        if (plan_flags_has(flags, "--enable-dp-attention") && options->tp % options->dp == 0)
                options->tp /= options->dp;
        options->text_only = options->text_only || plan_flags_has(flags, "--language-model-only");
}

bool plan_flags_are_heeded(const json_t *row, const json_t *entry)
{
        const char *value = json_text(entry, "value");
        struct plan_options ignored = {0};
        uint64_t number;

        return set_option(&ignored, option_of(row, entry), value) &&
               (!json_bool(row, "number") || plan_flags_number(value, &number));
}

int plan_flags_init(struct plan_flags *flags, const json_t *knowledge, const char *command,
                    struct why *why)
{
        json_auto_t *words = NULL;
        size_t i = 0;
        int r = plan_words_split(command, &words, why);

        if (r < 0)
                return r;
        *flags = (struct plan_flags){
                .knowledge = knowledge,
                .engine = find_engine(words, &i),
        };
        if (!flags->engine) {
                why_set(why, "the command line runs neither vllm nor sglang nor lmcache: give all "
                             "of it, as \"vllm serve MODEL --flag ...\"");
                return err_raise(-EINVAL);
        }
        flags->entries = json_array();
        if (!flags->entries) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        parse_flags(flags, words, i + 1);
        return 0;
}
