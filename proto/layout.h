// SPDX-License-Identifier: Apache-2.0
/*
 * A layout: everything that decides what an engine's bytes mean. Two engines share
 * objects if and only if their layouts encode to the same bytes; the layout id is the
 * SHA-256 of that encoding.
 *
 * A group's shards need not hold the same: pipeline ranks hold other layers. What one
 * shard holds is a row; neighbours that hold the same share it. Canonical encoding,
 * version 2, little-endian, no padding:
 *   "KVTL" | u16 version | u16 flags
 *   | string model, revision, model_dtype, kv_dtype, engine, engine_build, kernel_layout,
 *     replay_mode            (a string: u16 length, bytes, no NUL)
 *   | u32 draft_tokens | u32 chunk_tokens | u16 tp | u16 pp | u16 cp | u16 n_groups
 *   | n_groups x ( string name | u8 kind | u8 codec | u16 n_shards | u32 page_tokens
 *     | u32 window_tokens | u16 n_rows
 *     | n_rows x ( u16 first_shard | u16 n_shards | u64 page_bytes | u64 padded_bytes
 *       | u16 n_tensors | n_tensors x ( string name | string dtype | u64 bytes ) ) )
 * Rows stand in order of their shards and are maximal: two that touch differ. They cover
 * every shard, unless flags has PARTIAL (1): then the rest is known to other processes of
 * the engine (proto/layout_merge.h), and the encoding has no id.
 * The encoding carries the chunk_tokens that holds: when an engine asks for 0, the daemon
 * chooses, and both sides encode the choice before they take the id.
 *
 * Pure functions, no allocation, any thread. Strings and tensors of a decoded layout point
 * into the encoding and are not NUL-terminated. struct layout is large (some 40 KiB).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/codec.h"
#include "proto/key.h"

#define LAYOUT_VERSION     2u
#define LAYOUT_PARTIAL     1u /* flag: rows are missing */
#define LAYOUT_BYTES_MAX   32768u
#define LAYOUT_STRING_MAX  1024u
#define LAYOUT_N_STRINGS   8u
#define LAYOUT_GROUPS_MAX  32u
#define LAYOUT_TENSORS_MAX 512u /* of one row */
#define LAYOUT_SHARDS_MAX  1024u
#define LAYOUT_ROWS_MAX    1024u /* of all groups */
#define LAYOUT_CELLS_MAX   1024u /* sum of shards over the groups that are stored */
#define LAYOUT_OBJECT_MAX  (UINT64_C(1) << 30)
#define LAYOUT_CHUNK_MAX   (1u << 24) /* tokens of a chunk */

enum layout_kind {
        LAYOUT_ATTENTION = 1,  /* paged, every chunk needed */
        LAYOUT_WINDOW = 2,     /* paged, only the trailing window needed */
        LAYOUT_INDEX = 3,      /* paged, every chunk needed */
        LAYOUT_COMPRESSED = 4, /* paged, every chunk needed */
        LAYOUT_STATE = 5,      /* one opaque blob at a boundary */
        LAYOUT_SCRATCH = 6,    /* never stored: no cells */
};

struct layout_string {
        const char *bytes;
        uint16_t length;
};

/* One tensor of a row: of one page (paged groups) or of the blob (state). */
struct layout_tensor {
        struct layout_string name;
        struct layout_string dtype;
        uint64_t bytes;
};

/* What each shard of a run holds. */
struct layout_row {
        uint16_t first_shard;
        uint16_t n_shards;
        uint16_t n_tensors;
        uint32_t tensors_bytes;
        const uint8_t *tensors; /* their encodings, one after another */
        uint64_t page_bytes;    /* in the engine's memory: un-padded, all layers, one shard; with
                                   a codec whole tiles; state: the blob, 0 when its length varies */
        uint64_t padded_bytes;  /* with the engine's padding; >= page_bytes */
};

struct layout_group {
        struct layout_string name;
        uint8_t kind;           /* enum layout_kind */
        uint8_t codec;          /* enum codec: of the pages in objects; paged groups only */
        uint16_t n_shards;      /* 1: replicated, however many ranks there are */
        uint32_t page_tokens;   /* N; 0 for state groups */
        uint32_t window_tokens; /* window groups only */
        uint16_t first_row;     /* in layout.rows: each group's follow those of the one before */
        uint16_t n_rows;
};

