// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/arguments.h"
#include "daemon/config.h"
#include "tests/support/scratch.h"

#define MIB (1ull << 20)

static char folder[256], file[300], socket_override[300];

static void start(void)
{
        FILE *out;

        scratch_make(folder, sizeof(folder));
        snprintf(file, sizeof(file), "%s/kvtierd.conf", folder);
        snprintf(socket_override, sizeof(socket_override), "socket.path=%s/s", folder);
        out = fopen(file, "we");
        ck_assert_ptr_nonnull(out);
        fprintf(out, "host:\n  bytes: 64MiB\n  piece_bytes: 32MiB\nlog:\n  level: warning\n");
        ck_assert_int_eq(fclose(out), 0);
}

static void stop(void)
{
        scratch_remove(folder);
}

/* Parses "kvtierd" and the words up to NULL, which @ret_arguments goes on borrowing. */
static void parse(struct arguments *ret_arguments, ...)
{
        static char words[16][320];
        char *argv[17] = {words[0]};
        const char *word;
        va_list rest;
        int argc = 1;

        strcpy(words[0], "kvtierd");
        va_start(rest, ret_arguments);
        while ((word = va_arg(rest, const char *))) {
                ck_assert_int_lt(argc, 16);
                snprintf(words[argc], sizeof(words[argc]), "%s", word);
                argv[argc] = words[argc];
                argc++;
        }
        va_end(rest);
        arguments_parse(ret_arguments, argc, argv);
}

/* Exit status of a process that parses one argument, its output in @ret_output. */
static int run_with(const char *argument, char *ret_output, size_t size)
{
        struct arguments arguments;
        int fds[2], status;
        ssize_t n;
        pid_t pid;

        ck_assert_int_eq(pipe(fds), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid) {
                dup2(fds[1], STDOUT_FILENO);
                dup2(fds[1], STDERR_FILENO);
                parse(&arguments, argument, NULL);
                _exit(77); /* went on */
        }
        close(fds[1]);
        n = read(fds[0], ret_output, size - 1);
        ret_output[n > 0 ? n : 0] = 0;
        close(fds[0]);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        return WEXITSTATUS(status);
}

START_TEST(options_are_kept)
{
        struct arguments arguments;

        parse(&arguments, "--config", file, "--check-config", "--format", "--set", "sessions.max=1",
              "--set=chunk_tokens=2", "--log-level=debug", NULL);
        ck_assert_str_eq(arguments.config_path, file);
        ck_assert(arguments.check_config);
        ck_assert(arguments.format);
        ck_assert_uint_eq(arguments.n_overrides, 2);
        ck_assert_str_eq(arguments.overrides[0], "sessions.max=1");
        ck_assert_str_eq(arguments.overrides[1], "chunk_tokens=2");
        ck_assert_str_eq(arguments.log_level, "debug");
}
END_TEST

START_TEST(nothing_given_is_nothing_kept)
{
        struct arguments arguments;

        parse(&arguments, NULL);
        ck_assert_ptr_null(arguments.config_path);
        ck_assert(!arguments.check_config);
        ck_assert(!arguments.format);
        ck_assert_uint_eq(arguments.n_overrides, 0);
        ck_assert_ptr_null(arguments.log_level);
}
END_TEST

START_TEST(wrong_usage_ends_with_status_2)
{
        char output[4096];

        ck_assert_int_eq(run_with("--no-such-option", output, sizeof(output)), 2);
        ck_assert_int_eq(run_with("word", output, sizeof(output)), 2);
        ck_assert_ptr_nonnull(strstr(output, "unexpected argument: word"));
        ck_assert_int_eq(run_with("--log-level=loud", output, sizeof(output)), 2);
        ck_assert_ptr_nonnull(strstr(output, "error, warning, info or debug"));
        ck_assert_int_eq(run_with("--config", output, sizeof(output)), 2);
}
END_TEST

START_TEST(version_and_help_end_with_status_0)
{
        char output[4096];

        ck_assert_int_eq(run_with("--version", output, sizeof(output)), 0);
        ck_assert_str_eq(output, "kvtierd " KVTIER_VERSION "\n");
        ck_assert_int_eq(run_with("--help", output, sizeof(output)), 0);
        ck_assert_ptr_nonnull(strstr(output, "--check-config"));
}
END_TEST

START_TEST(overrides_win_over_the_file_in_order)
{
        struct arguments arguments;
        struct config config;
        struct why why = {""};

        parse(&arguments, "--config", file, "--set", socket_override, "--set", "host.bytes=96MiB",
              "--set", "host.bytes=128MiB", NULL);
        ck_assert_msg(!arguments_load_config(&arguments, &config, &why), "%s", why.text);
        ck_assert_uint_eq(config.host.bytes, 128 * MIB);
        ck_assert_uint_eq(config.host.piece_bytes, 32 * MIB);
        ck_assert_int_eq(config.log.level, LOG_LEVEL_WARNING);
}
END_TEST

START_TEST(log_level_wins_over_all)
{
        struct arguments arguments;
        struct config config;
        struct why why = {""};

        parse(&arguments, "--log-level=debug", "--config", file, "--set", socket_override, "--set",
              "log.level=error", NULL);
        ck_assert_msg(!arguments_load_config(&arguments, &config, &why), "%s", why.text);
        ck_assert_int_eq(config.log.level, LOG_LEVEL_DEBUG);
}
END_TEST

START_TEST(what_is_wrong_is_said)
{
        struct arguments arguments;
        struct config config;
        struct why why = {""};

        parse(&arguments, "--config", "/absent/kvtierd.conf", NULL);
        ck_assert_int_eq(arguments_load_config(&arguments, &config, &why), -ENOENT);
        ck_assert_str_eq(why.text, "/absent/kvtierd.conf: No such file or directory");
        parse(&arguments, "--config", file, "--set", "sessions.max=0", NULL);
        ck_assert_int_eq(arguments_load_config(&arguments, &config, &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "--set sessions.max: "));
        parse(&arguments, "--config", file, "--set", "socket.path=/absent/s", NULL);
        ck_assert_int_eq(arguments_load_config(&arguments, &config, &why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why.text, "--set socket.path: "));
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/arguments");
        TCase *line = tcase_create("line");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(line, start, stop);
        tcase_add_test(line, options_are_kept);
        tcase_add_test(line, nothing_given_is_nothing_kept);
        tcase_add_test(line, wrong_usage_ends_with_status_2);
        tcase_add_test(line, version_and_help_end_with_status_0);
        tcase_add_test(line, overrides_win_over_the_file_in_order);
        tcase_add_test(line, log_level_wins_over_all);
        tcase_add_test(line, what_is_wrong_is_said);
        suite_add_tcase(suite, line);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
