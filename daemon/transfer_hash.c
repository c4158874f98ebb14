// SPDX-License-Identifier: Apache-2.0
/* Checksums of host copies, computed on uv's workers. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/transfer_struct.h"

struct hash_job {
        uv_work_t work;
        struct cache *cache;
        struct host_copy *copy;
        struct checksum_list computed;
        struct checksum_segment segments[HOST_EXTENTS_MAX];
        uint32_t n_segments;
        double seconds; /* of the worker */
};

static void hash_on_worker(uv_work_t *work)
{
        struct hash_job *job = work->data;
        uint64_t began_ns = uv_hrtime();

        checksum_compute(&job->computed, &job->copy->key, job->copy->raw_bytes, job->segments,
                         job->n_segments);
        job->seconds = transfer_seconds_since(began_ns);
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

void transfer_tell_replaced(struct cache *cache, struct host_copy *copy)
{
        if (!copy->replaces || !copy->checksums)
                return;
        copy->replaces = false;
        if (copy->object != INDEX_NONE)
                cache->remote->ops.replaced(cache->remote, &copy->key, copy->checksums->total);
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
        transfer_tell_replaced(cache, copy);
        host_copy_wake(copy);
        host_copy_unuse(&cache->copies, copy);
        transfers_progress(cache);
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
