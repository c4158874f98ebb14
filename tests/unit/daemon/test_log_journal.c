// SPDX-License-Identifier: Apache-2.0
/* What fields a line has in the journal. That it gets there, tests/deploy/systemd shows. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "daemon/log_journal.h"

static struct log_record record;

/* The value of a field, or NULL when there is none of that name or more than one. */
static const char *value_of(const char *name)
{
        static char value[4096];
        size_t length = strlen(name), n = 0;

        for (size_t i = 0; i < record.n_fields; i++) {
                const struct iovec *field = &record.fields[i];
                const char *bytes = field->iov_base;

                if (field->iov_len <= length || memcmp(bytes, name, length) || bytes[length] != '=')
                        continue;
                snprintf(value, sizeof(value), "%.*s", (int)(field->iov_len - length - 1),
                         bytes + length + 1);
                n++;
        }
        return n == 1 ? value : NULL;
}

#define ck_assert_field(name, expected)                                                            \
        do {                                                                                       \
                ck_assert_msg(value_of(name), "no %s", name);                                      \
                ck_assert_str_eq(value_of(name), expected);                                        \
        } while (0)

START_TEST(event_and_pairs_are_fields)
{
        log_record_init(&record, 6, "session_closed session=7 reason=hang_up");
        ck_assert_field("MESSAGE", "session_closed session=7 reason=hang_up");
        ck_assert_field("PRIORITY", "6");
        ck_assert_field("SYSLOG_IDENTIFIER", "kvtierd");
        ck_assert_field("KVTIER_EVENT", "session_closed");
        ck_assert_field("KVTIER_SESSION", "7");
        ck_assert_field("KVTIER_REASON", "hang_up");
        ck_assert_uint_eq(record.n_fields, 6);
}
END_TEST

START_TEST(a_line_may_be_an_event_alone)
{
        log_record_init(&record, 3, "stopped");
        ck_assert_field("KVTIER_EVENT", "stopped");
        ck_assert_uint_eq(record.n_fields, 4);
}
END_TEST

START_TEST(quoted_values_are_what_was_quoted)
{
        static const char *const values[] = {"two words", "", "a\" tp=9", "back\\slash\nnew line"};
        char line[1024];

        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
                snprintf(line, sizeof(line), "attached model=%s tp=1", log_quoted(values[i]).text);
                log_record_init(&record, 6, line);
                ck_assert_field("KVTIER_MODEL", values[i]);
                ck_assert_field("KVTIER_TP", "1");
        }
}
END_TEST

START_TEST(what_is_no_pair_ends_the_fields)
{
        static const char *const rests[] = {"words=1 of prose x=2", "words=1 Big=2 x=2",
                                            "words=1  x=2", "words=1 =2 x=2", "words=1 \"x=2"};
        char line[1024];

        for (size_t i = 0; i < sizeof(rests) / sizeof(rests[0]); i++) {
                snprintf(line, sizeof(line), "event %s", rests[i]);
                log_record_init(&record, 6, line);
                ck_assert_field("MESSAGE", line);
                ck_assert_field("KVTIER_WORDS", "1");
                ck_assert_ptr_null(value_of("KVTIER_X"));
        }
}
END_TEST

START_TEST(no_line_is_too_long)
{
        char line[1024] = "event", key[32];
        size_t used = strlen(line);

        for (unsigned i = 0; used + 16 < sizeof(line); i++)
                used += (size_t)snprintf(line + used, sizeof(line) - used, " k%u=%u", i, i);
        log_record_init(&record, 6, line);
        ck_assert_uint_eq(record.n_fields, LOG_FIELDS_MAX);
        ck_assert_field("MESSAGE", line);
        snprintf(key, sizeof(key), "KVTIER_K%u", LOG_FIELDS_MAX - 5);
        ck_assert_ptr_nonnull(value_of(key));

        /* Longer than any that the log writes. */
        static char huge[3 * sizeof(record.bytes)];
        memset(huge, 'x', sizeof(huge) - 1);
        memcpy(huge, "event a=", strlen("event a="));
        log_record_init(&record, 6, huge);
        ck_assert_ptr_null(value_of("MESSAGE"));
        ck_assert_ptr_null(value_of("KVTIER_A"));
        ck_assert_field("KVTIER_EVENT", "event");

        /* The journal refuses names of more than 64 letters. */
        memset(huge, 'k', sizeof(huge) - 1);
        memcpy(huge, "event ", strlen("event "));
        memcpy(huge + 6 + 57, "=1", sizeof("=1"));
        log_record_init(&record, 6, huge);
        ck_assert_uint_eq(record.n_fields, 5);
        memcpy(huge + 6 + 57, "k=1", sizeof("k=1"));
        log_record_init(&record, 6, huge);
        ck_assert_uint_eq(record.n_fields, 4);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/log_journal");
        TCase *fields = tcase_create("fields");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(fields, event_and_pairs_are_fields);
        tcase_add_test(fields, a_line_may_be_an_event_alone);
        tcase_add_test(fields, quoted_values_are_what_was_quoted);
        tcase_add_test(fields, what_is_no_pair_ends_the_fields);
        tcase_add_test(fields, no_line_is_too_long);
        suite_add_tcase(suite, fields);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
