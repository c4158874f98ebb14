// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/metrics.h"

#define DOCUMENT SOURCE_ROOT "/deploy/METRICS.md"

static const struct {
        const char *name;
        const char *help;
        bool is_counter;
        bool is_histogram;
} listed[] = {
#define KIND_COUNTER                      true, false
#define KIND_GAUGE                        false, false
#define KIND_SECONDS_COUNTER              true, false
#define KIND_SECONDS_GAUGE                false, false
#define KIND_HISTOGRAM                    false, true
#define LISTED(field, kind, labels, help) {#field, help, KIND_##kind},
        METRICS_LIST(LISTED)
#undef LISTED
};

#define N_LISTED (sizeof(listed) / sizeof(listed[0]))

static char *render(struct metrics *metrics)
{
        size_t length;
        char *text;

        ck_assert_int_eq(metrics_render(metrics, NULL, NULL, &text, &length), 0);
        ck_assert_uint_eq(strlen(text), length);
        return text;
}

/* Value of a series written out in full, NAN when it is not there. */
static double value_of(const char *text, const char *series)
{
        size_t length = strlen(series);

        for (const char *line = text; line; line = strchr(line, '\n')) {
                line += *line == '\n';
                if (!strncmp(line, series, length) && line[length] == ' ')
                        return strtod(line + length, NULL);
        }
        return NAN;
}

static void assert_value(const char *text, const char *series, double expected)
{
        double value = value_of(text, series);

        ck_assert_msg(!isnan(value), "%s is not there", series);
        ck_assert_msg(fabs(value - expected) < 1e-9, "%s is %g, not %g", series, value, expected);
}

static bool has_suffix(const char *name, const char *suffix)
{
        size_t n_name = strlen(name), n_suffix = strlen(suffix);

        return n_name > n_suffix && !strcmp(name + n_name - n_suffix, suffix);
}

/* name, name{label="value",...}: the rest of the line, NULL when it is neither. */
static const char *skip_series(const char *line)
{
        if (!isalpha((unsigned char)*line))
                return NULL;
        line += strspn(line, "abcdefghijklmnopqrstuvwxyz_");
        if (*line != '{')
                return line;
        do {
                line++;
                if (!isalpha((unsigned char)*line))
                        return NULL;
                line += strspn(line, "abcdefghijklmnopqrstuvwxyz_");
                if (strncmp(line, "=\"", 2) != 0)
                        return NULL;
                line += 2;
                line += strcspn(line, "\"\\\n");
                if (*line++ != '"')
                        return NULL;
        } while (*line == ',');
        return *line == '}' ? line + 1 : NULL;
}

static bool is_sample(const char *line)
{
        const char *rest = skip_series(line);
        char *end;

        if (!rest || *rest != ' ')
                return false;
        strtod(rest + 1, &end);
        return end != rest + 1 && *end == 0;
}

START_TEST(every_line_is_valid_prometheus_text)
{
        struct metrics metrics = {0};
        char *text = render(&metrics), *rest = text, *line, name[128] = "";

        ck_assert_msg(has_suffix(text, "\n"), "the last line does not end");
        while ((line = strsep(&rest, "\n")) && rest) {
                if (!strncmp(line, "# HELP ", 7)) {
                        ck_assert_int_eq(sscanf(line + 7, "%127s", name), 1);
                        continue;
                }
                if (!strncmp(line, "# TYPE ", 7)) {
                        ck_assert_msg(!strncmp(line + 7, name, strlen(name)), "%s after HELP %s",
                                      line, name);
                        continue;
                }
                ck_assert_msg(is_sample(line), "not a sample: %s", line);
                ck_assert_msg(!strncmp(line, name, strlen(name)), "%s stands below %s", line, name);
        }
        free(text);
}
END_TEST

