// SPDX-License-Identifier: Apache-2.0
/*
 * The pool on S3 against a server that says what the test wants: answers that no sound
 * server gives, and those that only a real one in trouble does. On radosgw: tests/remote.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/pool_s3.h"
#include "tests/support/patience.h"
#include "tests/support/pool_driver.h"
#include "tests/support/scratch.h"

#define SECRET "moreSecretThanTheRest"

static uv_loop_t loop;
static uv_tcp_t server;
static struct pool *pool;
static char folder[64], endpoint[64];
static const char *reply; /* to whatever is asked; NULL: none at all */
static char asked[8192];

struct connection {
        uv_tcp_t tcp;
        uv_write_t write;
        char bytes[8192];
        size_t length;
};

static void on_connection_closed(uv_handle_t *handle)
{
        free(handle->data);
}

static void on_written(uv_write_t *write, int status)
{
        struct connection *connection = write->data;

        uv_close((uv_handle_t *)&connection->tcp, on_connection_closed);
}

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *ret_buf)
{
        struct connection *connection = handle->data;

        *ret_buf = uv_buf_init(connection->bytes + connection->length,
                               (unsigned)(sizeof(connection->bytes) - 1 - connection->length));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct connection *connection = stream->data;
        uv_buf_t answer;

        if (n < 0) {
                uv_close((uv_handle_t *)&connection->tcp, on_connection_closed);
                return;
        }
        connection->length += (size_t)n;
        if (!reply || !strstr(connection->bytes, "\r\n\r\n"))
                return;
        memcpy(asked, connection->bytes, connection->length + 1);
        uv_read_stop(stream);
        answer = uv_buf_init((char *)(uintptr_t)reply, (unsigned)strlen(reply));
        connection->write.data = connection;
        uv_write(&connection->write, stream, &answer, 1, on_written);
}

static void on_connection(uv_stream_t *stream, int status)
{
        struct connection *connection = calloc(1, sizeof(*connection));

        ck_assert_ptr_nonnull(connection);
        ck_assert_int_eq(status, 0);
        uv_tcp_init(&loop, &connection->tcp);
        connection->tcp.data = connection;
        ck_assert_int_eq(uv_accept(stream, (uv_stream_t *)&connection->tcp), 0);
        uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read);
}

static void listen_somewhere(void)
{
        struct sockaddr_in address;
        int length = sizeof(address);

        uv_ip4_addr("127.0.0.1", 0, &address);
        uv_tcp_init(&loop, &server);
        ck_assert_int_eq(uv_tcp_bind(&server, (struct sockaddr *)&address, 0), 0);
        ck_assert_int_eq(uv_listen((uv_stream_t *)&server, 8, on_connection), 0);
        uv_tcp_getsockname(&server, (struct sockaddr *)&address, &length);
        snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", ntohs(address.sin_port));
}

static const char *write_credentials(const char *text)
{
        static char path[96];
        FILE *file;

        snprintf(path, sizeof(path), "%s/credentials", folder);
        file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(text, file), 0);
        ck_assert_int_eq(fclose(file), 0);
        return path;
}

static struct pool_s3_options sound_options(void)
{
        return (struct pool_s3_options){
                .endpoint = endpoint,
                .bucket = "bucket",
                .prefix = "here",
                .credentials_path = write_credentials("[other]\naws_access_key_id = NO\n"
                                                      "[default]\n# a comment\n"
                                                      "aws_access_key_id = ID\n"
                                                      "aws_secret_access_key = " SECRET "\n"),
                .path_style = true,
                .allow_http = true,
        };
}

static void setup(void)
{
        struct pool_s3_options options;
        struct why why = {""};

        ck_assert_int_eq(uv_loop_init(&loop), 0);
        scratch_make(folder, sizeof(folder));
        listen_somewhere();
        options = sound_options();
        ck_assert_msg(pool_s3_open(&pool, &loop, &options, &why) == 0, "%s", why.text);
}

