// SPDX-License-Identifier: Apache-2.0
/* A node that is gone, one that takes over what it left, and one that only learns of it. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "storage/remote_gc.h"
#include "tests/unit/storage/remote_fixture.h"

#define OBJECTS  3u
#define NS_PER_S UINT64_C(1000000000)

static struct pool_fixture *fixture;
static struct node *gone, *taker, *other;
static uint64_t later_s; /* the taker's wall clock is ahead by so much */

static void begin_with(uint32_t deadline_ms)
{
        fixture = nodes_new(3);
        gone = &fixture->nodes[0];
        taker = &fixture->nodes[1];
        taker->options.deadline_ms = deadline_ms;
        other = &fixture->nodes[2];
        for (uint32_t i = 0; i < 3; i++)
                node_open(fixture, i);
        later_s = 1000;
}

static void begin(void)
{
        begin_with(5000);
}

static void end(void)
{
        nodes_free(fixture);
}

static void fill(struct driver_object objects[OBJECTS])
{
        for (uint32_t i = 0; i < OBJECTS; i++) {
                objects[i] = driver_object(i, 70000);
                ck_assert_int_eq(driver_write(&gone->driver, &objects[i]), 0);
        }
        nodes_settle(fixture);
}

/* ---- a collection by the taker ---- */

struct collection {
        struct remote_gc *gc;
        struct remote_gc_result result;
        bool is_ended;
};

static uint64_t clock_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return ((uint64_t)now.tv_sec + later_s) * NS_PER_S;
}

static int append(void *user, const struct journal_record *records, uint32_t n_records,
                  void (*on_done)(void *user, int result), void *on_done_user)
{
        return remote_append(taker->driver.tier, records, n_records, on_done, on_done_user);
}

static void on_end(void *user, const struct remote_gc_result *result)
{
        struct collection *collection = user;

        collection->result = *result;
        collection->is_ended = true;
}

static bool is_ended(void *user)
{
        return ((struct collection *)user)->is_ended;
}

static struct remote_gc_result collect(const uint8_t node[16])
{
        struct remote_usage usage = node_usage(taker);
        struct collection collection = {NULL};
        struct remote_gc_options options = {
                .loop = &taker->driver.loop,
                .pool = remote_pool(taker->driver.tier),
                .host = "taker",
                .older_than_s = 10,
                .deadline_ms = 2000,
                .now_ns = clock_ns,
                .append = append,
                .on_end = on_end,
                .user = &collection,
        };

        memcpy(options.own, usage.node, sizeof(options.own));
        memcpy(options.node, node, sizeof(options.node));
        ck_assert_int_eq(remote_gc_start(&collection.gc, &options), 0);
        nodes_run_until(fixture, is_ended, &collection);
        return collection.result;
}

static void die(uint8_t ret_node[16])
{
        memcpy(ret_node, node_usage(gone).node, 16);
        node_close(fixture, 0);
}

START_TEST(what_a_dead_node_left_vanishes_everywhere)
{
        struct driver_object objects[OBJECTS];
        struct remote_gc_result result;
        uint8_t node[16];

        begin();
        fill(objects);
        die(node);
        result = collect(node);
        ck_assert_msg(!result.outcome, "%s", result.why.text);
        ck_assert_uint_ge(result.bundles, 1);
        ck_assert_uint_ge(result.segments, 1);
        nodes_settle(fixture);
        for (uint32_t i = 0; i < OBJECTS; i++) {
                ck_assert_ptr_nonnull(node_vanished(taker, &objects[i]));
                ck_assert_ptr_nonnull(node_vanished(other, &objects[i]));
        }
        ck_assert_uint_eq(node_usage(taker).entries + node_usage(other).entries, 0);
        ck_assert_uint_eq(node_usage(other).nodes, 2);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "bundle/", NULL), 0);
        end();
}
END_TEST

