// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/bundle.h"
#include "storage/pool_lease.h"
#include "storage/remote_gc.h"
#include "tests/support/fake_pool.h"
#include "tests/support/scratch.h"

#define NOW_S   UINT64_C(1000000)
#define S_NS    UINT64_C(1000000000)
#define LIMIT_S 100u
#define LEASE_S 60u

#define BUNDLES  300u /* several pages */
#define SEGMENTS 20u
#define DEAD     "dead0000000000000000000000000000"

static const uint8_t dead[16] = {0xde, 0xad};
static const uint8_t first[16] = {1}, second[16] = {2};

static uv_loop_t loop;
static char folder[64];
static struct pool *pool;
static uint64_t now_s;

/* One who collects, and what it told in its journal. */
struct taker {
        struct pool *pool;
        struct remote_gc *gc;
        struct remote_gc_result result;
        bool ended;
        uint32_t n_deleted, n_replaced;
        uint32_t n_told_max; /* at once */
        bool told_late;      /* a bundle or a record had gone before it was told */
        bool fails;
        uint64_t advance_s; /* the clock goes on so far with each page told */
};

static uint64_t clock_ns(void)
{
        return now_s * S_NS;
}

static void set_up(void)
{
        scratch_make(folder, sizeof(folder));
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_int_eq(fake_pool_open(&pool, &loop, folder), 0);
        now_s = NOW_S;
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

static void close_pool(struct pool *which)
{
        bool is_closed = false;

        which->ops.close(which, on_closed, &is_closed);
        while (!is_closed)
                uv_run(&loop, UV_RUN_NOWAIT);
}

static void tear_down(void)
{
        close_pool(pool);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        scratch_remove(folder);
}

static void on_put(struct pool_put *put, int result)
{
        ck_assert_int_eq(result, 0);
        *(bool *)put->user = true;
}

static void put_object(const char *name, void *bytes, size_t length)
{
        struct pool_buffer buffer = {bytes, length};
        bool is_done = false;
        struct pool_put put = {
                .name = name,
                .buffers = &buffer,
                .n_buffers = 1,
                .deadline_ms = 1000,
                .on_done = on_put,
                .user = &is_done,
        };

        ck_assert_int_eq(pool->ops.put(pool, &put), 0);
        while (!is_done)
                uv_run(&loop, UV_RUN_NOWAIT);
}

static void put_heartbeat(uint64_t written_s, uint32_t heartbeat_s)
{
        struct journal_node node = {
                .host = "gone.example",
                .written_ns = written_s * S_NS,
                .heartbeat_s = heartbeat_s,
        };
        uint8_t bytes[JOURNAL_NODE_BYTES];
        char name[POOL_NAME_MAX];

        memcpy(node.node, dead, sizeof(dead));
        journal_node_encode(bytes, &node);
        journal_node_name(name, dead);
        put_object(name, bytes, sizeof(bytes));
}

static void put_segment(uint64_t number)
{
        struct journal_record stored = {.kind = JOURNAL_DELETED};
        struct journal_record replaced = {.kind = JOURNAL_REPLACED, .checksum_total = 99};
        struct journal_segment segment;
        char name[POOL_NAME_MAX];

        replaced.key.domain = (uint32_t)number;
        journal_segment_init(&segment);
        ck_assert_int_eq(journal_segment_add(&segment, &stored), 0);
        ck_assert_int_eq(journal_segment_add(&segment, &replaced), 0);
        journal_segment_seal(&segment, dead, number);
        journal_name(name, dead, number);
        put_object(name, segment.bytes, segment.length);
        journal_segment_deinit(&segment);
}

/* What a node leaves that died long ago, and a bundle of another that lives. */
static void leave(uint32_t n_bundles, uint32_t n_segments)
{
        char name[POOL_NAME_MAX], bytes[10] = "";

        for (uint32_t i = 0; i < n_bundles; i++) {
                struct bundle_id id = {.node = {0xde, 0xad}, .number = i};

                bundle_name(name, &id);
                put_object(name, bytes, sizeof(bytes));
        }
        for (uint32_t i = 0; i < n_segments; i++)
                put_segment(i + 5);
        bundle_name(name, &(struct bundle_id){.node = {0xde, 0xae}, .number = 1});
        put_object(name, bytes, sizeof(bytes));
        put_heartbeat(NOW_S - LIMIT_S - 1, 10);
}

static uint32_t count(const char *prefix)
{
        return fake_pool_count(folder, prefix, NULL);
}

/* Nothing but the other node's bundle. */
static void assert_all_gone(void)
{
        ck_assert_uint_eq(count("bundle/" DEAD), 0);
        ck_assert_uint_eq(count("journal/"), 0);
        ck_assert_uint_eq(count("node/"), 0);
        ck_assert_uint_eq(count("lease/"), 0);
        ck_assert_uint_eq(count(""), 1);
}

struct append {
        uv_timer_t timer;
        void (*on_done)(void *user, int result);
        void *user;
        int result;
};

static void on_append_closed(uv_handle_t *handle)
{
        free(handle);
}

static void on_append_due(uv_timer_t *timer)
{
        struct append *append = (struct append *)timer;

        append->on_done(append->user, append->result);
        uv_close((uv_handle_t *)timer, on_append_closed);
}

static void look_at(struct taker *taker, const struct journal_record *record)
{
        char name[POOL_NAME_MAX];

        if (record->kind == JOURNAL_DELETED) {
                bundle_name(name, &record->bundle);
                taker->n_deleted++;
        } else {
                ck_assert_int_eq(record->kind, JOURNAL_REPLACED);
                ck_assert_uint_eq(record->checksum_total, 0);
                journal_name(name, dead, record->key.domain);
                taker->n_replaced++;
        }
        if (!fake_pool_has(folder, name))
                taker->told_late = true;
}

static int append_records(void *user, const struct journal_record *records, uint32_t n_records,
                          void (*on_done)(void *user, int result), void *on_done_user)
{
        struct taker *taker = user;
        struct append *append = calloc(1, sizeof(*append));

        ck_assert_ptr_nonnull(append);
        append->on_done = on_done;
        append->user = on_done_user;
        append->result = taker->fails ? -EIO : 0;
        for (uint32_t i = 0; i < n_records; i++)
                look_at(taker, &records[i]);
        if (n_records > taker->n_told_max)
                taker->n_told_max = n_records;
        now_s += taker->advance_s;
        uv_timer_init(&loop, &append->timer);
        uv_timer_start(&append->timer, on_append_due, 0, 0);
        return 0;
}

static void on_end(void *user, const struct remote_gc_result *result)
{
        struct taker *taker = user;

        ck_assert(!taker->ended);
        ck_assert_int_eq(!result->outcome, !*result->why.text);
        taker->result = *result;
        taker->ended = true;
}

static void start(struct taker *taker, const uint8_t own[16])
{
        struct remote_gc_options options = {
                .loop = &loop,
                .pool = taker->pool ? taker->pool : pool,
                .host = own == first ? "host-1" : "host-2",
                .older_than_s = LIMIT_S,
                .lease_s = LEASE_S,
                .deadline_ms = 200,
                .now_ns = clock_ns,
                .append = append_records,
                .on_end = on_end,
                .user = taker,
        };

        memcpy(options.own, own, sizeof(options.own));
        memcpy(options.node, dead, sizeof(options.node));
        taker->ended = false;
        ck_assert_int_eq(remote_gc_start(&taker->gc, &options), 0);
        ck_assert(!taker->ended);
}

static void finish(struct taker *taker)
{
        while (!taker->ended)
                uv_run(&loop, UV_RUN_NOWAIT);
}

static int collect(struct taker *taker, const uint8_t own[16])
{
        start(taker, own);
        finish(taker);
        return taker->result.outcome;
}

START_TEST(gc_removes_all_that_a_dead_node_left)
{
        struct taker taker = {0};

        leave(BUNDLES, SEGMENTS);
        ck_assert_int_eq(collect(&taker, first), 0);
        assert_all_gone();
        ck_assert_uint_eq(taker.result.bundles, BUNDLES);
        ck_assert_uint_eq(taker.result.bytes, 10 * BUNDLES);
        ck_assert_uint_eq(taker.result.segments, SEGMENTS);
        ck_assert_uint_eq(taker.result.damaged, 0);
        ck_assert_uint_eq(taker.result.age_s, LIMIT_S + 1);
        ck_assert_str_eq(taker.result.host, "gone.example");
}
END_TEST

START_TEST(gc_tells_what_goes_before_it_goes)
{
        struct taker taker = {0};

        leave(BUNDLES, SEGMENTS);
        ck_assert_int_eq(collect(&taker, first), 0);
        ck_assert_uint_eq(taker.n_deleted, BUNDLES);
        ck_assert_uint_eq(taker.n_replaced, SEGMENTS);
        ck_assert(!taker.told_late);
}
END_TEST

START_TEST(gc_removes_nothing_that_it_could_not_tell)
{
        struct taker taker = {.fails = true};

        leave(3, 2);
        ck_assert_int_eq(collect(&taker, first), -EIO);
        ck_assert_uint_eq(count("bundle/" DEAD), 3);
        ck_assert_uint_eq(count("journal/"), 2);
}
END_TEST

START_TEST(gc_leaves_a_living_node_alone)
{
        struct taker taker = {0};

        leave(3, 2);
        put_heartbeat(NOW_S - LIMIT_S, 10);
        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_ALIVE);
        ck_assert_ptr_nonnull(strstr(taker.result.why.text, "100 s"));
        ck_assert_uint_eq(taker.result.limit_s, LIMIT_S);
        ck_assert_uint_eq(count("bundle/" DEAD), 3);
        ck_assert_uint_eq(count("lease/"), 0);
        /* Its own word counts for more than the caller's. */
        put_heartbeat(NOW_S - LIMIT_S - 50, 80);
        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_ALIVE);
        ck_assert_uint_eq(taker.result.limit_s, 160);
        ck_assert_uint_eq(count("bundle/" DEAD), 3);
}
END_TEST

