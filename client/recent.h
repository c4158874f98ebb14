// SPDX-License-Identifier: Apache-2.0
/*
 * The last matches that found less than they were asked for, for kvtierctl why.
 *
 * Matches run in any thread, without lock, system call or allocation; the session's thread
 * reads when the daemon asks. Each entry has an owner at a time, by compare-and-swap of its
 * state: whoever finds it taken goes without, so nobody ever waits. A prompt that is asked
 * for again and again, as a scheduler does, is found by its tag and only counted.
 *
 * Of a long prompt KVT__RECENT_DIGESTS are kept, up to a few behind the first gap. 256 KiB
 * a session.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/table.h"
#include "proto/wire.h"

#define KVT__RECENT_MAX     16u
#define KVT__RECENT_DIGESTS WIRE_MATCH_DIGESTS_MAX

enum {
        KVT__RECENT_EMPTY,
        KVT__RECENT_TAKEN,
        KVT__RECENT_READY,
};

/* What may be looked at, and counted up, without owning the entry. */
struct kvt__recent_mark {
        _Atomic uint64_t tag; /* of the prompt; 0: none */
        _Atomic uint64_t beat_ns;
        _Atomic uint32_t repeats;
        _Atomic uint32_t state;
};

struct kvt__recent_entry {
        uint64_t sequence;
        uint32_t total, first, n_digests;
        uint32_t prompt_tokens, max_tokens;
        uint32_t boundaries, kv_boundaries;
        struct digest digests[KVT__RECENT_DIGESTS];
};

struct kvt__recent {
        struct kvt__recent_mark marks[KVT__RECENT_MAX];
        struct kvt__recent_entry *entries;
        _Atomic uint64_t next; /* sequence of the next entry, minus 1 */
};

/* 0 or -ENOMEM; zeros are a ring that keeps nothing. */
int kvt__recent_init(struct kvt__recent *recent);
void kvt__recent_deinit(struct kvt__recent *recent);

/* Any thread that has entered @table: what a match of @query has found. */
void kvt__recent_note(struct kvt__recent *recent, const struct kvt__table *table,
                      const struct kvt_match_query *query, const struct kvt_match *found);

/*
 * Session's thread: fills in the message about the @nth match from the newest on, but its
 * header, and copies its digests, of which @ret_message->header.n_items tells the number.
 * sequence 0: there are not as many.
 */
void kvt__recent_read(struct kvt__recent *recent, uint32_t nth, struct wire_matches *ret_message,
                      struct digest *ret_digests);