static void teardown(void)
{
        ck_assert(!strstr(pool->ops.last_failure(pool), SECRET));
        ck_assert(!strstr(asked, SECRET));
        pool_driver_close(&loop, pool);
        uv_close((uv_handle_t *)&server, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        scratch_remove(folder);
}

static int get(uint64_t offset, void *bytes, uint64_t length, uint64_t *ret_n)
{
        return pool_driver_get(&loop, pool, "bundle/n/1", offset, bytes, length, ret_n);
}

static bool was_told(const char *text)
{
        return strstr(pool->ops.last_failure(pool), text) != NULL;
}

/* ---- gets ---- */

START_TEST(longer_reply_stays_in_its_buffer_and_fails)
{
        char bytes[16] = "", untouched[12] = "";
        uint64_t n;

        reply = "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\n\r\n0123456789";
        ck_assert_int_eq(get(0, bytes, 4, &n), -EIO);
        ck_assert_mem_eq(bytes + 4, untouched, 12);
        ck_assert(was_told("more bytes"));
}
END_TEST

START_TEST(proxies_of_the_environment_are_not_asked)
{
        static const char *const names[] = {"http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"};
        char bytes[16];
        uint64_t n;

        /* Nobody listens there. */
        for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
                ck_assert(!setenv(names[i], "http://127.0.0.1:1", 1));
        reply = "HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n\r\n0123";
        ck_assert_int_eq(get(0, bytes, 4, &n), 0);
        ck_assert_uint_eq(n, 4);
}
END_TEST

START_TEST(whole_object_in_place_of_a_range_is_no_range)
{
        char bytes[4];
        uint64_t n;

        reply = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123";
        ck_assert_int_eq(get(0, bytes, 4, &n), 0);
        ck_assert_uint_eq(n, 4);
        ck_assert_int_eq(get(2, bytes, 4, &n), -EIO);
}
END_TEST

START_TEST(reply_that_is_cut_off_fails)
{
        char bytes[16];
        uint64_t n;

        reply = "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\n\r\n01234";
        ck_assert_int_eq(get(0, bytes, 10, &n), -ECONNRESET);
        ck_assert_uint_eq(n, 0);
}
END_TEST

START_TEST(server_that_is_silent_costs_the_deadline)
{
        struct pool_driver_request request;
        uint64_t began = uv_hrtime();
        char bytes[4] = "abc";

        reply = NULL;
        pool_driver_submit_get(&loop, pool, &request, "bundle/n/1", 0, bytes, 4, 100);
        ck_assert_int_eq(pool_driver_wait(&request), -ETIMEDOUT);
        ck_assert_uint_lt(uv_hrtime() - began, patience_ns(3000000000));
        ck_assert_str_eq(bytes, "abc");
}
END_TEST

/* ---- what a server says when it does not do as asked ---- */

static const struct {
        const char *reply;
        int result;
        const char *told; /* NULL: no failure */
} answers[] = {
        {"HTTP/1.1 503 x\r\nConnection: close\r\n\r\n<Error><Code>SlowDown</Code></Error>", -EAGAIN,
         "SlowDown"},
        {"HTTP/1.1 500 x\r\nConnection: close\r\n\r\n", -EAGAIN, "HTTP 500"},
        {"HTTP/1.1 507 x\r\nConnection: close\r\n\r\n", -ENOSPC, "HTTP 507"},
        {"HTTP/1.1 403 x\r\nConnection: close\r\n\r\n<Error><Code>QuotaExceeded</Code></Error>",
         -ENOSPC, "QuotaExceeded"},
        {"HTTP/1.1 403 x\r\nConnection: close\r\n\r\nnot <XML>", -EACCES, "HTTP 403"},
        {"HTTP/1.1 404 x\r\nConnection: close\r\n\r\n", -ENOENT, NULL},
        {"HTTP/1.1 404 x\r\nConnection: close\r\n\r\n<Error><Code>NoSuchBucket</Code></Error>",
         -ENODEV, "bucket does not exist"},
        {"HTTP/1.1 301 x\r\nConnection: close\r\nLocation: http://x/\r\n\r\n", -EINVAL, "region"},
        {"nonsense\r\n\r\n", -EIO, ""},
        {"", -ECONNRESET, ""},
};

START_TEST(each_refusal_has_its_errno_and_its_words)
{
        struct pool_usage usage;
        char bytes[4];
        uint64_t n;

        reply = answers[_i].reply;
        ck_assert_int_eq(get(0, bytes, 4, &n), answers[_i].result);
        pool->ops.usage(pool, &usage);
        ck_assert_uint_eq(usage.failures_total, answers[_i].told ? 1 : 0);
        if (answers[_i].told)
                ck_assert_msg(was_told(answers[_i].told), "%s", pool->ops.last_failure(pool));
}
END_TEST

/* ---- lists ---- */

static int list(struct pool_driver_request *ret_list)
{
        return pool_driver_list(&loop, pool, ret_list, "bundle/", "bundle/a", 10);
}

START_TEST(query_is_sorted_and_encoded_for_the_signature)
{
        struct pool_driver_request request;

        reply = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult/>";
        ck_assert_int_eq(list(&request), 0);
        ck_assert_uint_eq(request.n_names, 0);
        ck_assert(strstr(asked, "GET /bucket/?list-type=2&max-keys=10&prefix=here%2Fbundle%2F&"
                                "start-after=here%2Fbundle%2Fa HTTP/1.1\r\n"));
        ck_assert(strstr(asked, "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"));
        ck_assert(strstr(asked, "Credential=ID/"));
}
END_TEST

START_TEST(keys_of_others_are_not_listed)
{
        struct pool_driver_request request;

        reply = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
                "<ListBucketResult><IsTruncated>false</IsTruncated>"
                "<Contents><Key>here/bundle/b</Key><Size>17</Size></Contents>"
                "<Contents><Key>here/bundle/B</Key><Size>1</Size></Contents>"
                "<Contents><Key>elsewhere/bundle/c</Key><Size>1</Size></Contents>"
                "<Contents><Key>here/bundle/d</Key><Size>18</Size></Contents>"
                "</ListBucketResult>";
        ck_assert_int_eq(list(&request), 0);
        ck_assert_uint_eq(request.n_names, 2);
        ck_assert_str_eq(request.names[0], "bundle/b");
        ck_assert_uint_eq(request.sizes[0], 17);
        ck_assert_str_eq(request.names[1], "bundle/d");
        ck_assert(!request.more);
}
END_TEST

static const char *const odd_lists[] = {
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult>",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<Error/>",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<!DOCTYPE a [<!ENTITY b \"c\">]>"
        "<ListBucketResult><Contents></Contents></ListBucketResult>",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult><Contents>"
        "<Key>here/bundle/b</Key><Size>-1</Size></Contents></ListBucketResult>",
};

START_TEST(list_that_is_none_fails)
{
        struct pool_driver_request request;

        reply = odd_lists[_i];
        ck_assert_int_eq(list(&request), -EIO);
        ck_assert_uint_eq(request.n_names, 0);
        ck_assert(was_told("none of S3's"));
}
END_TEST

#define LIST_HEAD_TRUNCATED                                                                        \
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"                                             \
        "<ListBucketResult><IsTruncated>true</IsTruncated>"
#define LISTED(KEY) "<Contents><Key>" KEY "</Key><Size>1</Size></Contents>"

static const struct {
        const char *reply, *told;
} broken_lists[] = {
        {LIST_HEAD_TRUNCATED LISTED("here/bundle/c") LISTED("here/bundle/b") "</ListBucketResult>",
         "out of order"},
        /* The list was asked for from bundle/a on. */
        {LIST_HEAD_TRUNCATED LISTED("here/bundle/a") "</ListBucketResult>", "out of order"},
        {LIST_HEAD_TRUNCATED LISTED("here/NOT-OURS") "</ListBucketResult>", "the same page"},
        {LIST_HEAD_TRUNCATED "</ListBucketResult>", "without a key"},
};

START_TEST(list_that_breaks_off_or_turns_round_fails)
{
        struct pool_driver_request request;

        reply = broken_lists[_i].reply;
        ck_assert_int_eq(list(&request), -EIO);
        ck_assert(!request.more);
        ck_assert_msg(was_told(broken_lists[_i].told), "%s", pool->ops.last_failure(pool));
}
END_TEST

/* ---- options ---- */

static void expect_refused(const struct pool_s3_options *options, const char *told)
{
        struct why why = {""};
        struct pool *none = NULL;

        ck_assert_int_lt(pool_s3_open(&none, &loop, options, &why), 0);
        ck_assert_ptr_null(none);
        ck_assert_msg(strstr(why.text, told) != NULL, "\"%s\" is not in \"%s\"", told, why.text);
        ck_assert(!strstr(why.text, SECRET));
}

START_TEST(unsound_options_are_refused_with_a_reason)
{
        struct pool_s3_options options = sound_options();

        options.allow_http = false;
        expect_refused(&options, "must be https://");
        options = sound_options();
        options.endpoint = "http://user:" SECRET "@host";
        expect_refused(&options, "(hidden)");
        options.endpoint = "http://user:" SECRET "@host/bucket";
        expect_refused(&options, "(hidden)");
        options.endpoint = "user:" SECRET "@host";
        expect_refused(&options, "(hidden)");
        options.endpoint = "http://host name/?secret=" SECRET;
        expect_refused(&options, "(hidden)");
        options.endpoint = "http://host/path";
        expect_refused(&options, "nothing else");
        options = sound_options();
        options.bucket = "Bucket";
        expect_refused(&options, "3 to 63 of a-z");
        options = sound_options();
        options.prefix = "/here";
        expect_refused(&options, "no / first");
        options = sound_options();
        options.region = "us east";
        expect_refused(&options, "us-east-1");
        options = sound_options();
        options.ca_path = "/nothing/here";
        expect_refused(&options, "/nothing/here");
        options = sound_options();
        options.credentials_path = "/nothing/there";
        expect_refused(&options, "/nothing/there");
        options.credentials_path =
                write_credentials("[default]\naws_secret_access_key = " SECRET "\n");
        expect_refused(&options, "needs aws_access_key_id");
        options.credentials_path = NULL;
        unsetenv("AWS_ACCESS_KEY_ID");
        expect_refused(&options, "AWS_ACCESS_KEY_ID");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/pool_s3");
        TCase *tcase = tcase_create("pool_s3");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, longer_reply_stays_in_its_buffer_and_fails);
        tcase_add_test(tcase, proxies_of_the_environment_are_not_asked);
        tcase_add_test(tcase, whole_object_in_place_of_a_range_is_no_range);
        tcase_add_test(tcase, reply_that_is_cut_off_fails);
        tcase_add_test(tcase, server_that_is_silent_costs_the_deadline);
        tcase_add_loop_test(tcase, each_refusal_has_its_errno_and_its_words, 0,
                            sizeof(answers) / sizeof(answers[0]));
        tcase_add_test(tcase, query_is_sorted_and_encoded_for_the_signature);
        tcase_add_test(tcase, keys_of_others_are_not_listed);
        tcase_add_loop_test(tcase, list_that_is_none_fails, 0,
                            sizeof(odd_lists) / sizeof(odd_lists[0]));
        tcase_add_loop_test(tcase, list_that_breaks_off_or_turns_round_fails, 0,
                            sizeof(broken_lists) / sizeof(broken_lists[0]));
        tcase_add_test(tcase, unsound_options_are_refused_with_a_reason);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
