// SPDX-License-Identifier: Apache-2.0
/*
 * What the remote tier knows, in memory: nodes, their bundles, and an entry for each object
 * that can be read. What is needed to read one lies in the index (remote_index.h); here is
 * what every decision needs at once.
 *
 * Entries lie in one array of 120 bytes each, in address space reserved for the most there
 * can be; they are found by key in a hash table that grows by one bucket for each entry, so
 * that no single insertion is slow, and by place. A key may have several: an old generation
 * that is not forgotten yet beside the new one. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/tree.h"
#include "proto/key.h"
#include "storage/bundle.h"
#include "storage/tier.h"

#define REMOTE_NODES_MAX   4096u
#define REMOTE_ENTRIES_MAX (1u << 24)

/* How far a node has read the journal of another. */
struct remote_position {
        struct remote_node *node;
        uint64_t number;
};

struct remote_node {
        LIST_ENTRY(remote_node) link;
        uint8_t id[16];
        bool is_own;
        RB_HEAD(remote_bundle_tree, remote_bundle) bundles;
        uint64_t read_to; /* segments of its journal up to this one were read, or never will be */
        uint64_t told;    /* read_to as our own journal says */
        /* Its replaced records up to here are not remembered one by one any more. */
        uint64_t floor;
        struct remote_position *positions; /* what it has read of others */
        uint32_t n_positions;
        /* The last listing of its journal. */
        struct remote_listed *listed; /* in order; from listed_at on n_listed not read yet */
        uint32_t listed_at, n_listed, listed_size;
        uint64_t first_number; /* the lowest that was listed; 0: none */
        uint32_t n_unlisted;   /* listings in a row without it */
        bool was_listed;
        bool has_gap;       /* segments went before we read them */
        uint64_t gap_at;    /* until its snapshot is read: the first of these; 0: none */
        bool is_unreadable; /* in this round */
        bool was_unreadable;
        /* Its next segment was written in the knowledge of that one. */
        struct remote_node *waits_for;
        uint64_t waits_for_number;
        bool waits_no_more; /* for this segment */
};

struct remote_listed {
        uint64_t number;
        uint64_t bytes;
};

enum remote_bundle_state {
        REMOTE_BUNDLE_LIVE,
        REMOTE_BUNDLE_GOING,    /* own: not to be read any more, the journal comes first */
        REMOTE_BUNDLE_REMOVING, /* own: a remove is in flight, or is tried again later */
};

struct remote_bundle {
        RB_ENTRY(remote_bundle) tree;
        struct remote_node *node;
        uint64_t number;
        uint32_t first_entry; /* slots; 0: none */
        uint32_t n_entries;
        uint32_t n_reads;  /* jobs in flight on it */
        uint8_t state;     /* enum remote_bundle_state */
        bool is_announced; /* own: its journal record of deletion was made */
        /* Own alone: */
        uint64_t bytes;                       /* in the pool */
        uint64_t live_bytes;                  /* stored bytes of its entries */
        uint64_t dead_bytes;                  /* stored bytes that no entry has, header apart */
        uint64_t ordinal;                     /* of the journal segment that says it is deleted */
        uint64_t not_before;                  /* ms of the loop's clock: no remove earlier */
        TAILQ_ENTRY(remote_bundle) link;      /* GOING and REMOVING */
        STAILQ_HEAD(, remote_forget) forgets; /* wait for its end */
};

enum remote_entry_flags {
        REMOTE_ENTRY_LEARNED = 1u << 0,   /* from a journal: the generation means nothing here */
        REMOTE_ENTRY_ENTERING = 1u << 1,  /* a write whose change of the index is under way */
        REMOTE_ENTRY_FORGOTTEN = 1u << 2, /* waits for its readers */
};

struct remote_entry {
        uint32_t hash_next; /* slots; 0: none */
        uint32_t bundle_next;
        struct remote_bundle *bundle;
        uint64_t claim; /* 0: the slot is free */
        uint64_t checksum_total;
        uint64_t raw_bytes;
        uint32_t stored_bytes;
        uint16_t part;
        uint8_t flags; /* enum remote_entry_flags */
        uint8_t n_reads;
        struct object_key key;
};

_Static_assert(sizeof(struct remote_entry) <= 120, "an entry costs memory a million times");

struct remote_map {
        struct remote_entry *entries; /* slot 0 is never used */
        uint32_t *buckets;
        uint32_t n_buckets, level_mask;
        uint32_t n_entries, n_slots, max; /* n_slots: used once or in use */
        uint32_t first_free;
        uint64_t next_claim;
        LIST_HEAD(, remote_node) nodes;
        uint32_t n_nodes;
        uint32_t n_bundles;
};

/* @max: entries, at most REMOTE_ENTRIES_MAX. 0 or -ENOMEM. */
int remote_map_init(struct remote_map *map, uint32_t max);
void remote_map_deinit(struct remote_map *map);

/* NULL: there is none; with @create: no memory, or too many nodes. */
struct remote_node *remote_map_node(struct remote_map *map, const uint8_t id[16], bool create);
/* It has no bundles any more. Others' positions in its journal go too. */
void remote_map_drop_node(struct remote_map *map, struct remote_node *node);
uint64_t remote_node_position(const struct remote_node *node, const struct remote_node *of);
/* 0 or -ENOMEM; never goes back. */
int remote_node_set_position(struct remote_node *node, struct remote_node *of, uint64_t number);

struct remote_bundle *remote_map_bundle(struct remote_map *map, struct remote_node *node,
                                        uint64_t number, bool create);
struct remote_bundle *remote_node_first_bundle(struct remote_node *node);
struct remote_bundle *remote_bundle_next(struct remote_bundle *bundle);
/* It has no entries. */
void remote_map_drop_bundle(struct remote_map *map, struct remote_bundle *bundle);

/* A new entry of @bundle; the caller fills the sizes. NULL when there are too many. */
struct remote_entry *remote_map_add(struct remote_map *map, const struct object_key *key,
                                    struct remote_bundle *bundle, uint32_t part);
void remote_map_drop(struct remote_map *map, struct remote_entry *entry);
/* The first of @key, and the next of the same key; NULL: none. */
struct remote_entry *remote_map_find(const struct remote_map *map, const struct object_key *key);
struct remote_entry *remote_map_find_next(const struct remote_map *map,
                                          const struct remote_entry *entry);
/* NULL when what was there has gone. */
struct remote_entry *remote_map_at(const struct remote_map *map, struct tier_place place);
struct remote_entry *remote_map_slot(const struct remote_map *map, uint32_t slot);
struct remote_entry *remote_bundle_part(const struct remote_map *map,
                                        const struct remote_bundle *bundle, uint32_t part);
struct tier_place remote_map_place(const struct remote_map *map, const struct remote_entry *entry);
static inline bool remote_place_is_own(struct tier_place place)
{
        return place.where & 1;
}
