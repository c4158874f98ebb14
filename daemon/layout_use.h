// SPDX-License-Identifier: Apache-2.0
/*
 * What engines have done with a layout since the daemon's start, for kvtierctl doctor: which
 * groups were stored and loaded, and at which boundaries states come. A layout without it has
 * not been used, or found no memory for it: nothing depends on it. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout.h"

struct layout_entry;
struct session;
struct wire_tell;

struct layout_group_use {
        uint64_t stored;    /* objects that were committed */
        uint64_t hits;      /* objects that were granted to be loaded */
        uint64_t states;    /* of a state beside KV: asked to be stored */
        uint64_t off_chunk; /* of these, at a boundary where no chunk ends: no match finds them */
        uint32_t spacing;   /* greatest common divisor of their boundaries, in tokens; 0: none */
};

/* What engines told of prompts that they looked for, added up. */
struct layout_told {
        uint64_t prompts, prompt_tokens;
        uint64_t tail_tokens; /* behind the last whole chunk */
        uint64_t kv_tokens;   /* whose KV was there */
        uint64_t hit_tokens;  /* that could be used */
};

struct layout_use {
        struct layout_told told;
        struct layout_group_use groups[LAYOUT_GROUPS_MAX];
};

/* Of @group, made when it is not there; NULL: no memory, or no such group. */
struct layout_group_use *layout_use_group(struct layout_entry *entry, uint16_t group);

/* A session with the layout says what only its engine knows. */
void layout_use_tell(struct session *session, const struct wire_tell *tell);

/* A state is going to be stored at @boundary_tokens. */
void layout_use_note_state(struct layout_entry *entry, uint16_t group, uint32_t boundary_tokens);
