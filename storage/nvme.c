// SPDX-License-Identifier: Apache-2.0
/*
 * The tier's operations: an object's way down (space, header, bytes, catalog), its way up
 * (header and bytes, verified on a worker) and out (catalog, readers, space).
 */
#include <assert.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "storage/nvme_tier.h"

#define container(pointer, type, member)                                                           \
        ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Segments that hold @raw_bytes, whole units but for the end, on addresses devices take. */
static bool segments_are_sane(const struct tier_segment *segments, uint32_t n, uint64_t raw_bytes)
{
        uint64_t total = 0;

        if (!n || n > TIER_SEGMENTS_MAX)
                return false;
        for (uint32_t i = 0; i < n; i++) {
                if (!segments[i].length || (uintptr_t)segments[i].bytes % SEGMENT_UNIT_BYTES ||
                    (i + 1 < n && segments[i].length % SEGMENT_UNIT_BYTES))
                        return false;
                total += segments[i].length;
        }
        return total >= raw_bytes && segment_units(total) == segment_units(raw_bytes);
}

static uint64_t place_units(const struct space_extents *extents)
{
        uint64_t units = 0;

        for (uint32_t i = 0; i < extents->n; i++)
                units += extents->at[i].count;
        return units;
}

/* Objects and bytes in the tier; their length rounded up, as a place does not keep it. */
static void count_object(struct nvme *nvme, const struct space_extents *extents, bool add)
{
        uint64_t bytes = place_units(extents) * SEGMENT_UNIT_BYTES - SEGMENT_HEADER_BYTES;

        nvme->n_objects += add ? 1 : -1ull;
        nvme->payload_bytes += add ? bytes : -bytes;
}

static bool is_crowded(const struct nvme *nvme, uint32_t divisor)
{
        return nvme->n_writes >= NVME_WRITES_MAX / divisor ||
               database_queued(nvme->catalog) >= NVME_CATALOG_OPS_MAX / divisor;
}

/* Half-empty queues again: whoever was told to wait may go on. */
static void ready_if_owed(struct nvme *nvme)
{
        if (!nvme->is_paused || is_crowded(nvme, 2))
                return;
        nvme->is_paused = false;
        if (nvme->tier.on_ready)
                nvme->tier.on_ready(nvme->tier.on_ready_user);
}

/* ---- writing ---- */

static void fill_header(struct nvme_job *job)
{
        const struct tier_object *object = job->write->object;
        struct segment_header *header = job->header;

        memset(header, 0, sizeof(*header));
        memcpy(header->pool_uuid, job->nvme->pool.pool_uuid, sizeof(header->pool_uuid));
        header->epoch = job->nvme->pool.epoch;
        header->claim = job->claim;
        header->generation = object->generation;
        header->key = object->key;
        header->parent = object->parent;
        header->boundary_tokens = object->boundary_tokens;
        header->flags = (object->parent_unknown ? SEGMENT_PARENT_UNKNOWN : 0) |
                        (object->croppable ? SEGMENT_CROPPABLE : 0);
        header->raw_bytes = header->stored_bytes = object->raw_bytes;
        if (job->is_encoded)
                segment_set_encoding(header, &job->table);
        header->n_covers = object->n_covers;
        header->committed_ns = object->committed_ns;
        memcpy(header->writer_boot_id, object->writer_boot_id, sizeof(header->writer_boot_id));
        header->n_extents = job->extents.n;
        memcpy(header->extents, job->extents.at, job->extents.n * sizeof(job->extents.at[0]));
        segment_set_checksums(header, job->write->checksums);
}

