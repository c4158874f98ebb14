// SPDX-License-Identifier: Apache-2.0
/*
 * What a token and a state take, and the page that serves both. Pure arithmetic over a model and
 * the way it is divided; per rank, as vLLM computes it (platforms/interface.py).
 *
 * A page holds N tokens of one attention layer or one state of one recurrent layer. N is the
 * smallest multiple of the kernel's block for which the state fits, so it depends on whatever
 * changes either: TP, the dtypes, draft tokens.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct plan_model;

#define PLAN_GROUPS_MAX 8

enum plan_cache_mode {
        PLAN_CACHE_ALIGN, /* states at ends of pages; also without prefix caching */
        PLAN_CACHE_ALL,   /* states at every chunk of the kernel */
};

/* How the model is divided and what is kept in which precision. */
struct plan_shape {
        uint64_t tp;
        uint64_t pp;
        const char *kv_dtype;    /* NULL or "auto": the checkpoint's */
        const char *state_dtype; /* NULL: the model's own rule */
        enum plan_cache_mode cache_mode;
        uint64_t draft_tokens;
        uint64_t block_size; /* that the user forces; 0: none */
        uint64_t mla_block;  /* of the GPU's MLA kernels; 0: not known */
};

/* Layers that keep the same bytes in blocks of as many tokens. */
struct plan_group {
        const char *name;
        const char *kind; /* attention, index, window, state, compressed, scratch */
        uint64_t layers;
        uint64_t block_tokens;
        uint64_t page_bytes;    /* of a layer */
        uint64_t window_tokens; /* 0: as long as the context */
        bool is_scratch;        /* nothing of it is ever stored */
};

struct plan_sizes {
        bool is_known;            /* else there is no formula, and all numbers are 0 */
        uint64_t attention_bytes; /* a token, a layer */
        uint64_t index_bytes;     /* likewise, of an indexer */
        uint64_t conv_bytes, ssm_bytes;
        uint64_t layer_state_bytes;
        uint64_t kernel_tokens;
        uint64_t page_tokens; /* 0: not known */
        uint64_t page_bytes;
        uint64_t kv_bytes_per_token; /* all layers that grow with the context */
        uint64_t state_bytes;        /* all recurrent layers */
        uint64_t window_bytes;       /* a session's windows, all layers */
        bool is_replicated;          /* ranks hold the same KV, at least in part */
        uint64_t kv_copies;          /* how many ranks hold the same KV */
        uint64_t stride_bytes;       /* of a block of all groups, where they are packed */
        uint64_t n_packed;           /* groups as the engine packs them */
        uint64_t packed_layers;      /* of each */
        size_t n_groups;
        struct plan_group groups[PLAN_GROUPS_MAX];
};

/* 0, or a negative errno with @why: a field is missing, or TP does not divide the model. */
int plan_size_compute(const struct plan_model *model, const struct plan_shape *shape,
                      struct plan_sizes *ret_sizes, struct why *why);

/* The type of the KV: told, the checkpoint's, or the model's. */
const char *plan_kv_dtype(const struct plan_model *model, const char *told);

/* The next multiple; 0 when @multiple is. */
uint64_t plan_round_up(uint64_t value, uint64_t multiple);

/*
 * Sixteenths of a byte that an element takes, so that NVFP4 with its scales (4.5 bits) is whole;
 * 0 for a name that is not known.
 */
uint64_t plan_dtype_sixteenths(const char *dtype);
