// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "storage/io.h"
#include "storage/uring.h"

/* Where io_uring is forbidden it is by one of these two, and containers forbid it by default. */
#define REMEDY                                                                                     \
        "; a container needs kvtier's seccomp profile (/usr/share/kvtier/seccomp.json), a host "   \
        "kernel.io_uring_disabled=0"

struct io {
        uv_loop_t *loop;
        struct uring *uring; /* NULL: the thread pool is used */
        int *fds;
        void (*on_closed)(void *user);
        void *on_closed_user;
        uv_timer_t closer; /* thread pool: on_closed must not be called from inside io_close() */
};

static void on_fs(uv_fs_t *fs)
{
        struct io_request *request = fs->data;
        int64_t result = fs->result;

        uv_fs_req_cleanup(fs);
        io_complete(request, result);
}

static void submit_to_threads(struct io *io, struct io_request *request)
{
        uv_buf_t buf = uv_buf_init((char *)request->bytes + request->n_done,
                                   request->length - request->n_done);
        int64_t offset = (int64_t)(request->offset + request->n_done);
        int fd = io->fds[request->file];

        /* With a callback these calls only queue; they fail for bad arguments alone. */
        request->fs.data = request;
        if (request->is_write)
                uv_fs_write(io->loop, &request->fs, fd, &buf, 1, offset, on_fs);
        else
                uv_fs_read(io->loop, &request->fs, fd, &buf, 1, offset, on_fs);
}

static void submit_rest(struct io *io, struct io_request *request)
{
        if (io->uring)
                uring_submit(io->uring, request);
        else
                submit_to_threads(io, request);
}

void io_submit(struct io *io, struct io_request *request)
{
        request->io = io;
        request->n_done = 0;
        submit_rest(io, request);
}

void io_complete(struct io_request *request, int64_t result)
{
        if (result == -EINTR || result == -EAGAIN) {
                submit_rest(request->io, request);
                return;
        }
        if (result < 0) {
                request->on_done(request, (int)result);
                return;
        }
        request->n_done += (uint32_t)result;
        if (request->n_done >= request->length)
                request->on_done(request, 0);
        else if (!result)
                request->on_done(request, -EIO); /* the file ends here */
        else
                submit_rest(request->io, request);
}

static int open_threads(struct io *io, const struct io_options *options)
{
        io->fds = malloc(options->n_fds * sizeof(*io->fds));
        if (!io->fds)
                return err_raise(-ENOMEM);
        memcpy(io->fds, options->fds, options->n_fds * sizeof(*io->fds));
        return uv_timer_init(io->loop, &io->closer);
}

int io_open(struct io **ret_io, uv_loop_t *loop, const struct io_options *options,
            struct why *ret_fallback)
{
        struct io *io = calloc(1, sizeof(*io));
        int r = -ENOSYS;

        if (!io)
                return err_raise(-ENOMEM);
        io->loop = loop;
        ret_fallback->text[0] = '\0';
        if (!options->force_threads)
                r = uring_open(&io->uring, loop, options);
        if (r < 0) {
                why_set(ret_fallback,
                        "io_uring is not available (%s): reads and writes go "
                        "through a thread pool%s",
                        strerror(-r), options->force_threads ? "" : REMEDY);
                r = open_threads(io, options);
        }
        if (r < 0) {
                free(io);
                return r;
        }
        *ret_io = io;
        return 0;
}

static void finish_close(struct io *io)
{
        void (*on_closed)(void *user) = io->on_closed;
        void *user = io->on_closed_user;

        free(io->fds);
        free(io);
        if (on_closed)
                on_closed(user);
}

static void on_uring_closed(void *user)
{
        finish_close(user);
}

static void on_closer_closed(uv_handle_t *handle)
{
        finish_close(handle->data);
}

void io_close(struct io *io, void (*on_closed)(void *user), void *user)
{
        io->on_closed = on_closed;
        io->on_closed_user = user;
        if (io->uring) {
                uring_close(io->uring, on_uring_closed, io);
                return;
        }
        io->closer.data = io;
        uv_close((uv_handle_t *)&io->closer, on_closer_closed);
}

int io_add_buffer(struct io *io, void *base, uint64_t length, int32_t *ret_slot)
{
        return io->uring ? uring_add_buffer(io->uring, base, length, ret_slot) : -EOPNOTSUPP;
}

void io_remove_buffer(struct io *io, int32_t slot)
{
        if (io->uring)
                uring_remove_buffer(io->uring, slot);
}
