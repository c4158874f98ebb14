// SPDX-License-Identifier: Apache-2.0
/*
 * The block at the start of each data file or device: which pool it belongs to, which
 * member of it it is, and how it is laid out. Two copies, each with its own checksum, lie
 * in the first SUPERBLOCK_AREA_BYTES; they are written one after the other with a sync
 * between, so that one of them is always whole. The valid one with the higher sequence
 * counts.
 *
 * Encode, decode, validate: pure functions, no I/O.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SUPERBLOCK_BYTES      4096u
#define SUPERBLOCK_COPIES     2u
#define SUPERBLOCK_COPY_BYTES 65536u /* distance from one copy to the next */
#define SUPERBLOCK_AREA_BYTES (SUPERBLOCK_COPIES * SUPERBLOCK_COPY_BYTES)
#define SUPERBLOCK_VERSION    1u
#define SUPERBLOCK_MAGIC      "KVTIERSB"

enum {
        SUPERBLOCK_E_EMPTY = 1, /* all zeros: never used */
        SUPERBLOCK_E_FOREIGN,   /* something else: not to be overwritten */
        SUPERBLOCK_E_DAMAGED,   /* ours, but the checksum or a field is wrong */
        SUPERBLOCK_E_NEWER,     /* a format or a refuse flag that this program does not know */
};

/* On disk, little-endian; written by the daemon that holds the member's lock. */
struct superblock {
        uint8_t magic[8];
        uint32_t version;
        uint32_t block_bytes;    /* SUPERBLOCK_BYTES: what the checksum covers */
        uint64_t checksum;       /* XXH3-64 of the block with this field zero */
        uint8_t pool_uuid[16];   /* the same on all members */
        uint8_t member_uuid[16]; /* of this file or device */
        uint32_t member_index;
        uint32_t n_members;
        uint64_t size_bytes;                      /* of the member, this area included */
        uint32_t unit_bytes;                      /* allocation unit */
        uint32_t header_bytes;                    /* of an object's header */
        uint64_t epoch;                           /* higher each time the catalog was lost */
        uint64_t sequence;                        /* higher each time this block was written */
        uint64_t refuse_flags;                    /* unknown bit: do not open */
        uint64_t readonly_flags;                  /* unknown bit: do not write (so: do not open) */
        uint64_t ignore_flags;                    /* unknown bit: carry on */
        uint8_t reserved[SUPERBLOCK_BYTES - 120]; /* zero */
};

_Static_assert(sizeof(struct superblock) == SUPERBLOCK_BYTES, "superblock is on disk");
_Static_assert(offsetof(struct superblock, version) == 8, "superblock layout");
_Static_assert(offsetof(struct superblock, block_bytes) == 12, "superblock layout");
_Static_assert(offsetof(struct superblock, checksum) == 16, "superblock layout");
_Static_assert(offsetof(struct superblock, pool_uuid) == 24, "superblock layout");
_Static_assert(offsetof(struct superblock, member_uuid) == 40, "superblock layout");
_Static_assert(offsetof(struct superblock, member_index) == 56, "superblock layout");
_Static_assert(offsetof(struct superblock, n_members) == 60, "superblock layout");
_Static_assert(offsetof(struct superblock, size_bytes) == 64, "superblock layout");
_Static_assert(offsetof(struct superblock, unit_bytes) == 72, "superblock layout");
_Static_assert(offsetof(struct superblock, header_bytes) == 76, "superblock layout");
_Static_assert(offsetof(struct superblock, epoch) == 80, "superblock layout");
_Static_assert(offsetof(struct superblock, sequence) == 88, "superblock layout");
_Static_assert(offsetof(struct superblock, refuse_flags) == 96, "superblock layout");
_Static_assert(offsetof(struct superblock, readonly_flags) == 104, "superblock layout");
_Static_assert(offsetof(struct superblock, ignore_flags) == 112, "superblock layout");
_Static_assert(offsetof(struct superblock, reserved) == 120, "superblock layout");

/*
 * Completes magic, version, lengths and checksum of @block, whose other fields the
 * caller has set (reserved: zero).
 */
void superblock_seal(struct superblock *block);

/*
 * Copies the superblock in @bytes (SUPERBLOCK_BYTES) to @ret_block when it is valid.
 * 0 or SUPERBLOCK_E_X; with DAMAGED and NEWER, @why (may be NULL) says what is wrong.
 */
int superblock_decode(struct superblock *ret_block, const void *bytes, struct why *why);

/*
 * Chooses among the copies in @area (SUPERBLOCK_AREA_BYTES). A valid copy wins over a
 * damaged one, NEWER over everything, and EMPTY is answered only when the whole area is
 * zeros.
 */
int superblock_choose(struct superblock *ret_block, const void *area, struct why *why);
