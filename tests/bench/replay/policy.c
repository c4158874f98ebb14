// SPDX-License-Identifier: Apache-2.0
#include "policy.h"

#include <stdlib.h>

uint32_t replay_kmax(const struct trace *trace, const struct trace_request *request)
{
        return request->input_tokens ? (request->input_tokens - 1) / trace->chunk_tokens : 0;
}

static void account(struct replay_result *result, const struct replay_usage *usage,
                    const struct replay_sizes *sizes)
{
        uint64_t held = replay_bytes(usage, sizes);

        if (held > result->bytes_held_max)
                result->bytes_held_max = held;
        if (held)
                result->state_share += (double)(usage->states * sizes->state_bytes) / (double)held;
}

static void run_requests(const struct replay_policy *policy, void *self,
                         const struct replay_sizes *sizes, const struct trace *trace,
                         uint32_t *chain, struct replay_result *result)
{
        for (uint32_t i = 0; i < trace->n_requests; i++) {
                const struct trace_request *from = &trace->requests[i];
                struct replay_request request = {
                        .chain = chain,
                        .n = from->n_chunks,
                        .kmax = replay_kmax(trace, from),
                        .now_us = from->time_us,
                };

                trace_chain(trace, from, chain);
                result->hit_tokens +=
                        (uint64_t)policy->request(self, &request) * trace->chunk_tokens;
                account(result, policy->usage(self), sizes);
        }
}

int replay_run(const struct replay_policy *policy, const struct replay_sizes *sizes,
               const struct trace *trace, struct replay_result *ret_result)
{
        struct replay_result result = {.input_tokens = trace->input_tokens};
        _cleanup_free_ uint32_t *chain = calloc(trace->longest + 1, sizeof(*chain));
        const struct replay_usage *usage;
        void *self;
        int r;

        if (!chain)
                return err_raise(-ENOMEM);
        r = policy->new (&self, sizes, trace);
        if (r < 0)
                return r;
        run_requests(policy, self, sizes, trace, chain, &result);
        usage = policy->usage(self);
        result.bytes_written = usage->chunks_written * sizes->chunk_bytes +
                               usage->states_written * sizes->state_bytes;
        result.state_share /= trace->n_requests;
        policy->free(self);
        *ret_result = result;
        return 0;
}
