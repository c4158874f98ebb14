// SPDX-License-Identifier: Apache-2.0
/* libcurl says which sockets and which time it waits for; the loop tells it when they come. */
#include <stdlib.h>

#include "storage/s3_pool.h"

struct s3_socket {
        uv_poll_t poll;
        struct s3_pool *pool;
        curl_socket_t fd;
};

/* Callbacks may start new requests: libcurl must not be inside one of its own then. */
static void end_requests(struct s3_pool *pool)
{
        CURLMsg *message;
        int n_left;

        while ((message = curl_multi_info_read(pool->multi, &n_left))) {
                struct s3_request *request;
                CURLcode code = message->data.result;

                if (message->msg != CURLMSG_DONE)
                        continue;
                curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&request);
                s3_request_done(request, code);
                if (!pool->multi)
                        return; /* it was the last one of a pool that closes */
        }
}

static void act(struct s3_pool *pool, curl_socket_t fd, int events)
{
        int n_running;

        curl_multi_socket_action(pool->multi, fd, events, &n_running);
        end_requests(pool);
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
        struct s3_socket *socket = poll->data;
        int flags = status < 0 ? CURL_CSELECT_ERR : 0;

        flags |= events & UV_READABLE ? CURL_CSELECT_IN : 0;
        flags |= events & UV_WRITABLE ? CURL_CSELECT_OUT : 0;
        act(socket->pool, socket->fd, flags);
}

static void on_timer(uv_timer_t *timer)
{
        act(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static void on_socket_closed(uv_handle_t *handle)
{
        struct s3_socket *socket = handle->data;

        handle->data = socket->pool;
        s3_pool_handle_closed(handle);
        free(socket);
}

static struct s3_socket *add_socket(struct s3_pool *pool, curl_socket_t fd)
{
        struct s3_socket *socket = calloc(1, sizeof(*socket));

        if (!socket || uv_poll_init_socket(pool->loop, &socket->poll, fd) < 0) {
                free(socket);
                return NULL;
        }
        socket->pool = pool;
        socket->fd = fd;
        socket->poll.data = socket;
        pool->n_handles++;
        curl_multi_assign(pool->multi, fd, socket);
        return socket;
}

/* -1: libcurl fails what it wanted the socket for. */
static int on_interest(CURL *easy, curl_socket_t fd, int what, void *user, void *socket_user)
{
        struct s3_pool *pool = user;
        struct s3_socket *socket = socket_user;
        int events =
                (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);

        if (what == CURL_POLL_REMOVE) {
                if (socket)
                        uv_close((uv_handle_t *)&socket->poll, on_socket_closed);
                curl_multi_assign(pool->multi, fd, NULL);
                return 0;
        }
        if (!socket)
                socket = add_socket(pool, fd);
        return socket && !uv_poll_start(&socket->poll, events, on_socket) ? 0 : -1;
}

static int on_time(CURLM *multi, long ms, void *user)
{
        struct s3_pool *pool = user;

        if (ms < 0)
                uv_timer_stop(&pool->timer);
        else
                uv_timer_start(&pool->timer, on_timer, (uint64_t)ms, 0);
        return 0;
}

int s3_loop_start(struct s3_pool *pool)
{
        pool->multi = curl_multi_init();
        if (!pool->multi)
                return err_raise(-ENOMEM);
        curl_multi_setopt(pool->multi, CURLMOPT_SOCKETFUNCTION, on_interest);
        curl_multi_setopt(pool->multi, CURLMOPT_SOCKETDATA, pool);
        curl_multi_setopt(pool->multi, CURLMOPT_TIMERFUNCTION, on_time);
        curl_multi_setopt(pool->multi, CURLMOPT_TIMERDATA, pool);
        return 0;
}
