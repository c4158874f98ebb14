// SPDX-License-Identifier: Apache-2.0
/*
 * Plans against tables of cases: tests/unit/client/plan has configurations and, one a line, what
 * is to come out. A case expects members of the document by their path ("page.ssm_bytes",
 * "groups.0.layers"), or
 *   hardware:CHECK   the verdict, null for none
 *   do:FLAG          set, leave or align, null for nothing said
 *   unknown          a text that stands in some entry; unknown_not: in none
 *   doubt            a text that stands in it, null for no doubt
 */
#include <check.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan.h"
#include "client/kvtierctl/plan_knowledge.h"
#include "client/kvtierctl/plan_words.h"

/* Loaded once, before Check forks. */
static json_t *knowledge, *configs, *sizes, *plans, *audits, *errors;

static json_t *load(const char *name)
{
        char path[1024];
        json_error_t error;
        json_t *document;

        snprintf(path, sizeof(path), "%s/%s", PLAN_CASES, name);
        document = json_load_file(path, 0, &error);
        if (!document) {
                fprintf(stderr, "%s:%d: %s\n", path, error.line, error.text);
                exit(1);
        }
        return document;
}

static const char *text_or_null(const json_t *object, const char *name)
{
        return json_string_value(json_object_get(object, name));
}

static struct plan_options options_of(const json_t *test)
{
        const json_t *given = json_object_get(test, "options"), *prompt;
        struct plan_options options = {
                .gpu = text_or_null(given, "gpu"),
                .host_bytes = json_u64(given, "host"),
                .nvme_bytes = json_u64(given, "nvme"),
                .weight_bytes = json_u64(given, "weights"),
                .memory_share = json_double(given, "memory_share"),
                .tp = json_u64(given, "tp"),
                .ep = json_u64(given, "ep"),
                .dp = json_u64(given, "dp"),
                .pp = json_u64(given, "pp"),
                .kv_dtype = text_or_null(given, "kv_dtype"),
                .state_dtype = text_or_null(given, "state_dtype"),
                .cache_mode = text_or_null(given, "cache_mode"),
                .draft_tokens = json_u64(given, "draft"),
                .context_tokens = json_u64(given, "context"),
                .concurrency = json_u64(given, "concurrency"),
                .text_only = json_bool(given, "text_only"),
        };
        size_t i;

        json_array_foreach(json_object_get(given, "prompts"), i, prompt)
        {
                options.prompts[options.n_prompts++] = (uint64_t)json_integer_value(prompt);
        }
        return options;
}

static const json_t *config_of(const json_t *test)
{
        const json_t *config = json_object_get(test, "config");

        return json_is_string(config) ? json_object_get(configs, json_string_value(config))
                                      : config;
}

/* The plan of a case, which is audited when it has a command line. */
static struct plan *plan_of(const json_t *test)
{
        struct plan_options options = options_of(test);
        const char *command = text_or_null(test, "command");
        struct plan *plan = NULL;
        struct why why = {""};
        int r = command ? plan_audit(knowledge, config_of(test), &options, command, &plan, &why)
                        : plan_new(knowledge, config_of(test), &options, &plan, &why);

        ck_assert_msg(r == 0, "%s: %s", json_text(test, "name"), why.text);
        return plan;
}

/* "groups.0.layers" */
static const json_t *at(const json_t *document, const char *path)
{
        char names[256], *state = NULL;

        snprintf(names, sizeof(names), "%s", path);
        for (const char *name = strtok_r(names, ".", &state); name;
             name = strtok_r(NULL, ".", &state))
                document = json_is_array(document)
                                   ? json_array_get(document, strtoul(name, NULL, 10))
                                   : json_object_get(document, name);
        return document;
}

static void assert_equal(const json_t *test, const char *key, const json_t *is,
                         const json_t *expected)
{
        _cleanup_free_ char *left = json_dumps(is, JSON_ENCODE_ANY);
        _cleanup_free_ char *right = json_dumps(expected, JSON_ENCODE_ANY);

        ck_assert_msg(json_equal(is, expected) || (!is && json_is_null(expected)),
                      "%s, %s: %s is %s, not %s", json_text(test, "config"),
                      json_text(test, "name"), key, left ? left : "missing", right);
}

