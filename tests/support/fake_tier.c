// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/support/fake_tier.h"

#define UNIT 4096u

struct kept {
        LIST_ENTRY(kept) link;
        struct tier_object object; /* covers: owned */
        struct checksum_list checksums;
        uint8_t *bytes;
        uint64_t claim;
        uint32_t n_reads;
        bool is_visible; /* its write has been completed */
        bool is_foreign;
};

struct fake_store {
        LIST_HEAD(, kept) objects;
        uint64_t capacity_bytes, used_bytes, payload_bytes, n_objects;
        uint64_t next_claim;
};

enum kind {
        KIND_WRITE,
        KIND_READ,
        KIND_FORGET,
        KIND_SYNC,
        KIND_RECOVER,
};

/* Something that completes on a later turn of the loop. */
struct pending {
        STAILQ_ENTRY(pending) link;
        enum kind kind;
        int result;
        bool is_short;
        struct kept *kept;
        struct tier_write *write;
        struct tier_read *read;
        struct tier_forget *forget;
        void (*on_object)(void *user, const struct tier_object *object, struct tier_place place);
        void (*on_end)(void *user, int result);
        void *user;
};

STAILQ_HEAD(pending_queue, pending);

struct fault {
        uint32_t n;
        int result;
};

struct fake {
        struct tier tier;
        struct fake_store *store;
        struct pending_queue queue;
        uint32_t n_queued, n_released, n_reads, n_writes;
        uv_idle_t idle;
        bool is_held, is_full, is_paused;
        struct fault writes, reads, forgets;
        bool asks_early; /* is_current(): at submission */
        uint32_t n_short;
        uint64_t read_bytes, written_bytes, io_errors, corrupt, stale;
        int refused_reads;
        uint32_t n_replaced;
        uint64_t replaced_total;
        void (*on_closed)(void *user);
        void *on_closed_user;
};

static uint64_t footprint_of(uint64_t raw_bytes)
{
        return UNIT + (raw_bytes + UNIT - 1) / UNIT * UNIT;
}

int fake_store_new(struct fake_store **ret_store, uint64_t capacity_bytes)
{
        struct fake_store *store = calloc(1, sizeof(*store));

        if (!store)
                return err_raise(-ENOMEM);
        LIST_INIT(&store->objects);
        store->capacity_bytes = capacity_bytes;
        store->next_claim = 1;
        *ret_store = store;
        return 0;
}

static void drop_kept(struct fake_store *store, struct kept *kept)
{
        store->used_bytes -= footprint_of(kept->object.raw_bytes);
        if (kept->is_visible) {
                store->payload_bytes -= kept->object.raw_bytes;
                store->n_objects--;
        }
        LIST_REMOVE(kept, link);
        free((void *)(uintptr_t)kept->object.covers);
        free(kept->bytes);
        free(kept);
}

struct fake_store *fake_store_free(struct fake_store *store)
{
        while (store && !LIST_EMPTY(&store->objects))
                drop_kept(store, LIST_FIRST(&store->objects));
        free(store);
        return NULL;
}

static struct tier_place place_of(struct kept *kept)
{
        return (struct tier_place){.claim = kept->claim, .where = (uintptr_t)kept};
}

static struct kept *kept_at(struct tier_place place)
{
        struct kept *kept = (struct kept *)(uintptr_t)place.where;

        assert(kept && kept->claim == place.claim);
        return kept;
}

/* ---- completions ---- */

static void copy_out(const struct kept *kept, const struct tier_read *read, uint64_t length)
{
        uint64_t done = 0;

        for (uint32_t i = 0; i < read->n_segments && done < length; i++) {
                uint64_t n = read->segments[i].length;

                if (n > length - done)
                        n = length - done;
                memcpy(read->segments[i].bytes, kept->bytes + done, n);
                done += n;
        }
}

static int verify(const struct kept *kept, const struct tier_read *read)
{
        struct checksum_segment whole = {kept->bytes, kept->object.raw_bytes};

        if (!object_key_equal(&kept->object.key, read->key) ||
            (!kept->is_foreign && kept->object.generation != read->generation) ||
            kept->object.raw_bytes != read->raw_bytes ||
            checksum_total(&kept->checksums, read->key) != kept->checksums.total ||
            checksum_first_mismatch(&kept->checksums, &whole, 1) >= 0)
                return TIER_E_CORRUPT;
        return 0;
}

static bool is_still_current(struct tier_write *write)
{
        return !write->is_current || write->is_current(write);
}

