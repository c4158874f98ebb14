// SPDX-License-Identifier: Apache-2.0
/*
 * Control messages between libkvtier and kvtierd: every struct that crosses the socket.
 *
 * SOCK_SEQPACKET, one message a packet, at most WIRE_MESSAGE_MAX bytes. Little-endian,
 * fixed width, no padding, `reserved` is zero and checked. Kinds and flags are append
 * only; an unknown kind or flag is answered with UNSUPPORTED. A batch that does not fit
 * one message is split into parts with one request id, all but the last with WIRE_MORE.
 *
 * Every message after the handshake carries boot id and session id; the daemon answers
 * GONE unless both are current. File descriptors travel with WELCOME (the presence table)
 * and ARENA (its memfd) only. proto/README.md draws the bytes and the order of messages.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/key.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "wire, shared memory and disk are little-endian");

#define WIRE_MAGIC       0x3154564bu /* "KVT1" */
#define WIRE_MAJOR       1u
#define WIRE_MINOR       0u
#define WIRE_MESSAGE_MAX 65536u
#define WIRE_ITEMS_MAX   65536u /* objects of one request, all parts together */
#define WIRE_EXTENTS_MAX 128u   /* of one object; with pages, extents are cut where runs end */
#define WIRE_RUNS_MAX    64u    /* runs of pages of one object */
#define WIRE_RUNS_TOTAL  32768u /* of one request */
#define WIRE_WHY_MAX     512u
#define WIRE_COVERS_MAX  1900u  /* boundaries of one croppable blob: one message holds them */

/* number, NAME, who sends it */
#define WIRE_KIND_LIST(X)                                                                          \
        X(1, HELLO)         /* client: first message */                                            \
        X(2, WELCOME)       /* daemon: with the table's fd */                                      \
        X(3, ARENA)         /* daemon: with the memfd; at any time after WELCOME */                \
        X(4, ATTACH)        /* client */                                                           \
        X(5, ATTACHED)      /* daemon */                                                           \
        X(6, RESERVE)       /* client */                                                           \
        X(7, COMMIT)        /* client */                                                           \
        X(8, ABORT)         /* client */                                                           \
        X(9, ACQUIRE)       /* client */                                                           \
        X(10, ADOPT)        /* client */                                                           \
        X(11, RELEASE)      /* client */                                                           \
        X(12, CANCEL)       /* client */                                                           \
        X(13, COPIES_ENDED) /* client: ends the quarantine of one earlier session */               \
        X(14, GRANTED)      /* daemon: the decision on an acquire or adopt */                      \
        X(15, RESULT)       /* daemon: outcomes per object */                                      \
        X(16, ADMIN)        /* client: JSON text, for kvtierctl */                                 \
        X(17, ADMIN_REPLY)  /* daemon: JSON text */                                                \
        X(18, BYE)          /* daemon: why it disconnects */                                       \
        X(19, LAYOUT)       /* daemon: the whole layout of a session that knew a part */           \
        X(20, MARK)         /* client: reclaim, pin, unpin */                                      \
        X(21, RECENT)       /* daemon: asks for a recent match, for kvtierctl why */               \
        X(22, MATCHES)      /* client: that match */                                               \
        X(23, PREFETCH)     /* client: objects that will be acquired soon */                       \
        X(24, PUT)          /* remote client: where the bytes of its reservations are */           \
        X(25, FETCH)        /* remote client: where the bytes of its leases are wanted */          \
        X(26, FIND)         /* client: of boundaries, what is there? see kvt_find() */             \
        X(27, FOUND)        /* daemon: that */                                                     \
        X(28, FORGET)       /* daemon: of shards elsewhere, what was FOUND holds no more */        \
        X(29, TELL)         /* client: what only the engine knows, see kvt_tell() */

enum wire_kind {
#define WIRE_KIND_ENUM(number, name) WIRE_##name = number,
        WIRE_KIND_LIST(WIRE_KIND_ENUM)
#undef WIRE_KIND_ENUM
};

/* wire_header.flags */
#define WIRE_MORE (1u << 0) /* another part of the same request or answer follows */

