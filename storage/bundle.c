// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <string.h>

#include "proto/layout.h"
#include "storage/bundle.h"
#include "storage/pool_name.h"
#include "storage/segment.h"

#define KIND "bundle"

void bundle_name(char ret_name[POOL_NAME_MAX], const struct bundle_id *id)
{
        pool_name_number(ret_name, KIND, id->node, id->number);
}

bool bundle_name_parse(const char *name, struct bundle_id *ret_id)
{
        return pool_name_parse_number(name, KIND, ret_id->node, &ret_id->number);
}

static uint64_t record_bytes(uint32_t n_pieces, uint32_t n_covers, uint32_t table_bytes)
{
        uint64_t bytes = sizeof(struct bundle_part_head) + (uint64_t)n_pieces * sizeof(uint64_t) +
                         (uint64_t)n_covers * sizeof(struct digest) + table_bytes;

        return (bytes + 7) & ~UINT64_C(7);
}

size_t bundle_part_bytes(const struct bundle_part *part)
{
        return record_bytes(part->checksums.n_pieces, part->object.n_covers, part->encoding_bytes);
}

static struct bundle_part_head head_of(const struct bundle_part *part)
{
        const struct tier_object *object = &part->object;
        struct bundle_part_head head = {
                .record_bytes = (uint32_t)bundle_part_bytes(part),
                .flags = (object->parent_unknown ? SEGMENT_PARENT_UNKNOWN : 0) |
                         (object->croppable ? SEGMENT_CROPPABLE : 0),
                .key = object->key,
                .parent = object->parent,
                .generation = object->generation,
                .raw_bytes = object->raw_bytes,
                .stored_bytes = part->stored_bytes,
                .offset = part->offset,
                .committed_ns = object->committed_ns,
                .checksum_total = part->checksums.total,
                .boundary_tokens = object->boundary_tokens,
                .cell = object->cell,
                .piece_bytes = part->checksums.piece_bytes,
                .n_pieces = part->checksums.n_pieces,
                .n_covers = object->n_covers,
                .encoding = part->encoding,
                .encoding_bytes = part->encoding_bytes,
        };

        memcpy(head.writer_boot_id, object->writer_boot_id, sizeof(head.writer_boot_id));
        return head;
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t length)
{
        if (length)
                memcpy(at, bytes, length);
        return at + length;
}

void bundle_part_encode(void *record, const struct bundle_part *part)
{
        struct bundle_part_head head = head_of(part);
        uint8_t *start = record, *end = start + head.record_bytes, *at;

        assert(part->checksums.n_pieces <= CHECKSUM_PIECES_MAX);
        assert(part->object.n_covers <= TIER_COVERS_MAX);
        assert(part->encoding_bytes <= BUNDLE_TABLE_MAX);
        at = put_bytes(start, &head, sizeof(head));
        at = put_bytes(at, part->checksums.pieces, head.n_pieces * sizeof(uint64_t));
        at = put_bytes(at, part->object.covers, head.n_covers * sizeof(struct digest));
        at = put_bytes(at, part->encoding_table, head.encoding_bytes);
        memset(at, 0, (size_t)(end - at));
        head.checksum = segment_checksum(start, head.record_bytes,
                                         offsetof(struct bundle_part_head, checksum));
        memcpy(start, &head, sizeof(head));
}

/* Does the record end where what it lists ends? Before this nothing behind the head is read. */
static bool record_length_is_sane(const struct bundle_part_head *head, size_t length)
{
        return head->n_pieces && head->n_pieces <= CHECKSUM_PIECES_MAX &&
               head->n_covers <= TIER_COVERS_MAX && head->encoding_bytes <= BUNDLE_TABLE_MAX &&
               head->record_bytes <= length &&
               head->record_bytes ==
                       record_bytes(head->n_pieces, head->n_covers, head->encoding_bytes);
}

static bool lengths_are_sane(const struct bundle_part_head *head)
{
        if (!head->raw_bytes || head->raw_bytes > LAYOUT_OBJECT_MAX || !head->stored_bytes ||
            head->stored_bytes > BUNDLE_BYTES_MAX || head->stored_bytes > head->raw_bytes)
                return false;
        if (head->offset < sizeof(struct bundle_head) + sizeof(struct bundle_part_head) ||
            head->offset > BUNDLE_BYTES_MAX - head->stored_bytes)
                return false;
        return head->encoding || (head->raw_bytes == head->stored_bytes && !head->encoding_bytes);
}

static const char *wrong_field(const struct bundle_part_head *head, const uint8_t *record,
                               const struct checksum_list *checksums)
{
        size_t listed = sizeof(*head) + head->n_pieces * sizeof(uint64_t) +
                        head->n_covers * sizeof(struct digest) + head->encoding_bytes;

        if (head->flags & ~(uint32_t)SEGMENT_FLAGS_ALL)
                return "flag";
        if (head->key.group >= LAYOUT_GROUPS_MAX || head->key.shard >= LAYOUT_SHARDS_MAX ||
            head->cell >= LAYOUT_CELLS_MAX)
                return "group or shard";
        if (!lengths_are_sane(head))
                return "length or offset";
        if (!checksum_list_is_sane(checksums) ||
            checksums->total != checksum_total(checksums, &head->key))
                return "piece list";
        if (head->reserved || head->reserved2 ||
            !segment_is_zero(record + listed, head->record_bytes - listed))
                return "reserved byte";
        return NULL;
}

