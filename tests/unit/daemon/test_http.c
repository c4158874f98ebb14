// SPDX-License-Identifier: Apache-2.0
/*
 * Real HTTP over loopback: the server runs on the test's own loop, clients are sockets on
 * the same loop, so that nothing waits for time to pass.
 */
#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/http.h"
#include "daemon/metrics.h"
#include "tests/support/fds.h"

#define PATIENCE_S 10

static uv_loop_t loop;
static struct metrics metrics;
static struct http *http;
static int ready;

static void refresh(void *user, struct metrics *target)
{
        target->sessions = 42;
}

static int is_ready(void *user, struct why *why)
{
        if (!ready)
                why_set(why, "no arena is up");
        return ready;
}

static char *document(void *user, enum status_document which)
{
        char text[64];

        if (!ready)
                return NULL;
        snprintf(text, sizeof(text), "{\"which\":%d,\"requests\":%d}", (int)which,
                 (int)metrics.http_requests_total);
        return strdup(text);
}

static void start(void)
{
        struct sockaddr_storage listen = {0};
        struct sockaddr_in *address = (struct sockaddr_in *)&listen;
        struct http_options options = {.listen = &listen,
                                       .metrics = &metrics,
                                       .refresh = refresh,
                                       .is_ready = is_ready,
                                       .document = document,
                                       .idle_seconds = 1};
        struct why why = {""};

        address->sin_family = AF_INET;
        address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        memset(&metrics, 0, sizeof(metrics));
        ready = 1;
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_msg(!http_new(&http, &loop, &options, &why), "%s", why.text);
}

static void on_closed(void *user)
{
        *(int *)user = 1;
}

static void stop(void)
{
        int closed = 0;

        http_close(http, on_closed, &closed);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(closed, 1);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static int dial(void)
{
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons(http_port(http)),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        return fd;
}

static void say(int fd, const char *text)
{
        ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Runs the loop until the server has closed @fd; what it sent is in @ret_answer. */
static void hear(int fd, char *ret_answer, size_t size)
{
        time_t end = time(NULL) + PATIENCE_S;
        size_t used = 0;
        ssize_t n;

        for (;;) {
                uv_run(&loop, UV_RUN_NOWAIT);
                n = recv(fd, ret_answer + used, size - 1 - used, MSG_DONTWAIT);
                if (n == 0 || (n < 0 && errno == ECONNRESET))
                        break;
                if (n > 0)
                        used += (size_t)n;
                ck_assert_msg(time(NULL) < end, "no answer in %d s", PATIENCE_S);
        }
        ret_answer[used] = 0;
        close(fd);
}

static char answer[256 * 1024];

static const char *request_of(const char *host, const char *method, const char *path)
{
        char text[512];
        int fd = dial();

        snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                 method, path, host);
        say(fd, text);
        hear(fd, answer, sizeof(answer));
        return answer;
}

static const char *request(const char *method, const char *path)
{
        return request_of("127.0.0.1:9464", method, path);
}

static void assert_status(const char *text, int status)
{
        int found = 0;

        ck_assert_msg(sscanf(text, "HTTP/1.%*d %d", &found) == 1 && found == status,
                      "%d instead of %d: %.200s", found, status, text);
}

static const char *body_of(const char *text)
{
        const char *body = strstr(text, "\r\n\r\n");

        ck_assert_ptr_nonnull(body);
        return body + 4;
}

START_TEST(metrics_are_served_fresh)
{
        const char *text = request("GET", "/metrics");

        assert_status(text, 200);
        ck_assert_ptr_nonnull(strstr(text, "Content-Type: text/plain; version=0.0.4"));
        ck_assert_ptr_nonnull(strstr(text, "\nkvtier_sessions 42\n"));
        ck_assert_ptr_nonnull(strstr(text, "\nkvtier_http_requests_total 1\n"));
}
END_TEST

START_TEST(health_and_readiness_are_told_apart)
{
        const char *text = request("GET", "/healthz");

        assert_status(text, 200);
        ck_assert_str_eq(body_of(text), "ok\n");
        text = request("GET", "/readyz");
        assert_status(text, 200);
        ck_assert_str_eq(body_of(text), "ready\n");
        ready = 0;
        text = request("GET", "/readyz");
        assert_status(text, 503);
        ck_assert_str_eq(body_of(text), "not ready: no arena is up\n");
        assert_status(request("GET", "/healthz"), 200);
}
END_TEST

START_TEST(other_paths_are_not_found)
{
        assert_status(request("GET", "//"), 404);
        assert_status(request("GET", "/index.html"), 404);
        assert_status(request("GET", "/status"), 404);
        assert_status(request("GET", "/details.json/"), 404);
        assert_status(request("GET", "/metrics/"), 404);
        assert_status(request("GET", "/metrics/../metrics"), 404);
        assert_status(request("GET", "/%00"), 404);
        assert_status(request("GET", "/metrics%00x"), 404);
        assert_status(request("GET", "/METRICS"), 404);
        assert_status(request("GET", "/metrics?x=1"), 200);
}
END_TEST

START_TEST(the_page_comes_with_a_policy_that_lets_nothing_else_in)
{
        const char *text = request("GET", "/"), *policy, *end;

        assert_status(text, 200);
        ck_assert_ptr_nonnull(strstr(text, "\r\nContent-Type: text/html; charset=utf-8\r\n"));
        ck_assert_ptr_nonnull(strstr(text, "\r\nX-Content-Type-Options: nosniff\r\n"));
        ck_assert_ptr_nonnull(strstr(text, "\r\nReferrer-Policy: no-referrer\r\n"));
        policy = strstr(text, "\r\nContent-Security-Policy: default-src 'none'; ");
        ck_assert_ptr_nonnull(policy);
        end = strstr(policy + 2, "\r\n");
        ck_assert_ptr_nonnull(strstr(policy, "frame-ancestors 'none'"));
        ck_assert(!memmem(policy, (size_t)(end - policy), "unsafe", 6));
        ck_assert_int_eq(strncmp(body_of(text), "<!DOCTYPE html>", 15), 0);
        ck_assert_uint_eq(strlen(body_of(text)), status_page.length);
}
END_TEST

START_TEST(documents_are_made_for_each_request)
{
        const char *text = request("GET", "/status.json");

        assert_status(text, 200);
        ck_assert_ptr_nonnull(strstr(text, "\r\nContent-Type: application/json\r\n"));
        ck_assert_ptr_nonnull(strstr(text, "\r\nCache-Control: no-store\r\n"));
        ck_assert_ptr_nonnull(strstr(text, "\r\nCross-Origin-Resource-Policy: same-origin\r\n"));
        ck_assert_ptr_null(strstr(text, "Access-Control-Allow"));
        ck_assert_str_eq(body_of(text), "{\"which\":0,\"requests\":1}");
        text = request("GET", "/details.json?x");
        ck_assert_str_eq(body_of(text), "{\"which\":1,\"requests\":2}");
        text = request("GET", "/history.json");
        ck_assert_str_eq(body_of(text), "{\"which\":2,\"requests\":3}");
}
END_TEST

START_TEST(a_document_that_is_not_there_any_more_is_no_success)
{
        ready = 0;
        assert_status(request("GET", "/status.json"), 503);
        assert_status(request("GET", "/details.json"), 503);
        assert_status(request("GET", "/"), 200);
}
END_TEST

START_TEST(a_name_that_was_made_to_point_here_gets_no_document)
{
        static const char *const ours[] = {"localhost", "LocalHost:9464", "127.0.0.1",
                                           "[::1]:9464"};
        static const char *const others[] = {"evil.example", "localhost.evil.example:9464",
                                             "127.0.0.1.evil.example", "1a:9464", "localhos"};

        for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
                assert_status(request_of(ours[i], "GET", "/status.json"), 200);
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
                assert_status(request_of(others[i], "GET", "/status.json"), 403);
                assert_status(request_of(others[i], "GET", "/details.json"), 403);
                assert_status(request_of(others[i], "GET", "/history.json"), 403);
        }
        /* A scraper may call it what it likes. */
        assert_status(request_of("node-7.example", "GET", "/metrics"), 200);
}
END_TEST

