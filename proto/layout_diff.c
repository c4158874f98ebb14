// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/layout_diff.h"

struct diff {
        const struct layout *a, *b;
        bool (*on_difference)(void *user, const struct layout_difference *difference);
        void *user;
        unsigned n;
        bool has_ended;
        char prefix[LAYOUT_DIFF_TEXT_MAX]; /* "group full ", or "" */
};

static void tell(struct diff *diff, const char *field, const char *a, const char *b)
{
        struct layout_difference difference;

        if (diff->has_ended)
                return;
        /* Texts that do not fit are cut, which is what the format says. */
        snprintf(difference.field, sizeof(difference.field), "%.100s%.50s", diff->prefix, field);
        if (!*field && *diff->prefix)
                difference.field[strlen(difference.field) - 1] = '\0'; /* its space */
        snprintf(difference.a, sizeof(difference.a), "%.150s", a);
        snprintf(difference.b, sizeof(difference.b), "%.150s", b);
        diff->n++;
        diff->has_ended = !diff->on_difference(diff->user, &difference);
}

static void compare_numbers(struct diff *diff, const char *field, uint64_t a, uint64_t b)
{
        char text_a[24], text_b[24];

        if (a == b)
                return;
        snprintf(text_a, sizeof(text_a), "%" PRIu64, a);
        snprintf(text_b, sizeof(text_b), "%" PRIu64, b);
        tell(diff, field, text_a, text_b);
}

static bool strings_equal(const struct layout_string *a, const struct layout_string *b)
{
        return a->length == b->length && (!a->length || !memcmp(a->bytes, b->bytes, a->length));
}

/* Texts that begin alike are told from where they part, so that a cut hides nothing. */
static void compare_strings(struct diff *diff, const char *field, const struct layout_string *a,
                            const struct layout_string *b)
{
        char text_a[LAYOUT_DIFF_TEXT_MAX], text_b[LAYOUT_DIFF_TEXT_MAX];
        const char *cut = "";
        uint16_t from = 0;

        if (strings_equal(a, b))
                return;
        if (a->length >= 120 || b->length >= 120) {
                while (from < a->length && from < b->length && a->bytes[from] == b->bytes[from])
                        from++;
                from = from > 20 ? (uint16_t)(from - 20) : 0;
                cut = from ? "..." : "";
        }
        snprintf(text_a, sizeof(text_a), "\"%s%.*s\"", cut, a->length - from, a->bytes + from);
        snprintf(text_b, sizeof(text_b), "\"%s%.*s\"", cut, b->length - from, b->bytes + from);
        tell(diff, field, text_a, text_b);
}

/* ---- rows ---- */

static void compare_tensor(struct diff *diff, const struct layout_tensor *a,
                           const struct layout_tensor *b)
{
        char field[64];

        compare_strings(diff, "tensor", &a->name, &b->name);
        if (!strings_equal(&a->name, &b->name))
                return;
        snprintf(field, sizeof(field), "tensor %.*s dtype",
                 a->name.length < 30 ? a->name.length : 30, a->name.bytes);
        compare_strings(diff, field, &a->dtype, &b->dtype);
        snprintf(field, sizeof(field), "tensor %.*s bytes",
                 a->name.length < 30 ? a->name.length : 30, a->name.bytes);
        compare_numbers(diff, field, a->bytes, b->bytes);
}

/* The first tensor that differs: the others mostly follow from it. */
static void compare_tensors(struct diff *diff, const struct layout_row *a,
                            const struct layout_row *b)
{
        uint32_t at_a = 0, at_b = 0;
        struct layout_tensor tensor_a, tensor_b;
        unsigned before = diff->n;

        compare_numbers(diff, "number of tensors", a->n_tensors, b->n_tensors);
        while (diff->n == before && layout_tensor_next(a, &at_a, &tensor_a) &&
               layout_tensor_next(b, &at_b, &tensor_b))
                compare_tensor(diff, &tensor_a, &tensor_b);
}

static void compare_row(struct diff *diff, const struct layout_row *a, const struct layout_row *b)
{
        compare_numbers(diff, "page_bytes", a->page_bytes, b->page_bytes);
        compare_numbers(diff, "padded_bytes", a->padded_bytes, b->padded_bytes);
        compare_tensors(diff, a, b);
}

static uint16_t end_of(const struct layout_row *row)
{
        return (uint16_t)(row->first_shard + row->n_shards);
}

/* Shards of the same pair of rows are told once. */
static void compare_rows(struct diff *diff, uint16_t a, uint16_t b, uint16_t n_shards)
{
        char prefix[sizeof(diff->prefix)];
        uint16_t end;

        memcpy(prefix, diff->prefix, sizeof(prefix));
        for (uint16_t shard = 0; shard < n_shards; shard = end) {
                const struct layout_row *row_a = layout_row(diff->a, a, shard);
                const struct layout_row *row_b = layout_row(diff->b, b, shard);

                if (!row_a || !row_b)
                        return; /* a partial layout: there is nothing to compare */
                end = end_of(row_a) < end_of(row_b) ? end_of(row_a) : end_of(row_b);
                if (n_shards > 1 && end - shard > 1)
                        snprintf(diff->prefix, sizeof(diff->prefix), "%.120sshards %u-%u ", prefix,
                                 shard, end - 1u);
                else if (n_shards > 1)
                        snprintf(diff->prefix, sizeof(diff->prefix), "%.120sshard %u ", prefix,
                                 shard);
                compare_row(diff, row_a, row_b);
        }
        memcpy(diff->prefix, prefix, sizeof(prefix));
}

