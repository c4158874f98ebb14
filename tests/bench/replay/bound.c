// SPDX-License-Identifier: Apache-2.0
/*
 * What could be reached with knowledge of the future.
 *
 *   MIN     chunks alone, states cost nothing: evicts what is used last, as Belady's rule says.
 *           Nothing does better.
 *   PO+Bel  states cost what they cost. Each request has at most one state waiting for it, at the
 *           deepest boundary at which MIN could serve it; where its chunks are evicted, the
 *           state is one that was stored nearer to the root instead. Not the optimum, but
 *           something that could be reached.
 *
 * All chunks whose next use is request r lie on r's chain, and the deeper one of two became so
 * first (a chunk is used whenever what is behind it is used). So there is a queue for each
 * request, which is filled from the end of its chain towards the root and evicted in that order;
 * when the request comes its queue is emptied at once. Queue n_requests: never used again.
 */
#include <stdlib.h>
#include <string.h>

#include "policy.h"

struct queue {
        uint32_t first, last; /* chunks */
        uint32_t state;       /* chunk behind which the state for the request is; TRACE_NONE */
        uint32_t floor;       /* it could have been stored at boundaries deeper than this */
};

struct bound {
        struct replay_sizes sizes;
        struct replay_usage usage;
        const struct trace *trace;
        bool has_states;
        uint32_t now;       /* request */
        uint64_t access;    /* of its first chunk */
        uint32_t *next_use; /* by access: request */
        uint32_t *targets;  /* by request: boundary at which it could be served */
        uint32_t *next_same_target; /* by request: the next one with the same target */
        struct queue *queues;
        uint32_t deepest; /* no queue behind this has anything to evict */
        /* by chunk */
        uint32_t *behind, *ahead; /* in its queue */
        uint32_t *depths;
        uint32_t *waiting;   /* the next request whose target it is */
        uint32_t *n_states;  /* requests that share the state behind it */
        bool *is_held;
};

/* ---- states ---- */

static void share_state(struct bound *bound, uint32_t chunk, uint32_t request, uint32_t floor)
{
        struct queue *queue = &bound->queues[request];

        queue->state = chunk;
        queue->floor = floor;
        if (bound->n_states[chunk]++ == 0)
                bound->usage.states++;
        if (request > bound->deepest)
                bound->deepest = request;
}

static void drop_state(struct bound *bound, uint32_t chunk)
{
        if (chunk != TRACE_NONE && --bound->n_states[chunk] == 0)
                bound->usage.states--;
}

/* For the request that waits for this boundary; computed now, or used now. */
static void keep_state(struct bound *bound, uint32_t chunk, uint32_t boundary, uint32_t k)
{
        uint32_t request = bound->waiting[chunk], old;

        if (request == TRACE_NONE || boundary < k)
                return;
        old = bound->queues[request].state;
        if (boundary > k && !bound->n_states[chunk])
                bound->usage.states_written++;
        share_state(bound, chunk, request, k);
        drop_state(bound, old);
}

/* The chunk before the state of @request goes. */
static void move_state_up(struct bound *bound, uint32_t request)
{
        struct queue *queue = &bound->queues[request];
        uint32_t old = queue->state;

        if (bound->depths[old] - 1 > queue->floor)
                share_state(bound, bound->trace->parents[old], request, queue->floor);
        else
                queue->state = TRACE_NONE;
        drop_state(bound, old);
}

/* ---- chunks ---- */

static void take_out(struct bound *bound, struct queue *queue, uint32_t chunk)
{
        uint32_t behind = bound->behind[chunk], ahead = bound->ahead[chunk];

        if (ahead == TRACE_NONE)
                queue->first = behind;
        else
                bound->behind[ahead] = behind;
        if (behind == TRACE_NONE)
                queue->last = ahead;
        else
                bound->ahead[behind] = ahead;
}

/* @is_queued: it is in that queue already, as the request had no use for it. */
static void keep_chunk(struct bound *bound, uint32_t chunk, uint32_t next_use, bool is_queued)
{
        struct queue *queue = &bound->queues[next_use];

        if (is_queued)
                take_out(bound, queue, chunk);
        if (!bound->is_held[chunk]) {
                bound->is_held[chunk] = true;
                bound->usage.chunks++;
                bound->usage.chunks_written++;
        }
        bound->ahead[chunk] = queue->first == TRACE_NONE ? TRACE_NONE : queue->last;
        bound->behind[chunk] = TRACE_NONE;
        if (queue->first == TRACE_NONE)
                queue->first = chunk;
        else
                bound->behind[queue->last] = chunk;
        queue->last = chunk;
        if (next_use > bound->deepest)
                bound->deepest = next_use;
}

