// SPDX-License-Identifier: Apache-2.0
/*
 * What survived: the catalog is walked twice, on a worker.
 *
 * The first walk collects positions and claims, 32 bytes an extent. Sorted by position,
 * any two that overlap tell which entry is dead: the one with the lower claim, for its
 * space had been given out again. Also dropped are entries that are malformed, of another
 * epoch, outside of the members, or of an older generation of the same key. The space of
 * the others is taken then, in the order of position.
 *
 * The second walk hands the survivors to the loop in batches; the worker reads the next
 * batch while the loop indexes the last one. Dropped entries are deleted from the catalog;
 * the FIFO puts these deletes before anything that may be written to their space.
 *
 * Layouts come first: read before the first walk, reported before any object.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "storage/nvme_layouts.h"
#include "storage/nvme_tier.h"

#define BATCH_BYTES (1u << 20)

/* An extent of an entry; entries are numbered in the order of the walk. */
struct claimed_extent {
        struct segment_extent extent;
        uint64_t claim;
        uint64_t entry;
};

struct batch {
        uint8_t *bytes; /* records: struct record, key, value */
        size_t used, size;
};

struct record {
        uint32_t key_bytes;
        uint32_t value_bytes;
        uint32_t is_dropped;
        uint32_t reserved;
};

struct recovery {
        struct nvme *nvme;
        void (*on_object)(void *user, const struct tier_object *object, struct tier_place place);
        void (*on_end)(void *user, int result);
        void *user;
        struct database_cursor *cursor;
        struct claimed_extent *extents;
        size_t n_extents, size_extents;
        uint8_t *dropped; /* a bit an entry */
        uint64_t n_entries, size_entries, n_dropped;
        uint64_t next_entry; /* second walk */
        struct nvme_layouts layouts;
        struct batch batches[2];
        unsigned filling;
        bool is_at_end;
        int result;        /* the worker's */
        int report_result; /* the loop's */
        uv_work_t work;
};

static bool is_dropped(const struct recovery *recovery, uint64_t entry)
{
        return recovery->dropped[entry / 8] >> entry % 8 & 1;
}

static void drop(struct recovery *recovery, uint64_t entry)
{
        if (!is_dropped(recovery, entry))
                recovery->n_dropped++;
        recovery->dropped[entry / 8] |= (uint8_t)(1u << entry % 8);
}

static int add_entry(struct recovery *recovery, uint64_t *ret_entry)
{
        if (recovery->n_entries == recovery->size_entries) {
                uint64_t size = recovery->size_entries ? 2 * recovery->size_entries : 65536;
                uint8_t *dropped = realloc(recovery->dropped, size / 8);

                if (!dropped)
                        return err_raise(-ENOMEM);
                memset(dropped + recovery->size_entries / 8, 0,
                       (size - recovery->size_entries) / 8);
                recovery->dropped = dropped;
                recovery->size_entries = size;
        }
        *ret_entry = recovery->n_entries++;
        return 0;
}

static int add_extents(struct recovery *recovery, const struct catalog_entry *entry,
                       uint64_t number)
{
        if (recovery->n_extents + entry->n_extents > recovery->size_extents) {
                size_t size = 2 * recovery->size_extents + 4096;
                struct claimed_extent *extents =
                        realloc(recovery->extents, size * sizeof(*extents));

                if (!extents)
                        return err_raise(-ENOMEM);
                recovery->extents = extents;
                recovery->size_extents = size;
        }
        for (uint32_t i = 0; i < entry->n_extents; i++)
                recovery->extents[recovery->n_extents++] = (struct claimed_extent){
                        .extent = entry->extents[i],
                        .claim = entry->claim,
                        .entry = number,
                };
        return 0;
}

/* Can the entry be of this pool, on members that are there and hold its bytes? */
static bool fits_pool(const struct nvme *nvme, const struct catalog_entry *entry)
{
        if (entry->epoch != nvme->pool.epoch)
                return false;
        for (uint32_t i = 0; i < entry->n_extents; i++) {
                const struct segment_extent *extent = &entry->extents[i];
                const struct member *member = &nvme->members[extent->member];

                if (extent->member >= nvme->n_members || member->fd < 0 || member->is_new ||
                    extent->first < SUPERBLOCK_AREA_BYTES / SEGMENT_UNIT_BYTES ||
                    extent->first + extent->count >
                            member->superblock.size_bytes / SEGMENT_UNIT_BYTES)
                        return false;
        }
        return true;
}

/* Entries of one key follow each other: the highest generation stays. */
struct previous {
        struct object_key key;
        uint64_t generation;
        uint64_t entry;
        bool is_valid;
};

static void keep_newest(struct recovery *recovery, struct previous *previous,
                        const struct catalog_entry *entry, uint64_t number)
{
        if (previous->is_valid && object_key_equal(&previous->key, &entry->object.key)) {
                if (entry->object.generation < previous->generation) {
                        drop(recovery, number);
                        return;
                }
                drop(recovery, previous->entry);
        }
        *previous = (struct previous){
                .key = entry->object.key,
                .generation = entry->object.generation,
                .entry = number,
                .is_valid = true,
        };
}