static void finish_header_and_entry(struct nvme_job *job)
{
        const struct tier_object *object = job->write->object;
        struct catalog_entry entry = {
                .object = *object,
                .claim = job->claim,
                .epoch = job->nvme->pool.epoch,
                .stored_bytes = job->header->stored_bytes,
                .encoding = encoding_from_number((uint16_t)job->header->codec),
                .n_extents = job->extents.n,
        };

        memcpy(entry.extents, job->extents.at, sizeof(entry.extents));
        /* At most TIER_COVERS_MAX digests: some tens of microseconds. */
        if (object->n_covers)
                EVP_Digest(object->covers, object->n_covers * sizeof(struct digest),
                           job->header->covers_sha256, NULL, EVP_sha256(), NULL);
        segment_seal(job->header);
        catalog_entry_encode(job->entry, &entry);
}

static void end_write(struct nvme_job *job, int result)
{
        struct nvme *nvme = job->nvme;
        struct tier_write *write = job->write;
        struct tier_place place = job->place;

        nvme->n_writes--;
        nvme_job_free(job);
        write->on_done(write, result, result ? (struct tier_place){0} : place);
        ready_if_owed(nvme);
}

static void on_entered(struct database_op *op, int result)
{
        struct nvme_job *job = container(op, struct nvme_job, op);
        struct nvme *nvme = job->nvme;

        if (result) {
                /*
                 * Whether the entry reached the log is unknown. Should it come back after a
                 * restart, its header's claim tells: the space may be given out again.
                 */
                nvme->degraded |= NVME_DEGRADED_CATALOG;
                nvme->io_errors++;
                space_forget_place(job->place);
                space_release(&nvme->space, &job->extents);
        } else {
                nvme->is_dirty = true;
                count_object(nvme, &job->extents, true);
        }
        end_write(job, result);
}

static void write_done(struct nvme_job *job)
{
        struct nvme *nvme = job->nvme;

        nvme_release_memory(job);
        /* An object that was replaced meanwhile must never get into the catalog. */
        if (!job->result && job->write->is_current && !job->write->is_current(job->write))
                job->result = TIER_E_CANCELLED;
        if (job->result) {
                space_forget_place(job->place);
                space_release(&nvme->space, &job->extents);
                end_write(job, job->result);
                return;
        }
        job->op.on_done = on_entered;
        catalog_put(nvme->catalog, &job->op, &job->header->key, job->claim, steal_ptr(job->entry),
                    job->entry_bytes);
}

static int prepare_job(struct nvme_job *job)
{
        const struct tier_object *object = job->write->object;
        int r = space_make_place(&job->nvme->space, job->claim, &job->extents, &job->place);

        if (r)
                return r;
        job->entry_bytes = sizeof(struct catalog_entry_head) +
                           job->extents.n * sizeof(struct segment_extent) +
                           object->n_covers * sizeof(struct digest);
        job->entry = malloc(job->entry_bytes);
        if (!job->entry) {
                space_forget_place(job->place);
                return err_raise(-ENOMEM);
        }
        fill_header(job);
        finish_header_and_entry(job);
        return 0;
}

/* Space was taken for the raw length: nobody knew better, and it is certain to suffice. */
void nvme_encoded(struct nvme_job *job)
{
        struct nvme *nvme = job->nvme;
        int r = 0;

        if (job->is_encoded)
                r = space_trim(&nvme->space, &job->extents, segment_units(job->table.stored_bytes));
        if (!r)
                r = prepare_job(job);
        if (r) {
                space_release(&nvme->space, &job->extents);
                end_write(job, r);
                return;
        }
        job->stored_segment.length = job->table.stored_bytes;
        nvme_job_start(job);
}

static int admit_write(struct nvme *nvme, struct tier_write *write)
{
        const struct tier_object *object = write->object;

        if (!object->raw_bytes || object->n_covers > TIER_COVERS_MAX ||
            !checksum_list_is_sane(write->checksums) ||
            write->checksums->raw_bytes != object->raw_bytes ||
            !encoding_is_known(write->encoding) ||
            !segments_are_sane(write->segments, write->n_segments, object->raw_bytes))
                return err_raise(-EINVAL);
        if (!is_crowded(nvme, 1))
                return 0;
        nvme->is_paused = true;
        return TIER_E_PAUSED;
}

