// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "storage/s3_pool.h"

#define REREAD_MS 1000u

static struct s3_pool *pool_of(struct pool *pool)
{
        return (struct s3_pool *)pool;
}

/* ---- ends ---- */

static struct s3_pool *free_pool(struct s3_pool *pool)
{
        if (!pool)
                return NULL;
        if (pool->multi)
                curl_multi_cleanup(pool->multi);
        explicit_bzero(&pool->credentials, sizeof(pool->credentials));
        free(pool->url);
        free(pool->bucket);
        free(pool->prefix);
        free(pool->ca_path);
        free(pool->credentials_path);
        free(pool);
        return NULL;
}

void s3_pool_handle_closed(uv_handle_t *handle)
{
        struct s3_pool *pool = handle->data;
        void (*on_closed)(void *user) = pool->on_closed;
        void *user = pool->on_closed_user;

        if (--pool->n_handles)
                return;
        free_pool(pool);
        if (on_closed)
                on_closed(user);
}

static void close_when_idle(struct s3_pool *pool)
{
        CURLM *multi = pool->multi;

        if (!TAILQ_EMPTY(&pool->running) || !TAILQ_EMPTY(&pool->refused) || !multi)
                return;
        /* Its sockets are closed with it, and asks for no more. */
        curl_multi_cleanup(multi);
        pool->multi = NULL;
        uv_close((uv_handle_t *)&pool->timer, s3_pool_handle_closed);
        uv_close((uv_handle_t *)&pool->later, s3_pool_handle_closed);
}

static void close_pool(struct pool *pool, void (*on_closed)(void *user), void *user)
{
        struct s3_pool *self = pool_of(pool);

        self->is_closing = true;
        self->on_closed = on_closed;
        self->on_closed_user = user;
        close_when_idle(self);
}

static const char *const kind_names[] = {"put", "get", "remove", "list"};

/* -ENOENT and -EEXIST of an object come without a text. */
static void note_failure(struct s3_request *request, const char *text)
{
        struct s3_pool *pool = request->pool;

        if (!*text)
                return;
        pool->usage.failures_total++;
        snprintf(pool->failure, sizeof(pool->failure), "%s of %s in S3 bucket %s: %s",
                 kind_names[request->kind], request->name, pool->bucket, text);
}

/* Whoever renews credentials writes the file anew: those that are refused may be old. */
static void reread_credentials(struct s3_pool *pool)
{
        uint64_t now = uv_now(pool->loop);
        struct why why;

        if (!pool->credentials_path || now < pool->reread_at)
                return;
        pool->reread_at = now + REREAD_MS;
        s3_credentials_read(&pool->credentials, pool->credentials_path, &why);
}

static const char *name_in(const struct s3_pool *pool, const char *key)
{
        size_t length = strlen(pool->prefix);

        if (strncmp(key, pool->prefix, length) || !pool_name_is_valid(key + length))
                return NULL;
        return key + length;
}

/* -EIO when they do not come behind @after, each behind the one before. */
static int deliver_names(struct s3_request *request, bool *ret_more)
{
        const struct s3_listing *listing = &request->listing;
        const char *last = request->list->after ? request->list->after : "";
        uint32_t n = 0;

        for (uint32_t i = 0; i < listing->n_listed; i++) {
                const char *name = name_in(request->pool, listing->listed[i].key);

                if (!name)
                        continue;
                if (strcmp(name, last) <= 0) {
                        note_failure(request, "the server sent names that are out of order");
                        return -EIO;
                }
                last = name;
                n++;
                request->list->on_name(request->list, name, listing->listed[i].bytes);
        }
        *ret_more = n && listing->is_truncated;
        return 0;
}

static void call_back(struct s3_request *request, int result)
{
        bool more = false;

        switch (request->kind) {
        case S3_PUT:
                request->put->on_done(request->put, result);
                break;
        case S3_GET:
                request->get->on_done(request->get, result, result ? 0 : request->n_bytes);
                break;
        case S3_REMOVE:
                request->remove->on_done(request->remove, result);
                break;
        case S3_LIST:
                if (!result)
                        result = deliver_names(request, &more);
                request->list->on_done(request->list, result, more);
                break;
        }
}

static void count_bytes(struct s3_request *request)
{
        struct pool_usage *usage = &request->pool->usage;

        if (request->kind == S3_GET)
                usage->read_bytes_total += request->n_bytes;
        for (uint32_t i = 0; request->kind == S3_PUT && i < request->put->n_buffers; i++)
                usage->written_bytes_total += request->put->buffers[i].length;
}