static int collect(struct recovery *recovery)
{
        const void *key, *value;
        size_t key_bytes, value_bytes;
        struct previous previous = {.is_valid = false};
        struct catalog_entry entry;
        uint64_t number = 0;
        int r = 0;

        while (!r &&
               database_cursor_next(recovery->cursor, &key, &key_bytes, &value, &value_bytes)) {
                r = add_entry(recovery, &number);
                if (r)
                        break;
                if (catalog_entry_decode(&entry, key, key_bytes, value, value_bytes) ||
                    !fits_pool(recovery->nvme, &entry)) {
                        drop(recovery, number);
                        continue;
                }
                keep_newest(recovery, &previous, &entry, number);
                r = add_extents(recovery, &entry, number);
        }
        return r;
}

static int by_position(const void *left, const void *right)
{
        const struct claimed_extent *a = left, *b = right;

        if (a->extent.member != b->extent.member)
                return a->extent.member < b->extent.member ? -1 : 1;
        if (a->extent.first != b->extent.first)
                return a->extent.first < b->extent.first ? -1 : 1;
        return a->claim < b->claim ? -1 : a->claim > b->claim;
}

static bool overlap(const struct segment_extent *before, const struct segment_extent *after)
{
        return before->member == after->member && before->first + before->count > after->first;
}

/*
 * Of two entries that overlap the lower claim is dead, also when the higher one is dead
 * itself: it had been written there. Entries that overlap themselves are malformed.
 */
static void drop_overlapped(struct recovery *recovery)
{
        const struct claimed_extent *extents = recovery->extents;
        size_t first = 0; /* extents before it end before the current one begins */

        for (size_t i = 1; i < recovery->n_extents; i++) {
                while (first < i && !overlap(&extents[first].extent, &extents[i].extent))
                        first++;
                for (size_t j = first; j < i; j++) {
                        if (!overlap(&extents[j].extent, &extents[i].extent))
                                continue;
                        if (extents[j].claim <= extents[i].claim)
                                drop(recovery, extents[j].entry);
                        if (extents[j].claim >= extents[i].claim)
                                drop(recovery, extents[i].entry);
                }
        }
}

static int take_space(struct recovery *recovery)
{
        for (size_t i = 0; i < recovery->n_extents; i++) {
                const struct claimed_extent *claimed = &recovery->extents[i];
                struct space_extents one = {.n = 1, .at = {claimed->extent}};
                int r;

                if (is_dropped(recovery, claimed->entry))
                        continue;
                r = space_take(&recovery->nvme->space, &one);
                if (r)
                        return r < 0 ? r : err_raise(-EINVAL);
        }
        return 0;
}

static void survey(uv_work_t *work)
{
        struct recovery *recovery = work->data;

        recovery->result = nvme_read_layouts(recovery->nvme, &recovery->layouts);
        if (recovery->result)
                return;
        recovery->result = database_cursor_open(&recovery->cursor, recovery->nvme->catalog,
                                                CATALOG_ENTRY_PREFIX);
        if (recovery->result)
                return;
        recovery->result = collect(recovery);
        if (recovery->result)
                return;
        if (recovery->n_extents)
                qsort(recovery->extents, recovery->n_extents, sizeof(*recovery->extents),
                      by_position);
        drop_overlapped(recovery);
        recovery->result = take_space(recovery);
        database_cursor_rewind(recovery->cursor);
}

static int add_record(struct batch *batch, const struct record *record, const void *key,
                      const void *value)
{
        size_t bytes = sizeof(*record) + record->key_bytes + record->value_bytes;

        if (batch->used + bytes > batch->size) {
                size_t size = batch->used + bytes + BATCH_BYTES;
                uint8_t *grown = realloc(batch->bytes, size);

                if (!grown)
                        return err_raise(-ENOMEM);
                batch->bytes = grown;
                batch->size = size;
        }
        memcpy(batch->bytes + batch->used, record, sizeof(*record));
        memcpy(batch->bytes + batch->used + sizeof(*record), key, record->key_bytes);
        memcpy(batch->bytes + batch->used + sizeof(*record) + record->key_bytes, value,
               record->value_bytes);
        batch->used += bytes;
        return 0;
}

static void fill_batch(uv_work_t *work)
{
        struct recovery *recovery = work->data;
        struct batch *batch = &recovery->batches[recovery->filling];
        const void *key, *value;
        size_t key_bytes, value_bytes;

        batch->used = 0;
        while (!recovery->result && batch->used < BATCH_BYTES) {
                struct record record;

                if (recovery->next_entry == recovery->n_entries ||
                    !database_cursor_next(recovery->cursor, &key, &key_bytes, &value,
                                          &value_bytes)) {
                        recovery->is_at_end = true;
                        return;
                }
                record = (struct record){
                        .key_bytes = (uint32_t)key_bytes,
                        .is_dropped = is_dropped(recovery, recovery->next_entry),
                        .value_bytes = (uint32_t)value_bytes,
                };
                if (record.is_dropped)
                        record.value_bytes = 0;
                recovery->next_entry++;
                recovery->result = add_record(batch, &record, key, value);
        }
}

