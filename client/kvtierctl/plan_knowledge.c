// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/kvtierctl/plan_knowledge.h"

/* Far above any config.json; the index of a checkpoint with many experts has 20 MiB. */
#define FILE_BYTES_MAX (64 << 20)

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

/* The text of a regular file: a pipe would be waited for, and its length is not known. */
static int read_all(int fd, size_t n, const char *path, char *text, struct why *why)
{
        size_t done = 0;

        while (done < n) {
                ssize_t r = read(fd, text + done, n - done);

                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0) {
                        why_set(why, "cannot read %s: %s", path, strerror(errno));
                        return err_raise(-errno);
                }
                if (!r)
                        break;
                done += (size_t)r;
        }
        text[done] = '\0';
        if (strlen(text) == done)
                return 0;
        why_set(why, "%s is no text: JSON is needed", path);
        return err_raise(-EINVAL);
}

/* The whole file with a 0 behind it. */
static int read_text(const char *path, char **ret_text, struct why *why)
{
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        _cleanup_free_ char *text = NULL;
        struct stat status;
        int r;

        if (fd < 0 || fstat(fd, &status) < 0) {
                why_set(why, "cannot open %s: %s", path, strerror(errno));
                return err_raise(-errno);
        }
        if (!S_ISREG(status.st_mode)) {
                why_set(why, "%s is no file but a %s", path,
                        S_ISDIR(status.st_mode) ? "folder" : "device or a pipe");
                return err_raise(-EINVAL);
        }
        if (status.st_size > FILE_BYTES_MAX) {
                why_set(why, "%s has more than 64 MiB: a config.json has some KiB", path);
                return err_raise(-EFBIG);
        }
        text = malloc((size_t)status.st_size + 1);
        if (!text) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        r = read_all(fd, (size_t)status.st_size, path, text, why);
        if (r < 0)
                return r;
        *ret_text = steal_ptr(text);
        return 0;
}

/*
 * Python writes numbers that JSON does not have. As texts they are no numbers to anyone who asks
 * for one, and the error names them. Each takes two bytes more, and has three at least.
 */
static char *quote_non_numbers(const char *text)
{
        static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
        char *quoted = malloc(2 * strlen(text) + 1), *to = quoted;
        bool in_string = false;

        while (to && *text) {
                size_t i, n = 1;

                for (i = 0; !in_string && i < sizeof(words) / sizeof(words[0]); i++)
                        if (!strncmp(text, words[i], strlen(words[i])))
                                break;
                if (!in_string && i < sizeof(words) / sizeof(words[0])) {
                        to += sprintf(to, "\"%s\"", words[i]);
                        text += strlen(words[i]);
                        continue;
                }
                if (*text == '"')
                        in_string = !in_string;
                else if (in_string && *text == '\\' && text[1])
                        n = 2;
                for (; n; n--)
                        *to++ = *text++;
        }
        if (to)
                *to = '\0';
        return quoted;
}

int plan_parse_json(const char *name, const char *text, json_t **ret_document, struct why *why)
{
        _cleanup_free_ char *quoted = quote_non_numbers(text);
        json_auto_t *document = NULL;
        json_error_t error;

        if (!quoted) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        document = json_loads(quoted, JSON_REJECT_DUPLICATES, &error);
        if (!document) {
                why_set(why, "%s is no JSON: line %d: %s", name, error.line, error.text);
                return err_raise(-EINVAL);
        }
        if (!json_is_object(document)) {
                why_set(why, "%s is no JSON object ({...})", name);
                return err_raise(-EINVAL);
        }
        *ret_document = steal_ptr(document);
        return 0;
}

int plan_read_json(const char *path, json_t **ret_document, struct why *why)
{
        _cleanup_free_ char *text = NULL;
        int r = read_text(path, &text, why);

        return r < 0 ? r : plan_parse_json(path, text, ret_document, why);
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

/* Beside the program, as in a build tree, or where it is installed. */
static void find_folder(char *folder, size_t size)
{
        ssize_t n = readlink("/proc/self/exe", folder, size - 1);
        char *slash;

        folder[n > 0 ? n : 0] = '\0';
        slash = strrchr(folder, '/');
        if (slash &&
            (size_t)snprintf(slash, size - (size_t)(slash - folder), "/knowledge") <
                    size - (size_t)(slash - folder) &&
            access(folder, X_OK) == 0)
                return;
        snprintf(folder, size, "%s", KVTIER_KNOWLEDGE);
}

int plan_knowledge_load(const char *folder, json_t **ret_knowledge, struct why *why)
{
        json_auto_t *knowledge = json_object();
        char found[4096], path[4096 + 64];

        if (!folder) {
                find_folder(found, sizeof(found));
                folder = found;
        }

        for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
                json_t *file = NULL;
                int r = 0;

                if (!json_object_get(knowledge, tables[i].file)) {
                        if (snprintf(path, sizeof(path), "%s/%s.json", folder, tables[i].file) >=
                            (int)sizeof(path)) {
                                why_set(why, "the folder's name is too long");
                                return err_raise(-ENAMETOOLONG);
                        }
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