struct layout {
        union {
                struct {
                        struct layout_string model, revision, model_dtype, kv_dtype;
                        struct layout_string engine, engine_build, kernel_layout, replay_mode;
                };
                struct layout_string strings[LAYOUT_N_STRINGS]; /* the same, in this order */
        };
        uint32_t draft_tokens;
        uint32_t chunk_tokens; /* 0 in a request: the daemon chooses */
        uint16_t tp, pp, cp;
        uint16_t n_groups;
        uint16_t n_rows;
        bool is_partial; /* rows may be missing */
        struct layout_group groups[LAYOUT_GROUPS_MAX];
        struct layout_row rows[LAYOUT_ROWS_MAX]; /* n_rows of them in use */
};

/* "model" to "replay_mode", as in layout.strings. */
extern const char *const layout_string_names[LAYOUT_N_STRINGS];

/*
 * Encodes one tensor record (for layout_row.tensors). Returns its length, or -ENOSPC
 * when it does not fit @capacity.
 */
int layout_tensor_encode(uint8_t *buffer, size_t capacity, struct layout_string name,
                         struct layout_string dtype, uint64_t bytes);

/*
 * The tensor of @row that begins at byte @*position (0 for the first), which moves on.
 * False behind the last one.
 */
bool layout_tensor_next(const struct layout_row *row, uint32_t *position,
                        struct layout_tensor *ret_tensor);

/* Returns the length written, or -ENOSPC. The layout must be valid (layout_validate). */
int layout_encode(const struct layout *layout, uint8_t *buffer, size_t capacity);

/*
 * Decodes and validates what somebody else encoded; every row must be there. 0, or
 * -EINVAL with the reason in @why; never reads outside @buffer.
 */
int layout_decode(struct layout *ret_layout, const uint8_t *buffer, size_t length, struct why *why);

/* The same, also for an encoding with the flag PARTIAL. */
int layout_decode_partial(struct layout *ret_layout, const uint8_t *buffer, size_t length,
                          struct why *why);

/*
 * The rules that hold for every layout: known kinds, a name of its own for each group,
 * positive sizes, rows as described above, tensors that add up to page_bytes, chunk_tokens
 * a multiple of every paged group's page_tokens, limits. The text in @why names the group
 * and what would be right. 0 or -EINVAL.
 */
int layout_validate(const struct layout *layout, struct why *why);

/*
 * Appends a row to the last group that has rows, or to a later one: @group, which must be
 * below n_groups. It joins the row before when that touches it and holds the same. 0, or
 * -ENOSPC when there are LAYOUT_ROWS_MAX.
 */
int layout_add_row(struct layout *layout, uint16_t group, const struct layout_row *row);

/* Row @i of @group, below its n_rows. */
const struct layout_row *layout_row_at(const struct layout *layout, uint16_t group, uint16_t i);

/* The row that holds (group, shard), or NULL: out of range, or missing in a partial one. */
const struct layout_row *layout_row(const struct layout *layout, uint16_t group, uint16_t shard);

/* Do two rows hold the same, wherever they stand? */
bool layout_rows_equal(const struct layout_row *a, const struct layout_row *b);

/* Has every shard of every group its row? Rows must be in order (layout_validate). */
bool layout_is_complete(const struct layout *layout);

/* Least common multiple of a valid layout's page_tokens over the paged groups, or 1. */
uint32_t layout_page_lcm(const struct layout *layout);

/* What a page of @row has in an object: its page_bytes, or less where the group has a codec. */
uint64_t layout_stored_page_bytes(const struct layout_group *group, const struct layout_row *row);

/*
 * Bytes of one chunk of (group, shard) as it is stored. State: page_bytes, where 0 is any length.
 * Scratch and shards without a row: 0.
 */
uint64_t layout_object_bytes(const struct layout *layout, uint16_t group, uint16_t shard);

/* The largest of layout_object_bytes(); @ret_group (may be NULL): whose it is. */
uint64_t layout_largest_object(const struct layout *layout, uint16_t *ret_group);

/* (group, shard) cells, in order of groups then shards; scratch groups have none. */
uint32_t layout_n_cells(const struct layout *layout);

/* Cell number of (group, shard), or -1 when there is none. */
int layout_cell(const struct layout *layout, uint16_t group, uint16_t shard);

/* SHA-256 of a complete encoding. 0 or -ENOMEM. */
int layout_id(struct digest *ret_id, const uint8_t *encoding, size_t length);
