// SPDX-License-Identifier: Apache-2.0
/*
 * Devices: whoever copies pages that the processor cannot reach, as the copier does with those
 * that it can (client/copier.h). A device is a table of functions that another library of this
 * build, libkvtier-cuda, sets on a session.
 *
 * That library is never linked with this one, which may lie inside an engine's extension module
 * and out of the linker's reach: it finds struct kvt__page_host by the first word of a session.
 * Both tables carry a version, since the two files may be upgraded apart; a device of another
 * version is refused.
 *
 * A page map's group belongs to the device in whose memory its views lie: it is asked once, as
 * the map is made. A job is one granted object: from submit() until the host's end() its lease
 * is held, its slots and the map stay, and the arena stays mapped. The device looks at *stop
 * before it begins a job, and ends each job exactly once, when nothing of it runs any more.
 *
 * An arena that the device has been told of stays mapped until the device has let go of it, so
 * that it can be unregistered first, however long that takes. After a fork the child calls
 * nothing here, and the device has to touch nothing.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"
#include "client/kvtier.h"
#include "client/page_copy.h"

#define KVT__PAGE_DEVICE_VERSION 2u
#define KVT__PLACE_HOST          UINT32_MAX /* of a group: the copier's */

/* An arena as it is mapped here. Whoever holds a reference may use the addresses. */
struct kvt__mapping {
        atomic_uint refs;
        uint8_t *base;
        uint64_t bytes;
        uint32_t arena_id;
        uint32_t numa_node; /* UINT32_MAX: not bound */
        bool is_foreign;    /* the caller's memory, of a GPU: a remote session's buffer */
};

enum kvt__page_end {
        KVT__PAGE_COPIED,
        KVT__PAGE_STOPPED, /* *stop was seen before the job began */
        KVT__PAGE_FAILED,  /* some bytes may have been written; nothing runs any more */
        KVT__PAGE_LOST,    /* whether it still runs cannot be known: the device is lost, the
                              session ends, and the lease until the end of the process */
};

struct kvt__page_job {
        STAILQ_ENTRY(kvt__page_job) link; /* the device's, between submit and end */
        struct kvt__page_list list;
        const atomic_bool *stop;
        void *after; /* kvt_call.after: what the copies wait for, or NULL */
        void *done;  /* kvt_call.done: recorded behind the last copy, or NULL */
        uint32_t place;
        bool is_store;
};

/*
 * What a device does. submit, map and unmap are called under the session's lock: they note
 * what they are given and return, never blocking and never calling the host.
 */
struct kvt__page_device {
        uint32_t version; /* KVT__PAGE_DEVICE_VERSION */
        uint32_t codecs;  /* bits 1 << enum codec: those by which it converts, bit for bit as
                             proto/codec.h; groups with another are refused */
        void *context;    /* first argument of each */

        /*
         * 1 with @ret_place, a number that jobs carry: the bytes lie in the device's memory;
         * 0: they do not; negative with @why: they do, but cannot be copied. Any thread, no
         * lock; the caller's current context, or whatever the device has of the kind, is as
         * before when it returns.
         */
        int (*place)(void *context, const void *base, uint64_t bytes, uint32_t *ret_place,
                     struct why *why);

        void (*submit)(void *context, struct kvt__page_job *job);

        /* A new arena; the reference that comes with it is given back by let_go(). */
        void (*map)(void *context, struct kvt__mapping *mapping);
        /* No longer announced, and nothing leased in it: to be let go of soon. */
        void (*unmap)(void *context, struct kvt__mapping *mapping);

        /*
         * The last call: every job ends, every mapping is let go of, the device frees itself.
         * Bounded: what still runs after some time is KVT__PAGE_LOST, and its mappings stay
         * for ever. Without the lock.
         */
        void (*close)(void *context);
};

/* What the client offers to a device. No lock held by the caller, unless it says so. */
struct kvt__page_host {
        uint32_t version; /* KVT__PAGE_DEVICE_VERSION */

        /*
         * Sets the session's device, and has map() called for each arena that is mapped;
         * NULL takes it away: close() has returned then. 0; -EEXIST with @why: it has one
         * already; -EPROTO: of another version.
         */
        int (*set_device)(struct kvt_session *session, const struct kvt__page_device *device,
                          struct why *why);
        /* NULL: it has none. Valid until the session is closed or the device taken away. */
        const struct kvt__page_device *(*device)(struct kvt_session *session);

        void (*end)(struct kvt_session *session, struct kvt__page_job *job,
                    enum kvt__page_end end);
        /* As KVT__PAGE_LOST does, where it was no job that saw it. */
        void (*lose)(struct kvt_session *session);
        /* Any thread, also after the session's end. */
        void (*let_go)(struct kvt__mapping *mapping);

        /* The pages of a map, immutable while it lives; NULL: it has none such. */
        const struct kvt__page_group *(*find_group)(const struct kvt_page_map *map,
                                                    uint16_t group, uint16_t shard);
        /* Is this a child that inherited the session? */
        bool (*is_forked)(const struct kvt_session *session);
};

/* The table of the library that made @session. */
static inline const struct kvt__page_host *kvt__page_host_of(const struct kvt_session *session)
{
        return *(const struct kvt__page_host *const *)(const void *)session;
}
