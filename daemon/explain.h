// SPDX-License-Identifier: Apache-2.0
/*
 * Explains why a prompt is not a hit: for each of its boundaries what is there, in which
 * tier, and what is missing by group and shard, with what is known of the cause; then the
 * longest usable boundary and what blocks the next ones.
 *
 * This is the joint match once more, slow and from the index rather than from the presence
 * table, so that it also tells reasons: a reservation under way, the ring of drops, other
 * layouts that have the digest. Work is bounded: the caller asks for no more boundaries
 * than explain_limit() says. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/drop_ring.h"
#include "proto/key.h"
#include "proto/layout.h"

#define EXPLAIN_DIGESTS_MAX 4096u
#define EXPLAIN_CELLS_MAX   (1u << 20) /* boundaries times cells of one question */
#define EXPLAIN_GAPS_MAX    16u        /* kept of a boundary */

struct daemon;

enum explain_cause {
        EXPLAIN_NEVER,    /* nothing is known: not stored in this run of the daemon, as far as
                             the ring reaches */
        EXPLAIN_RESERVED, /* somebody is writing it now */
        EXPLAIN_DROPPED,  /* drop tells, refusals included */
};

/* Neighbouring shards of a group that are missing for the same cause. */
struct explain_gap {
        uint16_t group;
        uint16_t first_shard;
        uint16_t n_shards;
        uint8_t cause;              /* enum explain_cause */
        uint8_t tier, reason, rule; /* of the drop: see struct drop */
        uint64_t first_ns, last_ns; /* of the drops, over shards and boundaries */
        uint32_t count;             /* how often in a row, at most */
};

/* Neighbouring boundaries that are alike. */
struct explain_run {
        uint32_t from, to;    /* boundaries, from 1 */
        struct digest digest; /* of @from */
        uint32_t n_host;      /* cells that are in host memory */
        uint32_t n_nvme;      /* cells that are on NVMe, and not there */
        uint32_t n_remote;    /* cells that are in the pool only */
        uint32_t n_missing;
        bool is_usable;
        bool is_cut;           /* more gaps than are kept */
        uint16_t other_layout; /* nothing is here, but that layout has this digest; or 0 */
        uint32_t n_gaps;
        struct explain_gap gaps[EXPLAIN_GAPS_MAX];
};

/* What keeps boundary @at from being usable: @chunk is the boundary that lacks a gap. */
struct explain_block {
        uint32_t at; /* 0: nothing does */
        uint32_t chunk;
        struct explain_gap gap;
};

struct explain_query {
        uint16_t layout;
        const struct digest *digests;
        uint32_t n_digests;
        uint32_t first;         /* boundaries before these: taken for complete */
        uint32_t prompt_tokens; /* 0: not told */
        uint32_t max_tokens;    /* 0: no limit */
};

struct explanation {
        struct layout *layout; /* decoded */
        uint16_t layout_number;
        uint32_t first;
        uint32_t n;                      /* boundaries looked at, those before included */
        uint32_t limit;                  /* of these may be used, by prompt_tokens and max_tokens */
        uint32_t usable;                 /* the longest usable boundary, 0: none */
        uint32_t kv;                     /* the longest with every chunk that all prefixes need */
        struct explain_block kv_block;   /* why kv goes no further */
        struct explain_block best_block; /* why boundary kv itself is not usable */
        struct explain_run *runs;
        uint32_t n_runs;
        uint32_t capacity;
};

/* Boundaries that one question about @layout may have. */
uint32_t explain_limit(const struct layout *layout);

/*
 * 0, -ENOENT (what the layout means is not known) or -ENOMEM; @query->n_digests above
 * explain_limit() are not looked at. explanation_deinit() in any case.
 */
int explain(struct daemon *daemon, const struct explain_query *query,
            struct explanation *ret_explanation);
void explanation_deinit(struct explanation *explanation);
