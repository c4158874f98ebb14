// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/admin_layouts.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"
#include "daemon/layout_table.h"
#include "daemon/layout_use.h"
#include "proto/layout_diff.h"

/* Of one answer: decoding and comparing takes some microseconds each. */
#define PAGE            32u
#define ROWS_MAX        64u /* listed of a group */
#define DIFFERENCES_MAX 32u
#define DTYPES_MAX      8u /* of a group */
#define NAMES_MAX       4u /* of its tensors */

static bool decode(struct layout *ret_layout, const struct layout_entry *entry)
{
        struct why why;

        return entry->encoding &&
               !layout_decode(ret_layout, entry->encoding, entry->encoding_bytes, &why);
}

static json_t *string_of(const struct layout_string *string)
{
        json_t *text = json_stringn(string->bytes ? string->bytes : "", string->length);

        /* Control characters are refused at attach; what is no UTF-8 is not. */
        return text ? text : json_string("(not UTF-8)");
}

/* ---- one layout ---- */

static json_t *describe_rows(const struct layout *layout, uint16_t group)
{
        json_t *rows = json_array();

        for (uint16_t i = 0; i < layout->groups[group].n_rows && i < ROWS_MAX; i++) {
                const struct layout_row *row = layout_row_at(layout, group, i);

                json_array_append_new(
                        rows,
                        json_pack("{s:i, s:i, s:I, s:I, s:I, s:i}", "first_shard", row->first_shard,
                                  "shards", row->n_shards, "page_bytes",
                                  (json_int_t)row->page_bytes, "padded_bytes",
                                  (json_int_t)row->padded_bytes, "stored_page_bytes",
                                  (json_int_t)layout_stored_page_bytes(&layout->groups[group], row),
                                  "tensors", row->n_tensors));
        }
        return rows;
}

/* What can be read from the tensors of a group, over all its rows. */
static void describe_tensors(json_t *object, const struct layout *layout, uint16_t group)
{
        json_t *set = json_object(), *dtypes = json_array(), *names = json_array();
        json_int_t n_index = 0;
        const char *dtype;
        json_t *one;

        for (uint16_t i = 0; i < layout->groups[group].n_rows; i++) {
                const struct layout_row *row = layout_row_at(layout, group, i);
                struct layout_tensor tensor;
                uint32_t at = 0;

                while (layout_tensor_next(row, &at, &tensor)) {
                        n_index +=
                                memmem(tensor.name.bytes, tensor.name.length, "index", 5) != NULL;
                        if (json_array_size(names) < NAMES_MAX)
                                json_array_append_new(names, string_of(&tensor.name));
                        if (json_object_size(set) < DTYPES_MAX)
                                json_object_setn_new(set, tensor.dtype.bytes, tensor.dtype.length,
                                                     json_null());
                }
        }
        json_object_foreach(set, dtype, one) json_array_append_new(dtypes, json_string(dtype));
        json_decref(set);
        json_object_set_new(object, "dtypes", dtypes);
        json_object_set_new(object, "tensor_names", names);
        json_object_set_new(object, "index_tensors", json_integer(n_index));
}

static void describe_use(json_t *object, const struct layout_entry *entry, uint16_t group)
{
        static const struct layout_group_use unused;
        const struct layout_group_use *use = entry->use ? &entry->use->groups[group] : &unused;

        json_object_set_new(object, "stored", json_integer((json_int_t)use->stored));
        json_object_set_new(object, "hits", json_integer((json_int_t)use->hits));
        json_object_set_new(object, "states", json_integer((json_int_t)use->states));
        json_object_set_new(object, "off_chunk", json_integer((json_int_t)use->off_chunk));
        json_object_set_new(object, "spacing_tokens", json_integer(use->spacing));
}

static json_t *describe_groups(const struct layout *layout, const struct layout_entry *entry)
{
        json_t *groups = json_array();

        for (uint16_t g = 0; g < layout->n_groups; g++) {
                const struct layout_group *group = &layout->groups[g];
                json_t *object = json_pack(
                        "{s:o, s:s, s:s, s:i, s:I, s:I, s:i, s:o}", "name", string_of(&group->name),
                        "kind", layout_kind_name(group->kind), "codec", codec_name(group->codec),
                        "shards", group->n_shards, "page_tokens", (json_int_t)group->page_tokens,
                        "window_tokens", (json_int_t)group->window_tokens, "n_rows", group->n_rows,
                        "rows", describe_rows(layout, g));

                describe_tensors(object, layout, g);
                describe_use(object, entry, g);
                json_array_append_new(groups, object);
        }
        return groups;
}

