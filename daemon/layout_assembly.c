// SPDX-License-Identifier: Apache-2.0
/*
 * Nothing but the members' encodings is kept while rows are missing: each newcomer is
 * merged with all of them anew. That is some microseconds a member, at attach only.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/layout_assembly.h"

static struct layout_assembly *find(const struct layout_assembly_list *assemblies, uint32_t domain,
                                    const uint8_t engine_id[16])
{
        struct layout_assembly *assembly;

        LIST_FOREACH(assembly, assemblies, link)
                if (assembly->domain == domain &&
                    !memcmp(assembly->engine_id, engine_id, sizeof(assembly->engine_id)))
                        return assembly;
        return NULL;
}

static struct layout_assembly *new_assembly(struct layout_assembly_list *assemblies,
                                            uint32_t domain, const uint8_t engine_id[16])
{
        struct layout_assembly *assembly = calloc(1, sizeof(*assembly));

        if (!assembly)
                return NULL;
        assembly->domain = domain;
        memcpy(assembly->engine_id, engine_id, sizeof(assembly->engine_id));
        TAILQ_INIT(&assembly->members);
        LIST_INSERT_HEAD(assemblies, assembly, link);
        return assembly;
}

static void free_if_empty(struct layout_assembly *assembly)
{
        if (!assembly || !TAILQ_EMPTY(&assembly->members))
                return;
        LIST_REMOVE(assembly, link);
        free(assembly->whole);
        free(assembly->encoding);
        free(assembly);
}

/* Adds what all members know to @merged, which is what the newcomer knows. */
static int merge_members(struct layout *merged, const struct layout_assembly *assembly,
                         struct layout_refusal *refusal)
{
        _cleanup_free_ struct layout *known = malloc(sizeof(*known));
        const struct layout_member *member;
        int r = 0;

        if (!known)
                return err_raise(-ENOMEM);
        TAILQ_FOREACH(member, &assembly->members, link) {
                r = layout_decode_partial(known, member->asked, member->asked_bytes, NULL);
                if (!r)
                        r = layout_merge(merged, known, &refusal->conflict);
                refusal->other = member;
                if (r)
                        break;
        }
        return r;
}

/* The same when the whole is known: then nothing is to be added, only to be compared. */
static int compare_whole(struct layout *merged, const struct layout_assembly *assembly,
                         struct layout_refusal *refusal)
{
        struct layout_conflict first;
        int r = layout_merge(merged, assembly->whole, &first);

        if (r != LAYOUT_MERGE_E_CONFLICT)
                return r;
        /* Who said it? If none of those that are left, the conflict is with the whole. */
        r = merge_members(merged, assembly, refusal);
        if (!r) {
                refusal->conflict = first;
                refusal->other = NULL;
        }
        return r < 0 ? r : LAYOUT_MERGE_E_CONFLICT;
}

/* The largest chunk_tokens with which every object keeps the limit; 0: there is none. */
static uint64_t largest_chunk(const struct layout *layout, uint64_t object_bytes)
{
        uint32_t unit = layout_page_lcm(layout);
        uint64_t most = LAYOUT_CHUNK_MAX;

        for (uint16_t i = 0; i < layout->n_groups; i++)
                for (uint16_t j = 0; j < layout->groups[i].n_rows; j++) {
                        const struct layout_row *row = layout_row_at(layout, i, j);
                        uint64_t page = layout_stored_page_bytes(&layout->groups[i], row);
                        uint64_t n_pages = object_bytes / (page ? page : 1);
                        uint64_t n_tokens = n_pages * layout->groups[i].page_tokens;

                        if (layout->groups[i].kind == LAYOUT_SCRATCH ||
                            (layout->groups[i].kind == LAYOUT_STATE && n_pages))
                                continue;
                        most = n_tokens < most ? n_tokens : most;
                }
        return most / unit * unit;
}

static int refuse_large(const struct layout *layout, const struct layout_limits *limits,
                        struct why *why)
{
        uint16_t group;
        uint64_t bytes = layout_largest_object(layout, &group);
        uint64_t chunk = largest_chunk(layout, limits->object_bytes);
        struct why full;

        if (bytes <= limits->object_bytes)
                return 0;
        why_set(&full,
                "group %u \"%.*s\": the layout's largest object has %" PRIu64
                " bytes, half an arena piece is %" PRIu64 ": raise host.piece_bytes to %" PRIu64
                " or more",
                group, (int)layout->groups[group].name.length, layout->groups[group].name.bytes,
                bytes, limits->object_bytes, 2 * bytes);
        if (chunk)
                why_set(why, "%s, or lower chunk_tokens from %u to %" PRIu64, full.text,
                        layout->chunk_tokens, chunk);
        else
                why_set(why, "%s", full.text);
        return LAYOUT_ASSEMBLY_E_TOO_LARGE;
}

