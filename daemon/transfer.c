// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/cache.h"
#include "daemon/layout_keeper.h"
#include "daemon/placement_cold.h"
#include "daemon/transfer.h"

/* Enough to keep a fast device busy; more only delays what comes after. */
#define DOWN_MAX       32u
#define DOWN_BYTES_MAX (UINT64_C(128) << 20)
/* Boundaries looked at in one walk along the cold end. */
#define COLD_STEPS 1024u

enum transfer_state {
        TRANSFER_HASHING, /* down: until the copy has checksums */
        TRANSFER_WAITING, /* down: for room in the tier, or for the tier to be ready */
        TRANSFER_WRITING,
        TRANSFER_READING,
};

/* Somebody who waits until no entry of an outdated write-down can come back. */
struct forget_waiter {
        struct forget_waiter *next;
        void (*on_forgotten)(void *user, int result);
        void *user;
};

struct transfer {
        union {
                struct tier_write write; /* first: the tier hands them back */
                struct tier_read read;
        };
        struct cache *cache;
        enum transfer_state state;
        struct host_copy *copy;
        uint32_t object; /* as it was at the start */
        uint64_t serial; /* up: 0, or which of those that read pieces */
        uint64_t began_ns;
        struct tier_object described;
        struct digest *covers;
        struct tier_segment segments[HOST_EXTENTS_MAX];
        struct host_copy_waiter waiter;       /* HASHING */
        struct forget_waiter *forget_waiters; /* WRITING */
        TAILQ_ENTRY(transfer) link;           /* down or waiting */
        RB_ENTRY(transfer) node;              /* up */
};

static int transfer_compare(const struct transfer *a, const struct transfer *b)
{
        if (a->object != b->object)
                return a->object < b->object ? -1 : 1;
        if (a->described.generation != b->described.generation)
                return a->described.generation < b->described.generation ? -1 : 1;
        return a->serial < b->serial ? -1 : a->serial > b->serial;
}

TREE_GENERATE(transfer_tree, transfer, node, transfer_compare)

void transfers_init(struct transfers *transfers)
{
        memset(transfers, 0, sizeof(*transfers));
        TAILQ_INIT(&transfers->down);
        TAILQ_INIT(&transfers->waiting);
        RB_INIT(&transfers->up);
}

bool transfers_are_idle(const struct transfers *transfers)
{
        return !transfers->n_down && !transfers->n_up && !transfers->n_hashing &&
               TAILQ_EMPTY(&transfers->waiting);
}

static uint64_t oldest_in(const struct transfer_list *list, uint64_t oldest_ns)
{
        const struct transfer *transfer;

        TAILQ_FOREACH(transfer, list, link)
                if (transfer->began_ns < oldest_ns)
                        oldest_ns = transfer->began_ns;
        return oldest_ns;
}

double transfers_oldest_seconds(struct transfers *transfers, bool up)
{
        uint64_t now_ns = uv_hrtime(), oldest_ns = now_ns;
        struct transfer *transfer;

        if (up) {
                RB_FOREACH(transfer, transfer_tree, &transfers->up)
                        if (transfer->began_ns < oldest_ns)
                                oldest_ns = transfer->began_ns;
        } else {
                oldest_ns = oldest_in(&transfers->down, oldest_ns);
                oldest_ns = oldest_in(&transfers->waiting, oldest_ns);
        }
        return (double)(now_ns - oldest_ns) / 1e9;
}

static void transfer_free(struct transfer *transfer)
{
        free(transfer->covers);
        free(transfer);
}

static void progress(struct cache *cache)
{
        transfers_pump(cache);
        if (cache->on_progress)
                cache->on_progress(cache->on_progress_user);
}

/* ---- checksums on a worker ---- */

struct hash_job {
        uv_work_t work;
        struct cache *cache;
        struct host_copy *copy;
        struct checksum_list computed;
        struct checksum_segment segments[HOST_EXTENTS_MAX];
        uint32_t n_segments;
        double seconds; /* of the worker */
};

static double seconds_since(uint64_t began_ns)
{
        return (double)(uv_hrtime() - began_ns) / 1e9;
}

