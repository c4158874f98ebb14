// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#include "storage/segment.h"
#include "storage/superblock.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "disk formats are little-endian");

static uint64_t block_checksum(const struct superblock *block)
{
        struct superblock copy = *block;

        copy.checksum = 0;
        return XXH3_64bits(&copy, sizeof(copy));
}

void superblock_seal(struct superblock *block)
{
        memcpy(block->magic, SUPERBLOCK_MAGIC, sizeof(block->magic));
        block->version = SUPERBLOCK_VERSION;
        block->block_bytes = SUPERBLOCK_BYTES;
        block->checksum = block_checksum(block);
}

static const char *wrong_field(const struct superblock *block)
{
        if (block->block_bytes != SUPERBLOCK_BYTES)
                return "block length";
        if (!block->n_members || block->member_index >= block->n_members)
                return "member index";
        if (block->unit_bytes != SEGMENT_UNIT_BYTES)
                return "allocation unit";
        if (block->header_bytes != SEGMENT_HEADER_BYTES)
                return "header length";
        if (block->size_bytes < SUPERBLOCK_AREA_BYTES || block->size_bytes % SEGMENT_UNIT_BYTES)
                return "member size";
        if (!block->epoch || !block->sequence)
                return "epoch or sequence";
        if (!segment_is_zero(block->reserved, sizeof(block->reserved)))
                return "reserved bytes";
        return NULL;
}

int superblock_decode(struct superblock *ret_block, const void *bytes, struct why *why)
{
        struct superblock block;
        const char *wrong;

        memcpy(&block, bytes, sizeof(block));
        if (segment_is_zero(bytes, sizeof(block)))
                return SUPERBLOCK_E_EMPTY;
        if (memcmp(block.magic, SUPERBLOCK_MAGIC, sizeof(block.magic)))
                return SUPERBLOCK_E_FOREIGN;
        /* The version stands before the checksum, whose extent it may change. */
        if (block.version > SUPERBLOCK_VERSION) {
                why_set(why, "on-disk format %u; this program knows up to %u", block.version,
                        SUPERBLOCK_VERSION);
                return SUPERBLOCK_E_NEWER;
        }
        if (!block.version || block.checksum != block_checksum(&block)) {
                why_set(why, "superblock checksum does not match");
                return SUPERBLOCK_E_DAMAGED;
        }
        if (block.refuse_flags || block.readonly_flags) {
                why_set(why,
                        "on-disk format %u uses features %#llx that this program "
                        "(format %u) does not know",
                        block.version,
                        (unsigned long long)(block.refuse_flags | block.readonly_flags),
                        SUPERBLOCK_VERSION);
                return SUPERBLOCK_E_NEWER;
        }
        wrong = wrong_field(&block);
        if (wrong) {
                why_set(why, "superblock has an impossible %s", wrong);
                return SUPERBLOCK_E_DAMAGED;
        }
        *ret_block = block;
        return 0;
}

int superblock_choose(struct superblock *ret_block, const void *area, struct why *why)
{
        struct superblock best, block;
        bool found = false;
        int worst = 0;

        for (uint32_t i = 0; i < SUPERBLOCK_COPIES; i++) {
                int r = superblock_decode(&block, (const uint8_t *)area + i * SUPERBLOCK_COPY_BYTES,
                                          why);

                if (r == SUPERBLOCK_E_NEWER)
                        return r;
                if (r > worst)
                        worst = r;
                if (r || (found && best.sequence >= block.sequence))
                        continue;
                best = block;
                found = true;
        }
        if (found) {
                *ret_block = best;
                return 0;
        }
        if (worst == SUPERBLOCK_E_EMPTY && !segment_is_zero(area, SUPERBLOCK_AREA_BYTES))
                return SUPERBLOCK_E_FOREIGN;
        return worst;
}
