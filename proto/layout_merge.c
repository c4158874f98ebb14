// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/layout_merge.h"

static int conflict_text(struct layout_conflict *conflict, const char *field,
                         const struct layout_string *ours, const struct layout_string *theirs)
{
        conflict->field = field;
        snprintf(conflict->ours, sizeof(conflict->ours), "\"%.*s\"", (int)ours->length,
                 ours->bytes);
        snprintf(conflict->theirs, sizeof(conflict->theirs), "\"%.*s\"", (int)theirs->length,
                 theirs->bytes);
        return LAYOUT_MERGE_E_CONFLICT;
}

static int conflict_number(struct layout_conflict *conflict, const char *field, uint64_t ours,
                           uint64_t theirs)
{
        conflict->field = field;
        snprintf(conflict->ours, sizeof(conflict->ours), "%" PRIu64, ours);
        snprintf(conflict->theirs, sizeof(conflict->theirs), "%" PRIu64, theirs);
        return LAYOUT_MERGE_E_CONFLICT;
}

static bool strings_equal(const struct layout_string *a, const struct layout_string *b)
{
        return a->length == b->length && (!a->length || !memcmp(a->bytes, b->bytes, a->length));
}

#define COMPARE(conflict, ours, theirs, member)                                                    \
        do {                                                                                       \
                if ((ours)->member != (theirs)->member)                                            \
                        return conflict_number((conflict), #member, (ours)->member,                \
                                               (theirs)->member);                                  \
        } while (0)

static int compare_head(const struct layout *ours, const struct layout *theirs,
                        struct layout_conflict *conflict)
{
        for (size_t i = 0; i < LAYOUT_N_STRINGS; i++)
                if (!strings_equal(&ours->strings[i], &theirs->strings[i]))
                        return conflict_text(conflict, layout_string_names[i], &ours->strings[i],
                                             &theirs->strings[i]);
        COMPARE(conflict, ours, theirs, draft_tokens);
        /* 0 leaves the choice to others. */
        if (ours->chunk_tokens && theirs->chunk_tokens)
                COMPARE(conflict, ours, theirs, chunk_tokens);
        COMPARE(conflict, ours, theirs, tp);
        COMPARE(conflict, ours, theirs, pp);
        COMPARE(conflict, ours, theirs, cp);
        COMPARE(conflict, ours, theirs, n_groups);
        return 0;
}

static int compare_group(const struct layout_group *ours, const struct layout_group *theirs,
                         struct layout_conflict *conflict)
{
        if (!strings_equal(&ours->name, &theirs->name))
                return conflict_text(conflict, "name", &ours->name, &theirs->name);
        COMPARE(conflict, ours, theirs, kind);
        COMPARE(conflict, ours, theirs, codec);
        COMPARE(conflict, ours, theirs, n_shards);
        COMPARE(conflict, ours, theirs, page_tokens);
        COMPARE(conflict, ours, theirs, window_tokens);
        return 0;
}

static void put_tensor(char *text, size_t size, const struct layout_tensor *tensor)
{
        snprintf(text, size, "%.*s %.*s %" PRIu64, (int)tensor->name.length, tensor->name.bytes,
                 (int)tensor->dtype.length, tensor->dtype.bytes, tensor->bytes);
}

/* The first tensor in which two rows of as many tensors differ. */
static int compare_tensors(const struct layout_row *ours, const struct layout_row *theirs,
                           struct layout_conflict *conflict)
{
        struct layout_tensor a, b;
        uint32_t at_a = 0, at_b = 0;

        while (layout_tensor_next(ours, &at_a, &a) && layout_tensor_next(theirs, &at_b, &b)) {
                if (strings_equal(&a.name, &b.name) && strings_equal(&a.dtype, &b.dtype) &&
                    a.bytes == b.bytes)
                        continue;
                conflict->field = "tensors";
                put_tensor(conflict->ours, sizeof(conflict->ours), &a);
                put_tensor(conflict->theirs, sizeof(conflict->theirs), &b);
                return LAYOUT_MERGE_E_CONFLICT;
        }
        return 0;
}

static int compare_rows(const struct layout_row *ours, const struct layout_row *theirs,
                        struct layout_conflict *conflict)
{
        COMPARE(conflict, ours, theirs, page_bytes);
        COMPARE(conflict, ours, theirs, padded_bytes);
        COMPARE(conflict, ours, theirs, n_tensors);
        return compare_tensors(ours, theirs, conflict);
}