START_TEST(every_listed_metric_is_rendered_once)
{
        struct metrics metrics = {0};
        char *text = render(&metrics), header[160], *first;

        for (size_t i = 0; i < N_LISTED; i++) {
                snprintf(header, sizeof(header), "# TYPE kvtier_%s %s\n", listed[i].name,
                         listed[i].is_counter     ? "counter"
                         : listed[i].is_histogram ? "histogram"
                                                  : "gauge");
                first = strstr(text, header);
                ck_assert_msg(first != NULL, "%s is not rendered", header);
                ck_assert_msg(!strstr(first + 1, header), "%s is there twice", header);
        }
        free(text);
}
END_TEST

START_TEST(counters_end_in_total_and_nothing_else_does)
{
        for (size_t i = 0; i < N_LISTED; i++)
                ck_assert_msg(has_suffix(listed[i].name, "_total") == listed[i].is_counter, "%s",
                              listed[i].name);
}
END_TEST

START_TEST(names_hold_base_units_alone)
{
        static const char *const wrong[] = {"_ms",       "_us",       "_ns",           "_kib",
                                            "_mib",      "_gib",      "_percent",      "_minutes",
                                            "_ms_total", "_us_total", "_percent_total"};

        for (size_t i = 0; i < N_LISTED; i++) {
                for (size_t j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++)
                        ck_assert_msg(!has_suffix(listed[i].name, wrong[j]), "%s", listed[i].name);
                if (listed[i].is_histogram)
                        ck_assert_msg(has_suffix(listed[i].name, "_seconds"), "%s", listed[i].name);
                if (strstr(listed[i].help, "ytes "))
                        ck_assert_msg(strstr(listed[i].name, "bytes") ||
                                              strstr(listed[i].name, "objects"),
                                      "%s counts bytes and does not say so", listed[i].name);
        }
}
END_TEST

START_TEST(help_is_a_sentence_on_one_line)
{
        for (size_t i = 0; i < N_LISTED; i++) {
                ck_assert_msg(has_suffix(listed[i].help, "."), "%s", listed[i].name);
                ck_assert_msg(!strpbrk(listed[i].help, "\n\\\""), "%s", listed[i].name);
        }
}
END_TEST

START_TEST(values_appear_under_their_labels)
{
        struct metrics metrics = {0};
        char *text;

        metrics.sessions = 7;
        metrics.uptime_seconds = 1.5;
        metrics.hits_total[METRICS_NVME] = 11;
        metrics.operation_objects_total[METRICS_ACQUIRE][KVT_WIRE_BUSY] = 13;
        metrics.operation_objects_total[METRICS_RELEASE][KVT_WIRE_DRAINING] = 14;
        metrics.removed_bytes_total[METRICS_NVME][METRICS_BY_ADMIN] = UINT64_MAX;
        metrics.disconnects_total[METRICS_GARBAGE] = 17;
        metrics.attach_refused_total[METRICS_STOPPING] = 19;
        text = render(&metrics);
        assert_value(text, "kvtier_sessions", 7);
        assert_value(text, "kvtier_uptime_seconds", 1.5);
        assert_value(text, "kvtier_hits_total{tier=\"host\"}", 0);
        assert_value(text, "kvtier_hits_total{tier=\"nvme\"}", 11);
        assert_value(text, "kvtier_operation_objects_total{operation=\"acquire\",status=\"busy\"}",
                     13);
        assert_value(text,
                     "kvtier_operation_objects_total{operation=\"release\",status=\"draining\"}",
                     14);
        assert_value(text, "kvtier_operation_objects_total{operation=\"reserve\",status=\"ok\"}",
                     0);
        ck_assert_ptr_nonnull(strstr(text, "kvtier_removed_bytes_total{tier=\"nvme\",reason="
                                           "\"admin\"} 18446744073709551615\n"));
        assert_value(text, "kvtier_disconnects_total{reason=\"garbage\"}", 17);
        assert_value(text, "kvtier_attach_refused_total{reason=\"stopping\"}", 19);
        assert_value(text, "kvtier_build_info{version=\"" KVTIER_VERSION "\"}", 1);
        free(text);
}
END_TEST

