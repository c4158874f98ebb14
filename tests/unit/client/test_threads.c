// SPDX-License-Identifier: Apache-2.0
/*
 * One session used from many threads while the daemon answers, hangs up and comes back.
 * Says little by itself; meant to be run under the thread sanitizer too.
 */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_daemon.h"
#include "proto/message.h"

#define N_THREADS 4
#define N_ROUNDS  100
#define N_HANGUPS 4
#define N_MOVERS  2

static struct fake fake;
static struct kvt_session *session;
static _Atomic bool stopping, stopping_movers;
static _Atomic unsigned n_lost, n_moved;

static void answer(const struct wire_batch *batch)
{
        struct fake_item items[4];
        uint32_t n = batch->header.n_items;
        uint64_t request = batch->header.request;
        bool grants = batch->header.kind == WIRE_RESERVE;

        ck_assert_uint_le(n, 4);
        for (uint32_t i = 0; i < n; i++)
                items[i] = (struct fake_item){
                        .index = i,
                        .status = KVT_OK,
                        .lease = grants ? request * 8 + i : 0,
                        .bytes = grants ? FAKE_OBJECT : 0,
                        .offset = (request * 4 + i) % 64 * FAKE_OBJECT,
                };
        fake_result(&fake, request, false, items, n);
}

static void *serve(void *argument)
{
        unsigned n = 0, hangups = 0;

        while (!stopping) {
                ssize_t length = recv(fake.socket, fake.packet, sizeof(fake.packet), MSG_PEEK);
                const struct wire_header *header = (const void *)fake.packet;

                if (length <= 0)
                        break;
                if (header->kind == WIRE_COPIES_ENDED || header->kind == WIRE_CANCEL) {
                        fake_expect(&fake, header->kind);
                        fake_result(&fake, header->request, false, NULL, 0);
                        continue;
                }
                answer(fake_expect(&fake, header->kind));
                if (++n % 75 == 0 && hangups++ < N_HANGUPS) {
                        fake_hang_up(&fake);
                        fake_greet(&fake);
                }
        }
        return NULL;
}

static bool finish(enum kvt_status status, const uint64_t *call)
{
        struct kvt_completion completion;

        if (status != KVT_OK)
                return false;
        ck_assert_int_eq(kvt_wait_call(session, *call, &completion, UINT64_C(10000000000)), KVT_OK);
        return completion.status == KVT_OK;
}

static void *store(void *argument)
{
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};

        for (int stored = 0; stored < N_ROUNDS;) {
                struct kvt_object objects[2] = {{.bytes = FAKE_OBJECT}, {.bytes = FAKE_OBJECT}};
                uint64_t id;

                if (!finish(kvt_reserve(session, &call, objects, 2, &id), &id)) {
                        n_lost++;
                        usleep(1000); /* away: an engine would go on computing */
                        continue;
                }
                if (finish(kvt_commit(session, &call, objects, 2, &id), &id))
                        stored++;
                else
                        n_lost++;
        }
        return NULL;
}

/*
 * Stores pages, and writes to them as soon as it has been told of the end: were the copier
 * still reading, the sanitizer would say so. Every third call is cancelled.
 */
static void *move(void *argument)
{
        static uint8_t pages[N_MOVERS][2][FAKE_OBJECT];
        uint8_t *mine = pages[(uintptr_t)argument][0];
        static const uint32_t slots[] = {0, 1};
        struct kvt_page_view view = {
                .base = mine, .page_stride = FAKE_OBJECT, .row_bytes = FAKE_OBJECT};
        struct kvt_page_group group = {.n_pages = 2, .n_views = 1, .views = &view};
        struct kvt_call call = {.size = sizeof(call), .flags = KVT_CALL_WAITED};
        struct kvt_page_map *map;

        ck_assert_int_eq(kvt_page_map_new(session, &group, 1, &map, NULL, 0), KVT_OK);
        for (int round = 0; !stopping_movers; round++) {
                struct kvt_object objects[] = {{.slots = &slots[0], .n_slots = 1},
                                               {.slots = &slots[1], .n_slots = 1}};
                uint64_t id, cancel;

                memset(mine, round, sizeof(pages[0]));
                if (kvt_store_pages(session, &call, map, objects, 2, &id) != KVT_OK) {
                        usleep(1000);
                        continue;
                }
                if (round % 3 == 0)
                        finish(kvt_cancel(session, &call, id, &cancel), &cancel);
                n_moved += finish(KVT_OK, &id);
        }
        kvt_page_map_free(map);
        return NULL;
}

