// SPDX-License-Identifier: Apache-2.0
/*
 * The cache: everything about stored bytes, and nothing about sessions. It joins index,
 * host copies, the tiers below and placement, and keeps their books in step:
 *
 *   - room in host memory is made on the spot, by dropping the copies that placement
 *     names, never of held bytes;
 *   - an object is published when all its bytes are in place, and leaves the index when
 *     no tier has it any more;
 *   - NVMe is given what the write policy says, the pool what is worth the trip
 *     (daemon/offer.h); daemon/transfer.h moves it;
 *   - what other nodes have in the pool comes and goes by their doing (remote_entry.h).
 *
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/drop_ring.h"
#include "daemon/encoding_choice.h"
#include "daemon/host_copy.h"
#include "daemon/index.h"
#include "daemon/metrics.h"
#include "daemon/offer.h"
#include "daemon/placement.h"
#include "daemon/transfer.h"
#include "storage/host.h"
#include "storage/tier.h"

enum {
        CACHE_E_BUSY = 1,   /* no room: what could go is held */
        CACHE_E_FRAGMENTED, /* room enough, but not in one extent */
        CACHE_E_EXISTS,     /* publish without replace: another copy was first */
        CACHE_E_INDEX_FULL, /* index.objects_max, and nothing could be evicted */
        CACHE_E_REPLACED,   /* of what was read elsewhere: other bytes hold by now */
};

/* A copy that is being filled from another node's memory. */
struct cache_read {
        LIST_ENTRY(cache_read) link;
        struct object_key key;
        bool is_replaced; /* since it began, ... */
        uint64_t total;   /* ... by what has this checksum; 0: not known */
};

struct cache {
        uv_loop_t *loop;
        struct presence_table *presence;
        struct index *index;
        struct host_pool *host;
        struct tier *nvme;   /* NULL: none configured */
        struct tier *remote; /* likewise */
        struct metrics *metrics;
        struct host_copies copies;
        struct transfers transfers;
        enum placement_write write_policy;               /* of NVMe */
        struct offer_policy offers;                      /* of the pool */
        struct encoding_choice encodings[INDEX_N_TIERS]; /* of what goes down to each */
        uint64_t spill_scan_at_bytes; /* entered bytes at which NVMe is looked at again */
        uint64_t next_generation;
        uint8_t boot_id[16];
        uint64_t forgetting_bytes[INDEX_N_TIERS]; /* space whose delete is under way */
        uint32_t n_forgetting_in[INDEX_N_TIERS];
        uint32_t n_forgetting;     /* in all */
        uint32_t n_syncing;        /* syncs that are waited for */
        uint64_t n_forgets;        /* of NVMe, begun so far, and writes that failed */
        uint64_t n_forgets_synced; /* of these, known to have left nothing */
        struct drop_ring drops;    /* why what is gone is gone */
        bool is_unvouched;         /* others' replacements were missed: what is here goes, */
        uint32_t unvouched_at;     /*   bit by bit, from there on (remote_entry.h) */
        uint64_t peers_doubted_ms; /* of the loop: until then peers may lag behind that, too */
        bool is_vouching;          /* it went: a sync is under way, ... */
        uint8_t n_vouch_syncs;     /* ... and as many have begun */
        uint32_t n_leaving;        /* keys that others replaced: older bytes may come back yet */
        bool has_lost_forgets;     /* of anything in doubt: the next start finds them again */
        uint8_t drop_reason;       /* what is known of the next cache_drop*() beyond its */
        uint8_t drop_rule;         /*   metrics_removal: set right before, used up by it */
        LIST_HEAD(, cache_read) reads;
        /* An object is there that was not. Set by the daemon; NULL: nobody wants to know. */
        void (*on_published)(void *user, const struct index_object *object);
        /* cache_replaced() was called. Likewise. */
        void (*on_replaced)(void *user, const struct object_key *key, uint64_t total);
        void *on_published_user; /* of both */
        /* Room or quiet that somebody may wait for has come. Set by the daemon. */
        void (*on_progress)(void *user);
        void *on_progress_user;
};

/* NULL: there is none, or it is the host tier. */
static inline struct tier *cache_tier(const struct cache *cache, enum index_tier tier)
{
        return tier == INDEX_NVME ? cache->nvme : tier == INDEX_REMOTE ? cache->remote : NULL;
}

/* The caller sets loop, presence, index, host, tiers, metrics, policies and boot id first. */
int cache_init(struct cache *cache);
/* Everything is quiet (transfers_are_idle(), no copy held by others). Drops all copies. */
void cache_deinit(struct cache *cache);

/* Bytes in host memory that no lower tier has yet, those on their way down included. */
uint64_t cache_unwritten_bytes(const struct cache *cache);

