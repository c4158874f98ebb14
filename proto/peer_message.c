// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <string.h>

#include "proto/checksum.h"
#include "proto/layout.h"
#include "proto/peer_message.h"
#include "proto/status.h"

struct check {
        const uint8_t *packet;
        const struct peer_header *header;
        struct why *why;
        uint32_t offset; /* first byte that is not yet accounted for */
};

#define invalid(check, ...) (why_set((check)->why, __VA_ARGS__), PEER_MESSAGE_E_INVALID)

static int take(struct check *check, const char *what, uint32_t count, uint32_t bytes)
{
        uint64_t need = (uint64_t)count * bytes;

        if (need > check->header->length - check->offset)
                return invalid(check, "%u %s need %llu bytes, %u are left of %u", count, what,
                               (unsigned long long)need, check->header->length - check->offset,
                               check->header->length);
        check->offset += (uint32_t)need;
        return 0;
}

static int check_ask(struct check *check)
{
        uint32_t n_cells = 0;
        int r = take(check, "fixed part", 1, sizeof(struct peer_ask) - sizeof(*check->header));

        for (uint32_t i = 0; !r && i < check->header->n_items; i++) {
                const struct peer_boundary *boundary =
                        (const void *)(check->packet + check->offset);

                r = take(check, "boundaries", 1, sizeof(*boundary));
                if (r)
                        return r;
                if (boundary->reserved)
                        return invalid(check, "boundary %u: reserved is not 0", i);
                if (!boundary->n_cells || boundary->n_cells > PEER_CELLS_MAX - n_cells)
                        return invalid(check, "boundary %u: n_cells is %u, expected 1 to %u in all",
                                       i, boundary->n_cells, PEER_CELLS_MAX);
                n_cells += boundary->n_cells;
                r = take(check, "cells", boundary->n_cells, sizeof(struct peer_cell));
        }
        if (!r && !n_cells)
                return invalid(check, "n_items is 0, expected a boundary");
        return r;
}

static int check_places(struct check *check, uint32_t i, const struct peer_offer_item *item,
                        const struct peer_place *places)
{
        uint64_t sum = 0;

        for (uint32_t j = 0; j < item->n_places; j++) {
                if (places[j].reserved)
                        return invalid(check, "offer %u place %u: reserved is not 0", i, j);
                if (!places[j].length || places[j].length > LAYOUT_OBJECT_MAX ||
                    places[j].address + places[j].length < places[j].address)
                        return invalid(check, "offer %u place %u: %llu bytes at 0x%llx", i, j,
                                       (unsigned long long)places[j].length,
                                       (unsigned long long)places[j].address);
                sum += places[j].length;
        }
        if (sum != item->bytes)
                return invalid(check, "offer %u: places have %llu bytes, expected %llu", i,
                               (unsigned long long)sum, (unsigned long long)item->bytes);
        return 0;
}

static int check_offered(struct check *check, uint32_t i, const struct peer_offer_item *item)
{
        if (item->flags & ~(PEER_OFFER_PARENT_UNKNOWN | PEER_OFFER_CROPPABLE))
                return invalid(check, "offer %u: unknown flags 0x%x", i, item->flags);
        if (!item->lease || !item->bytes || item->bytes > LAYOUT_OBJECT_MAX)
                return invalid(check, "offer %u: lease %llu on %llu bytes", i,
                               (unsigned long long)item->lease, (unsigned long long)item->bytes);
        if (!item->n_places || item->n_places > PEER_PLACES_MAX)
                return invalid(check, "offer %u: n_places is %u, expected 1 to %u", i,
                               item->n_places, PEER_PLACES_MAX);
        if (item->n_pieces != checksum_n_pieces(item->bytes))
                return invalid(check, "offer %u: n_pieces is %u, expected %u", i, item->n_pieces,
                               checksum_n_pieces(item->bytes));
        if (item->n_covers > WIRE_COVERS_MAX ||
            (item->n_covers && !(item->flags & PEER_OFFER_CROPPABLE)))
                return invalid(check, "offer %u: n_covers is %u", i, item->n_covers);
        return 0;
}