static void *look(void *argument)
{
        struct kvt_digest digests[64];
        struct kvt_match_query query = {.size = sizeof(query), .digests = digests, .n_digests = 64};
        struct kvt_match match = {.size = sizeof(match)};

        memset(digests, 1, sizeof(digests));
        while (!stopping) {
                ck_assert_int_eq(kvt_match(session, &query, &match), KVT_OK);
                ck_assert_uint_eq(match.boundaries, 0);
        }
        return NULL;
}

START_TEST(many_threads_share_a_session_over_hang_ups)
{
        pthread_t server, looker, movers[N_MOVERS], threads[N_THREADS];

        fake_start(&fake, false);
        session = fake_open(&fake);
        ck_assert_int_eq(pthread_create(&server, NULL, serve, NULL), 0);
        ck_assert_int_eq(pthread_create(&looker, NULL, look, NULL), 0);
        for (uintptr_t i = 0; i < N_MOVERS; i++)
                ck_assert_int_eq(pthread_create(&movers[i], NULL, move, (void *)i), 0);
        for (int i = 0; i < N_THREADS; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, store, NULL), 0);
        for (int i = 0; i < N_THREADS; i++)
                pthread_join(threads[i], NULL);
        stopping_movers = true;
        for (int i = 0; i < N_MOVERS; i++)
                pthread_join(movers[i], NULL);
        /* Each hang-up was felt, and none cost more than what was on its way. */
        ck_assert_uint_gt(n_lost, 0);
        ck_assert_uint_gt(n_moved, 0);
        stopping = true;
        pthread_join(looker, NULL);
        kvt_close(session);
        pthread_join(server, NULL);
        fake_stop(&fake);
}
END_TEST

/* Forks while other threads hold the session's lock most of the time. */
START_TEST(fork_in_the_middle_of_it_leaves_a_child_that_can_close)
{
        pthread_t server, threads[2];

        fake_start(&fake, false);
        session = fake_open(&fake);
        ck_assert_int_eq(pthread_create(&server, NULL, serve, NULL), 0);
        for (int i = 0; i < 2; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, store, NULL), 0);
        for (int i = 0; i < 20; i++) {
                pid_t pid = fork();
                int status;

                /* No assertions in the child: another thread may hold Check's lock. */
                if (!pid) {
                        kvt_close(session);
                        _exit(0);
                }
                ck_assert_int_gt(pid, 0);
                ck_assert_int_eq(waitpid(pid, &status, 0), pid);
                ck_assert(WIFEXITED(status) && !WEXITSTATUS(status));
        }
        for (int i = 0; i < 2; i++)
                pthread_join(threads[i], NULL);
        stopping = true;
        kvt_close(session);
        pthread_join(server, NULL);
        fake_stop(&fake);
}
END_TEST

static Suite *threads_suite(void)
{
        Suite *suite = suite_create("client/threads");
        TCase *tests = tcase_create("threads");

        tcase_set_timeout(tests, 60);
        tcase_add_test(tests, many_threads_share_a_session_over_hang_ups);
        tcase_add_test(tests, fork_in_the_middle_of_it_leaves_a_child_that_can_close);
        suite_add_tcase(suite, tests);
        return suite;
}

int main(void)
{
        SRunner *runner = srunner_create(threads_suite());
        int failed;

        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