struct wire_header {
        uint32_t magic;
        uint16_t kind;
        uint16_t flags;
        uint32_t length;  /* of the whole message */
        uint32_t n_items; /* records behind the fixed part, as each kind says */
        uint64_t request; /* chosen by the client, never 0; echoed; 0 in unasked messages */
        uint64_t session; /* 0 in HELLO */
        uint8_t boot_id[16]; /* zero in HELLO */
};
_Static_assert(sizeof(struct wire_header) == 48, "wire_header");
_Static_assert(offsetof(struct wire_header, request) == 16, "wire_header");
_Static_assert(offsetof(struct wire_header, boot_id) == 32, "wire_header");

/* wire_hello.flags */
#define WIRE_HELLO_ADMIN (1u << 0) /* wants no table and no arenas: kvtierctl */

struct wire_hello {
        struct wire_header header;
        uint16_t major;
        uint16_t minor;
        uint32_t flags;
        uint64_t features; /* bits the client knows; none defined yet */
        char program[64];  /* for messages and `kvtierctl sessions`; zero-padded */
};
_Static_assert(sizeof(struct wire_hello) == 128, "wire_hello");

struct wire_welcome {
        struct wire_header header;
        uint16_t major; /* as spoken from now on: the lower of both minors */
        uint16_t minor;
        uint32_t status; /* OK, UNSUPPORTED (version), DENIED, REFUSED (too many sessions) */
        uint64_t features;
        uint64_t session;
        uint8_t boot_id[16];
        uint8_t secret[16];     /* names this session in a later COPIES_ENDED */
        uint64_t table_bytes;   /* of the presence table's memfd */
        uint64_t host_bytes;    /* configured size of the host tier */
        uint64_t leases_max;    /* of this session */
        uint32_t domain;
        uint32_t n_arenas;      /* ARENA messages that follow at once */
        char why[128];          /* for a status other than OK; zero-padded */
};
_Static_assert(sizeof(struct wire_welcome) == 48 + 88 + 128, "wire_welcome");
_Static_assert(offsetof(struct wire_welcome, secret) == 88, "wire_welcome");
_Static_assert(offsetof(struct wire_welcome, table_bytes) == 104, "wire_welcome");
_Static_assert(offsetof(struct wire_welcome, why) == 136, "wire_welcome");

struct wire_arena {
        struct wire_header header;
        uint32_t arena_id;
        uint32_t numa_node; /* UINT32_MAX: not bound */
        uint64_t bytes;
        uint64_t page_bytes;
};
_Static_assert(sizeof(struct wire_arena) == 72, "wire_arena");

/* wire_attach.flags: what the library keeps from the engine, shown by `kvtierctl sessions` */
#define WIRE_ATTACH_NO_LOADS  (1u << 1) /* its ACQUIREs, ADOPTs and PREFETCHes miss */
#define WIRE_ATTACH_NO_STORES (1u << 2) /* its RESERVEs and MARKs are refused */

/* Followed by n_items x u16 shard (those on this node), then layout_bytes of encoding. */
struct wire_attach {
        struct wire_header header;
        uint8_t engine_id[16];
        uint32_t layout_bytes;
        uint32_t flags; /* WIRE_ATTACH_* */
        uint32_t rank;    /* of the process, for people; 0 without n_ranks */
        uint32_t n_ranks; /* of the engine on this node; 0: not told */
};
_Static_assert(sizeof(struct wire_attach) == 80, "wire_attach");

struct wire_attached {
        struct wire_header header;
        uint32_t status; /* OK; PENDING: rows are missing, LAYOUT follows; INVALID, REFUSED */
        uint32_t layout; /* handle for the batches of this session; PENDING: 0 */
        uint32_t chunk_tokens; /* as asked for, or the daemon's choice; 0 without paged groups */
        uint32_t n_cells;
        struct digest layout_id;
        char why[WIRE_WHY_MAX]; /* for a status other than OK; zero-padded */
};
_Static_assert(sizeof(struct wire_attached) == 48 + 48 + 512, "wire_attached");

