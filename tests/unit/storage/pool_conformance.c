// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/pool_driver.h"
#include "tests/unit/storage/pool_conformance.h"

#define MIB        (1u << 20)
#define N_MANY     32u
#define N_LATE     8u
#define LATE_BYTES (64ull * MIB)
#define A_WHILE    200u /* ms, for what must not come */

static const struct pool_subject *subjects;
static const struct pool_subject *subject;
static uv_loop_t loop;
static void *made;
static struct pool *pool, *other; /* two nodes */

static void begin(int i)
{
        subject = &subjects[i];
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        made = subject->make(subject);
        pool = subject->open(subject, made, &loop);
        other = subject->open(subject, made, &loop);
}

static void end(void)
{
        pool_driver_close(&loop, pool);
        pool_driver_close(&loop, other);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        subject->remove(subject, made);
}

static uint8_t *fill(uint64_t length, uint32_t seed)
{
        uint8_t *bytes = malloc(length + 1);

        ck_assert_ptr_nonnull(bytes);
        for (uint64_t i = 0; i < length; i++)
                bytes[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
        return bytes;
}

static int put(const char *name, const void *bytes, uint64_t length)
{
        return pool_driver_put(&loop, pool, name, bytes, length, 0);
}

/* Is the object these bytes, to every node? */
static void check_object(const char *name, const uint8_t *bytes, uint64_t length)
{
        struct pool *nodes[] = {pool, other};

        for (int i = 0; i < 2; i++) {
                uint8_t *got = malloc(length + 10);
                uint64_t n;

                ck_assert_ptr_nonnull(got);
                memset(got, 0xee, length + 10);
                ck_assert_int_eq(pool_driver_get(&loop, nodes[i], name, 0, got, length + 9, &n), 0);
                ck_assert_uint_eq(n, length);
                ck_assert(!memcmp(got, bytes, length));
                ck_assert_uint_eq(got[length + 9], 0xee);
                free(got);
        }
}

START_TEST(pool_returns_the_bytes_of_every_size)
{
        static const uint64_t sizes[] = {0, 1, 4095, 65536, 3 * MIB + 1, 16 * MIB};

        begin(_i);
        for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                uint8_t *bytes = fill(sizes[i], i);

                ck_assert_int_eq(put("bundle/n/1", bytes, sizes[i]), 0);
                check_object("bundle/n/1", bytes, sizes[i]);
                free(bytes);
        }
        end();
}
END_TEST

static void on_put(struct pool_put *request, int result)
{
        *(int *)request->user = result;
        uv_stop(&loop);
}

START_TEST(buffers_of_a_put_follow_one_another)
{
        struct pool_buffer buffers[POOL_BUFFERS_MAX];
        uint8_t *bytes = fill(2 * MIB, 7);
        uint64_t at = 0;
        int result = 1; /* a result is never positive */
        struct pool_put request = {.name = "bundle/n/1",
                                   .buffers = buffers,
                                   .n_buffers = POOL_BUFFERS_MAX,
                                   .deadline_ms = POOL_DRIVER_DEADLINE_MS,
                                   .on_done = on_put,
                                   .user = &result};

        begin(_i);
        for (uint32_t i = 0; i < POOL_BUFFERS_MAX; i++) {
                /* Lengths of all kinds, empty ones too. */
                uint64_t length = i == POOL_BUFFERS_MAX - 1 ? 2 * MIB - at : i * 37 % 4001;

                buffers[i] = (struct pool_buffer){bytes + at, length};
                at += length;
        }
        ck_assert_int_eq(pool->ops.put(pool, &request), 0);
        while (result > 0)
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_int_eq(result, 0);
        check_object("bundle/n/1", bytes, 2 * MIB);
        free(bytes);
        end();
}
END_TEST

START_TEST(get_brings_the_range_that_was_asked_for)
{
        static const struct {
                uint64_t offset, length, n;
        } ranges[] = {{0, 1, 1},      {0, 100000, 100000}, {99999, 1, 1},      {99999, 2, 1},
                      {100000, 5, 0}, {200000, 5, 0},      {4096, 8192, 8192}, {1, 200000, 99999}};
        uint8_t *bytes = fill(100000, 3), got[200001];
        uint64_t n;

        begin(_i);
        ck_assert_int_eq(put("bundle/n/1", bytes, 100000), 0);
        for (uint32_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
                memset(got, 0xee, sizeof(got));
                ck_assert_int_eq(pool_driver_get(&loop, pool, "bundle/n/1", ranges[i].offset, got,
                                                 ranges[i].length, &n),
                                 0);
                ck_assert_uint_eq(n, ranges[i].n);
                ck_assert(!memcmp(got, bytes + ranges[i].offset % 100000, n));
                ck_assert_uint_eq(got[ranges[i].length], 0xee);
        }
        free(bytes);
        end();
}
END_TEST

