// SPDX-License-Identifier: Apache-2.0
/*
 * Any object header. The first byte chooses whether it is sealed first, so that the
 * fuzzer gets behind the checksum; an accepted header has extents and pieces that can be
 * walked without further checks.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "storage/segment.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

static void check_accepted(const struct segment_header *header)
{
        struct encoding_table table;
        struct checksum_list list;
        uint64_t units = 0;

        REQUIRE(header->n_extents && header->n_extents <= SEGMENT_EXTENTS_MAX);
        for (uint32_t i = 0; i < header->n_extents; i++) {
                REQUIRE(header->extents[i].member < SEGMENT_MEMBERS_MAX);
                REQUIRE(header->extents[i].first + header->extents[i].count >
                        header->extents[i].first);
                units += header->extents[i].count;
        }
        REQUIRE(units == segment_units(header->stored_bytes));
        segment_get_checksums(header, &list);
        REQUIRE(list.n_pieces && list.n_pieces <= CHECKSUM_PIECES_MAX);
        REQUIRE((uint64_t)list.n_pieces * list.piece_bytes >= list.raw_bytes);
        if (!header->codec)
                return;
        segment_get_encoding(header, &table);
        REQUIRE(encoding_table_is_sane(&table, header->raw_bytes));
        REQUIRE(encoding_offset(&table, table.n_pieces) == header->stored_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct segment_header *header = calloc(1, sizeof(*header));
        struct why why = {""};
        int r;

        REQUIRE(header);
        if (size > 1)
                memcpy(header, data + 1, size - 1 < sizeof(*header) ? size - 1 : sizeof(*header));
        if (size && data[0] & 1)
                segment_seal(header);
        r = segment_check(header, &why);
        REQUIRE(r >= 0 && r <= SEGMENT_E_NEWER);
        if (r)
                REQUIRE(*why.text);
        else
                check_accepted(header);
        free(header);
        return 0;
}
