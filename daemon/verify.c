// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/daemon.h"
#include "daemon/verify.h"

#define READS_IN_FLIGHT 4u
/* Of one turn of the loop, those that fail at once included. */
#define STARTS_PER_TURN   64u
#define PROGRESS_EVERY_NS UINT64_C(200000000)

struct verify_read {
        struct tier_read read; /* first: the tier hands it back */
        struct verify *verify;
        struct object_key key;
        struct tier_segment segment;
        uint64_t mapped_bytes;
        bool busy;
};

struct verify {
        struct daemon *daemon;
        struct session *session; /* NULL: cancelled, nobody is told any more */
        uint64_t request;
        void (*on_progress)(struct session *session, uint64_t request,
                            const struct verify_progress *progress);
        struct verify_progress progress;
        uint32_t after; /* object that was started last */
        uint32_t n_reading;
        uint64_t reported_ns;
        bool at_end;
        struct verify_read reads[READS_IN_FLIGHT];
};

static void report(struct verify *verify, bool always)
{
        uint64_t now_ns = uv_hrtime();

        if (!verify->session || (!always && now_ns - verify->reported_ns < PROGRESS_EVERY_NS))
                return;
        verify->reported_ns = now_ns;
        verify->on_progress(verify->session, verify->request, &verify->progress);
}

static void finish(struct verify *verify)
{
        struct daemon *daemon = verify->daemon;

        verify->progress.finished = true;
        report(verify, true);
        daemon->verify = NULL;
        free(verify);
        daemon_wake(daemon);
}

static void go_on(struct verify *verify);

static struct index_object *still_there(const struct verify_read *read)
{
        struct cache *cache = &read->verify->daemon->cache;
        struct index_boundary *boundary;
        struct index_object *object;
        uint16_t layout;

        if (index_layout(cache->index, read->key.domain, &read->key.layout, &layout))
                return NULL;
        boundary = index_find_boundary(cache->index, layout, &read->key.boundary);
        object = boundary ? index_find_object(cache->index, boundary, read->key.group,
                                              read->key.shard)
                          : NULL;
        return object && object->place.claim == read->read.place.claim ? object : NULL;
}

static void judge(struct verify_read *read, int result)
{
        struct verify *verify = read->verify;
        struct cache *cache = &verify->daemon->cache;
        struct index_object *object = still_there(read);

        verify->progress.done++;
        verify->progress.bytes += read->read.raw_bytes;
        if (!result || !object)
                return; /* right, or replaced meanwhile */
        if (result == TIER_E_CORRUPT) {
                verify->progress.corrupt++;
                cache->metrics->corrupt_objects_total[METRICS_NVME]++;
        } else if (result == TIER_E_STALE) {
                verify->progress.stale++;
                cache->metrics->stale_objects_total[METRICS_NVME]++;
        } else {
                verify->progress.failed++;
                cache->metrics->tier_io_errors_total[METRICS_NVME]++;
        }
        cache->drop_reason = drop_reason_of_read(result);
        cache_drop_place(cache, object, INDEX_NVME, METRICS_UNREADABLE);
}

static void on_read(struct tier_read *tier_read, int result, const struct checksum_list *checksums)
{
        struct verify_read *read = (struct verify_read *)tier_read;
        struct verify *verify = read->verify;

        (void)checksums;
        munmap(read->segment.bytes, read->mapped_bytes);
        read->busy = false;
        verify->n_reading--;
        judge(read, result);
        report(verify, false);
        go_on(verify);
}

static struct index_object *next_stored(struct verify *verify)
{
        struct index *index = verify->daemon->cache.index;
        struct index_object *object;

        while ((object = index_next_object(index, verify->after))) {
                verify->after = index_object_id(index, object);
                if (object->place.claim)
                        return object;
        }
        verify->at_end = true;
        return NULL;
}

static int start_read(struct verify *verify, struct verify_read *read,
                      const struct index_object *object)
{
        struct cache *cache = &verify->daemon->cache;
        void *scratch;
        int r;

        read->mapped_bytes = ((uint64_t)object->raw_bytes + 4095) & ~UINT64_C(4095);
        scratch = mmap(NULL, read->mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (scratch == MAP_FAILED)
                return err_raise(-ENOMEM);
        index_key(cache->index, object, &read->key);
        read->segment = (struct tier_segment){scratch, object->raw_bytes, TIER_MEMORY_UNREGISTERED};
        read->read = (struct tier_read){
                .place = object->place,
                .key = &read->key,
                .generation = object->generation,
                .raw_bytes = object->raw_bytes,
                .segments = &read->segment,
                .n_segments = 1,
                .on_done = on_read,
        };
        r = cache->nvme->ops.read(cache->nvme, &read->read);
        if (r) {
                munmap(scratch, read->mapped_bytes);
                return r;
        }
        read->busy = true;
        verify->n_reading++;
        return 0;
}

static struct verify_read *free_read(struct verify *verify)
{
        for (unsigned i = 0; i < READS_IN_FLIGHT; i++)
                if (!verify->reads[i].busy)
                        return &verify->reads[i];
        return NULL;
}

/* One object that cannot be read is not the end of the others. */
static void start_reads(struct verify *verify)
{
        for (unsigned i = 0; i < STARTS_PER_TURN; i++) {
                struct verify_read *read = free_read(verify);
                struct index_object *object = read ? next_stored(verify) : NULL;

                if (!object)
                        return;
                if (start_read(verify, read, object)) {
                        verify->progress.failed++;
                        verify->progress.done++;
                }
        }
}

static void go_on(struct verify *verify)
{
        if (verify->session && !verify->at_end)
                start_reads(verify);
        if (verify->n_reading)
                return;
        if (verify->at_end || !verify->session)
                finish(verify);
        else
                daemon_wake(verify->daemon); /* verify_go_on() */
}

void verify_go_on(struct daemon *daemon)
{
        if (daemon->verify && !daemon->verify->n_reading)
                go_on(daemon->verify);
}

int verify_start(struct daemon *daemon, struct session *session,
                 void (*on_progress)(struct session *session, uint64_t request,
                                     const struct verify_progress *progress),
                 uint64_t request)
{
        struct index_usage usage;
        struct verify *verify;

        if (daemon->verify)
                return -EBUSY;
        verify = calloc(1, sizeof(*verify));
        if (!verify)
                return err_raise(-ENOMEM);
        index_usage(daemon->cache.index, &usage);
        verify->daemon = daemon;
        verify->session = session;
        verify->request = request;
        verify->on_progress = on_progress;
        verify->progress.total = daemon->cache.nvme ? usage.objects_in[INDEX_NVME] : 0;
        for (unsigned i = 0; i < READS_IN_FLIGHT; i++)
                verify->reads[i].verify = verify;
        daemon->verify = verify;
        report(verify, true);
        go_on(verify);
        return 0;
}

void verify_cancel(struct daemon *daemon)
{
        if (daemon->verify)
                daemon->verify->session = NULL;
}

void verify_session_gone(struct daemon *daemon, const struct session *session)
{
        if (daemon->verify && daemon->verify->session == session)
                verify_cancel(daemon);
}
