// SPDX-License-Identifier: Apache-2.0
/*
 * Arenas: the daemon's shared memory as this process maps it.
 *
 * A mapping lives while its arena is announced by the daemon that the session talks to,
 * or while a lease lies in it; so a caller's bytes stay readable after the daemon is
 * gone. An id may come back for other memory after a restart of the daemon: an arena is
 * the same only when id and inode agree. Under the session's lock.
 *
 * The session's device (client/page_device.h), which may have registered a mapping with its
 * driver, holds a reference: memory is unmapped when both have let go of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/error.h"
#include "client/page_device.h"

struct kvt__arena {
        TAILQ_ENTRY(kvt__arena) link;
        uint32_t id;
        bool announced;
        struct kvt__mapping *mapping;
        uint64_t n_leases;
        dev_t device;
        ino_t inode;
};

TAILQ_HEAD(kvt__arena_queue, kvt__arena);

struct kvt__arena_list {
        struct kvt__arena_queue queue;
        const struct kvt__page_device *device; /* is told of each arena; or NULL */
        void *foreign; /* of a session whose only arena is a GPU's memory: where; else NULL */
};

void kvt__arenas_init(struct kvt__arena_list *ret_arenas);

/*
 * Maps the arena behind @fd, which stays the caller's, or finds it mapped already. 0, or
 * a negative errno with the reason in @why: not sealed, of another size, not mappable. It is not
 * mapped where the list has foreign memory: then it is that.
 */
int kvt__arena_announce(struct kvt__arena_list *arenas, uint32_t id, uint64_t bytes,
                        uint32_t numa_node, int fd, struct why *why);

/* Tells @device of all arenas from now on; NULL: nobody. The one before is told nothing. */
void kvt__arenas_set_device(struct kvt__arena_list *arenas, const struct kvt__page_device *device);

/* Any thread, without the lock. */
void kvt__mapping_unref(struct kvt__mapping *mapping);

/* The announced arena of that id, or NULL. */
struct kvt__arena *kvt__arena_find(struct kvt__arena_list *arenas, uint32_t id);

/* The connection is gone: nothing is announced any more, all mappings stay. */
void kvt__arenas_retract(struct kvt__arena_list *arenas);

/* Unmaps what is neither announced nor leased. */
void kvt__arenas_sweep(struct kvt__arena_list *arenas);

/* Forgets all arenas; unmaps them unless @inherited, when this process never mapped them. */
void kvt__arenas_free(struct kvt__arena_list *arenas, bool inherited);

/*
 * Maps @fd after checking its size and that it has all of @seals. On success @ret_base is
 * a mapping that children do not inherit.
 */
int kvt__map_sealed(void **ret_base, int fd, uint64_t bytes, int protection, int seals,
                    const char *what, struct why *why);
