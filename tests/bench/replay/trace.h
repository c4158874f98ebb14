// SPDX-License-Identifier: Apache-2.0
/*
 * A trace of prompts, in one compact form for all file formats.
 *
 * Prompts are cut into chunks; those of all prompts together form a tree, in which a chunk is
 * named by what precedes it too. So a prompt is a path from a root, and a request needs only
 * its last chunk and its length. Only full chunks count: the rest of a prompt is in no chunk.
 *
 * Chunks are numbered from 0 in the order in which they are first seen; a parent has a smaller
 * number than its children.
 */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

#define TRACE_NONE UINT32_MAX

struct trace_request {
        uint64_t time_us;
        uint32_t session; /* TRACE_NONE: the trace does not say */
        uint32_t input_tokens;
        uint32_t n_chunks;
        uint32_t last; /* chunk; TRACE_NONE: the prompt is shorter than a chunk */
};

struct trace_slot {
        uint32_t parent;
        uint32_t id;
        uint32_t chunk; /* TRACE_NONE: free */
};

/* Owned by whoever called trace_init(). Requests are in order of time after trace_finish(). */
struct trace {
        uint32_t chunk_tokens;
        struct trace_request *requests;
        uint32_t n_requests, requests_size;
        uint32_t *parents; /* by chunk; TRACE_NONE: a root */
        uint32_t n_chunks, chunks_size;
        uint32_t longest; /* chunks of the longest prompt */
        uint64_t input_tokens;
        uint64_t accesses; /* chunks of all prompts */
        struct trace_slot *slots; /* (parent, id) to chunk; open addressing */
        uint32_t slots_size;
        uint32_t n_forgotten;
};

void trace_init(struct trace *trace, uint32_t chunk_tokens);
void trace_deinit(struct trace *trace);

/* The chunk @id behind @parent, made when it is new. */
int trace_chunk(struct trace *trace, uint32_t parent, uint32_t id, uint32_t *ret_chunk);

/* Appends; n_chunks follows from input_tokens, the prompt's last chunk is @last. */
int trace_append(struct trace *trace, uint64_t time_us, uint32_t session, uint32_t input_tokens,
                 uint32_t last);

/* Forgets the ids: those that follow are those of another session. */
void trace_forget_ids(struct trace *trace);

/* Sorts by time; requests of the same time stay in order. */
int trace_finish(struct trace *trace);

/* Moves the starts of the sessions @factor closer together; their inner gaps stay. */
int trace_squeeze(struct trace *trace, uint32_t factor);

/* Writes the chunks of @request, first to last, to @ret_chain (room for n_chunks). */
void trace_chain(const struct trace *trace, const struct trace_request *request,
                 uint32_t *ret_chain);
