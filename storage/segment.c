// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>

#include "storage/segment.h"

/* Over a copy, since the header may lie in memory that is still to be written. */
static uint64_t header_checksum(const struct segment_header *header)
{
        const size_t at = offsetof(struct segment_header, checksum);
        const uint8_t *bytes = (const uint8_t *)header;
        uint8_t block[SEGMENT_HEADER_BYTES];

        memcpy(block, bytes, sizeof(block));
        memset(block + at, 0, sizeof(header->checksum));
        return XXH3_64bits(block, sizeof(block));
}

void segment_seal(struct segment_header *header)
{
        memcpy(header->magic, SEGMENT_MAGIC, sizeof(header->magic));
        header->version = SEGMENT_VERSION;
        header->header_bytes = SEGMENT_HEADER_BYTES;
        header->own_offset = header->extents[0].first * SEGMENT_UNIT_BYTES;
        header->own_member = header->extents[0].member;
        header->checksum = header_checksum(header);
}

void segment_set_checksums(struct segment_header *header, const struct checksum_list *checksums)
{
        header->piece_bytes = checksums->piece_bytes;
        header->n_pieces = checksums->n_pieces;
        header->checksum_total = checksums->total;
        memset(header->pieces, 0, sizeof(header->pieces));
        memcpy(header->pieces, checksums->pieces,
               checksums->n_pieces * sizeof(checksums->pieces[0]));
}

void segment_get_checksums(const struct segment_header *header, struct checksum_list *ret_checksums)
{
        ret_checksums->total = header->checksum_total;
        ret_checksums->raw_bytes = header->raw_bytes;
        ret_checksums->piece_bytes = header->piece_bytes;
        ret_checksums->n_pieces = header->n_pieces;
        memcpy(ret_checksums->pieces, header->pieces, sizeof(ret_checksums->pieces));
}

void segment_set_encoding(struct segment_header *header, const struct encoding_table *table)
{
        header->codec = encoding_number(table->encoding);
        header->stored_bytes = table->stored_bytes;
        memcpy(header->stored_checksums, table->checksums, sizeof(header->stored_checksums));
        memcpy(header->stored_lengths, table->lengths, sizeof(header->stored_lengths));
}

void segment_get_encoding(const struct segment_header *header, struct encoding_table *ret_table)
{
        ret_table->encoding = encoding_from_number((uint16_t)header->codec);
        ret_table->n_pieces = header->n_pieces;
        ret_table->stored_bytes = header->stored_bytes;
        memcpy(ret_table->checksums, header->stored_checksums, sizeof(ret_table->checksums));
        memcpy(ret_table->lengths, header->stored_lengths, sizeof(ret_table->lengths));
}

bool segment_is_zero(const void *bytes, size_t length)
{
        const uint8_t *first = bytes;

        return !length || (!first[0] && !memcmp(first, first + 1, length - 1));
}

uint64_t segment_checksum(const void *bytes, size_t length, size_t at)
{
        static const uint64_t zero;
        const uint8_t *first = bytes;
        XXH3_state_t state;

        XXH3_64bits_reset(&state);
        XXH3_64bits_update(&state, first, at);
        XXH3_64bits_update(&state, &zero, sizeof(zero));
        XXH3_64bits_update(&state, first + at + sizeof(zero), length - at - sizeof(zero));
        return XXH3_64bits_digest(&state);
}

bool segment_extents_are_sane(const struct segment_extent *extents, uint32_t n_extents,
                              uint64_t stored_bytes)
{
        uint64_t units = 0;

        if (!n_extents || n_extents > SEGMENT_EXTENTS_MAX)
                return false;
        for (uint32_t i = 0; i < n_extents; i++) {
                if (!extents[i].count || extents[i].member >= SEGMENT_MEMBERS_MAX ||
                    extents[i].first > UINT64_MAX / SEGMENT_UNIT_BYTES - extents[i].count)
                        return false;
                units += extents[i].count;
        }
        return units == segment_units(stored_bytes);
}

static bool place_is_sane(const struct segment_header *header)
{
        uint32_t n = header->n_extents;

        return segment_extents_are_sane(header->extents, n, header->stored_bytes) &&
               header->own_offset == header->extents[0].first * SEGMENT_UNIT_BYTES &&
               header->own_member == header->extents[0].member &&
               segment_is_zero(&header->extents[n],
                               (SEGMENT_EXTENTS_MAX - n) * sizeof(header->extents[0]));
}

static bool checksums_are_sane(const struct segment_header *header)
{
        struct checksum_list list;

        if (!header->n_pieces || header->n_pieces > CHECKSUM_PIECES_MAX)
                return false;
        segment_get_checksums(header, &list);
        return checksum_list_is_sane(&list) &&
               segment_is_zero(&header->pieces[header->n_pieces],
                               (CHECKSUM_PIECES_MAX - header->n_pieces) *
                                       sizeof(header->pieces[0]));
}

/* After checksums_are_sane(): n_pieces is right. */
static bool encoding_is_sane(const struct segment_header *header)
{
        uint32_t n = header->codec ? header->n_pieces : 0, left = CHECKSUM_PIECES_MAX - n;
        struct encoding_table table;

        if (!segment_is_zero(&header->stored_checksums[n],
                             left * sizeof(header->stored_checksums[0])) ||
            !segment_is_zero(&header->stored_lengths[n], left * sizeof(header->stored_lengths[0])))
                return false;
        if (!header->codec)
                return header->raw_bytes == header->stored_bytes;
        segment_get_encoding(header, &table);
        return encoding_table_is_sane(&table, header->raw_bytes);
}

static const char *wrong_field(const struct segment_header *header)
{
        if (header->header_bytes != SEGMENT_HEADER_BYTES)
                return "header length";
        if (!header->epoch || !header->claim)
                return "epoch or claim";
        if (!header->raw_bytes || !header->stored_bytes || header->stored_bytes > UINT64_MAX / 2)
                return "length";
        if (header->flags & ~(uint32_t)SEGMENT_FLAGS_ALL)
                return "flag";
        if (!place_is_sane(header))
                return "extent";
        if (!checksums_are_sane(header))
                return "piece list";
        if (!encoding_is_sane(header))
                return "stored form";
        if (!segment_is_zero(header->reserved, sizeof(header->reserved)))
                return "reserved byte";
        return NULL;
}

int segment_check(const struct segment_header *header, struct why *why)
{
        const char *wrong;

        if (memcmp(header->magic, SEGMENT_MAGIC, sizeof(header->magic))) {
                why_set(why, "not an object header");
                return SEGMENT_E_DAMAGED;
        }
        if (header->version > SEGMENT_VERSION) {
                why_set(why, "object format %u; this program knows up to %u", header->version,
                        SEGMENT_VERSION);
                return SEGMENT_E_NEWER;
        }
        if (!header->version || header->checksum != header_checksum(header)) {
                why_set(why, "header checksum does not match");
                return SEGMENT_E_DAMAGED;
        }
        if (header->refuse_flags || header->codec > UINT16_MAX ||
            !encoding_is_known(encoding_from_number((uint16_t)header->codec))) {
                why_set(why, "the object uses features that this program does not know");
                return SEGMENT_E_NEWER;
        }
        wrong = wrong_field(header);
        if (wrong) {
                why_set(why, "header has an impossible %s", wrong);
                return SEGMENT_E_DAMAGED;
        }
        return 0;
}
