// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/uring.h"

#define RETRY_MS 1 /* the kernel was short of memory for a submission */

struct uring {
        struct io_uring ring;
        uv_poll_t poll;
        uv_prepare_t prepare;
        uv_timer_t retry;
        int event_fd;
        int *fds;         /* when files could not be registered */
        bool has_buffers; /* the sparse table exists */
        uint8_t *slots;   /* 1: in use */
        int n_handles;
        void (*on_closed)(void *user);
        void *on_closed_user;
};

static void reap(struct uring *ring)
{
        struct io_uring_cqe *cqe;

        while (!io_uring_peek_cqe(&ring->ring, &cqe)) {
                struct io_request *request = io_uring_cqe_get_data(cqe);
                int result = cqe->res;

                io_uring_cqe_seen(&ring->ring, cqe);
                io_complete(request, result);
        }
}

static void on_retry(uv_timer_t *timer)
{
        (void)timer; /* the loop woke up: on_prepare tries again */
}

static void flush(struct uring *ring)
{
        if (!io_uring_sq_ready(&ring->ring))
                return;
        /* What the kernel did not take stays in the queue. */
        if (io_uring_submit(&ring->ring) < 0 || io_uring_sq_ready(&ring->ring))
                uv_timer_start(&ring->retry, on_retry, RETRY_MS, 0);
}

static void on_prepare(uv_prepare_t *prepare)
{
        flush(prepare->data);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
        struct uring *ring = poll->data;
        uint64_t count;

        /* Emptied before reaping: a completion in between rings again. */
        if (read(ring->event_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
                assert(errno == EINTR);
        reap(ring);
        flush(ring);
}

static void free_ring(struct uring *ring)
{
        io_uring_queue_exit(&ring->ring);
        if (ring->event_fd >= 0)
                close(ring->event_fd);
        free(ring->fds);
        free(ring->slots);
        free(ring);
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct uring *ring = handle->data;
        void (*on_closed)(void *user) = ring->on_closed;
        void *user = ring->on_closed_user;

        if (--ring->n_handles)
                return;
        free_ring(ring);
        if (on_closed)
                on_closed(user);
}

static int init_ring(struct io_uring *ring, uint32_t depth)
{
        int r = io_uring_queue_init(depth, ring, IORING_SETUP_COOP_TASKRUN);

        if (r == -EINVAL)
                r = io_uring_queue_init(depth, ring, 0);
        return r;
}

static int register_files(struct uring *ring, const struct io_options *options)
{
        if (!io_uring_register_files(&ring->ring, options->fds, options->n_fds))
                return 0;
        ring->fds = malloc(options->n_fds * sizeof(*ring->fds));
        if (!ring->fds)
                return err_raise(-ENOMEM);
        memcpy(ring->fds, options->fds, options->n_fds * sizeof(*ring->fds));
        return 0;
}

static int set_up(struct uring *ring, const struct io_options *options)
{
        int r = register_files(ring, options);

        if (r)
                return r;
        ring->slots = calloc(URING_BUFFERS_MAX, 1);
        if (!ring->slots)
                return err_raise(-ENOMEM);
        ring->has_buffers = !io_uring_register_buffers_sparse(&ring->ring, URING_BUFFERS_MAX);
        ring->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (ring->event_fd < 0)
                return err_raise(-errno);
        return io_uring_register_eventfd(&ring->ring, ring->event_fd);
}

int uring_open(struct uring **ret_ring, uv_loop_t *loop, const struct io_options *options)
{
        struct uring *ring = calloc(1, sizeof(*ring));
        int r;

        if (!ring)
                return err_raise(-ENOMEM);
        ring->event_fd = -1;
        r = init_ring(&ring->ring, options->depth);
        if (r < 0) {
                free(ring);
                return r;
        }
        r = set_up(ring, options);
        if (!r)
                r = uv_poll_init(loop, &ring->poll, ring->event_fd);
        if (r < 0) {
                free_ring(ring);
                return err_raise(r);
        }
        uv_timer_init(loop, &ring->retry);
        uv_prepare_init(loop, &ring->prepare);
        ring->n_handles = 3;
        ring->poll.data = ring->retry.data = ring->prepare.data = ring;
        uv_prepare_start(&ring->prepare, on_prepare);
        r = uv_poll_start(&ring->poll, UV_READABLE, on_event);
        if (r < 0) {
                uring_close(ring, NULL, NULL);
                return err_raise(r);
        }
        *ret_ring = ring;
        return 0;
}

void uring_close(struct uring *ring, void (*on_closed)(void *user), void *user)
{
        ring->on_closed = on_closed;
        ring->on_closed_user = user;
        uv_close((uv_handle_t *)&ring->poll, on_handle_closed);
        uv_close((uv_handle_t *)&ring->prepare, on_handle_closed);
        uv_close((uv_handle_t *)&ring->retry, on_handle_closed);
}

void uring_submit(struct uring *ring, struct io_request *request)
{
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);
        uint8_t *bytes = request->bytes + request->n_done;
        uint64_t offset = request->offset + request->n_done;
        uint32_t length = request->length - request->n_done;
        int fd = ring->fds ? ring->fds[request->file] : (int)request->file;

        /* The ring has an entry for each request that may be in flight. */
        assert(sqe);
        if (request->buffer != IO_NO_BUFFER && request->is_write)
                io_uring_prep_write_fixed(sqe, fd, bytes, length, offset, request->buffer);
        else if (request->buffer != IO_NO_BUFFER)
                io_uring_prep_read_fixed(sqe, fd, bytes, length, offset, request->buffer);
        else if (request->is_write)
                io_uring_prep_write(sqe, fd, bytes, length, offset);
        else
                io_uring_prep_read(sqe, fd, bytes, length, offset);
        if (!ring->fds)
                sqe->flags |= IOSQE_FIXED_FILE;
        io_uring_sqe_set_data(sqe, request);
}

int uring_add_buffer(struct uring *ring, void *base, uint64_t length, int32_t *ret_slot)
{
        struct iovec iovec = {.iov_base = base, .iov_len = length};
        uint32_t slot = 0;
        __u64 tag = 0;
        int r;

        if (!ring->has_buffers)
                return -EOPNOTSUPP;
        while (slot < URING_BUFFERS_MAX && ring->slots[slot])
                slot++;
        if (slot == URING_BUFFERS_MAX)
                return -ENOSPC;
        r = io_uring_register_buffers_update_tag(&ring->ring, slot, &iovec, &tag, 1);
        if (r < 0)
                return r;
        ring->slots[slot] = 1;
        *ret_slot = (int32_t)slot;
        return 0;
}

void uring_remove_buffer(struct uring *ring, int32_t slot)
{
        struct iovec nothing = {0};
        __u64 tag = 0;

        /* Requests in flight keep the old entry alive inside the kernel. */
        if (io_uring_register_buffers_update_tag(&ring->ring, (unsigned)slot, &nothing, &tag, 1) >=
            0)
                ring->slots[slot] = 0;
}