START_TEST(gc_refuses_the_node_it_runs_on)
{
        struct remote_gc_options options = {.pool = pool, .host = "", .own = {7}, .node = {7}};
        struct remote_gc *gc;

        ck_assert_int_eq(remote_gc_start(&gc, &options), REMOTE_GC_E_OWN);
}
END_TEST

START_TEST(gc_of_a_node_that_was_never_there_says_so)
{
        struct taker taker = {0};

        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_UNKNOWN);
        ck_assert_uint_eq(count(""), 0);
}
END_TEST

/* How the heartbeat says nothing. */
static void lose_heartbeat(int how)
{
        char name[POOL_NAME_MAX];

        journal_node_name(name, dead);
        if (how == 0)
                fake_pool_drop(folder, name);
        else if (how == 1)
                fake_pool_flip(folder, name, 100);
        else if (how == 2)
                fake_pool_resize(folder, name, 20);
        else
                put_heartbeat(NOW_S + 2 * LIMIT_S, 10);
}

START_TEST(gc_puts_a_heartbeat_where_none_tells_the_age)
{
        struct taker taker = {0};

        leave(3, 2);
        lose_heartbeat(_i);
        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_NO_HEARTBEAT);
        ck_assert_uint_eq(count("bundle/" DEAD), 3);
        ck_assert_int_eq(collect(&taker, second), REMOTE_GC_E_ALIVE);
        now_s += LIMIT_S + 1;
        ck_assert_int_eq(collect(&taker, first), 0);
        assert_all_gone();
}
END_TEST

