// SPDX-License-Identifier: Apache-2.0
/*
 * The decoder checks the shape, layout_validate() the meaning. An encoding has no
 * redundancy and nothing behind its end, so that one layout has one encoding and one id.
 */
#include <string.h>

#include "proto/digest.h"
#include "proto/layout.h"

static const char layout_magic[4] = "KVTL";

/* Writes as long as there is room; once there is none, writes nothing more. */
struct writer {
        uint8_t *bytes;
        size_t capacity;
        size_t used;
        bool is_full;
};

static void put(struct writer *writer, const void *bytes, size_t length)
{
        if (writer->is_full || length > writer->capacity - writer->used) {
                writer->is_full = true;
                return;
        }
        if (length)
                memcpy(writer->bytes + writer->used, bytes, length);
        writer->used += length;
}

/* The host is little-endian: wire.h asserts it. */
#define PUT(writer, value) put((writer), &(value), sizeof(value))

static void put_string(struct writer *writer, const struct layout_string *string)
{
        PUT(writer, string->length);
        put(writer, string->bytes, string->length);
}

static int finish(const struct writer *writer)
{
        if (writer->is_full || writer->used > INT32_MAX)
                return err_raise(-ENOSPC);
        return (int)writer->used;
}

int layout_tensor_encode(uint8_t *buffer, size_t capacity, struct layout_string name,
                         struct layout_string dtype, uint64_t bytes)
{
        struct writer writer = {.bytes = buffer, .capacity = capacity};

        put_string(&writer, &name);
        put_string(&writer, &dtype);
        PUT(&writer, bytes);
        return finish(&writer);
}

static void put_group(struct writer *writer, const struct layout_group *group)
{
        put_string(writer, &group->name);
        PUT(writer, group->kind);
        PUT(writer, group->codec);
        PUT(writer, group->n_shards);
        PUT(writer, group->page_tokens);
        PUT(writer, group->window_tokens);
        PUT(writer, group->n_rows);
}

static void put_row(struct writer *writer, const struct layout_row *row)
{
        PUT(writer, row->first_shard);
        PUT(writer, row->n_shards);
        PUT(writer, row->page_bytes);
        PUT(writer, row->padded_bytes);
        PUT(writer, row->n_tensors);
        put(writer, row->tensors, row->tensors_bytes);
}

int layout_encode(const struct layout *layout, uint8_t *buffer, size_t capacity)
{
        struct writer writer = {.bytes = buffer, .capacity = capacity};
        const uint16_t version = LAYOUT_VERSION, flags = layout->is_partial ? LAYOUT_PARTIAL : 0;

        put(&writer, layout_magic, sizeof(layout_magic));
        PUT(&writer, version);
        PUT(&writer, flags);
        for (size_t i = 0; i < LAYOUT_N_STRINGS; i++)
                put_string(&writer, &layout->strings[i]);
        PUT(&writer, layout->draft_tokens);
        PUT(&writer, layout->chunk_tokens);
        PUT(&writer, layout->tp);
        PUT(&writer, layout->pp);
        PUT(&writer, layout->cp);
        PUT(&writer, layout->n_groups);
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                put_group(&writer, &layout->groups[i]);
                for (uint16_t j = 0; j < layout->groups[i].n_rows; j++)
                        put_row(&writer, layout_row_at(layout, i, j));
        }
        return finish(&writer);
}

/* Reads as long as there is something; after that every read gives zeros. */
struct reader {
        const uint8_t *at;
        size_t left;
        bool is_short;
};

static const uint8_t *get(struct reader *reader, size_t length)
{
        const uint8_t *bytes = reader->at;

        if (reader->is_short || length > reader->left) {
                reader->is_short = true;
                return NULL;
        }
        reader->at += length;
        reader->left -= length;
        return bytes;
}

static void get_into(struct reader *reader, void *ret_value, size_t length)
{
        const uint8_t *bytes = get(reader, length);

        if (bytes)
                memcpy(ret_value, bytes, length);
        else
                memset(ret_value, 0, length);
}

#define GET(reader, value) get_into((reader), &(value), sizeof(value))

static void get_string(struct reader *reader, struct layout_string *ret_string)
{
        GET(reader, ret_string->length);
        ret_string->bytes = (const void *)get(reader, ret_string->length);
        if (reader->is_short)
                *ret_string = (struct layout_string){0};
}

static void get_tensor(struct reader *reader, struct layout_tensor *ret_tensor)
{
        get_string(reader, &ret_tensor->name);
        get_string(reader, &ret_tensor->dtype);
        GET(reader, ret_tensor->bytes);
}

bool layout_tensor_next(const struct layout_row *row, uint32_t *position,
                        struct layout_tensor *ret_tensor)
{
        struct reader reader = {
                .at = row->tensors + *position,
                .left = row->tensors_bytes - *position,
        };
        struct layout_tensor tensor;

        if (!reader.left)
                return false;
        get_tensor(&reader, &tensor);
        if (reader.is_short)
                return false;
        *position = (uint32_t)(reader.at - row->tensors);
        *ret_tensor = tensor;
        return true;
}

