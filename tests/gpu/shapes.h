// SPDX-License-Identifier: Apache-2.0
/*
 * The shapes that the paged memory of models has: what a page of a group is made of, and how
 * its layers lie in memory. Sizes are those of one layer of one rank; how many layers there are
 * changes nothing but the number of views, so that tests have few.
 */
#pragma once

#include <stdint.h>

#include "client/kvtier.h"

#define SHAPE_GROUPS_MAX  6u
#define SHAPE_TENSORS_MAX 3u

enum shape_order {
        SHAPE_PAGES,  /* each layer by itself; a page holds its tensors one behind the other, and
                         may be padded */
        SHAPE_HALVES, /* each tensor by itself: first the first row of all pages, then the second */
        SHAPE_PACKED, /* a page holds all layers */
};

struct shape_tensor {
        uint64_t row_bytes;
        uint32_t n_rows; /* of a page, one behind the other but for SHAPE_HALVES */
};

struct shape_group {
        const char *name;
        enum kvt_group_kind kind;
        enum shape_order order;
        uint32_t page_tokens; /* 0: states */
        uint32_t window_tokens;
        uint32_t n_layers;
        uint64_t padded_bytes; /* of a layer's page; 0: not padded */
        struct shape_tensor tensors[SHAPE_TENSORS_MAX];
};

struct shape {
        const char *name;
        uint32_t chunk_tokens;
        struct shape_group groups[SHAPE_GROUPS_MAX]; /* up to the first without a name */
};

extern const struct shape shapes[];
extern const unsigned n_shapes;
/* Dies when there is none of this name. */
const struct shape *shape_named(const char *name);

/* Of a page, all layers: what the layout says, and how far apart layers and rows lie. */
uint64_t shape_layer_bytes(const struct shape_group *group);
uint64_t shape_page_bytes(const struct shape_group *group);
/* Pages of an object: of a chunk, or one state. */
uint32_t shape_object_pages(const struct shape *shape, const struct shape_group *group);
/* Memory of @n_pages pages. */
uint64_t shape_memory_bytes(const struct shape_group *group, uint32_t n_pages);
