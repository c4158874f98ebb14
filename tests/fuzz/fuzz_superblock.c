// SPDX-License-Identifier: Apache-2.0
/*
 * Any superblock area. The first byte chooses whether checksum, magic and lengths are put
 * right first, so that the fuzzer gets behind them; an accepted block keeps its limits and
 * decodes the same from its sealed form.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "storage/superblock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

static void check_accepted(const struct superblock *block)
{
        struct superblock copy = *block, again;

        REQUIRE(block->version == SUPERBLOCK_VERSION);
        REQUIRE(block->member_index < block->n_members);
        REQUIRE(block->size_bytes >= SUPERBLOCK_AREA_BYTES);
        REQUIRE(block->unit_bytes && !(block->size_bytes % block->unit_bytes));
        superblock_seal(&copy);
        REQUIRE(!memcmp(&copy, block, sizeof(copy)));
        REQUIRE(!superblock_decode(&again, &copy, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint8_t *area = calloc(1, SUPERBLOCK_AREA_BYTES);
        struct superblock block;
        struct why why = {""};
        int r;

        REQUIRE(area);
        if (size > 1)
                memcpy(area, data + 1,
                       size - 1 < SUPERBLOCK_AREA_BYTES ? size - 1 : SUPERBLOCK_AREA_BYTES);
        if (size && data[0] & 1)
                superblock_seal((struct superblock *)(void *)area);
        if (size && data[0] & 2)
                superblock_seal((struct superblock *)(void *)(area + SUPERBLOCK_COPY_BYTES));
        r = superblock_choose(&block, area, &why);
        REQUIRE(r >= 0 && r <= SUPERBLOCK_E_NEWER);
        if (!r)
                check_accepted(&block);
        if (r == SUPERBLOCK_E_NEWER)
                REQUIRE(*why.text);
        free(area);
        return 0;
}