int nvme_write(struct tier *tier, struct tier_write *write)
{
        struct nvme *nvme = (struct nvme *)tier;
        struct space_extents extents;
        struct nvme_job *job;
        int r = admit_write(nvme, write);

        if (r)
                return r;
        r = space_alloc(&nvme->space, segment_units(write->object->raw_bytes), &extents);
        if (r)
                return r < 0 ? r : TIER_E_FULL;
        job = nvme_job_new(nvme);
        r = job ? 0 : err_raise(-ENOMEM);
        if (!r) {
                job->extents = extents;
                job->write = write;
                r = nvme_take_claim(nvme, &job->claim);
        }
        if (!r && !nvme_may_encode(nvme, write))
                r = prepare_job(job);
        if (r) {
                nvme->is_paused |= r == TIER_E_PAUSED;
                nvme_job_free(job);
                space_release(&nvme->space, &extents);
                return r;
        }
        nvme->n_writes++;
        if (nvme_may_encode(nvme, write))
                nvme_wait_for_memory(job);
        else
                nvme_job_start(job);
        return 0;
}

/* ---- reading ---- */

/* Is this the header of exactly what the reader asked for? */
static bool is_wanted_header(const struct nvme_job *job)
{
        const struct segment_header *header = job->header;
        const struct catalog_pool *pool = &job->nvme->pool;

        return !memcmp(header->pool_uuid, pool->pool_uuid, sizeof(pool->pool_uuid)) &&
               header->epoch == pool->epoch && header->claim == job->claim &&
               object_key_equal(&header->key, job->read->key) &&
               header->generation == job->read->generation &&
               header->raw_bytes == job->read->raw_bytes && !header->codec == !job->is_encoded &&
               header->n_extents == job->extents.n &&
               !memcmp(header->extents, job->extents.at,
                       job->extents.n * sizeof(job->extents.at[0]));
}

/* Bytes that the segments hold when all has been read. */
static uint64_t bytes_to_read(const struct tier_read *read, const struct piece_set *pieces)
{
        return pieces ? piece_set_bytes(pieces, read->raw_bytes) : read->raw_bytes;
}

/* The pieces, against the memory they were read into. */
static bool bytes_match(struct nvme_job *job)
{
        struct checksum_segment segments[TIER_SEGMENTS_MAX];
        const struct checksum_list *list = &job->checksums;
        uint32_t n_segments = job->read->n_segments;
        uint64_t left = bytes_to_read(job->read, job->pieces);

        for (uint32_t i = 0; i < n_segments; i++) {
                const struct tier_segment *segment = &job->read->segments[i];

                segments[i].bytes = segment->bytes;
                segments[i].length = segment->length < left ? segment->length : left;
                left -= segments[i].length;
        }
        if (checksum_total(list, job->read->key) != list->total)
                return false;
        if (job->pieces)
                return checksum_first_mismatch_in(list, job->pieces, segments, n_segments) < 0;
        return checksum_first_mismatch(list, segments, n_segments) < 0;
}

/* 0, or what a reader of such a header is told. */
static int judge_header(const struct nvme_job *job)
{
        int r = segment_check(job->header, NULL);

        if (r == SEGMENT_E_NEWER)
                return TIER_E_MISS;
        return r || !is_wanted_header(job) ? TIER_E_CORRUPT : 0;
}

void nvme_verify(struct nvme_job *job)
{
        job->verdict = judge_header(job);
        if (!job->verdict && job->is_encoded)
                job->verdict = nvme_decode(job);
        if (job->verdict)
                return;
        segment_get_checksums(job->header, &job->checksums);
        if (!bytes_match(job))
                job->verdict = TIER_E_CORRUPT;
}

static void verify(uv_work_t *work)
{
        nvme_verify(work->data);
}

static void finish_forget(struct nvme_forget *forget);

