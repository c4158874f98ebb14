// SPDX-License-Identifier: Apache-2.0
/* Taking over what a dead node left, on RADOS and on S3: two at once, and one after another. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "storage/bundle.h"
#include "storage/pool_lease.h"
#include "storage/remote_gc.h"
#include "tests/remote/cluster.h"

enum { ON_RADOS, ON_S3, N_BACKENDS };

#define BUNDLES  150u /* more than a page */
#define SEGMENTS 5u
#define DEADLINE 10000u

static const uint8_t dead[16] = {0xde, 0xad, [15] = 1};
static uv_loop_t loop;
static char *prefix;
static uint64_t later_s;

/* ---- pools ---- */

static struct pool *open_pool(int backend)
{
        struct pool_rados_options rados = cluster_rados_options();
        struct pool_s3_options s3 = cluster_s3_options();
        struct why why = {""};
        struct pool *pool = NULL;
        int r;

        rados.prefix = s3.prefix = prefix;
        r = backend == ON_RADOS ? pool_rados_open(&pool, &loop, &rados, &why)
                                : pool_s3_open(&pool, &loop, &s3, &why);
        ck_assert_msg(r == 0, "%s", why.text);
        return pool;
}

static void set_flag(void *user)
{
        *(bool *)user = true;
}

static void run_until(const bool *is_so)
{
        while (!*is_so)
                uv_run(&loop, UV_RUN_ONCE);
}

static void close_pool(struct pool *pool)
{
        bool is_closed = false;

        pool->ops.close(pool, set_flag, &is_closed);
        run_until(&is_closed);
}

static void begin(void)
{
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        prefix = cluster_new_prefix();
        later_s = 0;
}

static void end(void)
{
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        free(prefix);
}

static void on_put(struct pool_put *put, int result)
{
        ck_assert_int_eq(result, 0);
        set_flag(put->user);
}

static void put_object(struct pool *pool, const char *name, void *bytes, size_t length)
{
        struct pool_buffer buffer = {bytes, length};
        bool is_done = false;
        struct pool_put put = {
                .name = name,
                .buffers = &buffer,
                .n_buffers = 1,
                .deadline_ms = DEADLINE,
                .on_done = on_put,
                .user = &is_done,
        };

        ck_assert_int_eq(pool->ops.put(pool, &put), 0);
        run_until(&is_done);
}

struct count {
        uint32_t n;
        bool is_done;
};

static void on_name(struct pool_list *list, const char *name, uint64_t bytes)
{
        ((struct count *)list->user)->n++;
}

static void on_listed(struct pool_list *list, int result, bool more)
{
        struct count *count = list->user;

        ck_assert_int_eq(result, 0);
        ck_assert(!more);
        count->is_done = true;
}

static uint32_t count(struct pool *pool, const char *kind)
{
        struct count count = {0};
        struct pool_list list = {
                .prefix = kind,
                .max = 1000,
                .deadline_ms = DEADLINE,
                .on_name = on_name,
                .on_done = on_listed,
                .user = &count,
        };

        ck_assert_int_eq(pool->ops.list(pool, &list), 0);
        run_until(&count.is_done);
        return count.n;
}

static void assert_nothing_left(struct pool *pool)
{
        ck_assert_uint_eq(count(pool, "bundle/"), 0);
        ck_assert_uint_eq(count(pool, "journal/"), 0);
        ck_assert_uint_eq(count(pool, "node/"), 0);
        ck_assert_uint_eq(count(pool, "lease/"), 0);
}

/* ---- what a dead node leaves ---- */

static void put_segment(struct pool *pool, uint64_t number)
{
        struct journal_record record = {.kind = JOURNAL_REPLACED};
        struct journal_segment segment;
        char name[POOL_NAME_MAX];

        record.key.domain = (uint32_t)number;
        journal_segment_init(&segment);
        ck_assert_int_eq(journal_segment_add(&segment, &record), 0);
        journal_segment_seal(&segment, dead, number);
        journal_name(name, dead, number);
        put_object(pool, name, segment.bytes, segment.length);
        journal_segment_deinit(&segment);
}

static uint64_t clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return ((uint64_t)now.tv_sec + later_s) * 1000000000u;
}

