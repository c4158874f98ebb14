// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/kvtierctl/command.h"
#include "client/kvtierctl/findings.h"
#include "client/kvtierctl/siblings.h"
#include "client/kvtierctl/table.h"

/* Settings that are told apart, and what is said when they are made alike. */
static const char *const settings[] = {"draft_tokens", "model_dtype", "kv_dtype", "engine_build"};

/* What makes another model or another place of the bytes: then they are no siblings. */
static const char *const strings[] = {"model", "engine"};
static const char *const numbers[] = {"domain", "tp", "pp", "cp"};

/* Parts of a revision that follow from the settings above, by how they begin. */
static const char *const followers[] = {"draft=", "speculative_", "kv_cache_dtype=",
                                        "mamba_ssm_dtype=", "quantization_param_path="};

static const json_t *member(const json_t *object, const char *name)
{
        return json_object_get(object, name);
}

/* Is every part of @text, between ';', one of @other, or one that follows from a setting? */
static bool parts_are_in(const char *text, const char *other)
{
        _cleanup_free_ char *parts = strdup(text), *padded = NULL;
        char *state = NULL, *wanted;

        if (!parts || asprintf(&padded, ";%s;", other) < 0)
                return false;
        for (char *part = strtok_r(parts, ";", &state); part; part = strtok_r(NULL, ";", &state)) {
                bool found = false;

                for (size_t i = 0; i < sizeof(followers) / sizeof(followers[0]); i++)
                        found |= !strncmp(part, followers[i], strlen(followers[i]));
                if (!found && asprintf(&wanted, ";%s;", part) >= 0) {
                        found = strstr(padded, wanted) != NULL;
                        free(wanted);
                }
                if (!found)
                        return false;
        }
        return true;
}

/* vLLM writes the weights' quantization there: other weights. */
static bool same_quantization(const json_t *a, const json_t *b)
{
        const char *at_a = strstr(json_text(a, "kernel_layout"), "quantization=");
        const char *at_b = strstr(json_text(b, "kernel_layout"), "quantization=");

        if (!at_a || !at_b)
                return !at_a == !at_b;
        return strcspn(at_a, " ") == strcspn(at_b, " ") && !strncmp(at_a, at_b, strcspn(at_a, " "));
}

static bool are_siblings(const json_t *a, const json_t *b)
{
        for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
                if (strcmp(json_text(a, strings[i]), json_text(b, strings[i])))
                        return false;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
                if (json_u64(a, numbers[i]) != json_u64(b, numbers[i]))
                        return false;
        return same_quantization(a, b) &&
               parts_are_in(json_text(a, "revision"), json_text(b, "revision")) &&
               parts_are_in(json_text(b, "revision"), json_text(a, "revision"));
}

/* ---- what differs ---- */

struct differences {
        char text[320];
        size_t used;
        unsigned n;
};

static void differ(struct differences *differences, const char *what, const char *here,
                   const char *there)
{
        if (differences->n++ < 4)
                text_append(differences->text, sizeof(differences->text), &differences->used,
                            "%s%s %.40s, there %.40s", differences->n > 1 ? "; " : "", what,
                            *here ? here : "-", *there ? there : "-");
}

static void join(char *text, size_t size, const json_t *texts)
{
        const json_t *one;
        size_t i, used = 0;

        text[0] = '\0';
        json_array_foreach(texts, i, one)
                text_append(text, size, &used, "%s%.20s", i ? "+" : "", json_string_value(one));
}

static bool are_in(const json_t *texts, const json_t *others)
{
        const json_t *one, *other;
        size_t i, j;

        json_array_foreach(texts, i, one)
        {
                bool found = false;

                json_array_foreach(others, j, other) found |= json_equal(one, other);
                if (!found)
                        return false;
        }
        return true;
}

static bool same_set(const json_t *a, const json_t *b)
{
        return are_in(a, b) && are_in(b, a);
}

/* The dtypes of the groups that both have, such as of the states. */
static void compare_groups(struct differences *differences, const json_t *a, const json_t *b)
{
        const json_t *here, *there;
        size_t i, j;

        json_array_foreach(member(a, "groups"), i, here)
        {
                json_array_foreach(member(b, "groups"), j, there)
                {
                        char what[80], dtypes_here[160], dtypes_there[160];

                        if (strcmp(json_text(here, "name"), json_text(there, "name")) ||
                            same_set(member(here, "dtypes"), member(there, "dtypes")))
                                continue;
                        join(dtypes_here, sizeof(dtypes_here), member(here, "dtypes"));
                        join(dtypes_there, sizeof(dtypes_there), member(there, "dtypes"));
                        snprintf(what, sizeof(what), "dtype of group %.40s",
                                 json_text(here, "name"));
                        differ(differences, what, dtypes_here, dtypes_there);
                }
        }
}

static void compare(struct differences *differences, const json_t *a, const json_t *b)
{
        for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
                const json_t *here = member(a, settings[i]), *there = member(b, settings[i]);

                if (json_equal(here, there))
                        continue;
                if (json_is_string(here) && json_is_string(there)) {
                        differ(differences, settings[i], json_string_value(here),
                               json_string_value(there));
                } else {
                        char count[32];

                        snprintf(count, sizeof(count), "%s", text_count(json_u64(a, settings[i])));
                        differ(differences, settings[i], count,
                               text_count(json_u64(b, settings[i])));
                }
        }
        compare_groups(differences, a, b);
}

/* ---- which are told ---- */

static bool is_used(const json_t *layout)
{
        return json_u64(layout, "sessions") > 0;
}

static void tell(json_t *list, const json_t *used, const json_t *other,
                 const struct differences *differences)
{
        bool both = is_used(other);

        findings_add(
                list, "other_layout",
                both ? "give both engines the same setting or version where the difference is not "
                       "wanted"
                     : "go back to the setting or version of before to have it again; else it is "
                       "evicted in time, or at once by kvtierctl clear",
                "layout %.12s (%.160s), in use, finds nothing of what %.12s %s (%s objects, %s), "
                "which differs by %s%s",
                json_text(used, "layout"), json_text(used, "model"), json_text(other, "layout"),
                both ? "stores, in use, too" : "has left, which nobody uses",
                text_count(json_u64(other, "objects")), text_bytes(json_u64(other, "bytes")),
                differences->text, differences->n > 4 ? "; and more" : "");
}

/* Of those that layout @at could have shared with, the one with most bytes. */
static void tell_largest(json_t *list, const json_t *layouts, size_t at)
{
        const json_t *used = json_array_get(layouts, at), *layout, *largest = NULL;
        struct differences differences = {0};
        size_t i;

        json_array_foreach(layouts, i, layout)
        {
                /* Two that are in use are told of once. */
                if (i == at || !json_bool(layout, "known") || !json_u64(layout, "objects") ||
                    (is_used(layout) && i > at && json_u64(used, "objects")) ||
                    !are_siblings(used, layout))
                        continue;
                if (largest && json_u64(layout, "bytes") <= json_u64(largest, "bytes"))
                        continue;
                differences = (struct differences){0};
                compare(&differences, used, layout);
                if (differences.n)
                        largest = layout;
        }
        if (!largest)
                return;
        differences = (struct differences){0};
        compare(&differences, used, largest);
        tell(list, used, largest, &differences);
}

void siblings_append(json_t *list, const json_t *layouts)
{
        for (size_t i = 0; i < json_array_size(layouts); i++)
                if (json_bool(json_array_get(layouts, i), "known") &&
                    is_used(json_array_get(layouts, i)))
                        tell_largest(list, layouts, i);
}
