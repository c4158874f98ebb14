// SPDX-License-Identifier: Apache-2.0
/*
 * Which parts of the daemon's arenas the driver knows: registered piece by piece by a thread of
 * its own, those on the GPU's NUMA node first, and usable as far as that has come.
 *
 * map() takes a reference of the mapping over and unmap() has it given back, once its pieces
 * are unregistered: in this order, whatever the rest of the process does. After lose() nothing
 * is unregistered or given back any more: something of the GPU's might still write there.
 * An arena in memory of a GPU (kvt__mapping.is_foreign) counts as registered, and nothing is done
 * for that: page maps of its session are on the same GPU.
 *
 * Every function from any thread; the lock is never held over a call of the driver's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "client/page_device.h"
#include "cuda/driver.h"

struct registry;

struct registry_options {
        const struct cuda_driver *driver; /* copied */
        void (*let_go)(struct kvt__mapping *mapping);
        void (*on_refused)(void *context, cu_result error); /* a piece; the session is open */
        void *context;
        uint64_t piece_bytes;
        bool leaves_unregistered; /* all; to try the slow way */
};

/* What is known of an address: the same holds for all up to @end. */
struct registry_extent {
        uint64_t start, end;
        uint64_t there; /* what the GPU calls @start */
        bool is_registered;
        bool is_foreign; /* memory of a GPU */
};

struct registry_counts {
        uint64_t mapped_bytes, registered_bytes, refused_bytes;
};

int registry_new(struct registry **ret_registry, const struct registry_options *options);

/* Begins, in the primary context of @device. @numa_node: -1: none. 0 or negative. */
int registry_start(struct registry *registry, cu_device device, int numa_node);

void registry_map(struct registry *registry, struct kvt__mapping *mapping);
void registry_unmap(struct registry *registry, struct kvt__mapping *mapping);

/* Not in any arena: as if it were not registered, alone. */
void registry_find(struct registry *registry, uint64_t address, struct registry_extent *ret_extent);

/* Is all that the segments of @list hold registered? */
bool registry_covers(struct registry *registry, const struct kvt__page_list *list);

void registry_count(struct registry *registry, struct registry_counts *ret_counts);

void registry_lose(struct registry *registry);

/* Waits until all is unregistered, at most @timeout_ns: then that goes on behind. Frees it. */
void registry_close(struct registry *registry, uint64_t timeout_ns);