/* The last reader, not the forgetter, gives the space back. */
static void finish_forgets_of(struct nvme *nvme, uint64_t claim)
{
        struct nvme_forget *forget, *next;

        for (forget = LIST_FIRST(&nvme->forgets); forget; forget = next) {
                next = LIST_NEXT(forget, link);
                if (forget->place.claim == claim) {
                        LIST_REMOVE(forget, link);
                        finish_forget(forget);
                        return;
                }
        }
}

static bool is_being_read(const struct nvme *nvme, uint64_t claim)
{
        const struct nvme_job *job;

        LIST_FOREACH(job, &nvme->reads_in_flight, read_link)
                if (job->claim == claim)
                        return true;
        return false;
}

static void end_read(struct nvme_job *job, int result)
{
        struct nvme *nvme = job->nvme;
        struct tier_read *read = job->read;
        uint64_t claim = job->claim;

        if (result == TIER_E_CORRUPT && claim < nvme->pool.suspect_claim)
                result = TIER_E_STALE;
        nvme->corrupt += result == TIER_E_CORRUPT;
        nvme->stale += result == TIER_E_STALE;
        nvme->n_reads--;
        LIST_REMOVE(job, read_link);
        if (!result) {
                read->committed_ns = job->header->committed_ns;
                memcpy(read->writer_boot_id, job->header->writer_boot_id,
                       sizeof(read->writer_boot_id));
        }
        read->on_done(read, result, result ? NULL : &job->checksums);
        nvme_job_free(job);
        if (!LIST_EMPTY(&nvme->forgets) && !is_being_read(nvme, claim))
                finish_forgets_of(nvme, claim);
}

void nvme_verified(struct nvme_job *job)
{
        end_read(job, job->verdict);
}

static void on_verified(uv_work_t *work, int status)
{
        nvme_verified(work->data);
}

/* The header of an encoded object is here: on to the pieces. */
static void find_pieces(struct nvme_job *job)
{
        int r = judge_header(job);

        if (r) {
                end_read(job, r);
                return;
        }
        segment_get_encoding(job->header, &job->table);
        job->has_table = true;
        nvme_job_start(job);
}

void nvme_job_done(struct nvme_job *job)
{
        if (job->write) {
                write_done(job);
        } else if (job->result) {
                end_read(job, job->result);
        } else if (job->is_encoded && job->pieces && !job->has_table) {
                find_pieces(job);
        } else if (job->is_encoded) {
                nvme_wait_for_helper(job);
        } else {
                job->work.data = job;
                uv_queue_work(job->nvme->loop, &job->work, verify, on_verified);
        }
}

static int start_read(struct nvme *nvme, struct tier_read *read, const struct piece_set *pieces)
{
        struct space_extents extents;
        struct nvme_job *job;

        space_extents_of(read->place, &extents);
        if (!read->place.claim || !read->raw_bytes ||
            place_units(&extents) > segment_units(read->raw_bytes) ||
            (pieces && !piece_set_fits(pieces, read->raw_bytes)) ||
            !segments_are_sane(read->segments, read->n_segments, bytes_to_read(read, pieces)))
                return err_raise(-EINVAL);
        job = nvme_job_new(nvme);
        if (!job)
                return err_raise(-ENOMEM);
        job->read = read;
        job->pieces = pieces;
        job->is_encoded = place_units(&extents) < segment_units(read->raw_bytes);
        job->claim = read->place.claim;
        job->extents = extents;
        nvme->n_reads++;
        LIST_INSERT_HEAD(&nvme->reads_in_flight, job, read_link);
        nvme_job_start(job);
        return 0;
}

int nvme_read(struct tier *tier, struct tier_read *read)
{
        return start_read((struct nvme *)tier, read, NULL);
}

int nvme_read_pieces(struct tier *tier, struct tier_read *read)
{
        return start_read((struct nvme *)tier, read, &read->pieces);
}

/* ---- forgetting ---- */

