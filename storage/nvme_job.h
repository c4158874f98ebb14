// SPDX-License-Identifier: Apache-2.0
/*
 * An object on its way to or from the devices, and the stations it passes: queues and
 * requests (nvme_io.c), memory and helpers of what is stored encoded (nvme_encoding.c), the
 * beginning and the end (nvme.c). For the files of the NVMe tier.
 */
#pragma once

#include <sys/queue.h>

#include <uv.h>

#include "storage/database.h"
#include "storage/down_work.h"
#include "storage/encoding.h"
#include "storage/io.h"
#include "storage/segment.h"
#include "storage/space.h"
#include "storage/tier.h"

struct nvme;

/* Of uv's threads, four unless told otherwise: what goes down never takes them all. */
#define NVME_ENCODERS 2u
#define NVME_DECODERS 3u

/* An object on its way to or from the devices. */
struct nvme_job {
        TAILQ_ENTRY(nvme_job) queue_link; /* while requests remain to be submitted */
        LIST_ENTRY(nvme_job) read_link;   /* reads, until done */
        struct nvme *nvme;
        struct tier_write *write; /* one of the two */
        struct tier_read *read;
        const struct piece_set *pieces; /* NULL: the whole object */
        int result;
        uint32_t n_requests; /* in flight */
        bool is_submitted;   /* no request remains */

        struct space_extents extents;
        uint64_t claim;
        struct segment_header *header; /* aligned; from the pool or the heap */
        int32_t header_buffer;

        /* Where the next request begins. */
        const struct tier_segment *segments; /* the caller's, or the stored form */
        uint32_t n_segments;
        uint64_t offset; /* in the object: header, then bytes */
        uint32_t extent;
        uint64_t extent_offset;
        uint32_t segment;
        uint64_t segment_offset;
        uint64_t end;  /* header and bytes, rounded up; of pieces: behind the last */
        uint64_t stop; /* no request reaches beyond: there a gap between pieces begins */

        /* Writes: the catalog's value and the place to hand over. */
        void *entry;
        size_t entry_bytes;
        struct tier_place place;
        struct database_op op;

        /* The worker's: of reads, or whether a write was encoded. */
        int verdict;
        struct checksum_list checksums;
        uv_work_t work;
        struct down_work down_work; /* a write's */

        /* Encoded objects: what lies on the disk, between it and the caller's memory. */
        bool is_encoded;
        bool has_table; /* reads of pieces: the header is here, and says where they lie */
        uint8_t *stored;
        uint64_t stored_room;
        struct tier_segment stored_segment;
        struct encoding_table table;
        struct encoding_scratch *scratch; /* while a helper has the job */
        double helped_seconds;
};

TAILQ_HEAD(nvme_job_queue, nvme_job);

/* Memory that is kept for the next object: fresh pages cost as much as encoding them. */
#define NVME_SPARES_MAX 16u

struct nvme_spare {
        uint8_t *bytes;
        uint64_t room;
};

/* Jobs of encoded objects, one way. */
struct nvme_lane {
        struct nvme_job_queue waiting; /* for memory */
        struct nvme_job_queue ready;   /* for a helper */
        uint64_t bytes, max_bytes;     /* of memory; the most counts spares as well */
        uint64_t spare_bytes;          /* at most an eighth of max_bytes */
        uint64_t most_bytes;           /* that there ever were, with spares */
        uint32_t n_working, max_working, n_spares;
        struct nvme_spare spares[NVME_SPARES_MAX]; /* the oldest first */
};

struct nvme_request {
        struct io_request io;
        struct nvme_job *job;
        SLIST_ENTRY(nvme_request) link;
};

/* nvme_io.c: a job is queued, its requests are made, and it ends in on_job_done. */
struct nvme_job *nvme_job_new(struct nvme *nvme);
struct nvme_job *nvme_job_free(struct nvme_job *job);
void nvme_job_start(struct nvme_job *job);
void nvme_job_resume(struct nvme_job *job); /* an encoded read's: its memory is there */

/* nvme.c: where a job goes on. */
void nvme_job_done(struct nvme_job *job); /* all requests ended: job->result */
void nvme_encoded(struct nvme_job *job);  /* or not: job->is_encoded */
void nvme_verify(struct nvme_job *job);   /* on a helper */
void nvme_verified(struct nvme_job *job); /* job->verdict */

/* nvme_encoding.c: a write ends in nvme_encoded(), a read in nvme_verified(). */
void nvme_lane_init(struct nvme_lane *lane, uint32_t max_working, uint64_t max_bytes);
bool nvme_may_encode(const struct nvme *nvme, const struct tier_write *write);
void nvme_wait_for_memory(struct nvme_job *job);
void nvme_wait_for_helper(struct nvme_job *job);
void nvme_release_memory(struct nvme_job *job); /* has it none, nothing */
int nvme_decode(struct nvme_job *job);          /* on a helper: 0, TIER_E_CORRUPT or -ENOMEM */
void nvme_drop_scratches(struct nvme *nvme);    /* and spare memory */