static void leave(struct pool *pool)
{
        struct journal_node node = {.host = "gone", .written_ns = clock_ns(), .heartbeat_s = 1};
        struct bundle_id id = {.number = 1};
        uint8_t bytes[JOURNAL_NODE_BYTES];
        char name[POOL_NAME_MAX];

        memcpy(node.node, dead, sizeof(dead));
        memcpy(id.node, dead, sizeof(dead));
        journal_node_encode(bytes, &node);
        for (; id.number <= BUNDLES; id.number++) {
                bundle_name(name, &id);
                put_object(pool, name, bytes, sizeof(bytes));
        }
        for (uint64_t number = 1; number <= SEGMENTS; number++)
                put_segment(pool, number);
        journal_node_name(name, dead);
        put_object(pool, name, bytes, sizeof(bytes));
        later_s = 100;
}

/* ---- takers ---- */

struct taker {
        struct pool *pool;
        struct remote_gc *gc;
        struct remote_gc_result result;
        bool is_ended, gives_up;
        uint32_t n_told;
        uv_timer_t timer; /* its journal */
        void (*on_told)(void *user, int result);
        void *on_told_user;
};

static void on_told(uv_timer_t *timer)
{
        struct taker *taker = timer->data;

        taker->on_told(taker->on_told_user, 0);
        if (taker->gives_up && !taker->is_ended)
                remote_gc_cancel(taker->gc);
}

static int append(void *user, const struct journal_record *records, uint32_t n_records,
                  void (*on_done)(void *user, int result), void *on_done_user)
{
        struct taker *taker = user;

        taker->n_told += n_records;
        taker->on_told = on_done;
        taker->on_told_user = on_done_user;
        return uv_timer_start(&taker->timer, on_told, 0, 0);
}

static void on_end(void *user, const struct remote_gc_result *result)
{
        struct taker *taker = user;

        taker->result = *result;
        taker->is_ended = true;
}

static void start(struct taker *taker, int backend, uint8_t number)
{
        struct remote_gc_options options = {
                .loop = &loop,
                .own = {number},
                .host = "taker",
                .older_than_s = 10,
                .deadline_ms = DEADLINE,
                .now_ns = clock_ns,
                .append = append,
                .on_end = on_end,
                .user = taker,
        };

        memcpy(options.node, dead, sizeof(dead));
        options.pool = taker->pool = open_pool(backend);
        uv_timer_init(&loop, &taker->timer);
        taker->timer.data = taker;
        ck_assert_int_eq(remote_gc_start(&taker->gc, &options), 0);
}

static void finish(struct taker *taker)
{
        run_until(&taker->is_ended);
        uv_close((uv_handle_t *)&taker->timer, NULL);
        close_pool(taker->pool);
}

START_TEST(gc_by_two_at_once_is_done_by_one)
{
        struct taker one = {0}, two = {0};
        struct pool *pool;

        begin();
        pool = open_pool(_i);
        leave(pool);
        start(&one, _i, 1);
        start(&two, _i, 2);
        finish(&one);
        finish(&two);
        ck_assert_msg(one.result.outcome + two.result.outcome == REMOTE_GC_E_BUSY &&
                              (!one.result.outcome || !two.result.outcome),
                      "%s %s", one.result.why.text, two.result.why.text);
        ck_assert_uint_eq(one.n_told + two.n_told, BUNDLES + SEGMENTS);
        assert_nothing_left(pool);
        close_pool(pool);
        end();
}
END_TEST

START_TEST(gc_that_was_broken_off_is_gone_on_with)
{
        struct taker one = {.gives_up = true}, busy = {0}, next = {0};
        struct pool *pool;

        begin();
        pool = open_pool(_i);
        leave(pool);
        start(&one, _i, 1);
        finish(&one);
        ck_assert_int_eq(one.result.outcome, -ECANCELED);
        ck_assert_uint_gt(count(pool, "bundle/"), 0);
        start(&busy, _i, 2);
        finish(&busy);
        ck_assert_int_eq(busy.result.outcome, REMOTE_GC_E_BUSY);
        later_s += REMOTE_GC_LEASE_S_DEFAULT + POOL_LEASE_MARGIN_S;
        start(&next, _i, 2);
        finish(&next);
        ck_assert_msg(!next.result.outcome, "%s", next.result.why.text);
        assert_nothing_left(pool);
        close_pool(pool);
        end();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("remote/gc");
        TCase *tcase = tcase_create("gc");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, gc_by_two_at_once_is_done_by_one, 0, N_BACKENDS);
        tcase_add_loop_test(tcase, gc_that_was_broken_off_is_gone_on_with, 0, N_BACKENDS);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
