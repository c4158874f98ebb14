// SPDX-License-Identifier: Apache-2.0
/*
 * Durability and claims of the NVMe tier.
 *
 * A round of sync is: fdatasync of the members on a worker, then a sync of the catalog's
 * log. It runs every sync_ms when something was written, and when asked for; who asks
 * during a round waits for the next one. Claims are reserved in blocks, the next block
 * durably before the last of the current one is used.
 *
 * A round that fails is tried again, but what it lost stays lost: the kernel tells of a
 * failed write once, and the next fdatasync knows nothing of it. So the entries of until
 * then are suspect from there on, as after a power loss.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/nvme_tier.h"

struct nvme_sync_waiter {
        STAILQ_ENTRY(nvme_sync_waiter) link;
        void (*on_synced)(void *user, int result);
        void *user;
};

static void end_round(struct nvme *nvme, int result)
{
        struct nvme_sync_waiter *waiter;

        nvme->is_syncing = false;
        if (nvme->sync_result) {
                nvme->degraded |= NVME_DEGRADED_SYNC;
                nvme->pool.suspect_claim = nvme->next_claim;
        }
        if (result) {
                nvme->io_errors++;
                nvme->is_dirty = true; /* tried again with the next round */
        }
        while ((waiter = STAILQ_FIRST(&nvme->sync_now))) {
                STAILQ_REMOVE_HEAD(&nvme->sync_now, link);
                waiter->on_synced(waiter->user, result);
                free(waiter);
        }
        if (!STAILQ_EMPTY(&nvme->sync_next))
                nvme_sync_start(nvme);
}

static void on_catalog_synced(struct database_op *op, int result)
{
        struct nvme *nvme = (struct nvme *)(void *)((char *)op - offsetof(struct nvme, sync_op));

        end_round(nvme, nvme->sync_result ? nvme->sync_result : result);
}

static void sync_members(uv_work_t *work)
{
        struct nvme *nvme = work->data;

        nvme->sync_result = 0;
        for (uint32_t i = 0; i < nvme->n_members; i++)
                if (nvme->members[i].fd >= 0 && fdatasync(nvme->members[i].fd) < 0)
                        nvme->sync_result = -errno;
}

static void on_members_synced(uv_work_t *work, int status)
{
        struct nvme *nvme = work->data;

        nvme->sync_op.on_done = on_catalog_synced;
        database_sync(nvme->catalog, &nvme->sync_op);
}

void nvme_sync_start(struct nvme *nvme)
{
        nvme->is_syncing = true;
        nvme->is_dirty = false;
        STAILQ_CONCAT(&nvme->sync_now, &nvme->sync_next);
        nvme->sync_work.data = nvme;
        uv_queue_work(nvme->loop, &nvme->sync_work, sync_members, on_members_synced);
}

void nvme_on_sync_timer(uv_timer_t *timer)
{
        struct nvme *nvme = timer->data;

        if (nvme->is_dirty && !nvme->is_syncing)
                nvme_sync_start(nvme);
}

void nvme_sync(struct tier *tier, void (*on_synced)(void *user, int result), void *user)
{
        struct nvme *nvme = (struct nvme *)tier;
        struct nvme_sync_waiter *waiter = malloc(sizeof(*waiter));

        if (!waiter) {
                on_synced(user, err_raise(-ENOMEM));
                return;
        }
        waiter->on_synced = on_synced;
        waiter->user = user;
        STAILQ_INSERT_TAIL(&nvme->sync_next, waiter, link);
        if (!nvme->is_syncing)
                nvme_sync_start(nvme);
}

static void on_reserved(struct database_op *op, int result)
{
        struct nvme *nvme = (struct nvme *)(void *)((char *)op - offsetof(struct nvme, reserve_op));

        nvme->is_reserving = false;
        if (!result)
                nvme->pool.claim_limit += NVME_CLAIM_BLOCK;
}

static void reserve_claims(struct nvme *nvme)
{
        struct catalog_pool *record = malloc(sizeof(*record));

        if (!record)
                return; /* tried again with the next claim */
        *record = nvme->pool;
        record->claim_limit += NVME_CLAIM_BLOCK;
        catalog_pool_seal(record);
        nvme->is_reserving = true;
        nvme->reserve_op.on_done = on_reserved;
        catalog_put_pool(nvme->catalog, &nvme->reserve_op, record);
}

int nvme_take_claim(struct nvme *nvme, uint64_t *ret_claim)
{
        if (nvme->pool.claim_limit - nvme->next_claim < NVME_CLAIM_BLOCK / 4 && !nvme->is_reserving)
                reserve_claims(nvme);
        if (nvme->next_claim >= nvme->pool.claim_limit)
                return TIER_E_PAUSED;
        *ret_claim = nvme->next_claim++;
        return 0;
}
