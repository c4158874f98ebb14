// SPDX-License-Identifier: Apache-2.0
/*
 * The decoder checks the shape and layout_validate() the meaning, for decoded layouts and
 * for those that a caller has filled in. An encoding has no redundancy and nothing
 * behind its end, so that one layout has one encoding and one id.
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

/* The eight strings in their order in the encoding. */
static const struct {
        size_t offset;
        const char *name;
} strings[] = {
        {offsetof(struct layout, model), "model"},
        {offsetof(struct layout, revision), "revision"},
        {offsetof(struct layout, model_dtype), "model_dtype"},
        {offsetof(struct layout, kv_dtype), "kv_dtype"},
        {offsetof(struct layout, engine), "engine"},
        {offsetof(struct layout, engine_build), "engine_build"},
        {offsetof(struct layout, kernel_layout), "kernel_layout"},
        {offsetof(struct layout, replay_mode), "replay_mode"},
};
#define N_STRINGS (sizeof(strings) / sizeof(strings[0]))

static const struct layout_string *string_of(const struct layout *layout, size_t i)
{
        return (const void *)((const char *)layout + strings[i].offset);
}

static void put_group(struct writer *writer, const struct layout_group *group)
{
        put_string(writer, &group->name);
        PUT(writer, group->kind);
        PUT(writer, group->codec);
        PUT(writer, group->n_shards);
        PUT(writer, group->page_tokens);
        PUT(writer, group->window_tokens);
        PUT(writer, group->page_bytes);
        PUT(writer, group->padded_bytes);
        PUT(writer, group->n_tensors);
        put(writer, group->tensors, group->tensors_bytes);
}

int layout_encode(const struct layout *layout, uint8_t *buffer, size_t capacity)
{
        struct writer writer = {.bytes = buffer, .capacity = capacity};
        const uint16_t version = LAYOUT_VERSION, flags = 0;

        put(&writer, layout_magic, sizeof(layout_magic));
        PUT(&writer, version);
        PUT(&writer, flags);
        for (size_t i = 0; i < N_STRINGS; i++)
                put_string(&writer, string_of(layout, i));
        PUT(&writer, layout->draft_tokens);
        PUT(&writer, layout->chunk_tokens);
        PUT(&writer, layout->tp);
        PUT(&writer, layout->pp);
        PUT(&writer, layout->cp);
        PUT(&writer, layout->n_groups);
        for (uint16_t i = 0; i < layout->n_groups; i++)
                put_group(&writer, &layout->groups[i]);
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

/* A string goes into logs and tables: no control characters. */
static bool string_is_sane(const struct layout_string *string)
{
        if (string->length > LAYOUT_STRING_MAX)
                return false;
        for (uint16_t i = 0; i < string->length; i++)
                if ((unsigned char)string->bytes[i] < ' ' || string->bytes[i] == 0x7f)
                        return false;
        return true;
}

static void get_group(struct reader *reader, struct layout_group *ret_group)
{
        struct layout_string string;
        uint64_t bytes;

        *ret_group = (struct layout_group){0};
        get_string(reader, &ret_group->name);
        GET(reader, ret_group->kind);
        GET(reader, ret_group->codec);
        GET(reader, ret_group->n_shards);
        GET(reader, ret_group->page_tokens);
        GET(reader, ret_group->window_tokens);
        GET(reader, ret_group->page_bytes);
        GET(reader, ret_group->padded_bytes);
        GET(reader, ret_group->n_tensors);
        ret_group->tensors = reader->at;
        for (uint16_t i = 0; !reader->is_short && i < ret_group->n_tensors; i++) {
                get_string(reader, &string);
                get_string(reader, &string);
                GET(reader, bytes);
        }
        ret_group->tensors_bytes = (uint32_t)(reader->at - ret_group->tensors);
}

static int refuse_head(const uint8_t *buffer, size_t length, struct why *why)
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
        if (version != LAYOUT_VERSION || flags) {
                why_set(why, "layout: version %u, flags 0x%x, expected version %u, flags 0",
                        version, flags, LAYOUT_VERSION);
                return err_raise(-EINVAL);
        }
        return 0;
}

static int decode_body(struct layout *layout, struct reader *reader, struct why *why)
{
        for (size_t i = 0; i < N_STRINGS; i++)
                get_string(reader, (void *)((char *)layout + strings[i].offset));
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
                get_group(reader, &layout->groups[i]);
        if (reader->is_short || reader->left) {
                why_set(why, "layout: %s",
                        reader->is_short ? "the encoding ends too early"
                                         : "there are bytes behind the last group");
                return err_raise(-EINVAL);
        }
        return 0;
}

