// SPDX-License-Identifier: Apache-2.0
/*
 * Signatures are libcurl's. It signs what it is given: so the query is sorted, its values
 * are percent-encoded, and the header of the payload's checksum is ours. The payload is
 * not signed: objects carry checksums of their own, and the connection is TLS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "storage/s3_pool.h"

#define TRANSFER_BUFFER (512l << 10)
#define LEAVE_MS        100l /* how long a large put waits for leave to send its body */

/* All but what RFC 3986 leaves unreserved, with '/' too. */
static void percent_encode(char *ret_text, const char *text)
{
        for (; *text; text++) {
                if (strchr("-._~", *text) || (*text >= '0' && *text <= '9') ||
                    (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z'))
                        *ret_text++ = *text;
                else
                        ret_text += sprintf(ret_text, "%%%02X", (unsigned char)*text);
        }
        *ret_text = '\0';
}

static int list_url(const struct s3_request *request, const char *after, char **ret_url)
{
        const struct s3_pool *pool = request->pool;
        char key[sizeof(((struct s3_listed *)0)->key)], prefix[3 * sizeof(key)];
        char start[3 * sizeof(key)];

        snprintf(key, sizeof(key), "%s%s", pool->prefix, request->list->prefix);
        percent_encode(prefix, key);
        percent_encode(start, after);
        return asprintf(ret_url, "%s/?list-type=2&max-keys=%u&prefix=%s%s%s", pool->url,
                        request->list->max, prefix, *start ? "&start-after=" : "", start);
}

static int set_url(struct s3_request *request, const char *after)
{
        _cleanup_free_ char *url = NULL;
        int r = request->kind == S3_LIST ? list_url(request, after, &url)
                                         : asprintf(&url, "%s/%s%s", request->pool->url,
                                                    request->pool->prefix, request->name);

        if (r < 0) {
                url = NULL;
                return err_raise(-ENOMEM);
        }
        return curl_easy_setopt(request->easy, CURLOPT_URL, url) ? err_raise(-ENOMEM) : 0;
}

static int add_header(struct s3_request *request, const char *header)
{
        struct curl_slist *headers = curl_slist_append(request->headers, header);

        if (!headers)
                return err_raise(-ENOMEM);
        request->headers = headers;
        return 0;
}

static int set_headers(struct s3_request *request)
{
        const struct s3_credentials *credentials = &request->pool->credentials;
        char token[sizeof(credentials->token) + 32];
        int r = add_header(request, "x-amz-content-sha256: UNSIGNED-PAYLOAD");

        if (!r && request->kind == S3_PUT)
                r = add_header(request, "Content-Type: application/octet-stream");
        if (!r && request->kind == S3_PUT && request->put->flags & POOL_EXCLUSIVE)
                r = add_header(request, "If-None-Match: *");
        if (!r && *credentials->token) {
                snprintf(token, sizeof(token), "x-amz-security-token: %s", credentials->token);
                r = add_header(request, token);
                explicit_bzero(token, sizeof(token));
        }
        if (!r && curl_easy_setopt(request->easy, CURLOPT_HTTPHEADER, request->headers))
                r = err_raise(-ENOMEM);
        return r;
}

/* ---- the body of a put ---- */

static size_t on_read(char *bytes, size_t size, size_t n, void *user)
{
        struct s3_request *request = user;
        const struct pool_put *put = request->put;
        size_t room = size * n, done = 0;

        while (done < room && request->buffer < put->n_buffers) {
                const struct pool_buffer *buffer = &put->buffers[request->buffer];
                uint64_t left = buffer->length - request->buffer_offset;
                size_t part = left < room - done ? (size_t)left : room - done;

                if (part)
                        memcpy(bytes + done, (uint8_t *)buffer->bytes + request->buffer_offset,
                               part);
                done += part;
                request->buffer_offset += part;
                if (request->buffer_offset == buffer->length) {
                        request->buffer++;
                        request->buffer_offset = 0;
                }
        }
        return done;
}

/* libcurl begins anew when a connection that it kept turns out to be dead. */
static int on_seek(void *user, curl_off_t offset, int origin)
{
        struct s3_request *request = user;

        if (offset || origin != SEEK_SET)
                return CURL_SEEKFUNC_CANTSEEK;
        request->buffer = 0;
        request->buffer_offset = 0;
        return CURL_SEEKFUNC_OK;
}

static void set_put(struct s3_request *request)
{
        const struct pool_put *put = request->put;
        uint64_t length = 0;

        for (uint32_t i = 0; i < put->n_buffers; i++)
                length += put->buffers[i].length;
        curl_easy_setopt(request->easy, CURLOPT_UPLOAD, 1l);
        curl_easy_setopt(request->easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)length);
        curl_easy_setopt(request->easy, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(request->easy, CURLOPT_READDATA, request);
        curl_easy_setopt(request->easy, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(request->easy, CURLOPT_SEEKDATA, request);
        curl_easy_setopt(request->easy, CURLOPT_UPLOAD_BUFFERSIZE, TRANSFER_BUFFER);
        /* A server may refuse before the body is sent. It cannot be forbidden to libcurl, as
         * the header that does so would be signed and not sent. */
        curl_easy_setopt(request->easy, CURLOPT_EXPECT_100_TIMEOUT_MS, LEAVE_MS);
}

static void set_kind(struct s3_request *request)
{
        char range[64];

        if (request->kind == S3_PUT) {
                set_put(request);
        } else if (request->kind == S3_GET) {
                snprintf(range, sizeof(range), "%llu-%llu",
                         (unsigned long long)request->get->offset,
                         (unsigned long long)(request->get->offset + request->get->length - 1));
                curl_easy_setopt(request->easy, CURLOPT_RANGE, range);
        } else if (request->kind == S3_REMOVE) {
                curl_easy_setopt(request->easy, CURLOPT_CUSTOMREQUEST, "DELETE");
        }
}

static int sign(struct s3_request *request)
{
        const struct s3_pool *pool = request->pool;
        CURL *easy = request->easy;

        if (curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, pool->provider) ||
            curl_easy_setopt(easy, CURLOPT_USERNAME, pool->credentials.id) ||
            curl_easy_setopt(easy, CURLOPT_PASSWORD, pool->credentials.secret))
                return err_raise(-ENOMEM);
        return 0;
}

static int set_transport(struct s3_request *request, uint64_t ms)
{
        const struct s3_pool *pool = request->pool;
        CURL *easy = request->easy;

        curl_easy_setopt(easy, CURLOPT_PRIVATE, request);
        curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, request->curl_error);
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, s3_reply_on_body);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, request);
        curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, s3_reply_on_header);
        curl_easy_setopt(easy, CURLOPT_HEADERDATA, request);
        curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)ms);
        curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, TRANSFER_BUFFER);
        curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1l);
        curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1l);
        /* A name that does not resolve must not hold the loop when its request is over. */
        curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1l);
        /* The environment does not say through whose hands requests go. */
        if (curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") ||
            curl_easy_setopt(easy, CURLOPT_PROXY, "") ||
            (pool->ca_path && curl_easy_setopt(easy, CURLOPT_CAINFO, pool->ca_path)))
                return err_raise(-ENOMEM);
        return 0;
}

void s3_request_withdraw(struct s3_request *request)
{
        if (request->easy) {
                curl_multi_remove_handle(request->pool->multi, request->easy);
                curl_easy_cleanup(request->easy);
        }
        curl_slist_free_all(request->headers);
        request->xml = s3_xml_free(request->xml);
        request->easy = NULL;
        request->headers = NULL;
}

int s3_request_send(struct s3_request *request, const char *after)
{
        uint64_t now = uv_now(request->pool->loop);
        uint64_t ms = request->deadline > now ? request->deadline - now : 1;
        int r;

        request->easy = curl_easy_init();
        if (!request->easy)
                return err_raise(-ENOMEM);
        r = set_transport(request, ms);
        if (!r)
                r = set_url(request, after);
        if (!r)
                r = set_headers(request);
        if (!r)
                r = sign(request);
        if (!r)
                set_kind(request);
        if (!r && curl_multi_add_handle(request->pool->multi, request->easy))
                r = err_raise(-ENOMEM);
        if (r < 0)
                s3_request_withdraw(request);
        return r;
}
