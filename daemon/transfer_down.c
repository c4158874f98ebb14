// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/layout_keeper.h"
#include "daemon/offer.h"
#include "daemon/placement_cold.h"
#include "daemon/spill.h"
#include "daemon/transfer_struct.h"

/*
 * Enough to keep a fast device, or the bundles of a pool, busy; more only delays what comes
 * after. What is on its way down cannot be evicted: no more than a part of host memory.
 */
static const struct {
        uint32_t n;
        uint64_t bytes;
        uint32_t part;
} lane_max[INDEX_N_TIERS] = {
        [INDEX_NVME] = {32, UINT64_C(128) << 20, 8},
        [INDEX_REMOTE] = {1024, UINT64_C(128) << 20, 16},
};

/* Boundaries looked at in one walk along the cold end. */
#define COLD_STEPS 1024u

static const uint16_t writing_flag[INDEX_N_TIERS] = {
        [INDEX_NVME] = INDEX_WRITING,
        [INDEX_REMOTE] = INDEX_WRITING_POOL,
};

static struct transfer_lane *lane_of(const struct transfer *transfer)
{
        return &transfer->cache->transfers.lanes[transfer->tier];
}

static void tell_forget_waiters(void *user, int result)
{
        struct forget_waiter *waiter, *next;

        for (waiter = user; waiter; waiter = next) {
                next = waiter->next;
                waiter->on_forgotten(waiter->user, result);
                free(waiter);
        }
}

/* Of those from @transfer on. */
static struct transfer *first_writing(struct transfer *transfer, const struct object_key *key)
{
        while (transfer && (transfer->state != TRANSFER_WRITING ||
                            !object_key_equal(&transfer->copy->key, key)))
                transfer = TAILQ_NEXT(transfer, link);
        return transfer;
}

static struct transfer *next_writing(struct transfer *transfer, const struct object_key *key)
{
        return first_writing(TAILQ_NEXT(transfer, link), key);
}

/* A write-down of the key at which the tier is at work; or only one that is outdated. */
static struct transfer *find_writing(const struct transfer_lane *lane, const struct object_key *key,
                                     bool outdated)
{
        struct transfer *transfer = first_writing(TAILQ_FIRST(&lane->down), key);

        while (transfer && outdated && transfer->copy->object != INDEX_NONE)
                transfer = next_writing(transfer, key);
        return transfer;
}

/* Those who wait for this one wait for the next of its key, too. False: there is none. */
static bool pass_waiters_on(struct transfer *transfer)
{
        struct transfer *other = find_writing(lane_of(transfer), &transfer->copy->key, true);
        struct forget_waiter **end;

        if (!other)
                return false;
        for (end = &other->forget_waiters; *end; end = &(*end)->next)
                ;
        *end = steal_ptr(transfer->forget_waiters);
        return true;
}

/* Nothing of it is in the catalog: what is left are deletes that began before. */
static void end_waiting(struct transfer *transfer)
{
        struct forget_waiter *waiters;

        if (!transfer->forget_waiters || pass_waiters_on(transfer))
                return;
        waiters = steal_ptr(transfer->forget_waiters);
        if (transfer->tier == INDEX_NVME)
                cache_sync_forgets(transfer->cache, tell_forget_waiters, waiters);
        else
                tell_forget_waiters(waiters, 0);
}

static void end_down(struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;

        lane_of(transfer)->n_down--;
        lane_of(transfer)->down_bytes -= copy->raw_bytes;
        if (copy->object != INDEX_NONE)
                index_object_at(cache->index, copy->object)->flags &=
                        (uint16_t)~writing_flag[transfer->tier];
        /* What is offered again is a spill still. */
        if (transfer->tier == INDEX_REMOTE && !copy->offered)
                spill_end(cache, copy);
        end_waiting(transfer);
        transfer_free(transfer);
        host_copy_unuse(&cache->copies, copy);
}

static bool is_current(struct tier_write *write)
{
        struct transfer *transfer = (struct transfer *)write;

        /* A replaced or dropped copy is detached at once. */
        transfer->is_entering = transfer->copy->object != INDEX_NONE;
        return transfer->is_entering;
}

