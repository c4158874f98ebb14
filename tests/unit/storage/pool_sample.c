// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <string.h>

#include "proto/layout.h"
#include "tests/unit/storage/pool_sample.h"

#define COVERS 5u

static struct digest sample_covers[COVERS];
static uint8_t sample_table[BUNDLE_TABLE_MAX];

static void fill(void *bytes, size_t length, uint32_t seed)
{
        for (size_t i = 0; i < length; i++)
                ((uint8_t *)bytes)[i] = (uint8_t)(seed + i * 7);
}

/* Key, pieces and total of a part of @raw_bytes. */
static void shape(struct bundle_part *part, uint64_t raw_bytes, uint32_t seed)
{
        fill(&part->object.key.layout, DIGEST_BYTES, seed);
        fill(&part->object.key.boundary, DIGEST_BYTES, seed + 1);
        part->object.raw_bytes = raw_bytes;
        part->stored_bytes = raw_bytes;
        part->offset = 4096;
        part->checksums.raw_bytes = raw_bytes;
        part->checksums.piece_bytes = checksum_piece_bytes(raw_bytes);
        part->checksums.n_pieces = checksum_n_pieces(raw_bytes);
        for (uint32_t i = 0; i < part->checksums.n_pieces; i++)
                part->checksums.pieces[i] = UINT64_MAX - seed - i;
}

static void add_rest(struct bundle_part *part, uint32_t table_bytes)
{
        part->object.parent_unknown = true;
        part->object.croppable = true;
        part->object.covers = sample_covers;
        part->object.n_covers = COVERS;
        part->encoding = 0x203;
        part->encoding_bytes = table_bytes;
        part->encoding_table = sample_table;
        part->stored_bytes = part->object.raw_bytes / 2 + 1;
}

static void enlarge(struct bundle_part *part)
{
        part->object.generation = UINT64_MAX;
        part->object.committed_ns = UINT64_MAX;
        part->object.boundary_tokens = UINT32_MAX;
        part->object.cell = LAYOUT_CELLS_MAX - 1;
        part->object.key.domain = UINT32_MAX;
        part->object.key.group = LAYOUT_GROUPS_MAX - 1;
        part->object.key.shard = LAYOUT_SHARDS_MAX - 1;
        part->offset = BUNDLE_BYTES_MAX - part->stored_bytes;
        fill(&part->object.parent, DIGEST_BYTES, 200);
        fill(part->object.writer_boot_id, sizeof(part->object.writer_boot_id), 250);
}

struct bundle_part pool_sample(uint32_t i)
{
        struct bundle_part part = {0};

        assert(i < POOL_SAMPLES);
        fill(sample_covers, sizeof(sample_covers), 9);
        fill(sample_table, sizeof(sample_table), 33);
        switch (i) {
        case 0:
                shape(&part, 1, 0);
                break;
        case 1:
                shape(&part, 300000, 40);
                add_rest(&part, 13);
                break;
        case 2:
                shape(&part, UINT64_C(90) << 20, 80);
                add_rest(&part, BUNDLE_TABLE_MAX);
                enlarge(&part);
                break;
        default:
                shape(&part, 127 * CHECKSUM_PIECE_BYTES + 1, 120);
                break;
        }
        part.checksums.total = checksum_total(&part.checksums, &part.object.key);
        return part;
}

static bool objects_equal(const struct tier_object *a, const struct tier_object *b)
{
        return object_key_equal(&a->key, &b->key) && digest_equal(&a->parent, &b->parent) &&
               a->parent_unknown == b->parent_unknown && a->croppable == b->croppable &&
               a->boundary_tokens == b->boundary_tokens && a->cell == b->cell &&
               a->generation == b->generation && a->raw_bytes == b->raw_bytes &&
               a->committed_ns == b->committed_ns && a->n_covers == b->n_covers &&
               !memcmp(a->writer_boot_id, b->writer_boot_id, sizeof(a->writer_boot_id)) &&
               !a->covers == !b->covers &&
               (!a->n_covers || !memcmp(a->covers, b->covers, a->n_covers * DIGEST_BYTES));
}

bool pool_sample_equal(const struct bundle_part *a, const struct bundle_part *b)
{
        return objects_equal(&a->object, &b->object) &&
               !memcmp(&a->checksums, &b->checksums, sizeof(a->checksums)) &&
               a->offset == b->offset && a->stored_bytes == b->stored_bytes &&
               a->encoding == b->encoding && a->encoding_bytes == b->encoding_bytes &&
               (!a->encoding_bytes ||
                !memcmp(a->encoding_table, b->encoding_table, a->encoding_bytes));
}
