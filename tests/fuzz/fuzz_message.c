// SPDX-License-Identifier: Apache-2.0
/*
 * Any packet: message_check() and the cursors never read outside it, what passes is
 * walked to its very end, and building the message again from what the cursors gave
 * yields the same bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        abort();                                                                   \
        } while (0)

static _Alignas(8) uint8_t rebuilt[WIRE_MESSAGE_MAX];
static struct message_builder builder;

static void append(const void *bytes, size_t length, uint32_t n_items)
{
        REQUIRE(!message_append(&builder, bytes, length, n_items));
}

static void begin(const void *packet, size_t fixed_bytes)
{
        message_builder_init(&builder, rebuilt, packet, fixed_bytes);
}

static void walk_reserve(const uint8_t *packet)
{
        struct message_cursor cursor;
        struct wire_reserve_item item;
        const struct digest *covers;

        begin(packet, sizeof(struct wire_batch));
        message_cursor_init(&cursor, packet);
        while (!message_next_reserve(&cursor, &item, &covers))
                append(&item, sizeof(item), 1);
        message_cursor_init(&cursor, packet);
        while (!message_next_reserve(&cursor, &item, &covers))
                append(covers, item.n_covers * sizeof(*covers), 0);
}

static void walk_commit(const uint8_t *packet)
{
        struct message_cursor cursor;
        struct wire_commit_item item;
        const uint64_t *pieces;

        begin(packet, sizeof(struct wire_batch));
        message_cursor_init(&cursor, packet);
        while (!message_next_commit(&cursor, &item, &pieces)) {
                append(&item, sizeof(item), 1);
                append(pieces, item.n_pieces * sizeof(*pieces), 0);
        }
}

static void walk_leases(const uint8_t *packet)
{
        struct message_cursor cursor;
        uint64_t lease;

        begin(packet, sizeof(struct wire_batch));
        message_cursor_init(&cursor, packet);
        while (!message_next_lease(&cursor, &lease))
                append(&lease, sizeof(lease), 1);
}

static void walk_keys(const uint8_t *packet, size_t fixed_bytes)
{
        struct message_cursor cursor;
        struct wire_key_item item;
        const struct wire_page_run *runs;

        begin(packet, fixed_bytes);
        message_cursor_init(&cursor, packet);
        while (!message_next_key(&cursor, &item, &runs)) {
                append(&item, sizeof(item), 1);
                append(runs, item.n_runs * sizeof(*runs), 0);
        }
}

static void walk_marks(const uint8_t *packet)
{
        struct message_cursor cursor;
        struct wire_mark_item item;

        begin(packet, sizeof(struct wire_batch));
        message_cursor_init(&cursor, packet);
        while (!message_next_mark(&cursor, &item))
                append(&item, sizeof(item), 1);
}

static void walk_result(const uint8_t *packet)
{
        struct message_cursor cursor;
        struct wire_result_item item;
        const struct wire_extent *extents;
        const uint64_t *pieces;

        begin(packet, sizeof(struct wire_header));
        message_cursor_init(&cursor, packet);
        while (!message_next_result(&cursor, &item, &extents, &pieces))
                REQUIRE(!message_append_result(&builder, &item, extents, pieces));
}

static void walk_attach(const uint8_t *packet)
{
        const struct wire_attach *attach = (const void *)packet;
        uint32_t n_shards = attach->header.n_items;

        begin(packet, sizeof(*attach));
        append(message_attach_shards(attach), n_shards * sizeof(uint16_t), n_shards);
        append(message_attach_layout(attach), attach->layout_bytes, 0);
}

static void walk_layout(const uint8_t *packet)
{
        const struct wire_layout *layout = (const void *)packet;

        begin(packet, sizeof(*layout));
        append(message_layout_encoding(layout), layout->layout_bytes, 0);
}

static void walk_matches(const uint8_t *packet)
{
        const struct wire_matches *matches = (const void *)packet;
        uint32_t n = matches->header.n_items;

        begin(packet, sizeof(*matches));
        append(message_match_digests(matches), n * sizeof(struct digest), n);
}

static void walk_text(const uint8_t *packet)
{
        const struct wire_header *header = (const void *)packet;

        begin(packet, sizeof(*header));
        append(message_text(header), header->n_items, header->n_items);
}

static void walk_moves(const uint8_t *packet)
{
        struct message_cursor cursor;
        struct wire_move_item item;

        begin(packet, sizeof(struct wire_batch));
        message_cursor_init(&cursor, packet);
        while (!message_next_move(&cursor, &item))
                append(&item, sizeof(item), 1);
}

static void walk_find(const uint8_t *packet)
{
        const struct wire_batch *find = (const void *)packet;
        uint32_t n = find->header.n_items;

        begin(packet, sizeof(*find));
        append(message_find_digests(find), n * sizeof(struct digest), n);
}

static void walk_found(const uint8_t *packet)
{
        const struct wire_found *found = (const void *)packet;
        uint32_t n = found->header.n_items;

        begin(packet, sizeof(*found));
        append(message_found_bits(found), n * found->n_banks * sizeof(struct wire_found_bits), n);
}

static void walk(const uint8_t *packet, size_t size)
{
        switch (((const struct wire_header *)packet)->kind) {
        case WIRE_RESERVE:
                return walk_reserve(packet);
        case WIRE_COMMIT:
                return walk_commit(packet);
        case WIRE_ABORT:
        case WIRE_RELEASE:
                return walk_leases(packet);
        case WIRE_ACQUIRE:
                return walk_keys(packet, sizeof(struct wire_batch));
        case WIRE_ADOPT:
                return walk_keys(packet, sizeof(struct wire_adopt));
        case WIRE_PREFETCH:
                return walk_keys(packet, sizeof(struct wire_prefetch));
        case WIRE_PUT:
        case WIRE_FETCH:
                return walk_moves(packet);
        case WIRE_FIND:
                return walk_find(packet);
        case WIRE_FOUND:
                return walk_found(packet);
        case WIRE_MARK:
                return walk_marks(packet);
        case WIRE_RESULT:
                return walk_result(packet);
        case WIRE_ATTACH:
                return walk_attach(packet);
        case WIRE_LAYOUT:
                return walk_layout(packet);
        case WIRE_MATCHES:
                return walk_matches(packet);
        case WIRE_ADMIN:
        case WIRE_ADMIN_REPLY:
                return walk_text(packet);
        default:
                begin(packet, size);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint8_t *packet = malloc(size ? size : 1);
        struct why why = {""};
        int r;

        REQUIRE(packet);
        if (size)
                memcpy(packet, data, size);
        r = message_check(packet, size, &why);
        if (r == MESSAGE_E_INVALID) {
                REQUIRE(*why.text);
        } else {
                const struct wire_header *header = (const void *)packet;

                REQUIRE(!r || (r == MESSAGE_E_UNSUPPORTED && *why.text));
                if (strcmp(message_kind_name(header->kind), "unknown")) {
                        walk(packet, size);
                        REQUIRE(builder.length == size && !memcmp(rebuilt, packet, size));
                        REQUIRE(message_check(rebuilt, size, NULL) == r);
                }
        }
        free(packet);
        return 0;
}
