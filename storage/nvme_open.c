// SPDX-License-Identifier: Apache-2.0
/*
 * Opening and closing the tier, each step the mirror of the other: members and catalog
 * (nvme_pool.c), the pool record, the I/O engine with the header buffers, the sync timer.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/nvme_layouts.h"
#include "storage/nvme_tier.h"

#define KERNEL_BOOT_ID "/proc/sys/kernel/random/boot_id"

void nvme_notice(struct nvme *nvme, const char *format, ...)
{
        char text[512];
        va_list arguments;

        if (!nvme->on_notice)
                return;
        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        nvme->on_notice(nvme->user, text);
}

/* The 16 bytes behind the hex digits of a UUID. */
static int read_boot_id(const char *path, uint8_t ret_id[16])
{
        char text[64] = "";
        _cleanup_fd_ int fd = open(path ? path : KERNEL_BOOT_ID, O_RDONLY | O_CLOEXEC);
        size_t n = 0;

        if (fd < 0)
                return err_raise(-errno);
        if (read(fd, text, sizeof(text) - 1) < 0)
                return err_raise(-errno);
        for (const char *at = text; *at && n < 16; at++) {
                if (*at == '-')
                        continue;
                if (sscanf(at, "%2hhx", &ret_id[n++]) != 1)
                        return err_raise(-EINVAL);
                at++;
        }
        return n == 16 ? 0 : err_raise(-EINVAL);
}

/*
 * The record of a pool in use: not clean, with a fresh block of claims. An unclean record
 * of another run of the machine means that it went down under the pool: whatever was in
 * the catalog then may lack its last writes.
 */
static int begin_run(struct nvme *nvme, const struct nvme_options *options, struct why *why)
{
        struct catalog_pool *pool = &nvme->pool;
        uint8_t boot_id[16];
        int r = read_boot_id(options->boot_id_path, boot_id);

        if (r) {
                why_set(why, "the kernel's boot id cannot be read: %s", strerror(-r));
                return r;
        }
        if (!pool->clean && memcmp(pool->kernel_boot_id, boot_id, sizeof(boot_id)))
                pool->suspect_claim = pool->claim_limit;
        memcpy(pool->kernel_boot_id, boot_id, sizeof(boot_id));
        nvme->next_claim = pool->claim_limit;
        pool->claim_limit += NVME_CLAIM_BLOCK;
        pool->clean = 0;
        catalog_pool_seal(pool);
        return catalog_store_pool(nvme->catalog, pool, why);
}

static int make_requests(struct nvme *nvme)
{
        nvme->requests = calloc(nvme->queue_depth, sizeof(*nvme->requests));
        if (!nvme->requests)
                return err_raise(-ENOMEM);
        for (uint32_t i = 0; i < nvme->queue_depth; i++)
                SLIST_INSERT_HEAD(&nvme->free_requests, &nvme->requests[i], link);
        return 0;
}

static int make_headers(struct nvme *nvme)
{
        const size_t bytes = NVME_HEADER_BLOCKS * SEGMENT_HEADER_BYTES;

        if (posix_memalign((void **)&nvme->header_blocks, SEGMENT_HEADER_BYTES, bytes))
                return err_raise(-ENOMEM);
        memset(nvme->header_blocks, 0, bytes);
        for (uint32_t i = 0; i < NVME_HEADER_BLOCKS; i++)
                nvme->free_headers[nvme->n_free_headers++] = (uint16_t)i;
        nvme->header_buffer = IO_NO_BUFFER;
        if (!(nvme->force & NVME_FORCE_UNREGISTERED) &&
            io_add_buffer(nvme->io, nvme->header_blocks, bytes, &nvme->header_buffer))
                nvme->header_buffer = IO_NO_BUFFER;
        return 0;
}

static int open_io(struct nvme *nvme)
{
        int fds[NVME_MEMBERS_MAX];
        struct io_options options = {
                .fds = fds,
                .n_fds = nvme->n_members,
                .depth = nvme->queue_depth,
                .force_threads = nvme->force & NVME_FORCE_THREADS,
        };
        struct why fallback;
        int r;

        for (uint32_t i = 0; i < nvme->n_members; i++)
                fds[i] = nvme->members[i].fd;
        r = io_open(&nvme->io, nvme->loop, &options, &fallback);
        if (r)
                return r;
        if (fallback.text[0]) {
                nvme->degraded |= NVME_DEGRADED_THREADS;
                nvme_notice(nvme, "%s", fallback.text);
        }
        r = make_requests(nvme);
        return r ? r : make_headers(nvme);
}

static void note_members(struct nvme *nvme)
{
        for (uint32_t i = 0; i < nvme->n_members; i++) {
                const struct member *member = &nvme->members[i];

                if (member->fd < 0)
                        continue;
                if (!member->is_direct) {
                        if (!(nvme->degraded & NVME_DEGRADED_BUFFERED))
                                nvme_notice(nvme,
                                            "%s: no O_DIRECT, reads and writes go through "
                                            "the page cache",
                                            member->path);
                        nvme->degraded |= NVME_DEGRADED_BUFFERED;
                }
                if (!member->is_block && !member->is_preallocated) {
                        if (!(nvme->degraded & NVME_DEGRADED_SPARSE))
                                nvme_notice(nvme,
                                            "%s: the file system cannot preallocate, writes "
                                            "may find no space",
                                            member->path);
                        nvme->degraded |= NVME_DEGRADED_SPARSE;
                }
        }
}

static void free_nvme(struct nvme *nvme)
{
        for (uint32_t i = 0; i < NVME_MEMBERS_MAX; i++)
                member_close(&nvme->members[i]);
        space_deinit(&nvme->space);
        nvme_drop_scratches(nvme);
        free(nvme->memories);
        free(nvme->header_blocks);
        free(nvme->requests);
        free(nvme);
}

