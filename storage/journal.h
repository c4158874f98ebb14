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
 *   snapshot  begins a segment that replaces all earlier ones of this node: compaction
 *
 * Encode, decode, validate: pure functions, any thread. A segment is damaged as a whole or
 * good as a whole (one checksum): what is torn is skipped by readers and counted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/key.h"
#include "storage/bundle.h"
#include "storage/pool.h"
#include "storage/tier.h"

#define JOURNAL_MAGIC         "KVTIERJO"
#define JOURNAL_VERSION       1u
#define JOURNAL_SEGMENT_BYTES (4u << 20) /* at most */

enum {
        JOURNAL_E_DAMAGED = 1,
        JOURNAL_E_NEWER,
        JOURNAL_E_FULL, /* the record does not fit this segment: begin another */
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

/* "journal/<node in hex>/<number, 16 hex digits>"; "node/<node in hex>" */
void journal_name(char ret_name[POOL_NAME_MAX], const uint8_t node[16], uint64_t number);
bool journal_name_parse(const char *name, uint8_t ret_node[16], uint64_t *ret_number);
void journal_node_name(char ret_name[POOL_NAME_MAX], const uint8_t node[16]);
bool journal_node_name_parse(const char *name, uint8_t ret_node[16]);

/* A segment being written. */
struct journal_segment {
        uint8_t *bytes; /* owned */
        size_t length;
        size_t capacity;
        uint32_t n_records;
};

void journal_segment_init(struct journal_segment *segment);
void journal_segment_deinit(struct journal_segment *segment);
/* 0, JOURNAL_E_FULL or -ENOMEM. */
int journal_segment_add(struct journal_segment *segment, const struct journal_record *record);
/* Completes head and checksum: the bytes are what is put into the pool. */
void journal_segment_seal(struct journal_segment *segment, const uint8_t node[16], uint64_t number);

/*
 * Takes a segment apart, after all of it was checked. @on_record returns false to end
 * early; pointers in the record point into @bytes. 0 or JOURNAL_E_X; -EINVAL: sound, but
 * not the segment of @node with @number.
 */
int journal_segment_decode(const void *bytes, size_t length, const uint8_t node[16],
                           uint64_t number,
                           bool (*on_record)(void *user, const struct journal_record *record),
                           void *user, struct why *why);

/* What a node says of itself, "node/NODE": rewritten from time to time. */
struct journal_node {
        uint8_t node[16];
        char host[64];          /* its name, for people */
        uint64_t written_ns;    /* wall clock, ns since 1970 */
        uint64_t first_segment; /* of its journal that is still needed */
        uint64_t next_segment;  /* one behind its last */
        uint64_t bundles;
        uint64_t bytes;       /* of its bundles */
        uint64_t bytes_max;   /* its cap */
        uint32_t heartbeat_s; /* it rewrites this at least so often */
};

#define JOURNAL_NODE_BYTES 256u
void journal_node_encode(uint8_t ret_bytes[JOURNAL_NODE_BYTES], const struct journal_node *node);
int journal_node_decode(struct journal_node *ret_node, const void *bytes, size_t length,
                        struct why *why);
