// SPDX-License-Identifier: Apache-2.0
/* What goes wrong with an S3 server that is well: each is told, and none is for ever. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/remote/cluster.h"
#include "tests/support/pool_driver.h"
#include "tests/support/scratch.h"

static uv_loop_t loop;
static struct pool *pool;
static struct pool_s3_options options;
static char *prefix;
static char folder[64];
static time_t clock_is_off;

/* libcurl takes the time of its signatures from here: the clock of a machine that is off. */
__attribute__((visibility("default"))) time_t time(time_t *ret_time)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        now.tv_sec += clock_is_off;
        if (ret_time)
                *ret_time = now.tv_sec;
        return now.tv_sec;
}

static void setup(void)
{
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        options = cluster_s3_options();
        prefix = cluster_new_prefix();
        options.prefix = prefix;
        scratch_make(folder, sizeof(folder));
}

static void open_pool(void)
{
        struct why why = {""};

        ck_assert_msg(pool_s3_open(&pool, &loop, &options, &why) == 0, "%s", why.text);
}

static void teardown(void)
{
        pool_driver_close(&loop, pool);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        scratch_remove(folder);
        free(prefix);
}

static void check_told(const char *text)
{
        const char *failure = pool->ops.last_failure(pool);

        ck_assert_msg(strstr(failure, text) != NULL, "\"%s\" is not in \"%s\"", text, failure);
}

static int put(const char *name)
{
        return pool_driver_put(&loop, pool, name, "0123456789", 10, 0);
}

static void write_credentials(const char *path, const char *id, const char *secret)
{
        FILE *file = fopen(path, "we");

        ck_assert_ptr_nonnull(file);
        fprintf(file, "[default]\naws_access_key_id=%s\naws_secret_access_key=%s\n", id, secret);
        ck_assert_int_eq(fclose(file), 0);
}

START_TEST(wrong_secret_is_refused_and_not_told)
{
        char path[128];

        snprintf(path, sizeof(path), "%s/credentials", folder);
        write_credentials(path, "AK", "WRONGSECRET");
        options.credentials_path = path;
        open_pool();
        ck_assert_int_eq(put("node/a"), -EACCES);
        check_told("SignatureDoesNotMatch");
        ck_assert(!strstr(pool->ops.last_failure(pool), "WRONGSECRET"));
}
END_TEST

START_TEST(credentials_that_were_renewed_are_read_again)
{
        char path[128];

        snprintf(path, sizeof(path), "%s/credentials", folder);
        write_credentials(path, "NOBODY", "SECRETKEY");
        options.credentials_path = path;
        open_pool();
        ck_assert_int_eq(put("node/a"), -EACCES);
        check_told("InvalidAccessKeyId");
        write_credentials(path, "AK", "SECRETKEY");
        for (int i = 0; i < 50 && put("node/a"); i++) {
                uv_sleep(100);
                uv_update_time(&loop);
        }
        ck_assert_int_eq(put("node/a"), 0);
}
END_TEST

START_TEST(missing_bucket_is_told)
{
        struct pool_usage usage;
        struct pool_driver_request list;

        options.bucket = "nothing-here";
        open_pool();
        ck_assert_int_eq(put("node/a"), -ENODEV);
        check_told("nothing-here");
        check_told("the bucket does not exist");
        ck_assert_int_eq(pool_driver_list(&loop, pool, &list, "node/", NULL, 1), -ENODEV);
        pool->ops.usage(pool, &usage);
        ck_assert_uint_eq(usage.failures_total, 2);
}
END_TEST

START_TEST(clock_that_is_off_is_told_with_its_error)
{
        open_pool();
        clock_is_off = -3600;
        ck_assert_int_eq(put("node/a"), -EACCES);
        check_told("RequestTimeTooSkewed");
        check_told("s behind the server's");
        clock_is_off = 7200;
        ck_assert_int_eq(put("node/a"), -EACCES);
        check_told("s ahead of the server's");
        clock_is_off = 0;
        ck_assert_int_eq(put("node/a"), 0);
}
END_TEST

START_TEST(certificate_of_nobody_we_know_is_refused)
{
        options = cluster_s3_tls_options();
        options.prefix = prefix;
        options.ca_path = NULL;
        open_pool();
        ck_assert_int_eq(put("node/a"), -EPROTO);
        check_told("certificate");
}
END_TEST

START_TEST(server_that_is_not_there_is_told)
{
        options.endpoint = "http://127.0.0.1:1";
        open_pool();
        ck_assert_int_eq(put("node/a"), -ECONNREFUSED);
        check_told("127.0.0.1");
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("remote/s3_trouble");
        TCase *tcase = tcase_create("trouble");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, wrong_secret_is_refused_and_not_told);
        tcase_add_test(tcase, credentials_that_were_renewed_are_read_again);
        tcase_add_test(tcase, missing_bucket_is_told);
        tcase_add_test(tcase, clock_that_is_off_is_told_with_its_error);
        tcase_add_test(tcase, certificate_of_nobody_we_know_is_refused);
        tcase_add_test(tcase, server_that_is_not_there_is_told);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
