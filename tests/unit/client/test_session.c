// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_daemon.h"
#include "proto/message.h"
#include "tests/support/fds.h"

static struct fake fake;

START_TEST(open_attaches_and_close_leaves_no_fd)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        struct kvt_session *session;
        unsigned before;

        fake_start(&fake, false);
        before = count_fds();
        session = fake_open(&fake);
        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        ck_assert_uint_eq(info.attached, 1);
        ck_assert_uint_eq(info.chunk_tokens, FAKE_CHUNK);
        ck_assert_uint_eq(info.host_bytes, FAKE_ARENAS * FAKE_ARENA_BYTES);
        ck_assert_mem_eq(info.boot_id, fake.boot_id, 16);
        kvt_close(session);
        fake_hang_up(&fake);
        ck_assert_uint_eq(count_fds(), before);
        fake_stop(&fake);
}
END_TEST

START_TEST(open_without_a_daemon_gives_a_session_that_misses)
{
        struct kvt_digest digest = {{1}};
        struct kvt_match_query query = {.size = sizeof(query), .digests = &digest, .n_digests = 1};
        struct kvt_match match = {.size = sizeof(match), .boundaries = 9};
        struct kvt_options options;
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct kvt_session *session = NULL;
        char why[128];

        fake_start(&fake, false);
        options = (struct kvt_options){.size = sizeof(options),
                                       .socket = "/nowhere/socket",
                                       .layout = &fake.layout,
                                       .connect_timeout_ns = 20000000};
        ck_assert_int_eq(kvt_open(&session, &options, why, sizeof(why)), KVT_UNAVAILABLE);
        ck_assert_ptr_nonnull(session);
        ck_assert_str_eq(why, "connecting to /nowhere/socket: No such file or directory");
        ck_assert_int_eq(kvt_match(session, &query, &match), KVT_OK);
        ck_assert_uint_eq(match.boundaries, 0);
        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_UNAVAILABLE);
        kvt_close(session);
        fake_stop(&fake);
}
END_TEST

START_TEST(open_returns_the_text_of_a_refused_greeting)
{
        char why[128];

        fake_start(&fake, false);
        fake.welcome_status = KVT_DENIED;
        fake.why = "uid 7 is not in the group kvtier";
        ck_assert_int_eq(fake_open_refused(&fake, why, sizeof(why)), KVT_DENIED);
        ck_assert_str_eq(why, fake.why);
        fake_stop(&fake);
}
END_TEST

START_TEST(open_returns_the_text_of_a_refused_layout)
{
        char why[128];

        fake_start(&fake, false);
        fake.attached_status = KVT_INVALID;
        fake.why = "chunk_tokens is 17, expected 16";
        ck_assert_int_eq(fake_open_refused(&fake, why, sizeof(why)), KVT_INVALID);
        ck_assert_str_eq(why, fake.why);
        fake_stop(&fake);
}
END_TEST

START_TEST(open_refuses_a_table_without_seals)
{
        char why[128];

        fake.leave_table_unsealed = true;
        fake_start(&fake, false);
        ck_assert_int_eq(fake_open_refused(&fake, why, sizeof(why)), KVT_REFUSED);
        ck_assert_ptr_nonnull(strstr(why, "the presence table is not sealed"));
        fake_stop(&fake);
}
END_TEST

START_TEST(open_refuses_arenas_without_seals)
{
        char why[128];

        fake.leave_arenas_unsealed = true;
        fake_start(&fake, false);
        ck_assert_int_eq(fake_open_refused(&fake, why, sizeof(why)), KVT_REFUSED);
        ck_assert_ptr_nonnull(strstr(why, "an arena is not sealed"));
        fake_stop(&fake);
}
END_TEST