int layout_decode(struct layout *ret_layout, const uint8_t *buffer, size_t length, struct why *why)
{
        struct layout layout = {0};
        struct reader reader;
        int r;

        r = refuse_head(buffer, length, why);
        if (r)
                return r;
        reader = (struct reader){.at = buffer + 8, .left = length - 8};
        r = decode_body(&layout, &reader, why);
        if (!r)
                r = layout_validate(&layout, why);
        if (!r)
                *ret_layout = layout;
        return r;
}

static bool kind_is_paged(uint8_t kind)
{
        return kind == LAYOUT_ATTENTION || kind == LAYOUT_WINDOW || kind == LAYOUT_INDEX ||
               kind == LAYOUT_COMPRESSED;
}

static int refuse_group(uint16_t index, const struct layout_group *group, struct why *why,
                        const char *text)
{
        /* The name may be what is wrong: only a sane one is repeated. */
        if (string_is_sane(&group->name) && group->name.length)
                why_set(why, "layout: group %u \"%.*s\": %s", index, (int)group->name.length,
                        group->name.bytes, text);
        else
                why_set(why, "layout: group %u: %s", index, text);
        return err_raise(-EINVAL);
}

static const char *tensors_fault(const struct layout_group *group)
{
        struct reader reader = {.at = group->tensors, .left = group->tensors_bytes};
        struct layout_string name, dtype;
        uint64_t bytes;

        if (group->n_tensors > LAYOUT_TENSORS_MAX)
                return "more than 512 tensors";
        for (uint16_t i = 0; i < group->n_tensors; i++) {
                get_string(&reader, &name);
                get_string(&reader, &dtype);
                GET(&reader, bytes);
                if (!string_is_sane(&name) || !string_is_sane(&dtype))
                        return "a tensor's name or dtype is longer than 1024 bytes or has control "
                               "characters";
        }
        return reader.is_short || reader.left ? "n_tensors does not agree with the tensors" : NULL;
}

_Static_assert(LAYOUT_TENSORS_MAX == 512 && LAYOUT_STRING_MAX == 1024 &&
                       LAYOUT_SHARDS_MAX == 1024 && LAYOUT_OBJECT_MAX == 1073741824,
               "the texts of this file name these limits");

/* What is wrong with a group by itself, or NULL. */
static const char *group_fault(const struct layout_group *group)
{
        if (!string_is_sane(&group->name))
                return "its name is longer than 1024 bytes or has control characters";
        if (group->kind < LAYOUT_ATTENTION || group->kind > LAYOUT_SCRATCH)
                return "unknown kind, expected attention (1) to scratch (6)";
        if (group->codec != LAYOUT_CODEC_NONE)
                return "unknown codec, expected none (0)";
        if (!group->n_shards || group->n_shards > LAYOUT_SHARDS_MAX)
                return "n_shards must be 1 to 1024";
        if (group->padded_bytes < group->page_bytes)
                return "padded_bytes is below page_bytes";
        if (group->page_bytes > LAYOUT_OBJECT_MAX)
                return "page_bytes is above 1073741824";
        if (kind_is_paged(group->kind) && (!group->page_tokens || !group->page_bytes))
                return "a paged group needs page_tokens and page_bytes";
        if (group->kind == LAYOUT_STATE && group->page_tokens)
                return "a state group has no pages: page_tokens must be 0";
        if ((group->kind == LAYOUT_WINDOW) != !!group->window_tokens)
                return "window_tokens goes with the kind window, and only with it";
        return tensors_fault(group);
}

static uint64_t lcm(uint64_t a, uint64_t b)
{
        uint64_t x = a, y = b;

        while (y) {
                uint64_t rest = x % y;

                x = y;
                y = rest;
        }
        return a / x * b;
}

/* LCM of the paged groups' page_tokens, or 0 when it is above LAYOUT_CHUNK_MAX. */
static uint32_t page_lcm(const struct layout *layout)
{
        uint64_t result = 1;

        for (uint16_t i = 0; i < layout->n_groups; i++) {
                if (!kind_is_paged(layout->groups[i].kind))
                        continue;
                result = lcm(result, layout->groups[i].page_tokens);
                if (result > LAYOUT_CHUNK_MAX)
                        return 0;
        }
        return (uint32_t)result;
}

uint32_t layout_page_lcm(const struct layout *layout)
{
        return page_lcm(layout);
}

