// SPDX-License-Identifier: Apache-2.0
/*
 * Reads and writes of runs of bytes on the members of a pool, completions on the loop:
 * through io_uring (uring.h), or through libuv's thread pool where io_uring is forbidden.
 *
 * A short transfer is continued here until it is whole, makes no progress, or fails. The
 * caller keeps at most `depth` requests in flight. Loop thread only; on_done is never
 * called from inside io_submit().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/error.h"

#define IO_NO_BUFFER (-1) /* memory that is not registered */

struct io;
struct uring;

/* Embedded by the caller; the engine's from io_submit() until @on_done. */
struct io_request {
        uint32_t file; /* index in io_options.fds */
        bool is_write;
        int32_t buffer; /* slot of the registered memory that @bytes lies in, or IO_NO_BUFFER */
        uint32_t length;
        uint64_t offset;
        uint8_t *bytes;
        void (*on_done)(struct io_request *request, int result); /* 0 or a negative errno */

        struct io *io;
        uint32_t n_done; /* bytes transferred so far */
        uv_fs_t fs;      /* thread pool only */
};

struct io_options {
        const int *fds; /* -1: a member that is missing */
        uint32_t n_fds;
        uint32_t depth;
        bool force_threads;
};

/*
 * 0 or a negative errno. When io_uring cannot be used, @ret_fallback (not NULL) says why,
 * else it is empty.
 */
int io_open(struct io **ret_io, uv_loop_t *loop, const struct io_options *options,
            struct why *ret_fallback);

/* No request may be in flight. @on_closed may be NULL. */
void io_close(struct io *io, void (*on_closed)(void *user), void *user);

/* Reaches the kernel with all others of this turn of the loop, before the loop sleeps. */
void io_submit(struct io *io, struct io_request *request);

/*
 * Registers memory (at most IO_BUFFER_BYTES_MAX) and returns its slot; on failure the
 * memory is used all the same, with IO_NO_BUFFER.
 */
#define IO_BUFFER_BYTES_MAX (1ull << 30)
int io_add_buffer(struct io *io, void *base, uint64_t length, int32_t *ret_slot);
void io_remove_buffer(struct io *io, int32_t slot);

/* For engines: @result is the number of bytes or a negative errno of one attempt. */
void io_complete(struct io_request *request, int64_t result);