static bool some_entry_has(const json_t *array, const char *text)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(array, i, entry)
        {
                if (strstr(json_string_value(entry), text))
                        return true;
        }
        return false;
}

/* An entry of @array whose @name is @value and, unless NULL, whose @other is @wanted. */
static bool has_entry(const json_t *array, const char *name, const char *value, const char *other,
                      const char *wanted)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(array, i, entry)
        {
                if (!strcmp(json_text(entry, name), value) &&
                    (!wanted || !strcmp(json_text(entry, other), wanted)))
                        return true;
        }
        return false;
}

/* Every entry of @check says @verdict, and there is one; NULL: there is none. */
static bool has_verdict(const json_t *checks, const char *check, const char *verdict)
{
        const json_t *entry;
        bool is_there = false;
        size_t i;

        json_array_foreach(checks, i, entry)
        {
                if (strcmp(json_text(entry, "check"), check))
                        continue;
                if (!verdict || strcmp(json_text(entry, "verdict"), verdict))
                        return false;
                is_there = true;
        }
        return is_there == (verdict != NULL);
}

static void assert_expected(const json_t *test, const struct plan *plan, const char *key,
                            const json_t *expected)
{
        const json_t *document = plan->document;
        const char *text = json_string_value(expected), *colon = strchr(key, ':');
        bool is_right;

        if (!strcmp(key, "unknown"))
                is_right = some_entry_has(plan->unknown, text);
        else if (!strcmp(key, "unknown_not"))
                is_right = !some_entry_has(plan->unknown, text);
        else if (!strcmp(key, "doubt") && text)
                is_right = strstr(json_text(document, "doubt"), text) != NULL;
        else if (!strncmp(key, "hardware:", 9))
                is_right = has_verdict(json_object_get(document, "hardware"), colon + 1, text);
        else if (!strncmp(key, "do:", 3))
                is_right = has_entry(json_object_get(document, "flags"), "flag", colon + 1, "do",
                                     text) == (text != NULL);
        else {
                assert_equal(test, key, at(document, key), expected);
                return;
        }
        ck_assert_msg(is_right, "%s: %s is not \"%s\"", json_text(test, "name"), key,
                      text ? text : "absent");
}

static void assert_document(const json_t *test, const struct plan *plan)
{
        json_t *expected;
        const char *key;

        json_object_foreach(json_object_get(test, "expect"), key, expected)
        {
                assert_expected(test, plan, key, expected);
        }
}

static void assert_case(const json_t *test)
{
        _cleanup_(plan_freep) struct plan *plan = plan_of(test);

        assert_document(test, plan);
}

START_TEST(sizes_are_those_that_the_engine_computes)
{
        assert_case(json_array_get(sizes, (size_t)_i));
}
END_TEST

START_TEST(plans_say_what_holds_and_what_is_unknown)
{
        assert_case(json_array_get(plans, (size_t)_i));
}
END_TEST

/* "missing --ep-size" */
static bool finds(const json_t *findings, const char *verdict_and_flag)
{
        const char *blank = strchr(verdict_and_flag, ' ');
        char verdict[32];

        snprintf(verdict, sizeof(verdict), "%.*s", (int)(blank - verdict_and_flag),
                 verdict_and_flag);
        return has_entry(findings, "flag", blank + 1, "verdict", verdict);
}

START_TEST(audits_find_these_faults_and_no_others)
{
        const json_t *test = json_array_get(audits, (size_t)_i);
        _cleanup_(plan_freep) struct plan *plan = plan_of(test);
        const json_t *findings = at(plan->document, "check.findings"), *entry;
        const json_t *faults = json_object_get(test, "faults");
        size_t i;

        json_array_foreach(faults, i, entry)
        {
                ck_assert_msg(finds(findings, json_string_value(entry)), "%s: not found: %s",
                              json_text(test, "name"), json_string_value(entry));
        }
        json_array_foreach(json_object_get(test, "others"), i, entry)
        {
                ck_assert_msg(finds(findings, json_string_value(entry)), "%s: not found: %s",
                              json_text(test, "name"), json_string_value(entry));
        }
        ck_assert_msg(plan_count_faults(plan) == json_array_size(faults),
                      "%s: %zu faults are found", json_text(test, "name"), plan_count_faults(plan));
        assert_document(test, plan);
}
END_TEST