/* A chunk of the smallest legal size must fit even before the daemon has chosen one. */
static int validate_chunk(const struct layout *layout, struct why *why)
{
        uint32_t unit = page_lcm(layout);
        uint32_t chunk = layout->chunk_tokens ? layout->chunk_tokens : unit;

        if (!unit || chunk > LAYOUT_CHUNK_MAX) {
                why_set(why,
                        unit ? "layout: chunk_tokens is %u, expected at most %u"
                             : "layout: chunk_tokens %u: no multiple of every group's page_tokens "
                               "is at most %u",
                        layout->chunk_tokens, LAYOUT_CHUNK_MAX);
                return err_raise(-EINVAL);
        }
        if (chunk % unit) {
                uint64_t above = ((uint64_t)chunk / unit + 1) * unit;

                why_set(why,
                        "layout: chunk_tokens is %u, expected a multiple of %u, such as %llu, or 0",
                        chunk, unit, (unsigned long long)above);
                return err_raise(-EINVAL);
        }
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                const struct layout_group *group = &layout->groups[i];

                if (kind_is_paged(group->kind) &&
                    chunk / group->page_tokens > LAYOUT_OBJECT_MAX / group->page_bytes)
                        return refuse_group(i, group, why,
                                            "a chunk is above 1073741824 bytes; "
                                            "chunk_tokens must be smaller");
        }
        return 0;
}

int layout_validate(const struct layout *layout, struct why *why)
{
        uint32_t n_cells;

        for (size_t i = 0; i < N_STRINGS; i++)
                if (!string_is_sane(string_of(layout, i))) {
                        why_set(why, "layout: %s is longer than %u bytes or has control characters",
                                strings[i].name, LAYOUT_STRING_MAX);
                        return err_raise(-EINVAL);
                }
        if (!layout->tp || !layout->pp || !layout->cp) {
                why_set(why, "layout: tp %u, pp %u, cp %u, expected 1 or more", layout->tp,
                        layout->pp, layout->cp);
                return err_raise(-EINVAL);
        }
        if (!layout->n_groups || layout->n_groups > LAYOUT_GROUPS_MAX) {
                why_set(why, "layout: %u groups, expected 1 to %u", layout->n_groups,
                        LAYOUT_GROUPS_MAX);
                return err_raise(-EINVAL);
        }
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                const char *fault = group_fault(&layout->groups[i]);

                if (fault)
                        return refuse_group(i, &layout->groups[i], why, fault);
        }
        n_cells = layout_n_cells(layout);
        if (!n_cells || n_cells > LAYOUT_CELLS_MAX) {
                why_set(why, "layout: %u (group, shard) cells that are stored, expected 1 to %u",
                        n_cells, LAYOUT_CELLS_MAX);
                return err_raise(-EINVAL);
        }
        return validate_chunk(layout, why);
}

uint64_t layout_object_bytes(const struct layout *layout, uint16_t group)
{
        const struct layout_group *g = &layout->groups[group];

        if (g->kind == LAYOUT_SCRATCH)
                return 0;
        if (g->kind == LAYOUT_STATE)
                return g->page_bytes;
        return layout->chunk_tokens / g->page_tokens * g->page_bytes;
}

uint64_t layout_largest_object(const struct layout *layout)
{
        uint64_t largest = 0;

        for (uint16_t i = 0; i < layout->n_groups; i++) {
                uint64_t bytes = layout_object_bytes(layout, i);

                if (bytes > largest)
                        largest = bytes;
        }
        return largest;
}

uint32_t layout_n_cells(const struct layout *layout)
{
        uint32_t n_cells = 0;

        for (uint16_t i = 0; i < layout->n_groups; i++)
                if (layout->groups[i].kind != LAYOUT_SCRATCH)
                        n_cells += layout->groups[i].n_shards;
        return n_cells;
}

int layout_cell(const struct layout *layout, uint16_t group, uint16_t shard)
{
        uint32_t cell = 0;

        if (group >= layout->n_groups || shard >= layout->groups[group].n_shards ||
            layout->groups[group].kind == LAYOUT_SCRATCH)
                return -1;
        for (uint16_t i = 0; i < group; i++)
                if (layout->groups[i].kind != LAYOUT_SCRATCH)
                        cell += layout->groups[i].n_shards;
        return (int)(cell + shard);
}

int layout_id(struct digest *ret_id, const uint8_t *encoding, size_t length)
{
        return digest_of_bytes(ret_id, encoding, length);
}
