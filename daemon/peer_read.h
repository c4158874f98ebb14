// SPDX-License-Identifier: Apache-2.0
/*
 * Peer reads: objects come from another node's memory into ours.
 *
 *   ASKED -> READING -> VERIFYING -> ended, published
 *       `-> ended: missing there, no room here, late, the connection broke
 *
 * A fetch is one ASK (proto/peer_message.h). While the peer looks for an object, promotes it, or
 * waits for somebody to commit it, nothing is held here. Once it is offered there is room for it
 * at once, or it is given up. Its bytes are read into a copy of ours, verified on a worker against
 * the checksums that came with the offer, and published like a commit, with a generation of our
 * own, and as written when and by whom the peer says. Whatever fails is a miss, counted.
 *
 * Until it has ended an object counts as reserved here: an acquire that waits, waits for it.
 * Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/tree.h"
#include "proto/key.h"
#include "proto/layout.h"
#include "proto/peer_message.h"
#include "proto/remote_link.h"

struct daemon;
struct fetched;
struct peer;
struct peer_fetch;

RB_HEAD(fetched_tree, fetched);

struct peer_reads {
        struct fetched_tree expected; /* all that have not ended */
        uint64_t last_request;
        uint64_t last_serial;
        uint32_t n_expected;
};

/* Leases that a peer is to be told to release. */
struct peer_releases {
        struct peer_builder builder;
        uint8_t *buffer; /* NULL: none yet */
};

struct peer_want {
        struct digest boundary;
        uint16_t group;
        uint16_t shard;
        void *user;
};

struct peer_fetch_options {
        uint16_t layout;                  /* index_layout() number */
        const struct layout *description; /* of it; lent for the call */
        const struct peer_want *wants;    /* lent for the call; neighbours of a boundary together */
        uint32_t n;
        uint64_t timeout_ns; /* how long to wait for what the peer has not; 0: not */
        /* Once for each want, never from within the call: the wire status of its end. */
        void (*on_end)(void *user, uint32_t status);
};

/*
 * Asks for as many leading wants as one message holds, *@ret_n. KVT_WIRE_OK, or UNAVAILABLE,
 * NO_MEMORY, BUSY (too much is under way), INVALID (the first want is none that the layout has):
 * then nothing is asked.
 */
uint32_t peer_fetch_start(struct peer *peer, const struct peer_fetch_options *options,
                          uint32_t *ret_n, struct peer_fetch **ret_fetch);

/* on_end() comes for nothing of it any more. What is not offered yet will not be read. */
void peer_fetch_cancel(struct peer_fetch *fetch);

/* Is the object on its way from a peer, or expected there? */
bool peer_reads_expect(const struct daemon *daemon, uint16_t layout, const struct digest *boundary,
                       uint16_t group, uint16_t shard);

/*
 * Other bytes hold under that key: with what total, 0: not known. Of what is asked for only a
 * READ that is offered later has to know; cache_read_begin() sees to those that have begun. A
 * blob that serves what was asked for is known by its own key when it is offered, not before.
 * @key NULL: it may be any, so nothing that is asked for is taken.
 */
void peer_reads_replaced(struct daemon *daemon, const struct object_key *key, uint64_t total);

/* What the connection to a peer tells. */
void peer_reads_opened(struct peer *peer);
void peer_reads_message(struct peer *peer, const void *packet, size_t length);
void peer_reads_closed(struct peer *peer);

/* Sends the releases that have gathered. */
void peer_reads_flush(struct peer *peer);
void peer_reads_expire(struct peer *peer, uint64_t now_ns);