static void complete_write(struct fake *fake, struct pending *pending)
{
        struct kept *kept = pending->kept;
        struct tier_place place = {0};

        fake->n_writes--;
        if (!pending->result && !fake->asks_early && !is_still_current(pending->write))
                pending->result = TIER_E_CANCELLED;
        if (pending->result) {
                fake->io_errors += pending->result < 0;
                drop_kept(fake->store, kept);
        } else {
                kept->is_visible = true;
                fake->store->n_objects++;
                fake->store->payload_bytes += kept->object.raw_bytes;
                fake->written_bytes += kept->object.raw_bytes;
                place = place_of(kept);
        }
        pending->write->on_done(pending->write, pending->result, place);
}

static void complete_read(struct fake *fake, struct pending *pending)
{
        struct kept *kept = pending->kept;
        int result = pending->result ? pending->result : verify(kept, pending->read);

        if (pending->is_short) {
                copy_out(kept, pending->read, kept->object.raw_bytes / 2);
                result = -EIO;
        } else {
                copy_out(kept, pending->read,
                         pending->read->raw_bytes < kept->object.raw_bytes
                                 ? pending->read->raw_bytes
                                 : kept->object.raw_bytes);
        }
        kept->n_reads--;
        fake->n_reads--;
        fake->read_bytes += kept->object.raw_bytes;
        fake->io_errors += result < 0;
        fake->corrupt += result == TIER_E_CORRUPT;
        fake->stale += result == TIER_E_STALE;
        pending->read->committed_ns = kept->object.committed_ns;
        memcpy(pending->read->writer_boot_id, kept->object.writer_boot_id,
               sizeof(kept->object.writer_boot_id));
        pending->read->on_done(pending->read, result, result ? NULL : &kept->checksums);
}

static void complete_recover(struct fake *fake, struct pending *pending)
{
        struct kept *kept, *next;

        for (kept = LIST_FIRST(&fake->store->objects); kept; kept = next) {
                next = LIST_NEXT(kept, link);
                if (kept->is_visible)
                        pending->on_object(pending->user, &kept->object, place_of(kept));
                else
                        drop_kept(fake->store, kept); /* its write was cut off */
        }
        pending->on_end(pending->user, 0);
}

static void complete(struct fake *fake, struct pending *pending)
{
        switch (pending->kind) {
        case KIND_WRITE:
                complete_write(fake, pending);
                break;
        case KIND_READ:
                complete_read(fake, pending);
                break;
        case KIND_FORGET:
                if (!pending->result)
                        drop_kept(fake->store, pending->kept);
                pending->forget->on_freed(pending->forget, pending->result);
                break;
        case KIND_SYNC:
                pending->on_end(pending->user, pending->result);
                break;
        case KIND_RECOVER:
                complete_recover(fake, pending);
                break;
        }
        free(pending);
}

/* A forget waits for the reads of its object. */
static struct pending *next_pending(struct fake *fake)
{
        struct pending *pending;

        STAILQ_FOREACH(pending, &fake->queue, link)
        if (pending->kind != KIND_FORGET || !pending->kept->n_reads)
                return pending;
        return NULL;
}

static void on_idle(uv_idle_t *idle)
{
        struct fake *fake = idle->data;
        uint32_t n = fake->is_held ? fake->n_released : fake->n_queued;
        struct pending *pending;

        while (n-- && (pending = next_pending(fake))) {
                STAILQ_REMOVE(&fake->queue, pending, pending, link);
                fake->n_queued--;
                if (fake->n_released)
                        fake->n_released--;
                complete(fake, pending);
        }
        if (!fake->n_queued || (fake->is_held && !fake->n_released))
                uv_idle_stop(idle);
}

static struct pending *queue(struct fake *fake, enum kind kind, struct fault *fault)
{
        struct pending *pending = calloc(1, sizeof(*pending));

        assert(pending); /* a test without memory is over */
        pending->kind = kind;
        if (fault && fault->n) {
                fault->n--;
                pending->result = fault->result;
        }
        STAILQ_INSERT_TAIL(&fake->queue, pending, link);
        fake->n_queued++;
        if (!fake->is_held || fake->n_released)
                uv_idle_start(&fake->idle, on_idle);
        return pending;
}

/* ---- operations ---- */

static struct kept *keep(struct fake_store *store, const struct tier_write *write)
{
        const struct tier_object *object = write->object;
        struct kept *kept = calloc(1, sizeof(*kept));
        uint64_t done = 0;