/* The entry got into the catalog, but its generation was replaced meanwhile. */
static void forget_outdated(struct transfer *transfer, struct tier_place place)
{
        struct cache *cache = transfer->cache;
        struct tier *tier = cache_tier(cache, transfer->tier);
        uint64_t footprint =
                tier->ops.footprint(tier, transfer->copy->raw_bytes, transfer->described.n_covers);
        struct forget_waiter *waiters;
        int r;

        if (transfer->forget_waiters)
                pass_waiters_on(transfer);
        waiters = steal_ptr(transfer->forget_waiters);
        r = cache_forget(cache, transfer->tier, place, &transfer->copy->key, footprint, waiters,
                         waiters ? tell_forget_waiters : NULL, waiters);
        if (r)
                tell_forget_waiters(waiters, r);
}

/* The bytes stay in host memory until they are evicted; nothing is retried. */
static void fail_write(struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        uint32_t object = transfer->copy->object;

        cache->metrics->tier_io_errors_total[transfer->tier]++;
        if (object != INDEX_NONE)
                cache_note_drop(cache, index_object_at(cache->index, object),
                                (enum metrics_tier)transfer->tier, DROP_WRITE_FAILED);
}

static void take_place(struct transfer *transfer, struct tier_place place)
{
        struct cache *cache = transfer->cache;
        struct index_object *object = index_object_at(cache->index, transfer->copy->object);

        metrics_observe(&cache->metrics->tier_write_seconds[transfer->tier],
                        transfer_seconds_since(transfer->began_ns));
        if (transfer->tier == INDEX_NVME)
                index_set_place(cache->index, object, place);
        else
                cache_set_remote(cache, object, place, true);
}

static void on_written(struct tier_write *write, int result, struct tier_place place)
{
        struct transfer *transfer = (struct transfer *)write;
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;

        TAILQ_REMOVE(&lane_of(transfer)->down, transfer, link);
        if (result < 0) {
                /* If the catalog failed the entry may be there: only a sync tells. */
                cache->n_forgets += transfer->tier == INDEX_NVME;
                fail_write(transfer);
        } else if (result && result != TIER_E_CANCELLED) {
                fail_write(transfer); /* no room for the entry when the bytes were there */
        } else if (!result && copy->object == INDEX_NONE) {
                forget_outdated(transfer, place);
        } else if (!result) {
                take_place(transfer, place);
        }
        end_down(transfer);
        transfers_progress(cache);
}

/*
 * A drain writes the newest first: what it wrote must not make way for what is older.
 * In service, what goes down is newer than the tier's old end by the order itself.
 */
static uint32_t before_s(const struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        const struct index_object *object;

        if (!cache->transfers.draining)
                return UINT32_MAX;
        object = index_object_at(cache->index, transfer->copy->object);
        return index_boundary_at(cache->index, object->boundary)->touched_s;
}

/*
 * Not now. What waits for NVMe keeps its copy, so that it gets there; what waits for the pool
 * is offered again, and may be evicted meanwhile: the pool may be gone for hours.
 */
static void put_off(struct transfer *transfer, int reason)
{
        struct cache *cache = transfer->cache;
        struct transfer_lane *lane = lane_of(transfer);

        if (reason == TIER_E_PAUSED && !lane->paused)
                cache->metrics->write_behind_pauses_total[transfer->tier]++;
        lane->paused |= reason == TIER_E_PAUSED;
        if (transfer->tier == INDEX_NVME) {
                transfer->state = TRANSFER_WAITING;
                TAILQ_INSERT_TAIL(&lane->waiting, transfer, link);
                return;
        }
        cache->metrics->remote_refused_writes_total++;
        lane->full |= reason == TIER_E_FULL;
        host_copy_offer_again(&cache->copies, transfer->copy);
        end_down(transfer);
}

static void submit_down(struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        struct tier *tier = cache_tier(cache, transfer->tier);
        struct host_copy *copy = transfer->copy;
        uint64_t footprint =
                tier->ops.footprint(tier, copy->raw_bytes, transfer->described.n_covers);
        int r;

        transfer->state = TRANSFER_WRITING;
        transfer->write = (struct tier_write){
                .object = &transfer->described,
                .checksums = copy->checksums,
                .segments = transfer->segments,
                .n_segments = host_copy_tier_segments(&cache->copies, copy, transfer->segments),
                .encoding = cache_encoding(cache, transfer->tier,
                                           index_object_at(cache->index, copy->object)),
                .is_current = is_current,
                .on_done = on_written,
        };
        r = tier->ops.write(tier, &transfer->write);
        if (!r)
                return;

        TAILQ_REMOVE(&lane_of(transfer)->down, transfer, link);
        if (r == TIER_E_FULL &&
            cache_make_room(cache, transfer->tier, footprint, before_s(transfer)))
                r = -ENOSPC;
        if (r == TIER_E_FULL || r == TIER_E_PAUSED) {
                put_off(transfer, r);
                return;
        }
        fail_write(transfer);
        end_down(transfer);
}

