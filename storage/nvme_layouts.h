// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts in the catalog of the NVMe tier: a bounded number of them, each written before
 * the first object that needs it; the FIFO keeps that order on disk. At a start they are
 * read on a worker, and what is damaged, or more than the bounds allow, is deleted.
 */
#pragma once

#include <stdint.h>
#include <sys/queue.h>

#include "storage/tier.h"

struct nvme;

/* A layout that recovery found, on its way from the worker to the loop. */
struct nvme_layout {
        STAILQ_ENTRY(nvme_layout) link;
        struct tier_layout layout; /* length 0: damaged */
        uint8_t encoding[];
};

STAILQ_HEAD(nvme_layouts, nvme_layout);

int nvme_keep_layout(struct tier *tier, const struct tier_layout *layout);
void nvme_forget_layout(struct tier *tier, const struct tier_layout *layout);

/* On the worker. What was read goes to report(), also when this failed. */
int nvme_read_layouts(struct nvme *nvme, struct nvme_layouts *ret_layouts);
/* On the loop: hands them to tier.on_layout and frees the list. */
void nvme_report_layouts(struct nvme *nvme, struct nvme_layouts *layouts);
