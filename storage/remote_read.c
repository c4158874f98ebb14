// SPDX-License-Identifier: Apache-2.0
/*
 * The way in. Reads of one turn of the loop are looked up in the index together, on a
 * worker; then their ranges are sorted by bundle, neighbours are joined, and each run of
 * them is one get into scratch memory. A job whose ranges have all come is verified,
 * decoded and copied into its segments on a worker.
 *
 * Nothing that the pool sends is believed, nor how much it says that it sent.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/encoding.h"
#include "storage/remote_tier.h"

struct remote_job {
        TAILQ_ENTRY(remote_job) link;
        struct remote *remote;
        struct tier_read *read;
        struct tier_place place;
        struct remote_bundle *bundle; /* where @place was found; NULL: nowhere */
        struct object_key key;
        const struct piece_set *pieces; /* NULL: the whole object */
        int result;
        bool is_late; /* the index did not have it yet */
        struct remote_op op;

        void *value; /* of the index */
        struct remote_index_entry entry;
        struct bundle_part part;
        struct encoding_table *table; /* NULL: raw */

        struct range *ranges; /* in the order of the object */
        uint32_t n_ranges, n_missing;
        struct tier_encoding_usage decoding;
        uv_work_t work;
};

/* Bytes of a bundle that a job needs. */
struct range {
        struct remote_job *job;
        uint64_t first, end;
        struct remote_get *get; /* which brings them */
};

struct remote_get {
        TAILQ_ENTRY(remote_get) link;
        struct remote *remote;
        struct bundle_id id;
        char name[POOL_NAME_MAX];
        uint64_t first, end;
        struct remote_buffer buffer;
        struct range **ranges;
        uint32_t n_ranges, n_users; /* ranges whose jobs have not ended */
        struct pool_get get;
};

struct lookup {
        struct remote *remote;
        struct remote_job_queue jobs;
        uv_work_t work;
};

/* ---- ends ---- */

static void release_get(struct remote_get *get)
{
        struct remote *remote = get->remote;

        if (--get->n_users)
                return;
        remote->scratch_bytes -= get->buffer.bytes ? get->end - get->first : 0;
        remote_scratch_give(&remote->scratch, get->buffer);
        if (!remote->n_jobs)
                remote_scratch_trim(&remote->scratch);
        free(get->ranges);
        free(get);
}

static void end_job(struct remote_job *job)
{
        struct remote *remote = job->remote;
        struct remote_entry *entry = remote_map_at(&remote->map, job->place);
        struct tier_read *read = job->read;

        for (uint32_t i = 0; i < job->n_ranges; i++)
                if (job->ranges[i].get)
                        release_get(job->ranges[i].get);
        if (entry)
                entry->n_reads--;
        remote->job_bytes -= read->raw_bytes;
        if (!--remote->n_jobs)
                remote_scratch_trim(&remote->scratch);
        remote->corrupt += job->result == TIER_E_CORRUPT;
        remote->decoded.raw_bytes_total += job->decoding.raw_bytes_total;
        remote->decoded.stored_bytes_total += job->decoding.stored_bytes_total;
        remote->decoded.seconds_total += job->decoding.seconds_total;
        read->committed_ns = job->part.object.committed_ns;
        memcpy(read->writer_boot_id, job->part.object.writer_boot_id, sizeof(read->writer_boot_id));
        read->on_done(read, job->result, job->result ? NULL : &job->part.checksums);
        if (job->bundle)
                remote_readers_ended(remote, job->bundle);
        database_value_free(job->value);
        free(job->table);
        free(job->ranges);
        free(job);
        remote_start_gets(remote);
        remote_idle(remote);
}

/* ---- verification, on a worker ---- */

static const uint8_t *bytes_of(const struct range *range)
{
        return range->get->buffer.bytes + (range->first - range->get->first);
}

/* Copies what lies in @from, one after another, into the read's segments. */
static void copy_out(const struct checksum_segment *from, uint32_t n, const struct tier_read *read)
{
        const struct tier_segment *to = read->segments;
        uint64_t at = 0;

        for (uint32_t i = 0; i < n; i++) {
                uint64_t done = 0;

                while (done < from[i].length) {
                        uint64_t length = to->length - at;

                        if (length > from[i].length - done)
                                length = from[i].length - done;
                        memcpy((uint8_t *)to->bytes + at, (const uint8_t *)from[i].bytes + done,
                               length);
                        done += length;
                        at += length;
                        if (at == to->length) {
                                to++;
                                at = 0;
                        }
                }
        }
}

