// SPDX-License-Identifier: Apache-2.0
/*
 * What decides, in a replay, which chunks and which states one tier holds.
 *
 * The tier has a capacity in bytes for both. A request hits at the deepest boundary k <= kmax
 * whose chunks 1 to k and whose state are there; then chunks k+1 to n were computed, and so were
 * the states behind them. Chunks are stored, and states where the policy wants them. Models
 * without state groups have state_bytes 0: chunks alone decide.
 *
 * Chunks are numbers from 0 to n_chunks - 1, a chain is a path from a root of their tree, and
 * boundary i of a chain is the end of chain[i - 1].
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "trace.h"

struct replay_sizes {
        uint64_t capacity_bytes;
        uint64_t chunk_bytes; /* KV of one chunk */
        uint64_t state_bytes; /* 0: dense */
};

struct replay_request {
        const uint32_t *chain;
        uint32_t n;
        uint32_t kmax; /* n, or n - 1 where the prompt ends with chunk n: one token is computed */
        uint64_t now_us;
};

/* Kept up to date by the policy; written counts everything that was ever put into the tier. */
struct replay_usage {
        uint64_t chunks, states; /* held now */
        uint64_t chunks_written, states_written;
};

struct replay_policy {
        const char *name;
        /* @trace outlives the policy; bounds may look at all of it, policies only at n_chunks. */
        int (*new)(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace);
        /* Returns k. */
        uint32_t (*request)(void *self, const struct replay_request *request);
        const struct replay_usage *(*usage)(const void *self);
        void (*free)(void *self);
};

struct replay_result {
        uint64_t hit_tokens;
        uint64_t input_tokens;
        uint64_t bytes_written;
        uint64_t bytes_held_max;
        double state_share; /* of the bytes held, mean over the requests */
};

/* What is held. */
static inline uint64_t replay_bytes(const struct replay_usage *usage,
                                    const struct replay_sizes *sizes)
{
        return usage->chunks * sizes->chunk_bytes + usage->states * sizes->state_bytes;
}

/* The deepest boundary at which @request can be served: something is left to compute. */
uint32_t replay_kmax(const struct trace *trace, const struct trace_request *request);

/* Runs @trace through a new instance of @policy. */
int replay_run(const struct replay_policy *policy, const struct replay_sizes *sizes,
               const struct trace *trace, struct replay_result *ret_result);

extern const struct replay_policy replay_dense; /* LRU that needs and keeps no states */
extern const struct replay_policy replay_p0, replay_p1, replay_p2, replay_p3;
extern const struct replay_policy replay_p7, replay_a2q;
extern const struct replay_policy replay_min, replay_oracle;
extern const struct replay_policy replay_daemon, replay_daemon_each;
