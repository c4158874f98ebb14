// SPDX-License-Identifier: Apache-2.0
/* Lines are read back from a pipe in the place of stderr. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

static int reading_end;
static char text[8192];

static void setup(void)
{
        int ends[2];

        unsetenv("JOURNAL_STREAM");
        ck_assert_int_eq(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
        ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
        close(ends[1]);
        reading_end = ends[0];
}

/* What has been written since the last call. */
static const char *written(void)
{
        ssize_t n = read(reading_end, text, sizeof(text) - 1);

        ck_assert(n >= 0 || errno == EAGAIN);
        text[n > 0 ? n : 0] = '\0';
        return text;
}

START_TEST(a_line_has_time_level_event_and_pairs)
{
        const char *line;

        log_info("session_open", "session=%d", 7);
        line = written();
        ck_assert_str_eq(line + strcspn(line, " "), " info session_open session=7\n");
        ck_assert_uint_eq(strcspn(line, " "), strlen("2026-01-01T00:00:00.000Z"));
        ck_assert_int_eq(line[23], 'Z');
        log_error("stop", "%s", "");
        ck_assert_ptr_nonnull(strstr(written(), " error stop"));
}
END_TEST

START_TEST(no_value_can_forge_a_line)
{
        log_info("hello", "program=\"%s\"", "x\n2026 info fake\r\t\x1b[31m\x01");
        ck_assert_ptr_nonnull(strstr(written(), "program=\"x?2026 info fake???[31m?\"\n"));
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
}
END_TEST

START_TEST(no_value_can_forge_a_pair)
{
        char quotes[4000];
        struct log_value value;

        log_info("attached", "model=%s tp=%d", log_quoted("a\" tp=9\n\\ \t").text, 1);
        ck_assert_ptr_nonnull(strstr(written(), "model=\"a\\\" tp=9\\n\\\\ ?\" tp=1\n"));
        log_info("attached", "model=%s", log_quoted("").text);
        ck_assert_ptr_nonnull(strstr(written(), "model=\"\"\n"));
        memset(quotes, '"', sizeof(quotes));
        for (size_t shift = 0; shift < 2; shift++) {
                quotes[0] = shift ? 'x' : '"';
                quotes[sizeof(quotes) - 1] = '\0';
                value = log_quoted(quotes);
                ck_assert_uint_lt(strlen(value.text), sizeof(value.text));
                ck_assert_uint_ge(strlen(value.text), sizeof(value.text) - 3);
                /* Each quote but the first and the last has its backslash. */
                ck_assert_str_eq(value.text + strlen(value.text) - 3, "\\\"\"");
        }
}
END_TEST

START_TEST(a_long_line_is_cut_and_still_ends)
{
        char value[4000];

        memset(value, 'x', sizeof(value) - 1);
        value[sizeof(value) - 1] = '\0';
        log_info("long", "value=%s", value);
        ck_assert_uint_le(strlen(written()), 1024);
        ck_assert_uint_gt(strlen(text), 1000);
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
        log_info(value, "value=%s", value);
        ck_assert_uint_le(strlen(written()), 1024);
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
}
END_TEST

START_TEST(lines_above_the_level_are_dropped)
{
        log_debug("detail", "n=%d", 1);
        ck_assert_str_eq(written(), "");
        log_set_level(LOG_LEVEL_DEBUG);
        log_debug("detail", "n=%d", 2);
        ck_assert_ptr_nonnull(strstr(written(), " debug detail n=2\n"));
        log_set_level(LOG_LEVEL_ERROR);
        log_warning("odd", "n=%d", 3);
        ck_assert_str_eq(written(), "");
        log_error("bad", "n=%d", 4);
        ck_assert_ptr_nonnull(strstr(written(), " error bad n=4\n"));
}
END_TEST

static void make_stderr_the_journal(void)
{
        char stream[64];
        struct stat status;

        ck_assert_int_eq(fstat(STDERR_FILENO, &status), 0);
        snprintf(stream, sizeof(stream), "%lu:%lu", (unsigned long)status.st_dev,
                 (unsigned long)status.st_ino);
        setenv("JOURNAL_STREAM", stream, 1);
}

START_TEST(the_journal_gets_a_priority_instead_of_a_time)
{
        make_stderr_the_journal();
        log_warning("odd", "n=%d", 1);
        ck_assert_str_eq(written(), "<4>odd n=1\n");
}
END_TEST

static int sent_priority, send_result;
static char sent[2048];

static int send_record(int priority, const char *line)
{
        sent_priority = priority;
        snprintf(sent, sizeof(sent), "%s", line);
        return send_result;
}

START_TEST(the_journal_itself_gets_lines_of_its_stream_alone)
{
        log_set_journal(send_record);
        log_info("hello", "n=%d", 1);
        ck_assert_str_eq(sent, "");
        ck_assert_ptr_nonnull(strstr(written(), " info hello n=1\n"));
        make_stderr_the_journal();
        log_error("bad", "sign=\">\" n=%d", 2);
        ck_assert_int_eq(sent_priority, 3);
        ck_assert_str_eq(sent, "bad sign=\">\" n=2");
        ck_assert_str_eq(written(), "");
}
END_TEST

START_TEST(what_the_journal_does_not_take_goes_to_its_stream)
{
        make_stderr_the_journal();
        log_set_journal(send_record);
        send_result = -EAGAIN;
        log_warning("odd", "n=%d", 1);
        ck_assert_str_eq(sent, "odd n=1");
        ck_assert_str_eq(written(), "<4>odd n=1\n");
}
END_TEST

START_TEST(levels_have_names)
{
        enum log_level level = LOG_LEVEL_INFO;

        ck_assert_int_eq(log_level_parse("debug", &level), 0);
        ck_assert_int_eq(level, LOG_LEVEL_DEBUG);
        ck_assert_int_eq(log_level_parse("error", &level), 0);
        ck_assert_int_eq(level, LOG_LEVEL_ERROR);
        ck_assert_int_eq(log_level_parse("loud", &level), -EINVAL);
        ck_assert_int_eq(log_level_parse("", &level), -EINVAL);
        ck_assert_int_eq(level, LOG_LEVEL_ERROR);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("base/log");
        TCase *tcase = tcase_create("log");
        SRunner *runner = srunner_create(suite);
        int n_failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, a_line_has_time_level_event_and_pairs);
        tcase_add_test(tcase, no_value_can_forge_a_line);
        tcase_add_test(tcase, no_value_can_forge_a_pair);
        tcase_add_test(tcase, a_long_line_is_cut_and_still_ends);
        tcase_add_test(tcase, lines_above_the_level_are_dropped);
        tcase_add_test(tcase, the_journal_gets_a_priority_instead_of_a_time);
        tcase_add_test(tcase, the_journal_itself_gets_lines_of_its_stream_alone);
        tcase_add_test(tcase, what_the_journal_does_not_take_goes_to_its_stream);
        tcase_add_test(tcase, levels_have_names);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