static void get_row(struct reader *reader, struct layout_row *ret_row)
{
        struct layout_tensor tensor;

        GET(reader, ret_row->first_shard);
        GET(reader, ret_row->n_shards);
        GET(reader, ret_row->page_bytes);
        GET(reader, ret_row->padded_bytes);
        GET(reader, ret_row->n_tensors);
        ret_row->tensors = reader->at;
        for (uint16_t i = 0; !reader->is_short && i < ret_row->n_tensors; i++)
                get_tensor(reader, &tensor);
        ret_row->tensors_bytes = (uint32_t)(reader->at - ret_row->tensors);
}

static void get_group(struct reader *reader, struct layout_group *ret_group)
{
        *ret_group = (struct layout_group){0};
        get_string(reader, &ret_group->name);
        GET(reader, ret_group->kind);
        GET(reader, ret_group->codec);
        GET(reader, ret_group->n_shards);
        GET(reader, ret_group->page_tokens);
        GET(reader, ret_group->window_tokens);
        GET(reader, ret_group->n_rows);
}

/* A group with its rows; false when they do not fit. */
static bool get_group_rows(struct reader *reader, struct layout *layout, uint16_t group)
{
        struct layout_group *g = &layout->groups[group];

        get_group(reader, g);
        if (g->n_rows > LAYOUT_ROWS_MAX - layout->n_rows)
                return false;
        g->first_row = layout->n_rows;
        layout->n_rows += g->n_rows;
        for (uint16_t i = 0; i < g->n_rows && !reader->is_short; i++)
                get_row(reader, &layout->rows[g->first_row + i]);
        return true;
}

static int get_head(struct layout *layout, const uint8_t *buffer, size_t length, uint16_t allowed,
                    struct why *why)
{
        uint16_t version = 0, flags = 0;

        if (length > LAYOUT_BYTES_MAX) {
                why_set(why, "layout: %zu bytes, expected at most %u", length, LAYOUT_BYTES_MAX);
                return err_raise(-EINVAL);
        }
        if (length < 8 || memcmp(buffer, layout_magic, sizeof(layout_magic))) {
                why_set(why, "layout: does not begin with \"KVTL\", version and flags");
                return err_raise(-EINVAL);
        }
        memcpy(&version, buffer + 4, sizeof(version));
        memcpy(&flags, buffer + 6, sizeof(flags));
        if (version != LAYOUT_VERSION || flags & ~allowed) {
                why_set(why, "layout: version %u, flags 0x%x, expected version %u, flags 0%s",
                        version, flags, LAYOUT_VERSION, allowed ? " or PARTIAL (1)" : "");
                return err_raise(-EINVAL);
        }
        layout->is_partial = flags & LAYOUT_PARTIAL;
        return 0;
}

static int decode_body(struct layout *layout, struct reader *reader, struct why *why)
{
        for (size_t i = 0; i < LAYOUT_N_STRINGS; i++)
                get_string(reader, &layout->strings[i]);
        GET(reader, layout->draft_tokens);
        GET(reader, layout->chunk_tokens);
        GET(reader, layout->tp);
        GET(reader, layout->pp);
        GET(reader, layout->cp);
        GET(reader, layout->n_groups);
        if (layout->n_groups > LAYOUT_GROUPS_MAX) {
                why_set(why, "layout: %u groups, expected 1 to %u", layout->n_groups,
                        LAYOUT_GROUPS_MAX);
                return err_raise(-EINVAL);
        }
        for (uint16_t i = 0; i < layout->n_groups; i++)
                if (!get_group_rows(reader, layout, i)) {
                        why_set(why, "layout: more than %u rows in all", LAYOUT_ROWS_MAX);
                        return err_raise(-EINVAL);
                }
        if (reader->is_short || reader->left) {
                why_set(why, "layout: %s",
                        reader->is_short ? "the encoding ends too early"
                                         : "there are bytes behind the last group");
                return err_raise(-EINVAL);
        }
        return 0;
}

static int decode(struct layout *ret_layout, const uint8_t *buffer, size_t length, uint16_t allowed,
                  struct why *why)
{
        struct layout layout;
        struct reader reader;
        int r;

        memset(&layout, 0, offsetof(struct layout, rows));
        r = get_head(&layout, buffer, length, allowed, why);
        if (r)
                return r;
        reader = (struct reader){.at = buffer + 8, .left = length - 8};
        r = decode_body(&layout, &reader, why);
        if (!r)
                r = layout_validate(&layout, why);
        if (!r)
                memcpy(ret_layout, &layout,
                       offsetof(struct layout, rows) + layout.n_rows * sizeof(layout.rows[0]));
        return r;
}

int layout_decode(struct layout *ret_layout, const uint8_t *buffer, size_t length, struct why *why)
{
        return decode(ret_layout, buffer, length, 0, why);
}

int layout_decode_partial(struct layout *ret_layout, const uint8_t *buffer, size_t length,
                          struct why *why)
{
        return decode(ret_layout, buffer, length, LAYOUT_PARTIAL, why);
}

int layout_id(struct digest *ret_id, const uint8_t *encoding, size_t length)
{
        return digest_of_bytes(ret_id, encoding, length);
}
