// SPDX-License-Identifier: Apache-2.0
/*
 * The rules of a layout, for decoded ones and for those that a caller has filled in, and
 * what follows from it: rows, sizes, cells.
 */
#include <string.h>

#include "base/divisor.h"
#include "proto/layout.h"

const char *const layout_string_names[LAYOUT_N_STRINGS] = {
        "model",  "revision",     "model_dtype",   "kv_dtype",
        "engine", "engine_build", "kernel_layout", "replay_mode",
};

_Static_assert(offsetof(struct layout, replay_mode) == offsetof(struct layout, strings[7]),
               "the strings have one order");

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

static bool kind_is_paged(uint8_t kind)
{
        return kind == LAYOUT_ATTENTION || kind == LAYOUT_WINDOW || kind == LAYOUT_INDEX ||
               kind == LAYOUT_COMPRESSED;
}

/* ---- rows ---- */

const struct layout_row *layout_row_at(const struct layout *layout, uint16_t group, uint16_t i)
{
        return &layout->rows[layout->groups[group].first_row + i];
}

const struct layout_row *layout_row(const struct layout *layout, uint16_t group, uint16_t shard)
{
        if (group >= layout->n_groups)
                return NULL;
        for (uint16_t i = 0; i < layout->groups[group].n_rows; i++) {
                const struct layout_row *row = layout_row_at(layout, group, i);

                if (shard < row->first_shard)
                        return NULL;
                if (shard - row->first_shard < row->n_shards)
                        return row;
        }
        return NULL;
}

bool layout_rows_equal(const struct layout_row *a, const struct layout_row *b)
{
        return a->page_bytes == b->page_bytes && a->padded_bytes == b->padded_bytes &&
               a->n_tensors == b->n_tensors && a->tensors_bytes == b->tensors_bytes &&
               (!a->tensors_bytes || !memcmp(a->tensors, b->tensors, a->tensors_bytes));
}

int layout_add_row(struct layout *layout, uint16_t group, const struct layout_row *row)
{
        struct layout_group *g = &layout->groups[group];
        struct layout_row *last = g->n_rows ? &layout->rows[layout->n_rows - 1] : NULL;

        if (last && last->first_shard + last->n_shards == row->first_shard &&
            layout_rows_equal(last, row)) {
                last->n_shards += row->n_shards;
                return 0;
        }
        if (layout->n_rows == LAYOUT_ROWS_MAX)
                return err_raise(-ENOSPC);
        if (!last)
                g->first_row = layout->n_rows;
        layout->rows[layout->n_rows++] = *row;
        g->n_rows++;
        return 0;
}

bool layout_is_complete(const struct layout *layout)
{
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                uint32_t n_shards = 0;

                for (uint16_t j = 0; j < layout->groups[i].n_rows; j++)
                        n_shards += layout_row_at(layout, i, j)->n_shards;
                if (n_shards != layout->groups[i].n_shards)
                        return false;
        }
        return true;
}

/* ---- rules ---- */

/* "layout: group 3", with its name: it may be what is wrong, so only a sane one is told. */
static int refuse_group(const struct layout *layout, uint16_t index, struct why *why,
                        const char *text)
{
        const struct layout_string *name = &layout->groups[index].name;

        if (string_is_sane(name) && name->length)
                why_set(why, "layout: group %u \"%.*s\": %s", index, (int)name->length, name->bytes,
                        text);
        else
                why_set(why, "layout: group %u: %s", index, text);
        return err_raise(-EINVAL);
}

static int refuse_row(const struct layout *layout, uint16_t group, const struct layout_row *row,
                      struct why *why, const char *text)
{
        struct why full;

        if (row->n_shards > 1)
                why_set(&full, "shards %u to %u: %s", row->first_shard,
                        row->first_shard + row->n_shards - 1, text);
        else
                why_set(&full, "shard %u: %s", row->first_shard, text);
        return refuse_group(layout, group, why, full.text);
}