static int mismatch(const struct remote_job *job, const struct checksum_segment *bytes, uint32_t n)
{
        const struct checksum_list *checksums = &job->part.checksums;

        return job->pieces ? checksum_first_mismatch_in(checksums, job->pieces, bytes, n)
                           : checksum_first_mismatch(checksums, bytes, n);
}

/*
 * Verified in the scratch memory: wrong bytes never get into the segments. What is encoded is
 * decoded into them and verified there, by take_encoded().
 */
static int take_raw(struct remote_job *job)
{
        struct checksum_segment *bytes = calloc(job->n_ranges, sizeof(*bytes));
        int r = 0;

        if (!bytes)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < job->n_ranges; i++)
                bytes[i] = (struct checksum_segment){bytes_of(&job->ranges[i]),
                                                     job->ranges[i].end - job->ranges[i].first};
        if (mismatch(job, bytes, job->n_ranges) >= 0)
                r = TIER_E_CORRUPT;
        else
                copy_out(bytes, job->n_ranges, job->read);
        free(bytes);
        return r;
}

static int decode_from(struct remote_job *job, const uint8_t *stored)
{
        struct encoding_scratch *scratch = encoding_scratch_new();
        struct iovec segments[TIER_SEGMENTS_MAX];
        struct checksum_segment bytes[TIER_SEGMENTS_MAX];
        uint64_t left = job->part.object.raw_bytes;
        uint32_t n = job->read->n_segments;
        int r;

        if (!scratch)
                return err_raise(-ENOMEM);
        if (job->pieces)
                left = piece_set_bytes(job->pieces, left);
        for (uint32_t i = 0; i < n; i++) {
                uint64_t length = job->read->segments[i].length;

                if (length > left)
                        length = left;
                segments[i] = (struct iovec){job->read->segments[i].bytes, length};
                bytes[i] = (struct checksum_segment){job->read->segments[i].bytes, length};
                left -= length;
        }
        r = encoding_decode(scratch, job->table, job->part.object.raw_bytes, job->pieces, stored,
                            segments, n);
        encoding_scratch_free(scratch);
        if (r < 0)
                return r;
        return r || mismatch(job, bytes, n) >= 0 ? TIER_E_CORRUPT : 0;
}

static int take_encoded(struct remote_job *job)
{
        uint64_t stored_bytes = job->part.stored_bytes;
        uint8_t *stored;
        int r;

        if (job->n_ranges == 1 && !job->pieces)
                return decode_from(job, bytes_of(&job->ranges[0]));
        /* The decoder wants the stored form as if it were whole. */
        stored = malloc(stored_bytes);
        if (!stored)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < job->n_ranges; i++)
                memcpy(stored + (job->ranges[i].first - job->part.offset),
                       bytes_of(&job->ranges[i]), job->ranges[i].end - job->ranges[i].first);
        r = decode_from(job, stored);
        free(stored);
        return r;
}

static void verify(uv_work_t *work)
{
        struct remote_job *job = work->data;
        const struct bundle_part *part = &job->part;
        uint64_t begun = uv_hrtime();

        if (checksum_total(&part->checksums, &job->key) != part->checksums.total) {
                job->result = TIER_E_CORRUPT;
                return;
        }
        if (!job->table) {
                job->result = take_raw(job);
                return;
        }
        job->result = take_encoded(job);
        job->decoding.raw_bytes_total =
                job->pieces ? piece_set_bytes(job->pieces, part->object.raw_bytes)
                            : part->object.raw_bytes;
        for (uint32_t i = 0; i < job->n_ranges; i++)
                job->decoding.stored_bytes_total += job->ranges[i].end - job->ranges[i].first;
        job->decoding.seconds_total = (double)(uv_hrtime() - begun) / 1e9;
}

static void on_verified(uv_work_t *work, int status)
{
        struct remote_job *job = work->data;

        if (status < 0)
                job->result = err_raise(status);
        end_job(job);
}

/* All that the job waited for has come, or failed. */
static void conclude(struct remote_job *job)
{
        int r;

        job->work.data = job;
        if (!job->result) {
                r = uv_queue_work(job->remote->loop, &job->work, verify, on_verified);
                if (!r)
                        return;
                job->result = err_raise(r);
        }
        end_job(job);
}

/* ---- gets ---- */

