// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "storage/s3_pool.h"

static long status_of(const struct s3_request *request)
{
        long status = 0;

        curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &status);
        return status;
}

static bool is_good(long status)
{
        return status >= 200 && status < 300;
}

/* Never more than was asked for, whatever the server sends. */
static size_t take_bytes(struct s3_request *request, const char *bytes, size_t length)
{
        const struct pool_get *get = request->get;

        /* 200 is all of the object: as good as its beginning. */
        if ((status_of(request) == 200 && get->offset) || length > get->length - request->n_bytes) {
                request->is_too_long = true;
                return 0;
        }
        memcpy((uint8_t *)get->bytes + request->n_bytes, bytes, length);
        request->n_bytes += length;
        return length;
}

static size_t take_xml(struct s3_request *request, bool is_list, const char *bytes, size_t length)
{
        if (!request->xml)
                request->xml = s3_xml_new(&request->error, is_list ? &request->listing : NULL);
        if (!request->xml)
                return 0;
        /* Errors are told by the status as well: their text may be anything. */
        request->is_odd |= !s3_xml_feed(request->xml, bytes, length);
        return is_list && request->is_odd ? 0 : length;
}

size_t s3_reply_on_body(char *bytes, size_t size, size_t n, void *user)
{
        struct s3_request *request = user;
        bool good = is_good(status_of(request));

        if (good && request->kind == S3_GET)
                return take_bytes(request, bytes, size * n);
        if (good && request->kind != S3_LIST)
                return size * n;
        return take_xml(request, good, bytes, size * n);
}

size_t s3_reply_on_header(char *bytes, size_t size, size_t n, void *user)
{
        static const char name[] = "date:";
        struct s3_request *request = user;
        char date[64];

        if (size * n > sizeof(name) && !strncasecmp(bytes, name, sizeof(name) - 1)) {
                snprintf(date, sizeof(date), "%.*s", (int)(size * n - sizeof(name) + 1),
                         bytes + sizeof(name) - 1);
                date[strcspn(date, "\r\n")] = '\0';
                request->server_time = curl_getdate(date, NULL);
        }
        return size * n;
}

static int errno_of_curl(CURLcode code)
{
        switch (code) {
        case CURLE_OPERATION_TIMEDOUT:
                return -ETIMEDOUT;
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_RESOLVE_PROXY:
                return -EHOSTUNREACH;
        case CURLE_COULDNT_CONNECT:
                return -ECONNREFUSED;
        case CURLE_SEND_ERROR:
        case CURLE_RECV_ERROR:
        case CURLE_GOT_NOTHING:
        case CURLE_PARTIAL_FILE:
                return -ECONNRESET;
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CONNECT_ERROR:
        case CURLE_SSL_CACERT_BADFILE:
                return -EPROTO;
        case CURLE_OUT_OF_MEMORY:
                return -ENOMEM;
        default:
                return -EIO;
        }
}

static bool has_code(const struct s3_request *request, const char *code)
{
        return !strcmp(request->error.code, code);
}

/* Codes of S3 that say more than the status, or something else. */
static int errno_of_code(const struct s3_request *request)
{
        static const struct {
                const char *code;
                int result;
        } codes[] = {
                {"QuotaExceeded", -ENOSPC},     {"EntityTooLarge", -ENOSPC},
                {"XMinioStorageFull", -ENOSPC}, {"RequestTimeTooSkewed", -EACCES},
                {"ExpiredToken", -EACCES},      {"InvalidToken", -EACCES},
                {"RequestTimeout", -ETIMEDOUT}, {"SlowDown", -EAGAIN},
                {"NoSuchBucket", -ENODEV},
        };

        for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
                if (has_code(request, codes[i].code))
                        return codes[i].result;
        return 0;
}

static int errno_of_status(const struct s3_request *request, long status)
{
        bool is_exclusive = request->kind == S3_PUT && request->put->flags & POOL_EXCLUSIVE;
        int r = errno_of_code(request);

        if (r)
                return r;
        if (status == 412 && is_exclusive)
                return -EEXIST;
        if (status == 401 || status == 403)
                return -EACCES;
        if (status == 404)
                return -ENOENT;
        if (status == 507)
                return -ENOSPC;
        if (status == 501)
                return -EOPNOTSUPP;
        if (status == 409 || status == 429 || status >= 500)
                return -EAGAIN;
        return status >= 300 ? -EINVAL : -EIO;
}

/* What helps a person beyond the server's own words. */
static void add_hint(const struct s3_request *request, long status, char *ret_hint, size_t bytes)
{
        double off = request->server_time > 0 ? difftime(time(NULL), request->server_time) : 0;

        *ret_hint = '\0';
        if (has_code(request, "RequestTimeTooSkewed"))
                snprintf(ret_hint, bytes, ": the clock of this machine is %.0f s %s the server's",
                         off < 0 ? -off : off, off < 0 ? "behind" : "ahead of");
        else if (has_code(request, "NoSuchBucket"))
                snprintf(ret_hint, bytes, ": the bucket does not exist");
        else if (status >= 300 && status < 400)
                snprintf(ret_hint, bytes, ": the bucket is of another region or endpoint");
        else if (status == 401 || status == 403)
                snprintf(ret_hint, bytes, ": are the credentials right, and is this allowed?");
}

static int describe(const struct s3_request *request, long status, int result, char *ret_text,
                    size_t bytes)
{
        char hint[128];

        add_hint(request, status, hint, sizeof(hint));
        snprintf(ret_text, bytes, "HTTP %ld%s%s%s%s%s%s", status, *request->error.code ? " " : "",
                 request->error.code, *request->error.message ? " (" : "", request->error.message,
                 *request->error.message ? ")" : "", hint);
        return result;
}

/* An answer that is none: too long, or not XML where a list was asked for. */
static int describe_odd(const struct s3_request *request, char *ret_text, size_t bytes)
{
        snprintf(ret_text, bytes, "%s",
                 request->is_too_long ? "the server sent more bytes than were asked for"
                                      : "the server sent a list that is none of S3's");
        return -EIO;
}

static bool is_complete(struct s3_request *request)
{
        return request->kind != S3_LIST || (request->xml && s3_xml_end(request->xml));
}

int s3_reply_result(struct s3_request *request, CURLcode code, char *ret_text, size_t text_bytes)
{
        long status = status_of(request);
        int r;

        if (request->is_too_long || (request->is_odd && is_good(status)))
                return describe_odd(request, ret_text, text_bytes);
        if (code) {
                r = errno_of_curl(code);
                snprintf(ret_text, text_bytes, "%s",
                         *request->curl_error ? request->curl_error : curl_easy_strerror(code));
                return r;
        }
        if (is_good(status))
                return is_complete(request) ? 0 : describe_odd(request, ret_text, text_bytes);
        /* The object ends before the range. */
        if (request->kind == S3_GET && status == 416) {
                request->n_bytes = 0;
                return 0;
        }
        r = errno_of_status(request, status);
        if (r == -EEXIST)
                return r;
        if (r == -ENOENT)
                return request->kind == S3_REMOVE ? 0 : r;
        return describe(request, status, r, ret_text, text_bytes);
}