static void hash_on_worker(uv_work_t *work)
{
        struct hash_job *job = work->data;
        uint64_t began_ns = uv_hrtime();

        checksum_compute(&job->computed, &job->copy->key, job->copy->raw_bytes, job->segments,
                         job->n_segments);
        job->seconds = seconds_since(began_ns);
}

static bool differs(const struct checksum_list *given, const struct checksum_list *computed)
{
        return given->n_pieces != computed->n_pieces ||
               memcmp(given->pieces, computed->pieces,
                      computed->n_pieces * sizeof(computed->pieces[0])) != 0;
}

/* Compares with the list that the writer gave, once there are two. */
static void judge_written(struct cache *cache, struct host_copy *copy)
{
        if (!copy->expected || !copy->checksums)
                return;
        if (differs(copy->expected, copy->checksums)) {
                cache->metrics->corrupt_objects_total[METRICS_HOST]++;
                if (copy->object != INDEX_NONE) {
                        cache->drop_reason = DROP_CORRUPT;
                        cache_drop(cache, index_object_at(cache->index, copy->object),
                                   METRICS_UNREADABLE);
                }
        }
        free(steal_ptr(copy->expected));
}

static void on_hashed(uv_work_t *work, int status)
{
        struct hash_job *job = work->data;
        struct cache *cache = job->cache;
        struct host_copy *copy = job->copy;

        assert(!status);
        cache->transfers.n_hashing--;
        cache->metrics->checksum_bytes_total += copy->raw_bytes;
        cache->metrics->checksum_seconds_total += job->seconds;
        copy->hashing = false;
        host_copy_set_checksums(copy, &job->computed);
        free(job);
        judge_written(cache, copy);
        host_copy_wake(copy);
        host_copy_unuse(&cache->copies, copy);
        progress(cache);
}

static int start_hashing(struct cache *cache, struct host_copy *copy)
{
        struct hash_job *job = calloc(1, sizeof(*job));

        if (!job)
                return err_raise(-ENOMEM);
        job->work.data = job;
        job->cache = cache;
        job->copy = copy;
        job->n_segments = host_copy_checksum_segments(&cache->copies, copy, job->segments);
        copy->hashing = true;
        host_copy_use(copy);
        cache->transfers.n_hashing++;
        uv_queue_work(cache->loop, &job->work, hash_on_worker, on_hashed);
        return 0;
}

int transfer_hash(struct cache *cache, struct host_copy *copy)
{
        if (copy->checksums || copy->hashing)
                return 0;
        return start_hashing(cache, copy);
}

int transfer_verify_written(struct cache *cache, struct host_copy *copy,
                            struct checksum_list *checksums)
{
        int r;

        free(copy->expected);
        copy->expected = checksums;
        r = transfer_hash(cache, copy);
        if (r)
                free(steal_ptr(copy->expected));
        else
                judge_written(cache, copy);
        return r;
}

/* ---- down ---- */

static void tell_forget_waiters(void *user, int result)
{
        struct forget_waiter *waiter, *next;

        for (waiter = user; waiter; waiter = next) {
                next = waiter->next;
                waiter->on_forgotten(waiter->user, result);
                free(waiter);
        }
}

/* A write-down of the key at which the tier is at work; or only one that is outdated. */
static struct transfer *find_writing(struct cache *cache, const struct object_key *key,
                                     bool outdated)
{
        struct transfer *transfer;

        TAILQ_FOREACH(transfer, &cache->transfers.down, link)
                if (transfer->state == TRANSFER_WRITING &&
                    object_key_equal(&transfer->copy->key, key) &&
                    (!outdated || transfer->copy->object == INDEX_NONE))
                        return transfer;
        return NULL;
}

/* Those who wait for this one wait for the next of its key, too. False: there is none. */
static bool pass_waiters_on(struct transfer *transfer)
{
        struct transfer *other = find_writing(transfer->cache, &transfer->copy->key, true);
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
        if (transfer->forget_waiters && !pass_waiters_on(transfer))
                cache_sync_forgets(transfer->cache, tell_forget_waiters,
                                   steal_ptr(transfer->forget_waiters));
}

static void end_down(struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;

        cache->transfers.n_down--;
        cache->transfers.down_bytes -= copy->raw_bytes;
        if (copy->object != INDEX_NONE)
                index_object_at(cache->index, copy->object)->flags &= (uint16_t)~INDEX_WRITING;
        end_waiting(transfer);
        transfer_free(transfer);
        host_copy_unuse(&cache->copies, copy);
}

