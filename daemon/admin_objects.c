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

uint8_t admin_nibble(char digit)
{
        return (uint8_t)(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
}

/* Does the hex text of @digest begin with @prefix (is_hex(), an even or odd number of digits)? */
static bool has_hex_prefix(const struct digest *digest, const char *prefix)
{
        for (size_t i = 0; prefix[i]; i++) {
                uint8_t byte = digest->bytes[i / 2];

                if ((i % 2 ? byte & 15 : byte >> 4) != admin_nibble(prefix[i]))
                        return false;
        }
        return true;
}

static bool is_hex(const char *text)
{
        return *text && strlen(text) <= 2 * DIGEST_BYTES &&
               strspn(text, "0123456789abcdefABCDEF") == strlen(text);
}

int admin_find_layout(struct daemon *daemon, const json_t *arguments, bool is_optional,
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
        return json_pack("{s:s, s:I, s:I, s:b, s:b}", "state", copy_state(copy), "leases",
                         (json_int_t)copy->n_leases, "extents", (json_int_t)copy->n_extents,
                         "checksums", copy->checksums != NULL, "unwritten", (int)copy->dirty);
}

json_t *admin_describe_object(struct daemon *daemon, const struct index_object *object)
{
        struct index *index = daemon->cache.index;
        const struct index_boundary *boundary = index_boundary_at(index, object->boundary);
        char digest[2 * DIGEST_BYTES + 1], layout[2 * DIGEST_BYTES + 1];
        char parent[2 * DIGEST_BYTES + 1] = "";
        uint32_t n_covers = 0;

        admin_hex(digest, boundary->digest.bytes, DIGEST_BYTES);
        admin_hex(layout, index_layout_id(index, boundary->layout)->bytes, DIGEST_BYTES);
        if (boundary->parent != INDEX_NONE)
                admin_hex(parent, index_boundary_at(index, boundary->parent)->digest.bytes,
                          DIGEST_BYTES);
        if (object->flags & INDEX_CROPPABLE)
                index_covers(index, object, &n_covers);
        return json_pack(
                "{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:b, s:b, s:I, "
                "s:b, s:b, s:b, s:o}",
                "layout", layout, "digest", digest, "parent", parent, "parent_unknown",
                !!(boundary->flags & INDEX_PARENT_UNKNOWN), "group", (json_int_t)object->group,
                "shard", (json_int_t)object->shard, "bytes", (json_int_t)object->raw_bytes,
                "tokens", (json_int_t)boundary->boundary_tokens, "generation",
                (json_int_t)object->generation, "children", (json_int_t)boundary->n_children,
                "in_host", object->host != INDEX_NONE, "in_nvme", object->place.claim != 0,
                "in_remote", !!(object->flags & INDEX_REMOTE_HERE), "own_in_remote",
                !!(object->flags & INDEX_REMOTE_OWN), "croppable",
                !!(object->flags & INDEX_CROPPABLE), "covers", (json_int_t)n_covers,
                "pinned_in_host", !!(object->flags & INDEX_PINNED_HOST), "pinned_in_nvme",
                !!(object->flags & INDEX_PINNED_NVME), "pinned_in_remote",
                !!(object->flags & INDEX_PINNED_REMOTE), "host", describe_host(daemon, object));
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
        uint32_t position, steps = LS_STEPS;
        const struct index_object *object;
        json_t *objects, *error = NULL;
        uint16_t layout;

        if (limit < 1 || limit > LS_LIMIT_MAX || after < 0 || after > UINT32_MAX)
                return admin_error("ls: \"limit\" goes from 1 to %d, \"after\" is the \"next\" of "
                                   "the page before",
                                   LS_LIMIT_MAX);
        if (admin_find_layout(daemon, arguments, true, &layout, &error))
                return error;
        position = (uint32_t)after;
        objects = json_array();
        while ((json_int_t)json_array_size(objects) < limit &&
               (object = index_scan(index, &position, &steps)))
                if (!layout || index_boundary_at(index, object->boundary)->layout == layout)
                        json_array_append_new(objects, admin_describe_object(daemon, object));
        return json_pack("{s:b, s:o, s:I, s:b}", "ok", 1, "objects", objects, "next",
                         (json_int_t)position, "end", index_scan_has_ended(index, position));
}

bool admin_parse_digest(const char *text, struct digest *ret_digest)
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

/* A group or shard, or REMOVAL_ANY when the member is absent. False when it is neither. */
static bool parse_part(const json_t *arguments, const char *name, int32_t *ret_part)
{
        const json_t *value = json_object_get(arguments, name);
        json_int_t number = json_integer_value(value);

        *ret_part = value ? (int32_t)number : REMOVAL_ANY;
        return !value || (json_is_integer(value) && number >= 0 && number <= UINT16_MAX);
}

/* Of one boundary ("digest"), or of a whole layout. NULL or an error. */
static json_t *parse_extent(struct daemon *daemon, const json_t *arguments,
                            struct removal_request *ret_request)
{
        const json_t *digest = json_object_get(arguments, "digest");
        json_t *error = NULL;

        if (!parse_part(arguments, "group", &ret_request->group) ||
            !parse_part(arguments, "shard", &ret_request->shard))
                return admin_error("\"group\" and \"shard\" are numbers from 0 to 65535");
        if (!digest && (ret_request->group != REMOVAL_ANY || ret_request->shard != REMOVAL_ANY))
                return admin_error("\"group\" and \"shard\" go with a \"digest\"");
        if (digest && (!json_is_string(digest) ||
                       !admin_parse_digest(json_string_value(digest), &ret_request->digest)))
                return admin_error("\"digest\" must be 64 hex digits: see kvtierctl ls");
        ret_request->is_of_boundary = digest != NULL;
        admin_find_layout(daemon, arguments, digest != NULL, &ret_request->layout, &error);
        return error;
}

json_t *admin_removal(struct daemon *daemon, const json_t *arguments, bool clear,
                      struct removal_request *ret_request)
{
        const char *tier = json_string_value(json_object_get(arguments, "tier"));
        json_t *error = parse_extent(daemon, arguments, ret_request);

        if (error)
                return error;
        ret_request->host = clear || !tier || !strcmp(tier, "host");
        ret_request->nvme = clear || (tier && !strcmp(tier, "nvme") && daemon->cache.nvme);
        ret_request->remote = clear || (tier && !strcmp(tier, "remote") && daemon->cache.remote);
        if (!ret_request->host && !ret_request->nvme && !ret_request->remote)
                return admin_error("evict: there is no tier \"%s\" here", tier);
        return NULL;
}
