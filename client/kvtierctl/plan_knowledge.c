// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/kvtierctl/plan_knowledge.h"

#define FILE_BYTES_MAX (16u << 20) /* far above any config.json */

static const struct {
        const char *file;
        const char *table;
        bool has_sources;
} tables[] = {
        {"architectures", "fields", false},
        {"architectures", "layer_words", false},
        {"architectures", "features", true},
        {"architectures", "classes", true},
        {"architectures", "architectures", true},
        {"gpus", "gpus", true},
        {"engines", "flags", true},
        {"engines", "rules", true},
        {"engines", "values", true},
        {"engines", "gates", true},
        {"engines", "parallelism", true},
        {"engines", "parsers", true},
};

static void close_filep(FILE **file)
{
        if (*file)
                fclose(*file);
}

/* The whole file with a 0 behind it. */
static int read_text(const char *path, char **ret_text, struct why *why)
{
        _cleanup_(close_filep) FILE *file = fopen(path, "re");
        _cleanup_free_ char *text = NULL;
        size_t n;

        if (!file) {
                why_set(why, "cannot open %s: %s", path, strerror(errno));
                return err_raise(-errno);
        }
        text = malloc(FILE_BYTES_MAX + 1);
        if (!text) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        n = fread(text, 1, FILE_BYTES_MAX + 1, file);
        if (ferror(file)) {
                why_set(why, "cannot read %s: %s", path, strerror(errno));
                return err_raise(-EIO);
        }
        if (n > FILE_BYTES_MAX) {
                why_set(why, "%s has more than 16 MiB: a config.json has some KiB", path);
                return err_raise(-EFBIG);
        }
        text[n] = '\0';
        if (strlen(text) != n) {
                why_set(why, "%s is no text: a config.json is JSON", path);
                return err_raise(-EINVAL);
        }
        *ret_text = steal_ptr(text);
        return 0;
}

/* Python writes numbers that JSON does not have. None of them is a field that counts here. */
static void replace_non_numbers(char *text)
{
        static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
        bool in_string = false;

        for (; *text; text++) {
                if (in_string && *text == '\\' && text[1]) {
                        text++;
                        continue;
                }
                if (*text == '"')
                        in_string = !in_string;
                for (size_t i = 0; !in_string && i < sizeof(words) / sizeof(words[0]); i++) {
                        size_t n = strlen(words[i]);

                        if (strncmp(text, words[i], n))
                                continue;
                        memset(text, ' ', n);
                        /* "NaN" has room for a number only. */
                        memcpy(text, n > 3 ? "null" : "0", n > 3 ? 4 : 1);
                        break;
                }
        }
}

int plan_read_json(const char *path, json_t **ret_document, struct why *why)
{
        _cleanup_free_ char *text = NULL;
        json_auto_t *document = NULL;
        json_error_t error;
        int r;

        r = read_text(path, &text, why);
        if (r < 0)
                return r;
        replace_non_numbers(text);
        document = json_loads(text, JSON_REJECT_DUPLICATES, &error);
        if (!document) {
                why_set(why, "%s is no JSON: line %d: %s", path, error.line, error.text);
                return err_raise(-EINVAL);
        }
        if (!json_is_object(document)) {
                why_set(why, "%s is no JSON object ({...})", path);
                return err_raise(-EINVAL);
        }
        *ret_document = steal_ptr(document);
        return 0;
}

static bool has_text(const json_t *row, const char *name)
{
        const char *text = json_string_value(json_object_get(row, name));

        return text && *text;
}

/* Every row of every table is an object that says where it comes from. */
static int check_table(const json_t *knowledge, size_t i, struct why *why)
{
        const json_t *table = plan_table(knowledge, tables[i].file, tables[i].table), *row;
        size_t j;

        if (!json_is_array(table) && !json_is_object(table)) {
                why_set(why, "%s.json has no table \"%s\"", tables[i].file, tables[i].table);
                return err_raise(-EINVAL);
        }
        json_array_foreach(table, j, row)
        {
                if (json_is_object(row) && (!tables[i].has_sources || has_text(row, "source")))
                        continue;
                why_set(why, "%s.json: row %zu of \"%s\" has no source", tables[i].file, j + 1,
                        tables[i].table);
                return err_raise(-EINVAL);
        }
        return 0;
}

int plan_knowledge_load(const char *folder, json_t **ret_knowledge, struct why *why)
{
        json_auto_t *knowledge = json_object();
        char path[512];

        for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
                json_t *file = NULL;
                int r = 0;

                if (!json_object_get(knowledge, tables[i].file)) {
                        snprintf(path, sizeof(path), "%s/%s.json", folder, tables[i].file);
                        r = plan_read_json(path, &file, why);
                        if (r < 0)
                                return r;
                        if (json_object_set_new(knowledge, tables[i].file, file) < 0) {
                                why_set(why, "out of memory");
                                return err_raise(-ENOMEM);
                        }
                }
                r = check_table(knowledge, i, why);
                if (r < 0)
                        return r;
        }
        *ret_knowledge = steal_ptr(knowledge);
        return 0;
}

const json_t *plan_table(const json_t *knowledge, const char *file, const char *table)
{
        return json_object_get(json_object_get(knowledge, file), table);
}

const json_t *plan_row(const json_t *table, const char *name, const char *value)
{
        const json_t *row;
        size_t i;

        json_array_foreach(table, i, row)
        {
                const char *text = json_string_value(json_object_get(row, name));

                if (text && value && !strcmp(text, value))
                        return row;
        }
        return NULL;
}

/* One entry of a rule: alternatives with '|' between. */
static bool entry_holds(const json_t *facts, const char *entry)
{
        char words[256], *state = NULL;

        snprintf(words, sizeof(words), "%s", entry);
        for (const char *word = strtok_r(words, "|", &state); word;
             word = strtok_r(NULL, "|", &state)) {
                bool wanted = *word != '!';

                if (wanted == (json_object_get(facts, wanted ? word : word + 1) != NULL))
                        return true;
        }
        return false;
}

bool plan_holds(const json_t *facts, const json_t *when)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(when, i, entry)
        {
                const char *text = json_string_value(entry);

                if (!text || !entry_holds(facts, text))
                        return false;
        }
        return true;
}

bool plan_lists(const json_t *array, const char *text)
{
        const json_t *entry;
        size_t i;

        json_array_foreach(array, i, entry)
        {
                const char *value = json_string_value(entry);

                if (value && !strcmp(value, text))
                        return true;
        }
        return false;
}