static const struct tier_ops ops = {
        .name = "nvme",
        .recover = nvme_recover,
        .add_memory = nvme_add_memory,
        .remove_memory = nvme_remove_memory,
        .footprint = nvme_footprint,
        .keep_layout = nvme_keep_layout,
        .forget_layout = nvme_forget_layout,
        .write = nvme_write,
        .read = nvme_read,
        .read_pieces = nvme_read_pieces,
        .forget = nvme_forget,
        .usage = nvme_usage,
        .sync = nvme_sync,
        .close = nvme_close,
};

static struct nvme *make_nvme(uv_loop_t *loop, const struct nvme_options *options)
{
        struct nvme *nvme = calloc(1, sizeof(*nvme));
        uint64_t encode_bytes;

        if (!nvme)
                return NULL;
        tier_init(&nvme->tier, &ops);
        nvme->loop = loop;
        nvme->sync_ms = options->sync_ms ? options->sync_ms : NVME_SYNC_MS_DEFAULT;
        nvme->queue_depth = options->queue_depth ? options->queue_depth : NVME_QUEUE_DEPTH_DEFAULT;
        nvme->force = options->force;
        nvme->on_notice = options->on_notice;
        nvme->user = options->user;
        space_init(&nvme->space, NVME_STRIPE_BYTES / SEGMENT_UNIT_BYTES);
        for (uint32_t i = 0; i < NVME_MEMBERS_MAX; i++)
                nvme->members[i].fd = -1;
        TAILQ_INIT(&nvme->reads);
        TAILQ_INIT(&nvme->writes);
        encode_bytes = options->encode_bytes ? options->encode_bytes : NVME_ENCODE_BYTES_DEFAULT;
        nvme_lane_init(&nvme->encoding, NVME_ENCODERS, encode_bytes);
        nvme_lane_init(&nvme->decoding, NVME_DECODERS, encode_bytes);
        LIST_INIT(&nvme->reads_in_flight);
        LIST_INIT(&nvme->forgets);
        SLIST_INIT(&nvme->free_requests);
        STAILQ_INIT(&nvme->sync_next);
        STAILQ_INIT(&nvme->sync_now);
        return nvme;
}

static int start(struct nvme *nvme, const struct nvme_options *options, struct why *why)
{
        int r = nvme_pool_assemble(nvme, options, why);

        if (!r)
                r = begin_run(nvme, options, why);
        if (!r)
                r = open_io(nvme);
        if (!r)
                r = uv_timer_init(nvme->loop, &nvme->sync_timer);
        return r;
}

int nvme_open(struct tier **ret_tier, uv_loop_t *loop, const struct nvme_options *options,
              struct why *why)
{
        struct nvme *nvme;
        int r;

        if (!options->n_paths || options->n_paths > NVME_MEMBERS_MAX) {
                why_set(why, "%u paths are given; 1 to %u are right", options->n_paths,
                        NVME_MEMBERS_MAX);
                return err_raise(-EINVAL);
        }
        nvme = make_nvme(loop, options);
        if (!nvme)
                return err_raise(-ENOMEM);
        r = start(nvme, options, why);
        if (r) {
                if (nvme->catalog)
                        database_close(nvme->catalog, NULL, NULL);
                if (nvme->io)
                        io_close(nvme->io, NULL, NULL);
                free_nvme(nvme);
                return r;
        }
        note_members(nvme);
        nvme->sync_timer.data = nvme;
        uv_timer_start(&nvme->sync_timer, nvme_on_sync_timer, nvme->sync_ms, nvme->sync_ms);
        *ret_tier = &nvme->tier;
        return 0;
}

/* ---- closing: sync, mark clean, then catalog, engine, timer, memory ---- */

static void on_timer_closed(uv_handle_t *handle)
{
        struct nvme *nvme = handle->data;
        void (*on_closed)(void *user) = nvme->on_closed;
        void *user = nvme->on_closed_user;

        free_nvme(nvme);
        on_closed(user);
}

static void on_io_closed(void *user)
{
        struct nvme *nvme = user;

        uv_close((uv_handle_t *)&nvme->sync_timer, on_timer_closed);
}

static void on_catalog_closed(void *user)
{
        struct nvme *nvme = user;

        nvme->catalog = NULL;
        nvme_drop_memories(nvme);
        io_close(nvme->io, on_io_closed, nvme);
}

static void on_marked_clean(struct database_op *op, int result)
{
        struct nvme *nvme = (struct nvme *)(void *)((char *)op - offsetof(struct nvme, sync_op));

        database_close(nvme->catalog, on_catalog_closed, nvme);
}

static void on_last_sync(void *user, int result)
{
        struct nvme *nvme = user;
        struct catalog_pool *record = result ? NULL : malloc(sizeof(*record));

        /* What could not be synced is not clean. */
        if (!record) {
                database_close(nvme->catalog, on_catalog_closed, nvme);
                return;
        }
        *record = nvme->pool;
        record->clean = 1;
        record->claim_limit = nvme->next_claim;
        catalog_pool_seal(record);
        nvme->sync_op.on_done = on_marked_clean;
        catalog_put_pool(nvme->catalog, &nvme->sync_op, record);
}

void nvme_close(struct tier *tier, void (*on_closed)(void *user), void *user)
{
        struct nvme *nvme = (struct nvme *)tier;

        nvme->on_closed = on_closed;
        nvme->on_closed_user = user;
        uv_timer_stop(&nvme->sync_timer);
        nvme_sync(tier, on_last_sync, nvme);
}