bool peer_status_is_final(uint32_t status)
{
        switch (status) {
        case KVT_WIRE_OK:
        case KVT_WIRE_MISS:
        case KVT_WIRE_BUSY:
        case KVT_WIRE_TOO_LARGE:
        case KVT_WIRE_TIMEOUT:
        case KVT_WIRE_CANCELLED:
        case KVT_WIRE_UNSUPPORTED:
        case KVT_WIRE_CORRUPT:
        case KVT_WIRE_IO_ERROR:
        case KVT_WIRE_NO_MEMORY:
        case KVT_WIRE_DRAINING:
                return true;
        default:
                return false;
        }
}

static int check_offer(struct check *check)
{
        static const struct peer_offer_item zeros;
        int r = 0;

        for (uint32_t i = 0; !r && i < check->header->n_items; i++) {
                const struct peer_offer_item *item = (const void *)(check->packet + check->offset);
                const struct peer_place *places = (const void *)(item + 1);

                r = take(check, "offers", 1, sizeof(*item));
                if (r)
                        return r;
                if (item->index >= PEER_CELLS_MAX || !peer_status_is_final(item->status) ||
                    item->reserved)
                        return invalid(check, "offer %u: index %u, status %u, reserved %u", i,
                                       item->index, item->status, item->reserved);
                if (item->status) {
                        if (memcmp(&item->lease, &zeros.lease,
                                   sizeof(*item) - offsetof(struct peer_offer_item, lease)) != 0)
                                r = invalid(check, "offer %u: it is refused, and is not empty", i);
                        continue;
                }
                r = check_offered(check, i, item);
                if (!r)
                        r = take(check, "places", item->n_places, sizeof(*places));
                if (!r)
                        r = check_places(check, i, item, places);
                if (!r)
                        r = take(check, "pieces", item->n_pieces, sizeof(uint64_t));
                if (!r)
                        r = take(check, "covers", item->n_covers, sizeof(struct digest));
        }
        return r;
}

static int check_find(struct check *check)
{
        int r = take(check, "fixed part", 1, sizeof(struct peer_find) - sizeof(*check->header));

        if (!r && !check->header->n_items)
                return invalid(check, "n_items is 0, expected a digest");
        return r ? r : take(check, "digests", check->header->n_items, sizeof(struct digest));
}

/* No shard beyond the last. */
static bool are_shards(const uint64_t shards[LAYOUT_SPAN_WORDS], uint32_t n_shards)
{
        for (uint32_t i = 0; i < LAYOUT_SPAN_WORDS; i++) {
                uint32_t n = n_shards > 64 * i ? n_shards - 64 * i : 0;

                if (n < 64 && shards[i] >> n)
                        return false;
        }
        return true;
}

static int check_found(struct check *check)
{
        const struct peer_found *found = (const void *)check->packet;
        const struct peer_found_bits *bits = (const void *)(found + 1);
        uint32_t n = check->header->n_items;
        int r = take(check, "fixed part", 1, sizeof(*found) - sizeof(*check->header));

        if (r)
                return r;
        if (found->n_banks > PEER_BANKS_MAX || found->n_shards > LAYOUT_SHARDS_MAX)
                return invalid(check, "n_banks is %u, n_shards %u, expected at most %u, %u",
                               found->n_banks, found->n_shards, PEER_BANKS_MAX, LAYOUT_SHARDS_MAX);
        if (!found->n_shards != !n || !found->n_banks != !n)
                return invalid(check, "%u items of %u banks for %u shards", n, found->n_banks,
                               found->n_shards);
        if (!are_shards(found->shards, found->n_shards))
                return invalid(check, "shards beyond the last of %u", found->n_shards);
        if (n > WIRE_MESSAGE_MAX)
                return invalid(check, "n_items is %u", n);
        r = take(check, "records", n * found->n_banks, sizeof(*bits));
        for (uint32_t i = 0; !r && i < n * found->n_banks; i++)
                if (bits[i].resident & ~bits[i].present)
                        r = invalid(check, "record %u: resident, and not present", i);
        return r;
}

