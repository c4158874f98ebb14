// SPDX-License-Identifier: Apache-2.0
/*
 * An engine with paged memory and a page map, for stories. Three groups: attention in a
 * strided tensor of keys and values and one of padded indexer keys, a window in pages that
 * touch, states. What an object holds is a function of its number and of a generation; where
 * its pages lie is up to the slots.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"

#define CHUNK_TOKENS 256u
enum { FULL, WINDOW, STATE, N_GROUPS };

#define N_PAGES     1024u /* of both paged groups */
#define N_STATES    4u
#define KV_ROW      2048u
#define IDX_ROW     1000u
#define IDX_STEP    1024u
#define WIN_PAGE    8192u
#define STATE_BYTES (UINT64_C(3) * 0x100000 + 1)
#define STATE_STEP  (UINT64_C(3) * 0x100000 + 4096)
#define SLOTS_MAX   (CHUNK_TOKENS / 16) /* of an object */
#define UNTOUCHED   0xee                /* what memory holds at first */

struct paged_engine {
        struct kvt_session *session;
        struct kvt_page_map *map;
        uint8_t *memory; /* all of these */
        uint64_t memory_bytes;
        uint8_t *keys_and_values; /* [2][N_PAGES][KV_ROW] */
        uint8_t *index;           /* [N_PAGES][IDX_STEP] */
        uint8_t *window;          /* [N_PAGES][WIN_PAGE] */
        uint8_t *states;          /* [N_STATES][STATE_STEP] */
};

/* Attached, with its pages registered. All have the same engine id. */
struct paged_engine paged_open(const char *socket);
void paged_close(struct paged_engine *engine);

/* Byte @at of a page, wherever it is. */
uint8_t *paged_byte(const struct paged_engine *engine, uint16_t group, uint32_t slot, uint64_t at);

/* An object in slots @first, @first + @step, ...; @slots has SLOTS_MAX. */
struct kvt_object paged_object(uint64_t number, uint16_t group, uint32_t *slots, uint32_t first,
                               int step);
/* One boundary: a chunk, a chunk of the window, a state. */
void paged_boundary(uint64_t number, struct kvt_object objects[N_GROUPS],
                    uint32_t slots[N_GROUPS][SLOTS_MAX], uint32_t first, int step);

/* Of its slots. */
uint64_t paged_bytes(const struct kvt_object *object);
/* What the whole object holds; the caller frees it. */
uint8_t *paged_content(const struct kvt_object *object, uint64_t generation);

/* Writes it into the engine's pages. */
void paged_fill(const struct paged_engine *engine, const struct kvt_object *objects, size_t n,
                uint64_t generation);
/* Do the slots hold the object, or those of its pages that were asked for? */
bool paged_holds(const struct paged_engine *engine, const struct kvt_object *object,
                 uint64_t generation);
/* All are KVT_OK and hold it. */
void paged_expect(const struct paged_engine *engine, const struct kvt_object *objects, size_t n,
                  uint64_t generation);

/* ---- calls, waited for ---- */

struct kvt_call paged_options(uint32_t flags, uint64_t set);
struct kvt_completion paged_wait(struct paged_engine *engine, uint64_t call);
enum kvt_status paged_store(struct paged_engine *engine, uint64_t set, struct kvt_object *objects,
                            size_t n);
struct kvt_completion paged_load(struct paged_engine *engine, uint32_t flags, const uint8_t *token,
                                 struct kvt_object *objects, size_t n);
