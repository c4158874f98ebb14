// SPDX-License-Identifier: Apache-2.0
/*
 * The tier contract: what lies below host memory.
 *
 * A tier keeps whole objects: bytes plus what must survive beside them (key, parent,
 * boundary, generation, checksums). It knows nothing of sessions, leases or eviction
 * order; daemon/transfer.c drives it and daemon/placement.c decides.
 *
 * Threads: every function is called on the loop thread and every callback runs there,
 * never from inside the call that submitted it. Functions do not block.
 *
 * Ownership: requests are embedded in the caller's transfer and belong to the tier from
 * submit until the callback. The memory that segments point to stays valid and, for a
 * write, unchanged until then. A place belongs to the caller once on_done or on_object
 * has handed it over, and returns to the tier by forget().
 *
 * A tier that has no use for a member leaves it NULL and gets the default that
 * tier_init() fills in; no caller ever tests for NULL.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/checksum.h"
#include "proto/key.h"
#include "proto/piece_set.h"
#include "storage/encoding.h"

#define TIER_SEGMENTS_MAX 64u     /* extents of one object in host memory */
#define TIER_COVERS_MAX   1900u   /* boundaries that one croppable blob lists */

/* arena_id of memory that was never given to add_memory(), such as a scratch buffer. */
#define TIER_MEMORY_UNREGISTERED UINT32_MAX

/* Outcomes of submit functions and callbacks. Negative errno is a device failure. */
enum {
        TIER_E_FULL = 1, /* no room: forget something, wait for its on_freed, try again */
        TIER_E_MISS,     /* nothing usable there; the place is to be forgotten */
        TIER_E_CORRUPT,  /* a checksum, length or key did not match: forget the place */
        TIER_E_STALE,    /* as CORRUPT, but explained by a power loss */
        TIER_E_PAUSED,   /* the tier's queue is full: try again when on_ready is called */
        TIER_E_CANCELLED, /* write: is_current() said no */
};

/*
 * Where a tier keeps an object. The words mean something to the tier alone; the daemon
 * copies the struct and gives it back. claim is never 0 for a valid place.
 */
struct tier_place {
        uint64_t claim;
        uint64_t where;
};

/* What is kept beside the bytes. */
struct tier_object {
        struct object_key key;
        struct digest parent;      /* zeros: a root */
        bool parent_unknown;
        bool croppable;
        uint32_t boundary_tokens;
        uint16_t cell;             /* number of (group, shard) in the layout: kept, so that
                                      presence can be published before the layout attaches */
        uint64_t generation;       /* of this key on this node, rising */
        uint64_t raw_bytes;
        uint64_t committed_ns;     /* wall clock, ns since 1970 */
        uint8_t writer_boot_id[16];
        const struct digest *covers; /* croppable blobs: all boundaries served; else NULL */
        uint32_t n_covers;
};

/* What the objects of a layout mean; kept so that it is known before an engine attaches. */
struct tier_layout {
        struct digest id; /* SHA-256 of the encoding */
        uint32_t domain;
        uint32_t length;
        const uint8_t *encoding; /* proto/layout.h; borrowed for the call */
};

/* A piece of memory that the tier may do I/O on: part of an arena. */
struct tier_segment {
        void *bytes;
        uint64_t length;   /* a multiple of 4,096 but for the object's last segment, whose
                              memory is writable up to the next multiple all the same */
        uint32_t arena_id; /* arena that @bytes lies in: selects a registered buffer */
};

struct tier_write {
        const struct tier_object *object;
        const struct checksum_list *checksums; /* readable up to its last piece */
        const struct tier_segment *segments;
        uint32_t n_segments;
        struct encoding encoding; /* how to store it, if it shrinks; zeros: as it is */
        /*
         * May be NULL: always current. Asked once, when all bytes are written and before
         * the entry is put into the catalog: false (the object was replaced or dropped
         * meanwhile) frees the space again and ends in on_done with TIER_E_CANCELLED. An
         * older generation thus never enters the catalog after a newer one was committed.
         */
        bool (*is_current)(struct tier_write *write);
        /* @result 0: the object survives kill -9 from now on and @place is the caller's. */
        void (*on_done)(struct tier_write *write, int result, struct tier_place place);
        void *tier_private[8];
};