static int check_kind(struct check *check)
{
        switch (check->header->kind) {
        case PEER_ASK:
                return check_ask(check);
        case PEER_OFFER:
                return check_offer(check);
        case PEER_RELEASE:
                return take(check, "leases", check->header->n_items, sizeof(uint64_t));
        case PEER_CANCEL:
                return check->header->n_items ? invalid(check, "n_items is not 0") : 0;
        case PEER_FIND:
                return check_find(check);
        case PEER_FOUND:
                return check_found(check);
        default:
                return invalid(check, "kind is %u, expected 1 to 6", check->header->kind);
        }
}

int peer_message_check(const void *packet, size_t length, struct why *why)
{
        struct check check = {.packet = packet, .header = packet, .why = why};
        bool has_request;
        int r;

        if (length < sizeof(*check.header) || length > WIRE_MESSAGE_MAX)
                return invalid(&check, "a message of %zu bytes, expected %zu to %u", length,
                               sizeof(*check.header), WIRE_MESSAGE_MAX);
        if (check.header->length != length)
                return invalid(&check, "length is %u, expected the message's %zu",
                               check.header->length, length);
        if (check.header->reserved || check.header->reserved2)
                return invalid(&check, "reserved is not 0");
        has_request = check.header->kind != PEER_RELEASE;
        if (!check.header->request == has_request)
                return invalid(&check, "request is %llu",
                               (unsigned long long)check.header->request);
        check.offset = sizeof(*check.header);
        r = check_kind(&check);
        if (!r && check.offset != length)
                r = invalid(&check, "length is %zu, expected %u", length, check.offset);
        return r;
}

/* ---- building ---- */

static struct peer_header *header_of(const struct peer_builder *builder)
{
        return (struct peer_header *)builder->buffer;
}

void peer_builder_init(struct peer_builder *builder, void *buffer, uint16_t kind, uint64_t request,
                       const void *fixed, uint32_t fixed_bytes)
{
        assert(fixed_bytes >= sizeof(struct peer_header));
        *builder = (struct peer_builder){.buffer = buffer, .length = fixed_bytes};
        memcpy(buffer, fixed, fixed_bytes);
        *header_of(builder) =
                (struct peer_header){.kind = kind, .length = fixed_bytes, .request = request};
}

static bool has_room(const struct peer_builder *builder, uint64_t bytes)
{
        return bytes <= WIRE_MESSAGE_MAX - builder->length;
}

static void append(struct peer_builder *builder, const void *bytes, size_t length)
{
        if (length)
                memcpy(builder->buffer + builder->length, bytes, length);
        builder->length += (uint32_t)length;
        header_of(builder)->length = builder->length;
}

int peer_add_boundary(struct peer_builder *builder, const struct digest *boundary,
                      const struct peer_cell *cells, uint32_t n_cells)
{
        struct peer_boundary record = {.boundary = *boundary, .n_cells = n_cells};

        if (!has_room(builder, sizeof(record) + (uint64_t)n_cells * sizeof(*cells)))
                return PEER_MESSAGE_E_FULL;
        append(builder, &record, sizeof(record));
        append(builder, cells, n_cells * sizeof(*cells));
        header_of(builder)->n_items++;
        return 0;
}

