// SPDX-License-Identifier: Apache-2.0
/*
 * Journals: how nodes learn what the others keep in the pool. Each node appends segments to
 * its own journal, objects "journal/NODE/NUMBER" written once under rising numbers; the
 * others read those they have not seen. A segment is a head and records:
 *
 *   stored    bundle id, and the record of each of its parts (bundle.h)
 *   deleted   bundle id: gone, or about to go
 *   dropped   bundle id and part numbers: not to be read any more, though the bundle stays
 *   replaced  key, checksum total of the bytes that hold now (0: none): whoever has other
 *             bytes under the key drops them, but for what is stored later by a writer that
 *             had read this record
 *   read      node and number: segments of that node up to this one have been read by the
 *             writer, so what follows was written in their knowledge
 *   layout    encoding of a layout that parts of this journal belong to
 *   snapshot  begins a segment that replaces all earlier ones of this node: compaction.
 *             The first record of its segment, or nowhere
 *
 * Encode, decode, validate: pure functions, any thread. A segment is damaged as a whole or
 * good as a whole (one checksum): what is torn is skipped by readers and counted. A kind of
 * record that this program does not know makes the segment newer, as a whole, too: what
 * cannot be understood must not be half obeyed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"
#include "storage/bundle.h"
#include "storage/pool.h"
#include "storage/pool_name.h"
#include "storage/tier.h"

#define JOURNAL_MAGIC         "KVTIERJO"
#define JOURNAL_VERSION       1u
#define JOURNAL_SEGMENT_BYTES (4u << 20) /* at most */

enum {
        JOURNAL_E_DAMAGED = 1,
        JOURNAL_E_NEWER, /* a version, refuse flag or kind that this program does not know */
        JOURNAL_E_FULL,  /* the record does not fit this segment: begin another */
};

enum journal_kind { /* on the disks of others: append only */
                    JOURNAL_STORED = 1,
                    JOURNAL_DELETED,
                    JOURNAL_DROPPED,
                    JOURNAL_REPLACED,
                    JOURNAL_READ,
                    JOURNAL_LAYOUT,
                    JOURNAL_SNAPSHOT,
};

/* One record as decoded; members that its kind does not name are zero. */
struct journal_record {
        enum journal_kind kind;
        struct bundle_id bundle;   /* stored, deleted, dropped */
        uint32_t part;             /* stored, dropped: number in the bundle */
        struct bundle_part stored; /* stored: one record a part */
        struct object_key key;     /* replaced */
        uint64_t checksum_total;   /* replaced; 0: no bytes hold */
        uint8_t node[16];          /* read */
        uint64_t number;           /* read: of the segment */
        struct tier_layout layout; /* layout: encoding borrowed */
};

/* Begins each segment, little-endian; written once with it. */
struct journal_head {
        uint8_t magic[8];
        uint32_t version;
        uint32_t length;   /* of the segment, this head included: what the checksum covers */
        uint64_t checksum; /* XXH3-64 of the segment with this field zero */
        uint8_t node[16];
        uint64_t number;
        uint32_t n_records;    /* at least 1 */
        uint32_t refuse_flags; /* unknown bit: the segment is newer */
        uint32_t ignore_flags;
        uint32_t reserved; /* zero */
};

_Static_assert(sizeof(struct journal_head) == 64, "journal_head is in the pool");
_Static_assert(offsetof(struct journal_head, checksum) == 16, "journal_head layout");
_Static_assert(offsetof(struct journal_head, node) == 24, "journal_head layout");
_Static_assert(offsetof(struct journal_head, number) == 40, "journal_head layout");
_Static_assert(offsetof(struct journal_head, n_records) == 48, "journal_head layout");

/*
 * Begins each record. What follows, without padding but zeros up to a multiple of 8:
 *
 *   stored    node 16, number u64, part u32, zero u32, the part's record
 *   deleted   node 16, number u64
 *   dropped   node 16, number u64, part u32, zero u32
 *   replaced  key 72, checksum total u64
 *   read      node 16, number u64
 *   layout    id 32, domain u32, length u32, encoding
 *   snapshot  nothing
 */
struct journal_record_head {
        uint32_t kind;
        uint32_t bytes; /* of the record, this head and the padding included */
};

_Static_assert(sizeof(struct journal_record_head) == 8, "journal_record_head is in the pool");

