// SPDX-License-Identifier: Apache-2.0
/*
 * A serving design from a model's config.json: what a token and a state take, the page, chunks,
 * users, parallelism, flags. Nothing here talks to a daemon, and nothing guesses: what the
 * configuration or the tables do not say is listed as unknown.
 *
 * What is known of architectures, GPUs and engines is data (knowledge/README.md). Facts are words
 * that the fields of a configuration, the hardware and the options make true; the rules of the
 * tables hold when their facts do. Only formulas are code (plan_size.h).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "client/kvtierctl/plan_model.h"
#include "client/kvtierctl/plan_size.h"

#define PLAN_PROMPTS_MAX 8

/* What the user says beside the configuration. 0 and NULL: not told. */
struct plan_options {
        const char *gpu; /* "H200x8", "RTX4090" */
        uint64_t host_bytes;
        uint64_t nvme_bytes;
        uint64_t weight_bytes; /* of the whole model */
        double memory_share;   /* of a GPU, for weights and KV */
        uint64_t tp, ep, dp, pp;
        const char *kv_dtype;
        const char *state_dtype;
        const char *cache_mode;
        const char *quantization;
        uint64_t draft_tokens;
        uint64_t block_size;
        uint64_t context_tokens;
        uint64_t concurrency;
        uint64_t prompts[PLAN_PROMPTS_MAX];
        size_t n_prompts;
        bool text_only;
};

struct plan {
        const json_t *knowledge; /* not owned, as the options' texts */
        struct plan_options options;
        json_t *facts;    /* an object whose keys are the facts */
        json_t *unknown;  /* an array of texts */
        json_t *document; /* what --json prints */
        struct plan_model model;
        struct plan_sizes sizes;
        const json_t *gpu; /* its row, NULL: not told */
        uint64_t n_gpus;   /* 0: not told */
};

/*
 * Makes the plan of @config. 0, or a negative errno with @why: the configuration is broken or
 * lacks what its sizes need, or an option is wrong. plan_free(NULL) is legal.
 */
int plan_new(const json_t *knowledge, const json_t *config, const struct plan_options *options,
             struct plan **ret_plan, struct why *why);
struct plan *plan_free(struct plan *plan);
DEFINE_CLEANUP(struct plan *, plan_free)

void plan_add_fact(struct plan *plan, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
void plan_add_unknown(struct plan *plan, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

bool plan_is_cache_mode(const char *mode);

/* Told, or the default of the engine for this family. */
const char *plan_cache_mode(const struct plan *plan);

/* plan_fit.c: chunks and their tails, users, warm sessions, kvtierd's configuration. */
void plan_fit(struct plan *plan);

/* plan_advice.c: parallelism, what the hardware can, flags and parsers. */
void plan_advise(struct plan *plan);

/* The value of a flag that a rule sets: a {word} is replaced; "" for none. */
void plan_flag_value(const struct plan *plan, const json_t *rule, char *text, size_t size);

/*
 * plan_audit.c: the plan of what an engine's @command line sets, with what is missing in it, what
 * should not be there and what the rest does, under "check" in the document. As plan_new().
 */
int plan_audit(const json_t *knowledge, const json_t *config, const struct plan_options *options,
               const char *command, struct plan **ret_plan, struct why *why);

/* How many findings of an audited plan want a change of the command line. */
size_t plan_count_faults(const struct plan *plan);

/* plan_print.c: for people. */
void plan_print(const struct plan *plan);
