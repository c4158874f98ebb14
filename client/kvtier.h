/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvtier: the client of kvtierd, for inference engines.
 *
 * An engine opens a session, attaches a layout (what its bytes mean) and then stores and
 * loads objects in the daemon's memory, which the library maps into the process:
 *
 *   store:  kvt_reserve -> copy the bytes into the segments -> kvt_commit
 *   load:   kvt_match (no system call) -> kvt_acquire -> copy the bytes out -> kvt_release
 *
 * or, with its pages registered in a page map, kvt_store_pages and kvt_load_pages, which do
 * the copying, too.
 *
 * Submitting never blocks: a call returns at once with an id and completes exactly once,
 * through kvt_poll(), kvt_wait() or kvt_wait_call(); kvt_fd() turns readable when there is
 * something to poll. A completion of CANCELLED or TIMEOUT means that the caller holds
 * nothing of that call (but see kvt_acquire() for calls that were granted before). When
 * the daemon dies, all calls complete with UNAVAILABLE, every match is a miss, and the
 * library reconnects by itself: a failure is a miss, never a wrong answer and never a
 * stall.
 *
 * Memory: arrays that a call is given (struct kvt_object[]) are the caller's and must stay
 * in place until its last completion has been reported: kvt_poll(), kvt_wait() and
 * kvt_wait_call() write the results into them as they report, in the thread that calls
 * them, and nothing writes there at any other time. Segments belong to the library and are
 * valid until their lease ends: by the completion of the commit, abort or release that
 * names it.
 * The bytes of a lease stay mapped, at the same address, until the caller has ended the
 * lease, also when the daemon is gone.
 *
 * Threads: every function may be called from any thread, except that kvt_close() must be
 * the last call on its session. Fork: in a forked child every function returns
 * KVT_FORKED; the child maps no arena; it may open a session of its own.
 *
 * Strings are UTF-8 and copied. Sizes are bytes, times nanoseconds. Structs that may grow
 * begin with `size`, to be set to sizeof(the struct) by the caller; zeroed members mean
 * the default.
 */
#ifndef KVTIER_H
#define KVTIER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVT_API __attribute__((visibility("default")))
#else
#define KVT_API
#endif

#define KVT_VERSION_MAJOR 0
#define KVT_VERSION_MINOR 1

/* Outcomes, per call and per object. Append only. */
enum kvt_status {
        KVT_OK = 0,
        KVT_ALREADY_HAVE = 1, /* reserve: stored already, nothing to write */
        KVT_MISS = 2,         /* not stored */
        KVT_PENDING = 3,      /* on its way; or the layout is not whole yet: nothing is held */
        KVT_BUSY = 4,         /* no room now: everything is leased. Try later, or do without */
        KVT_TOO_LARGE = 5,    /* above a limit that waiting does not change */
        KVT_REFUSED = 6,      /* a limit of the session or the daemon is reached */
        KVT_STALE = 7,        /* commit of a set: a member it relied on has been replaced */
        KVT_GONE = 8,         /* the lease, token or session is of an earlier run or has ended */
        KVT_UNAVAILABLE = 9,  /* the daemon is not reachable */
        KVT_TIMEOUT = 10,     /* the call's deadline passed; the caller holds nothing */
        KVT_CANCELLED = 11,   /* kvt_cancel(); the caller holds nothing */
        KVT_UNSUPPORTED = 12, /* library or daemon do not know this flag */
        KVT_INVALID = 13,     /* bad arguments */
        KVT_CORRUPT = 14,     /* the stored bytes failed their checksum: a miss */
        KVT_DENIED = 15,      /* not permitted */
        KVT_IO_ERROR = 16,    /* the device failed: a miss */
        KVT_NO_MEMORY = 17,
        KVT_FORKED = 18,  /* the session belongs to the parent process */
        KVT_DRAINING = 19 /* the daemon is shutting down: nothing new is stored */
};

/* Text and name of a status. Never NULL. Any thread. */
KVT_API const char *kvt_status_text(enum kvt_status status);
KVT_API const char *kvt_status_name(enum kvt_status status);

/* "0.1.0". Any thread. */
KVT_API const char *kvt_version(void);

struct kvt_session;

/* ---- layouts ------------------------------------------------------------------- */

enum kvt_group_kind {
        KVT_GROUP_ATTENTION = 1, /* GQA, MHA, MLA: every chunk of the prefix is needed */
        KVT_GROUP_WINDOW = 2,    /* only the trailing window is needed */
        KVT_GROUP_INDEX = 3,     /* indexer keys: every chunk */
        KVT_GROUP_COMPRESSED = 4,
        KVT_GROUP_STATE = 5,  /* opaque recurrent state at one boundary */
        KVT_GROUP_SCRATCH = 6 /* never stored */
};

struct kvt_tensor {
        const char *name;
        const char *dtype;
        uint64_t bytes; /* of one page (paged groups) or of the blob (state), one shard */
};

/*
 * How the pages of a group stand in objects: with about half of the bytes, and less exact
 * (kvtier(3) has the bounds). For groups of bfloat16 pages alone; engines with different codecs
 * share nothing. Page maps convert; who writes segments itself writes the stored form: of each
 * page the codes of its numbers in order, the scales of its tiles, and zeros up to a multiple
 * of 16 bytes. Append only.
 */
enum kvt_codec {
        KVT_CODEC_NONE = 0,        /* the engine's bytes */
        KVT_CODEC_FP8_TILE128 = 1, /* e4m3 and an fp32 scale for each 128 numbers: of a token and
                                      head, where a head has 128 or a multiple, innermost */
        KVT_CODEC_MXFP8 = 2        /* e4m3 and an e8m0 scale for each 32: indexer keys */
};

/*
 * What each shard of a run of neighbours holds. Ranks of a pipeline hold other layers, so
 * their shards have rows of their own; a row per shard is fine, too.
 */
