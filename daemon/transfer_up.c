// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/offer.h"
#include "daemon/transfer_struct.h"

static int transfer_compare(const struct transfer *a, const struct transfer *b)
{
        if (a->object != b->object)
                return a->object < b->object ? -1 : 1;
        if (a->described.generation != b->described.generation)
                return a->described.generation < b->described.generation ? -1 : 1;
        return a->serial < b->serial ? -1 : a->serial > b->serial;
}

TREE_GENERATE(transfer_tree, transfer, node, transfer_compare)

uint64_t transfer_oldest_up(struct transfers *transfers, enum index_tier tier, uint64_t oldest_ns)
{
        struct transfer *transfer;

        RB_FOREACH(transfer, transfer_tree, &transfers->up)
                if (transfer->tier == tier && transfer->began_ns < oldest_ns)
                        oldest_ns = transfer->began_ns;
        return oldest_ns;
}

/* The object that a promotion was started for, if it still is that generation. */
static struct index_object *still_current(const struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        const struct object_key *key = &transfer->copy->key;
        struct index_boundary *boundary;
        struct index_object *object;
        uint16_t layout;

        if (index_layout(cache->index, key->domain, &key->layout, &layout))
                return NULL;
        boundary = index_find_boundary(cache->index, layout, &key->boundary);
        if (!boundary)
                return NULL;
        object = index_find_object(cache->index, boundary, key->group, key->shard);
        if (!object || object->generation != transfer->described.generation)
                return NULL;
        return object;
}

static void count_failure(struct transfer *transfer, int result)
{
        struct metrics *metrics = transfer->cache->metrics;

        if (result == TIER_E_CORRUPT)
                metrics->corrupt_objects_total[transfer->tier]++;
        else if (result == TIER_E_STALE)
                metrics->stale_objects_total[transfer->tier]++;
        else if (result < 0)
                metrics->tier_io_errors_total[transfer->tier]++;
}

/* A pool that is out of reach now still has what it has. */
static bool place_is_lost(const struct transfer *transfer, int result)
{
        return transfer->tier == INDEX_NVME || (result > 0 && result != TIER_E_PAUSED);
}

/* Takes the place from the object, which goes when it has no other. */
static void drop_unreadable(struct transfer *transfer, struct index_object *object, int result)
{
        struct cache *cache = transfer->cache;

        count_failure(transfer, result);
        if (!object || !place_is_lost(transfer, result) ||
            index_place(cache->index, object, transfer->tier).claim != transfer->read.place.claim)
                return;
        cache->drop_reason = drop_reason_of_read(result);
        cache_drop_place(cache, object, transfer->tier, METRICS_UNREADABLE);
}

/* Whatever is wrong with the pool, those who wait compute instead. */
static int failure_of(const struct transfer *transfer, int result)
{
        return transfer->tier == INDEX_REMOTE && result ? TIER_E_MISS : result;
}

/* 0, or why it cannot begin. */
static int start_read(struct transfer *transfer, const struct index_object *object,
                      enum index_tier from)
{
        struct tier *tier = cache_tier(transfer->cache, from);

        transfer->tier = from;
        transfer->read.place = index_place(transfer->cache->index, object, from);
        return transfer->serial ? tier->ops.read_pieces(tier, &transfer->read)
                                : tier->ops.read(tier, &transfer->read);
}

/* From NVMe, or else from the pool. */
static int start_nearest(struct transfer *transfer, const struct index_object *object)
{
        int r = TIER_E_MISS;

        if (object->place.claim)
                r = start_read(transfer, object, INDEX_NVME);
        if (r && object->flags & INDEX_REMOTE_HERE)
                r = start_read(transfer, object, INDEX_REMOTE);
        return failure_of(transfer, r);
}

/* NVMe has failed: does the pool have it? True: it is being read there now. */
static bool fall_back(struct transfer *transfer)
{
        const struct index_object *object = still_current(transfer);

        return transfer->tier == INDEX_NVME && object && object->flags & INDEX_REMOTE_HERE &&
               !start_read(transfer, object, INDEX_REMOTE);
}

/* Does another promotion, of all or of pieces, still read the same? */
static bool is_read_by_others(const struct transfer *transfer)
{
        struct transfer wanted, *found;

        wanted.object = transfer->object;
        wanted.described.generation = transfer->described.generation;
        wanted.serial = 0;
        found = RB_NFIND(transfer_tree, &transfer->cache->transfers.up, &wanted);
        return found && found->object == wanted.object &&
               found->described.generation == wanted.described.generation;
}

