// SPDX-License-Identifier: Apache-2.0
/*
 * Lists of boundaries, from the newest to the oldest, whose links are one array by
 * boundary id. Several lists may share the array when a boundary is on one of them at
 * most. Loop thread only.
 */
#pragma once

#include <stdint.h>

#include "daemon/index_record.h"

/* One for each boundary, by its id. */
struct placement_link {
        uint32_t newer;
        uint32_t older;
        uint32_t children; /* least recently used: on the same order; else see placement_hybrid.h */
};

struct placement_queue {
        uint32_t newest, oldest, n;
};

static inline void placement_queue_out(struct placement_link *links, struct placement_queue *queue,
                                       uint32_t id)
{
        struct placement_link *link = &links[id];

        if (link->newer)
                links[link->newer].older = link->older;
        else
                queue->newest = link->older;
        if (link->older)
                links[link->older].newer = link->newer;
        else
                queue->oldest = link->newer;
        queue->n--;
}

/* Next older than @anchor, or the newest of all when that is INDEX_NONE. */
static inline void placement_queue_in(struct placement_link *links, struct placement_queue *queue,
                                      uint32_t id, uint32_t anchor)
{
        struct placement_link *link = &links[id];

        link->newer = anchor;
        link->older = anchor ? links[anchor].older : queue->newest;
        if (anchor)
                links[anchor].older = id;
        else
                queue->newest = id;
        if (link->older)
                links[link->older].newer = id;
        else
                queue->oldest = id;
        queue->n++;
}