START_TEST(put_replaces_the_whole_object)
{
        uint8_t *bytes = fill(70000, 1);

        begin(_i);
        ck_assert_int_eq(put("node/a", bytes, 70000), 0);
        ck_assert_int_eq(put("node/a", bytes + 5, 1000), 0);
        check_object("node/a", bytes + 5, 1000);
        free(bytes);
        end();
}
END_TEST

START_TEST(what_is_not_there_is_no_failure)
{
        struct pool_usage usage;
        uint8_t byte;
        uint64_t n;

        begin(_i);
        ck_assert_int_eq(pool_driver_get(&loop, pool, "bundle/n/1", 0, &byte, 1, &n), -ENOENT);
        ck_assert_int_eq(pool_driver_remove(&loop, pool, "bundle/n/1"), 0);
        pool->ops.usage(pool, &usage);
        ck_assert_uint_eq(usage.failures_total, 0);
        end();
}
END_TEST

START_TEST(exclusive_put_leaves_what_is_there)
{
        begin(_i);
        ck_assert_int_eq(pool_driver_put(&loop, pool, "lease/gc/1", "mine", 4, POOL_EXCLUSIVE), 0);
        ck_assert_int_eq(pool_driver_put(&loop, other, "lease/gc/1", "yours", 5, POOL_EXCLUSIVE),
                         -EEXIST);
        check_object("lease/gc/1", (const uint8_t *)"mine", 4);
        ck_assert_int_eq(pool_driver_remove(&loop, pool, "lease/gc/1"), 0);
        ck_assert_int_eq(pool_driver_put(&loop, other, "lease/gc/1", "yours", 5, POOL_EXCLUSIVE),
                         0);
        check_object("lease/gc/1", (const uint8_t *)"yours", 5);
        end();
}
END_TEST

START_TEST(of_many_exclusive_puts_one_wins)
{
        struct pool_driver_request requests[8];
        uint32_t n_won = 0, winner = 0;

        begin(_i);
        for (uint32_t i = 0; i < 8; i++)
                pool_driver_submit_put(&loop, i % 2 ? pool : other, &requests[i], "lease/gc/1",
                                       &"01234567"[i], 1, POOL_EXCLUSIVE, 0);
        for (uint32_t i = 0; i < 8; i++) {
                int r = pool_driver_wait(&requests[i]);

                ck_assert(r == 0 || r == -EEXIST);
                if (r)
                        continue;
                n_won++;
                winner = i;
        }
        ck_assert_uint_eq(n_won, 1);
        check_object("lease/gc/1", (const uint8_t *)&"01234567"[winner], 1);
        end();
}
END_TEST

START_TEST(removed_object_is_gone_for_all)
{
        struct pool_driver_request list;
        uint8_t byte;
        uint64_t n;

        begin(_i);
        ck_assert_int_eq(put("bundle/n/1", "x", 1), 0);
        ck_assert_int_eq(pool_driver_remove(&loop, other, "bundle/n/1"), 0);
        ck_assert_int_eq(pool_driver_get(&loop, pool, "bundle/n/1", 0, &byte, 1, &n), -ENOENT);
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "bundle/", NULL, 10), 0);
        ck_assert_uint_eq(list.n_names, 0);
        ck_assert(!list.more);
        end();
}
END_TEST

static void put_names(void)
{
        static const char *const names[] = {"journal/b/0002", "journal/a/0001", "journal/b/0001",
                                            "journal/c/0001", "journal/b/0010", "node/b",
                                            "journal/b/0003"};

        for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                ck_assert_int_eq(put(names[i], "0123456789", i + 1), 0);
}

