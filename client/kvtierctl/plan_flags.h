// SPDX-License-Identifier: Apache-2.0
/*
 * The flags of an engine's command line, by the table of flags (engines.json): which engine it
 * is, what each flag is called there, and what they set of a plan. Nothing is judged here.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct plan_options;

struct plan_flags {
        const json_t *knowledge;
        const char *engine; /* vllm, sglang or lmcache */
        json_t *entries; /* {"typed", "flag", "value"}; flag "" when the table does not have it */
};

/* 0, or a negative errno with @why: a quote is open, or no engine is run. */
int plan_flags_init(struct plan_flags *flags, const json_t *knowledge, const char *command,
                    struct why *why);

/* The row of an entry, of another engine where this one has no such flag; NULL: none. */
const json_t *plan_flags_row(const struct plan_flags *flags, const json_t *entry);

/* Whether an entry says what the engine would do without it. */
bool plan_flags_is_default(const json_t *row, const json_t *entry);

/* Whether @flag, or one that counts as it, is there, and not at its default. */
bool plan_flags_has(const struct plan_flags *flags, const char *flag);

/* Sets what the command line says, and what it does not to the engine's defaults. */
void plan_flags_apply(const struct plan_flags *flags, struct plan_options *options);

/* Whether plan_flags_apply() understands the entry's value: not a shell's variable. */
bool plan_flags_are_heeded(const json_t *row, const json_t *entry);

/* A whole number above 0. */
bool plan_flags_number(const char *value, uint64_t *ret_number);