START_TEST(gc_by_two_at_once_is_done_by_one)
{
        struct taker one = {0}, two = {0};
        int sum;

        leave(BUNDLES, SEGMENTS);
        ck_assert_int_eq(fake_pool_open(&two.pool, &loop, folder), 0);
        start(&one, first);
        start(&two, second);
        finish(&one);
        finish(&two);
        sum = (one.result.outcome == REMOTE_GC_E_BUSY) + (two.result.outcome == REMOTE_GC_E_BUSY);
        ck_assert_int_eq(sum, 1);
        ck_assert_int_eq(one.result.outcome + two.result.outcome, REMOTE_GC_E_BUSY);
        ck_assert_uint_eq(one.n_deleted + two.n_deleted, BUNDLES);
        assert_all_gone();
        close_pool(two.pool);
}
END_TEST

static void put_lease(const uint8_t holder[16], uint64_t epoch, uint64_t written_s,
                      uint32_t seconds)
{
        struct pool_lease lease = {
                .host = "holder.example",
                .epoch = epoch,
                .written_ns = written_s * S_NS,
                .seconds = seconds,
        };
        uint8_t bytes[POOL_LEASE_BYTES];
        char name[POOL_NAME_MAX];

        memcpy(lease.node, dead, sizeof(dead));
        memcpy(lease.holder, holder, sizeof(lease.holder));
        pool_lease_encode(bytes, &lease);
        pool_name_number(name, POOL_LEASE_KIND, dead, epoch);
        put_object(name, bytes, sizeof(bytes));
}