struct kvt_row {
        uint32_t first_shard;
        uint32_t n_shards;     /* 0 is taken for 1 */
        uint64_t page_bytes;   /* in the engine's memory: un-padded, all layers, one shard; with
                                  a codec whole tiles; state groups: bytes of the blob, 0 when its
                                  length varies */
        uint64_t padded_bytes; /* with the engine's padding; 0 is taken for page_bytes */
        const struct kvt_tensor *tensors; /* none, or all: their bytes add up to page_bytes; with a
                                             codec all of dtype bfloat16 */
        uint32_t n_tensors;
        uint32_t reserved;
};

/*
 * A group says what its shards hold in one of two ways: all alike (page_bytes,
 * padded_bytes, tensors), or in rows, in order of their shards. Shards are numbered over
 * the ranks that hold layers of the group, so that each shard holds something.
 */
struct kvt_group {
        const char *name;       /* not empty, and no other group's */
        uint32_t kind;          /* enum kvt_group_kind */
        uint32_t shards;        /* 1: replicated; 0 is taken for 1 */
        uint32_t page_tokens;   /* N; 0 for state groups */
        uint32_t window_tokens; /* window groups */
        uint64_t page_bytes;    /* as in a row; 0 with rows */
        uint64_t padded_bytes;
        const struct kvt_tensor *tensors;
        uint32_t n_tensors;
        uint32_t codec;             /* enum kvt_codec; groups without pages take none */
        const struct kvt_row *rows; /* NULL: all shards alike */
        uint32_t n_rows;
        uint32_t reserved;
};

/*
 * Everything that decides what the bytes mean. Two engines share objects if and only if
 * all of this is equal; its SHA-256 is the layout id. NULL strings are empty.
 */
struct kvt_layout {
        size_t size;
        const char *model;
        const char *revision;
        const char *model_dtype;
        const char *kv_dtype;
        const char *engine;
        const char *engine_build;
        const char *kernel_layout; /* of the attention backend */
        const char *replay_mode;
        uint32_t draft_tokens;
        uint32_t chunk_tokens; /* a multiple of every page_tokens; 0: the daemon chooses */
        uint16_t tp, pp, cp;   /* parallel sizes; 0 is taken for 1 */
        uint16_t reserved;
        const struct kvt_group *groups;
        uint32_t n_groups;
};

/* ---- sessions ------------------------------------------------------------------ */

#define KVT_DEFAULT_SOCKET "/run/kvtier/kvtierd.sock"

/*
 * Remote sessions: kvt_options.socket is "rdma://HOST:PORT" (port 7428 where it has none), a
 * daemon on another node with rdma.listen. Calls are the same. What differs:
 *   - leases are in a buffer of this process, kvt_options.buffer_bytes long: an object that
 *     finds no room there is BUSY. Bytes cross the fabric within kvt_commit() and kvt_acquire().
 *   - the daemon's presence table is not here: kvt_match() and its kin show what kvt_find() has
 *     asked for before.
 *   - the daemon keeps nothing for a session whose connection has ended.
 * It takes the module libkvtier-rdma.so beside the library, and a secret.
 */
#define KVT_DEFAULT_SECRET "/etc/kvtier/secret"

/*
 * A remote session's buffer in memory of the caller's that the processor does not reach, a
 * GPU's: kvt_cuda_export() fills it in. The fabric then moves the bytes between that memory and
 * the daemon's, past this node's host memory. What differs:
 *   - segments of leases have addresses of that GPU: kvt_write(), kvt_read() and host copies are
 *     not for them; kvt_blob_put(), kvt_blob_get() and kvt_verify() are KVT_UNSUPPORTED; page
 *     maps take views on the same GPU only (kvt_cuda_register() first)
 *   - kvt_open() is KVT_UNSUPPORTED, with the reason, where no RDMA device can register it
 *   - the memory has to stay until kvt_close() has returned; fd may be closed after kvt_open()
 */
struct kvt_dmabuf {
        size_t size;
        void *base;      /* as the GPU calls it */
        uint64_t bytes;  /* a multiple of 4 KiB */
        uint64_t offset; /* of base in the dma-buf */
        int32_t fd;
        uint32_t reserved;
};

/*
 * An engine may span nodes: on each its sessions open with the same engine_id, the whole layout
 * (not KVT_OPEN_PARTIAL_LAYOUT) and the shards that are on that node, the same in each; the nodes'
 * daemons are peers of each other (rdma.peers in their configs), or kvt_open() says KVT_REFUSED.
 * Shards are numbered in the group with most (M); of a group with n, shard s * n / M is there too.
 * Stores, acquires and the rest are of this node's shards, as everywhere. What differs: no table
 * here knows of the others, so that kvt_match(), kvt_probe() and kvt_blob_find() show nothing but
 * what kvt_find() has asked for before.
 */

/*
 * kvt_options.flags: this process does not know what all shards hold. Its layout names
 * all groups, and rows for the shards it knows: perhaps none (a scheduler; page_bytes 0
 * says that nothing is known), perhaps its own (a worker). The rest comes from the other
 * sessions with the same engine_id. Until all rows are known every match misses, and
 * calls complete with KVT_PENDING for each object, holding nothing.
 */
#define KVT_OPEN_PARTIAL_LAYOUT (1u << 0)

/*
 * kvt_options.flags, for runs that must be reproducible (evaluations, regression tests).
 * Nobody else on the same store is affected by such a session. With NO_LOADS every match
 * and probe shows nothing, and acquires and adopts miss, all without asking the daemon.
 * With NO_STORES reserves, reclaims and pins are refused.
 */
#define KVT_OPEN_NO_LOADS  (1u << 1)
#define KVT_OPEN_NO_STORES (1u << 2)

/*
 * kvt_options.flags of a remote session whose RDMA device has no memory windows of type 2: the
 * daemon may reach all of the buffer, and not just what a call is about. Commits and acquires
 * through such a device are KVT_UNSUPPORTED without it; with other devices it changes nothing.
 */
#define KVT_OPEN_WHOLE_BUFFER (1u << 3)