/* It was only away; what it had is gone, and it goes on. */
START_TEST(a_node_that_was_collected_comes_back)
{
        struct driver_object objects[OBJECTS], again = driver_object(9, 5000);
        uint8_t node[16];

        begin();
        fill(objects);
        die(node);
        ck_assert_int_eq(collect(node).outcome, 0);
        nodes_settle(fixture);
        node_open(fixture, 0);
        nodes_settle(fixture);
        for (uint32_t i = 0; i < OBJECTS; i++)
                ck_assert_int_ne(driver_read(&gone->driver, &objects[i]), 0);
        ck_assert_int_eq(driver_write(&gone->driver, &again), 0);
        nodes_settle(fixture);
        ck_assert_int_eq(node_read_appeared(other, &again), 0);
        ck_assert_int_eq(node_read_appeared(taker, &again), 0);
        ck_assert_uint_eq(node_usage(gone).own_bundles, 1);
        ck_assert_uint_eq(node_usage(other).entries, 1);
        end();
}
END_TEST

/* Its journal is gone before everybody has read what it replaced. */
START_TEST(what_a_dead_node_replaced_stays_replaced)
{
        struct driver_object object = driver_object(1, 65536);
        const struct event *event;
        uint8_t node[16];

        begin();
        nodes_settle(fixture);
        node_close(fixture, 2);
        gone->driver.tier->ops.replaced(gone->driver.tier, &object.object.key, 77);
        nodes_settle(fixture);
        die(node);
        ck_assert_int_eq(collect(node).outcome, 0);
        ck_assert_uint_eq(fake_pool_count(fixture->pool, "journal/", NULL), 1);
        node_open(fixture, 2);
        nodes_settle(fixture);
        event = node_vanished(other, &object);
        ck_assert_ptr_nonnull(event);
        ck_assert(event->replaced);
        ck_assert_uint_eq(event->checksum_total, 0);
        end();
}
END_TEST

START_TEST(a_living_node_is_not_taken_over)
{
        struct driver_object objects[OBJECTS];
        struct remote_gc_result result;

        begin();
        fill(objects);
        later_s = 0;
        result = collect(node_usage(gone).node);
        ck_assert_int_eq(result.outcome, REMOTE_GC_E_ALIVE);
        nodes_settle(fixture);
        for (uint32_t i = 0; i < OBJECTS; i++)
                ck_assert_int_eq(node_read_appeared(other, &objects[i]), 0);
        end();
}
END_TEST

/* The pool goes while the taker tells what it is about to remove. */
START_TEST(a_collection_ends_when_the_pool_does_not_answer)
{
        struct driver_object objects[OBJECTS];
        struct collection collection = {NULL};
        struct remote_gc_options options = {
                .host = "taker",
                .older_than_s = 10,
                .deadline_ms = 300,
                .now_ns = clock_ns,
                .append = append,
                .on_end = on_end,
                .user = &collection,
        };

        begin_with(300);
        fill(objects);
        die(options.node);
        options.loop = &taker->driver.loop;
        options.pool = remote_pool(taker->driver.tier);
        memcpy(options.own, node_usage(taker).node, sizeof(options.own));
        ck_assert_int_eq(remote_gc_start(&collection.gc, &options), 0);
        fake_pool_stop(taker->pool, true);
        nodes_run_until(fixture, is_ended, &collection);
        ck_assert_int_lt(collection.result.outcome, 0);
        fake_pool_stop(taker->pool, false);
        ck_assert_uint_ge(fake_pool_count(fixture->pool, "bundle/", NULL), 1);
        end();
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/remote_takeover");
        TCase *tcase = tcase_create("remote_takeover");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, what_a_dead_node_left_vanishes_everywhere);
        tcase_add_test(tcase, a_node_that_was_collected_comes_back);
        tcase_add_test(tcase, what_a_dead_node_replaced_stays_replaced);
        tcase_add_test(tcase, a_living_node_is_not_taken_over);
        tcase_add_test(tcase, a_collection_ends_when_the_pool_does_not_answer);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