START_TEST(every_finding_has_a_reason)
{
        const json_t *test = json_array_get(audits, (size_t)_i), *entry;
        _cleanup_(plan_freep) struct plan *plan = plan_of(test);
        size_t i;

        json_array_foreach(at(plan->document, "check.findings"), i, entry)
        {
                ck_assert_str_ne(json_text(entry, "why"), "");
                if (strcmp(json_text(entry, "verdict"), "unknown"))
                        ck_assert_str_ne(json_text(entry, "source"), "");
        }
        ck_assert_uint_gt(i, 0);
}
END_TEST

/* ---- what our own documents tell people to type ---- */

static bool starts_with(const char *text, const char *beginning)
{
        return !strncmp(text, beginning, strlen(beginning));
}

/* Audits one command of a document; options that stand alone are vLLM's. Returns whether it did. */
static bool audit_of_document(const char *path, const char *text, const char *config)
{
        const struct plan_options options = {0};
        _cleanup_(plan_freep) struct plan *plan = NULL;
        bool is_fragment = starts_with(text, "--");
        struct why why = {""};
        char command[4096];
        const json_t *entry;
        size_t i;

        if (!is_fragment && !starts_with(text, "vllm serve") && !strstr(text, "-m sglang") &&
            !starts_with(text, "sglang "))
                return false;
        snprintf(command, sizeof(command), "%s%s", is_fragment ? "vllm serve MODEL " : "", text);
        ck_assert_msg(plan_audit(knowledge, json_object_get(configs, config), &options, command,
                                 &plan, &why) == 0,
                      "%s: %s: %s", path, why.text, command);
        json_array_foreach(at(plan->document, "check.findings"), i, entry)
        {
                ck_assert_msg(strcmp(json_text(entry, "verdict"), "wrong") &&
                                      strcmp(json_text(entry, "verdict"), "remove") &&
                                      strcmp(json_text(entry, "verdict"), "unknown"),
                              "%s: %s is %s: %s", path, json_text(entry, "flag"),
                              json_text(entry, "verdict"), json_text(entry, "why"));
        }
        return true;
}

/* Commands stand in fences, from the first column; what they go on with is indented. */
static unsigned audit_document(const char *path, const char *config)
{
        FILE *file = fopen(path, "r");
        char line[1024], command[2048] = "";
        bool is_code = false;
        unsigned n = 0;

        ck_assert_msg(file != NULL, "%s", path);
        while (fgets(line, sizeof(line), file)) {
                bool is_fence = starts_with(line, "```");

                if (is_fence || *line != ' ') {
                        n += audit_of_document(path, command, config);
                        command[0] = '\0';
                }
                is_code = is_code != is_fence;
                if (is_code && !is_fence)
                        strncat(command, line, sizeof(command) - strlen(command) - 1);
        }
        fclose(file);
        return n;
}

START_TEST(our_own_documents_have_no_fault)
{
        static const char *const models[] = {"qwen3-8b", "qwen3.5-397b", "glm-5", "deepseek-v3"};
        unsigned n = 0;
        glob_t found;

        ck_assert_int_eq(glob(PLAN_DOCUMENTS "/*.md", 0, NULL, &found), 0);
        for (size_t i = 0; i < found.gl_pathc; i++)
                for (size_t j = 0; j < sizeof(models) / sizeof(models[0]); j++)
                        n += audit_document(found.gl_pathv[i], models[j]);
        globfree(&found);
        /* vLLM's and SGLang's way to start, and options for peers and for the tier. */
        ck_assert_uint_ge(n, 4 * sizeof(models) / sizeof(models[0]));
}
END_TEST