START_TEST(histograms_cumulate)
{
        struct metrics metrics = {0};
        char *text;

        metrics_observe(&metrics.loop_lag_seconds, 0);
        metrics_observe(&metrics.loop_lag_seconds, 0.0001);
        metrics_observe(&metrics.loop_lag_seconds, 0.00011);
        metrics_observe(&metrics.loop_lag_seconds, 10);
        metrics_observe(&metrics.loop_lag_seconds, 11);
        metrics_observe(&metrics.tier_read_seconds[METRICS_NVME], 0.02);
        text = render(&metrics);
        assert_value(text, "kvtier_loop_lag_seconds_bucket{le=\"0.0001\"}", 2);
        assert_value(text, "kvtier_loop_lag_seconds_bucket{le=\"0.00025\"}", 3);
        assert_value(text, "kvtier_loop_lag_seconds_bucket{le=\"5\"}", 3);
        assert_value(text, "kvtier_loop_lag_seconds_bucket{le=\"10\"}", 4);
        assert_value(text, "kvtier_loop_lag_seconds_bucket{le=\"+Inf\"}", 5);
        assert_value(text, "kvtier_loop_lag_seconds_count", 5);
        assert_value(text, "kvtier_loop_lag_seconds_sum", 21.00021);
        assert_value(text, "kvtier_tier_read_seconds_bucket{tier=\"nvme\",le=\"0.01\"}", 0);
        assert_value(text, "kvtier_tier_read_seconds_bucket{tier=\"nvme\",le=\"0.025\"}", 1);
        assert_value(text, "kvtier_tier_read_seconds_count{tier=\"nvme\"}", 1);
        assert_value(text, "kvtier_tier_read_seconds_count{tier=\"host\"}", 0);
        free(text);
}
END_TEST

static void refresh_sessions(void *user, struct metrics *metrics)
{
        metrics->sessions = *(const uint64_t *)user;
}

START_TEST(gauges_are_refreshed_before_they_are_rendered)
{
        struct metrics metrics = {0};
        uint64_t sessions = 5;
        size_t length;
        char *text;

        ck_assert_int_eq(metrics_render(&metrics, refresh_sessions, &sessions, &text, &length), 0);
        assert_value(text, "kvtier_sessions", 5);
        free(text);
}
END_TEST

/* Rows "| `kvtier_name` | type | labels | help |". */
START_TEST(document_lists_exactly_these_metrics)
{
        FILE *file = fopen(DOCUMENT, "re");
        char line[512], row[512];
        size_t n_rows = 0;

        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file)) {
                if (strncmp(line, "| `kvtier_", 10) != 0 || strstr(line, "kvtier_build_info"))
                        continue;
                ck_assert_uint_lt(n_rows, N_LISTED);
                snprintf(row, sizeof(row), "| `kvtier_%s` | %s |", listed[n_rows].name,
                         listed[n_rows].is_counter     ? "counter"
                         : listed[n_rows].is_histogram ? "histogram"
                                                       : "gauge");
                ck_assert_msg(!strncmp(line, row, strlen(row)), "%s instead of %s", line, row);
                ck_assert_msg(strstr(line, listed[n_rows].help) != NULL, "%s: another help", line);
                n_rows++;
        }
        fclose(file);
        ck_assert_uint_eq(n_rows, N_LISTED);
}
END_TEST

int main(void)
{
        Suite *suite = suite_create("daemon/metrics");
        TCase *text = tcase_create("text");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(text, every_line_is_valid_prometheus_text);
        tcase_add_test(text, every_listed_metric_is_rendered_once);
        tcase_add_test(text, counters_end_in_total_and_nothing_else_does);
        tcase_add_test(text, names_hold_base_units_alone);
        tcase_add_test(text, help_is_a_sentence_on_one_line);
        tcase_add_test(text, values_appear_under_their_labels);
        tcase_add_test(text, histograms_cumulate);
        tcase_add_test(text, gauges_are_refreshed_before_they_are_rendered);
        tcase_add_test(text, document_lists_exactly_these_metrics);
        suite_add_tcase(suite, text);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
