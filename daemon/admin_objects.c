// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/admin_objects.h"
#include "daemon/admin_status.h"
#include "daemon/daemon.h"

#define LS_LIMIT_MAX 1000
/* Objects looked at for one page, so that a rare layout does not stall the loop. */
#define LS_STEPS 20000

static void hex(char *text, const uint8_t *bytes, size_t n)
{
        for (size_t i = 0; i < n; i++)
                sprintf(text + 2 * i, "%02x", bytes[i]);
}

/* Does the hex text of @bytes begin with @prefix (an even or odd number of digits)? */
static bool has_hex_prefix(const struct digest *digest, const char *prefix)
{
        char text[2 * DIGEST_BYTES + 1];

        hex(text, digest->bytes, DIGEST_BYTES);
        return !strncasecmp(text, prefix, strlen(prefix));
}

static bool is_hex(const char *text)
{
        return *text && strlen(text) <= 2 * DIGEST_BYTES &&
               strspn(text, "0123456789abcdefABCDEF") == strlen(text);
}

/*
 * The layout that the member "layout" names by a prefix. 0: *@ret_layout is its number, or
 * 0 when the member is absent and @is_optional. Else *@ret_error says why not.
 */
static int find_layout(struct daemon *daemon, const json_t *arguments, bool is_optional,
                       uint16_t *ret_layout, json_t **ret_error)
{
        const char *prefix = json_string_value(json_object_get(arguments, "layout"));
        uint16_t found = 0;

        if (!prefix && is_optional && !json_object_get(arguments, "layout")) {
                *ret_layout = 0;
                return 0;
        }
        if (!prefix || !is_hex(prefix)) {
                *ret_error = admin_error("\"layout\" must be the id of a layout in hex, or its "
                                         "first digits: see kvtierctl layouts");
                return -1;
        }
        for (uint32_t i = 1; i <= index_n_layouts(daemon->cache.index); i++) {
                if (!has_hex_prefix(index_layout_id(daemon->cache.index, (uint16_t)i), prefix))
                        continue;
                if (found) {
                        *ret_error = admin_error("more than one layout begins with %s", prefix);
                        return -1;
                }
                found = (uint16_t)i;
        }
        if (!found) {
                *ret_error = admin_error("no layout begins with %s", prefix);
                return -1;
        }
        *ret_layout = found;
        return 0;
}

static const char *copy_state(const struct host_copy *copy)
{
        return copy->n_leases ? "leased" : copy->n_uses ? "in_use" : "idle";
}

static json_t *describe_host(struct daemon *daemon, const struct index_object *object)
{
        const struct host_copy *copy;

        if (object->host == INDEX_NONE)
                return json_null();
        copy = host_copy_at(&daemon->cache.copies, object->host);
        return json_pack("{s:s, s:I, s:I, s:b, s:b, s:I}", "state", copy_state(copy), "leases",
                         (json_int_t)copy->n_leases, "extents", (json_int_t)copy->n_extents,
                         "checksums", copy->checksums != NULL, "unwritten", (int)copy->dirty,
                         "committed_ns", (json_int_t)copy->committed_ns);
}

static json_t *describe_object(struct daemon *daemon, const struct index_object *object)
{
        struct index *index = daemon->cache.index;
        const struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        char digest[2 * DIGEST_BYTES + 1], layout[2 * DIGEST_BYTES + 1];
        char parent[2 * DIGEST_BYTES + 1] = "";
        uint32_t n_covers = 0;

        hex(digest, boundary->digest.bytes, DIGEST_BYTES);
        hex(layout, index_layout_id(index, boundary->layout)->bytes, DIGEST_BYTES);
        if (boundary->parent != INDEX_NONE)
                hex(parent, index_boundary_at(index, boundary->parent)->digest.bytes, DIGEST_BYTES);
        if (object->flags & INDEX_CROPPABLE)
                index_covers(index, object, &n_covers);
        return json_pack(
                "{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:I, s:o}",
                "layout", layout, "digest", digest, "parent", parent, "parent_unknown",
                !!(boundary->flags & INDEX_PARENT_UNKNOWN), "group", (json_int_t)object->group,
                "shard", (json_int_t)object->shard, "bytes", (json_int_t)object->raw_bytes,
                "tokens", (json_int_t)boundary->boundary_tokens, "generation",
                (json_int_t)object->generation, "children", (json_int_t)boundary->n_children,
                "in_host", object->host != INDEX_NONE, "in_nvme", object->place.claim != 0,
                "croppable", !!(object->flags & INDEX_CROPPABLE), "covers", (json_int_t)n_covers,
                "host", describe_host(daemon, object));
}

struct layout_total {
        uint64_t objects, bytes;
};

json_t *admin_layouts(struct daemon *daemon, const json_t *arguments)
{
        struct index *index = daemon->cache.index;
        uint32_t n = index_n_layouts(index), after = INDEX_NONE;
        _cleanup_free_ struct layout_total *totals = calloc(n + 1, sizeof(*totals));
        const struct index_object *object;
        json_t *layouts;

        (void)arguments;
        if (!totals)
                return NULL;
        while ((object = index_next_object(index, after))) {
                uint16_t layout = index_boundary_at(index, object->boundary)->layout;

                after = index_object_id(index, object);
                totals[layout].objects++;
                totals[layout].bytes += object->raw_bytes;
        }
        layouts = json_array();
        for (uint32_t i = 1; i <= n; i++) {
                char id[2 * DIGEST_BYTES + 1];

                hex(id, index_layout_id(index, (uint16_t)i)->bytes, DIGEST_BYTES);
                json_array_append_new(layouts, json_pack("{s:s, s:I, s:I}", "layout", id, "objects",
                                                         (json_int_t)totals[i].objects, "bytes",
                                                         (json_int_t)totals[i].bytes));
        }
        return json_pack("{s:b, s:o}", "ok", 1, "layouts", layouts);
}

