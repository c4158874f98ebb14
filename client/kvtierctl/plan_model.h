// SPDX-License-Identifier: Apache-2.0
/*
 * A model as its configuration describes it: dimensions, how many layers of which kind, and the
 * class that follows. Field names come from the tables, so that another spelling is no code.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define PLAN_ABSENT UINT64_MAX /* the configuration does not have the field */

struct plan;

/* Whether a field is there and not 0. */
static inline bool plan_has(uint64_t number)
{
        return number && number != PLAN_ABSENT;
}

enum plan_state {
        PLAN_STATE_NONE,
        PLAN_STATE_GDN,
        PLAN_STATE_KDA,
        PLAN_STATE_MAMBA2,
        PLAN_STATE_OTHER, /* no formula */
};

struct plan_model {
        const char *model_type; /* "" when there is none */
        const json_t *row;      /* NULL: an architecture that the table does not know */
        const char *class;
        enum plan_state state;
        bool is_latent, has_index, is_compressed;

        uint64_t layers, heads, kv_heads, head_dim, value_head_dim, hidden;
        uint64_t latent_rank, rope_dim, index_dim, index_topk, index_kpool, window;
        uint64_t conv_kernel;
        uint64_t gdn_key_heads, gdn_value_heads, gdn_key_dim, gdn_value_dim;
        uint64_t kda_heads, kda_dim;
        uint64_t mamba_heads, mamba_head_dim, mamba_state, mamba_groups, mamba_chunk;
        uint64_t experts, active_experts, mtp_layers, max_tokens, full_interval;

        /* How many layers keep what; a layer may keep KV and a state. */
        bool layers_known;
        uint64_t full_layers, window_layers, state_layers, index_layers;
        uint64_t ratio4_layers, ratio128_layers;

        const char *dtype;       /* of weights, and of KV and state unless told otherwise */
        const char *kv_dtype;    /* that the checkpoint asks for; NULL: dtype */
        const char *state_dtype; /* that the configuration asks for; NULL: dtype, or float32 */
};

/*
 * Reads @config into the plan's model, facts and document ("class", "decided_by", "doubt").
 * 0, or a negative errno with @why naming the field.
 */
int plan_model_read(struct plan *plan, const json_t *config, struct why *why);