/* It is on neither list any more. */
static void end_request(struct s3_request *request, int result)
{
        struct s3_pool *pool = request->pool;

        s3_request_withdraw(request);
        if (!result)
                count_bytes(request);
        else if (result == -EACCES)
                reread_credentials(pool);
        pool->usage.n_requests--;
        call_back(request, result);
        free(request->listing.listed);
        free(request);
        if (pool->is_closing)
                close_when_idle(pool);
}

/*
 * A page of which no key is ours is not the end: the next one is asked for. false: the list
 * is over; *@ret_text when it broke off.
 */
static bool goes_on(struct s3_request *request, const char **ret_text)
{
        struct s3_listing *listing = &request->listing;
        const char *last;

        if (request->kind != S3_LIST || !listing->is_truncated)
                return false;
        if (!listing->n_listed) {
                *ret_text = "the server sent a page of a list without a key that can be ours";
                return false;
        }
        for (uint32_t i = 0; i < listing->n_listed; i++)
                if (name_in(request->pool, listing->listed[i].key))
                        return false;
        last = listing->listed[listing->n_listed - 1].key;
        if (strcmp(last, listing->after) <= 0) {
                *ret_text = "the server sends the same page of a list again";
                return false;
        }
        memcpy(listing->after, last, sizeof(listing->after));
        listing->n_listed = 0;
        listing->is_truncated = false;
        s3_request_withdraw(request);
        if (!s3_request_send(request, listing->after))
                return true;
        *ret_text = "no memory to ask for the next page of a list";
        return false;
}

void s3_request_done(struct s3_request *request, CURLcode code)
{
        char text[512] = "";
        int r = s3_reply_result(request, code, text, sizeof(text));
        const char *broken = NULL;

        if (!r && goes_on(request, &broken))
                return;
        if (broken) {
                snprintf(text, sizeof(text), "%s", broken);
                r = -EIO;
        }
        note_failure(request, text);
        TAILQ_REMOVE(&request->pool->running, request, link);
        end_request(request, r);
}

/* ---- requests ---- */

static void on_later(uv_timer_t *timer)
{
        struct s3_pool *pool = timer->data;
        struct s3_requests refused = TAILQ_HEAD_INITIALIZER(refused);
        struct s3_request *request;

        /* What callbacks submit comes on a later turn. */
        TAILQ_CONCAT(&refused, &pool->refused, link);
        while ((request = TAILQ_FIRST(&refused))) {
                TAILQ_REMOVE(&refused, request, link);
                note_failure(request, strerror(-request->refusal));
                end_request(request, request->refusal);
        }
}

static uint64_t length_of(const struct pool_put *put)
{
        uint64_t length = 0;

        for (uint32_t i = 0; i < put->n_buffers; i++)
                length += put->buffers[i].length;
        return length;
}

static bool is_sound(const struct s3_request *request)
{
        if (!pool_name_is_valid(request->name))
                return false;
        switch (request->kind) {
        case S3_PUT:
                return request->put->n_buffers <= POOL_BUFFERS_MAX &&
                       length_of(request->put) <= POOL_OBJECT_MAX;
        case S3_GET:
                return request->get->length > 0 && request->get->length <= POOL_OBJECT_MAX;
        case S3_LIST:
                return request->list->max >= 1 && request->list->max <= POOL_LIST_MAX &&
                       strnlen(request->list->after ? request->list->after : "", POOL_NAME_MAX) <
                               POOL_NAME_MAX;
        default:
                return true;
        }
}

static int start_list(struct s3_request *request)
{
        struct pool_list *list = request->list;
        char after[sizeof(((struct s3_listed *)0)->key)] = "";

        request->listing.max = list->max;
        request->listing.listed = calloc(list->max, sizeof(*request->listing.listed));
        if (!request->listing.listed)
                return err_raise(-ENOMEM);
        if (list->after && *list->after)
                snprintf(after, sizeof(after), "%s%s", request->pool->prefix, list->after);
        return s3_request_send(request, after);
}

static int start(struct s3_request *request)
{
        if (!is_sound(request))
                return -EINVAL;
        return request->kind == S3_LIST ? start_list(request) : s3_request_send(request, "");
}

