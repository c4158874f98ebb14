// SPDX-License-Identifier: Apache-2.0
/* What goes wrong with a RADOS cluster that is well: each is told, and none is for ever. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/remote/cluster.h"
#include "tests/support/patience.h"
#include "tests/support/pool_driver.h"
#include "tests/support/scratch.h"

/* A key like one of Ceph's, of nobody. */
#define WRONG_KEY "AQBrMQ1rAAAAABAAwJzB8N6drICn0CkvmkTPsQ=="

static uv_loop_t loop;
static struct pool *pool;
static struct pool_rados_options options;
static char *prefix;
static char folder[64];

/* An OSD is full from there on; the three ratios have to stand in order. */
static void set_full_ratio(const char *near, const char *full)
{
        cluster_shell("ceph osd set-nearfull-ratio %s && ceph osd set-backfillfull-ratio %s && "
                      "ceph osd set-full-ratio %s",
                      near, near, full);
}

/* What a test that failed has left to those after it. It is no test, so it claims nothing. */
static void mend(void)
{
        cluster_shell("ceph osd set-nearfull-ratio 0.85; ceph osd set-backfillfull-ratio 0.85; "
                      "ceph osd set-full-ratio 0.95; "
                      "ceph osd pool delete later later --yes-i-really-really-mean-it; true");
}

static void setup(void)
{
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        options = cluster_rados_options();
        prefix = cluster_new_prefix();
        options.prefix = prefix;
        scratch_make(folder, sizeof(folder));
}

static void open_pool(void)
{
        struct why why = {""};

        ck_assert_msg(pool_rados_open(&pool, &loop, &options, &why) == 0, "%s", why.text);
}

static void teardown(void)
{
        pool_driver_close(&loop, pool);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        scratch_remove(folder);
        free(prefix);
}

static bool was_told(const char *text)
{
        return strstr(pool->ops.last_failure(pool), text) != NULL;
}

static void write_file(char *ret_path, size_t bytes, const char *name, const char *text)
{
        FILE *file;

        snprintf(ret_path, bytes, "%s/%s", folder, name);
        file = fopen(ret_path, "we");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(text, file), 0);
        ck_assert_int_eq(fclose(file), 0);
}

static int get(const char *name)
{
        uint8_t byte;
        uint64_t n;

        return pool_driver_get(&loop, pool, name, 0, &byte, 1, &n);
}

static int put(const char *name)
{
        return pool_driver_put(&loop, pool, name, "0123456789", 10, 0);
}

START_TEST(wrong_key_is_refused_and_not_told)
{
        char path[128];

        write_file(path, sizeof(path), "keyring", "[client.kvtier]\n\tkey = " WRONG_KEY "\n");
        options.keyring_path = path;
        open_pool();
        ck_assert_int_eq(get("node/a"), -EACCES);
        ck_assert(was_told("client.kvtier"));
        ck_assert(!was_told(WRONG_KEY));
}
END_TEST

START_TEST(keyring_without_the_user_is_refused)
{
        char path[128];

        write_file(path, sizeof(path), "keyring", "[client.other]\n\tkey = " WRONG_KEY "\n");
        options.keyring_path = path;
        open_pool();
        ck_assert_int_eq(get("node/a"), -EACCES);
        ck_assert(was_told("client.kvtier"));
}
END_TEST

START_TEST(pool_of_others_is_refused)
{
        cluster_shell("ceph osd pool create foreign 4 4");
        options.pool = "foreign";
        open_pool();
        ck_assert_int_eq(put("node/a"), -EACCES);
        ck_assert(was_told("foreign"));
}
END_TEST

static void wait_ms(uint32_t ms)
{
        uv_sleep(ms);
        uv_update_time(&loop);
}

START_TEST(missing_pool_is_told_and_used_once_it_is_there)
{
        cluster_shell("ceph osd pool delete later later --yes-i-really-really-mean-it");
        options.pool = "later";
        options.user = NULL;
        options.keyring_path = NULL;
        open_pool();
        ck_assert_int_eq(get("node/a"), -ENODEV);
        ck_assert(was_told("later"));
        cluster_shell("ceph osd pool create later 4 4");
        /* An attempt a second is made at most. */
        for (int i = 0; i < 100 && put("node/a"); i++)
                wait_ms(100);
        ck_assert_int_eq(get("node/a"), 0);
        cluster_shell("ceph osd pool delete later later --yes-i-really-really-mean-it");
        ck_assert_int_eq(put("node/a"), -ENODEV);
        ck_assert(was_told("gone"));
        ck_assert_int_eq(get("node/a"), -ENODEV);
}
END_TEST