/* Followed by layout_bytes of encoding: complete, with the chunk_tokens that holds. */
struct wire_layout {
        struct wire_header header;
        uint32_t layout; /* handle, from now on */
        uint32_t layout_bytes;
        struct digest layout_id;
};
_Static_assert(sizeof(struct wire_layout) == 48 + 40, "wire_layout");

/*
 * The fixed part of RESERVE, COMMIT, ABORT, ACQUIRE, RELEASE, MARK; ADOPT, PREFETCH, PUT, FETCH,
 * FIND begin so.
 */
struct wire_batch {
        struct wire_header header;
        uint64_t set;         /* RESERVE, COMMIT, ABORT: 0, or the set they belong to */
        uint64_t timeout_ns;  /* ACQUIRE, PREFETCH with WAIT: how long to wait; else 0 */
        uint32_t layout;      /* RESERVE, ACQUIRE, ADOPT, MARK, PREFETCH, FIND; else 0 */
        uint32_t flags;       /* WIRE_ACQUIRE_*, WIRE_PREFETCH_*, WIRE_ABORT_*; else 0 */
        uint32_t first;       /* index of the first item within the request */
        uint32_t total;       /* items of the whole request */
};
_Static_assert(sizeof(struct wire_batch) == 80, "wire_batch");

/* wire_batch.flags of ACQUIRE and ADOPT */
#define WIRE_ACQUIRE_WAIT      (1u << 0) /* for objects that are reserved or expected */
#define WIRE_ACQUIRE_PARTIAL   (1u << 1) /* grant the leading run that exists */
#define WIRE_ACQUIRE_CHECKSUMS (1u << 2) /* results carry piece checksums */
#define WIRE_ACQUIRE_RESIDENT  (1u << 3) /* only what is in the host tier; else BUSY */

/* wire_reserve_item.flags */
#define WIRE_RESERVE_REPLACE        (1u << 0)
#define WIRE_RESERVE_PARENT_UNKNOWN (1u << 1)
#define WIRE_RESERVE_CROPPABLE      (1u << 2)
#define WIRE_RESERVE_CONTIGUOUS     (1u << 3) /* in one extent, or REFUSED */
#define WIRE_RESERVE_HIT            (1u << 4) /* hit_tokens is known */
#define WIRE_RESERVE_BRANCH         (1u << 5) /* a state where prompts branch */

/* RESERVE: items, then for each croppable one its n_covers digests, in order of items. */
struct wire_reserve_item {
        struct digest boundary;
        struct digest parent; /* zeros: a root, or unknown with the flag */
        uint16_t group;
        uint16_t shard;
        uint32_t flags;
        uint32_t boundary_tokens;
        uint32_t numa_node; /* UINT32_MAX: no preference */
        uint64_t bytes;
        uint32_t n_covers;
        uint32_t hit_tokens; /* with HIT: the boundary from which the prefill went on, or 0 */
};
_Static_assert(sizeof(struct wire_reserve_item) == 96, "wire_reserve_item");
_Static_assert(offsetof(struct wire_reserve_item, bytes) == 80, "wire_reserve_item");

/* COMMIT: each item is followed at once by its n_pieces x u64 piece checksums. */
struct wire_commit_item {
        uint64_t lease;
        uint32_t n_pieces; /* 0, or the writer's list: the daemon verifies it */
        uint32_t flags;    /* none defined */
};
_Static_assert(sizeof(struct wire_commit_item) == 16, "wire_commit_item");

/* ABORT and RELEASE: items are u64 leases. */

/* wire_batch.flags of ABORT */
#define WIRE_ABORT_MEMBERS (1u << 0) /* of a set only these end, as if never granted */

/*
 * ACQUIRE, ADOPT, PREFETCH: each item is followed at once by its n_runs runs of pages. None:
 * the whole object. Only ACQUIRE has any.
 */
struct wire_key_item {
        struct digest boundary;
        uint16_t group;
        uint16_t shard;
        uint32_t n_runs;
};
_Static_assert(sizeof(struct wire_key_item) == 40, "wire_key_item");