START_TEST(open_explains_a_bad_layout)
{
        struct kvt_options options = {.size = sizeof(options), .socket = "/nowhere"};
        struct kvt_session *session = NULL;
        struct kvt_layout layout;
        char why[256];

        fake_start(&fake, false);
        layout = fake.layout;
        layout.chunk_tokens = FAKE_CHUNK + 1;
        options.layout = &layout;
        ck_assert_int_eq(kvt_open(&session, &options, why, sizeof(why)), KVT_INVALID);
        ck_assert_ptr_nonnull(strstr(why, "chunk_tokens is 17, no multiple of this group"));
        layout.size = 0;
        ck_assert_int_eq(kvt_open(&session, &options, why, sizeof(why)), KVT_INVALID);
        ck_assert_ptr_null(session);
        fake_stop(&fake);
}
END_TEST

static void send_garbage(void)
{
        fake_send(&fake, "this is not a message", 21, -1);
}

static void send_unknown_request(void)
{
        struct fake_item item = {.status = KVT_OK, .lease = 1, .bytes = FAKE_OBJECT};

        fake_result(&fake, 4711, false, &item, 1);
}

static void send_message_of_another_session(void)
{
        fake.session--;
        fake_result(&fake, 1, false, NULL, 0);
        fake.session++;
}

/* The session has named a whole layout: it waits for none. */
static void send_layout(void)
{
        struct wire_layout layout = {.layout = 8, .layout_bytes = 4};
        struct message_builder builder;
        _Alignas(8) uint8_t packet[128];

        message_header_init(&layout.header, WIRE_LAYOUT, 0, fake.session, fake.boot_id);
        message_builder_init(&builder, packet, &layout, sizeof(layout));
        ck_assert_int_eq(message_append(&builder, "KVTL", 4, 0), 0);
        fake_send(&fake, packet, builder.length, -1);
}

static void (*const nonsense[])(void) = {send_garbage, send_unknown_request,
                                         send_message_of_another_session, send_layout};

START_TEST(nonsense_from_the_daemon_is_a_hang_up_and_a_new_connection)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        struct kvt_session *session;

        fake_start(&fake, false);
        session = fake_open(&fake);
        nonsense[_i]();
        fake_expect_hang_up(&fake);
        fake_greet(&fake);
        fake_await(session, true);
        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        ck_assert_uint_eq(info.reconnects, 1);
        kvt_close(session);
        fake_stop(&fake);
}
END_TEST

START_TEST(a_new_run_of_the_daemon_replaces_arenas_and_boot_id)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        struct kvt_session *session;

        fake_start(&fake, false);
        session = fake_open(&fake);
        fake_restart(&fake);
        fake_await(session, false);
        fake_greet(&fake);
        fake_await(session, true);
        ck_assert_int_eq(kvt_session_info(session, &info), KVT_OK);
        ck_assert_mem_eq(info.boot_id, fake.boot_id, 16);
        kvt_close(session);
        fake_stop(&fake);
}
END_TEST

/* In a child: exit code 0 when every function says that it is the parent's session. */
static int child(struct kvt_session *session, unsigned fds_before)
{
        struct kvt_session_info info = {.size = sizeof(info)};
        struct kvt_match_query query = {.size = sizeof(query)};
        struct kvt_match match = {.size = sizeof(match)};
        struct kvt_object object = {.bytes = 1};
        struct kvt_completion completion;

        if (kvt_session_info(session, &info) != KVT_FORKED ||
            kvt_reserve(session, NULL, &object, 1, NULL) != KVT_FORKED ||
            kvt_match(session, &query, &match) != KVT_FORKED ||
            kvt_cancel(session, NULL, 1, NULL) != KVT_FORKED ||
            kvt_wait_call(session, 1, &completion, 0) != KVT_FORKED)
                return 1;
        if (kvt_fd(session) != -1 || kvt_poll(session, &completion, 1))
                return 2;
        if (count_fds() != fds_before)
                return 3;
        kvt_close(session);
        return 0;
}