/* The bytes up to @got of @get are there; @result when it failed. */
static void deliver(struct remote_get *get, int result, uint64_t got)
{
        get->n_users++; /* ours, while we look at it */
        for (uint32_t i = 0; i < get->n_ranges; i++) {
                struct range *range = get->ranges[i];
                struct remote_job *job = range->job;
                int r = result;

                if (!r && range->end - get->first > got)
                        r = TIER_E_MISS; /* the bundle is shorter than it was */
                if (r && !job->result)
                        job->result = r;
                get->remote->counts.stale_entries += r == TIER_E_MISS;
                if (!--job->n_missing)
                        conclude(job);
        }
        release_get(get);
}

static void on_get(struct pool_get *pool_get, int result, uint64_t n_bytes)
{
        struct remote_get *get = pool_get->user;
        struct remote *remote = get->remote;
        uint64_t length = get->end - get->first;

        remote_note(remote, result);
        remote->n_gets--;
        if (n_bytes > length)
                n_bytes = length;
        if (result == -ENOENT)
                result = TIER_E_MISS;
        else if (!result)
                remote->read_bytes += n_bytes;
        deliver(get, result, n_bytes);
        remote_start_gets(remote);
        remote_idle(remote);
}

static int start_get(struct remote_get *get)
{
        struct remote *remote = get->remote;
        uint64_t length = get->end - get->first;
        int r;

        get->buffer = remote_scratch_take(&remote->scratch, length);
        if (!get->buffer.bytes)
                return err_raise(-ENOMEM);
        remote->scratch_bytes += length;
        bundle_name(get->name, &get->id);
        get->get = (struct pool_get){
                .name = get->name,
                .offset = get->first,
                .length = length,
                .bytes = get->buffer.bytes,
                .deadline_ms = remote->options.deadline_ms,
                .on_done = on_get,
                .user = get,
        };
        r = remote->pool->ops.get(remote->pool, &get->get);
        if (r)
                return r;
        remote_pace_take(&remote->read_pace, length);
        remote->counts.read_requests++;
        remote->n_gets++;
        remote_busy(remote);
        return 0;
}

void remote_start_gets(struct remote *remote)
{
        struct remote_get *get;

        remote->read_pace.held_up = false;
        while ((get = TAILQ_FIRST(&remote->gets)) && !remote->is_open &&
               remote->n_gets < (uint32_t)remote->window &&
               (!remote->scratch_bytes ||
                remote->scratch_bytes + (get->end - get->first) <= REMOTE_SCRATCH_MAX) &&
               remote_pace_allows(&remote->read_pace)) {
                int r;

                TAILQ_REMOVE(&remote->gets, get, link);
                r = start_get(get);
                if (r)
                        deliver(get, r, 0);
        }
        if (get)
                remote_retry_soon(remote);
}

void remote_fail_gets(struct remote *remote, int result)
{
        struct remote_get *get;

        while ((get = TAILQ_FIRST(&remote->gets))) {
                TAILQ_REMOVE(&remote->gets, get, link);
                deliver(get, result, 0);
        }
}

/* ---- ranges ---- */

static int compare_ranges(const void *left, const void *right)
{
        const struct range *a = *(struct range *const *)left, *b = *(struct range *const *)right;
        int order = memcmp(a->job->entry.node, b->job->entry.node, sizeof(a->job->entry.node));

        if (order)
                return order;
        if (a->job->entry.number != b->job->entry.number)
                return a->job->entry.number < b->job->entry.number ? -1 : 1;
        return a->first < b->first ? -1 : a->first > b->first;
}

static bool is_near(const struct remote_get *get, const struct range *range)
{
        uint64_t end = range->end > get->end ? range->end : get->end;

        return get->id.number == range->job->entry.number &&
               !memcmp(get->id.node, range->job->entry.node, sizeof(get->id.node)) &&
               (range->first <= get->end || range->first - get->end <= REMOTE_GAP_BYTES) &&
               end - get->first <= REMOTE_GET_BYTES;
}

static struct remote_get *new_get(struct remote *remote, const struct range *range, uint32_t size)
{
        struct remote_get *get = calloc(1, sizeof(*get));

        if (!get)
                return NULL;
        get->ranges = calloc(size, sizeof(struct range *));
        if (!get->ranges) {
                free(get);
                return NULL;
        }
        get->remote = remote;
        memcpy(get->id.node, range->job->entry.node, sizeof(get->id.node));
        get->id.number = range->job->entry.number;
        get->first = range->first;
        get->end = range->end;
        TAILQ_INSERT_TAIL(&remote->gets, get, link);
        return get;
}