START_TEST(list_is_in_order_and_of_the_prefix_alone)
{
        static const char *const order[] = {"journal/b/0001", "journal/b/0002", "journal/b/0003",
                                            "journal/b/0010"};
        static const uint64_t sizes[] = {3, 1, 7, 5};
        struct pool_driver_request list;

        begin(_i);
        put_names();
        ck_assert_int_eq(pool_driver_list(&loop, other, &list, "journal/b/", NULL, 10), 0);
        ck_assert_uint_eq(list.n_names, 4);
        ck_assert(!list.more);
        for (uint32_t i = 0; i < 4; i++) {
                ck_assert_str_eq(list.names[i], order[i]);
                ck_assert_uint_eq(list.sizes[i], sizes[i]);
        }
        ck_assert_int_eq(pool_driver_list(&loop, other, &list, "journal/", NULL, 10), 0);
        ck_assert_uint_eq(list.n_names, 6);
        ck_assert_str_eq(list.names[0], "journal/a/0001");
        ck_assert_str_eq(list.names[5], "journal/c/0001");
        ck_assert_int_eq(pool_driver_list(&loop, other, &list, "lease/", NULL, 10), 0);
        ck_assert_uint_eq(list.n_names, 0);
        end();
}
END_TEST

START_TEST(list_goes_on_after_a_name)
{
        struct pool_driver_request list;

        begin(_i);
        put_names();
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "journal/b/", NULL, 2), 0);
        ck_assert_uint_eq(list.n_names, 2);
        ck_assert(list.more);
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "journal/b/", "journal/b/0002", 2),
                         0);
        ck_assert_uint_eq(list.n_names, 2);
        ck_assert_str_eq(list.names[0], "journal/b/0003");
        /* A name that is not there is a place all the same. */
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "journal/b/", "journal/b/0004", 2),
                         0);
        ck_assert_uint_eq(list.n_names, 1);
        ck_assert_str_eq(list.names[0], "journal/b/0010");
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "journal/b/", "journal/b/0010", 2),
                         0);
        ck_assert_uint_eq(list.n_names, 0);
        ck_assert(!list.more);
        end();
}
END_TEST

START_TEST(requests_run_side_by_side)
{
        static struct pool_driver_request requests[N_MANY];
        static char names[N_MANY][POOL_NAME_MAX];
        uint8_t *bytes = fill(N_MANY * 100000ull, 9), *got = malloc(N_MANY * 100000ull);
        struct pool_usage usage;

        begin(_i);
        ck_assert_ptr_nonnull(got);
        for (uint32_t i = 0; i < N_MANY; i++) {
                snprintf(names[i], sizeof(names[i]), "bundle/n/%u", i);
                pool_driver_submit_put(&loop, pool, &requests[i], names[i], bytes + i * 100000ull,
                                       100000 - i, 0, 0);
        }
        pool->ops.usage(pool, &usage);
        ck_assert_uint_eq(usage.n_requests, N_MANY);
        for (uint32_t i = 0; i < N_MANY; i++)
                ck_assert_int_eq(pool_driver_wait(&requests[i]), 0);
        for (uint32_t i = 0; i < N_MANY; i++)
                pool_driver_submit_get(&loop, pool, &requests[i], names[i], 0, got + i * 100000ull,
                                       100000, 0);
        for (uint32_t i = 0; i < N_MANY; i++) {
                ck_assert_int_eq(pool_driver_wait(&requests[i]), 0);
                ck_assert_uint_eq(requests[i].n_bytes, 100000 - i);
                ck_assert(!memcmp(got + i * 100000ull, bytes + i * 100000ull, 100000 - i));
        }
        pool->ops.usage(pool, &usage);
        ck_assert_uint_eq(usage.n_requests, 0);
        ck_assert_uint_eq(usage.requests_total[0], N_MANY);
        ck_assert_uint_eq(usage.requests_total[1], N_MANY);
        ck_assert_uint_eq(usage.written_bytes_total, usage.read_bytes_total);
        ck_assert_uint_eq(usage.failures_total, 0);
        free(bytes);
        free(got);
        end();
}
END_TEST

/* Every get is given up a millisecond after it was asked for: one at least comes too late. */
START_TEST(late_reply_touches_nothing)
{
        static struct pool_driver_request requests[N_LATE];
        uint8_t *bytes = fill(LATE_BYTES, 5);
        uint32_t n_late = 0;
        uint64_t n;

        begin(_i);
        ck_assert_int_eq(put("bundle/n/1", bytes, LATE_BYTES), 0);
        if (subject->slow_down)
                subject->slow_down(pool);
        for (uint32_t i = 0; i < N_LATE; i++)
                pool_driver_submit_get(&loop, pool, &requests[i], "bundle/n/1", 0,
                                       bytes + i * LATE_BYTES / N_LATE, LATE_BYTES / N_LATE, 1);
        for (uint32_t i = 0; i < N_LATE; i++) {
                int r = pool_driver_wait(&requests[i]);

                ck_assert_msg(r == 0 || r == -ETIMEDOUT, "%s", strerror(-r));
                n_late += r == -ETIMEDOUT;
        }
        ck_assert_uint_gt(n_late, 0);
        /* Theirs no more, whatever is still under way. */
        memset(requests, 0, sizeof(requests));
        memset(bytes, 0xee, LATE_BYTES);
        ck_assert_int_eq(pool_driver_get(&loop, pool, "bundle/n/1", 0, bytes, 1, &n), 0);
        for (uint64_t i = 1; i < LATE_BYTES; i++)
                ck_assert(bytes[i] == 0xee);
        free(bytes);
        end();
}
END_TEST

