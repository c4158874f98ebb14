// SPDX-License-Identifier: Apache-2.0
/*
 * An engine whose groups have codecs, for stories: keys and values in halves and a padded
 * tensor that no word larger than a number fits, indexer keys, wide pages of many short rows,
 * states. What an object holds is
 * a function of its number: bf16 numbers of every kind. What comes back is held against
 * proto/codec.h, page by page.
 *
 * The memory is an image in host memory. Where the pages lie elsewhere (a GPU), the test moves
 * the image there and back.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/kvtier.h"

enum { QUANT_KV, QUANT_INDEX, QUANT_WIDE, QUANT_STATE, QUANT_GROUPS };

#define QUANT_CHUNK_TOKENS 128u
#define QUANT_PAGES        64u /* of the paged groups, */
#define QUANT_WIDE_PAGES   16u /* and of the wide one */
#define QUANT_STATES       4u
#define QUANT_SLOTS        8u /* of a chunk */
#define QUANT_UNTOUCHED    0xee

struct quant_engine {
        struct kvt_session *session;
        struct kvt_page_map *map;
        uint8_t *image; /* quant_bytes() */
};

uint64_t quant_bytes(void);

/* Attached; the image is QUANT_UNTOUCHED. Without codecs it is another engine's layout. */
void quant_open(struct quant_engine *ret_engine, const char *socket, bool has_codecs);
/* Where the pages lie: the image itself, or as many bytes elsewhere. */
void quant_register(struct quant_engine *engine, void *base);
void quant_close(struct quant_engine *engine);

/* In slots @first, @first + @step, ...; @slots has QUANT_SLOTS. */
struct kvt_object quant_object(uint64_t number, uint16_t group, uint32_t *slots, uint32_t first,
                               int step);
/* One of each group. */
void quant_boundary(uint64_t number, struct kvt_object objects[QUANT_GROUPS],
                    uint32_t slots[QUANT_GROUPS][QUANT_SLOTS], uint32_t first, int step);

/* Writes what it holds into its slots of the image. */
void quant_fill(const struct quant_engine *engine, const struct kvt_object *object);
/* Do they hold what comes back of it, or of those of its pages that were asked for? */
bool quant_holds(const struct quant_engine *engine, const struct kvt_object *object);
/* And nothing else is touched: clears the slots of the object to QUANT_UNTOUCHED. */
void quant_clear(const struct quant_engine *engine, const struct kvt_object *object);
bool quant_is_untouched(const struct quant_engine *engine);

/* The bytes of the object as they are stored; the caller frees them. */
uint8_t *quant_stored(const struct kvt_object *object, uint64_t *ret_bytes);

/* Calls, waited for. */
enum kvt_status quant_store(struct quant_engine *engine, struct kvt_object *objects, size_t n);
enum kvt_status quant_load(struct quant_engine *engine, struct kvt_object *objects, size_t n);