/* The whole object is there: whoever asks for it from now on finds it. */
static void take_in(struct transfer *transfer, struct index_object *object,
                    const struct checksum_list *checksums)
{
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;

        host_copy_set_checksums(copy, checksums);
        if (!object || object->host != INDEX_NONE)
                return;
        host_copy_publish(&cache->copies, copy, index_object_id(cache->index, object));
        index_set_host(cache->index, object, copy->id);
        cache->transfers.entered_bytes += copy->raw_bytes;
        /* What came from the pool goes to NVMe by the same rules as what is stored. */
        host_copy_set_dirty(&cache->copies, copy,
                            cache->nvme && !object->place.claim &&
                                    cache->write_policy == PLACEMENT_WRITE_STORE);
        offer_arrived(cache, object);
}

static void leave_up(struct transfer *transfer, struct index_object *object)
{
        struct cache *cache = transfer->cache;

        RB_REMOVE(transfer_tree, &cache->transfers.up, transfer);
        cache->transfers.n_up--;
        cache->transfers.up_bytes -= transfer->copy->raw_bytes;
        if (object && !is_read_by_others(transfer))
                object->flags &= (uint16_t)~INDEX_READING;
}

static void on_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct transfer *transfer = (struct transfer *)read;
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;
        struct index_object *object = still_current(transfer);

        if (result) {
                drop_unreadable(transfer, object, result);
                if (fall_back(transfer))
                        return;
                object = still_current(transfer);
        }
        leave_up(transfer, object);
        if (transfer->serial)
                cache->metrics->page_loads_read_bytes_total += copy->raw_bytes;

        if (result) {
                copy->state = HOST_COPY_FAILED;
                copy->failure = failure_of(transfer, result);
        } else {
                copy->state = HOST_COPY_READY;
                copy->committed_ns = read->committed_ns;
                memcpy(copy->writer_boot_id, read->writer_boot_id, sizeof(copy->writer_boot_id));
                metrics_observe(&cache->metrics->tier_read_seconds[transfer->tier],
                                transfer_seconds_since(transfer->began_ns));
                if (!transfer->serial)
                        take_in(transfer, object, checksums);
        }
        transfer_free(transfer);
        host_copy_wake(copy);
        host_copy_unuse(&cache->copies, copy);
        transfers_progress(cache);
}

int transfer_up(struct cache *cache, struct index_object *object, struct host_copy *copy,
                const struct piece_set *pieces)
{
        struct transfer *transfer = calloc(1, sizeof(*transfer)), *twin;
        int r;

        if (!transfer)
                return err_raise(-ENOMEM);
        transfer->cache = cache;
        transfer->began_ns = uv_hrtime();
        transfer->state = TRANSFER_READING;
        transfer->copy = copy;
        transfer->object = index_object_id(cache->index, object);
        transfer->described.generation = object->generation;
        copy->generation = object->generation;
        transfer->read = (struct tier_read){
                .key = &copy->key,
                .generation = object->generation,
                .raw_bytes = object->raw_bytes,
                .segments = transfer->segments,
                .n_segments = host_copy_tier_segments(&cache->copies, copy, transfer->segments),
                .on_done = on_read,
        };
        if (pieces) {
                transfer->read.pieces = *pieces;
                transfer->serial = ++cache->transfers.n_of_pieces;
        }
        r = start_nearest(transfer, object);
        if (r) {
                transfer_free(transfer);
                return r;
        }
        object->flags |= INDEX_READING;
        host_copy_use(copy);
        twin = RB_INSERT(transfer_tree, &cache->transfers.up, transfer);
        assert(!twin);
        (void)twin;
        cache->transfers.n_up++;
        cache->transfers.up_bytes += copy->raw_bytes;
        return 0;
}

struct host_copy *transfer_arriving(struct cache *cache, const struct index_object *object)
{
        struct transfer wanted, *found;

        wanted.object = index_object_id(cache->index, object);
        wanted.described.generation = object->generation;
        wanted.serial = 0;
        found = RB_FIND(transfer_tree, &cache->transfers.up, &wanted);
        return found ? found->copy : NULL;
}