struct kvt_options {
        size_t size;
        const char *socket;              /* NULL: KVT_DEFAULT_SOCKET; or rdma://HOST:PORT */
        const char *program;             /* shown by `kvtierctl sessions`; NULL: process name */
        const struct kvt_layout *layout; /* required; copied */
        const uint8_t *engine_id;        /* 16 bytes shared by the sessions of one engine; NULL:
                                            random */
        const uint16_t *shards;          /* of the engine on this node; NULL: all */
        uint32_t n_shards;
        uint32_t flags;              /* KVT_OPEN_* */
        uint64_t connect_timeout_ns; /* how long kvt_open() waits for the daemon; 0: not */
        uint32_t rank;               /* of this process, below n_ranks: for kvt_is_mine(), and
                                        told in refusals and `kvtierctl sessions` */
        uint32_t n_ranks;            /* of the engine on this node; 0 is taken for 1 */
        const char *secret;    /* remote: file with a line "DOMAIN SECRET"; NULL: what the
                                  environment's KVTIER_SECRET names, or KVT_DEFAULT_SECRET */
        uint64_t buffer_bytes; /* remote: rounded up to 4 KiB; 0: 256 MiB */
        /* remote: the buffer is this memory; NULL: it is the host's */
        const struct kvt_dmabuf *dmabuf;
};

/*
 * Opens a session. Starts one thread, which connects, reconnects and receives.
 *
 * KVT_OK: attached. KVT_PENDING: attached, but the rows of other processes are not here
 * yet (KVT_OPEN_PARTIAL_LAYOUT): see kvt_wait_attached(). KVT_UNAVAILABLE: the session
 * exists and goes on trying. With both, every match misses meanwhile. Anything else
 * (KVT_INVALID, KVT_DENIED, KVT_REFUSED, KVT_UNSUPPORTED, KVT_NO_MEMORY): no session;
 * @ret_why (may be NULL) gets the reason in words, at most @why_bytes with the NUL.
 */
KVT_API enum kvt_status kvt_open(struct kvt_session **ret_session,
                                 const struct kvt_options *options, char *ret_why,
                                 size_t why_bytes);

/*
 * Waits until the session is attached and its layout is whole: KVT_OK. When @timeout_ns
 * is over: KVT_PENDING or KVT_UNAVAILABLE, as kvt_open(), or why the daemon refuses it;
 * kvt_session_info() has the reason in words.
 */
KVT_API enum kvt_status kvt_wait_attached(struct kvt_session *session, uint64_t timeout_ns);

/*
 * Completes everything with KVT_CANCELLED, ends all leases, frees the session. The caller
 * must not be copying any more; the library has stopped when it returns. NULL is fine. In a
 * forked child it only frees memory.
 */
KVT_API void kvt_close(struct kvt_session *session);

struct kvt_session_info {
        size_t size;
        uint32_t attached;     /* 1: the daemon answers */
        uint32_t chunk_tokens; /* 0 until attached once, with a whole layout */
        uint8_t layout_id[32]; /* zeros until then */
        uint8_t boot_id[16];   /* of the daemon's run */
        uint64_t reconnects;
        uint64_t host_bytes;  /* size of the daemon's host tier */
        char last_error[256]; /* why the last connection attempt failed, which row was missing
                                 at attach (pending), or "" */
        uint32_t pending;     /* 1: attached, but rows of other processes are missing */
        uint32_t lost_pins;   /* of kvt_pin(): not taken again after a reconnect */
};

KVT_API enum kvt_status kvt_session_info(struct kvt_session *session,
                                         struct kvt_session_info *ret_info);

/*
 * What only the engine knows of itself, for `kvtierctl doctor` and the daemon's metrics. Nothing
 * depends on it. Counts are added to what was told before; those of tokens are at most
 * prompt_tokens.
 */
struct kvt_told {
        size_t size;
        uint64_t prompts;       /* that were looked for here, each once */
        uint64_t prompt_tokens; /* of these, without what the engine had in its own cache */
        uint64_t tail_tokens;   /* of those: behind the last whole chunk, where nothing is found */
        uint64_t kv_tokens;     /* of those: whose KV was here, whether a state was or not */
        uint64_t hit_tokens;    /* of those: that could be used from here */
        uint32_t batch_tokens;  /* the most that the engine computes in a step; 0: as before */
        uint32_t reserved;
};

/*
 * Returns at once. While there is no daemon, or the layout is not whole, it is kept and told
 * later. KVT_INVALID: a count is too large.
 */
KVT_API enum kvt_status kvt_tell(struct kvt_session *session, const struct kvt_told *told);

/*
 * An eventfd that is readable while completions are waiting. It belongs to the session;
 * poll it, do not read it. -1 in a forked child.
 */
KVT_API int kvt_fd(struct kvt_session *session);

/* ---- objects ------------------------------------------------------------------- */

struct kvt_digest {
        uint8_t bytes[32];
};

/* A run of an object's bytes in this process's memory. */
struct kvt_segment {
        void *address;
        uint64_t bytes;
        uint32_t arena_id; /* which shared memory it lies in, and where: for device mappings */
        uint32_t reserved;
        uint64_t arena_offset;
};

/* kvt_object.flags */
#define KVT_REPLACE        (1u << 0) /* reserve: commit a new generation over an existing one */
#define KVT_PARENT_UNKNOWN (1u << 1) /* reserve: @parent is not known (a root has zeros) */
#define KVT_CROPPABLE      (1u << 2) /* reserve: serves every boundary listed in @covers */
#define KVT_CONTIGUOUS     (1u << 3) /* reserve: one segment, or refused */
#define KVT_RECLAIM_BELOW  (1u << 4) /* reclaim: all that hangs on the boundary */
#define KVT_RECLAIM_PREFIX (1u << 5) /* reclaim: the boundary and what is above it */
#define KVT_HIT            (1u << 6) /* reserve: @hit_tokens says where the prefill began */
#define KVT_BRANCH         (1u << 7) /* reserve of a state: where match wanted a checkpoint */