static void finish_forget(struct nvme_forget *forget)
{
        struct tier_forget *request = container(forget, struct tier_forget, tier_private);
        struct nvme *nvme = forget->nvme;
        struct space_extents extents;
        int result = forget->result;

        /* A delete that failed may not have happened: its space stays taken. */
        if (!result) {
                space_extents_of(forget->place, &extents);
                space_release(&nvme->space, &extents);
                space_forget_place(forget->place);
                count_object(nvme, &extents, false);
        }
        request->on_freed(request, result);
        ready_if_owed(nvme);
}

static void on_deleted(struct database_op *op, int result)
{
        struct nvme_forget *forget = container(op, struct nvme_forget, op);
        struct nvme *nvme = forget->nvme;

        forget->result = result;
        if (result) {
                nvme->degraded |= NVME_DEGRADED_CATALOG;
                nvme->io_errors++;
        } else {
                nvme->is_dirty = true;
        }
        if (is_being_read(nvme, forget->place.claim))
                LIST_INSERT_HEAD(&nvme->forgets, forget, link);
        else
                finish_forget(forget);
}

void nvme_forget(struct tier *tier, struct tier_place place, const struct object_key *key,
                 bool sync, struct tier_forget *request)
{
        struct nvme_forget *forget = (struct nvme_forget *)(void *)request->tier_private;
        struct nvme *nvme = (struct nvme *)tier;

        memset(forget, 0, sizeof(*forget));
        forget->nvme = nvme;
        forget->place = place;
        forget->op.on_done = on_deleted;
        catalog_delete(nvme->catalog, &forget->op, key, place.claim, sync);
}

/* ---- figures ---- */

uint64_t nvme_footprint(struct tier *tier, uint64_t raw_bytes, uint32_t n_covers)
{
        return segment_units(raw_bytes) * SEGMENT_UNIT_BYTES;
}

static const char *const degraded_texts[] = {
        "io_uring is not available, a thread pool is used",
        "no O_DIRECT",
        "memory is not registered",
        "a path of the pool is not used",
        "the catalog failed",
        "space is not preallocated",
        "a sync failed",
};

static void list_reasons(const struct nvme *nvme, char *text, size_t size)
{
        size_t used = 0;

        text[0] = '\0';
        for (uint32_t i = 0; i < sizeof(degraded_texts) / sizeof(degraded_texts[0]); i++) {
                int n;

                if (!(nvme->degraded & 1u << i) || used >= size)
                        continue;
                n = snprintf(text + used, size - used, "%s%s", used ? "; " : "", degraded_texts[i]);
                used += n > 0 ? (size_t)n : 0;
        }
}

void nvme_usage(struct tier *tier, struct tier_usage *ret_usage)
{
        const struct nvme *nvme = (const struct nvme *)tier;

        *ret_usage = (struct tier_usage){
                .capacity_bytes = nvme->space.total_units * SEGMENT_UNIT_BYTES,
                .used_bytes = nvme->is_surveying ? 0 : nvme->space.used_units * SEGMENT_UNIT_BYTES,
                .payload_bytes = nvme->payload_bytes,
                .objects = nvme->n_objects,
                .queued_writes = nvme->n_writes,
                .queued_reads = nvme->n_reads,
                .queued_bytes = nvme->queued_bytes,
                .queued_changes = database_queued(nvme->catalog),
                .read_bytes_total = nvme->read_bytes,
                .written_bytes_total = nvme->written_bytes,
                .io_errors_total = nvme->io_errors,
                .corrupt_total = nvme->corrupt,
                .stale_total = nvme->stale,
                .encoded = nvme->encoded,
                .decoded = nvme->decoded,
                .is_unsynced = nvme->is_dirty || nvme->is_syncing,
                .degraded = nvme->degraded,
        };
        list_reasons(nvme, ret_usage->degraded_reason, sizeof(ret_usage->degraded_reason));
}