static void on_dropped(struct database_op *op, int result)
{
        free(op);
}

static void delete_dropped(struct nvme *nvme, const uint8_t *key, uint32_t key_bytes)
{
        struct database_op *op;

        if (key_bytes > CATALOG_ENTRY_KEY_BYTES || !(op = calloc(1, sizeof(*op))))
                return; /* its reads fail by its header; the next start tries again */
        op->on_done = on_dropped;
        database_delete(nvme->catalog, op, key, key_bytes, false);
}

static int report(struct recovery *recovery, const uint8_t *key, const struct record *record)
{
        struct nvme *nvme = recovery->nvme;
        struct space_extents extents;
        struct catalog_entry entry;
        struct tier_place place;
        int r = catalog_entry_decode(&entry, key, record->key_bytes, key + record->key_bytes,
                                     record->value_bytes);

        if (r)
                return err_raise(-EINVAL); /* it decoded in the first walk */
        extents.n = entry.n_extents;
        memcpy(extents.at, entry.extents, sizeof(extents.at));
        r = space_make_place(&nvme->space, entry.claim, &extents, &place);
        if (r)
                return r;
        nvme->n_objects++;
        nvme->payload_bytes += (segment_units(entry.stored_bytes) - 1) * SEGMENT_UNIT_BYTES;
        recovery->on_object(recovery->user, &entry.object, place);
        return 0;
}

static int hand_over(struct recovery *recovery, const struct batch *batch)
{
        size_t at = 0;
        int r = 0;

        while (!r && at < batch->used) {
                const uint8_t *key = batch->bytes + at + sizeof(struct record);
                struct record record;

                memcpy(&record, batch->bytes + at, sizeof(record));
                if (record.is_dropped)
                        delete_dropped(recovery->nvme, key, record.key_bytes);
                else
                        r = report(recovery, key, &record);
                at += sizeof(record) + record.key_bytes + record.value_bytes;
        }
        return r;
}

static void finish(struct recovery *recovery)
{
        struct nvme *nvme = recovery->nvme;
        int r = recovery->cursor ? database_cursor_close(recovery->cursor) : 0;

        if (!recovery->result)
                recovery->result = r;
        if (recovery->n_dropped)
                nvme_notice(nvme,
                            "%llu catalog entries were dropped: overwritten, damaged, or on "
                            "members that are not there",
                            (unsigned long long)recovery->n_dropped);
        nvme->dropped = recovery->n_dropped;
        free(recovery->extents);
        free(recovery->dropped);
        free(recovery->batches[0].bytes);
        free(recovery->batches[1].bytes);
        recovery->on_end(recovery->user, recovery->result);
        free(recovery);
}

static void on_batch_filled(uv_work_t *work, int status)
{
        struct recovery *recovery = work->data;
        const struct batch *full = &recovery->batches[recovery->filling];

        if (!recovery->is_at_end && !recovery->result && !recovery->report_result) {
                recovery->filling ^= 1;
                uv_queue_work(recovery->nvme->loop, &recovery->work, fill_batch, on_batch_filled);
                recovery->report_result = hand_over(recovery, full);
                return;
        }
        if (!recovery->result && !recovery->report_result)
                recovery->report_result = hand_over(recovery, full);
        if (!recovery->result)
                recovery->result = recovery->report_result;
        finish(recovery);
}

static void on_surveyed(uv_work_t *work, int status)
{
        struct recovery *recovery = work->data;

        recovery->nvme->is_surveying = false;
        nvme_report_layouts(recovery->nvme, &recovery->layouts);
        if (recovery->result) {
                finish(recovery);
                return;
        }
        free(recovery->extents);
        recovery->extents = NULL;
        uv_queue_work(recovery->nvme->loop, &recovery->work, fill_batch, on_batch_filled);
}

void nvme_recover(struct tier *tier,
                  void (*on_object)(void *user, const struct tier_object *object,
                                    struct tier_place place),
                  void (*on_end)(void *user, int result), void *user)
{
        struct nvme *nvme = (struct nvme *)tier;
        struct recovery *recovery = calloc(1, sizeof(*recovery));

        if (!recovery) {
                on_end(user, err_raise(-ENOMEM));
                return;
        }
        STAILQ_INIT(&recovery->layouts);
        recovery->nvme = nvme;
        recovery->on_object = on_object;
        recovery->on_end = on_end;
        recovery->user = user;
        recovery->work.data = recovery;
        nvme->is_surveying = true;
        uv_queue_work(nvme->loop, &recovery->work, survey, on_surveyed);
}