/* One object of a call. Inputs are read at submit, outputs written as it is reported. */
struct kvt_object {
        /* inputs */
        struct kvt_digest digest; /* names the prefix up to the object's boundary */
        struct kvt_digest parent; /* reserve: digest of the boundary before; zeros: a root */
        uint16_t group;
        uint16_t shard;
        uint32_t flags;
        uint32_t boundary_tokens;        /* reserve: tokens up to the boundary */
        uint32_t numa_node;              /* reserve: wish, plus 1; 0: none */
        uint64_t bytes;                  /* reserve: length; acquire, adopt: output */
        const struct kvt_digest *covers; /* reserve with KVT_CROPPABLE: the boundaries served */
        uint32_t n_covers;
        uint32_t n_checksums;      /* commit: 0, or the length of @checksums */
        const uint64_t *checksums; /* commit: XXH3-64 of each piece; see kvtier(3) */
        const uint32_t *pages;     /* acquire: these pages alone, see kvt_acquire(); NULL: all */
        uint32_t n_pages;
        uint32_t n_slots;
        const uint32_t *slots; /* page maps: see kvt_store_pages() */
        uint32_t hit_tokens;   /* reserve with KVT_HIT: the boundary from which the prefill that
                                  computed the object went on; 0: it began at the start */
        uint32_t reserved;
        /* outputs; @lease is an input of commit, abort and release */
        uint32_t status; /* enum kvt_status */
        uint32_t n_segments;
        const struct kvt_segment *segments;
        uint64_t lease; /* 0: none */
        uint64_t generation;
        /* acquire, adopt: who wrote the object, and when */
        uint64_t stored_ns;         /* wall clock of its commit, ns since 1970 */
        uint8_t writer_boot_id[16]; /* of the daemon's run that took it */
};

/* kvt_call.flags */
#define KVT_CALL_WAITED    (1u << 0) /* for kvt_wait_call(): kvt_poll() does not report it */
#define KVT_CALL_WAIT      (1u << 1) /* acquire: wait for objects that are reserved now, at most
                                        timeout_ns; with timeout_ns 0 it does not wait */
#define KVT_CALL_PARTIAL   (1u << 2) /* acquire: grant the leading run that exists */
#define KVT_CALL_CHECKSUMS (1u << 3) /* acquire: fetch checksums, for kvt_verify() */
#define KVT_CALL_RESIDENT  (1u << 4) /* acquire: only from host memory, else KVT_BUSY */
#define KVT_CALL_BYPASS    (1u << 5) /* as if the session were opened with KVT_OPEN_NO_LOADS and
                                        _NO_STORES: for one request of an engine */

/* How a call is to be done. NULL stands for all zeros. */
struct kvt_call {
        size_t size;
        uint32_t flags;
        uint32_t reserved;
        uint64_t timeout_ns; /* 0: none */
        uint64_t set;        /* reserve, commit, abort: 0, or a number of the caller's that ties
                                the objects of one boundary: all or nothing */
        void *user;          /* given back in the completion */
        void *after; /* page maps on a GPU: the event that copies wait for; else NULL */
        void *done;  /* ... and the one recorded behind the last copy; kvtier-cuda.h */
};

/* kvt_completion.flags */
#define KVT_COMPLETION_MORE (1u << 0) /* acquire, adopt: granted; some objects still PENDING */

struct kvt_completion {
        uint64_t call;
        void *user;
        uint32_t status; /* enum kvt_status of the call as a whole */
        uint32_t flags;
        uint32_t n_granted;  /* acquire, adopt: leading objects that are leased */
        uint32_t n_resident; /* acquire: leading objects in host memory; BUSY names it */
        uint32_t n_fitting;  /* acquire: TOO_LARGE names how many would fit */
        uint32_t reserved;
        uint8_t token[16]; /* acquire: for kvt_adopt() in other sessions of the engine */
};

#define KVT_OBJECTS_MAX 65536 /* of one call */

/*
 * Each function below submits one call over @n objects and returns KVT_OK with its id in
 * @ret_call (may be NULL), or the reason why nothing was submitted: KVT_UNAVAILABLE,
 * KVT_INVALID, KVT_UNSUPPORTED (a flag that this library does not know), KVT_TOO_LARGE (an
 * object, its boundaries or its pages), KVT_REFUSED (too many calls in flight),
 * KVT_NO_MEMORY, KVT_FORKED. The objects are then as they were, statuses included.
 */

/*
 * Asks for room. Per object: KVT_OK (write @bytes into the segments, then commit or
 * abort @lease), KVT_ALREADY_HAVE (inside a set with a lease that the set's end ends),
 * KVT_BUSY, KVT_TOO_LARGE, KVT_REFUSED, KVT_DRAINING. The call's status is the first
 * object's status that is neither OK nor ALREADY_HAVE, or OK; objects that are KVT_OK are
 * leased whatever the call's status, unless that is CANCELLED or TIMEOUT.
 *
 * A set is what was granted under one kvt_call.set, by one call or several, until its commit
 * or abort; the abort of one member is that of all, but each that is KVT_OK has to be named
 * by some abort. The commit names every member that is KVT_OK, and may name the others; one
 * that is not leased, refused say, makes the commit fail for all. When nothing needs writing
 * the set ends at once, and no lease is given.
 */
KVT_API enum kvt_status kvt_reserve(struct kvt_session *session, const struct kvt_call *call,
                                    struct kvt_object *objects, size_t n, uint64_t *ret_call);

/*
 * Publishes what was written; the leases end. Per object: KVT_OK, KVT_ALREADY_HAVE
 * (another writer was first: its bytes stay), KVT_STALE (a set, of which nothing is stored:
 * a member that was stored already has been replaced or dropped meanwhile), KVT_GONE (the
 * lease is of an earlier connection: the bytes are not stored; of a set nothing is). In a
 * set, a member that another writer was first with is KVT_OK. With KVT_INVALID (a set of
 * which a member is missing) nothing has happened and the leases go on. A commit that
 * timed out is undecided: its segments must not be touched until kvt_session_info() shows
 * another boot id or the session is closed.
 */