static json_int_t integer_or(const json_t *arguments, const char *name, json_int_t absent)
{
        const json_t *value = json_object_get(arguments, name);

        return json_is_integer(value) ? json_integer_value(value) : absent;
}

json_t *admin_ls(struct daemon *daemon, const json_t *arguments)
{
        struct index *index = daemon->cache.index;
        json_int_t limit = integer_or(arguments, "limit", 100);
        json_int_t after = integer_or(arguments, "after", 0);
        const struct index_object *object = NULL;
        json_t *objects, *error = NULL;
        uint16_t layout;

        if (limit < 1 || limit > LS_LIMIT_MAX || after < 0 || after > UINT32_MAX)
                return admin_error("ls: \"limit\" goes from 1 to %d, \"after\" is the \"next\" of "
                                   "the page before",
                                   LS_LIMIT_MAX);
        if (find_layout(daemon, arguments, true, &layout, &error))
                return error;
        objects = json_array();
        for (unsigned i = 0; i < LS_STEPS && (json_int_t)json_array_size(objects) < limit; i++) {
                object = index_next_object(index, (uint32_t)after);
                if (!object)
                        break;
                after = index_object_id(index, object);
                if (!layout || index_boundary_at(index, object->boundary)->layout == layout)
                        json_array_append_new(objects, describe_object(daemon, object));
        }
        return json_pack("{s:b, s:o, s:I, s:b}", "ok", 1, "objects", objects, "next", after, "end",
                         object == NULL);
}

static bool parse_digest(const char *text, struct digest *ret_digest)
{
        if (strlen(text) != 2 * DIGEST_BYTES || !is_hex(text))
                return false;
        for (size_t i = 0; i < DIGEST_BYTES; i++) {
                unsigned byte;

                sscanf(text + 2 * i, "%2x", &byte);
                ret_digest->bytes[i] = (uint8_t)byte;
        }
        return true;
}

json_t *admin_show(struct daemon *daemon, const json_t *arguments)
{
        const char *text = json_string_value(json_object_get(arguments, "digest"));
        struct index *index = daemon->cache.index;
        json_t *objects, *error = NULL;
        struct digest digest;
        uint16_t layout;

        if (!text || !parse_digest(text, &digest))
                return admin_error("show: \"digest\" must be 64 hex digits: see kvtierctl ls");
        if (find_layout(daemon, arguments, true, &layout, &error))
                return error;
        objects = json_array();
        for (uint32_t i = 1; i <= index_n_layouts(index); i++) {
                const struct index_boundary *boundary;
                uint32_t id;

                if (layout && layout != i)
                        continue;
                boundary = index_find_boundary(index, (uint16_t)i, &digest);
                for (id = boundary ? boundary->first_object : INDEX_NONE; id != INDEX_NONE;
                     id = index_object_at(index, id)->next)
                        json_array_append_new(objects,
                                              describe_object(daemon, index_object_at(index, id)));
        }
        return json_pack("{s:b, s:o}", "ok", 1, "objects", objects);
}

/* Drops from one tier (or all) what may go now; returns what went and what had to stay. */
static json_t *drop_layout(struct daemon *daemon, uint16_t layout, bool host, bool nvme)
{
        struct cache *cache = &daemon->cache;
        json_int_t dropped = 0, bytes = 0, kept = 0;
        struct index_object *object;
        uint32_t after = INDEX_NONE;

        while ((object = index_next_object(cache->index, after))) {
                bool in_host = object->host != INDEX_NONE;
                bool in_nvme = object->place.claim != 0;
                const struct host_copy *copy =
                        in_host ? host_copy_at(&cache->copies, object->host) : NULL;

                after = index_object_id(cache->index, object);
                if (index_boundary_at(cache->index, object->boundary)->layout != layout ||
                    !((host && in_host) || (nvme && in_nvme)))
                        continue;
                if ((host && in_host && (copy->n_leases || copy->n_uses)) ||
                    (nvme && object->flags & (INDEX_READING | INDEX_WRITING))) {
                        kept++;
                        continue;
                }
                dropped++;
                bytes += object->raw_bytes;
                if (host && nvme)
                        cache_drop(cache, object, METRICS_BY_ADMIN);
                else if (host)
                        cache_drop_host(cache, object, METRICS_BY_ADMIN);
                else
                        cache_drop_place(cache, object, METRICS_BY_ADMIN);
        }
        return json_pack("{s:b, s:I, s:I, s:I}", "ok", 1, "objects", dropped, "bytes", bytes,
                         "kept", kept);
}

json_t *admin_evict(struct daemon *daemon, const json_t *arguments)
{
        const char *tier = json_string_value(json_object_get(arguments, "tier"));
        json_t *error = NULL;
        uint16_t layout;

        if (find_layout(daemon, arguments, false, &layout, &error))
                return error;
        if (!tier || !strcmp(tier, "host"))
                return drop_layout(daemon, layout, true, false);
        if (!strcmp(tier, "nvme") && daemon->cache.nvme)
                return drop_layout(daemon, layout, false, true);
        return admin_error("evict: there is no tier \"%s\" here", tier);
}

json_t *admin_clear(struct daemon *daemon, const json_t *arguments)
{
        json_t *error = NULL;
        uint16_t layout;

        if (find_layout(daemon, arguments, false, &layout, &error))
                return error;
        return drop_layout(daemon, layout, true, true);
}
