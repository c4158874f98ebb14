// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void trace_init(struct trace *trace, uint32_t chunk_tokens)
{
        *trace = (struct trace){.chunk_tokens = chunk_tokens};
}

void trace_deinit(struct trace *trace)
{
        free(trace->requests);
        free(trace->parents);
        free(trace->slots);
        *trace = (struct trace){0};
}

/* ---- ids ---- */

static struct trace_slot *slot_of(struct trace_slot *slots, uint32_t size, uint32_t parent,
                                  uint32_t id)
{
        uint64_t hash = (((uint64_t)parent << 32) | id) * 0x9e3779b97f4a7c15u;
        uint32_t at = (uint32_t)(hash >> 32) & (size - 1);

        while (slots[at].chunk != TRACE_NONE && (slots[at].parent != parent || slots[at].id != id))
                at = (at + 1) & (size - 1);
        return &slots[at];
}

static struct trace_slot *slots_new(uint32_t size)
{
        struct trace_slot *slots = malloc(size * sizeof(*slots));

        for (uint32_t i = 0; slots && i < size; i++)
                slots[i].chunk = TRACE_NONE;
        return slots;
}

/* Keeps half of the slots free. */
static int reserve_slots(struct trace *trace)
{
        uint32_t size = trace->slots_size ? trace->slots_size * 2 : 1u << 16;
        struct trace_slot *slots;

        if (trace->n_chunks < trace->slots_size / 2)
                return 0;
        slots = slots_new(size);
        if (!slots)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < trace->slots_size; i++) {
                const struct trace_slot *old = &trace->slots[i];

                if (old->chunk != TRACE_NONE)
                        *slot_of(slots, size, old->parent, old->id) = *old;
        }
        free(trace->slots);
        trace->slots = slots;
        trace->slots_size = size;
        return 0;
}

/* Makes room for one more element. */
static int reserve(void *array, uint32_t n, uint32_t *size, size_t element)
{
        uint32_t larger = *size ? *size * 2 : 4096;
        void *moved;

        if (n < *size)
                return 0;
        if (n >= UINT32_MAX / 4)
                return err_raise(-E2BIG);
        moved = realloc(*(void **)array, larger * element);
        if (!moved)
                return err_raise(-ENOMEM);
        *(void **)array = moved;
        *size = larger;
        return 0;
}

int trace_chunk(struct trace *trace, uint32_t parent, uint32_t id, uint32_t *ret_chunk)
{
        /* No chunk has so large a number: roots of different sessions differ. */
        uint32_t key = parent == TRACE_NONE ? TRACE_NONE - trace->n_forgotten : parent;
        struct trace_slot *slot;
        int r;

        r = reserve_slots(trace);
        if (!r)
                r = reserve(&trace->parents, trace->n_chunks, &trace->chunks_size,
                            sizeof(*trace->parents));
        if (r < 0)
                return r;
        slot = slot_of(trace->slots, trace->slots_size, key, id);
        if (slot->chunk == TRACE_NONE) {
                *slot = (struct trace_slot){.parent = key, .id = id, .chunk = trace->n_chunks};
                trace->parents[trace->n_chunks++] = parent;
        }
        *ret_chunk = slot->chunk;
        return 0;
}

void trace_forget_ids(struct trace *trace)
{
        trace->n_forgotten++;
}

/* ---- requests ---- */

int trace_append(struct trace *trace, uint64_t time_us, uint32_t session, uint32_t input_tokens,
                 uint32_t last)
{
        uint32_t n_chunks = input_tokens / trace->chunk_tokens;
        int r;

        r = reserve(&trace->requests, trace->n_requests, &trace->requests_size,
                    sizeof(*trace->requests));
        if (r < 0)
                return r;
        trace->requests[trace->n_requests++] = (struct trace_request){
                .time_us = time_us,
                .session = session,
                .input_tokens = input_tokens,
                .n_chunks = n_chunks,
                .last = last,
        };
        trace->input_tokens += input_tokens;
        trace->accesses += n_chunks;
        if (n_chunks > trace->longest)
                trace->longest = n_chunks;
        return 0;
}

struct timed {
        uint64_t time_us;
        uint32_t at;
};

static int by_time(const void *a, const void *b)
{
        const struct timed *left = a, *right = b;

        if (left->time_us != right->time_us)
                return left->time_us < right->time_us ? -1 : 1;
        return (left->at > right->at) - (left->at < right->at);
}

int trace_finish(struct trace *trace)
{
        uint32_t n = trace->n_requests;
        _cleanup_free_ struct timed *order = calloc(n + 1, sizeof(*order));
        struct trace_request *sorted;

        free(trace->slots);
        trace->slots = NULL;
        trace->slots_size = 0;
        if (!order)
                return err_raise(-ENOMEM);
        sorted = calloc(n + 1, sizeof(*sorted));
        if (!sorted)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < n; i++)
                order[i] = (struct timed){.time_us = trace->requests[i].time_us, .at = i};
        qsort(order, n, sizeof(*order), by_time);
        for (uint32_t i = 0; i < n; i++)
                sorted[i] = trace->requests[order[i].at];
        free(trace->requests);
        trace->requests = sorted;
        trace->requests_size = n + 1;
        return 0;
}

int trace_squeeze(struct trace *trace, uint32_t factor)
{
        uint32_t n_sessions = 0;
        _cleanup_free_ uint64_t *starts = NULL;

        for (uint32_t i = 0; i < trace->n_requests; i++) {
                uint32_t session = trace->requests[i].session;

                if (session != TRACE_NONE && session >= n_sessions)
                        n_sessions = session + 1;
        }
        starts = malloc((n_sessions + 1) * sizeof(*starts));
        if (!starts)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < n_sessions; i++)
                starts[i] = UINT64_MAX;
        for (uint32_t i = 0; i < trace->n_requests; i++) {
                struct trace_request *request = &trace->requests[i];
                uint64_t *start;

                if (request->session == TRACE_NONE)
                        continue;
                start = &starts[request->session];
                if (*start == UINT64_MAX)
                        *start = request->time_us;
                request->time_us -= *start - *start / factor;
        }
        return trace_finish(trace);
}

void trace_chain(const struct trace *trace, const struct trace_request *request,
                 uint32_t *ret_chain)
{
        uint32_t chunk = request->last;

        for (uint32_t i = request->n_chunks; i-- > 0; chunk = trace->parents[chunk])
                ret_chain[i] = chunk;
}
