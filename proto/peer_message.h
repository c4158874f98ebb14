// SPDX-License-Identifier: Apache-2.0
/*
 * Messages between daemons: how one asks another for objects, and is told where to READ them.
 * Each is a whole message of a link of service PEER, at most WIRE_MESSAGE_MAX bytes. The side
 * that connected asks, the other serves; whoever wants to ask in turn opens a connection of
 * its own, so that a direction fails for itself.
 *
 *   ASK      reader: a layout, boundaries, and of each the cells that are wanted
 *   OFFER    server: what became of each cell, in any order, each exactly once. OK: its bytes
 *            are leased, and open for READ at its places until RELEASE or the connection's end
 *   RELEASE  reader: has read them, or does not want them
 *   CANCEL   reader: the server answers CANCELLED for what it has not answered yet
 *   FIND     reader: which shards of this engine are there, and of each boundary which cells?
 *   FOUND    server: that, at once
 *
 * Cells count from 0 in the order in which an ASK names them. Little-endian, `reserved` is zero
 * and checked. The domain is the connection's: its secret decided it.
 *
 * Pure functions, no allocation, any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"
#include "proto/layout_span.h"
#include "proto/wire.h"

#define PEER_CELLS_MAX  16384u /* of one ASK */
#define PEER_PLACES_MAX 64u    /* of one object: extents of a host copy */
#define PEER_BANKS_MAX  WIRE_BANKS_MAX

enum {
        PEER_MESSAGE_E_INVALID = 1, /* the reason is in `why`: end the connection */
        PEER_MESSAGE_E_FULL,        /* the record needs a new message */
        PEER_MESSAGE_E_END,         /* no further record */
};

enum peer_kind {
        PEER_ASK = 1,
        PEER_OFFER = 2,
        PEER_RELEASE = 3,
        PEER_CANCEL = 4,
        PEER_FIND = 5,
        PEER_FOUND = 6,
};

struct peer_header {
        uint16_t kind;
        uint16_t reserved;
        uint32_t length;  /* of the message */
        uint32_t n_items; /* boundaries, offers, leases or digests */
        uint32_t reserved2;
        uint64_t request; /* of the ASK or FIND, which the reader numbers; RELEASE: 0 */
};
_Static_assert(sizeof(struct peer_header) == 24, "peer_header");

struct peer_ask {
        struct peer_header header;
        uint64_t timeout_ns; /* how long to wait for what does not exist yet; 0: not */
        struct digest layout;
};
_Static_assert(sizeof(struct peer_ask) == 64, "peer_ask");

/* Followed at once by its cells. */
struct peer_boundary {
        struct digest boundary;
        uint32_t n_cells;
        uint32_t reserved;
};
_Static_assert(sizeof(struct peer_boundary) == 40, "peer_boundary");

struct peer_cell {
        uint16_t group;
        uint16_t shard;
};
_Static_assert(sizeof(struct peer_cell) == 4, "peer_cell");

/* peer_offer_item.flags */
#define PEER_OFFER_PARENT_UNKNOWN (1u << 0)
#define PEER_OFFER_CROPPABLE      (1u << 1)

/* Followed at once by its places, piece checksums and covers. All but OK have zeros and none. */
struct peer_offer_item {
        uint32_t index;  /* of the cell */
        uint32_t status; /* one of peer_status_is_final() */
        uint64_t lease;
        struct digest boundary; /* the object's own: a blob serves other boundaries too */
        struct digest parent;
        uint64_t bytes;
        uint64_t committed_ns; /* wall clock, and by which run of which daemon */
        uint8_t writer_boot_id[16];
        uint64_t total; /* checksum over the pieces, the key and the length */
        uint32_t boundary_tokens;
        uint32_t flags;
        uint32_t n_places;
        uint32_t n_pieces;
        uint32_t n_covers;
        uint32_t reserved;
};
_Static_assert(sizeof(struct peer_offer_item) == 144, "peer_offer_item");
_Static_assert(offsetof(struct peer_offer_item, total) == 112, "peer_offer_item");

