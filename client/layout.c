// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/layout.h"
#include "proto/layout_merge.h"

int kvt__copy_sized(void *ret_copy, size_t size, const void *from)
{
        const uint8_t *bytes = from;
        size_t given;

        memcpy(&given, from, sizeof(given));
        if (given < sizeof(given) || given > 4096)
                return err_raise(-EINVAL);
        for (size_t i = size; i < given; i++)
                if (bytes[i])
                        return err_raise(-EINVAL);
        memset(ret_copy, 0, size);
        memcpy(ret_copy, from, given < size ? given : size);
        return 0;
}

static int string(struct layout_string *ret_string, const char *text, const char *what,
                  struct why *why)
{
        size_t length = text ? strlen(text) : 0;

        if (length > LAYOUT_STRING_MAX) {
                why_set(why, "%s has %zu bytes, at most %u are allowed", what, length,
                        LAYOUT_STRING_MAX);
                return err_raise(-EINVAL);
        }
        *ret_string = (struct layout_string){.bytes = text ? text : "", .length = (uint16_t)length};
        return 0;
}

/* Where the tensor records of all rows go. */
struct tensor_buffer {
        uint8_t *bytes; /* LAYOUT_BYTES_MAX */
        size_t used;
};

static int tensors(struct layout_row *row, const struct kvt_row *from, struct tensor_buffer *buffer,
                   struct why *why)
{
        row->tensors = buffer->bytes + buffer->used;
        if (from->n_tensors > LAYOUT_TENSORS_MAX || (from->n_tensors && !from->tensors)) {
                why_set(why, "a row has %u tensors, at most %u are allowed", from->n_tensors,
                        LAYOUT_TENSORS_MAX);
                return err_raise(-EINVAL);
        }
        for (uint32_t i = 0; i < from->n_tensors; i++) {
                struct layout_string name, dtype;
                int r = string(&name, from->tensors[i].name, "a tensor's name", why);

                if (!r)
                        r = string(&dtype, from->tensors[i].dtype, "a tensor's dtype", why);
                if (r)
                        return r;
                r = layout_tensor_encode(buffer->bytes + buffer->used,
                                         LAYOUT_BYTES_MAX - buffer->used, name, dtype,
                                         from->tensors[i].bytes);
                if (r < 0) {
                        why_set(why, "the layout is larger than %u bytes", LAYOUT_BYTES_MAX);
                        return r;
                }
                buffer->used += (size_t)r;
        }
        row->n_tensors = (uint16_t)from->n_tensors;
        row->tensors_bytes = (uint32_t)(buffer->bytes + buffer->used - row->tensors);
        return 0;
}

static int add_row(struct layout *layout, uint16_t group, const struct kvt_row *from,
                   struct tensor_buffer *buffer, struct why *why)
{
        struct layout_row row = {
                .page_bytes = from->page_bytes,
                .padded_bytes = from->padded_bytes ? from->padded_bytes : from->page_bytes,
        };
        int r;

        if (from->first_shard >= LAYOUT_SHARDS_MAX || from->n_shards > LAYOUT_SHARDS_MAX ||
            from->reserved) {
                why_set(why, "a row has shards %u and %u more, at most %u are allowed",
                        from->first_shard, from->n_shards, LAYOUT_SHARDS_MAX);
                return err_raise(-EINVAL);
        }
        row.first_shard = (uint16_t)from->first_shard;
        row.n_shards = from->n_shards ? (uint16_t)from->n_shards : 1;
        r = tensors(&row, from, buffer, why);
        if (r)
                return r;
        r = layout_add_row(layout, group, &row);
        if (r)
                why_set(why, "the groups have more than %u rows in all", LAYOUT_ROWS_MAX);
        return r;
}

