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
#include "client/kvtierctl/plan_flags.h"
#include "client/kvtierctl/plan_knowledge.h"

struct audit {
        const json_t *knowledge;
        struct plan_flags flags;
        json_t *findings;
        struct plan *plan;
};

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
               plan_lists(json_object_get(rule, "engines"), audit->flags.engine) &&
               plan_holds(audit->plan->facts, json_object_get(rule, "when"));
}

/* Rules may ask what else the command line has. */
static void add_flag_facts(struct audit *audit)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(audit->flags.entries, i, entry)
        {
                if (*json_text(entry, "flag"))
                        plan_add_fact(audit->plan, "flag:%s", json_text(entry, "flag"));
        }
}

static void find_missing(struct audit *audit)
{
        const json_t *rule;
        size_t i;

        json_array_foreach(plan_table(audit->knowledge, "engines", "rules"), i, rule)
        {
                json_auto_t *entry = NULL;
                char value[64];

                if (!applies(audit, rule, "set") ||
                    plan_flags_has(&audit->flags, json_text(rule, "flag")))
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

        if (!page || !plan_flags_number(value, &tokens))
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

/* Whether a parser has another name, too, than the one that a rule sets. */
static bool is_other_name(const struct audit *audit, const char *value)
{
        const json_t *row = plan_row(plan_table(audit->knowledge, "engines", "parsers"), "family",
                                     json_text(audit->plan->model.row, "family"));

        return plan_lists(json_object_get(json_object_get(row, audit->flags.engine), "also"),
                          value);
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
                if (applies(audit, rule, "leave") &&
                    !plan_flags_is_default(plan_flags_row(&audit->flags, entry), entry)) {
                        add(audit, "remove", entry, json_text(rule, "source"), "%s",
                            json_text(rule, "why"));
                        return true;
                }
                if (applies(audit, rule, "align") && check_alignment(audit, entry, rule))
                        return true;
                plan_flag_value(audit->plan, rule, right, sizeof(right));
                if (applies(audit, rule, "set") && json_bool(rule, "exact") &&
                    strcmp(right, value) && !is_other_name(audit, value)) {
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

/* Whether some engine has a parser of this name; @kind: "tool", "reasoning". */
static bool is_parser(const struct audit *audit, const char *kind, const char *name)
{
        const json_t *row;
        size_t i;

        json_array_foreach(plan_table(audit->knowledge, "engines", "parsers"), i, row)
        {
                if (!strcmp(json_text(json_object_get(row, "vllm"), kind), name) ||
                    !strcmp(json_text(json_object_get(row, "sglang"), kind), name))
                        return true;
        }
        return false;
}

/* Whether @value is one that the tables know for this flag. */
static bool is_value_of(const struct audit *audit, const json_t *row, const char *value)
{
        const char *parser = json_text(row, "parser");
        uint64_t number;

        if (*parser)
                return is_parser(audit, parser, value);
        if (!strcmp(json_text(row, "option"), "kv_dtype"))
                return plan_dtype_sixteenths(value) > 0;
        return plan_lists(json_object_get(row, "values"), value) ||
               plan_flags_number(value, &number);
}

/*
 * A flag that runs into its value, as "--reasoning-parser-glm45". Flags that begin alike are many,
 * and engines get new ones: only a value that is known makes it a fault.
 */
static void add_unknown_flag(struct audit *audit, const json_t *entry)
{
        const char *typed = json_text(entry, "typed");
        const json_t *row;
        size_t i;

        json_array_foreach(plan_table(audit->knowledge, "engines", "flags"), i, row)
        {
                const char *flag = json_text(row, "flag");
                size_t n = strlen(flag);

                if (strncmp(typed, flag, n) || typed[n] != '-' || !json_bool(row, "value") ||
                    !is_value_of(audit, row, typed + n + 1))
                        continue;
                add(audit, "wrong", entry, json_text(row, "source"),
                    "no flag; is a blank missing behind %s?", flag);
                return;
        }
        add(audit, "unknown", entry, "", "not in the table of flags: look it up");
}

/* A value that the plan took no notice of, such as a shell's variable. */
static bool check_notice(struct audit *audit, const json_t *entry, const json_t *row)
{
        if (plan_flags_are_heeded(row, entry))
                return false;
        add(audit, "unknown", entry, json_text(row, "source"),
            "the plan does not know this value and reckons without it");
        return true;
}

static void check_flags(struct audit *audit)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(audit->flags.entries, i, entry)
        {
                const json_t *row = plan_flags_row(&audit->flags, entry);

                if (!row)
                        add_unknown_flag(audit, entry);
                else if (!plan_lists(json_object_get(row, "engines"), audit->flags.engine))
                        add(audit, "wrong", entry, json_text(row, "source"),
                            "no flag of %s, but of another engine", audit->flags.engine);
                else if (!check_rules(audit, entry) && !check_value(audit, entry, row) &&
                         !check_notice(audit, entry, row))
                        add(audit, "keep", entry, json_text(row, "source"), "%s",
                            json_text(row, "brings"));
        }
}

static int describe(const struct audit *audit, struct why *why)
{
        json_t *check = json_pack("{s:s, s:O, s:O}", "engine", audit->flags.engine, "flags",
                                  audit->flags.entries, "findings", audit->findings);

        /* The options' texts live there as long as the plan. */
        if (json_object_set_new(audit->plan->document, "check", check) == 0)
                return 0;
        why_set(why, "out of memory");
        return err_raise(-ENOMEM);
}

int plan_audit(const json_t *knowledge, const json_t *config, const struct plan_options *options,
               const char *command, struct plan **ret_plan, struct why *why)
{
        struct plan_options set = *options;
        struct audit audit = {.knowledge = knowledge};
        int r = plan_flags_init(&audit.flags, knowledge, command, why);

        if (r < 0)
                return r;
        plan_flags_apply(&audit.flags, &set);
        r = plan_new(knowledge, config, &set, &audit.plan, why);
        if (r == 0) {
                audit.findings = json_array();
                add_flag_facts(&audit);
                find_missing(&audit);
                check_flags(&audit);
                r = describe(&audit, why);
        }
        json_decref(audit.findings);
        json_decref(audit.flags.entries);
        if (r < 0) {
                plan_free(audit.plan);
                return r;
        }
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
