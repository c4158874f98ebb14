// SPDX-License-Identifier: Apache-2.0
/*
 * One layout per engine, from what its sessions know of it.
 *
 * Each session of an engine is a member with the encoding it attached with, complete or
 * partial; no two members contradict each other. While rows are missing, the assembly is
 * what its members know: when one leaves, its rows are forgotten. Once every row is known
 * the whole layout is encoded, has an id, and stays what it is until the last member has
 * left. An assembly lives only while it has members, so there are never more of them than
 * sessions.
 *
 * Loop thread only.
 */
#pragma once

#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"
#include "proto/key.h"
#include "proto/layout_merge.h"

enum {
        LAYOUT_ASSEMBLY_E_CONFLICT = 1,
        LAYOUT_ASSEMBLY_E_TOO_LARGE = 2, /* an object, or the whole encoding */
};

struct layout_assembly;

struct layout_member {
        TAILQ_ENTRY(layout_member) link;
        struct layout_assembly *assembly; /* NULL: in none */
        uint8_t *asked;                   /* the encoding, if in one */
        size_t asked_bytes;
};

TAILQ_HEAD(layout_member_list, layout_member);

struct layout_assembly {
        LIST_ENTRY(layout_assembly) link;
        uint32_t domain;
        uint8_t engine_id[16];
        struct layout_member_list members; /* oldest first */
        struct layout *whole; /* NULL: rows are missing. Points into encoding */
        uint8_t *encoding;
        size_t encoding_bytes;
        struct digest id;
        uint16_t number; /* the caller's: of the whole layout in the index */
};

LIST_HEAD(layout_assembly_list, layout_assembly);

struct layout_limits {
        uint32_t chunk_tokens; /* of a layout that leaves the choice: at least that */
        uint64_t object_bytes; /* half an arena piece */
};

/* With LAYOUT_ASSEMBLY_E_CONFLICT: what contradicts; "ours" is what the newcomer says. */
struct layout_refusal {
        struct layout_conflict conflict;
        const struct layout_member *other; /* who says "theirs"; NULL: one that has left */
};

/*
 * Enters @member, which has @asked (valid) of an engine to say. 0: its assembly is set,
 * and if that lacks rows still, @why names one. LAYOUT_ASSEMBLY_E_CONFLICT with
 * @ret_refusal, LAYOUT_ASSEMBLY_E_TOO_LARGE or -EINVAL with the reason in @why, -ENOMEM:
 * it has not entered.
 */
int layout_assembly_join(struct layout_assembly_list *assemblies, struct layout_member *member,
                         uint32_t domain, const uint8_t engine_id[16], const struct layout *asked,
                         const struct layout_limits *limits, struct layout_refusal *ret_refusal,
                         struct why *why);

/* Ends a membership, and the assembly with its last one. Fine for one that is in none. */
void layout_assembly_leave(struct layout_member *member);