/* Runs ascend and do not touch. Page p of a chunk is its bytes [p * page_bytes, + page_bytes). */
struct wire_page_run {
        uint32_t first_page;
        uint32_t n_pages;
};
_Static_assert(sizeof(struct wire_page_run) == 8, "wire_page_run");

/* ADOPT: like ACQUIRE with the token of the acquire; no items: everything it holds. */
struct wire_adopt {
        struct wire_batch batch;
        uint8_t token[16];
};
_Static_assert(sizeof(struct wire_adopt) == 96, "wire_adopt");

#define WIRE_HINT_MAX 64u

/* wire_batch.flags of PREFETCH */
#define WIRE_PREFETCH_WAIT (1u << 0) /* for objects that whom the hint names does not have yet */

/*
 * PREFETCH: keys as of an ACQUIRE. Nothing is leased; answered by one RESULT an item when all
 * of them are in host memory or will not be.
 */
struct wire_prefetch {
        struct wire_batch batch;
        char hint[WIRE_HINT_MAX]; /* a peer that may have them, as the config names it */
};
_Static_assert(sizeof(struct wire_prefetch) == 144, "wire_prefetch");

/*
 * wire_mark_item.flags: PIN, UNPIN, or what is reclaimed, one or both. BELOW: all that
 * hangs on the boundary. PREFIX: it and what is above it, up to what anything else needs.
 */
#define WIRE_MARK_RECLAIM_BELOW  (1u << 0)
#define WIRE_MARK_RECLAIM_PREFIX (1u << 1)
#define WIRE_MARK_PIN            (1u << 2)
#define WIRE_MARK_UNPIN          (1u << 3)

/* MARK: answered by one RESULT an item when all of them are done. */
struct wire_mark_item {
        struct digest boundary;
        uint32_t flags;
        uint32_t reserved;
};
_Static_assert(sizeof(struct wire_mark_item) == 40, "wire_mark_item");

/*
 * PUT and FETCH, of sessions that share no memory with the daemon (proto/README.md): a lease,
 * and the place in the client's memory, opened to the daemon's side of the connection for as
 * long as the request is under way. The place is as long as what the lease is for.
 */
struct wire_move_item {
        uint64_t lease;
        uint64_t address;
        uint64_t bytes;
        uint32_t key;
        uint32_t reserved;
};
_Static_assert(sizeof(struct wire_move_item) == 32, "wire_move_item");

/* FIND: items are digests. */

#define WIRE_BANKS_MAX 16u

/*
 * Followed by n_items times n_banks records, the banks of a digest side by side. Of an engine that
 * spans nodes: what all of them have between them. FORGET is the header alone.
 */
struct wire_found {
        struct wire_header header;
        uint32_t first; /* index of the first digest within the request */
        uint32_t n_banks;
        uint64_t reserved;
};
_Static_assert(sizeof(struct wire_found) == 64, "wire_found");

struct wire_found_bits {
        uint64_t present; /* as in the presence table */
        uint64_t resident;
        uint32_t flags;
        uint32_t reserved;
};
_Static_assert(sizeof(struct wire_found_bits) == 24, "wire_found_bits");

struct wire_cancel {
        struct wire_header header;
        uint64_t target; /* request id */
};
_Static_assert(sizeof(struct wire_cancel) == 56, "wire_cancel");

struct wire_copies_ended {
        struct wire_header header;
        uint8_t secret[16];
};
_Static_assert(sizeof(struct wire_copies_ended) == 64, "wire_copies_ended");

/*
 * GRANTED: the decision on an ACQUIRE or ADOPT, before its first RESULT. With a status
 * other than OK nothing is held and no lease exists; RESULT items still say what each
 * object's state is. n_granted: items that were granted (PARTIAL), else all. With WAIT a
 * GRANTED of status PENDING may come first: the decision follows in another.
 */
struct wire_granted {
        struct wire_header header;
        uint32_t status;    /* OK, MISS, BUSY, TOO_LARGE, GONE, REFUSED, TIMEOUT ... */
        uint32_t n_granted; /* leading items that are leased */
        uint32_t n_resident; /* leading items that are in the host tier (BUSY names it) */
        uint32_t n_fitting; /* leading items that would fit (TOO_LARGE names it) */
        uint8_t token[16];  /* for ADOPT */
};
_Static_assert(sizeof(struct wire_granted) == 80, "wire_granted");