/* Sorted ranges become gets. */
static void join_ranges(struct remote *remote, struct range **ranges, uint32_t n)
{
        struct remote_get *get = NULL;

        for (uint32_t i = 0; i < n; i++) {
                if (!get || !is_near(get, ranges[i]))
                        get = new_get(remote, ranges[i], n - i);
                if (!get) {
                        ranges[i]->job->result = err_raise(-ENOMEM);
                        if (!--ranges[i]->job->n_missing)
                                conclude(ranges[i]->job);
                        continue;
                }
                if (ranges[i]->end > get->end)
                        get->end = ranges[i]->end;
                ranges[i]->get = get;
                get->ranges[get->n_ranges++] = ranges[i];
                get->n_users++;
        }
}

static void add_range(struct remote_job *job, struct piece_run stored)
{
        job->ranges[job->n_ranges++] = (struct range){
                .job = job,
                .first = job->part.offset + stored.first,
                .end = job->part.offset + stored.end,
        };
}

/* What of the bundle the job needs. */
static int cut_ranges(struct remote_job *job)
{
        uint64_t raw_bytes = job->part.object.raw_bytes;
        struct piece_run raw = {0, 0}, stored;

        job->ranges = calloc(job->pieces ? CHECKSUM_PIECES_MAX : 1, sizeof(*job->ranges));
        if (!job->ranges)
                return err_raise(-ENOMEM);
        if (!job->pieces)
                add_range(job, (struct piece_run){0, job->part.stored_bytes});
        else if (!job->table)
                while (piece_set_next(job->pieces, raw_bytes, raw.end, &raw))
                        add_range(job, raw);
        else
                while (encoding_next_run(job->table, job->pieces, raw_bytes, raw.end, &raw,
                                         &stored))
                        add_range(job, stored);
        job->n_missing = job->n_ranges;
        return job->n_ranges ? 0 : TIER_E_CORRUPT;
}

/* ---- the index ---- */

/* Is what the index says of the object what the reader means? */
static int check_value(struct remote_job *job, const struct remote_entry *entry)
{
        const struct tier_object *object = &job->part.object;

        if (!entry)
                return TIER_E_MISS;
        if (!object_key_equal(&object->key, &job->key) ||
            object->raw_bytes != job->read->raw_bytes ||
            (!(entry->flags & REMOTE_ENTRY_LEARNED) && object->generation != job->read->generation))
                return TIER_E_CORRUPT;
        return 0;
}

static int take_value(void *value, size_t value_bytes, struct remote_job *job)
{
        const struct bundle_part *part = &job->part;

        job->value = value;
        if (remote_index_entry_decode(value, value_bytes, &job->entry, &job->part))
                return TIER_E_CORRUPT;
        if (!part->encoding)
                return 0;
        job->table = malloc(sizeof(*job->table));
        if (!job->table)
                return err_raise(-ENOMEM);
        if (!encoding_table_get(part->encoding_table, part->encoding_bytes, part->encoding,
                                part->object.raw_bytes, part->stored_bytes, job->table))
                return TIER_E_CORRUPT;
        return 0;
}

static void look_up(uv_work_t *work)
{
        struct lookup *lookup = work->data;
        uint8_t key[REMOTE_INDEX_ENTRY_KEY_BYTES];
        struct remote_job *job;
        size_t value_bytes;
        void *value;

        TAILQ_FOREACH(job, &lookup->jobs, link) {
                int r;

                remote_index_entry_key(key, &job->key, job->place.claim);
                r = database_get(lookup->remote->index, key, sizeof(key), &value, &value_bytes,
                                 NULL);
                if (r)
                        job->result = r == DATABASE_E_ABSENT ? TIER_E_MISS : TIER_E_CORRUPT;
                else
                        job->result = take_value(value, value_bytes, job);
        }
}

static void on_caught_up(struct remote *remote, void *user, int result)
{
        struct remote_job *job = user;

        job->result = result;
        TAILQ_INSERT_TAIL(result ? &remote->failed_jobs : &remote->new_jobs, job, link);
        remote_wake(remote);
}

/*
 * An object that has just appeared may be on its way to the index: those are looked up again
 * when what is queued now has been written.
 */
static void put_off(struct lookup *lookup)
{
        struct remote *remote = lookup->remote;
        struct remote_job *job, *next;

        for (job = TAILQ_FIRST(&lookup->jobs); job; job = next) {
                struct database_changes nothing = {NULL};

                next = TAILQ_NEXT(job, link);
                if (job->result != TIER_E_MISS || job->is_late ||
                    !remote_map_at(&remote->map, job->place))
                        continue;
                TAILQ_REMOVE(&lookup->jobs, job, link);
                job->is_late = true;
                job->op.then = on_caught_up;
                job->op.user = job;
                remote_change(remote, &nothing, false, &job->op);
        }
}