/* The rows as given; or one for all shards; or none, when the process knows none. */
static int add_rows(struct layout *layout, uint16_t index, const struct kvt_group *from,
                    struct tensor_buffer *buffer, struct why *why)
{
        struct kvt_row all = {
                .n_shards = layout->groups[index].n_shards,
                .page_bytes = from->page_bytes,
                .padded_bytes = from->padded_bytes,
                .tensors = from->tensors,
                .n_tensors = from->n_tensors,
        };
        bool has_facts = from->page_bytes || from->padded_bytes || from->n_tensors;
        int r = 0;

        if (!from->n_rows)
                return layout->is_partial && !has_facts ? 0
                                                        : add_row(layout, index, &all, buffer, why);
        if (!from->rows || has_facts) {
                why_set(why, "with rows, page_bytes, padded_bytes and tensors stand in them");
                return err_raise(-EINVAL);
        }
        for (uint32_t i = 0; i < from->n_rows && !r; i++)
                r = add_row(layout, index, &from->rows[i], buffer, why);
        return r;
}

_Static_assert((int)KVT_CODEC_FP8_TILE128 == (int)CODEC_FP8_TILE128 &&
                       (int)KVT_CODEC_MXFP8 == (int)CODEC_MXFP8,
               "codecs have the same numbers for the caller and in layouts");

/* What the layout has narrower fields for, or none; the rest is layout_validate()'s. */
static int check_numbers(const struct kvt_group *from, struct why *why)
{
        if (from->kind > UINT8_MAX)
                why_set(why, "unknown kind %u", from->kind);
        else if (from->codec > UINT8_MAX)
                why_set(why, "unknown codec %u", from->codec);
        else if (from->shards > LAYOUT_SHARDS_MAX)
                why_set(why, "%u shards, at most %u", from->shards, LAYOUT_SHARDS_MAX);
        else if (from->reserved)
                why_set(why, "reserved is %u, not 0", from->reserved);
        else
                return 0;
        return err_raise(-EINVAL);
}

static int group(struct layout *layout, uint16_t index, const struct kvt_group *from,
                 struct tensor_buffer *buffer, struct why *why)
{
        struct layout_group *ret_group = &layout->groups[index];
        int r = string(&ret_group->name, from->name, "a group's name", why);

        if (r)
                return r;
        r = check_numbers(from, why);
        ret_group->kind = (uint8_t)from->kind;
        ret_group->codec = (uint8_t)from->codec;
        ret_group->n_shards = from->shards ? (uint16_t)from->shards : 1;
        ret_group->page_tokens = from->page_tokens;
        ret_group->window_tokens = from->window_tokens;
        if (!r)
                r = add_rows(layout, index, from, buffer, why);
        if (r)
                why_prefix(why, "group %s", from->name ? from->name : "");
        return r;
}

static int strings(struct layout *layout, const struct kvt_layout *from, struct why *why)
{
        const struct {
                struct layout_string *to;
                const char *from;
                const char *what;
        } all[] = {
                {&layout->model, from->model, "model"},
                {&layout->revision, from->revision, "revision"},
                {&layout->model_dtype, from->model_dtype, "model_dtype"},
                {&layout->kv_dtype, from->kv_dtype, "kv_dtype"},
                {&layout->engine, from->engine, "engine"},
                {&layout->engine_build, from->engine_build, "engine_build"},
                {&layout->kernel_layout, from->kernel_layout, "kernel_layout"},
                {&layout->replay_mode, from->replay_mode, "replay_mode"},
        };

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
                int r = string(all[i].to, all[i].from, all[i].what, why);

                if (r)
                        return r;
        }
        return 0;
}

static int fill(struct layout *layout, const struct kvt_layout *from, uint8_t *tensors_buffer,
                struct why *why)
{
        struct tensor_buffer buffer = {.bytes = tensors_buffer};
        int r = strings(layout, from, why);