static void submit_or_end(struct transfer *transfer)
{
        /* Replaced or dropped while it was hashed, or no memory for the result. */
        if (transfer->copy->object == INDEX_NONE || !transfer->copy->checksums ||
            transfer->cache->transfers.stopped) {
                TAILQ_REMOVE(&lane_of(transfer)->down, transfer, link);
                end_down(transfer);
                return;
        }
        submit_down(transfer);
}

/* Those at the front that are hashed. What is submitted stays in its place, or leaves. */
static void submit_in_order(struct transfer_lane *lane)
{
        struct transfer *transfer, *next;

        for (transfer = TAILQ_FIRST(&lane->down); transfer && transfer->state != TRANSFER_HASHING;
             transfer = next) {
                next = TAILQ_NEXT(transfer, link);
                if (transfer->state == TRANSFER_NEXT)
                        submit_or_end(transfer);
        }
}

static void hashed(struct transfer *transfer)
{
        if (transfer->tier == INDEX_NVME) {
                submit_or_end(transfer);
                return;
        }
        transfer->state = TRANSFER_NEXT;
        submit_in_order(lane_of(transfer));
}

static void on_down_hashed(struct host_copy_waiter *waiter)
{
        hashed((struct transfer *)((char *)waiter - offsetof(struct transfer, waiter)));
}

static int describe(struct transfer *transfer, const struct index_object *object)
{
        struct cache *cache = transfer->cache;
        struct index_boundary *boundary = index_boundary_at(cache->index, object->boundary);
        struct tier_object *described = &transfer->described;
        uint32_t n_covers = 0;

        layout_keeper_keep(cache, transfer->tier, boundary->layout);
        described->key = transfer->copy->key;
        if (boundary->parent != INDEX_NONE)
                described->parent = index_boundary_at(cache->index, boundary->parent)->digest;
        described->parent_unknown = boundary->flags & INDEX_PARENT_UNKNOWN;
        described->croppable = object->flags & INDEX_CROPPABLE;
        described->boundary_tokens = boundary->boundary_tokens;
        described->cell = object->cell;
        described->generation = object->generation;
        described->raw_bytes = transfer->copy->raw_bytes;
        described->committed_ns = transfer->copy->committed_ns;
        memcpy(described->writer_boot_id, transfer->copy->writer_boot_id,
               sizeof(described->writer_boot_id));
        if (described->croppable) {
                const struct digest *covers = index_covers(cache->index, object, &n_covers);

                if (n_covers) {
                        transfer->covers = malloc(n_covers * sizeof(*covers));
                        if (!transfer->covers)
                                return err_raise(-ENOMEM);
                        memcpy(transfer->covers, covers, n_covers * sizeof(*covers));
                }
        }
        described->covers = transfer->covers;
        described->n_covers = n_covers;
        return 0;
}

static int start_down(struct cache *cache, enum index_tier tier, struct host_copy *copy)
{
        struct transfer_lane *lane = &cache->transfers.lanes[tier];
        struct index_object *object = index_object_at(cache->index, copy->object);
        struct transfer *transfer = calloc(1, sizeof(*transfer));
        int r;

        if (!transfer)
                return err_raise(-ENOMEM);
        transfer->cache = cache;
        transfer->tier = tier;
        transfer->began_ns = uv_hrtime();
        transfer->copy = copy;
        transfer->object = copy->object;
        r = describe(transfer, object);
        if (!r && !copy->checksums)
                r = transfer_hash(cache, copy);
        if (r) {
                transfer_free(transfer);
                return r;
        }

        object->flags |= writing_flag[tier];
        host_copy_use(copy);
        if (tier == INDEX_NVME)
                host_copy_set_dirty(&cache->copies, copy, false);
        lane->n_down++;
        lane->down_bytes += copy->raw_bytes;
        TAILQ_INSERT_TAIL(&lane->down, transfer, link);
        if (copy->checksums) {
                hashed(transfer);
        } else {
                transfer->state = TRANSFER_HASHING;
                transfer->waiter.on_ready = on_down_hashed;
                TAILQ_INSERT_TAIL(&copy->waiters, &transfer->waiter, link);
        }
        return 0;
}