KVT_API enum kvt_status kvt_commit(struct kvt_session *session, const struct kvt_call *call,
                                   struct kvt_object *objects, size_t n, uint64_t *ret_call);

/* Gives reserved room back unwritten. */
KVT_API enum kvt_status kvt_abort(struct kvt_session *session, const struct kvt_call *call,
                                  struct kvt_object *objects, size_t n, uint64_t *ret_call);

/*
 * Leases objects for reading; all or nothing unless KVT_CALL_PARTIAL. The first completion
 * is the decision. With KVT_COMPLETION_MORE some objects are still KVT_PENDING (no lease
 * yet); further completions with MORE follow as objects arrive (KVT_OK, segments set) or
 * fail (KVT_MISS, KVT_CORRUPT, KVT_IO_ERROR: no lease), and a last one without when none
 * is pending. Objects whose status is KVT_OK may be read as soon as it is reported, and are
 * each released by the caller. The last completion's status is that of the first granted
 * object that is not KVT_OK, or KVT_OK. A cancel or deadline after a completion with MORE
 * ends the objects that are still pending; those that are KVT_OK stay the caller's. With
 * KVT_CALL_WAITED there is one completion, the last.
 *
 * An object with @pages asks for these pages of a chunk alone: numbers within the chunk,
 * ascending, each once, in at most 64 runs of neighbours an object and 32,768 a call (else
 * KVT_TOO_LARGE). A chunk's bytes stand page by page: page p is its bytes from
 * p * page_bytes on, page_bytes long, un-padded, as the layout says for (group, shard); with
 * a codec a page's stored bytes stand in place of page_bytes.
 * The segments then hold exactly these pages in order, neighbours in one segment, and
 * @bytes is their length. Of a chunk that is not in host memory only the pieces that the
 * pages touch are read and verified; they are this lease's alone, gone with it, and the
 * chunk stays where it was. KVT_INVALID for groups without pages (state), page sizes that
 * the layout does not tell, and pages beyond the chunk. kvt_adopt() answers KVT_MISS.
 */
KVT_API enum kvt_status kvt_acquire(struct kvt_session *session, const struct kvt_call *call,
                                    struct kvt_object *objects, size_t n, uint64_t *ret_call);

/*
 * Leases of its own, for another session of the same engine, on exactly what the acquire
 * with @token (16 bytes) was granted. KVT_GONE once no lease of that acquire is held.
 * Completes like kvt_acquire().
 */
KVT_API enum kvt_status kvt_adopt(struct kvt_session *session, const struct kvt_call *call,
                                  const uint8_t token[16], struct kvt_object *objects, size_t n,
                                  uint64_t *ret_call);

/* Ends read leases. The caller has finished copying. */
KVT_API enum kvt_status kvt_release(struct kvt_session *session, const struct kvt_call *call,
                                    struct kvt_object *objects, size_t n, uint64_t *ret_call);

/*
 * Brings objects into host memory while the request that needs them still waits in the engine's
 * queue: out of a lower tier, or from the memory of another node. @hint: the peer that may have
 * what this node has not, as `peers` in its daemon's config names it; NULL: none. Of an object
 * @digest, @group and @shard are read; kvt_boundary_objects() fills them in. With KVT_CALL_WAIT
 * also what that peer does not have yet, as it is committed there, until timeout_ns has passed:
 * such objects count as reserved here, so that a kvt_acquire() with KVT_CALL_WAIT waits for them.
 *
 * One completion, when nothing is on its way any more. Per object: KVT_OK (in host memory:
 * a hint, as with match), KVT_MISS, KVT_BUSY (no room), KVT_TOO_LARGE (more than can be leased at
 * a time), KVT_CORRUPT, KVT_IO_ERROR, KVT_TIMEOUT; KVT_UNAVAILABLE: the peer does not answer;
 * KVT_UNSUPPORTED: the config names no such peer. The call's status is the first that is not
 * KVT_OK. Nothing is leased. A cancel or deadline stops what has not begun to move.
 */
KVT_API enum kvt_status kvt_prefetch(struct kvt_session *session, const struct kvt_call *call,
                                     const char *hint, struct kvt_object *objects, size_t n,
                                     uint64_t *ret_call);

/*
 * Marks, which concern boundaries: of each object only @digest is read, and @flags by
 * kvt_reclaim(); @status is written, and is KVT_MISS when nothing is known of the boundary.
 * The call's status is the first that is not KVT_OK. A call that timed out is undecided.
 */

/*
 * What is no longer wanted goes at once, from every tier, without waiting for need.
 * KVT_RECLAIM_BELOW (a finished agent): all that hangs on the boundary. KVT_RECLAIM_PREFIX
 * (a closed topic): the boundary and what is above it, up to the first on which something
 * else hangs or that is pinned or leased. With both, everything below and then the prefix.
 * What is pinned stays; a lease keeps its bytes until it ends, though nobody finds them any
 * more. With PREFIX: KVT_BUSY (leased, or something hangs on it) or KVT_REFUSED (pinned)
 * when the boundary itself stays. Of a chain whose end may have been evicted before, name
 * all boundaries, deepest first.
 */
KVT_API enum kvt_status kvt_reclaim(struct kvt_session *session, const struct kvt_call *call,
                                    struct kvt_object *objects, size_t n, uint64_t *ret_call);

/*
 * Keeps a boundary and all above it (a system prompt) in whatever tiers they are, until it
 * is unpinned or the session closes. What is stored there later is kept as well, while
 * there is room. KVT_REFUSED when the share of a tier that may be pinned is used up
 * (host.pinned_share_percent, nvme.pinned_share_percent of the daemon), or the session has
 * 16,384 pins.
 *
 * After a reconnect the library pins it again. That may be refused, and a daemon that has
 * lost the boundary has nothing to pin: kvt_session_info.lost_pins counts those pins until
 * the next reconnect, when they are tried once more, or a kvt_pin() of the same boundary,
 * which tells of each by its status.
 */
