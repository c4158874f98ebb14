// SPDX-License-Identifier: Apache-2.0
/*
 * What is compared: a trace, a model and a capacity.
 *
 * The capacity is a percentage of what the trace would fill: its unique chunks and, where the
 * model has state, one for each boundary at which a prompt ends. A cell is named
 * "agent.kimi-linear.0.3": trace, model, percentage.
 */
#pragma once

#include "policy.h"

struct cell_model {
        const char *name;
        uint64_t kv_token_bytes;
        uint64_t state_bytes; /* 0: dense */
};

struct cell_source {
        const char *name;
        const char *file;
        uint32_t squeeze; /* starts of sessions are this much closer */
};

struct cell {
        const struct cell_source *source;
        const struct cell_model *model;
        double percent;
};

/* The names of the cells that are run when none is asked for; NULL at the end. */
extern const char *const cell_names[];

/* Any trace and model with any percentage. -EINVAL: @why says what of @name is not known. */
int cell_parse(struct cell *ret_cell, const char *name, struct why *why);

/* -ENOMEM */
int cell_sizes(const struct cell *cell, const struct trace *trace, struct replay_sizes *ret_sizes);