static bool may_start_down(const struct cache *cache, enum index_tier tier)
{
        const struct transfer_lane *lane = &cache->transfers.lanes[tier];
        struct host_usage host;

        if (lane->n_down >= lane_max[tier].n || !TAILQ_EMPTY(&lane->waiting) || lane->paused ||
            lane->full)
                return false;
        host_usage(cache->host, &host);
        return lane->down_bytes < lane_max[tier].bytes &&
               lane->down_bytes < host.ready_bytes / lane_max[tier].part;
}

static void retry_waiting(struct transfer_lane *lane)
{
        struct transfer_list waiting = TAILQ_HEAD_INITIALIZER(waiting);
        struct transfer *transfer;

        if (lane->paused)
                return;
        TAILQ_CONCAT(&waiting, &lane->waiting, link);
        while ((transfer = TAILQ_FIRST(&waiting))) {
                TAILQ_REMOVE(&waiting, transfer, link);
                TAILQ_INSERT_TAIL(&lane->down, transfer, link);
                if (transfer->copy->object == INDEX_NONE) {
                        TAILQ_REMOVE(&lane->down, transfer, link);
                        end_down(transfer);
                        continue;
                }
                submit_down(transfer);
        }
}

static struct host_copy *next_dirty(struct cache *cache)
{
        struct host_copy *copy;

        if (!cache->transfers.draining)
                return TAILQ_FIRST(&cache->copies.dirty);
        /* What is of no use here would be of none after the restart. */
        while ((copy = TAILQ_LAST(&cache->copies.dirty, host_copy_list)) &&
               placement_is_dead(cache->index, index_object_at(cache->index, copy->object)))
                host_copy_set_dirty(&cache->copies, copy, false);
        return copy;
}

static void pump_dirty(struct cache *cache)
{
        struct host_copy *copy;

        while (may_start_down(cache, INDEX_NVME)) {
                copy = next_dirty(cache);
                if (!copy || start_down(cache, INDEX_NVME, copy))
                        return;
        }
}

/* It has been switched off with some in the queue. */
static void withdraw_offers(struct cache *cache)
{
        struct host_copy *copy;

        while ((copy = TAILQ_FIRST(&cache->copies.offered))) {
                host_copy_set_offered(&cache->copies, copy, false);
                spill_end(cache, copy);
        }
}

static void pump_offers(struct cache *cache)
{
        struct host_copy *copy;

        if (cache->offers.write == PLACEMENT_WRITE_OFF)
                withdraw_offers(cache);
        while ((copy = TAILQ_FIRST(&cache->copies.offered)) &&
               may_start_down(cache, INDEX_REMOTE)) {
                host_copy_set_offered(&cache->copies, copy, false);
                if (start_down(cache, INDEX_REMOTE, copy))
                        return;
        }
}

/* Returns the host memory that it takes. */
static uint64_t start_part_down(struct cache *cache, const struct placement_victim *part)
{
        uint64_t bytes = 0;
        uint32_t id = part->boundary->first_object;

        while (id) {
                struct index_object *object = index_object_at(cache->index, id);
                struct host_copy *copy;

                id = object->next;
                if (object->host == INDEX_NONE || !placement_takes(cache->index, part, object))
                        continue;
                copy = host_copy_at(&cache->copies, object->host);
                bytes += copy->space_bytes;
                if (object->place.claim || object->flags & INDEX_WRITING ||
                    !may_start_down(cache, INDEX_NVME))
                        continue;
                if (start_down(cache, INDEX_NVME, copy))
                        break;
        }
        return bytes;
}

/* What the walk along the cold end does with a part, by tier; and is there more to do now? */
static uint64_t take_part(struct cache *cache, enum index_tier tier,
                          const struct placement_victim *part)
{
        return tier == INDEX_NVME ? start_part_down(cache, part) : offer_part(cache, part);
}

static bool may_take_part(const struct cache *cache, enum index_tier tier)
{
        return tier == INDEX_REMOTE || may_start_down(cache, tier);
}