int peer_add_offer(struct peer_builder *builder, const struct peer_offer_item *item,
                   const struct peer_place *places, const uint64_t *pieces,
                   const struct digest *covers)
{
        size_t bytes = sizeof(*item) + item->n_places * sizeof(*places) +
                       item->n_pieces * sizeof(*pieces) + item->n_covers * sizeof(*covers);

        if (!has_room(builder, bytes))
                return PEER_MESSAGE_E_FULL;
        append(builder, item, sizeof(*item));
        append(builder, places, item->n_places * sizeof(*places));
        append(builder, pieces, item->n_pieces * sizeof(*pieces));
        append(builder, covers, item->n_covers * sizeof(*covers));
        header_of(builder)->n_items++;
        return 0;
}

static int add_item(struct peer_builder *builder, const void *item, size_t bytes)
{
        if (!has_room(builder, bytes))
                return PEER_MESSAGE_E_FULL;
        append(builder, item, bytes);
        header_of(builder)->n_items++;
        return 0;
}

int peer_add_lease(struct peer_builder *builder, uint64_t lease)
{
        return add_item(builder, &lease, sizeof(lease));
}

int peer_add_digest(struct peer_builder *builder, const struct digest *digest)
{
        return add_item(builder, digest, sizeof(*digest));
}

int peer_add_found(struct peer_builder *builder, const struct peer_found_bits *bits,
                   uint32_t n_banks)
{
        return add_item(builder, bits, n_banks * sizeof(*bits));
}

uint32_t peer_find_max(uint32_t n_banks)
{
        uint32_t asked = (WIRE_MESSAGE_MAX - (uint32_t)sizeof(struct peer_find)) /
                         (uint32_t)sizeof(struct digest);
        uint32_t found = (WIRE_MESSAGE_MAX - (uint32_t)sizeof(struct peer_found)) /
                         (n_banks * (uint32_t)sizeof(struct peer_found_bits));

        return asked < found ? asked : found;
}

/* ---- reading ---- */

void peer_cursor_init(struct peer_cursor *cursor, const void *packet)
{
        const struct peer_header *header = packet;

        *cursor = (struct peer_cursor){
                .packet = packet,
                .offset = header->kind == PEER_ASK ? sizeof(struct peer_ask) : sizeof(*header),
                .left = header->n_items,
        };
}

static const void *next(struct peer_cursor *cursor, size_t bytes)
{
        const void *record = cursor->packet + cursor->offset;

        cursor->offset += (uint32_t)bytes;
        return record;
}

int peer_next_boundary(struct peer_cursor *cursor, const struct peer_boundary **ret_boundary,
                       const struct peer_cell **ret_cells)
{
        if (!cursor->left)
                return PEER_MESSAGE_E_END;
        cursor->left--;
        *ret_boundary = next(cursor, sizeof(**ret_boundary));
        *ret_cells = next(cursor, (*ret_boundary)->n_cells * sizeof(**ret_cells));
        return 0;
}

int peer_next_offer(struct peer_cursor *cursor, const struct peer_offer_item **ret_item,
                    const struct peer_place **ret_places, const uint64_t **ret_pieces,
                    const struct digest **ret_covers)
{
        const struct peer_offer_item *item;

        if (!cursor->left)
                return PEER_MESSAGE_E_END;
        cursor->left--;
        *ret_item = item = next(cursor, sizeof(*item));
        *ret_places = next(cursor, item->n_places * sizeof(**ret_places));
        *ret_pieces = next(cursor, item->n_pieces * sizeof(**ret_pieces));
        *ret_covers = next(cursor, item->n_covers * sizeof(**ret_covers));
        return 0;
}

int peer_next_lease(struct peer_cursor *cursor, uint64_t *ret_lease)
{
        if (!cursor->left)
                return PEER_MESSAGE_E_END;
        cursor->left--;
        memcpy(ret_lease, next(cursor, sizeof(*ret_lease)), sizeof(*ret_lease));
        return 0;
}

const struct digest *peer_find_digests(const struct peer_find *find)
{
        return (const void *)(find + 1);
}

const struct peer_found_bits *peer_found_bits(const struct peer_found *found)
{
        return (const void *)(found + 1);
}
