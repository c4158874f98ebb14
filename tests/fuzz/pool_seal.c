// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "proto/layout.h"
#include "storage/bundle.h"
#include "storage/segment.h"
#include "tests/fuzz/pool_seal.h"

#define SEAL_AT 16u

void pool_seal(uint8_t *bytes, size_t length)
{
        uint64_t checksum;

        if (length < SEAL_AT + sizeof(checksum))
                return;
        checksum = segment_checksum(bytes, length, SEAL_AT);
        memcpy(bytes + SEAL_AT, &checksum, sizeof(checksum));
}

size_t pool_seal_part(uint8_t *record, size_t length, uint64_t *offset)
{
        struct checksum_list list = {0};
        struct bundle_part_head head;

        if (length < sizeof(head))
                return 0;
        memcpy(&head, record, sizeof(head));
        if (offset) {
                head.offset = *offset;
                *offset += head.stored_bytes;
                memcpy(record, &head, sizeof(head));
        }
        if (head.record_bytes < sizeof(head) || head.record_bytes > length)
                return 0;
        list.raw_bytes = head.raw_bytes;
        list.piece_bytes = head.piece_bytes;
        list.n_pieces = head.n_pieces;
        if (head.n_pieces && head.n_pieces <= CHECKSUM_PIECES_MAX &&
            head.n_pieces * sizeof(uint64_t) <= head.record_bytes - sizeof(head)) {
                memcpy(list.pieces, record + sizeof(head), head.n_pieces * sizeof(uint64_t));
                head.checksum_total = checksum_total(&list, &head.key);
                memcpy(record, &head, sizeof(head));
        }
        head.checksum = segment_checksum(record, head.record_bytes,
                                         offsetof(struct bundle_part_head, checksum));
        memcpy(record, &head, sizeof(head));
        return head.record_bytes;
}

static void check_inside(const void *at, size_t n, const uint8_t *bytes, size_t length)
{
        REQUIRE((const uint8_t *)at >= bytes && n <= length &&
                (const uint8_t *)at <= bytes + length - n);
}

void pool_check_part(const struct bundle_part *part, const uint8_t *bytes, size_t length)
{
        size_t again_bytes = bundle_part_bytes(part), used = 0;
        struct bundle_part again;
        uint8_t *record = malloc(again_bytes);

        REQUIRE(record);
        REQUIRE(part->object.raw_bytes && part->object.raw_bytes <= LAYOUT_OBJECT_MAX);
        REQUIRE(part->stored_bytes && part->stored_bytes <= part->object.raw_bytes);
        REQUIRE(part->offset + part->stored_bytes <= BUNDLE_BYTES_MAX);
        REQUIRE(part->encoding || part->stored_bytes == part->object.raw_bytes);
        REQUIRE(part->object.key.group < LAYOUT_GROUPS_MAX);
        REQUIRE(checksum_list_is_sane(&part->checksums));
        if (part->object.n_covers)
                check_inside(part->object.covers, part->object.n_covers * sizeof(struct digest),
                             bytes, length);
        if (part->encoding_bytes)
                check_inside(part->encoding_table, part->encoding_bytes, bytes, length);
        bundle_part_encode(record, part);
        REQUIRE(!bundle_part_decode(&again, record, again_bytes, &used, NULL));
        REQUIRE(used == again_bytes);
        free(record);
}
