// SPDX-License-Identifier: Apache-2.0
/*
 * Any encoding: the decoder never reads outside it, what it accepts is encoded to the
 * same bytes again, and the sizes and cells of an accepted layout keep their limits.
 * Merged with itself, it stays what it is.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout_merge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

static void check_accepted(const struct layout *layout, const uint8_t *encoding, size_t size)
{
        static uint8_t again[LAYOUT_BYTES_MAX];
        static struct layout merged;
        struct layout_conflict conflict;
        int cell = 0;

        REQUIRE(layout_encode(layout, again, sizeof(again)) == (int)size);
        REQUIRE(!memcmp(again, encoding, size));
        merged = *layout;
        REQUIRE(!layout_merge(&merged, layout, &conflict));
        merged.is_partial = layout->is_partial;
        REQUIRE(layout_encode(&merged, again, sizeof(again)) == (int)size);
        REQUIRE(!memcmp(again, encoding, size));
        REQUIRE(layout_largest_object(layout, NULL) <= LAYOUT_OBJECT_MAX);
        REQUIRE(layout_page_lcm(layout) && !(layout->chunk_tokens % layout_page_lcm(layout)));
        for (uint16_t i = 0; i < layout->n_groups; i++)
                for (uint16_t j = 0; j < layout->groups[i].n_shards; j++)
                        if (layout->groups[i].kind != LAYOUT_SCRATCH)
                                REQUIRE(layout_cell(layout, i, j) == cell++);
        REQUIRE((uint32_t)cell == layout_n_cells(layout) && cell <= (int)LAYOUT_CELLS_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint8_t *encoding = malloc(size ? size : 1);
        struct why why = {""};
        struct layout layout;

        REQUIRE(encoding);
        if (size)
                memcpy(encoding, data, size);
        if (layout_decode_partial(&layout, encoding, size, &why))
                REQUIRE(*why.text);
        else
                check_accepted(&layout, encoding, size);
        free(encoding);
        return 0;
}
