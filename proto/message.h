// SPDX-License-Identifier: Apache-2.0
/*
 * Encoding, decoding and validation of control messages. Everything a peer sends passes
 * message_check() and a cursor of this module before anybody believes it: lengths add up,
 * counts are within limits, reserved fields are zero, flags are known, strings end.
 *
 * Pure functions: no I/O, no allocation, any thread. Decoders never read outside the
 * message and never keep a pointer to it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/wire.h"

enum {
        MESSAGE_E_INVALID = 1, /* malformed: the reason is in `why`; disconnect */
        MESSAGE_E_UNSUPPORTED, /* an unknown kind or flag: answer UNSUPPORTED, go on */
        MESSAGE_E_FULL,        /* message_builder: the next record needs a new message */
        MESSAGE_E_END,         /* message_cursor: no further record */
};

/*
 * Checks a received packet of @length bytes (8-byte aligned): header, kind, fixed part
 * and every record in it. 0, MESSAGE_E_INVALID or MESSAGE_E_UNSUPPORTED (then the header
 * itself is sane). After 0 the fixed part may be read through the struct of its kind and
 * the records through a cursor, without further checks of shape; so they may after
 * MESSAGE_E_UNSUPPORTED when the kind itself is known: only a flag in it is not.
 *
 * Both sides use it: it knows every kind, and whether a kind may come from this peer at
 * this moment is the caller's question.
 */
int message_check(const void *packet, size_t length, struct why *why);

/* Name of a kind for messages, "unknown". */
const char *message_kind_name(uint16_t kind);

/* Fills a header; length and n_items are set by the builder or the caller. NULL: zeros. */
void message_header_init(struct wire_header *header, uint16_t kind, uint64_t request,
                         uint64_t session, const uint8_t boot_id[16]);

/*
 * Builds one message in a buffer of WIRE_MESSAGE_MAX bytes: fixed part first, then
 * records. The header's length and n_items are kept right after every call.
 */
struct message_builder {
        uint8_t *buffer; /* WIRE_MESSAGE_MAX bytes, 8-byte aligned, the caller's */
        uint32_t length;
        uint32_t n_items;
};

/* @fixed begins with a struct wire_header and is copied. */
void message_builder_init(struct message_builder *builder, void *buffer, const void *fixed,
                          size_t fixed_bytes);

/* Appends @bytes to the message. MESSAGE_E_FULL leaves the message as it was. */
int message_append(struct message_builder *builder, const void *record, size_t bytes,
                   uint32_t n_items);

/* Adds one RESULT record with its extents and piece checksums. 0 or MESSAGE_E_FULL. */
int message_append_result(struct message_builder *builder, const struct wire_result_item *item,
                          const struct wire_extent *extents, const uint64_t *pieces);

/* Sets or clears WIRE_MORE in the finished message. */
void message_set_more(struct message_builder *builder, bool more);

/* Walks the records of a batch or RESULT that passed message_check(). */
struct message_cursor {
        const uint8_t *packet;
        uint32_t offset;  /* of the next record */
        uint32_t left;    /* records left */
        uint32_t covers;  /* RESERVE: offset of the next record's covers */
};

void message_cursor_init(struct message_cursor *cursor, const void *packet);

/* Each returns 0 or MESSAGE_E_END. Pointers point into the packet. */
int message_next_reserve(struct message_cursor *cursor, struct wire_reserve_item *ret_item,
                         const struct digest **ret_covers);
int message_next_commit(struct message_cursor *cursor, struct wire_commit_item *ret_item,
                        const uint64_t **ret_pieces);
int message_next_lease(struct message_cursor *cursor, uint64_t *ret_lease);
int message_next_key(struct message_cursor *cursor, struct wire_key_item *ret_item,
                     const struct wire_page_run **ret_runs);
int message_next_move(struct message_cursor *cursor, struct wire_move_item *ret_item);
int message_next_mark(struct message_cursor *cursor, struct wire_mark_item *ret_item);
int message_next_result(struct message_cursor *cursor, struct wire_result_item *ret_item,
                        const struct wire_extent **ret_extents, const uint64_t **ret_pieces);

/* ATTACH: the shards and the layout's encoding. */
const uint16_t *message_attach_shards(const struct wire_attach *attach);
const uint8_t *message_attach_layout(const struct wire_attach *attach);
const uint8_t *message_layout_encoding(const struct wire_layout *layout);

/* MATCHES: header.n_items digests. */
const struct digest *message_match_digests(const struct wire_matches *matches);

/* FIND: header.n_items digests. FOUND: header.n_items times n_banks records. */
const struct digest *message_find_digests(const struct wire_batch *find);
const struct wire_found_bits *message_found_bits(const struct wire_found *found);

/* ADMIN and ADMIN_REPLY: the text, header.n_items bytes, not NUL-terminated. */
const char *message_text(const struct wire_header *header);
