// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "client/kvtierctl/command.h"
#include "client/kvtierctl/plan_knowledge.h"
#include "client/kvtierctl/sparse_model.h"

/* The field of @config that says so, of which the tables know the spellings; or NULL. */
static const char *deciding_field(const json_t *config, const json_t *knowledge)
{
        const json_t *fields = plan_table(knowledge, "architectures", "fields");
        const json_t *text = json_object_get(config, "text_config"), *feature, *spelling;
        size_t i, j;

        json_array_foreach(plan_table(knowledge, "architectures", "features"), i, feature)
        {
                if (strcmp(json_text(feature, "fact"), "index"))
                        continue;
                json_array_foreach(json_object_get(fields, json_text(feature, "field")), j,
                                   spelling)
                {
                        const char *name = json_string_value(spelling);

                        if (name && (json_u64(config, name) || json_u64(text, name)))
                                return name;
                }
        }
        return NULL;
}

/* "GLM-5" of "zai-org/GLM-5.2-FP8", and not of "GLM-50". Derived models are of another make. */
static bool is_named(const char *model, const char *name)
{
        const char *last = strrchr(model, '/');
        size_t n = strlen(name);

        last = last ? last + 1 : model;
        return n && !strncasecmp(last, name, n) && !isdigit((unsigned char)last[n]) &&
               !strcasestr(last, "distill");
}

static const char *name_in_tables(const char *model, const json_t *knowledge)
{
        const json_t *row;
        size_t i;

        json_array_foreach(plan_table(knowledge, "architectures", "architectures"), i, row)
        {
                if (!strcmp(json_text(row, "class"), "dsa") &&
                    is_named(model, json_text(row, "name")))
                        return json_text(row, "name");
        }
        return NULL;
}

/* Of a model that is a folder. An engine named it: it may be anything, and no file at all. */
static json_t *read_config(const char *model)
{
        struct stat status;
        json_t *config = NULL;
        char path[1100];
        struct why why;

        snprintf(path, sizeof(path), "%s/config.json", model);
        if (*model != '/' || stat(path, &status) || !S_ISREG(status.st_mode) ||
            plan_read_json(path, &config, &why))
                return NULL;
        return config;
}

static void mark(json_t *layout, const json_t *knowledge)
{
        const char *model = json_text(layout, "model");
        json_auto_t *config = read_config(model);
        const char *found =
                config ? deciding_field(config, knowledge) : name_in_tables(model, knowledge);
        char reason[160];

        if (!found)
                return;
        snprintf(reason, sizeof(reason),
                 config ? "the model's config.json has %s"
                        : "%s, as it is called, keeps them with its KV",
                 found);
        json_object_set_new(layout, "wants_index", json_string(reason));
}

void sparse_model_mark(json_t *layouts, const json_t *knowledge)
{
        json_t *layout;
        size_t i;

        json_array_foreach(layouts, i, layout) mark(layout, knowledge);
}