START_TEST(a_forked_child_has_no_session_no_fds_and_no_arena)
{
        struct fake_item item = {.status = KVT_OK, .lease = 9, .bytes = FAKE_OBJECT};
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct kvt_completion completion;
        struct kvt_session *session;
        unsigned char resident;
        unsigned before;
        pid_t pid;
        int status;

        fake_start(&fake, false);
        before = count_fds();
        session = fake_open(&fake);
        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_OK);
        fake_result(&fake, ((const struct wire_header *)fake_expect(&fake, WIRE_RESERVE))->request,
                    false, &item, 1);
        ck_assert_uint_eq(kvt_wait(session, &completion, 1, UINT64_MAX), 1);

        pid = fork();
        if (!pid) {
                void *page = object.segments[0].address;

                /* The fake's own connection is inherited, the library's fds are not. */
                if (!mincore(page, 4096, &resident))
                        _exit(4);
                _exit(child(session, before + 1));
        }
        ck_assert_int_gt(pid, 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(WEXITSTATUS(status), 0);
        ck_assert(WIFEXITED(status));

        /* The parent's session is none the worse. */
        memset(object.segments[0].address, 1, FAKE_OBJECT);
        ck_assert_int_eq(kvt_abort(session, NULL, &object, 1, NULL), KVT_OK);
        fake_expect(&fake, WIRE_ABORT);
        fake_hang_up(&fake);
        kvt_close(session);
        fake_stop(&fake);
}
END_TEST

static void *close_in_thread(void *session)
{
        kvt_close(session);
        return NULL;
}

START_TEST(close_gives_back_what_the_session_holds)
{
        struct fake_item item = {.status = KVT_OK, .lease = 9, .bytes = FAKE_OBJECT};
        struct kvt_object object = {.bytes = FAKE_OBJECT};
        struct kvt_completion completion;
        struct kvt_session *session;
        uint64_t lease;
        struct message_cursor cursor;
        pthread_t thread;

        fake_start(&fake, false);
        session = fake_open(&fake);
        ck_assert_int_eq(kvt_reserve(session, NULL, &object, 1, NULL), KVT_OK);
        fake_result(&fake, ((const struct wire_header *)fake_expect(&fake, WIRE_RESERVE))->request,
                    false, &item, 1);
        ck_assert_uint_eq(kvt_wait(session, &completion, 1, UINT64_MAX), 1);
        ck_assert_int_eq(pthread_create(&thread, NULL, close_in_thread, session), 0);
        message_cursor_init(&cursor, fake_expect(&fake, WIRE_ABORT));
        ck_assert_int_eq(message_next_lease(&cursor, &lease), 0);
        ck_assert_uint_eq(lease, 9);
        fake_hang_up(&fake);
        pthread_join(thread, NULL);
        fake_stop(&fake);
}
END_TEST

static Suite *session_suite(void)
{
        Suite *suite = suite_create("client/session");
        TCase *tests = tcase_create("session");

        tcase_set_timeout(tests, 20);
        tcase_add_test(tests, open_attaches_and_close_leaves_no_fd);
        tcase_add_test(tests, open_without_a_daemon_gives_a_session_that_misses);
        tcase_add_test(tests, open_returns_the_text_of_a_refused_greeting);
        tcase_add_test(tests, open_returns_the_text_of_a_refused_layout);
        tcase_add_test(tests, open_refuses_a_table_without_seals);
        tcase_add_test(tests, open_refuses_arenas_without_seals);
        tcase_add_test(tests, open_explains_a_bad_layout);
        tcase_add_loop_test(tests, nonsense_from_the_daemon_is_a_hang_up_and_a_new_connection, 0,
                            sizeof(nonsense) / sizeof(nonsense[0]));
        tcase_add_test(tests, a_new_run_of_the_daemon_replaces_arenas_and_boot_id);
        tcase_add_test(tests, a_forked_child_has_no_session_no_fds_and_no_arena);
        tcase_add_test(tests, close_gives_back_what_the_session_holds);
        suite_add_tcase(suite, tests);
        return suite;
}

int main(void)
{
        SRunner *runner = srunner_create(session_suite());
        int failed;

        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