static int submit(struct pool *pool, struct s3_request template)
{
        struct s3_pool *self = pool_of(pool);
        uint64_t deadline_ms = template.deadline;
        struct s3_request *request = malloc(sizeof(*request));

        if (!request)
                return err_raise(-ENOMEM);
        if (deadline_ms > POOL_DEADLINE_MAX_MS)
                deadline_ms = POOL_DEADLINE_MAX_MS;
        *request = template;
        request->pool = self;
        request->deadline = uv_now(self->loop) + deadline_ms;
        self->usage.n_requests++;
        self->usage.requests_total[request->kind]++;
        request->refusal = start(request);
        if (!request->refusal) {
                TAILQ_INSERT_TAIL(&self->running, request, link);
        } else {
                TAILQ_INSERT_TAIL(&self->refused, request, link);
                uv_timer_start(&self->later, on_later, 0, 0);
        }
        return 0;
}

static int submit_put(struct pool *pool, struct pool_put *put)
{
        return submit(pool, (struct s3_request){.kind = S3_PUT,
                                                .put = put,
                                                .name = put->name,
                                                .deadline = put->deadline_ms});
}

static int submit_get(struct pool *pool, struct pool_get *get)
{
        return submit(pool, (struct s3_request){.kind = S3_GET,
                                                .get = get,
                                                .name = get->name,
                                                .deadline = get->deadline_ms});
}

static int submit_remove(struct pool *pool, struct pool_remove *remove)
{
        return submit(pool, (struct s3_request){.kind = S3_REMOVE,
                                                .remove = remove,
                                                .name = remove->name,
                                                .deadline = remove->deadline_ms});
}

static int submit_list(struct pool *pool, struct pool_list *list)
{
        return submit(pool, (struct s3_request){.kind = S3_LIST,
                                                .list = list,
                                                .name = list->prefix,
                                                .deadline = list->deadline_ms});
}

static const char *last_failure(const struct pool *pool)
{
        return ((const struct s3_pool *)pool)->failure;
}

static void get_usage(const struct pool *pool, struct pool_usage *ret_usage)
{
        *ret_usage = ((const struct s3_pool *)pool)->usage;
}

/* ---- open ---- */

static int refuse(struct why *why, const char *what, const char *value, const char *right)
{
        why_set(why, "%s is \"%s\": %s", what, value ? value : "", right);
        return err_raise(-EINVAL);
}

static bool is_made_of(const char *text, const char *characters, size_t min, size_t max)
{
        size_t length = strnlen(text, max + 1);

        return length >= min && length <= max && strspn(text, characters) == length;
}

#define LOWER "abcdefghijklmnopqrstuvwxyz0123456789"

/* Takes the endpoint apart; what it must not have is refused. *@ret_url: of the bucket. */
static int make_url(const struct pool_s3_options *options, CURLU *parts, char **ret_url,
                    struct why *why)
{
        char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL, *other = NULL;
        const char *what = "it must be https://host[:port], nothing else";
        int r = 0;

        if (!options->endpoint || curl_url_set(parts, CURLUPART_URL, options->endpoint, 0) ||
            curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) ||
            curl_url_get(parts, CURLUPART_HOST, &host, 0) ||
            curl_url_get(parts, CURLUPART_PATH, &path, 0) || strcmp(path, "/") ||
            !curl_url_get(parts, CURLUPART_USER, &other, 0) ||
            !curl_url_get(parts, CURLUPART_QUERY, &other, 0) ||
            !curl_url_get(parts, CURLUPART_FRAGMENT, &other, 0))
                /* It may hold a password, wherever that stands: then it is not told. */
                r = refuse(why, "the S3 endpoint",
                           options->endpoint && strpbrk(options->endpoint, "@?#")
                                   ? "(hidden)"
                                   : options->endpoint,
                           what);
        else if (strcmp(scheme, "https") && (strcmp(scheme, "http") || !options->allow_http))
                r = refuse(why, "the S3 endpoint", options->endpoint,
                           "it must be https:// (http:// only when that is allowed)");
        curl_url_get(parts, CURLUPART_PORT, &port, 0);
        if (!r &&
            asprintf(ret_url, "%s://%s%s%s%s%s%s%s", scheme,
                     options->path_style ? "" : options->bucket, options->path_style ? "" : ".",
                     host, port ? ":" : "", port ? port : "", options->path_style ? "/" : "",
                     options->path_style ? options->bucket : "") < 0)
                r = err_raise(-ENOMEM);
        curl_free(scheme);
        curl_free(host);
        curl_free(port);
        curl_free(path);
        curl_free(other);
        return r;
}