        if (!kept)
                return NULL;
        kept->bytes = malloc(object->raw_bytes);
        kept->object = *object;
        kept->object.covers = NULL;
        if (object->n_covers) {
                struct digest *covers = malloc(object->n_covers * sizeof(*covers));

                if (covers)
                        memcpy(covers, object->covers, object->n_covers * sizeof(*covers));
                kept->object.covers = covers;
        }
        if (!kept->bytes || (object->n_covers && !kept->object.covers)) {
                free((void *)(uintptr_t)kept->object.covers);
                free(kept->bytes);
                free(kept);
                return NULL;
        }
        for (uint32_t i = 0; i < write->n_segments && done < object->raw_bytes; i++) {
                uint64_t n = write->segments[i].length;

                if (n > object->raw_bytes - done)
                        n = object->raw_bytes - done;
                memcpy(kept->bytes + done, write->segments[i].bytes, n);
                done += n;
        }
        /* The list may be no longer than its pieces are many. */
        memcpy(&kept->checksums, write->checksums,
               offsetof(struct checksum_list, pieces) +
                       write->checksums->n_pieces * sizeof(write->checksums->pieces[0]));
        kept->claim = store->next_claim++;
        store->used_bytes += footprint_of(object->raw_bytes);
        LIST_INSERT_HEAD(&store->objects, kept, link);
        return kept;
}

static int fake_write(struct tier *tier, struct tier_write *write)
{
        struct fake *fake = (struct fake *)tier;
        struct fake_store *store = fake->store;
        struct pending *pending;
        struct kept *kept;

        if (fake->is_paused)
                return TIER_E_PAUSED;
        if (fake->is_full ||
            store->capacity_bytes - store->used_bytes < footprint_of(write->object->raw_bytes))
                return TIER_E_FULL;
        kept = keep(store, write);
        if (!kept)
                return err_raise(-ENOMEM);
        fake->n_writes++;
        pending = queue(fake, KIND_WRITE, &fake->writes);
        pending->kept = kept;
        pending->write = write;
        return 0;
}

static int fake_read(struct tier *tier, struct tier_read *read)
{
        struct fake *fake = (struct fake *)tier;
        struct pending *pending;

        if (fake->refused_reads)
                return fake->refused_reads;
        pending = queue(fake, KIND_READ, &fake->reads);
        pending->kept = kept_at(read->place);
        pending->kept->n_reads++;
        pending->read = read;
        fake->n_reads++;
        if (fake->n_short) {
                fake->n_short--;
                pending->is_short = true;
        }
        return 0;
}

static void fake_forget(struct tier *tier, struct tier_place place, const struct object_key *key,
                        bool sync, struct tier_forget *forget)
{
        struct fake *fake = (struct fake *)tier;
        struct pending *pending = queue(fake, KIND_FORGET, &fake->forgets);

        pending->kept = kept_at(place);
        pending->forget = forget;
        assert(object_key_equal(&pending->kept->object.key, key));
}

static void fake_recover(struct tier *tier,
                         void (*on_object)(void *user, const struct tier_object *object,
                                           struct tier_place place),
                         void (*on_end)(void *user, int result), void *user)
{
        struct pending *pending = queue((struct fake *)tier, KIND_RECOVER, NULL);

        pending->on_object = on_object;
        pending->on_end = on_end;
        pending->user = user;
}

static void fake_sync(struct tier *tier, void (*on_synced)(void *user, int result), void *user)
{
        struct pending *pending = queue((struct fake *)tier, KIND_SYNC, NULL);

        pending->on_end = on_synced;
        pending->user = user;
}

static uint64_t fake_footprint(struct tier *tier, uint64_t raw_bytes, uint32_t n_covers)
{
        return footprint_of(raw_bytes);
}

static void fake_usage(struct tier *tier, struct tier_usage *ret_usage)
{
        const struct fake *fake = (const struct fake *)tier;

        *ret_usage = (struct tier_usage){
                .capacity_bytes = fake->store->capacity_bytes,
                .used_bytes = fake->store->used_bytes,
                .payload_bytes = fake->store->payload_bytes,
                .objects = fake->store->n_objects,
                .queued_writes = fake->n_writes,
                .queued_reads = fake->n_reads,
                .read_bytes_total = fake->read_bytes,
                .written_bytes_total = fake->written_bytes,
                .io_errors_total = fake->io_errors,
                .corrupt_total = fake->corrupt,
                .stale_total = fake->stale,
        };
}

static bool fake_is_own(const struct tier *tier, struct tier_place place)
{
        (void)tier;
        return !kept_at(place)->is_foreign;
}

static void fake_replaced(struct tier *tier, const struct object_key *key, uint64_t checksum_total)
{
        struct fake *fake = (struct fake *)tier;

        (void)key;
        fake->n_replaced++;
        fake->replaced_total = checksum_total;
}

static void on_idle_closed(uv_handle_t *handle)
{
        struct fake *fake = handle->data;
        void (*on_closed)(void *user) = fake->on_closed;
        void *user = fake->on_closed_user;

        free(fake);
        on_closed(user);
}

static void fake_close(struct tier *tier, void (*on_closed)(void *user), void *user)
{
        struct fake *fake = (struct fake *)tier;

        assert(!fake->n_queued); /* the caller's duty */
        fake->on_closed = on_closed;
        fake->on_closed_user = user;
        uv_close((uv_handle_t *)&fake->idle, on_idle_closed);
}