static bool is_current(struct tier_write *write)
{
        struct transfer *transfer = (struct transfer *)write;

        /* A replaced or dropped copy is detached at once. */
        return transfer->copy->object != INDEX_NONE;
}

/* The entry got into the catalog, but its generation was replaced meanwhile. */
static void forget_outdated(struct transfer *transfer, struct tier_place place)
{
        struct cache *cache = transfer->cache;
        uint64_t footprint = cache->nvme->ops.footprint(cache->nvme, transfer->copy->raw_bytes,
                                                        transfer->described.n_covers);
        struct forget_waiter *waiters;
        int r;

        if (transfer->forget_waiters)
                pass_waiters_on(transfer);
        waiters = steal_ptr(transfer->forget_waiters);
        r = cache_forget(cache, place, &transfer->copy->key, footprint, waiters,
                         waiters ? tell_forget_waiters : NULL, waiters);
        if (r)
                tell_forget_waiters(waiters, r);
}

/* The bytes stay in host memory until they are evicted; nothing is retried. */
static void fail_write(struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        uint32_t object = transfer->copy->object;

        cache->metrics->tier_io_errors_total[METRICS_NVME]++;
        if (object != INDEX_NONE)
                cache_note_drop(cache, index_object_at(cache->index, object), METRICS_NVME,
                                DROP_WRITE_FAILED);
}