START_TEST(gc_waits_for_a_lease_to_lapse)
{
        const uint64_t lapse_s = NOW_S + LEASE_S + POOL_LEASE_MARGIN_S;
        struct taker taker = {0};

        leave(3, 2);
        put_lease(second, 7, NOW_S, LEASE_S);
        now_s = lapse_s - 1;
        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_BUSY);
        ck_assert_ptr_nonnull(strstr(taker.result.why.text, "holder.example"));
        ck_assert_ptr_nonnull(strstr(taker.result.why.text, "1 s"));
        ck_assert_uint_eq(count("bundle/" DEAD), 3);
        now_s = lapse_s;
        ck_assert_int_eq(collect(&taker, first), 0);
        assert_all_gone();
}
END_TEST

/* More than a page of names. */
START_TEST(gc_finds_the_last_of_many_leases)
{
        struct taker taker = {0};

        leave(3, 2);
        for (uint64_t epoch = 1; epoch < 150; epoch++)
                put_lease(second, epoch, NOW_S - 100 * LEASE_S, LEASE_S);
        ck_assert_int_eq(collect(&taker, first), 0);
        assert_all_gone();
        leave(3, 2);
        for (uint64_t epoch = 1; epoch < 150; epoch++)
                put_lease(second, epoch, epoch < 149 ? NOW_S - 100 * LEASE_S : NOW_S, LEASE_S);
        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_BUSY);
        ck_assert_uint_eq(count("bundle/" DEAD), 3);
}
END_TEST

START_TEST(gc_goes_on_under_its_own_earlier_lease)
{
        struct taker taker = {0};

        leave(3, 2);
        put_lease(first, 7, NOW_S, LEASE_S);
        ck_assert_int_eq(collect(&taker, first), 0);
        assert_all_gone();
}
END_TEST

START_TEST(gc_is_not_held_up_for_ever_by_a_lease)
{
        struct taker taker = {0};
        char name[POOL_NAME_MAX];

        leave(3, 2);
        put_lease(second, UINT64_MAX, NOW_S, LEASE_S); /* no name of ours */
        ck_assert_int_eq(collect(&taker, first), 0);
        ck_assert_uint_eq(count("lease/"), 1);
        pool_name_number(name, POOL_LEASE_KIND, dead, UINT64_MAX);
        fake_pool_drop(folder, name);
        leave(3, 2);
        put_lease(second, 7, NOW_S + 1000, LEASE_S); /* a clock that was wrong */
        ck_assert_int_eq(collect(&taker, first), 0);
        leave(3, 2);
        put_lease(second, 7, NOW_S, UINT32_MAX);
        ck_assert_int_eq(collect(&taker, first), 0);
        leave(3, 2);
        put_lease(second, 7, NOW_S, LEASE_S);
        pool_name_number(name, POOL_LEASE_KIND, dead, 7);
        fake_pool_flip(folder, name, 60);
        ck_assert_int_eq(collect(&taker, first), 0);
        assert_all_gone();
}
END_TEST

static uint32_t n_lease_puts;

static void count_lease_put(void *user, enum fake_pool_kind kind, const char *name)
{
        n_lease_puts += kind == FAKE_POOL_PUT && !strncmp(name, "lease/", 6);
}

START_TEST(gc_renews_its_lease_as_it_goes)
{
        struct taker taker = {.advance_s = LEASE_S / 3};

        leave(BUNDLES, SEGMENTS);
        n_lease_puts = 0;
        fake_pool_watch(pool, count_lease_put, NULL);
        ck_assert_int_eq(collect(&taker, first), 0);
        ck_assert_uint_ge(n_lease_puts, 3);
        assert_all_gone();
}
END_TEST

START_TEST(gc_ends_when_another_took_it_over)
{
        struct taker slow = {0}, other = {0};

        leave(BUNDLES, SEGMENTS);
        ck_assert_int_eq(fake_pool_open(&other.pool, &loop, folder), 0);
        start(&slow, first);
        fake_pool_hold(pool, 1u << FAKE_POOL_REMOVE);
        while (!fake_pool_held(pool))
                uv_run(&loop, UV_RUN_NOWAIT);
        now_s += LEASE_S + POOL_LEASE_MARGIN_S;
        start(&other, second);
        fake_pool_hold(other.pool, 1u << FAKE_POOL_REMOVE);
        while (!fake_pool_held(other.pool))
                uv_run(&loop, UV_RUN_NOWAIT);
        fake_pool_hold(pool, 0);
        finish(&slow);
        ck_assert_int_eq(slow.result.outcome, REMOTE_GC_E_BUSY);
        ck_assert_uint_le(slow.result.bundles, BUNDLES / 2);
        fake_pool_hold(other.pool, 0);
        finish(&other);
        ck_assert_int_eq(other.result.outcome, 0);
        assert_all_gone();
        close_pool(other.pool);
}
END_TEST