KVT_API enum kvt_status kvt_pin(struct kvt_session *session, const struct kvt_call *call,
                                struct kvt_object *objects, size_t n, uint64_t *ret_call);

/* KVT_MISS: this session had not pinned it. */
KVT_API enum kvt_status kvt_unpin(struct kvt_session *session, const struct kvt_call *call,
                                  struct kvt_object *objects, size_t n, uint64_t *ret_call);

/*
 * Cancels a call. Its own completion comes after the target's, and means that nothing of
 * the target can touch the caller's memory any more.
 */
KVT_API enum kvt_status kvt_cancel(struct kvt_session *session, const struct kvt_call *call,
                                   uint64_t target, uint64_t *ret_call);

/* Up to @max completions; returns how many. Never blocks. */
KVT_API size_t kvt_poll(struct kvt_session *session, struct kvt_completion *ret_completions,
                        size_t max);

/* As kvt_poll(), waiting up to @timeout_ns for the first one. */
KVT_API size_t kvt_wait(struct kvt_session *session, struct kvt_completion *ret_completions,
                        size_t max, uint64_t timeout_ns);

/*
 * Waits for the last completion of one call that was submitted with KVT_CALL_WAITED.
 * KVT_OK with @ret_completion, KVT_TIMEOUT (the call goes on), KVT_INVALID (no such call).
 */
KVT_API enum kvt_status kvt_wait_call(struct kvt_session *session, uint64_t call,
                                      struct kvt_completion *ret_completion, uint64_t timeout_ns);

/* Copies between caller memory and an object's segments, from byte @offset of the object. */
KVT_API enum kvt_status kvt_write(const struct kvt_object *object, uint64_t offset,
                                  const void *bytes, uint64_t length);
KVT_API enum kvt_status kvt_read(const struct kvt_object *object, uint64_t offset, void *bytes,
                                 uint64_t length);

/*
 * Checks an acquired object's bytes against the checksums that came with it (the acquire
 * had KVT_CALL_CHECKSUMS). KVT_OK, KVT_CORRUPT, or KVT_MISS when it has none, as an object
 * has of which pages were acquired: those that came from below were verified on the way.
 */
KVT_API enum kvt_status kvt_verify(struct kvt_session *session, const struct kvt_object *object);

/* ---- page maps ------------------------------------------------------------------ */

/*
 * Where an engine keeps its pages, told once, so that the library moves them: a call lists
 * objects and the engine's pages for each, and the library copies page by page between this
 * memory and the daemon's, in a thread of its own. The caller never sees a lease.
 *
 * A view is what one tensor holds of each page: row r of page p is the row_bytes from
 * base + p * page_stride + r * row_stride on. The bytes of a page in an object are its views
 * in order, each of them row by row, with nothing between them. For a state group a page is
 * the place of one state. Where the group has a codec, that sequence of bfloat16 numbers is
 * encoded on the way into the object and decoded on the way back.
 */
struct kvt_page_view {
        void *base;
        uint64_t page_stride;
        uint64_t row_bytes;
        uint64_t row_stride; /* of no meaning with one row */
        uint32_t n_rows;     /* of each page; 1: contiguous; 0 is taken for 1 */
        uint32_t reserved;
};

/* The pages of one (group, shard). Their bytes are what the layout says: page_bytes. */
struct kvt_page_group {
        uint16_t group;
        uint16_t shard;
        uint32_t n_views;
        uint64_t n_pages; /* slots are numbers below it */
        const struct kvt_page_view *views;
};

struct kvt_page_map;

/*
 * Registers the pages that this process holds; what @groups points to is copied. KVT_OK;
 * KVT_INVALID, with the group and the reason in @ret_why (may be NULL; at most @why_bytes
 * with the NUL): views that do not make up the layout's page_bytes, rows that overlap or, with a
 * codec, are no whole tiles (those that touch count as one), a (group, shard) that is named twice
 * or that the layout of this session does not describe; KVT_NO_MEMORY, KVT_FORKED. A session may
 * have several maps; its first one starts the thread that copies.
 */
KVT_API enum kvt_status kvt_page_map_new(struct kvt_session *session,
                                         const struct kvt_page_group *groups, uint32_t n_groups,
                                         struct kvt_page_map **ret_map, char *ret_why,
                                         size_t why_bytes);

/*
 * Calls in flight are not disturbed: the memory has to stay until they have completed. Also
 * after kvt_close(). NULL is fine.
 */
KVT_API void kvt_page_map_free(struct kvt_page_map *map);

/*
 * Reserve, copy, commit, in one call. Of an object it takes what kvt_reserve() takes, but
 * for @bytes (0, or the length that the slots make as stored), and @slots: the engine's pages in
 * order, one for each page of the chunk; one for a state. What is stored already is not
 * copied (KVT_ALREADY_HAVE). The objects of a @set become visible together or not at all:
 * when one cannot be stored, the others have the call's status. Pages must not change until
 * the completion.
 *
 * Inputs are read at submit; there is one completion, with each object's status. It is the
 * last moment in which the library touches the pages, also with KVT_CANCELLED, KVT_TIMEOUT
 * and KVT_UNAVAILABLE, where it waits for the copying to stop; such objects may have been
 * stored all the same, a set whole. KVT_INVALID at submit for a map of another session, a
 * (group, shard) that it lacks, a slot that does not exist, or a wrong number of slots. Of
 * kvt_call.flags it takes KVT_CALL_WAITED and KVT_CALL_BYPASS.
 */
KVT_API enum kvt_status kvt_store_pages(struct kvt_session *session, const struct kvt_call *call,
                                        struct kvt_page_map *map, struct kvt_object *objects,
                                        size_t n, uint64_t *ret_call);