static int check_options(const struct pool_s3_options *options, struct why *why)
{
        if (!options->bucket || !is_made_of(options->bucket, LOWER ".-", 3, 63))
                return refuse(why, "the S3 bucket", options->bucket,
                              "it must be the name of a bucket: 3 to 63 of a-z 0-9 . -");
        if (options->region && !is_made_of(options->region, LOWER "-", 1, 60))
                return refuse(why, "the S3 region", options->region,
                              "it must be of a-z 0-9 -, such as us-east-1");
        if (!pool_prefix_is_valid(options->prefix ? options->prefix : ""))
                return refuse(why, "the pool's prefix", options->prefix,
                              "at most 128 of A-Z a-z 0-9 . _ / - are allowed, no / first");
        if (options->ca_path && access(options->ca_path, R_OK) < 0) {
                int r = -errno;

                why_set(why, "S3 CA file %s: %s", options->ca_path, strerror(-r));
                return err_raise(r);
        }
        return 0;
}

static int copy_options(struct s3_pool *pool, const struct pool_s3_options *options,
                        struct why *why)
{
        const char *prefix = options->prefix ? options->prefix : "";
        size_t length = strlen(prefix);
        CURLU *parts = curl_url();
        int r = parts ? make_url(options, parts, &pool->url, why) : -ENOMEM;

        curl_url_cleanup(parts);
        if (r < 0)
                return r;
        pool->bucket = strdup(options->bucket);
        pool->ca_path = options->ca_path ? strdup(options->ca_path) : NULL;
        pool->credentials_path =
                options->credentials_path ? strdup(options->credentials_path) : NULL;
        if (asprintf(&pool->prefix, "%s%s", prefix,
                     length && prefix[length - 1] != '/' ? "/" : "") < 0)
                pool->prefix = NULL;
        if (!pool->bucket || !pool->prefix || (options->ca_path && !pool->ca_path) ||
            (options->credentials_path && !pool->credentials_path))
                return err_raise(-ENOMEM);
        snprintf(pool->provider, sizeof(pool->provider), "aws:amz:%s:s3",
                 options->region ? options->region : "us-east-1");
        return 0;
}

static void init_pool(struct s3_pool *pool, uv_loop_t *loop)
{
        pool->pool.ops = (struct pool_ops){
                .name = "s3",
                .put = submit_put,
                .get = submit_get,
                .remove = submit_remove,
                .list = submit_list,
                .last_failure = last_failure,
                .usage = get_usage,
                .close = close_pool,
        };
        pool->loop = loop;
        TAILQ_INIT(&pool->running);
        TAILQ_INIT(&pool->refused);
        pool->timer.data = pool->later.data = pool;
        uv_timer_init(loop, &pool->timer);
        uv_timer_init(loop, &pool->later);
        pool->n_handles = 2;
}

static void init_curl(void)
{
        curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* A pool with its options and credentials, which does nothing yet. */
static int new_pool(struct s3_pool **ret_pool, const struct pool_s3_options *options,
                    struct why *why)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        struct s3_pool *pool;
        int r = check_options(options, why);

        if (r < 0)
                return r;
        pthread_once(&once, init_curl);
        pool = calloc(1, sizeof(*pool));
        if (!pool)
                return err_raise(-ENOMEM);
        r = copy_options(pool, options, why);
        if (!r)
                r = s3_credentials_read(&pool->credentials, options->credentials_path, why);
        if (r < 0)
                free_pool(pool);
        else
                *ret_pool = pool;
        return r;
}

int pool_s3_check(const struct pool_s3_options *options, struct why *why)
{
        struct s3_pool *pool;
        int r = new_pool(&pool, options, why);

        if (!r)
                free_pool(pool);
        return r;
}

int pool_s3_open(struct pool **ret_pool, uv_loop_t *loop, const struct pool_s3_options *options,
                 struct why *why)
{
        struct s3_pool *pool;
        int r = new_pool(&pool, options, why);

        if (r < 0)
                return r;
        r = s3_loop_start(pool);
        if (r < 0) {
                free_pool(pool);
                return r;
        }
        init_pool(pool, loop);
        *ret_pool = &pool->pool;
        return 0;
}