START_TEST(what_is_broken_is_named)
{
        const json_t *test = json_array_get(errors, (size_t)_i);
        struct plan_options options = options_of(test);
        const char *command = text_or_null(test, "command");
        struct plan *plan = NULL;
        struct why why = {""};
        int r = command ? plan_audit(knowledge, config_of(test), &options, command, &plan, &why)
                        : plan_new(knowledge, config_of(test), &options, &plan, &why);

        ck_assert_msg(r < 0 && !plan, "%s: is accepted", json_text(test, "name"));
        ck_assert_msg(strstr(why.text, json_text(test, "why")) != NULL, "%s: \"%s\"",
                      json_text(test, "name"), why.text);
}
END_TEST

START_TEST(a_plan_has_every_part)
{
        static const char *const parts[] = {
                "class",        "page_tokens", "kv_bytes_per_token", "groups", "state_bytes",
                "chunk_tokens", "users",       "parallelism",        "flags",  "unknown"};
        const json_t *test = json_array_get(sizes, 0);
        _cleanup_(plan_freep) struct plan *plan = plan_of(test);

        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
                ck_assert_msg(json_object_get(plan->document, parts[i]) != NULL, "no %s", parts[i]);
}
END_TEST

/* ---- files and words ---- */

static int read_as_file(const char *text, json_t **ret_document, struct why *why)
{
        char path[] = "/tmp/kvtier-plan-XXXXXX";
        int fd = mkstemp(path), r;

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
        r = plan_read_json(path, ret_document, why);
        unlink(path);
        return r;
}

START_TEST(numbers_that_only_python_writes_are_read)
{
        json_auto_t *document = NULL;
        struct why why = {""};

        ck_assert_msg(!read_as_file("{\"a\": [0.0, Infinity, -Infinity, NaN], \"Infinity\": "
                                    "\"\\\"NaN\"}",
                                    &document, &why),
                      "%s", why.text);
        ck_assert_str_eq(json_string_value(at(document, "a.1")), "Infinity");
        ck_assert_str_eq(json_string_value(at(document, "a.2")), "-Infinity");
        ck_assert_str_eq(json_string_value(at(document, "a.3")), "NaN");
        ck_assert_str_eq(json_text(document, "Infinity"), "\"NaN");
}
END_TEST