START_TEST(gc_keeps_the_rest_of_a_node_that_comes_back)
{
        struct taker taker = {0};

        leave(BUNDLES, SEGMENTS);
        start(&taker, first);
        fake_pool_hold(pool, 1u << FAKE_POOL_REMOVE);
        while (!fake_pool_held(pool))
                uv_run(&loop, UV_RUN_NOWAIT);
        put_heartbeat(now_s, 10);
        fake_pool_hold(pool, 0);
        finish(&taker);
        ck_assert_int_eq(taker.result.outcome, REMOTE_GC_E_ALIVE);
        ck_assert_uint_ge(count("bundle/" DEAD), BUNDLES / 2);
        ck_assert_uint_eq(count("journal/"), SEGMENTS);
        ck_assert_uint_eq(count("node/"), 1);
}
END_TEST

struct breaking {
        uint32_t n_seen;
        uint32_t at; /* this request and all after it fail */
};

static void break_off(void *user, enum fake_pool_kind kind, const char *name)
{
        struct breaking *breaking = user;

        if (++breaking->n_seen == breaking->at)
                fake_pool_fail(pool, FAKE_POOL_ANY, UINT32_MAX, -EIO);
}

START_TEST(gc_broken_off_anywhere_goes_on_with_the_next)
{
        struct breaking breaking = {0};
        struct taker taker;
        int r = -EIO;

        for (uint32_t at = 1; r; at++) {
                taker = (struct taker){0};
                leave(5, 3);
                breaking = (struct breaking){.at = at};
                fake_pool_watch(pool, break_off, &breaking);
                r = collect(&taker, first);
                fake_pool_watch(pool, NULL, NULL);
                fake_pool_fail(pool, 0, 0, 0);
                if (!r)
                        break;
                ck_assert_int_eq(r, -EIO);
                now_s += LEASE_S + POOL_LEASE_MARGIN_S;
                r = collect(&taker, second);
                ck_assert_msg(!r || (r == REMOTE_GC_E_UNKNOWN && !count("node/")),
                              "broken off at request %u: %s", at, taker.result.why.text);
                assert_all_gone();
                ck_assert_uint_ge(taker.n_replaced, 3);
                ck_assert_uint_ge(taker.n_deleted, 5);
                now_s = NOW_S;
                r = -EIO;
        }
        ck_assert_uint_ge(breaking.n_seen, 30);
}
END_TEST

START_TEST(gc_tells_all_of_a_long_segment)
{
        struct journal_record record = {.kind = JOURNAL_REPLACED};
        struct journal_segment segment;
        struct taker taker = {0};
        char name[POOL_NAME_MAX];
        uint32_t n = 0;

        leave(1, 1);
        journal_segment_init(&segment);
        for (record.key.domain = 9; n < 5000; n++) {
                record.key.layout.bytes[0] = (uint8_t)n;
                ck_assert_int_eq(journal_segment_add(&segment, &record), 0);
        }
        journal_segment_seal(&segment, dead, 9);
        journal_name(name, dead, 9);
        put_object(name, segment.bytes, segment.length);
        journal_segment_deinit(&segment);
        ck_assert_int_eq(collect(&taker, first), 0);
        ck_assert_uint_eq(taker.n_replaced, n + 1);
        ck_assert_uint_le(taker.n_told_max, 128);
        ck_assert(!taker.told_late);
        assert_all_gone();
}
END_TEST

START_TEST(gc_counts_what_is_torn_and_removes_it)
{
        struct taker taker = {0};
        char name[POOL_NAME_MAX];

        leave(1, 4);
        journal_name(name, dead, 6);
        fake_pool_flip(folder, name, 70);
        journal_name(name, dead, 7);
        fake_pool_resize(folder, name, JOURNAL_SEGMENT_BYTES + 100);
        ck_assert_int_eq(collect(&taker, first), 0);
        ck_assert_uint_eq(taker.result.damaged, 2);
        ck_assert_uint_eq(taker.n_replaced, 2);
        assert_all_gone();
}
END_TEST

