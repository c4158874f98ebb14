// SPDX-License-Identifier: Apache-2.0
/*
 * Inside of the pool on S3: what its files share.
 *
 *   pool_s3.c              options, open and close, requests in flight
 *   pool_s3_credentials.c  keys, from a file or the environment
 *   pool_s3_request.c      what goes out: URL, headers, signature, body
 *   pool_s3_reply.c        what comes back: status, bytes, errors in words
 *   pool_s3_xml.c          the two kinds of XML that S3 answers with
 *   pool_s3_loop.c         libcurl's sockets and timer on the loop
 *
 * Everything is the loop thread's; libcurl resolves names on threads of its own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <time.h>

#include <curl/curl.h>
#include <uv.h>

#include "base/error.h"
#include "storage/pool.h"
#include "storage/pool_s3.h"

/* Of one profile or the environment. They go to libcurl and nowhere else. */
struct s3_credentials {
        char id[256];
        char secret[256];
        char token[4096]; /* "": there is none */
};

/* @path NULL: the environment. 0 or negative with @why filled, which tells no secret. */
int s3_credentials_read(struct s3_credentials *ret_credentials, const char *path, struct why *why);

/* ---- XML ---- */

struct s3_error {
        char code[64]; /* "NoSuchKey"; "" when the server did not say */
        char message[200];
};

struct s3_listed {
        char key[2 * POOL_NAME_MAX + 2];
        uint64_t bytes;
};

struct s3_listing {
        struct s3_listed *listed; /* room for @max */
        uint32_t n_listed;
        uint32_t max;
        bool is_truncated;
        char after[2 * POOL_NAME_MAX + 2]; /* the page's keys come behind this one; "" */
};

struct s3_xml;

/* For an error or, with @listing, for a list. NULL: no memory. */
struct s3_xml *s3_xml_new(struct s3_error *error, struct s3_listing *listing);
struct s3_xml *s3_xml_free(struct s3_xml *xml);
/* false: this is not what S3 answers. */
bool s3_xml_feed(struct s3_xml *xml, const char *bytes, size_t length);
bool s3_xml_end(struct s3_xml *xml);

/* ---- requests ---- */

struct s3_pool;

enum s3_kind { S3_PUT, S3_GET, S3_REMOVE, S3_LIST };

struct s3_request {
        TAILQ_ENTRY(s3_request) link;
        struct s3_pool *pool;
        enum s3_kind kind;
        union {
                struct pool_put *put;
                struct pool_get *get;
                struct pool_remove *remove;
                struct pool_list *list;
        };
        const char *name;
        uint64_t deadline; /* in milliseconds of uv_now() */
        int refusal;       /* of a request that never reached libcurl */

        CURL *easy;
        struct curl_slist *headers;
        char curl_error[CURL_ERROR_SIZE];

        /* The next byte of a put. */
        uint32_t buffer;
        uint64_t buffer_offset;

        /* The reply so far. */
        uint64_t n_bytes;
        bool is_too_long;
        bool is_odd; /* not the XML that it should be */
        time_t server_time;
        struct s3_error error;
        struct s3_listing listing;
        struct s3_xml *xml;
};
TAILQ_HEAD(s3_requests, s3_request);

struct s3_pool {
        struct pool pool;
        uv_loop_t *loop;
        CURLM *multi;
        uv_timer_t timer; /* libcurl's */
        uv_timer_t later; /* ends the refused */
        uint32_t n_handles;

        char *url; /* of the bucket, without '/' at its end */
        char *bucket, *prefix, *ca_path, *credentials_path;
        char provider[96]; /* of the signature */
        struct s3_credentials credentials;
        uint64_t reread_at; /* no earlier than this are the credentials read again */

        struct s3_requests running;
        struct s3_requests refused;
        struct pool_usage usage;
        char failure[640];
        bool is_closing;
        void (*on_closed)(void *user);
        void *on_closed_user;
};

/* pool_s3.c: ends it, as libcurl ended it. */
void s3_request_done(struct s3_request *request, CURLcode code);
void s3_pool_handle_closed(uv_handle_t *handle);

/* pool_s3_request.c: hands it to libcurl; @after: of a list. 0 or negative. */
int s3_request_send(struct s3_request *request, const char *after);
/* Takes it from libcurl. */
void s3_request_withdraw(struct s3_request *request);

/* pool_s3_reply.c */
size_t s3_reply_on_body(char *bytes, size_t size, size_t n, void *user);
size_t s3_reply_on_header(char *bytes, size_t size, size_t n, void *user);
/* The result; what is a failure fills @ret_text. */
int s3_reply_result(struct s3_request *request, CURLcode code, char *ret_text, size_t text_bytes);

/* pool_s3_loop.c */
int s3_loop_start(struct s3_pool *pool);