        if (r)
                return r;
        if (!from->groups || !from->n_groups || from->n_groups > LAYOUT_GROUPS_MAX ||
            from->reserved) {
                why_set(why, "a layout has 1 to %u groups, this one has %u", LAYOUT_GROUPS_MAX,
                        from->n_groups);
                return err_raise(-EINVAL);
        }
        layout->draft_tokens = from->draft_tokens;
        layout->chunk_tokens = from->chunk_tokens;
        layout->tp = from->tp ? from->tp : 1;
        layout->pp = from->pp ? from->pp : 1;
        layout->cp = from->cp ? from->cp : 1;
        layout->n_groups = (uint16_t)from->n_groups;
        for (uint16_t i = 0; !r && i < layout->n_groups; i++)
                r = group(layout, i, &from->groups[i], &buffer, why);
        return r;
}

static int encode(struct kvt__layout_encoding *ret_encoding, const struct layout *layout,
                  struct why *why)
{
        int r = layout_validate(layout, why);

        if (r)
                return r;
        r = layout_encode(layout, ret_encoding->bytes, sizeof(ret_encoding->bytes));
        if (r < 0) {
                why_set(why, "the layout is larger than %u bytes", LAYOUT_BYTES_MAX);
                return r;
        }
        ret_encoding->length = (size_t)r;
        return 0;
}

int kvt__layout_encode(struct kvt__layout_encoding *ret_encoding, const struct kvt_layout *layout,
                       bool is_partial, struct why *why)
{
        _cleanup_free_ struct layout *filled = calloc(1, sizeof(*filled));
        _cleanup_free_ uint8_t *buffer = malloc(LAYOUT_BYTES_MAX);
        struct kvt_layout from;
        int r;

        if (!filled || !buffer) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        r = kvt__copy_sized(&from, sizeof(from), layout);
        if (r) {
                why_set(why, "kvt_layout.size is not set, or the struct is of a newer version");
                return r;
        }
        filled->is_partial = is_partial;
        r = fill(filled, &from, buffer, why);
        return r ? r : encode(ret_encoding, filled, why);
}

int kvt__layout_choose(struct kvt__layout_encoding *ret_encoding, struct layout *ret_layout,
                       const struct kvt__layout_encoding *asked, uint32_t chunk_tokens,
                       struct why *why)
{
        struct layout layout;
        int r = layout_decode(&layout, asked->bytes, asked->length, why);

        if (r)
                return r;
        if (layout.chunk_tokens && layout.chunk_tokens != chunk_tokens) {
                why_set(why, "the daemon answered with chunks of %u tokens instead of %u",
                        chunk_tokens, layout.chunk_tokens);
                return err_raise(-EINVAL);
        }
        layout.chunk_tokens = chunk_tokens;
        r = encode(ret_encoding, &layout, why);
        return r ? r : layout_decode(ret_layout, ret_encoding->bytes, ret_encoding->length, why);
}

int kvt__layout_complete(struct layout *ret_layout, const struct kvt__layout_encoding *asked,
                         const uint8_t *encoding, size_t length, const struct digest *id,
                         struct why *why)
{
        _cleanup_free_ struct layout *part = malloc(sizeof(*part));
        struct layout_conflict conflict;
        struct digest computed;
        struct why place;
        int r;

        if (!part || layout_id(&computed, encoding, length)) {
                why_set(why, "out of memory");
                return err_raise(-ENOMEM);
        }
        r = layout_decode(ret_layout, encoding, length, why);
        if (!r)
                r = layout_decode_partial(part, asked->bytes, asked->length, why);
        if (r)
                return r;
        r = layout_merge(part, ret_layout, &conflict);
        if (r < 0) {
                why_set(why, "the groups have more than %u rows in all", LAYOUT_ROWS_MAX);
                return r;
        }
        if (r) {
                layout_conflict_place(&conflict, part, &place);
                why_set(why, "the daemon's layout differs from this process's: %s is %s, not %s",
                        place.text, conflict.theirs, conflict.ours);
        } else if (!ret_layout->chunk_tokens) {
                why_set(why, "the daemon's layout does not say how long chunks are");
        } else if (!digest_equal(&computed, id)) {
                why_set(why, "the daemon and the library disagree about the layout's id");
        } else {
                return 0;
        }
        return err_raise(-EINVAL);
}
