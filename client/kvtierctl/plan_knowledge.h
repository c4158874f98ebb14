// SPDX-License-Identifier: Apache-2.0
/* The tables of what is known, and whether a rule of theirs holds. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

/*
 * Reads the tables in @folder into one object, each under its file's name; NULL: those beside the
 * program, as in a build tree, or the installed ones. 0, or a negative errno with @why: a file is
 * missing or broken, or a row has no source.
 */
int plan_knowledge_load(const char *folder, json_t **ret_knowledge, struct why *why);

/* A table of a file, such as "engines", "flags"; never NULL once loaded. */
const json_t *plan_table(const json_t *knowledge, const char *file, const char *table);

/* The first row whose member @name is @value, or NULL. */
const json_t *plan_row(const json_t *table, const char *name, const char *value);

/* Every entry of @when holds among @facts: "fact", "!fact", "one|other". None: true. */
bool plan_holds(const json_t *facts, const json_t *when);

/* Whether an array of texts has @text. */
bool plan_lists(const json_t *array, const char *text);

/*
 * Reads a JSON file as Python writes it: NaN and Infinity are texts. A folder, a pipe and a file
 * beyond 64 MiB are refused.
 */
int plan_read_json(const char *path, json_t **ret_document, struct why *why);

/* The same for a @text that is in memory; @name is for @why. */
int plan_parse_json(const char *name, const char *text, json_t **ret_document, struct why *why);