int fake_tier_open(struct tier **ret_tier, uv_loop_t *loop, struct fake_store *store)
{
        static const struct tier_ops ops = {
                .name = "fake",
                .recover = fake_recover,
                .footprint = fake_footprint,
                .write = fake_write,
                .read = fake_read,
                .forget = fake_forget,
                .usage = fake_usage,
                .is_own = fake_is_own,
                .replaced = fake_replaced,
                .sync = fake_sync,
                .close = fake_close,
        };
        struct fake *fake = calloc(1, sizeof(*fake));

        if (!fake)
                return err_raise(-ENOMEM);
        tier_init(&fake->tier, &ops);
        fake->store = store;
        STAILQ_INIT(&fake->queue);
        uv_idle_init(loop, &fake->idle);
        fake->idle.data = fake;
        *ret_tier = &fake->tier;
        return 0;
}

/* ---- faults ---- */

void fake_tier_hold(struct tier *tier, bool hold)
{
        struct fake *fake = (struct fake *)tier;

        fake->is_held = hold;
        fake->n_released = 0;
        if (!hold && fake->n_queued)
                uv_idle_start(&fake->idle, on_idle);
}

void fake_tier_release(struct tier *tier, uint32_t n)
{
        struct fake *fake = (struct fake *)tier;

        fake->n_released += n;
        if (fake->n_queued)
                uv_idle_start(&fake->idle, on_idle);
}

uint32_t fake_tier_held(const struct tier *tier)
{
        return ((const struct fake *)tier)->n_queued;
}

void fake_tier_ask_early(struct tier *tier, bool early)
{
        ((struct fake *)tier)->asks_early = early;
}

void fake_tier_fail_writes(struct tier *tier, uint32_t n, int result)
{
        ((struct fake *)tier)->writes = (struct fault){n, result};
}

void fake_tier_fail_reads(struct tier *tier, uint32_t n, int result)
{
        ((struct fake *)tier)->reads = (struct fault){n, result};
}

void fake_tier_fail_forgets(struct tier *tier, uint32_t n, int result)
{
        ((struct fake *)tier)->forgets = (struct fault){n, result};
}

void fake_tier_short_reads(struct tier *tier, uint32_t n)
{
        ((struct fake *)tier)->n_short = n;
}

void fake_tier_corrupt(struct tier *tier, struct tier_place place)
{
        (void)tier;
        kept_at(place)->bytes[0] ^= 1;
}

struct tier_place fake_tier_appear(struct tier *tier, const struct tier_object *object,
                                   uint8_t value)
{
        struct fake *fake = (struct fake *)tier;
        struct checksum_list checksums;
        struct checksum_segment whole = {malloc(object->raw_bytes), object->raw_bytes};
        struct tier_segment segment = {(void *)(uintptr_t)whole.bytes, object->raw_bytes, 0};
        struct kept *kept;

        assert(whole.bytes);
        memset(segment.bytes, value, object->raw_bytes);
        checksum_compute(&checksums, &object->key, object->raw_bytes, &whole, 1);
        kept = keep(fake->store, &(struct tier_write){.object = object,
                                                      .checksums = &checksums,
                                                      .segments = &segment,
                                                      .n_segments = 1});
        assert(kept);
        free(segment.bytes);
        kept->is_visible = kept->is_foreign = true;
        fake->store->n_objects++;
        fake->store->payload_bytes += object->raw_bytes;
        if (tier->on_appeared)
                tier->on_appeared(tier->on_shared_user, object, place_of(kept));
        return place_of(kept);
}

void fake_tier_vanish(struct tier *tier, struct tier_place place, bool replaced,
                      uint64_t checksum_total)
{
        struct fake *fake = (struct fake *)tier;
        struct kept *kept = kept_at(place);
        struct object_key key = kept->object.key;

        assert(!kept->n_reads);
        drop_kept(fake->store, kept);
        tier->on_vanished(tier->on_shared_user, &key, place, replaced, checksum_total);
}

uint32_t fake_tier_n_replaced(const struct tier *tier)
{
        return ((const struct fake *)tier)->n_replaced;
}

uint64_t fake_tier_replaced_total(const struct tier *tier)
{
        return ((const struct fake *)tier)->replaced_total;
}

void fake_tier_refuse_reads(struct tier *tier, int result)
{
        ((struct fake *)tier)->refused_reads = result;
}

void fake_tier_set_full(struct tier *tier, bool full)
{
        ((struct fake *)tier)->is_full = full;
}

void fake_tier_set_paused(struct tier *tier, bool paused)
{
        struct fake *fake = (struct fake *)tier;
        bool was_paused = fake->is_paused;

        fake->is_paused = paused;
        if (was_paused && !paused && tier->on_ready)
                tier->on_ready(tier->on_ready_user);
}