/* How @object is to be stored in @tier. */
struct encoding cache_encoding(const struct cache *cache, enum index_tier tier,
                               const struct index_object *object);

/* Seconds of the loop's clock, for placement. */
uint32_t cache_now_s(const struct cache *cache);

/* What the index is to know of an object that a tier has; its layout is the caller's to say. */
struct index_new_object cache_described(const struct tier_object *object);

/* Takes in what the tiers below kept; @on_end with 0 or a negative errno. */
void cache_recover(struct cache *cache, void (*on_end)(void *user, int result), void *user);

/*
 * A copy with room for @raw_bytes, evicting as needed; with one use held. 0,
 * CACHE_E_BUSY, CACHE_E_FRAGMENTED (only with @contiguous) or -ENOMEM.
 */
int cache_new_copy(struct cache *cache, const struct object_key *key, uint64_t raw_bytes,
                   enum host_copy_state state, uint32_t numa_node, bool contiguous,
                   struct host_copy **ret_copy);

/*
 * Makes a READY copy the visible generation of its key, with a new generation number. With
 * @replace an older generation is dropped from every tier in the same turn; @on_forgotten is
 * called, later, once no catalog entry of an older generation can come back, or not at all when
 * *@ret_forgetting is false. 0, CACHE_E_EXISTS, CACHE_E_INDEX_FULL or -ENOMEM: then the copy is
 * not published; but what it was to replace may be gone already, and *@ret_forgetting holds.
 */
int cache_publish(struct cache *cache, struct host_copy *copy,
                  const struct index_new_object *object, bool replace,
                  void (*on_forgotten)(void *user, int result), void *user, bool *ret_forgetting);

/*
 * The same for a READY copy that was committed on another node: it never replaces anything, and
 * keeps when and by whom it was written. It goes to the pool as what was stored here does, but
 * not because it has come. @read began with the copy; CACHE_E_REPLACED when other bytes than these
 * hold since, or are known to the pool to hold. @copy has checksums.
 */
int cache_publish_read(struct cache *cache, struct host_copy *copy,
                       const struct index_new_object *object, const struct cache_read *read);
void cache_read_begin(struct cache *cache, struct cache_read *read, const struct object_key *key);
void cache_read_end(struct cache_read *read);

/* From now on bytes with checksum @total (0: not known yet) hold under @key (NULL: some key). */
void cache_replaced(struct cache *cache, const struct object_key *key, uint64_t total);

/* Drops an object's host copy, and the object when nothing else has it; or all of the object. */
void cache_drop_host(struct cache *cache, struct index_object *object, enum metrics_removal reason);
void cache_drop(struct cache *cache, struct index_object *object, enum metrics_removal reason);

/* Drops what others replaced under @key: @object, or NULL. @on_forgotten: at once, or later. */
void cache_drop_replaced(struct cache *cache, const struct object_key *key,
                         struct index_object *object,
                         void (*on_forgotten)(void *user, int result), void *user);

/*
 * Drops an object from one tier below, or from all of them, and from the index when nothing
 * else has it. In the pool, what other nodes wrote stays there: it is only not known here.
 */
void cache_drop_place(struct cache *cache, struct index_object *object, enum index_tier tier,
                      enum metrics_removal reason);
void cache_drop_below(struct cache *cache, struct index_object *object,
                      enum metrics_removal reason);

/* The pool has the object, in place of where it was known to have it; or has lost it. */
void cache_set_remote(struct cache *cache, struct index_object *object, struct tier_place place,
                      bool own);
/* Returns the object, or NULL when nothing else has it. */
struct index_object *cache_lose_remote(struct cache *cache, struct index_object *object);

/* An object's place, which it does not refer to (any more), goes back to the tier. */
int cache_forget(struct cache *cache, enum index_tier tier, struct tier_place place,
                 const struct object_key *key, uint64_t footprint, bool sync,
                 void (*on_forgotten)(void *user, int result), void *user);

/* Calls @on_forgotten when every delete on NVMe is durable: later, or at once. */
void cache_sync_forgets(struct cache *cache, void (*on_forgotten)(void *user, int result),
                        void *user);

/*
 * After a tier below said that it is full: evicts from it until @bytes more are being
 * freed, at least one boundary, and none that was touched at @before_s or later. 0, or
 * CACHE_E_BUSY when nothing (more) can go.
 */
int cache_make_room(struct cache *cache, enum index_tier tier, uint64_t bytes, uint32_t before_s);

/* After the index said that it is full: something goes. False: nothing can. */
bool cache_make_index_room(struct cache *cache);

/* The object of a boundary was stored or acquired. */
void cache_touch(struct cache *cache, struct index_object *object);

/* Notes in the ring of drops what became of an object, which may be there still. */
void cache_note_drop(struct cache *cache, const struct index_object *object, enum metrics_tier tier,
                     enum drop_reason reason);