/* ---- groups ---- */

static void set_prefix(struct diff *diff, const struct layout_group *group, uint16_t index)
{
        if (group->name.length)
                snprintf(diff->prefix, sizeof(diff->prefix), "group %.*s ",
                         group->name.length < 60 ? group->name.length : 60, group->name.bytes);
        else
                snprintf(diff->prefix, sizeof(diff->prefix), "group %u ", index);
}

static void compare_group(struct diff *diff, uint16_t a, uint16_t b)
{
        const struct layout_group *group_a = &diff->a->groups[a], *group_b = &diff->b->groups[b];

        set_prefix(diff, group_a, a);
        if (group_a->kind != group_b->kind)
                tell(diff, "kind", layout_kind_name(group_a->kind),
                     layout_kind_name(group_b->kind));
        if (group_a->codec != group_b->codec)
                tell(diff, "codec", codec_name(group_a->codec), codec_name(group_b->codec));
        compare_numbers(diff, "shards", group_a->n_shards, group_b->n_shards);
        compare_numbers(diff, "page_tokens", group_a->page_tokens, group_b->page_tokens);
        compare_numbers(diff, "window_tokens", group_a->window_tokens, group_b->window_tokens);
        if (group_a->n_shards == group_b->n_shards)
                compare_rows(diff, a, b, group_a->n_shards);
        else if (layout_row(diff->a, a, 0) && layout_row(diff->b, b, 0))
                compare_row(diff, layout_row(diff->a, a, 0), layout_row(diff->b, b, 0));
        diff->prefix[0] = '\0';
}

/* The group of @in that stands for group @index of @of: the same name, the same place among
 * those of that name. -1: there is none. */
static int find_group(const struct layout *in, const struct layout *of, uint16_t index)
{
        unsigned before = 0;

        for (uint16_t i = 0; i < index; i++)
                before += strings_equal(&of->groups[i].name, &of->groups[index].name);
        for (uint16_t i = 0; i < in->n_groups; i++) {
                if (!strings_equal(&in->groups[i].name, &of->groups[index].name))
                        continue;
                if (!before--)
                        return i;
        }
        return -1;
}

static void tell_only(struct diff *diff, const struct layout *of, uint16_t index)
{
        const struct layout_group *group = &of->groups[index];
        const char *kind = layout_kind_name(group->kind);

        set_prefix(diff, group, index);
        tell(diff, "", of == diff->a ? kind : "-", of == diff->a ? "-" : kind);
        diff->prefix[0] = '\0';
}

/* Places count: cells are numbered by them. */
static void compare_groups(struct diff *diff)
{
        int last = -1;
        bool in_order = true;

        for (uint16_t i = 0; i < diff->a->n_groups; i++) {
                int other = find_group(diff->b, diff->a, i);

                if (other < 0) {
                        tell_only(diff, diff->a, i);
                        continue;
                }
                compare_group(diff, i, (uint16_t)other);
                in_order = in_order && other > last;
                last = other;
        }
        for (uint16_t i = 0; i < diff->b->n_groups; i++)
                if (find_group(diff->a, diff->b, i) < 0)
                        tell_only(diff, diff->b, i);
        if (!in_order)
                tell(diff, "order of the groups", "-", "-");
}

unsigned layout_diff(const struct layout *a, const struct layout *b,
                     bool (*on_difference)(void *user, const struct layout_difference *difference),
                     void *user)
{
        struct diff diff = {.a = a, .b = b, .on_difference = on_difference, .user = user};

        for (size_t i = 0; i < LAYOUT_N_STRINGS; i++)
                compare_strings(&diff, layout_string_names[i], &a->strings[i], &b->strings[i]);
        compare_numbers(&diff, "draft_tokens", a->draft_tokens, b->draft_tokens);
        compare_numbers(&diff, "chunk_tokens", a->chunk_tokens, b->chunk_tokens);
        compare_numbers(&diff, "tp", a->tp, b->tp);
        compare_numbers(&diff, "pp", a->pp, b->pp);
        compare_numbers(&diff, "cp", a->cp, b->cp);
        compare_groups(&diff);
        return diff.n;
}

const char *layout_kind_name(uint8_t kind)
{
        static const char *const names[] = {
                [LAYOUT_ATTENTION] = "attention", [LAYOUT_WINDOW] = "window",
                [LAYOUT_INDEX] = "index",         [LAYOUT_COMPRESSED] = "compressed",
                [LAYOUT_STATE] = "state",         [LAYOUT_SCRATCH] = "scratch",
        };

        return kind < sizeof(names) / sizeof(names[0]) && names[kind] ? names[kind] : "unknown";
}
