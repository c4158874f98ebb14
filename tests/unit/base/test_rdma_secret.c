// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rdma_secret.h"

static char path[] = "/tmp/kvtier-secret-XXXXXX";
static struct rdma_secret_file file;
static struct why why;

static void setup(void)
{
        int fd;

        memcpy(path + sizeof(path) - 7, "XXXXXX", 6);
        fd = mkstemp(path);
        ck_assert_int_ge(fd, 0);
        close(fd);
}

static void teardown(void)
{
        unlink(path);
}

static int load(const char *text)
{
        FILE *out = fopen(path, "we");

        ck_assert_ptr_nonnull(out);
        ck_assert_int_ge(fputs(text, out), 0);
        ck_assert(!fclose(out));
        why = (struct why){""};
        return rdma_secret_load(&file, path, &why);
}

START_TEST(a_line_names_the_domain_and_its_secret)
{
        ck_assert(!load("# of the fabric\n\n  default\t0123456789abcdef \n"));
        ck_assert_str_eq(file.domain, "default");
        ck_assert_uint_eq(file.secret.length, 16);
        ck_assert_mem_eq(file.secret.bytes, "0123456789abcdef", 16);
        ck_assert(!load("default 0123456789abcdef"));
}
END_TEST

START_TEST(a_port_finds_the_secret_of_its_domain_alone)
{
        struct rdma_secret secret = {0};

        ck_assert(!load("default 0123456789abcdef\n"));
        ck_assert_int_eq(rdma_secret_find(&file, "other", &secret), RDMA_E_DENIED);
        ck_assert_uint_eq(secret.length, 0);
        ck_assert_int_eq(rdma_secret_find(&file, "default", &secret), 0);
        ck_assert_uint_eq(secret.length, 16);
        ck_assert_mem_eq(secret.bytes, "0123456789abcdef", 16);
}
END_TEST

START_TEST(what_is_no_such_line_is_refused_without_quoting_it)
{
        static const char *const texts[] = {
                "",
                "# nothing\n",
                "default\n",
                "default too_short\n",
                "default 0123456789abcdef more\n",
                "default 0123456789abcdef\nother 0123456789abcdef\n",
                "default 0123456789012345678901234567890123456789012345678901234567890123456789\n",
                ("a-name-too-long-for-a-domain-since-it-has-more-than-64-bytes-in-it "
                 "aaaaaaaaaaaaaaaa\n"),
        };

        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
                file = (struct rdma_secret_file){.domain = "mine"};
                ck_assert_int_eq(load(texts[i]), RDMA_SECRET_E_INVALID);
                ck_assert_str_eq(file.domain, "mine");
                ck_assert_uint_eq(file.secret.length, 0);
                ck_assert_ptr_nonnull(strstr(why.text, path));
                ck_assert_ptr_null(strstr(why.text, "0123456789"));
        }
}
END_TEST

START_TEST(a_file_for_everybody_is_refused)
{
        ck_assert(!load("default 0123456789abcdef\n"));
        ck_assert(!chmod(path, 0644));
        ck_assert_int_eq(rdma_secret_load(&file, path, &why), RDMA_SECRET_E_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "chmod"));
}
END_TEST

START_TEST(an_absent_file_is_told_by_name)
{
        unlink(path);
        ck_assert_int_eq(rdma_secret_load(&file, path, &why), -ENOENT);
        ck_assert_ptr_nonnull(strstr(why.text, path));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/rdma_secret");
        TCase *all = tcase_create("rdma_secret");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(all, setup, teardown);
        tcase_add_test(all, a_line_names_the_domain_and_its_secret);
        tcase_add_test(all, a_port_finds_the_secret_of_its_domain_alone);
        tcase_add_test(all, what_is_no_such_line_is_refused_without_quoting_it);
        tcase_add_test(all, a_file_for_everybody_is_refused);
        tcase_add_test(all, an_absent_file_is_told_by_name);
        suite_add_tcase(suite, all);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