/* Chunks that the whole layout will have, and whether its objects keep the limits. */
static int settle_chunk(struct layout *merged, const struct layout_limits *limits, struct why *why)
{
        uint32_t unit = layout_page_lcm(merged);
        int r;

        if (!merged->chunk_tokens)
                merged->chunk_tokens = (limits->chunk_tokens + unit - 1) / unit * unit;
        r = layout_validate(merged, why);
        return r ? r : refuse_large(merged, limits, why);
}

/* The first (group, shard) that nobody has told of. */
static void name_missing(const struct layout *layout, struct why *why)
{
        for (uint16_t i = 0; i < layout->n_groups; i++)
                for (uint16_t j = 0; j < layout->groups[i].n_shards; j++)
                        if (!layout_row(layout, i, j)) {
                                why_set(why,
                                        "group %u \"%.*s\": no session of the engine has told "
                                        "yet what shard %u holds",
                                        i, (int)layout->groups[i].name.length,
                                        layout->groups[i].name.bytes, j);
                                return;
                        }
}

/* Every row is in: the layout gets its encoding and its id. */
static int complete(struct layout_assembly *assembly, const struct layout *merged, struct why *why)
{
        _cleanup_free_ uint8_t *encoding = malloc(LAYOUT_BYTES_MAX);
        _cleanup_free_ struct layout *whole = malloc(sizeof(*whole));
        int length, r;

        if (!encoding || !whole)
                return err_raise(-ENOMEM);
        length = layout_encode(merged, encoding, LAYOUT_BYTES_MAX);
        if (length < 0) {
                why_set(why, "the engine's whole layout is larger than %u bytes", LAYOUT_BYTES_MAX);
                return LAYOUT_ASSEMBLY_E_TOO_LARGE;
        }
        r = layout_decode(whole, encoding, (size_t)length, why);
        if (!r)
                r = layout_id(&assembly->id, encoding, (size_t)length);
        if (r)
                return r;
        assembly->whole = steal_ptr(whole);
        assembly->encoding = steal_ptr(encoding);
        assembly->encoding_bytes = (size_t)length;
        return 0;
}

/* What the newcomer and the members know between them. Settles the assembly if that is all. */
static int merge(struct layout_assembly *assembly, struct layout *merged,
                 const struct layout_limits *limits, struct layout_refusal *refusal,
                 struct why *why)
{
        int r = assembly->whole ? compare_whole(merged, assembly, refusal)
                                : merge_members(merged, assembly, refusal);

        if (r == LAYOUT_MERGE_E_CONFLICT)
                return LAYOUT_ASSEMBLY_E_CONFLICT;
        if (r == -ENOSPC) {
                why_set(why, "the engine's whole layout has more than %u rows", LAYOUT_ROWS_MAX);
                return LAYOUT_ASSEMBLY_E_TOO_LARGE;
        }
        if (r || assembly->whole)
                return r;
        r = settle_chunk(merged, limits, why);
        if (r)
                return r;
        merged->is_partial = !layout_is_complete(merged);
        if (!merged->is_partial)
                return complete(assembly, merged, why);
        name_missing(merged, why);
        return 0;
}

/* The newcomer's own encoding: what a later contradiction is held against. */
static int keep_asked(struct layout_member *member, const struct layout *asked)
{
        uint8_t *shrunk;
        int length;

        member->asked = malloc(LAYOUT_BYTES_MAX);
        if (!member->asked)
                return err_raise(-ENOMEM);
        length = layout_encode(asked, member->asked, LAYOUT_BYTES_MAX);
        if (length < 0) {
                free(steal_ptr(member->asked));
                return length;
        }
        member->asked_bytes = (size_t)length;
        shrunk = realloc(member->asked, member->asked_bytes);
        if (shrunk)
                member->asked = shrunk;
        return 0;
}

int layout_assembly_join(struct layout_assembly_list *assemblies, struct layout_member *member,
                         uint32_t domain, const uint8_t engine_id[16], const struct layout *asked,
                         const struct layout_limits *limits, struct layout_refusal *ret_refusal,
                         struct why *why)
{
        _cleanup_free_ struct layout *merged = malloc(sizeof(*merged));
        struct layout_refusal refusal = {0};
        struct layout_assembly *assembly = find(assemblies, domain, engine_id);
        int r;

        if (!assembly)
                assembly = new_assembly(assemblies, domain, engine_id);
        r = assembly && merged ? keep_asked(member, asked) : err_raise(-ENOMEM);
        if (!r) {
                *merged = *asked;
                r = merge(assembly, merged, limits, &refusal, why);
        }
        if (r) {
                free(steal_ptr(member->asked));
                free_if_empty(assembly);
                if (r == LAYOUT_ASSEMBLY_E_CONFLICT)
                        *ret_refusal = refusal;
                return r;
        }
        member->assembly = assembly;
        TAILQ_INSERT_TAIL(&assembly->members, member, link);
        return 0;
}

void layout_assembly_leave(struct layout_member *member)
{
        struct layout_assembly *assembly = member->assembly;

        if (!assembly)
                return;
        TAILQ_REMOVE(&assembly->members, member, link);
        member->assembly = NULL;
        free(steal_ptr(member->asked));
        free_if_empty(assembly);
}