START_TEST(monitors_that_do_not_answer_cost_the_deadline)
{
        struct pool_driver_request request;
        uint64_t began;
        char path[128];

        write_file(path, sizeof(path), "ceph.conf",
                   "[global]\nmon_host = [v2:127.0.0.1:1,v1:127.0.0.1:2]\n");
        options.config_path = path;
        open_pool();
        began = uv_hrtime();
        pool_driver_submit_put(&loop, pool, &request, "node/a", "x", 1, 0, 300);
        ck_assert_int_eq(pool_driver_wait(&request), -ETIMEDOUT);
        ck_assert_uint_lt(uv_hrtime() - began, patience_ns(2000000000));
}
END_TEST

START_TEST(full_pool_refuses_puts_alone)
{
        char name[POOL_NAME_MAX];
        int r = 0;

        open_pool();
        ck_assert_int_eq(put("bundle/n/1"), 0);
        set_full_ratio("0.000001", "0.000001");
        /* What is only replaced is let through: every one is a new one. */
        for (int i = 0; i < 200 && !r; i++) {
                wait_ms(100);
                snprintf(name, sizeof(name), "bundle/n/2.%d", i);
                r = put(name);
        }
        set_full_ratio("0.85", "0.95");
        ck_assert_int_eq(r, -ENOSPC);
        ck_assert(was_told(name));
        ck_assert_int_eq(get("bundle/n/1"), 0);
        ck_assert_int_eq(pool_driver_remove(&loop, pool, "bundle/n/1"), 0);
        ck_assert_int_eq(get("bundle/n/1"), -ENOENT);
        for (int i = 0; i < 200 && put("bundle/n/3"); i++)
                wait_ms(100);
        ck_assert_int_eq(put("bundle/n/3"), 0);
}
END_TEST

START_TEST(what_is_lost_behind_our_back_is_not_listed)
{
        struct pool_driver_request list;

        open_pool();
        ck_assert_int_eq(put("bundle/n/1"), 0);
        ck_assert_int_eq(put("bundle/n/2"), 0);
        ck_assert_int_eq(put("bundle/n/3"), 0);
        cluster_shell("rados -p kv -N %s rm bundle/n/1", prefix);
        cluster_shell("rados -p kv -N %s rm bundle/n/2", prefix);
        ck_assert_int_eq(get("bundle/n/1"), -ENOENT);
        /* Pages without any name are gone over. */
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "bundle/", NULL, 1), 0);
        ck_assert_uint_eq(list.n_names, 1);
        ck_assert_str_eq(list.names[0], "bundle/n/3");
        ck_assert(!list.more);
}
END_TEST

START_TEST(object_that_grew_behind_our_back_stays_in_its_buffer)
{
        uint8_t bytes[32];
        uint64_t n;

        memset(bytes, 0xee, sizeof(bytes));
        open_pool();
        ck_assert_int_eq(put("bundle/n/1"), 0);
        cluster_shell("head -c 100000 /dev/zero >more && rados -p kv -N %s append bundle/n/1 more",
                      prefix);
        ck_assert_int_eq(pool_driver_get(&loop, pool, "bundle/n/1", 0, bytes, 20, &n), 0);
        ck_assert_uint_eq(n, 20);
        ck_assert_uint_eq(bytes[20], 0xee);
}
END_TEST

START_TEST(unsound_requests_are_refused)
{
        struct pool_driver_request list;
        uint8_t byte;
        uint64_t n;

        open_pool();
        ck_assert_int_eq(put("UPPER"), -EINVAL);
        ck_assert_int_eq(put("_names.bundle"), -EINVAL);
        ck_assert_int_eq(put(""), -EINVAL);
        ck_assert_int_eq(pool_driver_get(&loop, pool, "node/a", 0, &byte, 0, &n), -EINVAL);
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "nowhere", NULL, 1), -EINVAL);
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "node/", NULL, 0), -EINVAL);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("remote/rados_trouble");
        TCase *tcase = tcase_create("trouble"), *mended = tcase_create("mended");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(mended, 60);
        tcase_add_checked_fixture(mended, setup, teardown);
        tcase_add_unchecked_fixture(mended, NULL, mend);
        tcase_add_test(tcase, wrong_key_is_refused_and_not_told);
        tcase_add_test(tcase, keyring_without_the_user_is_refused);
        tcase_add_test(tcase, pool_of_others_is_refused);
        tcase_add_test(tcase, monitors_that_do_not_answer_cost_the_deadline);
        tcase_add_test(tcase, what_is_lost_behind_our_back_is_not_listed);
        tcase_add_test(tcase, object_that_grew_behind_our_back_stays_in_its_buffer);
        tcase_add_test(tcase, unsound_requests_are_refused);
        tcase_add_test(mended, missing_pool_is_told_and_used_once_it_is_there);
        tcase_add_test(mended, full_pool_refuses_puts_alone);
        suite_add_tcase(suite, mended);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