/* "journal/NODE/NUMBER", "node/NODE" (pool_name.h) */
void journal_name(char ret_name[POOL_NAME_MAX], const uint8_t node[16], uint64_t number);
bool journal_name_parse(const char *name, uint8_t ret_node[16], uint64_t *ret_number);
void journal_node_name(char ret_name[POOL_NAME_MAX], const uint8_t node[16]);
bool journal_node_name_parse(const char *name, uint8_t ret_node[16]);

/* Bytes that a record takes in a segment. */
size_t journal_record_bytes(const struct journal_record *record);

/* A segment being written. */
struct journal_segment {
        uint8_t *bytes; /* owned */
        size_t length;
        size_t capacity;
        uint32_t n_records;
};

void journal_segment_init(struct journal_segment *segment);
void journal_segment_deinit(struct journal_segment *segment);
/* 0, JOURNAL_E_FULL or -ENOMEM; unless 0, the segment is as it was. */
int journal_segment_add(struct journal_segment *segment, const struct journal_record *record);
/* Completes head and checksum: the bytes are what is put into the pool. Has a record. */
void journal_segment_seal(struct journal_segment *segment, const uint8_t node[16], uint64_t number);

/*
 * Takes a segment apart, after all of it was checked. @on_record returns false to end
 * early; pointers in the record point into @bytes. 0 or JOURNAL_E_X; -EINVAL: sound, but
 * not the segment of @node with @number; -ENOMEM.
 */
int journal_segment_decode(const void *bytes, size_t length, const uint8_t node[16],
                           uint64_t number,
                           bool (*on_record)(void *user, const struct journal_record *record),
                           void *user, struct why *why);

/* What a node says of itself, "node/NODE": rewritten from time to time. */
struct journal_node {
        uint8_t node[16];
        char host[POOL_HOST_MAX]; /* its name, for people: graphic ASCII */
        uint64_t written_ns;      /* wall clock, ns since 1970 */
        uint64_t first_segment;   /* of its journal that is still needed */
        uint64_t next_segment;    /* one behind its last */
        uint64_t bundles;
        uint64_t bytes;       /* of its bundles */
        uint64_t bytes_max;   /* its cap */
        uint32_t heartbeat_s; /* it rewrites this at least so often */
};

#define JOURNAL_NODE_BYTES 256u
#define JOURNAL_NODE_MAGIC "KVTIERNO"

/* The object of that name, little-endian. */
struct journal_node_block {
        uint8_t magic[8];
        uint32_t version;  /* JOURNAL_VERSION */
        uint32_t length;   /* JOURNAL_NODE_BYTES */
        uint64_t checksum; /* XXH3-64 of the block with this field zero */
        uint8_t node[16];
        uint8_t host[POOL_HOST_MAX]; /* NULs behind the name */
        uint64_t written_ns;
        uint64_t first_segment;
        uint64_t next_segment;
        uint64_t bundles;
        uint64_t bytes;
        uint64_t bytes_max;
        uint32_t heartbeat_s;
        uint32_t refuse_flags;
        uint32_t ignore_flags;
        uint8_t reserved[92]; /* zero */
};

_Static_assert(sizeof(struct journal_node_block) == JOURNAL_NODE_BYTES, "it is in the pool");
_Static_assert(offsetof(struct journal_node_block, checksum) == 16, "node block layout");
_Static_assert(offsetof(struct journal_node_block, node) == 24, "node block layout");
_Static_assert(offsetof(struct journal_node_block, host) == 40, "node block layout");
_Static_assert(offsetof(struct journal_node_block, written_ns) == 104, "node block layout");
_Static_assert(offsetof(struct journal_node_block, first_segment) == 112, "node block layout");
_Static_assert(offsetof(struct journal_node_block, next_segment) == 120, "node block layout");
_Static_assert(offsetof(struct journal_node_block, bundles) == 128, "node block layout");
_Static_assert(offsetof(struct journal_node_block, bytes_max) == 144, "node block layout");
_Static_assert(offsetof(struct journal_node_block, heartbeat_s) == 152, "node block layout");
_Static_assert(offsetof(struct journal_node_block, reserved) == 164, "node block layout");

/* What is no graphic ASCII in the host's name becomes '?'; what is too long is cut. */
void journal_node_encode(uint8_t ret_bytes[JOURNAL_NODE_BYTES], const struct journal_node *node);
/* 0 or JOURNAL_E_X. Whether it is the node of the object's name is the caller's to compare. */
int journal_node_decode(struct journal_node *ret_node, const void *bytes, size_t length,
                        struct why *why);