_Static_assert(LAYOUT_TENSORS_MAX == 512 && LAYOUT_STRING_MAX == 1024 &&
                       LAYOUT_SHARDS_MAX == 1024 && LAYOUT_OBJECT_MAX == 1073741824,
               "the texts of this file name these limits");

static const char *tensors_fault(const struct layout_row *row)
{
        struct layout_tensor tensor;
        uint32_t position = 0, n = 0;

        if (row->n_tensors > LAYOUT_TENSORS_MAX)
                return "more than 512 tensors";
        for (; layout_tensor_next(row, &position, &tensor); n++)
                if (!string_is_sane(&tensor.name) || !string_is_sane(&tensor.dtype))
                        return "a tensor's name or dtype is longer than 1024 bytes or has control "
                               "characters";
        return n != row->n_tensors || position != row->tensors_bytes
                       ? "n_tensors does not agree with the tensors"
                       : NULL;
}

static bool is_bf16(const struct layout_string *dtype)
{
        return (dtype->length == 8 && !memcmp(dtype->bytes, "bfloat16", 8)) ||
               (dtype->length == 4 && !memcmp(dtype->bytes, "bf16", 4));
}

/* Other numbers that were taken for bf16 would come back as garbage, and nobody would know. */
static const char *tiles_fault(const struct layout_group *group, const struct layout_row *row)
{
        uint32_t tile = codec_tile_bytes(group->codec), position = 0;
        struct layout_tensor tensor;

        while (tile > 1 && layout_tensor_next(row, &position, &tensor)) {
                if (!is_bf16(&tensor.dtype))
                        return "a codec needs tensors of dtype bfloat16";
                if (tensor.bytes % tile)
                        return group->codec == CODEC_MXFP8
                                       ? "codec mxfp8 needs tensors of a multiple of 64 bytes"
                                       : "codec fp8-tile128 needs tensors of a multiple of 256 "
                                         "bytes";
        }
        if (!(row->page_bytes % tile))
                return NULL;
        return group->codec == CODEC_MXFP8
                       ? "codec mxfp8 needs page_bytes to be a multiple of 64: tiles of 32 bfloat16"
                       : "codec fp8-tile128 needs page_bytes to be a multiple of 256: tiles of 128 "
                         "bfloat16";
}

/* What is wrong with a row by itself, or NULL. */
static const char *row_fault(const struct layout_group *group, const struct layout_row *row)
{
        if (row->padded_bytes < row->page_bytes)
                return "padded_bytes is below page_bytes";
        if (row->page_bytes > LAYOUT_OBJECT_MAX)
                return "page_bytes is above 1073741824";
        if (kind_is_paged(group->kind) && !row->page_bytes)
                return "a paged group needs page_bytes";
        return tensors_fault(row) ? tensors_fault(row) : tiles_fault(group, row);
}

/* What is wrong with @row behind the one before (or NULL), whose shards end at @end. */
static const char *order_fault(const struct layout *layout, const struct layout_group *group,
                               const struct layout_row *before, uint32_t end,
                               const struct layout_row *row)
{
        if (!row->n_shards || row->first_shard + row->n_shards > group->n_shards)
                return "a row needs shards, below the group's n_shards";
        if (row->first_shard < end)
                return "rows must stand in the order of their shards and not overlap";
        if (row->first_shard > end && !layout->is_partial)
                return "there is no row for the shards before";
        if (before && row->first_shard == end && layout_rows_equal(before, row))
                return "holds the same as the row before: both must be one";
        return NULL;
}

/* Of the tensors' bytes all stand in page_bytes, and no others, where both are told. */
static int validate_tensors(const struct layout *layout, uint16_t index,
                            const struct layout_row *row, struct why *why)
{
        struct layout_tensor tensor;
        uint32_t position = 0;
        uint64_t bytes = 0;
        struct why full;

        if (!row->n_tensors || !row->page_bytes)
                return 0;
        while (layout_tensor_next(row, &position, &tensor))
                bytes = tensor.bytes > UINT64_MAX - bytes ? UINT64_MAX : bytes + tensor.bytes;
        if (bytes == row->page_bytes)
                return 0;
        why_set(&full, "its tensors have %llu bytes, expected page_bytes, %llu",
                (unsigned long long)bytes, (unsigned long long)row->page_bytes);
        return refuse_row(layout, index, row, why, full.text);
}

