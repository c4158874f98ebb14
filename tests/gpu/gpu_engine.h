// SPDX-License-Identifier: Apache-2.0
/*
 * An engine whose paged memory, of one of the shapes, lies on a GPU. The host has an image of
 * that memory as it should be: what an object holds is a function of its number, and what lies
 * between pages is poison, so that a comparison of all of it finds whatever was copied wrong,
 * or to where it does not belong.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "cuda/kvtier-cuda.h"
#include "tests/gpu/gpu_memory.h"
#include "tests/gpu/shapes.h"
#include "tests/support/daemon_fixture.h"

#define ENGINE_OBJECTS   2u /* of each group, of a boundary's run */
#define ENGINE_SLOTS_MAX 64u
#define ENGINE_N_MAX     (ENGINE_OBJECTS * SHAPE_GROUPS_MAX)

struct gpu_engine {
        const struct shape *shape;
        struct gpu *gpu;
        struct kvt_session *session;
        struct kvt_page_map *map;
        unsigned n_groups;
        uint32_t n_pages[SHAPE_GROUPS_MAX];
        uint64_t group_at[SHAPE_GROUPS_MAX]; /* offset of its memory */
        uint64_t bytes;
        cu_address memory; /* as is[], whenever somebody has called gpu_engine_push() */
        uint8_t *is;
        uint8_t *seen; /* what was read back */
        uint32_t random;
        bool is_guest; /* in a session of another engine's */
};

/* As daemon_fixture_init(): a GPU's driver never closes what it has opened. */
void gpu_daemon_init(struct daemon_fixture *fixture, const struct daemon_options *options);

struct kvt_session *gpu_engine_session(const struct shape *shape, const char *socket);
/* The same with a daemon elsewhere and the buffer @dmabuf; may be refused. */
enum kvt_status gpu_engine_remote_session(struct kvt_session **ret_session,
                                          const struct shape *shape, const char *address,
                                          const struct kvt_dmabuf *dmabuf, char *ret_why,
                                          size_t why_bytes);
/*
 * With poisoned memory. @session is of gpu_engine_session(); @options NULL: it has its device
 * already, by an engine on another GPU; else the engine closes it.
 */
void gpu_engine_open(struct gpu_engine *ret_engine, const struct shape *shape, struct gpu *gpu,
                     struct kvt_session *session, const struct kvt_cuda_options *options);
void gpu_engine_close(struct gpu_engine *engine);

/* ENGINE_OBJECTS objects of each group, named from @first on, in slots of no order. */
unsigned gpu_engine_objects(struct gpu_engine *engine, uint64_t first,
                            struct kvt_object objects[ENGINE_N_MAX],
                            uint32_t slots[ENGINE_N_MAX][ENGINE_SLOTS_MAX]);

/* The image: nothing but poison; and the bytes of an object in its slots. */
void gpu_engine_poison(struct gpu_engine *engine, uint8_t poison);
void gpu_engine_place(struct gpu_engine *engine, const struct kvt_object *object, uint64_t number);
/* Makes the GPU's memory what the image is. */
void gpu_engine_push(struct gpu_engine *engine);
/* The first byte that differs, or UINT64_MAX. */
uint64_t gpu_engine_difference(struct gpu_engine *engine);

/* Waits for the background registration. */
void gpu_engine_wait_registered(struct gpu_engine *engine);
struct kvt_cuda_info gpu_engine_info(struct gpu_engine *engine);

/*
 * Can the session's GPUs move bytes in this way? Else says "skipped: REASON". Dies when there are
 * kernels and they do not run.
 */
bool gpu_moves_by(struct kvt_session *session, enum kvt_cuda_strategy strategy);

/* A call, waited for; the call's status. */
enum kvt_status gpu_engine_store(struct gpu_engine *engine, struct kvt_object *objects, size_t n);
enum kvt_status gpu_engine_load(struct gpu_engine *engine, struct kvt_object *objects, size_t n);

/*
 * Stores objects, named from @first on, and loads them into other slots of poisoned memory.
 * Dies with the shape's name when a byte is wrong.
 */
void gpu_engine_round_trip(struct gpu_engine *engine, uint64_t first, void (*between)(void *user),
                           void *user);