static json_t *describe_told(const struct layout_entry *entry)
{
        static const struct layout_told nothing;
        const struct layout_told *told = entry->use ? &entry->use->told : &nothing;

        return json_pack("{s:I, s:I, s:I, s:I, s:I}", "prompts", (json_int_t)told->prompts,
                         "prompt_tokens", (json_int_t)told->prompt_tokens, "tail_tokens",
                         (json_int_t)told->tail_tokens, "kv_tokens", (json_int_t)told->kv_tokens,
                         "hit_tokens", (json_int_t)told->hit_tokens);
}

/* Adds what the encoding says. */
static void describe_meaning(json_t *object, const struct layout *layout,
                             const struct layout_entry *entry)
{
        for (size_t i = 0; i < LAYOUT_N_STRINGS; i++)
                json_object_set_new(object, layout_string_names[i], string_of(&layout->strings[i]));
        json_object_set_new(object, "draft_tokens", json_integer(layout->draft_tokens));
        json_object_set_new(object, "chunk_tokens", json_integer(layout->chunk_tokens));
        json_object_set_new(object, "tp", json_integer(layout->tp));
        json_object_set_new(object, "pp", json_integer(layout->pp));
        json_object_set_new(object, "cp", json_integer(layout->cp));
        json_object_set_new(object, "cells", json_integer(layout_n_cells(layout)));
        json_object_set_new(object, "groups", describe_groups(layout, entry));
}

static json_int_t count_sessions(const struct daemon *daemon, uint16_t layout)
{
        const struct session *session;
        json_int_t n = 0;

        TAILQ_FOREACH(session, &daemon->sessions, link)
                n += session->layout == layout && session->state == SESSION_ATTACHED;
        return n;
}

/* The least that a session told of what its engine computes in a step; 0: none did. */
static json_int_t least_batch(const struct daemon *daemon, uint16_t layout)
{
        const struct session *session;
        uint32_t least = 0;

        TAILQ_FOREACH(session, &daemon->sessions, link)
                if (session->layout == layout && session->state == SESSION_ATTACHED &&
                    session->batch_tokens && (!least || session->batch_tokens < least))
                        least = session->batch_tokens;
        return least;
}

/* ---- differences ---- */

static bool add_difference(void *user, const struct layout_difference *difference)
{
        json_t *differences = user;
        json_t *item = json_pack("{s:s, s:s, s:s}", "field", difference->field, "this",
                                 difference->a, "other", difference->b);

        /* What is no UTF-8 is still a difference. */
        if (!item)
                item = json_pack("{s:s, s:s, s:s}", "field", "(not UTF-8)", "this", "", "other",
                                 "");
        json_array_append_new(differences, item);
        return json_array_size(differences) < DIFFERENCES_MAX;
}

static json_t *compare(const struct layout *layout, const struct layout_entry *other_entry)
{
        _cleanup_free_ struct layout *other = malloc(sizeof(*other));
        json_t *differences = json_array();

        if (other && decode(other, other_entry))
                layout_diff(layout, other, add_difference, differences);
        return differences;
}

json_t *admin_layout_differences(struct daemon *daemon, uint16_t layout, uint16_t other)
{
        _cleanup_free_ struct layout *decoded = malloc(sizeof(*decoded));

        if (!decoded || !decode(decoded, index_layout_at(daemon->cache.index, layout)))
                return json_array();
        return compare(decoded, index_layout_at(daemon->cache.index, other));
}

/* The model's name is what an encoding begins with: enough to pass over most without decoding. */
static bool has_model(const struct layout_entry *entry, const struct layout_string *model)
{
        const size_t at = 8;

        return entry->encoding && entry->encoding_bytes >= at + 2 + model->length &&
               !memcmp(entry->encoding + at, &model->length, sizeof(model->length)) &&
               !memcmp(entry->encoding + at + 2, model->bytes, model->length);
}

