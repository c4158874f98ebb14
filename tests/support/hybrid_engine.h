// SPDX-License-Identifier: Apache-2.0
/*
 * An engine of a hybrid model, for stories: attention, window, indexer, recurrent state and
 * scratch groups over several shards, in one process. It stores and loads as an engine
 * does, boundary by boundary; the bytes of each object are a function of its name and of a
 * generation that the caller chooses, so that every load can be checked.
 *
 * Works with any layout whose groups the caller describes. Functions return statuses and
 * fail the test only on what can never be right.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"

#define HYBRID_CHUNK_TOKENS   64u
#define HYBRID_BOUNDARIES_MAX 16u
#define HYBRID_MEMBERS_MAX    1024u /* objects of one boundary */
#define HYBRID_OBJECTS_MAX    2048u /* ... and of the chunks before it that it needs */

/* Groups of hybrid_layout(), and sets of them. */
enum { HYBRID_ATTENTION, HYBRID_WINDOW, HYBRID_INDEX, HYBRID_STATE, HYBRID_SCRATCH };
#define HYBRID_GROUPS_MAX 4u                   /* that are stored */
#define HYBRID_SHARDS     2u                   /* of each group but the indexer's, which has 1 */
#define HYBRID_WINDOWS    2u                   /* trailing chunks that the window group needs */
#define HYBRID_KV         0x7u                 /* groups as bits: all that have chunks */
#define HYBRID_STATES     (1u << HYBRID_STATE) /* the state */
#define HYBRID_ALL        UINT32_MAX

/* Attention, window, index, state, scratch; chunks of HYBRID_CHUNK_TOKENS. */
struct kvt_layout hybrid_layout(void);

struct hybrid_engine {
        struct kvt_session *session;
        struct kvt_layout layout; /* its groups and strings are the caller's */
        uint64_t state_bytes;     /* of shard 0 of a state; each further shard has one more */
        uint64_t last_set;
};

/* @layout: NULL for hybrid_layout(). Attached. */
void hybrid_open(struct hybrid_engine *engine, const char *socket, const struct kvt_layout *layout);
/*
 * One process of an engine that has several: engine_id, shards, rank and flags are those of
 * @options. The status of kvt_open(): OK or PENDING.
 */
enum kvt_status hybrid_open_rank(struct hybrid_engine *engine, const char *socket,
                                 const struct kvt_layout *layout,
                                 const struct kvt_options *options);
/* Also while the daemon is away: then it goes on trying. */
void hybrid_open_early(struct hybrid_engine *engine, const char *socket);
void hybrid_close(struct hybrid_engine *engine);

/* Digests of a prompt: tokens by @seed, in chunks of @layout. */
struct hybrid_prompt {
        struct kvt_digest digests[HYBRID_BOUNDARIES_MAX];
        uint32_t n_boundaries;
        uint32_t n_tokens;
};

struct hybrid_prompt hybrid_prompt(const struct hybrid_engine *engine, uint64_t seed,
                                   uint32_t n_tokens, const char *salt);

/* As that of @seed up to @boundary, and by @branch_seed behind it. */
struct hybrid_prompt hybrid_branch(const struct hybrid_engine *engine, uint64_t seed,
                                   uint32_t boundary, uint64_t branch_seed, uint32_t n_tokens);

/* ---- one call at a time, waited for ---- */

typedef enum kvt_status (*hybrid_submit)(struct kvt_session *session, const struct kvt_call *call,
                                         struct kvt_object *objects, size_t n, uint64_t *ret_call);

/* The completion, or one with the status of the submission. */
struct kvt_completion hybrid_call(struct hybrid_engine *engine, hybrid_submit submit, uint64_t set,
                                  struct kvt_object *objects, size_t n);

/* The objects of one boundary (1, 2, ...) in the groups of a set; every shard. */
size_t hybrid_objects(const struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                      uint32_t boundary, uint32_t groups, struct kvt_object *ret_objects);

/* Those that a prefix of @boundary chunks needs, by a rule of this file's own. */
size_t hybrid_needed(const struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                     uint32_t boundary, struct kvt_object *ret_objects);

/* Writes, or checks, the bytes of @generation in an object's segments. */
void hybrid_fill(struct kvt_object *objects, size_t n, uint64_t generation);
bool hybrid_holds(const struct kvt_object *object, uint64_t generation);

/* ---- what an engine does ---- */

/*
 * Stores the boundary's objects of @groups as one set. @flags: KVT_REPLACE. The status of
 * the commit, or of the reserve: then it has aborted. ALREADY_HAVE: all of it is there.
 */
enum kvt_status hybrid_store(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                             uint32_t boundary, uint32_t groups, uint64_t generation,
                             uint32_t flags);
/* Boundaries @first to @last of generation 0, which has to work. */
void hybrid_store_run(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                      uint32_t first, uint32_t last, uint32_t groups);

/*
 * Loads what a prefix of @boundary chunks needs. OK: all of it was there, with the bytes
 * of generation 0; other bytes fail the test.
 */
enum kvt_status hybrid_load(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                            uint32_t boundary);

/*
 * Loads one boundary's objects of @groups, as they stand. OK: all carry the bytes of one
 * generation from @oldest to @newest, which goes to @ret_generation; a mixture, or any
 * other bytes, fails the test.
 */
enum kvt_status hybrid_load_boundary(struct hybrid_engine *engine,
                                     const struct hybrid_prompt *prompt, uint32_t boundary,
                                     uint32_t groups, uint64_t oldest, uint64_t newest,
                                     uint64_t *ret_generation);

/* What the presence table says of the prompt; by a query whose digests are filled in here. */
struct kvt_match hybrid_match(struct hybrid_engine *engine, const struct hybrid_prompt *prompt);
struct kvt_match hybrid_query(struct hybrid_engine *engine, const struct hybrid_prompt *prompt,
                              struct kvt_match_query query);
/* The longest usable boundary; what the library says it needs is right, and it loads. */
uint32_t hybrid_usable(struct hybrid_engine *engine, const struct hybrid_prompt *prompt);

struct daemon_fixture;

/*
 * Drops the objects of one boundary, of one group and shard or all (-1), from one tier, or
 * from every one; waits for what is in use. Some have to be there.
 */
void hybrid_evict(struct daemon_fixture *fixture, const struct hybrid_prompt *prompt,
                  uint32_t boundary, int group, int shard, const char *tier);
void hybrid_drop(struct daemon_fixture *fixture, const struct hybrid_prompt *prompt,
                 uint32_t boundary, int group, int shard);