/* Ranges of all jobs that are well; the others end. */
static void on_looked_up(uv_work_t *work, int status)
{
        struct lookup *lookup = work->data;
        struct remote *remote = lookup->remote;
        struct range **ranges = NULL;
        struct remote_job *job, *next;
        uint32_t n = 0, size = 0;

        put_off(lookup);
        TAILQ_FOREACH(job, &lookup->jobs, link) {
                if (status < 0)
                        job->result = err_raise(status);
                if (!job->result)
                        job->result = check_value(job, remote_map_at(&remote->map, job->place));
                if (!job->result && remote->is_open)
                        job->result = -EHOSTDOWN;
                if (!job->result)
                        job->result = cut_ranges(job);
                size += job->result ? 0 : job->n_ranges;
        }
        if (size)
                ranges = malloc(size * sizeof(struct range *));
        for (job = TAILQ_FIRST(&lookup->jobs); job; job = next) {
                next = TAILQ_NEXT(job, link);
                if (!job->result && !ranges)
                        job->result = err_raise(-ENOMEM);
                for (uint32_t i = 0; i < job->n_ranges && !job->result; i++)
                        ranges[n++] = &job->ranges[i];
                if (job->result)
                        end_job(job);
        }
        if (n)
                qsort(ranges, n, sizeof(struct range *), compare_ranges);
        join_ranges(remote, ranges, n);
        free(ranges);
        free(lookup);
        remote_start_gets(remote);
        remote_idle(remote);
}

static void fail_jobs(struct remote_job_queue *jobs, int result)
{
        struct remote_job *job;

        while ((job = TAILQ_FIRST(jobs))) {
                TAILQ_REMOVE(jobs, job, link);
                if (result)
                        job->result = result;
                end_job(job);
        }
}

/* Jobs that can be told now, and one look-up for those that came in this turn. */
void remote_begin_reads(struct remote *remote)
{
        struct lookup *lookup;
        int r;

        fail_jobs(&remote->failed_jobs, 0);
        if (TAILQ_EMPTY(&remote->new_jobs))
                return;
        lookup = calloc(1, sizeof(*lookup));
        if (!lookup) {
                fail_jobs(&remote->new_jobs, err_raise(-ENOMEM));
                return;
        }
        lookup->remote = remote;
        lookup->work.data = lookup;
        TAILQ_INIT(&lookup->jobs);
        TAILQ_CONCAT(&lookup->jobs, &remote->new_jobs, link);
        r = uv_queue_work(remote->loop, &lookup->work, look_up, on_looked_up);
        if (r) {
                fail_jobs(&lookup->jobs, err_raise(r));
                free(lookup);
                return;
        }
        remote_busy(remote);
}

static int submit(struct remote *remote, struct tier_read *read, const struct piece_set *pieces)
{
        struct remote_entry *entry = remote_map_at(&remote->map, read->place);
        struct remote_job *job;

        if (remote->is_open)
                return err_raise(-EHOSTDOWN);
        if (entry && entry->n_reads == UINT8_MAX)
                return err_raise(-EBUSY);
        job = calloc(1, sizeof(*job));
        if (!job)
                return err_raise(-ENOMEM);
        job->remote = remote;
        job->read = read;
        job->place = read->place;
        job->key = *read->key;
        job->pieces = pieces;
        if (!entry)
                job->result = TIER_E_MISS;
        else if (!object_key_equal(&entry->key, read->key) || entry->raw_bytes != read->raw_bytes)
                job->result = TIER_E_CORRUPT;
        TAILQ_INSERT_TAIL(job->result ? &remote->failed_jobs : &remote->new_jobs, job, link);
        if (entry) {
                entry->n_reads++;
                job->bundle = entry->bundle;
                job->bundle->n_reads++;
        }
        remote->n_jobs++;
        remote->job_bytes += read->raw_bytes;
        remote_busy(remote);
        remote_wake(remote);
        return 0;
}

int remote_read(struct tier *tier, struct tier_read *read)
{
        return submit((struct remote *)tier, read, NULL);
}

int remote_read_pieces(struct tier *tier, struct tier_read *read)
{
        return submit((struct remote *)tier, read, &read->pieces);
}