START_TEST(files_that_are_no_configuration_are_refused)
{
        static const struct {
                const char *text;
                const char *why;
        } cases[] = {
                {"", "is no JSON"},
                {"{\"a\": 1", "is no JSON: line 1"},
                {"{\"a\": 1, \"a\": 2}", "duplicate"},
                {"[1]", "is no JSON object"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                json_t *document = NULL;
                struct why why = {""};

                ck_assert_int_lt(read_as_file(cases[i].text, &document, &why), 0);
                ck_assert_ptr_null(document);
                ck_assert_msg(strstr(why.text, cases[i].why) != NULL, "\"%s\"", why.text);
        }
}
END_TEST

START_TEST(a_file_that_is_not_there_is_named)
{
        json_t *document = NULL;
        struct why why = {""};

        ck_assert_int_lt(plan_read_json("/nowhere/config.json", &document, &why), 0);
        ck_assert_ptr_nonnull(strstr(why.text, "/nowhere/config.json"));
        ck_assert_int_lt(plan_knowledge_load("/nowhere", &document, &why), 0);
        ck_assert_ptr_nonnull(strstr(why.text, "/nowhere/architectures.json"));
}
END_TEST

START_TEST(words_are_split_as_a_shell_does)
{
        json_auto_t *words = NULL;
        json_auto_t *expected = json_pack("[s, s, s, s, s, s]", "a", "b c", "{\"d\":\"e\"}", "f\"g",
                                          "h'i", "--j=k l");
        struct why why = {""};

        ck_assert_int_eq(
                plan_words_split("a \\\n 'b c' '{\"d\":\"e\"}' \"f\\\"g\" h\\'i --j=\"k l\" "
                                 "# not this",
                                 &words, &why),
                0);
        ck_assert(json_equal(words, expected));
}
END_TEST

START_TEST(words_end_with_their_command)
{
        json_auto_t *words = NULL;
        json_auto_t *expected = json_pack("[s, n, s, s, n, s, n, s, n, s, s]", "a", "b", "2>&1",
                                          "c", "d", "e;f", "&>g");
        struct why why = {""};

        ck_assert_int_eq(plan_words_split("a && b 2>&1|c; d & 'e;f' &>g", &words, &why), 0);
        ck_assert(json_equal(words, expected));
}
END_TEST

START_TEST(rules_hold_when_their_facts_do)
{
        json_auto_t *facts = json_pack("{s:b, s:b}", "moe", 1, "state", 1);
        static const struct {
                const char *when;
                bool holds;
        } cases[] = {
                {"[]", true},
                {"[\"moe\"]", true},
                {"[\"latent\"]", false},
                {"[\"!moe\"]", false},
                {"[\"!latent\"]", true},
                {"[\"latent|moe\"]", true},
                {"[\"moe\", \"latent\"]", false},
                {"[\"latent|!state\"]", false},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                json_auto_t *when = json_loads(cases[i].when, 0, NULL);

                ck_assert_msg(plan_holds(facts, when) == cases[i].holds, "%s", cases[i].when);
        }
}
END_TEST

static bool is_gpu_number(const char *member, const char *number)
{
        const json_t *row;
        size_t i;

        json_array_foreach(plan_table(knowledge, "gpus", "gpus"), i, row)
        {
                if (json_u64(row, member) == strtoull(number, NULL, 10))
                        return true;
        }
        return false;
}

static bool is_gpu_format(const char *format)
{
        const json_t *row;
        size_t i;

        json_array_foreach(plan_table(knowledge, "gpus", "gpus"), i, row)
        {
                if (plan_lists(json_object_get(row, "formats"), format))
                        return true;
        }
        return false;
}

/* "format:nvfp4": what stands behind the colon has to be in a table, too. */
static bool is_fact_of_table(const char *fact)
{
        static const struct {
                const char *kind;
                const char *file;
                const char *table;
                const char *member;
        } tables[] = {
                {"vendor", "gpus", "gpus", "vendor"},
                {"family", "architectures", "architectures", "family"},
                {"class", "architectures", "classes", "class"},
                {"flag", "engines", "flags", "flag"},
        };
        const char *value = strchr(fact, ':') + 1;
        size_t n = (size_t)(value - 1 - fact);

        for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
                if (strlen(tables[i].kind) == n && starts_with(fact, tables[i].kind))
                        return plan_row(plan_table(knowledge, tables[i].file, tables[i].table),
                                        tables[i].member, value) != NULL;
        if (starts_with(fact, "kernels:"))
                return is_gpu_number("kernels", value);
        if (starts_with(fact, "format:"))
                return is_gpu_format(value);
        if (starts_with(fact, "weights:"))
                return !strcmp(value, "nvfp4") || !strcmp(value, "fp8");
        if (starts_with(fact, "kv:"))
                return plan_dtype_sixteenths(value) > 0;
        return (starts_with(fact, "tool_parser:") || starts_with(fact, "reasoning_parser:") ||
                starts_with(fact, "may_reason:")) &&
               (!strcmp(value, "vllm") || !strcmp(value, "sglang"));
}

static bool is_fact(const char *fact)
{
        static const char *const known[] = {"heads",
                                            "latent",
                                            "index",
                                            "compressed",
                                            "gdn",
                                            "kda",
                                            "mamba2",
                                            "other_state",
                                            "state",
                                            "window",
                                            "moe",
                                            "multimodal",
                                            "mtp",
                                            "gpu",
                                            "many_gpus",
                                            "dp",
                                            "replicated_kv",
                                            "ep",
                                            "draft",
                                            "text_only",
                                            "concurrency",
                                            "busy",
                                            "page_over_2048",
                                            "shared_experts",
                                            "one_kv_head",
                                            "all_kv_heads",
                                            "weights_beyond_gpus",
                                            "weights_beyond_rank"};

        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
                if (!strcmp(known[i], fact))
                        return true;
        return strchr(fact, ':') && is_fact_of_table(fact);
}

/* Every fact of a rule is one that something can make true: a typo would never hold. */
START_TEST(rules_use_facts_that_exist)
{
        static const char *const tables[] = {"rules", "values", "gates", "parallelism"};
        const json_t *rule, *entry;
        size_t i, j;

        for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
                json_array_foreach(plan_table(knowledge, "engines", tables[t]), i, rule)
                {
                        json_array_foreach(json_object_get(rule, "when"), j, entry)
                        {
                                char words[128], *state = NULL;

                                snprintf(words, sizeof(words), "%s", json_string_value(entry));
                                for (char *word = strtok_r(words, "|", &state); word;
                                     word = strtok_r(NULL, "|", &state))
                                        ck_assert_msg(is_fact(word + (*word == '!')), "%s: %s",
                                                      tables[t], word);
                        }
                }
        }
        ck_assert(!is_fact("format:nvpf4") && !is_fact("kernels:91") && !is_fact("family:glm-6"));
        ck_assert(!is_fact("flag:--tool-parser") && !is_fact("tool_parser:llama") && !is_fact("m"));
}
END_TEST

