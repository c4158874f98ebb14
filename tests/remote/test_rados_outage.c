// SPDX-License-Identifier: Apache-2.0
/*
 * OSDs that die or stop, on a cluster of three: requests end by their deadlines, the loop
 * is never held up, and all is well again afterwards.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/remote/cluster.h"
#include "tests/support/patience.h"
#include "tests/support/pool_driver.h"

#define MIB     (1u << 20)
#define N_DEPTH 8u
#define N_PUTS  64u
/* More than librados lets into flight unless it is told otherwise: it would block. */
#define N_FLOOD    40u
#define FLOOD_SIZE (4u * MIB)

static uv_loop_t loop;
static struct pool *pool, *other;
static char *prefix;

static struct pool *open_pool(void)
{
        struct pool_rados_options options = cluster_rados_options();
        struct why why = {""};
        struct pool *opened = NULL;

        options.prefix = prefix;
        ck_assert_msg(pool_rados_open(&opened, &loop, &options, &why) == 0, "%s", why.text);
        return opened;
}

static void signal_osds(const char *name)
{
        cluster_shell("kill -%s $(cat run/osd.*.pid)", name);
}

static void start_victim(void)
{
        cluster_shell("i=$(cat victim) && ceph-osd -i $i --keyring osd$i/keyring && rm victim");
}

static void wait_until_it_is_back(void)
{
        int r = -1;

        for (int i = 0; i < 30 && r; i++)
                r = pool_driver_put(&loop, pool, "node/a", "x", 1, 0);
        ck_assert_int_eq(r, 0);
}

/* A test that fails leaves OSDs stopped, or one dead: the next one begins with all of them. */
static void mend(void)
{
        cluster_shell("kill -CONT $(cat run/osd.*.pid) || true");
        cluster_shell("[ ! -e victim ] || { i=$(cat victim); "
                      "grep -q '^State:.[^Z]' /proc/$(cat run/osd.$i.pid)/status || "
                      "ceph-osd -i $i --keyring osd$i/keyring; rm victim; }");
}

static void setup(void)
{
        mend();
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        prefix = cluster_new_prefix();
        pool = open_pool();
        other = open_pool();
        wait_until_it_is_back();
}

static void teardown(void)
{
        pool_driver_close(&loop, pool);
        pool_driver_close(&loop, other);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        free(prefix);
}

/* The longest that the loop did not turn. */
struct pulse {
        uv_timer_t timer;
        uint64_t last, longest;
};

static void on_pulse(uv_timer_t *timer)
{
        struct pulse *pulse = timer->data;
        uint64_t now = uv_hrtime();

        if (pulse->last && now - pulse->last > pulse->longest)
                pulse->longest = now - pulse->last;
        pulse->last = now;
}

static void start_pulse(struct pulse *pulse)
{
        memset(pulse, 0, sizeof(*pulse));
        uv_timer_init(&loop, &pulse->timer);
        pulse->timer.data = pulse;
        pulse->last = uv_hrtime();
        uv_timer_start(&pulse->timer, on_pulse, 5, 5);
}

static void stop_pulse(struct pulse *pulse)
{
        uv_close((uv_handle_t *)&pulse->timer, NULL);
        uv_run(&loop, UV_RUN_NOWAIT);
}

static void count(void *user)
{
        ++*(uint32_t *)user;
}

static void submit_many(void (*halfway)(void))
{
        static struct pool_driver_request requests[N_PUTS];
        static char names[N_PUTS][POOL_NAME_MAX];
        static uint8_t bytes[MIB], got[MIB];
        uint64_t n;

        memset(bytes, 0x5a, sizeof(bytes));
        for (uint32_t i = 0; i < N_PUTS; i++) {
                if (i >= N_DEPTH)
                        ck_assert_int_eq(pool_driver_wait(&requests[i - N_DEPTH]), 0);
                if (i == N_PUTS / 2)
                        halfway();
                snprintf(names[i], sizeof(names[i]), "bundle/n/%u", i);
                pool_driver_submit_put(&loop, pool, &requests[i], names[i], bytes, MIB, 0, 0);
        }
        for (uint32_t i = N_PUTS - N_DEPTH; i < N_PUTS; i++)
                ck_assert_int_eq(pool_driver_wait(&requests[i]), 0);
        for (uint32_t i = 0; i < N_PUTS; i++) {
                ck_assert_int_eq(pool_driver_get(&loop, other, names[i], 0, got, MIB, &n), 0);
                ck_assert_uint_eq(n, MIB);
                ck_assert(!memcmp(got, bytes, MIB));
        }
}