struct tier_read {
        struct tier_place place;
        const struct object_key *key; /* must be the key found there */
        uint64_t generation;          /* must be the generation found there */
        uint64_t raw_bytes;           /* of the object, also when pieces of it are read */
        struct piece_set pieces;      /* read_pieces(): those that are read */
        const struct tier_segment *segments;
        uint32_t n_segments;
        /*
         * @result 0: the bytes are in the segments, verified against the checksums kept
         * with them; @checksums (of the whole object) is valid during the call only, and
         * the two members below say what the object was written with.
         */
        void (*on_done)(struct tier_read *read, int result, const struct checksum_list *checksums);
        uint64_t committed_ns;
        uint8_t writer_boot_id[16];
        void *tier_private[8];
};

struct tier_forget {
        /* The entry is off the catalog (with sync: durably) and the space is free again. */
        void (*on_freed)(struct tier_forget *forget, int result);
        /*
         * May be NULL. The entry cannot come back (with sync: that is durable), while its space
         * may stay taken for long: at most once, never from inside forget(), before on_freed;
         * when it is not called on_freed says the same.
         */
        void (*on_deleted)(struct tier_forget *forget, int result);
        void *tier_private[40]; /* large enough that a forget never has to allocate */
};

/* What went through encoders or decoders; objects that did not shrink count as they are. */
struct tier_encoding_usage {
        uint64_t raw_bytes_total;
        uint64_t stored_bytes_total;
        double seconds_total; /* of helper threads */
};

struct tier_usage {
        uint64_t capacity_bytes;
        uint64_t used_bytes;    /* bytes of space taken, headers and rounding included; 0 until
                                   recovery knows */
        uint64_t payload_bytes; /* bytes of objects in it, as they are stored */
        uint64_t objects;
        uint64_t queued_writes;
        uint64_t queued_reads;
        uint64_t queued_bytes;
        uint64_t queued_changes; /* of the catalog, not acknowledged yet */
        uint64_t read_bytes_total;
        uint64_t written_bytes_total;
        uint64_t io_errors_total;
        uint64_t corrupt_total;
        uint64_t stale_total;
        struct tier_encoding_usage encoded, decoded;
        bool is_unsynced;       /* a power loss now would cost some of what was written */
        bool degraded;          /* works, but not as configured; degraded_reason says why */
        char degraded_reason[160];
};

struct tier;

struct tier_ops {
        const char *name; /* "nvme", "remote": metrics and messages use it */

        /*
         * Reports every object that survived, in any order, by @on_object; then @on_end
         * with 0 or the failure. @object is valid during the call only; @place is the
         * receiver's, who may forget() it when it does not want the object. Objects that
         * overlap newer ones have been dropped already. Called once, before any other.
         * Default: on_end(0).
         */
        void (*recover)(struct tier *tier,
                        void (*on_object)(void *user, const struct tier_object *object,
                                          struct tier_place place),
                        void (*on_end)(void *user, int result), void *user);

        /* Memory that segments will point into; may be registered with the device. Default: 0. */
        int (*add_memory)(struct tier *tier, uint32_t arena_id, void *base, uint64_t length);

        /* No segment points into it any more. Default: nothing. */
        void (*remove_memory)(struct tier *tier, uint32_t arena_id);

        /* Room that an object of @raw_bytes takes at most, headers and rounding included. */
        uint64_t (*footprint)(struct tier *tier, uint64_t raw_bytes, uint32_t n_covers);

        /*
         * Starts a write. 0, TIER_E_FULL, TIER_E_PAUSED or a negative errno; unless 0,
         * on_done is not called.
         */
        int (*write)(struct tier *tier, struct tier_write *write);

        /* Starts a read of a whole object. 0 or a negative errno, as for write. */
        int (*read)(struct tier *tier, struct tier_read *read);

        /*
         * Starts a read of some pieces of an object, which come to lie in the segments one
         * after another. Header and pieces are verified; what is wrong with other pieces is
         * not seen. As for read. Default: reads the whole object into memory of its own.
         */
        int (*read_pieces)(struct tier *tier, struct tier_read *read);

        /*
         * Gives a place back: deletes its entry, waits for reads in flight on it, then
         * frees the space and calls on_freed. With @sync the delete is durable first.
         * Always accepted.
         */
        void (*forget)(struct tier *tier, struct tier_place place, const struct object_key *key,
                       bool sync, struct tier_forget *forget);