/*
 * Acquire, or adopt where @token (16 bytes) is not NULL, then copy each object as it arrives,
 * then release. Inputs as of kvt_acquire() and kvt_adopt(), and @slots: one for each page of
 * the chunk, or for each of @pages where those are given, one for a state; no slot twice.
 * KVT_OK for an object says that its slots hold its bytes. Any other status says that the
 * bytes in its slots are undefined: some may have been overwritten. KVT_INVALID for an
 * object: it is longer or shorter than its slots.
 *
 * Completes as kvt_store_pages(), with n_granted, n_resident and n_fitting as of the
 * acquire. Loads whose leases were granted go on when the daemon dies. KVT_CALL_CHECKSUMS is
 * not for this call.
 */
KVT_API enum kvt_status kvt_load_pages(struct kvt_session *session, const struct kvt_call *call,
                                       struct kvt_page_map *map, const uint8_t *token,
                                       struct kvt_object *objects, size_t n, uint64_t *ret_call);

/* ---- match --------------------------------------------------------------------- */

/* kvt_boundary.flags */
#define KVT_BOUNDARY_RESIDENT      (1u << 0) /* all that it needs is in host memory */
#define KVT_BOUNDARY_BELOW         (1u << 1) /* some of it is not: acquire has to fetch it */
#define KVT_BOUNDARY_REMOTE        (1u << 2) /* ... and may be in the remote tier only */
#define KVT_BOUNDARY_BYTES_UNKNOWN (1u << 3) /* it needs objects whose length the layout does not
                                                tell; the bytes are those of the others */

/* A usable boundary, and what it needs of all groups and shards. */
struct kvt_boundary {
        uint32_t boundaries; /* which: its digest is digests[boundaries - 1] */
        uint32_t tokens;
        uint32_t flags;
        uint32_t n_objects;
        uint64_t bytes;       /* to move to the engine */
        uint64_t bytes_below; /* of these, not in host memory. An upper bound when windows span
                                 more than 4,096 chunks together */
};

/* kvt_match_query.flags */
#define KVT_MATCH_CHECKPOINT (1u << 0) /* fill in checkpoint_boundaries */
#define KVT_MATCH_STATE      (1u << 1) /* fill in state_boundaries and replay_tokens */
#define KVT_MATCH_BYPASS     (1u << 2) /* find nothing: a request that must see no cached state */

struct kvt_match_query {
        size_t size;
        const struct kvt_digest *digests; /* boundary 1, 2, ...: chunk_tokens apart */
        uint32_t n_digests;
        uint32_t prompt_tokens;      /* 0: not told. Layouts with state never match above it - 1 */
        uint32_t max_tokens;         /* 0: no limit */
        uint32_t flags;              /* KVT_MATCH_* */
        struct kvt_boundary *usable; /* room for @n_usable, or NULL */
        uint32_t n_usable;
        uint32_t reserved;
};

struct kvt_match {
        size_t size;
        uint32_t boundaries; /* of the longest usable prefix, 0: none */
        uint32_t tokens;
        uint32_t resident_boundaries;   /* of the longest usable prefix in host memory */
        uint32_t kv_boundaries;         /* of the longest prefix whose paged groups are there,
                                           whether or not a state makes it usable */
        uint32_t n_usable;              /* entries of query.usable: usable boundaries, longest
                                           first; the longest ones where there is not room for
                                           all */
        uint32_t state_boundaries;      /* KVT_MATCH_STATE: the longest boundary with its states,
                                           KV aside, for an engine that has KV itself; 0: none */
        uint32_t replay_tokens;         /* ... tokens to compute again from there to the position
                                           asked for: the smaller of max_tokens and prompt_tokens
                                           - 1, or else the last digest's */
        uint32_t checkpoint_boundaries; /* KVT_MATCH_CHECKPOINT: where a state would pay, since
                                           prompts branch there; 0: nowhere. Store one when the
                                           prefill passes it, with KVT_BRANCH. The KV up to there
                                           may be gone: it was seen before */
};

/*
 * Which prefixes the presence table shows as usable. A boundary is usable when it has, in
 * every shard,
 *   - of attention, index and compressed groups every chunk from the first up to it,
 *   - of a window group the trailing ceil(window_tokens / chunk_tokens) chunks (the token
 *     behind the boundary sees one less than window_tokens; but an engine that finds its
 *     whole prompt computes the last token again, from one token earlier),
 *   - of state groups the state at exactly this boundary.
 * Scratch groups need nothing. A hint, confirmed by kvt_acquire(), which also says who
 * wrote each object and when (the layout id is the session's); `kvtierctl show` says so
 * later. No system call, no lock, no allocation. All zeros while the daemon is away.
 *
 * The session keeps the digests of the last 16 queries that found less than they asked for
 * (at most 512 of each, 256 KiB in all): `kvtierctl why` has the library asked for them.
 */
KVT_API enum kvt_status kvt_match(struct kvt_session *session, const struct kvt_match_query *query,
                                  struct kvt_match *ret_match);

/*
 * For remote sessions, and for engines that span nodes: asks the daemon for what is there of these
 * boundaries (at most KVT_OBJECTS_MAX). When the call has completed, kvt_match(), kvt_probe() and
 * kvt_blob_find() show it, until the daemon is asked again: as old a hint as that. Digests are
 * read at submit. In any other session the table itself is read, and the call completes at once.
 * Of kvt_call.flags it takes KVT_CALL_WAITED.
 *
 * Of an engine that spans nodes the daemon asks its peers: a cell is there when each node that has
 * to have it has it, in any tier. While a shard's node does not answer nothing is there; that is
 * decided after at most 2 s, with KVT_OK. What has gone from this node since is not shown, nor
 * anything once a peer's connection ends.
 */
KVT_API enum kvt_status kvt_find(struct kvt_session *session, const struct kvt_call *call,
                                 const struct kvt_digest *digests, size_t n, uint64_t *ret_call);