static void evict_one(struct bound *bound)
{
        struct queue *queue;
        uint32_t chunk;

        while (bound->queues[bound->deepest].first == TRACE_NONE &&
               bound->queues[bound->deepest].state == TRACE_NONE)
                bound->deepest--;
        queue = &bound->queues[bound->deepest];
        chunk = queue->first;
        if (chunk == TRACE_NONE) {
                drop_state(bound, queue->state);
                queue->state = TRACE_NONE;
                return;
        }
        take_out(bound, queue, chunk);
        bound->is_held[chunk] = false;
        bound->usage.chunks--;
        if (queue->state == chunk)
                move_state_up(bound, bound->deepest);
}

/* ---- requests ---- */

static uint32_t hit(const struct bound *bound, const struct replay_request *request)
{
        uint32_t k = 0;

        for (uint32_t i = 1; i <= request->kmax && bound->is_held[request->chain[i - 1]]; i++)
                if (!bound->has_states || bound->n_states[request->chain[i - 1]])
                        k = i;
        return k;
}

static uint32_t bound_request(void *self, const struct replay_request *request)
{
        struct bound *bound = self;
        uint32_t k = hit(bound, request), target = bound->targets[bound->now];
        struct queue *queue = &bound->queues[bound->now];
        uint32_t used = queue->state;

        *queue = (struct queue){.first = TRACE_NONE, .state = TRACE_NONE};
        if (target)
                bound->waiting[request->chain[target - 1]] = bound->next_same_target[bound->now];
        for (uint32_t i = request->n; i > 0; i--) {
                uint32_t chunk = request->chain[i - 1];

                if (bound->has_states)
                        keep_state(bound, chunk, i, k);
                keep_chunk(bound, chunk, bound->next_use[bound->access + i - 1],
                           i > target && bound->is_held[chunk]);
        }
        drop_state(bound, used);
        bound->access += request->n;
        bound->now++;
        while (replay_bytes(&bound->usage, &bound->sizes) > bound->sizes.capacity_bytes)
                evict_one(bound);
        return k;
}

/* ---- the future ---- */

/* From the last request to the first. A chunk is of use to a request up to its target. */
static void look_ahead(struct bound *bound, uint32_t *chain)
{
        const struct trace *trace = bound->trace;
        uint64_t access = trace->accesses;

        for (uint32_t chunk = 0; chunk < trace->n_chunks; chunk++)
                bound->behind[chunk] = trace->n_requests; /* the next use, for now */
        for (uint32_t i = trace->n_requests; i-- > 0;) {
                const struct trace_request *request = &trace->requests[i];
                uint32_t target = bound->targets[i], chunk;

                trace_chain(trace, request, chain);
                access -= request->n_chunks;
                for (uint32_t j = 0; j < request->n_chunks; j++) {
                        bound->next_use[access + j] = bound->behind[chain[j]];
                        if (j < target)
                                bound->behind[chain[j]] = i;
                }
                if (target) {
                        chunk = chain[target - 1];
                        bound->next_same_target[i] = bound->waiting[chunk];
                        bound->waiting[chunk] = i;
                }
        }
}

/* What could be hit is what was seen before. */
static void aim_at_seen(struct bound *bound, uint32_t *chain)
{
        const struct trace *trace = bound->trace;

        for (uint32_t i = 0; i < trace->n_requests; i++) {
                const struct trace_request *request = &trace->requests[i];
                uint32_t kmax = replay_kmax(trace, request), m = 0;

                trace_chain(trace, request, chain);
                while (m < request->n_chunks && bound->is_held[chain[m]])
                        m++;
                for (uint32_t j = m; j < request->n_chunks; j++)
                        bound->is_held[chain[j]] = true;
                bound->targets[i] = m < kmax ? m : kmax;
        }
        memset(bound->is_held, 0, trace->n_chunks * sizeof(*bound->is_held));
}

static void aim_at_hits(struct bound *bound, struct bound *min, uint32_t *chain)
{
        const struct trace *trace = bound->trace;

        for (uint32_t i = 0; i < trace->n_requests; i++) {
                struct replay_request request = {.chain = chain, .n = trace->requests[i].n_chunks};

                request.kmax = replay_kmax(trace, &trace->requests[i]);
                trace_chain(trace, &trace->requests[i], chain);
                bound->targets[i] = bound_request(min, &request);
        }
}