START_TEST(gc_does_not_remove_what_it_cannot_understand)
{
        struct taker taker = {0};
        char name[POOL_NAME_MAX];

        uint8_t bytes[JOURNAL_NODE_BYTES] = JOURNAL_MAGIC "\2";

        leave(1, 4);
        journal_name(name, dead, 6);
        put_object(name, bytes, sizeof(bytes));
        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_NEWER);
        ck_assert_ptr_nonnull(strstr(taker.result.why.text, "journal format 2"));
        ck_assert_uint_eq(count("journal/"), 4);
        journal_node_name(name, dead);
        memcpy(bytes, JOURNAL_NODE_MAGIC, 8);
        put_object(name, bytes, sizeof(bytes));
        ck_assert_int_eq(collect(&taker, first), REMOTE_GC_E_NEWER);
        ck_assert_ptr_nonnull(strstr(taker.result.why.text, "node format 2"));
        ck_assert_uint_eq(count("node/"), 1);
}
END_TEST

START_TEST(gc_believes_no_reply_that_is_too_long)
{
        struct taker taker = {0};

        leave(3, 2);
        fake_pool_long_replies(pool, UINT32_MAX, 1u << 30);
        ck_assert_int_ne(collect(&taker, first), 0);
        ck_assert_uint_eq(count("bundle/" DEAD), 3);
}
END_TEST

START_TEST(gc_ends_by_its_deadline_when_the_pool_is_down)
{
        struct taker taker = {0};

        leave(3, 2);
        fake_pool_stop(pool, true);
        ck_assert_int_eq(collect(&taker, first), -ETIMEDOUT);
        fake_pool_stop(pool, false);
}
END_TEST

START_TEST(gc_that_is_cancelled_ends_when_its_requests_have)
{
        struct taker taker = {0};

        leave(BUNDLES, 2);
        start(&taker, first);
        fake_pool_hold(pool, 1u << FAKE_POOL_REMOVE);
        while (fake_pool_held(pool) < 4)
                uv_run(&loop, UV_RUN_NOWAIT);
        remote_gc_cancel(taker.gc);
        ck_assert(!taker.ended);
        fake_pool_hold(pool, 0);
        finish(&taker);
        ck_assert_int_eq(taker.result.outcome, -ECANCELED);
        ck_assert_uint_ge(count("bundle/" DEAD), BUNDLES - 8);
}
END_TEST

static void add_tests(TCase *tcase)
{
        tcase_add_test(tcase, gc_removes_all_that_a_dead_node_left);
        tcase_add_test(tcase, gc_tells_what_goes_before_it_goes);
        tcase_add_test(tcase, gc_removes_nothing_that_it_could_not_tell);
        tcase_add_test(tcase, gc_leaves_a_living_node_alone);
        tcase_add_test(tcase, gc_refuses_the_node_it_runs_on);
        tcase_add_test(tcase, gc_of_a_node_that_was_never_there_says_so);
        tcase_add_loop_test(tcase, gc_puts_a_heartbeat_where_none_tells_the_age, 0, 4);
        tcase_add_test(tcase, gc_by_two_at_once_is_done_by_one);
        tcase_add_test(tcase, gc_waits_for_a_lease_to_lapse);
        tcase_add_test(tcase, gc_finds_the_last_of_many_leases);
        tcase_add_test(tcase, gc_goes_on_under_its_own_earlier_lease);
        tcase_add_test(tcase, gc_is_not_held_up_for_ever_by_a_lease);
        tcase_add_test(tcase, gc_renews_its_lease_as_it_goes);
        tcase_add_test(tcase, gc_ends_when_another_took_it_over);
        tcase_add_test(tcase, gc_keeps_the_rest_of_a_node_that_comes_back);
        tcase_add_test(tcase, gc_broken_off_anywhere_goes_on_with_the_next);
        tcase_add_test(tcase, gc_tells_all_of_a_long_segment);
        tcase_add_test(tcase, gc_counts_what_is_torn_and_removes_it);
        tcase_add_test(tcase, gc_does_not_remove_what_it_cannot_understand);
        tcase_add_test(tcase, gc_believes_no_reply_that_is_too_long);
        tcase_add_test(tcase, gc_ends_by_its_deadline_when_the_pool_is_down);
        tcase_add_test(tcase, gc_that_is_cancelled_ends_when_its_requests_have);
}

int main(void)
{
        Suite *suite = suite_create("storage/remote_gc");
        TCase *tcase = tcase_create("remote_gc");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_set_timeout(tcase, 20);
        add_tests(tcase);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