static void fill_object(struct tier_object *object, const struct bundle_part_head *head,
                        const void *covers)
{
        *object = (struct tier_object){
                .key = head->key,
                .parent = head->parent,
                .parent_unknown = head->flags & SEGMENT_PARENT_UNKNOWN,
                .croppable = head->flags & SEGMENT_CROPPABLE,
                .boundary_tokens = head->boundary_tokens,
                .cell = head->cell,
                .generation = head->generation,
                .raw_bytes = head->raw_bytes,
                .committed_ns = head->committed_ns,
                .covers = head->n_covers ? covers : NULL,
                .n_covers = head->n_covers,
        };
        memcpy(object->writer_boot_id, head->writer_boot_id, sizeof(object->writer_boot_id));
}

/* Of a record whose length is sane. */
static void fill_part(struct bundle_part *part, const struct bundle_part_head *head,
                      const uint8_t *record)
{
        const uint8_t *pieces = record + sizeof(*head);
        const uint8_t *covers = pieces + head->n_pieces * sizeof(uint64_t);
        const uint8_t *table = covers + head->n_covers * sizeof(struct digest);

        memset(part, 0, sizeof(*part));
        fill_object(&part->object, head, covers);
        part->checksums.total = head->checksum_total;
        part->checksums.raw_bytes = head->raw_bytes;
        part->checksums.piece_bytes = head->piece_bytes;
        part->checksums.n_pieces = head->n_pieces;
        memcpy(part->checksums.pieces, pieces, head->n_pieces * sizeof(uint64_t));
        part->offset = head->offset;
        part->stored_bytes = head->stored_bytes;
        part->encoding = head->encoding;
        part->encoding_bytes = head->encoding_bytes;
        part->encoding_table = head->encoding_bytes ? table : NULL;
}

int bundle_part_decode(struct bundle_part *ret_part, const void *record, size_t length,
                       size_t *ret_bytes, struct why *why)
{
        struct bundle_part_head head;
        struct bundle_part part;
        const char *wrong;

        if (length < sizeof(head)) {
                why_set(why, "a part's record is cut short");
                return BUNDLE_E_DAMAGED;
        }
        memcpy(&head, record, sizeof(head));
        if (!record_length_is_sane(&head, length)) {
                why_set(why, "a part's record has an impossible length");
                return BUNDLE_E_DAMAGED;
        }
        if (head.checksum != segment_checksum(record, head.record_bytes,
                                              offsetof(struct bundle_part_head, checksum))) {
                why_set(why, "the checksum of a part's record does not match");
                return BUNDLE_E_DAMAGED;
        }
        fill_part(&part, &head, record);
        wrong = wrong_field(&head, record, &part.checksums);
        if (wrong) {
                why_set(why, "a part's record has an impossible %s", wrong);
                return BUNDLE_E_DAMAGED;
        }
        *ret_part = part;
        *ret_bytes = head.record_bytes;
        return 0;
}

size_t bundle_header_bytes(const struct bundle_part *parts, uint32_t n_parts)
{
        size_t bytes = sizeof(struct bundle_head);

        for (uint32_t i = 0; i < n_parts; i++)
                bytes += bundle_part_bytes(&parts[i]);
        return bytes;
}

uint64_t bundle_place(struct bundle_part *parts, uint32_t n_parts)
{
        uint64_t offset = bundle_header_bytes(parts, n_parts);

        for (uint32_t i = 0; i < n_parts; i++) {
                parts[i].offset = offset;
                offset += parts[i].stored_bytes;
        }
        return offset;
}

void bundle_header_encode(void *header, const struct bundle_id *id, const struct bundle_part *parts,
                          uint32_t n_parts)
{
        struct bundle_head head = {
                .version = BUNDLE_VERSION,
                .header_bytes = (uint32_t)bundle_header_bytes(parts, n_parts),
                .number = id->number,
                .n_parts = n_parts,
        };
        uint8_t *at = (uint8_t *)header + sizeof(head);

        assert(n_parts && n_parts <= BUNDLE_PARTS_MAX && head.header_bytes <= BUNDLE_HEADER_MAX);
        memcpy(head.magic, BUNDLE_MAGIC, sizeof(head.magic));
        memcpy(head.node, id->node, sizeof(head.node));
        for (uint32_t i = 0; i < n_parts; i++) {
                bundle_part_encode(at, &parts[i]);
                at += bundle_part_bytes(&parts[i]);
        }
        memcpy(header, &head, sizeof(head));
        head.checksum =
                segment_checksum(header, head.header_bytes, offsetof(struct bundle_head, checksum));
        memcpy(header, &head, sizeof(head));
}
