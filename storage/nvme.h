// SPDX-License-Identifier: Apache-2.0
/*
 * The NVMe tier: objects in place by extent on files or block devices (members of one
 * pool), their catalog in RocksDB.
 *
 * An object is written as header and bytes, then entered into the catalog, then handed
 * over; a read is verified against its header before it is handed over. Space comes back
 * only after its entry's delete is in the write-ahead log and no read of it is in flight.
 * Everything runs on the loop thread; I/O is asynchronous, checksums are verified on
 * workers, the catalog has its helper thread. See storage/README.md for formats and the
 * crash argument.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/error.h"
#include "storage/tier.h"

#define NVME_MEMBERS_MAX          64u
#define NVME_SYNC_MS_DEFAULT      1000u
#define NVME_QUEUE_DEPTH_DEFAULT  32u
#define NVME_ENCODE_BYTES_DEFAULT (256ull << 20)
#define NVME_MEMBER_BYTES_MIN     (4ull << 20)

/* For tests: behave as on a machine that lacks something. */
enum nvme_force {
        NVME_FORCE_BUFFERED = 1u << 0,     /* no O_DIRECT */
        NVME_FORCE_THREADS = 1u << 1,      /* no io_uring */
        NVME_FORCE_UNREGISTERED = 1u << 2, /* no registered buffers (memlock limit) */
};

struct nvme_options {
        const char *const *paths; /* files, folders or block devices: the members */
        uint32_t n_paths;
        uint64_t bytes;           /* of all members together, superblocks and headers
                                     included: never exceeded */
        const char *catalog_path; /* folder, created when absent; its parent exists */
        uint32_t sync_ms;         /* 0: the default */
        uint32_t queue_depth;     /* requests in flight at the devices; 0: the default */
        uint64_t encode_bytes;    /* memory for stored forms of encoded objects, each way; what is
                                     larger is stored raw; 0: the default */
        bool format;              /* overwrite whatever the members and the catalog hold */
        uint32_t force;           /* enum nvme_force */
        const char *boot_id_path; /* NULL: that of the kernel */
        /* Something that a person should know, once each; may be NULL. */
        void (*on_notice)(void *user, const char *text);
        void *user;
};

/*
 * Would nvme_open() succeed? Says in @why what is wrong and what would be right. Changes
 * nothing on the disk. 0 or a negative errno.
 */
int nvme_check(const struct nvme_options *options, struct why *why);

/*
 * Opens the pool, makes a new one when everything is empty, and fills @ret_tier. Blocks
 * (start-up). 0 or a negative errno with @why filled; after a failure the loop must still
 * be run until it ends. The caller goes on with recover().
 */
int nvme_open(struct tier **ret_tier, uv_loop_t *loop, const struct nvme_options *options,
              struct why *why);
