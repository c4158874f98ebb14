// SPDX-License-Identifier: Apache-2.0
/*
 * The state of the NVMe tier, shared by its files: nvme.c (operations), nvme_io.c (queues
 * and requests), nvme_open.c (opening and closing), nvme_recover.c. Nobody else includes it.
 */
#pragma once

#include <sys/queue.h>

#include <uv.h>

#include "storage/catalog.h"
#include "storage/io.h"
#include "storage/member.h"
#include "storage/nvme.h"
#include "storage/nvme_job.h"
#include "storage/space.h"
#include "storage/tier.h"

#define NVME_STRIPE_BYTES    (8u << 20)
#define NVME_REQUEST_BYTES   (2u << 20) /* of one request to a device */
#define NVME_CLAIM_BLOCK     (1u << 20) /* claims reserved at a time */
#define NVME_HEADER_BLOCKS   256u       /* registered buffers for headers */
#define NVME_WRITES_MAX      256u       /* objects being written; then TIER_E_PAUSED */
#define NVME_CATALOG_OPS_MAX 8192u      /* not acknowledged yet; then TIER_E_PAUSED */
#define NVME_READS_IN_ROW    4u         /* requests, before a waiting write has its turn */

/* Registered memory: one slot for each IO_BUFFER_BYTES_MAX of it. */
struct nvme_memory {
        uint32_t arena_id;
        uint8_t *base;
        uint64_t length;
        uint32_t n_slots;
        int32_t *slots; /* NULL: not registered */
};

struct nvme_forget {
        struct database_op op;
        struct nvme *nvme;
        struct tier_place place;
        int result;
        LIST_ENTRY(nvme_forget) link; /* waiting for reads in flight */
};

_Static_assert(sizeof(struct nvme_forget) <= sizeof(((struct tier_forget *)0)->tier_private),
               "a forget lives in the caller's request");

STAILQ_HEAD(nvme_sync_queue, nvme_sync_waiter);

enum nvme_degraded {
        NVME_DEGRADED_THREADS = 1u << 0,
        NVME_DEGRADED_BUFFERED = 1u << 1,
        NVME_DEGRADED_UNREGISTERED = 1u << 2,
        NVME_DEGRADED_MEMBER = 1u << 3,
        NVME_DEGRADED_CATALOG = 1u << 4,
        NVME_DEGRADED_SPARSE = 1u << 5,
        NVME_DEGRADED_SYNC = 1u << 6,
};

struct nvme {
        struct tier tier; /* first */
        uv_loop_t *loop;
        uint32_t sync_ms, queue_depth, force;
        void (*on_notice)(void *user, const char *text);
        void *user;

        struct member members[NVME_MEMBERS_MAX]; /* by index in the pool */
        uint32_t n_members;
        struct space space; /* a worker's while is_surveying */
        bool is_surveying;
        struct io *io;
        struct database *catalog;
        struct catalog_pool pool;
        uint64_t next_claim;
        bool is_reserving; /* claims */
        struct database_op reserve_op;

        struct nvme_job_queue reads, writes; /* with requests to submit */
        LIST_HEAD(, nvme_job) reads_in_flight;
        LIST_HEAD(, nvme_forget) forgets; /* deleted, waiting for reads */
        struct nvme_request *requests;    /* queue_depth of them */
        SLIST_HEAD(, nvme_request) free_requests;
        uint32_t n_reads_in_row;
        bool is_paused; /* on_ready is owed */

        struct nvme_lane encoding, decoding;
        struct encoding_scratch *scratches[NVME_ENCODERS + NVME_DECODERS]; /* nobody has them */
        uint32_t n_scratches;
        struct tier_encoding_usage encoded, decoded;

        uint8_t *header_blocks;
        int32_t header_buffer;
        uint32_t n_free_headers;
        uint16_t free_headers[NVME_HEADER_BLOCKS];

        struct nvme_memory *memories; /* sorted by arena id */
        uint32_t n_memories;

        uv_timer_t sync_timer;
        uv_work_t sync_work;
        int sync_result;
        bool is_dirty, is_syncing, is_closing;
        struct database_op sync_op;
        struct nvme_sync_queue sync_next, sync_now;
        void (*on_closed)(void *user);
        void *on_closed_user;

        uint32_t degraded;     /* enum nvme_degraded */
        uint32_t n_layouts;    /* kept in the catalog */
        uint64_t layout_bytes; /* of their encodings */
        uint64_t payload_bytes, n_objects, n_writes, n_reads, queued_bytes;
        uint64_t read_bytes, written_bytes, io_errors, corrupt, stale, dropped;
};

/*
 * nvme_pool.c: from what lies at the paths and in the catalog, decides which pool this is
 * and which member each path is; then sizes the members and writes what has changed.
 */
int nvme_pool_assemble(struct nvme *nvme, const struct nvme_options *options, struct why *why);

/* nvme_open.c */
void nvme_notice(struct nvme *nvme, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nvme_close(struct tier *tier, void (*on_closed)(void *user), void *user);

/* nvme_io.c */
int nvme_add_memory(struct tier *tier, uint32_t arena_id, void *base, uint64_t length);
void nvme_remove_memory(struct tier *tier, uint32_t arena_id);
void nvme_drop_memories(struct nvme *nvme);

/* nvme.c */
void nvme_usage(struct tier *tier, struct tier_usage *ret_usage);
uint64_t nvme_footprint(struct tier *tier, uint64_t raw_bytes, uint32_t n_covers);
int nvme_write(struct tier *tier, struct tier_write *write);
int nvme_read(struct tier *tier, struct tier_read *read);
int nvme_read_pieces(struct tier *tier, struct tier_read *read);
void nvme_forget(struct tier *tier, struct tier_place place, const struct object_key *key,
                 bool sync, struct tier_forget *forget);

/* nvme_sync.c */
void nvme_sync(struct tier *tier, void (*on_synced)(void *user, int result), void *user);
void nvme_sync_start(struct nvme *nvme);
void nvme_on_sync_timer(uv_timer_t *timer);
int nvme_take_claim(struct nvme *nvme, uint64_t *ret_claim);

/* nvme_recover.c */
void nvme_recover(struct tier *tier,
                  void (*on_object)(void *user, const struct tier_object *object,
                                    struct tier_place place),
                  void (*on_end)(void *user, int result), void *user);