/*
 * RESULT: n_items records of this struct, each followed at once by its extents, then its
 * piece checksums. Items come in any order and each index exactly once in a final state;
 * PENDING (an object on its way: lease known, bytes not there yet) may come before it.
 * The last RESULT of a request has no WIRE_MORE.
 *
 * A CANCEL and a COPIES_ENDED are answered by one RESULT with one item of index 0. An
 * acquire or adopt that is granted nothing is answered by GRANTED and one RESULT, which
 * may have no item.
 */
struct wire_result_item {
        uint32_t index;
        uint32_t status;
        uint64_t lease; /* 0: none */
        uint64_t generation;
        uint64_t bytes; /* length of the object, or of its pages that were asked for */
        uint32_t n_extents;
        uint32_t n_pieces;
        uint64_t stored_ns; /* wall clock of the commit, ns since 1970; 0: not there yet */
        uint8_t writer_boot_id[16]; /* of the daemon's run that took it; zeros: not there yet */
};
_Static_assert(sizeof(struct wire_result_item) == 64, "wire_result_item");

/*
 * Whole units of 4,096 bytes, the last of them perhaps longer than the object; or, when
 * pages were asked for, exactly their bytes in order.
 */
struct wire_extent {
        uint32_t arena_id;
        uint32_t reserved;
        uint64_t offset;
        uint64_t length;
};
_Static_assert(sizeof(struct wire_extent) == 24, "wire_extent");

/* ADMIN, ADMIN_REPLY: header, then n_items bytes of JSON text (a part of it with MORE). */

/*
 * RECENT: asks the library for one of the last matches that found less than they were asked
 * for; request is the daemon's number. MATCHES repeats it.
 */
struct wire_recent {
        struct wire_header header;
        uint32_t nth; /* 0: the newest */
        uint32_t reserved;
};
_Static_assert(sizeof(struct wire_recent) == 56, "wire_recent");

#define WIRE_MATCH_DIGESTS_MAX 512u

/* Followed by n_items digests: the query's from @first on. */
struct wire_matches {
        struct wire_header header;
        uint64_t sequence; /* of the match in its session; 0: there is none, all else is 0 */
        uint64_t beat_ns;  /* the presence table's last heartbeat before it */
        uint32_t nth;
        uint32_t n_recent; /* matches that could have been asked for */
        uint32_t total;    /* digests of the query */
        uint32_t first;
        uint32_t prompt_tokens;
        uint32_t max_tokens;
        uint32_t boundaries; /* what was found */
        uint32_t kv_boundaries;
        uint32_t repeats; /* times that it was asked since it is kept */
        uint32_t reserved;
};
_Static_assert(sizeof(struct wire_matches) == 104, "wire_matches");
_Static_assert(offsetof(struct wire_matches, nth) == 64, "wire_matches");

#define WIRE_TELL_MAX (UINT64_C(1) << 48) /* of each count */

/*
 * TELL: what only the engine knows, for people. Nothing depends on it, and it is not answered.
 * Counts are of what has happened since the session's TELL before.
 */
struct wire_tell {
        struct wire_header header;
        uint64_t prompts;       /* that were looked for */
        uint64_t prompt_tokens; /* of these, that the engine's own cache lacked */
        uint64_t tail_tokens;   /* of those: behind the last whole chunk, never found */
        uint64_t kv_tokens;     /* of those: whose KV was there */
        uint64_t hit_tokens;    /* of those: that could be used */
        uint32_t batch_tokens;  /* the most that the engine computes in a step; 0: not told */
        uint32_t reserved;
};
_Static_assert(sizeof(struct wire_tell) == 96, "wire_tell");
_Static_assert(offsetof(struct wire_tell, batch_tokens) == 88, "wire_tell");

struct wire_bye {
        struct wire_header header;
        uint32_t status;
        uint32_t reserved;
        char why[WIRE_WHY_MAX]; /* zero-padded */
};
_Static_assert(sizeof(struct wire_bye) == 568, "wire_bye");
