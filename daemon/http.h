// SPDX-License-Identifier: Apache-2.0
/*
 * The HTTP endpoint: GET or HEAD of /metrics, /healthz and /readyz, of the status page at /,
 * and of the documents that it is drawn from, /status.json, /details.json and /history.json.
 * On a loopback address these documents are for who asks for it as such: a page of another
 * site whose name was made to point there gets nothing.
 *
 * libmicrohttpd runs without a thread of its own: its epoll fd is polled on the loop, so
 * handlers read the daemon's state without locks. Answers are built in memory and sent
 * without blocking; a slow or silent client costs one connection slot until its time-out,
 * never the loop.
 */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

#include <uv.h>

#include "base/error.h"
#include "daemon/status_page.h"

struct http;
struct metrics;

struct http_options {
        const struct sockaddr_storage *listen; /* copied; port 0: any, see http_port() */
        struct metrics *metrics;               /* borrowed until on_closed */
        /* Called before each rendering: sets the gauges that are not kept up to date. */
        void (*refresh)(void *user, struct metrics *metrics);
        /* Non-zero when requests can be served; else @why says what is missing. */
        int (*is_ready)(void *user, struct why *why);
        /* JSON as text, which is freed; NULL: there is none, as the daemon ends. */
        char *(*document)(void *user, enum status_document which);
        void *user;
        unsigned idle_seconds; /* a silent connection is ended after it; 0: 10 */
};

/* Starts listening. 0 or a negative errno, with @why. */
int http_new(struct http **ret_http, uv_loop_t *loop, const struct http_options *options,
             struct why *why);

/* Ends all connections, then calls @on_closed on the loop. NULL: calls it at once. */
void http_close(struct http *http, void (*on_closed)(void *user), void *user);

/* The port that is listened on. */
uint16_t http_port(const struct http *http);