START_TEST(head_has_no_body)
{
        const char *text = request("HEAD", "/metrics");

        assert_status(text, 200);
        ck_assert_str_eq(body_of(text), "");
}
END_TEST

START_TEST(other_methods_are_not_allowed)
{
        static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "get"};

        for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
                const char *text = request(methods[i], "/metrics");

                assert_status(text, 405);
                ck_assert_ptr_nonnull(strstr(text, "Allow: GET, HEAD"));
        }
}
END_TEST

START_TEST(a_posted_body_is_not_waited_for)
{
        int fd = dial();

        say(fd, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nstart");
        hear(fd, answer, sizeof(answer));
        assert_status(answer, 405);
}
END_TEST

START_TEST(garbage_ends_its_connection_alone)
{
        static const char *const garbage[] = {
                "\r\n\r\n\x01\x02\x03\r\n\r\n",
                "nonsense\r\n\r\n",
                "GET\r\n\r\n",
                "GET /metrics HTTP/9.9\r\n\r\n",
                "GET /metrics HTTP/1.1\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\nConnection: close\r\n\r\n",
        };

        for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
                int fd = dial();

                say(fd, garbage[i]);
                shutdown(fd, SHUT_WR);
                hear(fd, answer, sizeof(answer));
                ck_assert_msg(strncmp(answer, "HTTP/1.1 200", 12) != 0, "accepted: %s", garbage[i]);
        }
        assert_status(request("GET", "/healthz"), 200);
}
END_TEST

