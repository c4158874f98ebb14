// SPDX-License-Identifier: Apache-2.0
/*
 * Builds messages and walks those that message_check.c has passed. Neither checks shapes:
 * a builder is fed by our own code, and a cursor runs where the check ran before.
 */
#include <assert.h>
#include <string.h>

#include "proto/message.h"

const char *message_kind_name(uint16_t kind)
{
        switch (kind) {
#define NAME(number, name)                                                                         \
        case number:                                                                               \
                return #name;
                WIRE_KIND_LIST(NAME)
#undef NAME
        default:
                return "unknown";
        }
}

void message_header_init(struct wire_header *header, uint16_t kind, uint64_t request,
                         uint64_t session, const uint8_t boot_id[16])
{
        *header = (struct wire_header){
                .magic = WIRE_MAGIC,
                .kind = kind,
                .length = sizeof(*header),
                .request = request,
                .session = session,
        };
        if (boot_id)
                memcpy(header->boot_id, boot_id, sizeof(header->boot_id));
}

static void update_header(struct message_builder *builder)
{
        struct wire_header *header = (void *)builder->buffer;

        header->length = builder->length;
        header->n_items = builder->n_items;
}

void message_builder_init(struct message_builder *builder, void *buffer, const void *fixed,
                          size_t fixed_bytes)
{
        assert(fixed_bytes >= sizeof(struct wire_header) && fixed_bytes <= WIRE_MESSAGE_MAX);
        *builder = (struct message_builder){.buffer = buffer, .length = (uint32_t)fixed_bytes};
        memcpy(buffer, fixed, fixed_bytes);
        update_header(builder);
}

int message_append(struct message_builder *builder, const void *record, size_t bytes,
                   uint32_t n_items)
{
        if (bytes > WIRE_MESSAGE_MAX - builder->length)
                return MESSAGE_E_FULL;
        if (bytes)
                memcpy(builder->buffer + builder->length, record, bytes);
        builder->length += (uint32_t)bytes;
        builder->n_items += n_items;
        update_header(builder);
        return 0;
}

int message_append_result(struct message_builder *builder, const struct wire_result_item *item,
                          const struct wire_extent *extents, const uint64_t *pieces)
{
        size_t extents_bytes = (size_t)item->n_extents * sizeof(*extents);
        size_t pieces_bytes = (size_t)item->n_pieces * sizeof(*pieces);

        if (sizeof(*item) + extents_bytes + pieces_bytes > WIRE_MESSAGE_MAX - builder->length)
                return MESSAGE_E_FULL;
        message_append(builder, item, sizeof(*item), 1);
        message_append(builder, extents, extents_bytes, 0);
        message_append(builder, pieces, pieces_bytes, 0);
        return 0;
}

void message_set_more(struct message_builder *builder, bool more)
{
        struct wire_header *header = (void *)builder->buffer;

        header->flags &= (uint16_t)~WIRE_MORE;
        if (more)
                header->flags |= WIRE_MORE;
}

static uint32_t records_offset(uint16_t kind)
{
        switch (kind) {
        case WIRE_RESULT:
                return sizeof(struct wire_header);
        case WIRE_ADOPT:
                return sizeof(struct wire_adopt);
        case WIRE_PREFETCH:
                return sizeof(struct wire_prefetch);
        default:
                return sizeof(struct wire_batch);
        }
}

void message_cursor_init(struct message_cursor *cursor, const void *packet)
{
        const struct wire_header *header = packet;

        *cursor = (struct message_cursor){
                .packet = packet,
                .offset = records_offset(header->kind),
                .left = header->n_items,
        };
        if (header->kind == WIRE_RESERVE)
                cursor->covers = cursor->offset +
                                 header->n_items * (uint32_t)sizeof(struct wire_reserve_item);
}

/* Copies the next record's fixed part and steps over it. */
static int next_record(struct message_cursor *cursor, void *ret_record, uint32_t bytes)
{
        if (!cursor->left)
                return MESSAGE_E_END;
        memcpy(ret_record, cursor->packet + cursor->offset, bytes);
        cursor->offset += bytes;
        cursor->left--;
        return 0;
}

/* The array that follows a record; the cursor steps over it. */
static const void *next_array(struct message_cursor *cursor, uint32_t count, uint32_t bytes)
{
        const void *array = cursor->packet + cursor->offset;

        cursor->offset += count * bytes;
        return array;
}

int message_next_reserve(struct message_cursor *cursor, struct wire_reserve_item *ret_item,
                         const struct digest **ret_covers)
{
        int r = next_record(cursor, ret_item, sizeof(*ret_item));

        if (r)
                return r;
        *ret_covers = (const void *)(cursor->packet + cursor->covers);
        cursor->covers += ret_item->n_covers * (uint32_t)sizeof(struct digest);
        return 0;
}

int message_next_commit(struct message_cursor *cursor, struct wire_commit_item *ret_item,
                        const uint64_t **ret_pieces)
{
        int r = next_record(cursor, ret_item, sizeof(*ret_item));

        if (!r)
                *ret_pieces = next_array(cursor, ret_item->n_pieces, sizeof(uint64_t));
        return r;
}

int message_next_lease(struct message_cursor *cursor, uint64_t *ret_lease)
{
        return next_record(cursor, ret_lease, sizeof(*ret_lease));
}

int message_next_key(struct message_cursor *cursor, struct wire_key_item *ret_item,
                     const struct wire_page_run **ret_runs)
{
        int r = next_record(cursor, ret_item, sizeof(*ret_item));

        if (!r)
                *ret_runs = next_array(cursor, ret_item->n_runs, sizeof(struct wire_page_run));
        return r;
}

int message_next_move(struct message_cursor *cursor, struct wire_move_item *ret_item)
{
        return next_record(cursor, ret_item, sizeof(*ret_item));
}

int message_next_mark(struct message_cursor *cursor, struct wire_mark_item *ret_item)
{
        return next_record(cursor, ret_item, sizeof(*ret_item));
}

int message_next_result(struct message_cursor *cursor, struct wire_result_item *ret_item,
                        const struct wire_extent **ret_extents, const uint64_t **ret_pieces)
{
        int r = next_record(cursor, ret_item, sizeof(*ret_item));

        if (r)
                return r;
        *ret_extents = next_array(cursor, ret_item->n_extents, sizeof(struct wire_extent));
        *ret_pieces = next_array(cursor, ret_item->n_pieces, sizeof(uint64_t));
        return 0;
}

const uint16_t *message_attach_shards(const struct wire_attach *attach)
{
        return (const void *)(attach + 1);
}

const uint8_t *message_layout_encoding(const struct wire_layout *layout)
{
        return (const uint8_t *)(layout + 1);
}

const uint8_t *message_attach_layout(const struct wire_attach *attach)
{
        return (const uint8_t *)(attach + 1) + attach->header.n_items * sizeof(uint16_t);
}

const struct digest *message_match_digests(const struct wire_matches *matches)
{
        return (const void *)(matches + 1);
}

const struct digest *message_find_digests(const struct wire_batch *find)
{
        return (const void *)(find + 1);
}

const struct wire_found_bits *message_found_bits(const struct wire_found *found)
{
        return (const void *)(found + 1);
}

const char *message_text(const struct wire_header *header)
{
        return (const void *)(header + 1);
}
