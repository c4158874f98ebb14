// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <string.h>

#include "storage/remote_nodes.h"
#include "tests/support/fake_pool.h"
#include "tests/support/scratch.h"

#define NODES 150u /* several pages */

static uv_loop_t loop;
static char folder[64];
static struct pool *pool;

struct seen {
        struct remote_nodes *nodes;
        uint32_t n_good, n_damaged, n_newer, n_failed, n_silent;
        bool told[NODES];
        bool ended;
        int result;
};

static void set_up(void)
{
        scratch_make(folder, sizeof(folder));
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_int_eq(fake_pool_open(&pool, &loop, folder), 0);
}

static void set_flag(void *user)
{
        *(bool *)user = true;
}

static void tear_down(void)
{
        bool is_closed = false;

        pool->ops.close(pool, set_flag, &is_closed);
        while (!is_closed)
                uv_run(&loop, UV_RUN_NOWAIT);
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

static void put_node(uint8_t number)
{
        struct journal_node node = {.node = {number, 7}, .host = "a", .bundles = number};
        uint8_t bytes[JOURNAL_NODE_BYTES];
        char name[POOL_NAME_MAX];

        journal_node_encode(bytes, &node);
        journal_node_name(name, node.node);
        put_object(name, bytes, sizeof(bytes));
}

static void name_of(char ret_name[POOL_NAME_MAX], uint8_t number)
{
        const uint8_t id[16] = {number, 7};

        journal_node_name(ret_name, id);
}

static void on_node(void *user, const struct journal_node *node, int result)
{
        struct seen *seen = user;

        ck_assert_uint_lt(node->node[0], NODES);
        ck_assert(!seen->told[node->node[0]]);
        seen->told[node->node[0]] = true;
        seen->n_good += !result;
        seen->n_damaged += result == JOURNAL_E_DAMAGED;
        seen->n_newer += result == JOURNAL_E_NEWER;
        seen->n_failed += result < 0 && result != -ENOENT;
        seen->n_silent += result == -ENOENT;
        ck_assert_uint_eq(node->bundles, result ? 0 : node->node[0]);
}

static void on_end(void *user, int result)
{
        struct seen *seen = user;

        ck_assert(!seen->ended);
        seen->ended = true;
        seen->result = result;
}

static void start(struct seen *seen)
{
        struct remote_nodes_options options = {
                .pool = pool,
                .deadline_ms = 200,
                .on_node = on_node,
                .on_end = on_end,
                .user = seen,
        };

        ck_assert_int_eq(remote_nodes_start(&seen->nodes, &options), 0);
}

static int walk(struct seen *seen)
{
        start(seen);
        while (!seen->ended)
                uv_run(&loop, UV_RUN_NOWAIT);
        return seen->result;
}

START_TEST(walk_sees_each_node_once)
{
        struct seen seen = {0};

        for (uint8_t i = 0; i < NODES; i++)
                put_node(i);
        put_object("node/somebody-elses", (uint8_t[1]){0}, 1);
        ck_assert_int_eq(walk(&seen), 0);
        ck_assert_uint_eq(seen.n_good, NODES);
}
END_TEST

static void put_named(const char *kind, uint8_t node, uint64_t number)
{
        const uint8_t id[16] = {node, 7};
        char name[POOL_NAME_MAX];

        pool_name_number(name, kind, id, number);
        put_object(name, (uint8_t[1]){0}, 1);
}

START_TEST(walk_finds_who_left_more_than_a_word)
{
        struct seen seen = {0};
        struct pool_usage before, after;

        for (uint8_t node = 0; node < 6; node++) {
                if (node < 3)
                        put_node(node);
                for (uint64_t number = 0; number < 30; number++) {
                        if (node & 1)
                                put_named("journal", node, number);
                        put_named("bundle", node, number);
                }
        }
        put_object("journal/junk", (uint8_t[1]){0}, 1);
        put_named("bundle", 7, 1);
        pool->ops.usage(pool, &before);
        ck_assert_int_eq(walk(&seen), 0);
        pool->ops.usage(pool, &after);
        ck_assert_uint_eq(seen.n_good, 3);
        ck_assert_uint_eq(seen.n_silent, 4);
        ck_assert(seen.told[7]);
        ck_assert_uint_le(
                after.requests_total[FAKE_POOL_LIST] - before.requests_total[FAKE_POOL_LIST], 16);
}
END_TEST

START_TEST(walk_of_an_empty_pool_ends)
{
        struct seen seen = {0};

        ck_assert_int_eq(walk(&seen), 0);
        ck_assert_uint_eq(seen.n_good, 0);
}
END_TEST

START_TEST(walk_tells_what_it_cannot_read)
{
        uint8_t newer[JOURNAL_NODE_BYTES] = JOURNAL_NODE_MAGIC "\2", other[JOURNAL_NODE_BYTES];
        struct journal_node node = {.node = {99}, .host = "a"};
        struct seen seen = {0};
        char name[POOL_NAME_MAX];

        for (uint8_t i = 0; i < 5; i++)
                put_node(i);
        name_of(name, 1);
        fake_pool_flip(folder, name, 60);
        name_of(name, 2);
        fake_pool_resize(folder, name, 300);
        name_of(name, 3);
        put_object(name, newer, sizeof(newer));
        name_of(name, 4);
        journal_node_encode(other, &node);
        put_object(name, other, sizeof(other));
        ck_assert_int_eq(walk(&seen), 0);
        ck_assert_uint_eq(seen.n_good, 2); /* what follows a whole block is not looked at */
        ck_assert_uint_eq(seen.n_damaged, 2);
        ck_assert_uint_eq(seen.n_newer, 1);
}
END_TEST

START_TEST(walk_goes_on_behind_a_failure)
{
        struct seen seen = {0};

        for (uint8_t i = 0; i < 20; i++)
                put_node(i);
        fake_pool_fail(pool, 1u << FAKE_POOL_GET, 3, -EIO);
        ck_assert_int_eq(walk(&seen), 0);
        ck_assert_uint_eq(seen.n_failed, 3);
        ck_assert_uint_eq(seen.n_good, 17);
}
END_TEST

START_TEST(walk_fails_with_the_listing)
{
        struct seen seen = {0};

        put_node(1);
        fake_pool_fail(pool, 1u << FAKE_POOL_LIST, 1, -EACCES);
        ck_assert_int_eq(walk(&seen), -EACCES);
        ck_assert_uint_eq(seen.n_good, 0);
}
END_TEST

START_TEST(walk_that_is_cancelled_ends_and_tells_no_more)
{
        struct seen seen = {0};

        for (uint8_t i = 0; i < 20; i++)
                put_node(i);
        fake_pool_hold(pool, 1u << FAKE_POOL_GET);
        start(&seen);
        while (!fake_pool_held(pool))
                uv_run(&loop, UV_RUN_NOWAIT);
        remote_nodes_cancel(seen.nodes);
        ck_assert(!seen.ended);
        fake_pool_hold(pool, 0);
        while (!seen.ended)
                uv_run(&loop, UV_RUN_NOWAIT);
        ck_assert_int_eq(seen.result, -ECANCELED);
        ck_assert_uint_eq(seen.n_good, 0);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("storage/remote_nodes");
        TCase *tcase = tcase_create("remote_nodes");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, walk_sees_each_node_once);
        tcase_add_test(tcase, walk_finds_who_left_more_than_a_word);
        tcase_add_test(tcase, walk_of_an_empty_pool_ends);
        tcase_add_test(tcase, walk_tells_what_it_cannot_read);
        tcase_add_test(tcase, walk_goes_on_behind_a_failure);
        tcase_add_test(tcase, walk_fails_with_the_listing);
        tcase_add_test(tcase, walk_that_is_cancelled_ends_and_tells_no_more);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