static void on_written(struct tier_write *write, int result, struct tier_place place)
{
        struct transfer *transfer = (struct transfer *)write;
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;

        TAILQ_REMOVE(&cache->transfers.down, transfer, link);
        if (result < 0) {
                /* If the catalog failed the entry may be there: only a sync tells. */
                cache->n_forgets++;
                fail_write(transfer);
        } else if (!result && copy->object == INDEX_NONE) {
                forget_outdated(transfer, place);
        } else if (!result) {
                index_set_place(cache->index, index_object_at(cache->index, copy->object), place);
                metrics_observe(&cache->metrics->tier_write_seconds[METRICS_NVME],
                                seconds_since(transfer->began_ns));
        }
        end_down(transfer);
        progress(cache);
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

static void submit_down(struct transfer *transfer)
{
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;
        uint64_t footprint = cache->nvme->ops.footprint(cache->nvme, copy->raw_bytes,
                                                        transfer->described.n_covers);
        int r;

        transfer->state = TRANSFER_WRITING;
        transfer->write = (struct tier_write){
                .object = &transfer->described,
                .checksums = copy->checksums,
                .segments = transfer->segments,
                .n_segments = host_copy_tier_segments(&cache->copies, copy, transfer->segments),
                .encoding = cache_encoding(cache, INDEX_NVME,
                                           index_object_at(cache->index, copy->object)),
                .is_current = is_current,
                .on_done = on_written,
        };
        r = cache->nvme->ops.write(cache->nvme, &transfer->write);
        if (!r)
                return;

        TAILQ_REMOVE(&cache->transfers.down, transfer, link);
        if (r == TIER_E_FULL && cache_make_nvme_room(cache, footprint, before_s(transfer)))
                r = -ENOSPC;
        if (r == TIER_E_FULL || r == TIER_E_PAUSED) {
                if (r == TIER_E_PAUSED && !cache->transfers.paused)
                        cache->metrics->write_behind_pauses_total++;
                cache->transfers.paused |= r == TIER_E_PAUSED;
                transfer->state = TRANSFER_WAITING;
                TAILQ_INSERT_TAIL(&cache->transfers.waiting, transfer, link);
                return;
        }
        fail_write(transfer);
        end_down(transfer);
}

static void on_down_hashed(struct host_copy_waiter *waiter)
{
        struct transfer *transfer =
                (struct transfer *)((char *)waiter - offsetof(struct transfer, waiter));

        /* Replaced or dropped while it was hashed, or no memory for the result. */
        if (transfer->copy->object == INDEX_NONE || !transfer->copy->checksums ||
            transfer->cache->transfers.stopped) {
                TAILQ_REMOVE(&transfer->cache->transfers.down, transfer, link);
                end_down(transfer);
                return;
        }
        submit_down(transfer);
}

static int describe(struct transfer *transfer, const struct index_object *object)
{
        struct cache *cache = transfer->cache;
        struct index_boundary *boundary = index_boundary_at(cache->index, object->boundary);
        struct tier_object *described = &transfer->described;
        uint32_t n_covers = 0;

        layout_keeper_keep(cache, boundary->layout);
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

static int start_down(struct cache *cache, struct host_copy *copy)
{
        struct index_object *object = index_object_at(cache->index, copy->object);
        struct transfer *transfer = calloc(1, sizeof(*transfer));
        int r;

        if (!transfer)
                return err_raise(-ENOMEM);
        transfer->cache = cache;
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

        object->flags |= INDEX_WRITING;
        host_copy_use(copy);
        host_copy_set_dirty(&cache->copies, copy, false);
        cache->transfers.n_down++;
        cache->transfers.down_bytes += copy->raw_bytes;
        TAILQ_INSERT_TAIL(&cache->transfers.down, transfer, link);
        if (copy->checksums) {
                submit_down(transfer);
        } else {
                transfer->state = TRANSFER_HASHING;
                transfer->waiter.on_ready = on_down_hashed;
                TAILQ_INSERT_TAIL(&copy->waiters, &transfer->waiter, link);
        }
        return 0;
}

/* What is on its way down cannot be evicted: it must stay a small part of host memory. */
static bool may_start_down(const struct cache *cache)
{
        const struct transfers *transfers = &cache->transfers;
        struct host_usage host;

        if (transfers->n_down >= DOWN_MAX || !TAILQ_EMPTY(&transfers->waiting) || transfers->paused)
                return false;
        host_usage(cache->host, &host);
        return transfers->down_bytes < DOWN_BYTES_MAX &&
               transfers->down_bytes < host.ready_bytes / 8;
}

static void retry_waiting(struct cache *cache)
{
        struct transfer_list waiting = TAILQ_HEAD_INITIALIZER(waiting);
        struct transfer *transfer;

        if (cache->transfers.paused)
                return;
        TAILQ_CONCAT(&waiting, &cache->transfers.waiting, link);
        while ((transfer = TAILQ_FIRST(&waiting))) {
                TAILQ_REMOVE(&waiting, transfer, link);
                TAILQ_INSERT_TAIL(&cache->transfers.down, transfer, link);
                if (transfer->copy->object == INDEX_NONE) {
                        TAILQ_REMOVE(&cache->transfers.down, transfer, link);
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

        while (may_start_down(cache)) {
                copy = next_dirty(cache);
                if (!copy || start_down(cache, copy))
                        return;
        }
}

static void start_part_down(struct cache *cache, const struct placement_victim *part,
                            uint64_t *bytes)
{
        uint32_t id = part->boundary->first_object;

        while (id) {
                struct index_object *object = index_object_at(cache->index, id);
                struct host_copy *copy;

                id = object->next;
                if (object->host == INDEX_NONE || !placement_takes(cache->index, part, object))
                        continue;
                copy = host_copy_at(&cache->copies, object->host);
                *bytes += copy->space_bytes;
                if (object->place.claim || object->flags & INDEX_WRITING || !may_start_down(cache))
                        continue;
                if (start_down(cache, copy))
                        return;
        }
}

/* Writes the cold end of the host tier, so that what is evicted next is below already. */
static void pump_cold(struct cache *cache)
{
        struct transfers *transfers = &cache->transfers;
        struct placement_cold walk;
        struct placement_victim part;
        struct host_usage host;
        struct tier_usage nvme;
        uint64_t window, bytes = 0;

        if (transfers->stored_bytes < transfers->cold_scan_at_bytes || !may_start_down(cache))
                return;
        host_usage(cache->host, &host);
        cache->nvme->ops.usage(cache->nvme, &nvme);
        window = placement_cold_bytes(cache->write_policy, host.ready_bytes);
        if (window > nvme.capacity_bytes / 2)
                window = nvme.capacity_bytes / 2;
        if (host.ready_bytes - host.used_bytes > window)
                return;

        placement_cold_begin(&walk, cache->index);
        /* A state and its KV go together: what lies half in the window goes down whole. */
        for (unsigned i = 0;
             i < COLD_STEPS && (bytes < window || walk.n_path) && may_start_down(cache); i++) {
                part = placement_cold_next(&walk);
                if (!part.boundary)
                        break;
                start_part_down(cache, &part, &bytes);
        }
        /* The whole window is on its way or below: look again when it has moved on. */
        if (may_start_down(cache))
                transfers->cold_scan_at_bytes = transfers->stored_bytes + window / 16;
}

void transfers_pump(struct cache *cache)
{
        if (!cache->nvme || cache->transfers.pumping || cache->transfers.stopped)
                return;
        cache->transfers.pumping = true;
        retry_waiting(cache);
        if (cache->write_policy == PLACEMENT_WRITE_STORE ||
            (cache->transfers.draining && cache->write_policy != PLACEMENT_WRITE_OFF))
                pump_dirty(cache);
        else if (cache->write_policy == PLACEMENT_WRITE_COLD)
                pump_cold(cache);
        cache->transfers.pumping = false;
}

void transfers_drain(struct cache *cache)
{
        cache->transfers.draining = true;
        transfers_pump(cache);
}

void transfers_stop(struct cache *cache)
{
        struct transfer *transfer;

        cache->transfers.stopped = true;
        while ((transfer = TAILQ_FIRST(&cache->transfers.waiting))) {
                TAILQ_REMOVE(&cache->transfers.waiting, transfer, link);
                end_down(transfer);
        }
}

int transfer_forget_when_written(struct cache *cache, const struct object_key *key,
                                 void (*on_forgotten)(void *user, int result), void *user,
                                 bool *ret_waits)
{
        struct transfer *transfer = find_writing(cache, key, false);
        struct forget_waiter *waiter;

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

/* ---- up ---- */

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

static void drop_unreadable(struct transfer *transfer, struct index_object *object, int result)
{
        struct cache *cache = transfer->cache;

        if (result == TIER_E_CORRUPT)
                cache->metrics->corrupt_objects_total[METRICS_NVME]++;
        else if (result == TIER_E_STALE)
                cache->metrics->stale_objects_total[METRICS_NVME]++;
        else if (result < 0)
                cache->metrics->tier_io_errors_total[METRICS_NVME]++;
        if (!object || object->place.claim != transfer->read.place.claim)
                return;
        cache->drop_reason = drop_reason_of_read(result);
        cache_drop_place(cache, object, METRICS_UNREADABLE);
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
}

static void on_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct transfer *transfer = (struct transfer *)read;
        struct cache *cache = transfer->cache;
        struct host_copy *copy = transfer->copy;
        struct index_object *object = still_current(transfer);

        RB_REMOVE(transfer_tree, &cache->transfers.up, transfer);
        cache->transfers.n_up--;
        cache->transfers.up_bytes -= copy->raw_bytes;
        if (object && !is_read_by_others(transfer))
                object->flags &= (uint16_t)~INDEX_READING;
        if (transfer->serial)
                cache->metrics->page_loads_read_bytes_total += copy->raw_bytes;

        if (result) {
                copy->state = HOST_COPY_FAILED;
                copy->failure = result;
                drop_unreadable(transfer, object, result);
        } else {
                copy->state = HOST_COPY_READY;
                copy->committed_ns = read->committed_ns;
                memcpy(copy->writer_boot_id, read->writer_boot_id, sizeof(copy->writer_boot_id));
                metrics_observe(&cache->metrics->tier_read_seconds[METRICS_NVME],
                                seconds_since(transfer->began_ns));
                if (!transfer->serial)
                        take_in(transfer, object, checksums);
        }
        transfer_free(transfer);
        host_copy_wake(copy);
        host_copy_unuse(&cache->copies, copy);
        progress(cache);
}

int transfer_up(struct cache *cache, struct index_object *object, struct host_copy *copy,
                const struct piece_set *pieces)
{
        struct transfer *transfer = calloc(1, sizeof(*transfer));
        struct tier *nvme = cache->nvme;
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
                .place = object->place,
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
        r = pieces ? nvme->ops.read_pieces(nvme, &transfer->read)
                   : nvme->ops.read(nvme, &transfer->read);
        if (r) {
                transfer_free(transfer);
                return r;
        }
        object->flags |= INDEX_READING;
        host_copy_use(copy);
        RB_INSERT(transfer_tree, &cache->transfers.up, transfer);
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