/* Writes the cold end of the host tier, so that what is evicted next is below already. */
static void pump_cold(struct cache *cache, enum index_tier tier)
{
        struct transfer_lane *lane = &cache->transfers.lanes[tier];
        struct placement_cold walk;
        struct placement_victim part;
        struct host_usage host;
        struct tier_usage below;
        uint64_t window, bytes = 0;

        if (cache->transfers.entered_bytes < lane->cold_scan_at_bytes ||
            !may_start_down(cache, tier))
                return;
        host_usage(cache->host, &host);
        cache_tier(cache, tier)->ops.usage(cache_tier(cache, tier), &below);
        window = placement_cold_bytes(PLACEMENT_WRITE_COLD, host.ready_bytes);
        if (window > below.capacity_bytes / 2)
                window = below.capacity_bytes / 2;
        if (host.ready_bytes - host.used_bytes > window)
                return;

        placement_cold_begin(&walk, cache->index, INDEX_HOST);
        /* A state and its KV go together: what lies half in the window goes down whole. */
        for (unsigned i = 0;
             i < COLD_STEPS && (bytes < window || walk.n_path) && may_take_part(cache, tier); i++) {
                part = placement_cold_next(&walk);
                if (!part.boundary)
                        break;
                bytes += take_part(cache, tier, &part);
        }
        /* The whole window is on its way or below: look again when it has moved on. */
        if (may_take_part(cache, tier))
                lane->cold_scan_at_bytes = cache->transfers.entered_bytes + window / 16;
}

static void pump_nvme(struct cache *cache)
{
        retry_waiting(&cache->transfers.lanes[INDEX_NVME]);
        if (cache->write_policy == PLACEMENT_WRITE_STORE ||
            (cache->transfers.draining && cache->write_policy != PLACEMENT_WRITE_OFF))
                pump_dirty(cache);
        else if (cache->write_policy == PLACEMENT_WRITE_COLD)
                pump_cold(cache, INDEX_NVME);
}

static void pump_remote(struct cache *cache)
{
        if (cache->offers.write == PLACEMENT_WRITE_COLD && !cache->transfers.draining)
                pump_cold(cache, INDEX_REMOTE);
        spills_pump(cache);
        pump_offers(cache);
}

void transfers_pump(struct cache *cache)
{
        if (cache->transfers.pumping || cache->transfers.stopped)
                return;
        cache->transfers.pumping = true;
        if (cache->nvme)
                pump_nvme(cache);
        if (cache->remote)
                pump_remote(cache);
        cache->transfers.pumping = false;
}

void transfers_tier_is_ready(struct cache *cache, enum index_tier tier)
{
        cache->transfers.lanes[tier].paused = false;
        cache->transfers.lanes[tier].full = false;
        transfers_pump(cache);
}

void transfers_drain(struct cache *cache)
{
        cache->transfers.draining = true;
        offer_all(cache);
        transfers_pump(cache);
}

void transfers_stop(struct cache *cache)
{
        struct transfer *transfer;

        cache->transfers.stopped = true;
        for (int tier = 0; tier < INDEX_N_TIERS; tier++) {
                struct transfer_list *waiting = &cache->transfers.lanes[tier].waiting;

                while ((transfer = TAILQ_FIRST(waiting))) {
                        TAILQ_REMOVE(waiting, transfer, link);
                        end_down(transfer);
                }
        }
}

int transfer_forget_when_written(struct cache *cache, enum index_tier tier,
                                 const struct object_key *key,
                                 void (*on_forgotten)(void *user, int result), void *user,
                                 bool *ret_waits)
{
        struct transfer *transfer = find_writing(&cache->transfers.lanes[tier], key, false);
        struct forget_waiter *waiter;

        /* Until its bytes are in the pool is_current() keeps it out: a pool may be slow. */
        while (transfer && tier == INDEX_REMOTE && !transfer->is_entering)
                transfer = next_writing(transfer, key);
        if (!transfer)
                return 0;
        waiter = malloc(sizeof(*waiter));
        if (!waiter)
                return err_raise(-ENOMEM);
        *waiter = (struct forget_waiter){transfer->forget_waiters, on_forgotten, user};
        transfer->forget_waiters = waiter;
        *ret_waits = true;
        return 0;
}