/* Engines may have rows of their own for a flag. */
static bool is_flag_of(const char *flag, const char *engine)
{
        const json_t *row;
        size_t i;

        json_array_foreach(plan_table(knowledge, "engines", "flags"), i, row)
        {
                if (!strcmp(json_text(row, "flag"), flag) &&
                    plan_lists(json_object_get(row, "engines"), engine))
                        return true;
        }
        return false;
}

START_TEST(rules_use_flags_of_the_table)
{
        const json_t *rule, *engine;
        size_t i, j;

        json_array_foreach(plan_table(knowledge, "engines", "rules"), i, rule)
        {
                json_array_foreach(json_object_get(rule, "engines"), j, engine)
                {
                        ck_assert_msg(
                                is_flag_of(json_text(rule, "flag"), json_string_value(engine)),
                                "%s of %s", json_text(rule, "flag"), json_string_value(engine));
                }
        }
}
END_TEST

static void add_loop(TCase *tcase, const TTest *test, const json_t *cases)
{
        tcase_add_loop_test(tcase, test, 0, (int)json_array_size(cases));
}

static Suite *make_suite(void)
{
        Suite *suite = suite_create("kvtierctl_plan");
        TCase *tcase = tcase_create("kvtierctl_plan");

        add_loop(tcase, sizes_are_those_that_the_engine_computes, sizes);
        add_loop(tcase, plans_say_what_holds_and_what_is_unknown, plans);
        add_loop(tcase, audits_find_these_faults_and_no_others, audits);
        add_loop(tcase, every_finding_has_a_reason, audits);
        add_loop(tcase, what_is_broken_is_named, errors);
        tcase_add_test(tcase, our_own_documents_have_no_fault);
        tcase_add_test(tcase, a_plan_has_every_part);
        tcase_add_test(tcase, numbers_that_only_python_writes_are_read);
        tcase_add_test(tcase, files_that_are_no_configuration_are_refused);
        tcase_add_test(tcase, a_file_that_is_not_there_is_named);
        tcase_add_test(tcase, words_are_split_as_a_shell_does);
        tcase_add_test(tcase, words_end_with_their_command);
        tcase_add_test(tcase, rules_hold_when_their_facts_do);
        tcase_add_test(tcase, rules_use_facts_that_exist);
        tcase_add_test(tcase, rules_use_flags_of_the_table);
        suite_add_tcase(suite, tcase);
        return suite;
}

int main(void)
{
        struct why why = {""};
        SRunner *runner;
        int n_failed;

        if (plan_knowledge_load(NULL, &knowledge, &why) < 0) {
                fprintf(stderr, "%s\n", why.text);
                return 1;
        }
        configs = load("configs.json");
        sizes = load("sizes.json");
        plans = load("plans.json");
        audits = load("audits.json");
        errors = load("errors.json");
        runner = srunner_create(make_suite());
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        json_decref(knowledge);
        json_decref(configs);
        json_decref(sizes);
        json_decref(plans);
        json_decref(audits);
        json_decref(errors);
        return n_failed ? 1 : 0;
}