/* ---- life ---- */

static const struct replay_usage *bound_usage(const void *self)
{
        const struct bound *bound = self;

        return &bound->usage;
}

static void bound_free(void *self)
{
        struct bound *bound = self;

        if (!bound)
                return;
        free(bound->next_use);
        free(bound->targets);
        free(bound->next_same_target);
        free(bound->queues);
        free(bound->behind);
        free(bound->ahead);
        free(bound->depths);
        free(bound->waiting);
        free(bound->n_states);
        free(bound->is_held);
        free(bound);
}

/* Not yet of any use: targets and the future are missing. */
static struct bound *bound_alloc(const struct replay_sizes *sizes, const struct trace *trace)
{
        size_t n_requests = (size_t)trace->n_requests + 1, n_chunks = (size_t)trace->n_chunks + 1;
        struct bound *bound = calloc(1, sizeof(*bound));

        if (!bound)
                return NULL;
        *bound = (struct bound){.sizes = *sizes, .trace = trace};
        bound->next_use = calloc(trace->accesses + 1, sizeof(*bound->next_use));
        bound->targets = calloc(n_requests, sizeof(*bound->targets));
        bound->next_same_target = calloc(n_requests, sizeof(*bound->next_same_target));
        bound->queues = calloc(n_requests, sizeof(*bound->queues));
        bound->behind = calloc(n_chunks, sizeof(*bound->behind));
        bound->ahead = calloc(n_chunks, sizeof(*bound->ahead));
        bound->depths = calloc(n_chunks, sizeof(*bound->depths));
        bound->waiting = calloc(n_chunks, sizeof(*bound->waiting));
        bound->n_states = calloc(n_chunks, sizeof(*bound->n_states));
        bound->is_held = calloc(n_chunks, sizeof(*bound->is_held));
        if (bound->next_use && bound->targets && bound->next_same_target && bound->queues &&
            bound->behind && bound->ahead && bound->depths && bound->waiting && bound->n_states &&
            bound->is_held)
                return bound;
        bound_free(bound);
        return NULL;
}

static void prepare(struct bound *bound)
{
        const struct trace *trace = bound->trace;

        for (uint32_t i = 0; i <= trace->n_requests; i++)
                bound->queues[i] = (struct queue){.first = TRACE_NONE, .state = TRACE_NONE};
        for (uint32_t i = 0; i < trace->n_requests; i++)
                bound->next_same_target[i] = TRACE_NONE;
        for (uint32_t i = 0; i < trace->n_chunks; i++) {
                uint32_t parent = trace->parents[i];

                bound->depths[i] = parent == TRACE_NONE ? 1 : bound->depths[parent] + 1;
                bound->waiting[i] = TRACE_NONE;
        }
}

static int min_new(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace)
{
        _cleanup_free_ uint32_t *chain = calloc(trace->longest + 1, sizeof(*chain));
        struct replay_sizes no_states = *sizes;
        struct bound *bound;

        no_states.state_bytes = 0;
        bound = chain ? bound_alloc(&no_states, trace) : NULL;
        if (!bound)
                return err_raise(-ENOMEM);
        prepare(bound);
        aim_at_seen(bound, chain);
        look_ahead(bound, chain);
        *ret_self = bound;
        return 0;
}

static int oracle_new(void **ret_self, const struct replay_sizes *sizes, const struct trace *trace)
{
        _cleanup_free_ uint32_t *chain = calloc(trace->longest + 1, sizeof(*chain));
        struct bound *bound = chain ? bound_alloc(sizes, trace) : NULL;
        void *min;
        int r;

        if (!bound)
                return err_raise(-ENOMEM);
        r = min_new(&min, sizes, trace);
        if (r < 0) {
                bound_free(bound);
                return r;
        }
        bound->has_states = true;
        prepare(bound);
        aim_at_hits(bound, min, chain);
        look_ahead(bound, chain);
        bound_free(min);
        *ret_self = bound;
        return 0;
}

const struct replay_policy replay_min = {
        .name = "MIN",
        .new = min_new,
        .request = bound_request,
        .usage = bound_usage,
        .free = bound_free,
};

const struct replay_policy replay_oracle = {
        .name = "PO+Bel",
        .new = oracle_new,
        .request = bound_request,
        .usage = bound_usage,
        .free = bound_free,
};