/* The one that keeps the watched object, so that watches move as well. */
static void kill_osd(void)
{
        cluster_shell("ceph osd map kv _hint %s -f json | jq .acting_primary >victim && "
                      "kill -KILL $(cat run/osd.$(cat victim).pid)",
                      prefix);
}

START_TEST(osd_killed_under_load_costs_no_request_and_no_hint)
{
        static uint32_t n_hints; /* they may come after the test */

        submit_many(kill_osd);
        n_hints = 0;
        other->on_hint = count;
        other->on_hint_user = &n_hints;
        for (int i = 0; i < 300 && !n_hints; i++) {
                pool->ops.hint(pool);
                uv_sleep(50);
                uv_run(&loop, UV_RUN_NOWAIT);
        }
        ck_assert_uint_gt(n_hints, 0);
        start_victim();
}
END_TEST

START_TEST(stopped_osds_cost_the_deadline_and_never_the_loop)
{
        static struct pool_driver_request puts[N_FLOOD], gets[N_DEPTH];
        static char names[N_FLOOD][POOL_NAME_MAX];
        /* As patient as the bound on the loop, which is to be below it. */
        const uint32_t deadline_ms = (uint32_t)(patience_ns(1000000000) / 1000000);
        uint8_t *bytes = calloc(1, FLOOD_SIZE), got[N_DEPTH];
        uint64_t began, took;
        struct pulse pulse;

        ck_assert_ptr_nonnull(bytes);
        memset(got, 0xee, sizeof(got));
        signal_osds("STOP");
        start_pulse(&pulse);
        began = uv_hrtime();
        for (uint32_t i = 0; i < N_FLOOD; i++) {
                snprintf(names[i], sizeof(names[i]), "bundle/n/%u", i);
                pool_driver_submit_put(&loop, pool, &puts[i], names[i], bytes, FLOOD_SIZE, 0,
                                       deadline_ms);
                if (i < N_DEPTH)
                        pool_driver_submit_get(&loop, pool, &gets[i], "node/a", 0, &got[i], 1,
                                               deadline_ms);
                uv_run(&loop, UV_RUN_NOWAIT);
        }
        for (uint32_t i = 0; i < N_FLOOD; i++)
                ck_assert_int_eq(pool_driver_wait(&puts[i]), -ETIMEDOUT);
        for (uint32_t i = 0; i < N_DEPTH; i++)
                ck_assert_int_eq(pool_driver_wait(&gets[i]), -ETIMEDOUT);
        took = uv_hrtime() - began;
        on_pulse(&pulse.timer); /* the last callback may have been the one that stood still */
        ck_assert_msg(took < patience_ns(4000000000), "%llu ns", (unsigned long long)took);
        ck_assert_msg(pulse.longest < patience_ns(700000000), "the loop stood still for %llu ns",
                      (unsigned long long)pulse.longest);
        stop_pulse(&pulse);
        signal_osds("CONT");
        wait_until_it_is_back();
        for (uint32_t i = 0; i < N_DEPTH; i++)
                ck_assert_uint_eq(got[i], 0xee);
        free(bytes);
}
END_TEST

START_TEST(pool_closes_while_osds_are_stopped)
{
        struct pool_driver_request request;
        struct pool *closed = open_pool();
        uint64_t began;

        ck_assert_int_eq(pool_driver_put(&loop, closed, "node/b", "x", 1, 0), 0);
        signal_osds("STOP");
        began = uv_hrtime();
        pool_driver_submit_put(&loop, closed, &request, "node/b", "y", 1, 0, 500);
        pool_driver_close(&loop, closed);
        ck_assert(request.is_done);
        ck_assert_int_eq(request.result, -ETIMEDOUT);
        ck_assert_uint_lt(uv_hrtime() - began, patience_ns(5000000000));
        signal_osds("CONT");
        wait_until_it_is_back();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("remote/rados_outage");
        TCase *tcase = tcase_create("outage");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_set_timeout(tcase, 90);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, osd_killed_under_load_costs_no_request_and_no_hint);
        tcase_add_test(tcase, stopped_osds_cost_the_deadline_and_never_the_loop);
        tcase_add_test(tcase, pool_closes_while_osds_are_stopped);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
