// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers: the one state machine of an object's journey between host memory and a tier
 * below, NVMe or the pool.
 *
 *   down:  HASHING [-> NEXT] -> WRITING -> done  (HASHING is skipped when checksums exist)
 *              \         |-> WAITING (NVMe full or paused) -> WRITING
 *               \        `-> offered again (pool full or paused)
 *                `-> failed
 *   up:    READING -> done | failed     (whole objects are published, pieces never)
 *             `-> READING from the pool, when NVMe failed
 *
 * A transfer holds a use on its host copy from start to end. What it finds at the end
 * counts only if the object still is the generation it began with: an older one is
 * neither published nor entered in the catalog, and serves only those who were waiting.
 *
 * A pool that is slow or gone holds no more host memory than what is being written to it
 * at the time, and what cannot be read from it is a miss.
 *
 * Started by: transfers_pump() (write-behind, by policy), transfer_up() (acquire).
 * Loop thread only; checksums run on uv's workers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "base/error.h"
#include "base/tree.h"
#include "daemon/host_copy.h"
#include "daemon/index.h"
#include "storage/tier.h"

struct cache;
struct transfer;
TAILQ_HEAD(transfer_list, transfer);
RB_HEAD(transfer_tree, transfer);

/*
 * The way down to one tier. The pool is asked in the order in which transfers began, which
 * is that of prompts, whichever was hashed first.
 */
struct transfer_lane {
        struct transfer_list down;    /* HASHING or WRITING */
        struct transfer_list waiting; /* for room or for the tier to be ready */
        uint32_t n_down;
        uint64_t down_bytes;
        bool paused;                 /* the tier said so; ends with its on_ready */
        bool full;                   /* likewise; ends when what was forgotten is free, too */
        uint64_t cold_scan_at_bytes; /* entered bytes at which the cold end is looked at again */
};

struct transfers {
        struct transfer_lane lanes[INDEX_N_TIERS];
        struct transfer_tree up; /* by object id, generation and serial */
        uint64_t n_of_pieces;    /* promotions of pieces so far: their serials */
        uint32_t n_up;
        uint32_t n_hashing;
        uint64_t up_bytes;
        bool draining;          /* write down everything dirty, whatever the policy */
        bool stopped;           /* no write-down begins any more */
        bool pumping;           /* guards against starting anew from inside a start */
        uint64_t entered_bytes; /* that have come into host memory so far */
};

void transfers_init(struct transfers *transfers);
bool transfers_are_idle(const struct transfers *transfers);
bool transfer_lane_is_idle(const struct transfer_lane *lane);
/* Age of the oldest promotion (@up) or write-down under way, 0 when there is none. */
double transfers_oldest_seconds(struct transfers *transfers, enum index_tier tier, bool up);

/* A tier that had refused writes for a while takes them again. */
void transfers_tier_is_ready(struct cache *cache, enum index_tier tier);

/*
 * Starts the write-downs that policy and limits allow now. Cheap when there is nothing to
 * do; called after every commit and every completion.
 */
void transfers_pump(struct cache *cache);

/* From now on everything dirty is to be written, newest first. */
void transfers_drain(struct cache *cache);

/*
 * The time to write is over: no further write-down begins, those that wait end unwritten,
 * and what the tier is at work on comes to its end.
 */
void transfers_stop(struct cache *cache);

/*
 * A generation of @key is being replaced, or was dropped before. When @tier is at work
 * on a write-down of the key, *@ret_waits becomes true: @on_forgotten will be called when
 * all of these have ended and left nothing durable behind. Those that the tier has not
 * been asked for yet never will be, and those whose bytes are still on their way to the pool
 * will not be entered: nobody waits for a slow pool. 0 or -ENOMEM.
 */
int transfer_forget_when_written(struct cache *cache, enum index_tier tier,
                                 const struct object_key *key,
                                 void (*on_forgotten)(void *user, int result), void *user,
                                 bool *ret_waits);

/*
 * Fills @copy (ARRIVING, not published) from the nearest of the object's places. Its waiters are
 * called when it is READY or FAILED. With @pieces (NULL: all) the copy has room for these alone and
 * stays what it is: private to who asked for it. Of all of one generation there is one at a time:
 * see transfer_arriving(). 0, or the outcome as of the copy's failure.
 */
int transfer_up(struct cache *cache, struct index_object *object, struct host_copy *copy,
                const struct piece_set *pieces);

/* The copy that an active promotion of all of this generation fills, or NULL. */
struct host_copy *transfer_arriving(struct cache *cache, const struct index_object *object);

/*
 * Computes a READY copy's checksums on a worker, unless they are there or on their way;
 * its waiters are called when done. 0 or -ENOMEM.
 */
int transfer_hash(struct cache *cache, struct host_copy *copy);

/* Tells other nodes the checksum of what replaced older bytes, once it is known. */
void transfer_tell_replaced(struct cache *cache, struct host_copy *copy);

/*
 * Compares a READY copy's bytes with the list its writer gave (taken over, malloc'ed);
 * a copy that differs is dropped and counted. 0 or -ENOMEM.
 */
int transfer_verify_written(struct cache *cache, struct host_copy *copy,
                            struct checksum_list *checksums);