        void (*usage)(struct tier *tier, struct tier_usage *ret_usage);

        /*
         * Keeps a layout's encoding until forget_layout(), over restarts; what is written
         * afterwards never survives without it. Once for each layout. 0, TIER_E_FULL (the
         * tier keeps a bounded number of them) or -ENOMEM. Default: 0, and nothing is kept.
         */
        int (*keep_layout)(struct tier *tier, const struct tier_layout *layout);

        /* Of one that is kept: no longer (the encoding is not looked at). Default: nothing. */
        void (*forget_layout)(struct tier *tier, const struct tier_layout *layout);

        /*
         * Did this node write it? What others wrote may be read, but takes no room of this
         * node's and is not this node's to delete: its forget() only forgets. Default: true.
         */
        bool (*is_own)(const struct tier *tier, struct tier_place place);

        /*
         * A replacing commit: from now on the bytes with @checksum_total hold under @key
         * (0: not known yet, so nothing but what comes later does); tells those who share
         * the tier. The older copies that this node knows of were forgotten before.
         * Default: nothing.
         */
        void (*replaced)(struct tier *tier, const struct object_key *key, uint64_t checksum_total);

        /*
         * Is it known that other bytes than those with @checksum_total (0: it may be any) hold
         * under @key? As long as somebody who shares the tier may not have heard of it.
         * Default: no.
         */
        bool (*is_replaced)(const struct tier *tier, const struct object_key *key,
                            uint64_t checksum_total);

        /*
         * Of what on_missed (below) made doubtful nothing is left, and no entry of it can come
         * back: the next start need not call it again. Default: nothing.
         */
        void (*vouched)(struct tier *tier);

        /* Makes everything written so far durable, then calls @on_synced. Default: at once. */
        void (*sync)(struct tier *tier, void (*on_synced)(void *user, int result), void *user);

        /*
         * Ends: no request is in flight (the caller's duty). Frees the tier in or before
         * @on_closed, after marking a clean stop.
         */
        void (*close)(struct tier *tier, void (*on_closed)(void *user), void *user);
};

/* Embedded first in each tier. */
struct tier {
        struct tier_ops ops;               /* complete: defaults filled in by tier_init() */
        /*
         * A tier that others write to as well (the remote tier) reports after recover(),
         * on the loop thread, what has come and gone there; both may be NULL.
         *
         * on_appeared: an object that this node did not write, or wrote before it lost the
         * tier's index, can be read at @place from now on. As for recover()'s on_object;
         * @object->generation means nothing here, nor in a read of that place.
         * Objects that recover() reports may be of others, too: tier_ops.is_own tells.
         *
         * on_vanished: what was reported at @place is no longer there (deleted, replaced
         * elsewhere with other bytes, lost). The place is the tier's again; no forget().
         * @replaced: other bytes hold under this key now: copies of it in higher tiers are
         * wrong too, unless their checksum total is @checksum_total.
         *
         * on_missed: there were such replacements, and it is not known of which keys: nothing
         * that this node has, in any tier, can be vouched for. What others have there can.
         * Called again after each start until vouched() has been.
         *
         * is_leaving: may something that on_vanished called replaced come back at the next start,
         * for its delete is not durable yet, or was lost? What was replaced is remembered as long,
         * and on_vanished called again after a start that finds it so. NULL: nothing may.
         */
        void (*on_appeared)(void *user, const struct tier_object *object, struct tier_place place);
        void (*on_vanished)(void *user, const struct object_key *key, struct tier_place place,
                            bool replaced, uint64_t checksum_total);
        void (*on_missed)(void *user);
        bool (*is_leaving)(void *user);
        void *on_shared_user;
        /* After TIER_E_PAUSED: there is room again. The remote tier's comes after TIER_E_FULL
         * as well, when room was late. */
        void (*on_ready)(void *user);
        void *on_ready_user;
        /* May be NULL. During recover(), before any on_object: each layout that is kept. From a
         * tier that others write to, later as well: a layout of theirs, which is kept now. */
        void (*on_layout)(void *user, const struct tier_layout *layout);
        void *on_layout_user;
};

/* Copies @ops into @tier and fills absent members with their defaults. */
void tier_init(struct tier *tier, const struct tier_ops *ops);