START_TEST(endless_headers_are_cut_off)
{
        int fd = dial();
        char line[1024];
        ssize_t n = 1;

        memset(line, 'a', sizeof(line));
        memcpy(line + sizeof(line) - 2, "\r\n", 2);
        memcpy(line, "x: ", 3);
        say(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\n");
        for (int i = 0; i < 1000 && n > 0; i++) {
                n = send(fd, line, sizeof(line), MSG_NOSIGNAL | MSG_DONTWAIT);
                uv_run(&loop, UV_RUN_NOWAIT);
        }
        hear(fd, answer, sizeof(answer));
        ck_assert_msg(!*answer || !strncmp(answer, "HTTP/1.1 4", 10), "%.100s", answer);
        assert_status(request("GET", "/healthz"), 200);
}
END_TEST

START_TEST(slow_clients_do_not_hold_others_up)
{
        int slow[40];

        /* Some say half a request, some never read a large answer. */
        for (size_t i = 0; i < 40; i++) {
                slow[i] = dial();
                say(slow[i], i % 2 ? "GET /met" : "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        }
        for (int i = 0; i < 20; i++)
                assert_status(request("GET", "/metrics"), 200);
        for (size_t i = 0; i < 40; i++)
                close(slow[i]);
        assert_status(request("GET", "/healthz"), 200);
}
END_TEST

START_TEST(connections_leave_nothing_behind)
{
        unsigned before;
        int fds[50];

        request("GET", "/healthz");
        before = count_fds();
        for (int round = 0; round < 10; round++) {
                for (int i = 0; i < 50; i++)
                        fds[i] = dial();
                for (int i = 0; i < 50; i++) {
                        if (i % 3 == 0)
                                say(fds[i], "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
                        uv_run(&loop, UV_RUN_NOWAIT);
                        close(fds[i]);
                }
                request("GET", "/healthz");
        }
        for (int i = 0; i < 200 && count_fds() > before; i++)
                request("GET", "/healthz");
        ck_assert_uint_le(count_fds(), before);
}
END_TEST

START_TEST(connections_beyond_the_limit_are_dropped_and_places_come_back)
{
        int fds[100];

        for (int i = 0; i < 100; i++) {
                fds[i] = dial();
                uv_run(&loop, UV_RUN_NOWAIT);
        }
        for (int i = 0; i < 100; i++)
                close(fds[i]);
        for (int i = 0; i < 10; i++)
                uv_run(&loop, UV_RUN_NOWAIT);
        assert_status(request("GET", "/healthz"), 200);
}
END_TEST

START_TEST(silent_connections_time_out)
{
        int fd = dial();

        /* The loop itself must wake up for it: nothing else happens. */
        hear(fd, answer, sizeof(answer));
        ck_assert_str_eq(answer, "");
}
END_TEST

START_TEST(closing_ends_open_connections)
{
        int fd = dial();

        say(fd, "GET /met");
        uv_run(&loop, UV_RUN_NOWAIT);
        stop();
        ck_assert(recv(fd, answer, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET);
        close(fd);
        start();
}
END_TEST

START_TEST(a_port_in_use_is_refused_with_the_reason)
{
        struct sockaddr_storage listen = {0};
        struct sockaddr_in *address = (struct sockaddr_in *)&listen;
        struct http_options options = {.listen = &listen, .metrics = &metrics};
        struct http *second = NULL;
        struct why why = {""};
        unsigned before = count_fds();

        address->sin_family = AF_INET;
        address->sin_port = htons(http_port(http));
        address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ck_assert_int_eq(http_new(&second, &loop, &options, &why), -EADDRINUSE);
        ck_assert_ptr_null(second);
        ck_assert_ptr_nonnull(
                strstr(why.text, "metrics.listen: Address already in use: name another"));
        ck_assert_uint_eq(count_fds(), before);
}
END_TEST

START_TEST(closing_nothing_is_answered_at_once)
{
        int closed = 0;

        http_close(NULL, on_closed, &closed);
        ck_assert_int_eq(closed, 1);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/http");
        TCase *serve = tcase_create("serve");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(serve, 30);
        tcase_add_checked_fixture(serve, start, stop);
        tcase_add_test(serve, metrics_are_served_fresh);
        tcase_add_test(serve, health_and_readiness_are_told_apart);
        tcase_add_test(serve, other_paths_are_not_found);
        tcase_add_test(serve, the_page_comes_with_a_policy_that_lets_nothing_else_in);
        tcase_add_test(serve, documents_are_made_for_each_request);
        tcase_add_test(serve, a_document_that_is_not_there_any_more_is_no_success);
        tcase_add_test(serve, a_name_that_was_made_to_point_here_gets_no_document);
        tcase_add_test(serve, head_has_no_body);
        tcase_add_test(serve, other_methods_are_not_allowed);
        tcase_add_test(serve, a_posted_body_is_not_waited_for);
        tcase_add_test(serve, garbage_ends_its_connection_alone);
        tcase_add_test(serve, endless_headers_are_cut_off);
        tcase_add_test(serve, slow_clients_do_not_hold_others_up);
        tcase_add_test(serve, connections_leave_nothing_behind);
        tcase_add_test(serve, connections_beyond_the_limit_are_dropped_and_places_come_back);
        tcase_add_test(serve, silent_connections_time_out);
        tcase_add_test(serve, closing_ends_open_connections);
        tcase_add_test(serve, a_port_in_use_is_refused_with_the_reason);
        tcase_add_test(serve, closing_nothing_is_answered_at_once);
        suite_add_tcase(suite, serve);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