static int validate_rows(const struct layout *layout, uint16_t index, struct why *why)
{
        const struct layout_group *group = &layout->groups[index];
        const struct layout_row *before = NULL;
        uint32_t end = 0;

        for (uint16_t i = 0; i < group->n_rows; i++) {
                const struct layout_row *row = layout_row_at(layout, index, i);
                const char *fault = row_fault(group, row);

                if (!fault)
                        fault = order_fault(layout, group, before, end, row);
                if (fault)
                        return refuse_row(layout, index, row, why, fault);
                if (validate_tensors(layout, index, row, why))
                        return -EINVAL;
                before = row;
                end = row->first_shard + row->n_shards;
        }
        if (end < group->n_shards && !layout->is_partial)
                return refuse_group(layout, index, why, "there is no row for its last shards");
        return 0;
}

/* What is wrong with a group without its rows, or NULL. */
static const char *group_fault(const struct layout_group *group)
{
        if (!string_is_sane(&group->name))
                return "its name is longer than 1024 bytes or has control characters";
        if (!group->name.length)
                return "has no name, expected one that no other group has";
        if (group->kind < LAYOUT_ATTENTION || group->kind > LAYOUT_SCRATCH)
                return "unknown kind, expected attention (1) to scratch (6)";
        if (group->codec >= CODEC_COUNT)
                return "unknown codec, expected none (0), fp8-tile128 (1) or mxfp8 (2)";
        if (group->codec && !kind_is_paged(group->kind))
                return "has no pages, so it takes no codec: states are never quantised";
        if (!group->n_shards || group->n_shards > LAYOUT_SHARDS_MAX)
                return "n_shards must be 1 to 1024";
        if (kind_is_paged(group->kind) && !group->page_tokens)
                return "a paged group needs page_tokens";
        if (group->kind == LAYOUT_STATE && group->page_tokens)
                return "a state group has no pages: page_tokens must be 0";
        if ((group->kind == LAYOUT_WINDOW) != !!group->window_tokens)
                return "window_tokens goes with the kind window, and only with it";
        return NULL;
}

/* Groups are told apart by their names, in tables and sentences. */
static int validate_name(const struct layout *layout, uint16_t index, struct why *why)
{
        const struct layout_string *name = &layout->groups[index].name;
        struct why full;

        for (uint16_t i = 0; i < index; i++) {
                const struct layout_string *other = &layout->groups[i].name;

                if (other->length != name->length ||
                    memcmp(other->bytes, name->bytes, name->length))
                        continue;
                why_set(&full, "has the name of group %u, expected one that no other group has", i);
                return refuse_group(layout, index, why, full.text);
        }
        return 0;
}

static int validate_groups(const struct layout *layout, struct why *why)
{
        uint32_t n_rows = 0;

        if (layout->n_rows > LAYOUT_ROWS_MAX) {
                why_set(why, "layout: %u rows, expected at most %u", layout->n_rows,
                        LAYOUT_ROWS_MAX);
                return err_raise(-EINVAL);
        }
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                const struct layout_group *group = &layout->groups[i];
                const char *fault = group_fault(group);
                int r;

                if (!fault && group->n_rows && group->first_row != n_rows)
                        fault = "its rows do not follow those of the group before";
                n_rows += group->n_rows;
                if (!fault && n_rows > layout->n_rows)
                        fault = "has rows that the layout lacks";
                if (fault)
                        return refuse_group(layout, i, why, fault);
                r = validate_name(layout, i, why);
                if (!r)
                        r = validate_rows(layout, i, why);
                if (r)
                        return r;
        }
        if (n_rows != layout->n_rows) {
                why_set(why, "layout: %u rows, of which the groups have %u", layout->n_rows,
                        n_rows);
                return err_raise(-EINVAL);
        }
        return 0;
}

