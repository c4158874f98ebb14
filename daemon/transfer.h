// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers: the one state machine of an object's journey between host memory and the
 * tier below.
 *
 *   down:  HASHING -> WRITING -> done          (HASHING is skipped when checksums exist)
 *              \         `-> WAITING (tier full or paused) -> WRITING
 *               `-> failed
 *   up:    READING -> done | failed     (whole objects are published, pieces never)
 *
 * A transfer holds a use on its host copy from start to end. What it finds at the end
 * counts only if the object still is the generation it began with: an older one is
 * neither published nor entered in the catalog, and serves only those who were waiting.
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

struct transfers {
        struct transfer_list down;    /* HASHING or WRITING */
        struct transfer_list waiting; /* down, for room or for the tier to be ready */
        struct transfer_tree up;      /* by object id, generation and serial */
        uint64_t n_of_pieces;         /* promotions of pieces so far: their serials */
        uint32_t n_down;
        uint32_t n_up;
        uint32_t n_hashing;
        uint64_t down_bytes;
        uint64_t up_bytes;
        bool draining;               /* write down everything dirty, whatever the policy */
        bool stopped;                /* no write-down begins any more */
        bool pumping;                /* guards against starting anew from inside a start */
        bool paused;                 /* the tier said so; ends with its on_ready */
        uint64_t cold_scan_at_bytes; /* stored bytes at which the cold end is looked at again */
        uint64_t stored_bytes;       /* committed so far */
};

void transfers_init(struct transfers *transfers);
bool transfers_are_idle(const struct transfers *transfers);
/* Age of the oldest promotion (@up) or write-down under way, 0 when there is none. */
double transfers_oldest_seconds(struct transfers *transfers, bool up);

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
 * A generation of @key is being replaced, or was dropped before. When the tier is at work
 * on a write-down of the key, *@ret_waits becomes true: @on_forgotten will be called when
 * all of these have ended and left nothing durable behind. Those that the tier has not
 * been asked for yet never will be. 0 or -ENOMEM.
 */
int transfer_forget_when_written(struct cache *cache, const struct object_key *key,
                                 void (*on_forgotten)(void *user, int result), void *user,
                                 bool *ret_waits);

/*
 * Fills @copy (ARRIVING, not published) from the object's place. Its waiters are called
 * when it is READY or FAILED. With @pieces (NULL: all) the copy has room for these alone
 * and stays what it is: private to who asked for it. 0 or -ENOMEM.
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

/*
 * Compares a READY copy's bytes with the list its writer gave (taken over, malloc'ed);
 * a copy that differs is dropped and counted. 0 or -ENOMEM.
 */
int transfer_verify_written(struct cache *cache, struct host_copy *copy,
                            struct checksum_list *checksums);