/* A group's rows on the way through its shards. */
struct cursor {
        const struct layout *layout;
        uint16_t group;
        uint16_t i;
};

/* The row of @shard, or NULL; shards are asked for in rising order. */
static const struct layout_row *row_of(struct cursor *cursor, uint16_t shard)
{
        const struct layout_group *group = &cursor->layout->groups[cursor->group];

        for (; cursor->i < group->n_rows; cursor->i++) {
                const struct layout_row *row =
                        layout_row_at(cursor->layout, cursor->group, cursor->i);

                if (shard < row->first_shard)
                        return NULL;
                if (shard - row->first_shard < row->n_shards)
                        return row;
        }
        return NULL;
}

/* How far from @shard on both cursors stay at the rows they are at now. */
static uint16_t steady_shards(const struct layout_row *const rows[2], const struct cursor at[2],
                              uint16_t shard, uint16_t n_shards)
{
        uint32_t end = n_shards;

        for (int k = 0; k < 2; k++) {
                const struct layout_group *group = &at[k].layout->groups[at[k].group];
                uint32_t until = end;

                if (rows[k])
                        until = rows[k]->first_shard + rows[k]->n_shards;
                else if (at[k].i < group->n_rows)
                        until = layout_row_at(at[k].layout, at[k].group, at[k].i)->first_shard;
                if (until < end)
                        end = until;
        }
        return (uint16_t)(end - shard);
}

static int merge_group(struct layout *merged, uint16_t group, const struct layout *ours,
                       const struct layout *theirs, struct layout_conflict *conflict)
{
        struct cursor at[2] = {{ours, group, 0}, {theirs, group, 0}};
        uint16_t n_shards = ours->groups[group].n_shards, n;

        for (uint16_t shard = 0; shard < n_shards; shard = (uint16_t)(shard + n)) {
                const struct layout_row *rows[2] = {row_of(&at[0], shard), row_of(&at[1], shard)};
                struct layout_row row;
                int r = 0;

                n = steady_shards(rows, at, shard, n_shards);
                conflict->shard = shard;
                if (rows[0] && rows[1])
                        r = compare_rows(rows[0], rows[1], conflict);
                if (r)
                        return r;
                if (!rows[0] && !rows[1])
                        continue;
                row = rows[0] ? *rows[0] : *rows[1];
                row.first_shard = shard;
                row.n_shards = n;
                r = layout_add_row(merged, group, &row);
                if (r)
                        return r;
        }
        return 0;
}

int layout_merge(struct layout *layout, const struct layout *other,
                 struct layout_conflict *ret_conflict)
{
        struct layout_conflict conflict = {.group = -1, .shard = -1};
        struct layout merged;
        int r = compare_head(layout, other, &conflict);

        /* The rows are filled in below: no need to copy them. */
        memcpy(&merged, layout, offsetof(struct layout, rows));
        merged.n_rows = 0;
        if (!merged.chunk_tokens)
                merged.chunk_tokens = other->chunk_tokens;
        for (uint16_t i = 0; !r && i < layout->n_groups; i++) {
                conflict.group = i;
                conflict.shard = -1;
                merged.groups[i].n_rows = 0;
                r = compare_group(&layout->groups[i], &other->groups[i], &conflict);
                if (!r)
                        r = merge_group(&merged, i, layout, other, &conflict);
        }
        if (r == LAYOUT_MERGE_E_CONFLICT)
                *ret_conflict = conflict;
        if (r)
                return r;
        merged.is_partial = !layout_is_complete(&merged);
        memcpy(layout, &merged,
               offsetof(struct layout, rows) + merged.n_rows * sizeof(merged.rows[0]));
        return 0;
}

void layout_conflict_place(const struct layout_conflict *conflict, const struct layout *layout,
                           struct why *ret_place)
{
        const struct layout_string *name;

        if (conflict->group < 0) {
                why_set(ret_place, "%s", conflict->field);
                return;
        }
        name = &layout->groups[conflict->group].name;
        if (conflict->shard < 0)
                why_set(ret_place, "group %d \"%.*s\": %s", conflict->group,
                        (int)(name->length < 64 ? name->length : 64), name->bytes, conflict->field);
        else
                why_set(ret_place, "group %d \"%.*s\", shard %d: %s", conflict->group,
                        (int)(name->length < 64 ? name->length : 64), name->bytes, conflict->shard,
                        conflict->field);
}