/* Memory of the server, as its device knows it; places add up to the object's bytes. */
struct peer_place {
        uint64_t address;
        uint64_t length;
        uint32_t key;
        uint32_t reserved;
};
_Static_assert(sizeof(struct peer_place) == 24, "peer_place");

/* RELEASE: n_items x u64 lease. CANCEL: the header alone. */

/* Followed by n_items digests of boundaries, at most peer_find_max(). */
struct peer_find {
        struct peer_header header;
        struct digest layout;
        uint8_t engine_id[16];
};
_Static_assert(sizeof(struct peer_find) == 72, "peer_find");

/*
 * Followed by n_items times n_banks records, the banks of a boundary side by side, in the order
 * of the FIND. No such engine is attached there, with that layout: zeros and no items.
 */
struct peer_found {
        struct peer_header header;
        uint32_t n_banks;
        uint32_t n_shards; /* of the group with most */
        uint64_t shards[LAYOUT_SPAN_WORDS]; /* a bit each: those that the engine has there */
};
_Static_assert(sizeof(struct peer_found) == 160, "peer_found");

/* A bit a cell: what that node can load, and what is in its host memory. */
struct peer_found_bits {
        uint64_t present;
        uint64_t resident;
};
_Static_assert(sizeof(struct peer_found_bits) == 16, "peer_found_bits");

/* Boundaries of one FIND: as many as fit it and its FOUND. */
uint32_t peer_find_max(uint32_t n_banks);

/* What an OFFER may end with: nothing that a session would take for an answer yet to come. */
bool peer_status_is_final(uint32_t status);

/* Checks a whole message, 8-byte aligned. After 0 the functions below read it without checks. */
int peer_message_check(const void *packet, size_t length, struct why *why);

/* A message that grows record by record in WIRE_MESSAGE_MAX bytes of the caller's. */
struct peer_builder {
        uint8_t *buffer; /* 8-byte aligned */
        uint32_t length; /* 0: no message has begun */
};

/* @fixed: a struct peer_header or what begins with one; its length and n_items are kept right. */
void peer_builder_init(struct peer_builder *builder, void *buffer, uint16_t kind,
                       uint64_t request, const void *fixed, uint32_t fixed_bytes);

/* Each: 0 or PEER_MESSAGE_E_FULL, which leaves the message as it was. */
int peer_add_boundary(struct peer_builder *builder, const struct digest *boundary,
                      const struct peer_cell *cells, uint32_t n_cells);
int peer_add_offer(struct peer_builder *builder, const struct peer_offer_item *item,
                   const struct peer_place *places, const uint64_t *pieces,
                   const struct digest *covers);
int peer_add_lease(struct peer_builder *builder, uint64_t lease);
int peer_add_digest(struct peer_builder *builder, const struct digest *digest);
int peer_add_found(struct peer_builder *builder, const struct peer_found_bits *bits,
                   uint32_t n_banks);

struct peer_cursor {
        const uint8_t *packet;
        uint32_t offset;
        uint32_t left;
};

void peer_cursor_init(struct peer_cursor *cursor, const void *packet);

/* Each returns 0 or PEER_MESSAGE_E_END. Pointers point into the packet. */
int peer_next_boundary(struct peer_cursor *cursor, const struct peer_boundary **ret_boundary,
                       const struct peer_cell **ret_cells);
int peer_next_offer(struct peer_cursor *cursor, const struct peer_offer_item **ret_item,
                    const struct peer_place **ret_places, const uint64_t **ret_pieces,
                    const struct digest **ret_covers);
int peer_next_lease(struct peer_cursor *cursor, uint64_t *ret_lease);

/* Of a checked FIND, and of a checked FOUND: all of them. */
const struct digest *peer_find_digests(const struct peer_find *find);
const struct peer_found_bits *peer_found_bits(const struct peer_found *found);