struct kvt_boundary_query {
        size_t size;
        const struct kvt_digest *digests; /* as in the match */
        uint32_t boundaries;              /* which boundary, as kvt_boundary.boundaries */
        uint32_t n_shards;
        const uint16_t *shards; /* numbers in the group with most shards (M), and with each
                                   shard s * n / M of a group with n; NULL: all */
};

/*
 * The objects that a boundary needs, no more and no less, as inputs for kvt_acquire(): chunk
 * by chunk from the first, states with the last. @ret_n gets their number. KVT_OK;
 * KVT_TOO_LARGE when there are more than @max (the first @max are filled in);
 * KVT_UNAVAILABLE while the daemon is away or the layout not known to the end. No system
 * call. What is more than one call takes (KVT_OBJECTS_MAX) can be acquired by shards.
 */
KVT_API enum kvt_status kvt_boundary_objects(struct kvt_session *session,
                                             const struct kvt_boundary_query *query,
                                             struct kvt_object *ret_objects, size_t max,
                                             size_t *ret_n);

/*
 * 1 when this rank is the one to store the object (group, shard) of boundary number
 * @boundary, else 0. The shards of the node belong to its ranks in order; what several ranks
 * hold (replicated groups) is stored once, each rank taking its turn, and any may load it.
 */
KVT_API int kvt_is_mine(struct kvt_session *session, uint16_t group, uint16_t shard,
                        uint32_t boundary);

/*
 * The raw table: for each digest one word of presence bits and one of residence bits, bit
 * = cell of (group, shard) in layout order. Either array may be NULL. Layouts of at most
 * 64 cells. Same cost and rules as kvt_match().
 */
KVT_API enum kvt_status kvt_probe(struct kvt_session *session, const struct kvt_digest *digests,
                                  size_t n, uint64_t *ret_present, uint64_t *ret_resident);

/* ---- blobs: for engines without block hashes ------------------------------------- */

/*
 * Identity of a token sequence beyond its ids. Different salt, LoRA or images: different
 * digests. NULL strings are empty.
 */
struct kvt_identity {
        size_t size;
        const void *salt;
        const void *lora;
        uint32_t salt_bytes;
        uint32_t lora_bytes;
        const char *const *images; /* ids in order of appearance */
        uint32_t n_images;
        uint32_t reserved;
};

/*
 * The digest chain of @tokens in steps of @chunk_tokens: one digest per whole chunk into
 * @ret_boundaries (room for n_tokens / chunk_tokens; may be NULL) and the digest of the
 * very end into @ret_end (may be NULL). Byte layout and test vectors: kvtier(3). Any
 * thread, no session.
 */
KVT_API enum kvt_status kvt_digest_chain(const struct kvt_identity *identity,
                                         const uint32_t *tokens, size_t n_tokens,
                                         uint32_t chunk_tokens, struct kvt_digest *ret_boundaries,
                                         struct kvt_digest *ret_end);

/* What names a blob, and how a blob call is to be done. */
struct kvt_blob {
        size_t size;
        const struct kvt_identity *identity; /* NULL: none */
        const uint32_t *tokens;
        size_t n_tokens;
        uint16_t group; /* of the layout; usually 0 */
        uint16_t shard;
        uint32_t flags;      /* KVT_CROPPABLE: pure attention, serves any prefix, at most 1,900
                                boundaries; KVT_REPLACE */
        uint64_t timeout_ns; /* of each step; 0: 30 s */
};

/*
 * Blob calls block up to their deadline; they are for engines that save and restore whole
 * sequences between requests, not for a scheduler's loop.
 */

/*
 * Room for a blob of @bytes that ends after the last token. KVT_OK: write into
 * @ret_object's segments (one whenever there is room for one), then kvt_blob_commit() or
 * kvt_blob_abort(). KVT_ALREADY_HAVE: nothing to do. Others as kvt_reserve().
 */
KVT_API enum kvt_status kvt_blob_reserve(struct kvt_session *session, const struct kvt_blob *blob,
                                         uint64_t bytes, struct kvt_object *ret_object);
KVT_API enum kvt_status kvt_blob_commit(struct kvt_session *session, struct kvt_object *object,
                                        uint64_t timeout_ns);
KVT_API enum kvt_status kvt_blob_abort(struct kvt_session *session, struct kvt_object *object,
                                       uint64_t timeout_ns);

/* reserve + copy + commit. */
KVT_API enum kvt_status kvt_blob_put(struct kvt_session *session, const struct kvt_blob *blob,
                                     const void *bytes, uint64_t length);

/*
 * The longest prefix of the tokens that a stored blob serves: @ret_tokens of them. A
 * croppable blob serves every boundary of its own tokens and its end; any other only its
 * end. KVT_OK, or KVT_MISS with 0. A hint, like kvt_match().
 */
KVT_API enum kvt_status kvt_blob_find(struct kvt_session *session, const struct kvt_blob *blob,
                                      size_t *ret_tokens);

/*
 * Leases the blob that serves exactly the first blob->n_tokens tokens (as kvt_blob_find()
 * gave them) for reading; the object's bytes field gives its length; a croppable blob may
 * hold more tokens than asked for. End it with kvt_blob_release(). KVT_OK, KVT_MISS, ...
 */
KVT_API enum kvt_status kvt_blob_acquire(struct kvt_session *session, const struct kvt_blob *blob,
                                         struct kvt_object *ret_object);
KVT_API enum kvt_status kvt_blob_release(struct kvt_session *session, struct kvt_object *object);

/*
 * find + acquire + copy + release: the longest usable blob into @buffer of @capacity
 * bytes. @ret_length gets the blob's length, also with KVT_TOO_LARGE (nothing copied).
 */
KVT_API enum kvt_status kvt_blob_get(struct kvt_session *session, const struct kvt_blob *blob,
                                     void *buffer, uint64_t capacity, uint64_t *ret_length,
                                     size_t *ret_tokens);

#ifdef __cplusplus
}
#endif

#endif