static uint64_t lcm(uint64_t a, uint64_t b)
{
        return a / greatest_divisor(a, b) * b;
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

/* Names the first group that the chunk does not suit, and the chunks that suit all. */
static int refuse_multiple(const struct layout *layout, uint32_t unit, struct why *why)
{
        uint32_t chunk = layout->chunk_tokens;
        uint64_t above = ((uint64_t)chunk / unit + 1) * unit;
        struct why full, next = {.text = ""};
        uint16_t i = 0;

        if (chunk > unit)
                why_set(&next, ", the next above is %llu", (unsigned long long)above);
        while (!kind_is_paged(layout->groups[i].kind) || !(chunk % layout->groups[i].page_tokens))
                i++;
        why_set(&full,
                "chunk_tokens is %u, no multiple of this group's page_tokens %u; the smallest "
                "that suits every group is %u%s; or 0: the daemon chooses",
                chunk, layout->groups[i].page_tokens, unit, next.text);
        return refuse_group(layout, i, why, full.text);
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
        if (chunk % unit)
                return refuse_multiple(layout, unit, why);
        for (uint16_t i = 0; i < layout->n_groups; i++) {
                const struct layout_group *group = &layout->groups[i];

                for (uint16_t j = 0; kind_is_paged(group->kind) && j < group->n_rows; j++)
                        if (chunk / group->page_tokens >
                            LAYOUT_OBJECT_MAX /
                                    layout_stored_page_bytes(group, layout_row_at(layout, i, j)))
                                return refuse_group(layout, i, why,
                                                    "a chunk is above 1073741824 bytes; "
                                                    "chunk_tokens must be smaller");
        }
        return 0;
}

static int validate_head(const struct layout *layout, struct why *why)
{
        for (size_t i = 0; i < LAYOUT_N_STRINGS; i++)
                if (!string_is_sane(&layout->strings[i])) {
                        why_set(why, "layout: %s is longer than %u bytes or has control characters",
                                layout_string_names[i], LAYOUT_STRING_MAX);
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
        return 0;
}

int layout_validate(const struct layout *layout, struct why *why)
{
        uint32_t n_cells;
        int r = validate_head(layout, why);

        if (!r)
                r = validate_groups(layout, why);
        if (r)
                return r;
        n_cells = layout_n_cells(layout);
        if (!n_cells || n_cells > LAYOUT_CELLS_MAX) {
                why_set(why, "layout: %u (group, shard) cells that are stored, expected 1 to %u",
                        n_cells, LAYOUT_CELLS_MAX);
                return err_raise(-EINVAL);
        }
        return validate_chunk(layout, why);
}

/* ---- sizes and cells ---- */

uint64_t layout_stored_page_bytes(const struct layout_group *group, const struct layout_row *row)
{
        return codec_stored_bytes(group->codec, row->page_bytes);
}

static uint64_t object_bytes(const struct layout *layout, const struct layout_group *group,
                             const struct layout_row *row)
{
        if (group->kind == LAYOUT_SCRATCH)
                return 0;
        if (group->kind == LAYOUT_STATE)
                return row->page_bytes;
        return layout->chunk_tokens / group->page_tokens * layout_stored_page_bytes(group, row);
}

uint64_t layout_object_bytes(const struct layout *layout, uint16_t group, uint16_t shard)
{
        const struct layout_row *row = layout_row(layout, group, shard);

        return row ? object_bytes(layout, &layout->groups[group], row) : 0;
}

uint64_t layout_largest_object(const struct layout *layout, uint16_t *ret_group)
{
        uint64_t largest = 0;
        uint16_t group = 0;

        for (uint16_t i = 0; i < layout->n_groups; i++)
                for (uint16_t j = 0; j < layout->groups[i].n_rows; j++) {
                        uint64_t bytes = object_bytes(layout, &layout->groups[i],
                                                      layout_row_at(layout, i, j));

                        if (bytes <= largest)
                                continue;
                        largest = bytes;
                        group = i;
                }
        if (ret_group)
                *ret_group = group;
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
