// SPDX-License-Identifier: Apache-2.0
/*
 * Why objects are not there: the last drops and refusals, for kvtierctl why.
 *
 * A ring of DROP_RING_SIZE records, 4.5 MiB with its heads, of which only what was used
 * becomes memory; the oldest is overwritten. Records of one hash are linked from newest to
 * oldest by their numbers, so that nothing needs unlinking: a number that has left the
 * ring ends the chain. What repeats itself (a store that is refused again and again)
 * counts up in the record that is there.
 *
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/metrics.h"
#include "proto/key.h"

#define DROP_RING_SIZE 65536u

/* name, is it a refusal (the object never was there), text: "<object> was ..." */
#define DROP_REASONS(X)                                                                            \
        X(UNEXPLAINED, 0, "removed")                                                               \
        X(SPACE, 0, "evicted to make room")                                                        \
        X(SPACE_UNWRITTEN, 0, "evicted to make room before it was written down")                   \
        X(REPLACED, 0, "replaced by a newer generation")                                           \
        X(ADMIN, 0, "removed by kvtierctl")                                                        \
        X(RECLAIMED, 0, "reclaimed: marked as no longer wanted")                                   \
        X(CORRUPT, 0, "dropped: its bytes failed their checksum")                                  \
        X(STALE, 0, "dropped: its bytes did not survive a power loss")                             \
        X(IO_ERROR, 0, "dropped: the device failed to read it")                                    \
        X(WRITE_FAILED, 0, "not written down: the device failed, or had no room")                  \
        X(NO_INDEX_AT_START, 0, "given up at the start: index.objects_max was lowered")            \
        X(VANISHED, 0, "deleted by the node that wrote it, replaced or lost")                      \
        X(SET_FAILED, 1, "taken back: another member of its set could not be stored")              \
        X(ABORTED, 1, "reserved and given up by its writer")                                       \
        X(WRITER_GONE, 1, "reserved, but its writer hung up before the commit")                    \
        X(SET_STALE, 1, "refused at commit: a member of its set had been replaced")                \
        X(NOT_IN_LAYOUT, 1, "refused: its group, shard, length or boundary is not the layout's")   \
        X(DRAINING, 1, "refused: the daemon was shutting down")                                    \
        X(RECOVERING, 1, "refused: the NVMe tier was being recovered")                             \
        X(TOO_LARGE, 1,                                                                            \
          "refused: above half an arena piece, the lease share or "                                \
          "session.bytes_max")                                                                     \
        X(SESSION_LEASES, 1, "refused: session.leases_max was reached")                            \
        X(SESSION_BYTES, 1, "refused: session.bytes_max was reached")                              \
        X(LEASE_SHARE, 1, "refused: host.lease_share_percent of host memory was leased")           \
        X(NO_ROOM, 1, "refused: no room in host memory, what could go was held")                   \
        X(FRAGMENTED, 1, "refused: no room in one extent")                                         \
        X(COVERS, 1, "refused: too many boundaries covered by reserved blobs, or its set is full") \
        X(INDEX_FULL, 1, "refused: index.objects_max was reached")                                 \
        X(NO_MEMORY, 1, "refused: out of memory")

enum drop_reason {
#define DROP_REASON_ENUM(name, is_refusal, text) DROP_##name,
        DROP_REASONS(DROP_REASON_ENUM)
#undef DROP_REASON_ENUM
                DROP_N_REASONS
};

/* Which rule of the placement chose it, with SPACE: append what is added there. */
#define DROP_RULES(X)                                                                              \
        X(NONE, "")                                                                                \
        X(OLDEST, "least recently used, tail first")                                               \
        X(STATE, "next of the states: never used, or used longest ago")                            \
        X(USELESS, "no state made it usable, or a later state superseded it")

enum drop_rule {
#define DROP_RULE_ENUM(name, text) DROP_RULE_##name,
        DROP_RULES(DROP_RULE_ENUM)
#undef DROP_RULE_ENUM
                DROP_N_RULES
};

struct drop {
        struct digest digest;
        uint64_t wall_ns; /* since 1970; of the last time */
        uint32_t boundary_tokens;
        uint32_t count;  /* how often in a row */
        uint16_t layout; /* number of the index */
        uint16_t group;
        uint16_t shard;
        uint8_t tier;   /* enum metrics_tier it left, or METRICS_N_TIERS: a refusal */
        uint8_t reason; /* enum drop_reason */
        uint8_t rule;   /* enum drop_rule */
        uint8_t reserved[3];
        uint32_t back; /* the ring's: how many records ago its hash was noted; 0: never */
};

_Static_assert(sizeof(struct drop) == 64, "4 MiB of records");

struct drop_ring {
        struct drop *records;
        uint64_t *heads; /* number of the last record of each hash, plus 1 */
        uint64_t n;      /* noted so far: record i lies at i % DROP_RING_SIZE */
        uint64_t seed;
};

/* 0, -ENOMEM, or -EIO: no random seed. All zeros is a ring that notes nothing. */
int drop_ring_init(struct drop_ring *ring);
void drop_ring_deinit(struct drop_ring *ring);

/* Copies @drop, setting time and count. */
void drop_ring_note(struct drop_ring *ring, const struct drop *drop);

/*
 * The records of @digest in @layout, newest first: begin with *@position 0. NULL at the
 * end, which also comes after as many records of other digests as a search may pass over.
 */
const struct drop *drop_ring_next(const struct drop_ring *ring, uint16_t layout,
                                  const struct digest *digest, uint64_t *position);

/* The record that was noted @ago records before the last one; NULL: there is none any more. */
const struct drop *drop_ring_recent(const struct drop_ring *ring, uint64_t ago);

/* Names ("SPACE") and texts. Never NULL. */
const char *drop_reason_name(uint8_t reason);
const char *drop_reason_text(uint8_t reason);
bool drop_reason_is_refusal(uint8_t reason);
/* Of an object that a tier could not read: @result as of tier_read.on_done. */
uint8_t drop_reason_of_read(int result);
const char *drop_rule_text(uint8_t rule);
