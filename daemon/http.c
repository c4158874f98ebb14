// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <microhttpd.h>

#include "base/cleanup.h"
#include "daemon/http.h"
#include "daemon/metrics.h"

#define CONNECTIONS_MAX      64u
#define CONNECTION_BYTES_MAX 16384u
#define IDLE_SECONDS         10u

struct http {
        struct MHD_Daemon *server;
        uv_poll_t poll;   /* the server's epoll fd */
        uv_timer_t timer; /* the server's next time-out */
        unsigned n_open_handles;
        struct metrics *metrics;
        void (*refresh)(void *user, struct metrics *metrics);
        int (*is_ready)(void *user, struct why *why);
        char *(*document)(void *user, enum status_document which);
        void *user;
        void (*on_closed)(void *user);
        void *on_closed_user;
        uint16_t port;
        bool is_loopback;
};

static enum MHD_Result queue(struct MHD_Connection *connection, unsigned status,
                             const char *content_type, struct MHD_Response *response)
{
        enum MHD_Result result;

        /* NULL: out of memory, and MHD_NO ends the connection. */
        if (!response)
                return MHD_NO;
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
        /* Pages of others neither guess at what this is nor embed it. */
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
        MHD_add_response_header(response, "Cross-Origin-Resource-Policy", "same-origin");
        if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
                MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
        result = MHD_queue_response(connection, status, response);
        MHD_destroy_response(response);
        return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status,
                                   const char *text)
{
        return queue(connection, status, "text/plain; charset=utf-8",
                     MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
                                                     MHD_RESPMEM_MUST_COPY));
}

static enum MHD_Result answer_metrics(struct http *http, struct MHD_Connection *connection)
{
        size_t length;
        char *text;