/* The first layout of the same model and domain, when that is not this one; or 0. */
static uint16_t first_of_model(const struct index *index, uint16_t number,
                               const struct layout *layout)
{
        for (uint16_t i = 1; i < number; i++)
                if (has_model(index_layout_at(index, i), &layout->model) &&
                    index_layout_domain(index, i) == index_layout_domain(index, number))
                        return i;
        return 0;
}

static void add_comparison(json_t *object, struct daemon *daemon, uint16_t number,
                           const struct layout *layout)
{
        struct index *index = daemon->cache.index;
        uint16_t other = first_of_model(index, number, layout);
        char id[2 * DIGEST_BYTES + 1];

        if (!other)
                return;
        admin_hex(id, index_layout_id(index, other)->bytes, DIGEST_BYTES);
        json_object_set_new(object, "differs_from", json_string(id));
        json_object_set_new(object, "differences", compare(layout, index_layout_at(index, other)));
}

/* ---- the list ---- */

static json_t *describe_layout(struct daemon *daemon, uint16_t number)
{
        const struct layout_entry *entry = index_layout_at(daemon->cache.index, number);
        _cleanup_free_ struct layout *layout = malloc(sizeof(*layout));
        char id[2 * DIGEST_BYTES + 1];
        bool is_known = layout && decode(layout, entry);
        json_t *object;

        admin_hex(id, entry->id.bytes, DIGEST_BYTES);
        object = json_pack("{s:s, s:I, s:I, s:I, s:b}", "layout", id, "objects",
                           (json_int_t)entry->objects, "bytes", (json_int_t)entry->bytes,
                           "sessions", count_sessions(daemon, number), "known", (int)is_known);
        if (object)
                json_object_set_new(object, "domain",
                                    json_integer(index_layout_domain(daemon->cache.index, number)));
        if (object && is_known) {
                describe_meaning(object, layout, entry);
                json_object_set_new(object, "told", describe_told(entry));
                json_object_set_new(object, "batch_tokens",
                                    json_integer(least_batch(daemon, number)));
                add_comparison(object, daemon, number, layout);
        }
        return object;
}

static json_t *name_groups(const struct layout *layout)
{
        json_t *groups = json_array();

        for (uint16_t g = 0; g < layout->n_groups; g++)
                json_array_append_new(groups, json_pack("{s:o, s:s}", "name",
                                                        string_of(&layout->groups[g].name), "kind",
                                                        layout_kind_name(layout->groups[g].kind)));
        return groups;
}

json_t *admin_layout_brief(struct daemon *daemon, uint16_t number)
{
        const struct layout_entry *entry = index_layout_at(daemon->cache.index, number);
        _cleanup_free_ struct layout *layout = malloc(sizeof(*layout));
        char id[2 * DIGEST_BYTES + 1];
        json_t *object;

        admin_hex(id, entry->id.bytes, DIGEST_BYTES);
        object = json_pack("{s:s, s:I, s:I, s:I}", "layout", id, "objects",
                           (json_int_t)entry->objects, "bytes", (json_int_t)entry->bytes,
                           "sessions", count_sessions(daemon, number));
        if (!object || !layout || !decode(layout, entry))
                return object;
        json_object_set_new(object, "model", string_of(&layout->model));
        json_object_set_new(object, "engine", string_of(&layout->engine));
        json_object_set_new(object, "chunk_tokens", json_integer(layout->chunk_tokens));
        json_object_set_new(object, "groups", name_groups(layout));
        return object;
}

json_t *admin_layouts(struct daemon *daemon, const json_t *arguments)
{
        const json_t *after = json_object_get(arguments, "after");
        uint32_t n = index_n_layouts(daemon->cache.index);
        json_int_t number = json_integer_value(after);
        json_t *layouts;

        if (after && (!json_is_integer(after) || number < 0 || number > UINT16_MAX))
                return admin_error("layouts: \"after\" is the \"next\" of the page before");
        layouts = json_array();
        while (number < n && json_array_size(layouts) < PAGE)
                json_array_append_new(layouts, describe_layout(daemon, (uint16_t)++number));
        return json_pack("{s:b, s:o, s:I, s:b}", "ok", 1, "layouts", layouts, "next", number, "end",
                         (int)(number >= n));
}
