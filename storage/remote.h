// SPDX-License-Identifier: Apache-2.0
/*
 * The remote tier: objects in bundles in a pool that nodes share (pool.h), found by an
 * index in RocksDB on this node, which learns from the journals of the others what they
 * have (journal.h).
 *
 * A write joins others of its prompt in a bundle and ends when the bundle is in the pool
 * and in the index; a read gets the ranges it needs, neighbours in one request, and is
 * verified before it is handed over. This node deletes only what it wrote, and never has
 * more than its cap of bytes in the pool. Bundles of which too little is alive go whole,
 * what lived in them with them (on_vanished).
 *
 * What its operations mean beyond tier.h:
 *
 * write: TIER_E_FULL when the cap or the index leaves no room (bundles that are to be removed
 * and not gone yet count), TIER_E_PAUSED while the pool is out of reach or full, the index is
 * rebuilt, or our own journal could not be read yet; on_ready follows both. -EFBIG for what
 * fits no bundle. Ends with TIER_E_CANCELLED as well when another node's copy was known first.
 *
 * forget: of what others wrote, forgets. Of our own: on_freed comes when the entry is off the
 * index; when that was the last of a bundle, or leaves less than half of it alive, the bundle
 * goes, and on_freed waits for the first attempt to remove it: it then means room, unless the
 * pool does not answer. With @sync it waits for the index alone. So after TIER_E_FULL: forget
 * victims, best all of a prompt, until they make up the room that is missing, and try again at
 * each on_freed, or at on_ready when the pool came late.
 *
 * usage: used_bytes, payload_bytes and objects count our own. is_own: from the place alone.
 *
 * The pool may be slow, wrong or gone: each request has a deadline, a breaker opens after
 * repeated failure (writes are refused with TIER_E_PAUSED, reads fail at once with
 * -EHOSTDOWN, which is a miss) and probes until it is back. Local tiers never wait.
 *
 * Everything runs on the loop thread; RocksDB on a helper thread of its own, checksums and
 * codecs on workers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/error.h"
#include "storage/journal.h"
#include "storage/pool.h"
#include "storage/tier.h"

#define REMOTE_BUNDLE_BYTES_DEFAULT  (16u << 20)
#define REMOTE_LINGER_MS_DEFAULT     100u
#define REMOTE_DEADLINE_MS_DEFAULT   10000u
#define REMOTE_POLL_MS_DEFAULT       2000u
#define REMOTE_QUEUE_DEPTH_DEFAULT   16u
#define REMOTE_ENCODED_BYTES_DEFAULT (128u << 20)
#define REMOTE_RETRY_MS_DEFAULT      1000u
#define REMOTE_SEGMENTS_DEFAULT      64u
#define REMOTE_HEARTBEAT_S_DEFAULT   60u

struct remote_options {
        struct pool *pool;         /* the tier's from a successful open on: closed with it */
        const char *index_path;    /* folder, created when absent; its parent exists */
        uint64_t bytes;            /* this node's cap in the pool, bundle headers included */
        uint64_t entries_max;      /* of the index, others' included; 0: no limit */
        uint32_t bundle_bytes;     /* 0: the default */
        uint32_t linger_ms;        /* how long a bundle waits for more; 0: the default */
        uint32_t deadline_ms;      /* of a request; 0: the default */
        uint32_t heartbeat_s;      /* 0: the default */
        uint32_t poll_ms;          /* others' journals are looked at so often; 0: the default */
        uint64_t read_bytes_per_s; /* caps; 0: none */
        uint64_t write_bytes_per_s;
        uint32_t queue_depth;   /* gets, puts and removes in flight, each; 0: the default */
        uint64_t encoded_bytes; /* memory for stored forms on their way out; 0: the default */
        uint32_t retry_ms;      /* after trouble, at first; 0: the default */
        uint32_t segments_max;  /* of our journal; then it is compacted; 0: the default */
        const char *host;       /* this node's name for people; NULL: gethostname() */
        /* Something that a person should know; may be NULL. */
        void (*on_notice)(void *user, const char *text);
        void *user;
};

/*
 * Opens the index and fills @ret_tier. One that is absent or damaged is made anew, and learns
 * from the journals, under the id in INDEX.node; without that file it is that of a new node.
 * Blocks for the index alone, never for the pool. 0 or a negative errno with @why filled: the
 * pool stays the caller's.
 */
int remote_open(struct tier **ret_tier, uv_loop_t *loop, const struct remote_options *options,
                struct why *why);

/* What tier_usage does not say. */
struct remote_usage {
        uint8_t node[16];
        uint64_t entries;           /* of the index */
        uint64_t own_bundles;       /* with objects that can be read */
        uint64_t condemned_bundles; /* own ones that are to be removed */
        uint64_t own_bytes;         /* in the pool; capacity_bytes is the cap */
        uint64_t dead_bytes;        /* of these, not referred to any more */
        uint64_t nodes;             /* with a journal, this one included */
        uint64_t journal_segments_read;
        uint64_t journal_segments_written;
        uint64_t journal_damaged;    /* segments that were skipped */
        uint64_t entries_refused;    /* what others stored and found no place in the index */
        uint64_t stale_entries;      /* reads that found the bundle gone */
        uint64_t read_requests;      /* gets, after neighbours were merged */
        uint64_t encoded_bytes_most; /* memory of stored forms on their way out, at the worst */
        uint64_t timeouts;
        uint64_t breaker_opened;
        bool breaker_open;
        bool caught_up;        /* all journals were read since the start */
        double replay_seconds; /* of the first catching up */
};
void remote_usage(const struct tier *tier, struct remote_usage *ret_usage);

/*
 * For whoever takes over what a dead node has left (remote_gc.h): puts records of the kinds
 * deleted (of any node's bundles) and replaced into this node's journal. This node obeys
 * them as the others do. @on_done: they are in the pool, or a negative errno. 0 or a
 * negative errno: then @on_done is not called.
 */
int remote_append(struct tier *tier, const struct journal_record *records, uint32_t n_records,
                  void (*on_done)(void *user, int result), void *user);

/* Its pool, for requests beside the tier's own; they end before the tier is closed. */
struct pool *remote_pool(const struct tier *tier);
