// SPDX-License-Identifier: Apache-2.0
/*
 * Messages between daemons: what peer_message_check() passes is walked to its end, and building
 * it again gives the same bytes; nothing outside the packet is read.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/peer_message.h"
#include "proto/status.h"

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

static struct peer_builder builder;
static _Alignas(8) uint8_t rebuilt[WIRE_MESSAGE_MAX];

static void begin(const uint8_t *packet, uint32_t fixed_bytes)
{
        const struct peer_header *header = (const void *)packet;

        peer_builder_init(&builder, rebuilt, header->kind, header->request, packet, fixed_bytes);
}

static void walk_ask(const uint8_t *packet)
{
        const struct peer_boundary *boundary;
        const struct peer_cell *cells;
        struct peer_cursor cursor;

        begin(packet, sizeof(struct peer_ask));
        peer_cursor_init(&cursor, packet);
        while (!peer_next_boundary(&cursor, &boundary, &cells))
                REQUIRE(!peer_add_boundary(&builder, &boundary->boundary, cells,
                                           boundary->n_cells));
}

static void walk_offers(const uint8_t *packet)
{
        const struct peer_offer_item *item;
        const struct peer_place *places;
        const uint64_t *pieces;
        const struct digest *covers;
        struct peer_cursor cursor;

        begin(packet, sizeof(struct peer_header));
        peer_cursor_init(&cursor, packet);
        while (!peer_next_offer(&cursor, &item, &places, &pieces, &covers)) {
                /* These are handed on to sessions as results. */
                REQUIRE(item->status != KVT_WIRE_PENDING && item->status != KVT_WIRE_ALREADY_HAVE);
                REQUIRE(!peer_add_offer(&builder, item, places, pieces, covers));
        }
}

static void walk_leases(const uint8_t *packet)
{
        struct peer_cursor cursor;
        uint64_t lease;

        begin(packet, sizeof(struct peer_header));
        peer_cursor_init(&cursor, packet);
        while (!peer_next_lease(&cursor, &lease))
                REQUIRE(!peer_add_lease(&builder, lease));
}

static void walk_find(const uint8_t *packet)
{
        const struct peer_find *find = (const void *)packet;

        begin(packet, sizeof(*find));
        for (uint32_t i = 0; i < find->header.n_items; i++)
                REQUIRE(!peer_add_digest(&builder, &peer_find_digests(find)[i]));
}

static void walk_found(const uint8_t *packet)
{
        const struct peer_found *found = (const void *)packet;

        begin(packet, sizeof(*found));
        for (uint32_t i = 0; i < found->header.n_items; i++) {
                const struct peer_found_bits *bits = &peer_found_bits(found)[i * found->n_banks];

                /* Nothing is in host memory that is not there. */
                for (uint32_t bank = 0; bank < found->n_banks; bank++)
                        REQUIRE(!(bits[bank].resident & ~bits[bank].present));
                REQUIRE(!peer_add_found(&builder, bits, found->n_banks));
        }
}

static void walk(const uint8_t *packet)
{
        switch (((const struct peer_header *)packet)->kind) {
        case PEER_ASK:
                return walk_ask(packet);
        case PEER_OFFER:
                return walk_offers(packet);
        case PEER_RELEASE:
                return walk_leases(packet);
        case PEER_FIND:
                return walk_find(packet);
        case PEER_FOUND:
                return walk_found(packet);
        default:
                begin(packet, sizeof(struct peer_header));
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint8_t *packet = malloc(size ? size : 1);
        struct why why = {""};

        REQUIRE(packet);
        if (size)
                memcpy(packet, data, size);
        /* So that most inputs come as far as their records. */
        if (size >= sizeof(struct peer_header))
                ((struct peer_header *)packet)->length = (uint32_t)size;
        if (peer_message_check(packet, size, &why)) {
                REQUIRE(*why.text);
        } else {
                walk(packet);
                REQUIRE(builder.length == size && !memcmp(rebuilt, packet, size));
        }
        free(packet);
        return 0;
}