START_TEST(close_waits_for_requests)
{
        static struct pool_driver_request requests[8];
        uint8_t *bytes = fill(8 * MIB, 5);

        subject = &subjects[_i];
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        made = subject->make(subject);
        pool = subject->open(subject, made, &loop);
        for (uint32_t i = 0; i < 8; i++)
                pool_driver_submit_put(&loop, pool, &requests[i], "node/a", bytes + i * MIB, MIB, 0,
                                       0);
        pool_driver_close(&loop, pool);
        for (uint32_t i = 0; i < 8; i++) {
                ck_assert(requests[i].is_done);
                ck_assert_int_eq(requests[i].result, 0);
        }
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        free(bytes);
        subject->remove(subject, made);
}
END_TEST

static void count(void *user)
{
        ++*(uint32_t *)user;
}

static void on_timeout(uv_timer_t *timer)
{
        *(bool *)timer->data = true;
        uv_stop(timer->loop);
}

static void run_for(uint64_t ms)
{
        bool is_over = false;
        uv_timer_t timer;

        uv_timer_init(&loop, &timer);
        timer.data = &is_over;
        uv_timer_start(&timer, on_timeout, ms, 0);
        while (!is_over)
                uv_run(&loop, UV_RUN_ONCE);
        uv_close((uv_handle_t *)&timer, NULL);
        uv_run(&loop, UV_RUN_NOWAIT);
}

START_TEST(hint_reaches_the_other_nodes)
{
        uint32_t n_own = 0, n_other = 0, before;

        begin(_i);
        ck_assert_ptr_nonnull(pool->ops.hint);
        other->on_hint = count;
        other->on_hint_user = &n_other;
        ck_assert_int_eq(put("journal/a/1", "x", 1), 0);
        /* A node that begins to listen may be told of what came before. */
        run_for(A_WHILE);
        pool->on_hint = count;
        pool->on_hint_user = &n_own;
        before = n_other;
        pool->ops.hint(pool);
        while (n_other == before)
                uv_run(&loop, UV_RUN_ONCE);
        run_for(A_WHILE);
        ck_assert_uint_eq(n_own, 0);
        end();
}
END_TEST

int pool_conformance_run(const char *suite_name, const struct pool_subject *subjects_,
                         uint32_t n_subjects)
{
        Suite *suite = suite_create(suite_name);
        TCase *tcase = tcase_create("pool");
        SRunner *runner = srunner_create(suite);
        int n_failed, n = (int)n_subjects;

        subjects = subjects_;
        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, pool_returns_the_bytes_of_every_size, 0, n);
        tcase_add_loop_test(tcase, buffers_of_a_put_follow_one_another, 0, n);
        tcase_add_loop_test(tcase, get_brings_the_range_that_was_asked_for, 0, n);
        tcase_add_loop_test(tcase, put_replaces_the_whole_object, 0, n);
        tcase_add_loop_test(tcase, what_is_not_there_is_no_failure, 0, n);
        tcase_add_loop_test(tcase, exclusive_put_leaves_what_is_there, 0, n);
        tcase_add_loop_test(tcase, of_many_exclusive_puts_one_wins, 0, n);
        tcase_add_loop_test(tcase, removed_object_is_gone_for_all, 0, n);
        tcase_add_loop_test(tcase, list_is_in_order_and_of_the_prefix_alone, 0, n);
        tcase_add_loop_test(tcase, list_goes_on_after_a_name, 0, n);
        tcase_add_loop_test(tcase, requests_run_side_by_side, 0, n);
        tcase_add_loop_test(tcase, late_reply_touches_nothing, 0, n);
        tcase_add_loop_test(tcase, close_waits_for_requests, 0, n);
        for (int i = 0; i < n; i++)
                if (!subjects[i].has_no_hints)
                        tcase_add_loop_test(tcase, hint_reaches_the_other_nodes, i, i + 1);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