        if (metrics_render(http->metrics, http->refresh, http->user, &text, &length))
                return MHD_NO;
        return queue(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                     MHD_create_response_from_buffer(length, text, MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result answer_ready(struct http *http, struct MHD_Connection *connection)
{
        char text[sizeof(struct why) + 16];
        struct why why = {"starting"};

        if (http->is_ready(http->user, &why))
                return answer_text(connection, MHD_HTTP_OK, "ready\n");
        snprintf(text, sizeof(text), "not ready: %s\n", why.text);
        return answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

static enum MHD_Result answer_page(struct MHD_Connection *connection)
{
        struct MHD_Response *response = MHD_create_response_from_buffer(
                status_page.length, (void *)(uintptr_t)status_page.html, MHD_RESPMEM_PERSISTENT);

        if (!response)
                return MHD_NO;
        MHD_add_response_header(response, "Content-Security-Policy", status_page.policy);
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
        return queue(connection, MHD_HTTP_OK, "text/html; charset=utf-8", response);
}

static bool is_loopback(const struct sockaddr_storage *address)
{
        if (address->ss_family == AF_INET6)
                return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
}

/*
 * Whether the server was asked for as this machine. A page of somebody else whose name has
 * come to mean 127.0.0.1 is, to the browser, of the same origin; its name gives it away.
 */
static bool is_asked_as_local(struct MHD_Connection *connection)
{
        const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
        size_t length = host ? strcspn(host, ":") : 0;

        return !host || *host == '[' || !host[strspn(host, "0123456789.:")] ||
               (length == strlen("localhost") && !strncasecmp(host, "localhost", length));
}

static enum MHD_Result answer_document(struct http *http, struct MHD_Connection *connection,
                                       enum status_document which)
{
        char *text;

        if (http->is_loopback && !is_asked_as_local(connection))
                return answer_text(connection, MHD_HTTP_FORBIDDEN,
                                   "ask for localhost, or for the address\n");
        text = http->document(http->user, which);
        if (!text)
                return answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "stopping\n");
        return queue(connection, MHD_HTTP_OK, "application/json",
                     MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **request_state)
{
        struct http *http = user;

        http->metrics->http_requests_total++;
        if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
                return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD only\n");
        if (!strcmp(url, "/metrics"))
                return answer_metrics(http, connection);
        if (!strcmp(url, "/healthz"))
                return answer_text(connection, MHD_HTTP_OK, "ok\n");
        if (!strcmp(url, "/readyz"))
                return answer_ready(http, connection);
        if (!strcmp(url, "/"))
                return answer_page(connection);
        if (!strcmp(url, "/status.json"))
                return answer_document(http, connection, STATUS_SUMMARY);
        if (!strcmp(url, "/details.json"))
                return answer_document(http, connection, STATUS_DETAILS);
        if (!strcmp(url, "/history.json"))
                return answer_document(http, connection, STATUS_HISTORY);
        return answer_text(connection, MHD_HTTP_NOT_FOUND,
                           "kvtierd serves /, /status.json, /metrics, /healthz and /readyz here\n");
}

static void run_server(struct http *http);

static void on_timer(uv_timer_t *timer)
{
        run_server(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
        run_server(poll->data);
}

static unsigned n_connections(const struct http *http)
{
        return MHD_get_daemon_info(http->server, MHD_DAEMON_INFO_CURRENT_CONNECTIONS)
                ->num_connections;
}

/* Lets the server do what it can without waiting, and asks when it wants to be called. */
static void run_server(struct http *http)
{
        MHD_UNSIGNED_LONG_LONG timeout_ms;
        unsigned before;

        /*
         * At its limit of connections the server stops looking at the listening socket, and
         * looks again only in the run after the one that ended a connection.
         */
        do {
                before = n_connections(http);
                MHD_run(http->server);
        } while (n_connections(http) < before);

        if (MHD_get_timeout(http->server, &timeout_ms) == MHD_YES)
                uv_timer_start(&http->timer, on_timer, timeout_ms, 0);
        else
                uv_timer_stop(&http->timer);
}

static int listen_socket(const struct sockaddr_storage *address, uint16_t *ret_port,
                         struct why *why)
{
        socklen_t length = address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                          : sizeof(struct sockaddr_in);
        struct sockaddr_storage bound = *address;
        _cleanup_fd_ int fd = -1;
        int yes = 1, r;

        fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) ||
            bind(fd, (const struct sockaddr *)address, length) || listen(fd, CONNECTIONS_MAX) ||
            getsockname(fd, (struct sockaddr *)&bound, &length)) {
                r = err_raise(-errno);
                why_set(why,
                        "metrics.listen: %s: name another address of this machine, port 0 for any "
                        "free port, or off",
                        strerror(-r));
                return r;
        }
        /* The port is at the same place in both families. */
        *ret_port = ntohs(((struct sockaddr_in *)&bound)->sin_port);
        return steal_fd(&fd);
}

/* Paths here have nothing to decode: what is escaped, a zero byte at worst, is none of them. */
static size_t keep_escapes(void *user, struct MHD_Connection *connection, char *text)
{
        return strlen(text);
}

static int start_server(struct http *http, int fd, unsigned idle_seconds)
{
        http->server = MHD_start_daemon(
                MHD_USE_EPOLL, 0, NULL, NULL, on_request, http, MHD_OPTION_LISTEN_SOCKET, fd,
                MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                idle_seconds ? idle_seconds : IDLE_SECONDS, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES_MAX,
                MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
        return http->server ? 0 : err_raise(-ENOMEM);
}

static int start_polling(struct http *http, uv_loop_t *loop)
{
        const union MHD_DaemonInfo *info =
                MHD_get_daemon_info(http->server, MHD_DAEMON_INFO_EPOLL_FD);
        int r;

        if (!info)
                return err_raise(-ENOTSUP);
        r = uv_poll_init(loop, &http->poll, info->epoll_fd);
        if (r)
                return err_raise(r);
        uv_timer_init(loop, &http->timer);
        http->poll.data = http;
        http->timer.data = http;
        http->n_open_handles = 2;
        /* Cannot fail for a fd that was just accepted. */
        uv_poll_start(&http->poll, UV_READABLE, on_poll);
        return 0;
}

int http_new(struct http **ret_http, uv_loop_t *loop, const struct http_options *options,
             struct why *why)
{
        _cleanup_free_ struct http *http = calloc(1, sizeof(*http));
        int fd, r;

        if (!http)
                return err_raise(-ENOMEM);
        http->metrics = options->metrics;
        http->refresh = options->refresh;
        http->is_ready = options->is_ready;
        http->document = options->document;
        http->is_loopback = is_loopback(options->listen);
        http->user = options->user;

        fd = listen_socket(options->listen, &http->port, why);
        if (fd < 0)
                return fd;
        /* From here on the socket is the server's. */
        r = start_server(http, fd, options->idle_seconds);
        if (r) {
                why_set(why, "metrics.listen: the HTTP server does not start");
                return r;
        }
        r = start_polling(http, loop);
        if (r) {
                MHD_stop_daemon(http->server);
                why_set(why, "metrics.listen: %s", strerror(-r));
                return r;
        }
        *ret_http = steal_ptr(http);
        return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct http *http = handle->data;

        if (--http->n_open_handles)
                return;
        /* The epoll fd is the server's: it goes after the poll on it. */
        MHD_stop_daemon(http->server);
        if (http->on_closed)
                http->on_closed(http->on_closed_user);
        free(http);
}

void http_close(struct http *http, void (*on_closed)(void *user), void *user)
{
        if (!http) {
                if (on_closed)
                        on_closed(user);
                return;
        }
        http->on_closed = on_closed;
        http->on_closed_user = user;
        uv_close((uv_handle_t *)&http->poll, on_handle_closed);
        uv_close((uv_handle_t *)&http->timer, on_handle_closed);
}

uint16_t http_port(const struct http *http)
{
        return http->port;
}
