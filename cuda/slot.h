// SPDX-License-Identifier: Apache-2.0
/*
 * Slots: what is on its way at one time, as one batch of runs by one strategy.
 *
 * A lane has several, so that one gathers while another's copy is on the bus. Each has a stream;
 * only what is staged shares another for its copies. begin() -> add() until it is full or enough ->
 * issue() -> query() until it is done. Between issue and done nothing of the slot may change. One
 * thread at a time, with the GPU's context current.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cuda/codec_kernels.h"
#include "cuda/driver.h"
#include "cuda/kvtier-cuda.h"
#include "cuda/page_kernels.h"

#define SLOT_RUNS_MAX  8192u /* of a kernel or of one batched copy */
#define SLOT_PLAIN_MAX 256u  /* copies: more of them fill the stream's queue, which blocks */
#define SLOT_SPANS_MAX 512u

/* What a slot needs of its GPU. */
struct slot_kit {
        const struct cuda_driver *driver;
        cu_function move_runs; /* NULL: no kernels */
        cu_function encode_tiles, decode_tiles;
        uint32_t blocks;
        int priority; /* of streams */
        bool flushes; /* what an RDMA device wrote is not seen by later copies of itself */
};

/* A run of the arena that a staging buffer is copied to or from. */
struct slot_span {
        uint64_t arena;
        uint64_t offset; /* in the staging buffer */
        uint64_t bytes;
};

struct slot {
        const struct slot_kit *kit;
        cu_stream stream;
        cu_stream copies; /* of all slots of the lane: between staging buffers and arena */
        cu_event step;    /* from one of these streams to the other */
        cu_event event;   /* behind all that was issued */
        cu_address staging;
        uint64_t staging_bytes; /* 0: none */
        /*
         * In pinned memory, where kernels read them: a copy to the GPU would have to wait behind
         * what is being loaded. Tiles where it converts.
         */
        union {
                struct kvt_cuda_run *runs;
                struct kvt_cuda_tiles *tiles;
        };
        cu_address runs_there; /* the same for the GPU */
        uint64_t *batch;       /* targets, sources and lengths, SLOT_RUNS_MAX of each */

        enum kvt_cuda_strategy strategy;
        bool is_store;
        bool converts;  /* STAGED, and the kernel is one of codec_kernels.h */
        uint64_t bytes; /* in it so far */
        uint64_t bytes_max;
        uint64_t extent; /* of the last pair */
        bool is_recorded;
        bool is_registered; /* all of the arena's side */
        bool is_foreign;    /* some of it: memory of a GPU, which an RDMA device writes to */
        uint32_t n_runs;
        uint32_t n_spans;
        struct slot_span spans[SLOT_SPANS_MAX];
};

/* A run with both of its sides, before it is known in which direction it goes. */
struct slot_pair {
        uint64_t page;
        uint64_t arena;
        uint64_t bytes;
        uint64_t extent; /* of the arena: a copy may not leave what was registered at once */
        bool is_registered;
        bool is_foreign;
};

/*
 * @copies is somebody else's and shared, so that the bus gets one large copy right behind the
 * other. @staging_bytes may be 0. 0, or the driver's error, with nothing left behind.
 */
cu_result slot_init(struct slot *ret_slot, const struct slot_kit *kit, cu_stream copies,
                    uint64_t staging_bytes);
/* Nothing of it is in flight. */
void slot_deinit(struct slot *slot);

void slot_begin(struct slot *slot, enum kvt_cuda_strategy strategy, bool is_store,
                uint64_t bytes_max);

/* Takes the front of @pair: returns how many bytes, 0 when the slot is full. */
uint64_t slot_add(struct slot *slot, const struct slot_pair *pair);

/*
 * A slot that converts has in place of pairs tiles, for the kernel, and spans (of which the page
 * does not count), for the copies; who fills it keeps @bytes and sees to the room for spans.
 */
bool slot_has_room_for_tiles(const struct slot *slot);
void slot_add_tiles(struct slot *slot, const struct kvt_cuda_tiles *tiles);
bool slot_add_span(struct slot *slot, const struct slot_pair *pair, uint64_t offset);

/*
 * Enqueues it, with @after (may be NULL) before whatever touches pages. Some of it may have
 * been enqueued when it fails; query() tells when that has ended, too, if is_recorded is set.
 * Otherwise nobody can.
 */
cu_result slot_issue(struct slot *slot, cu_event after);

/* 0: done; CU_E_NOT_READY; or an error: what was issued ran into it. */
cu_result slot_query(struct slot *slot);
