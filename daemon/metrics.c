// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "daemon/metrics.h"

#define METRICS_TEXT(constant, text) text,
static const char *const tier_names[] = {METRICS_TIERS(METRICS_TEXT)};
static const char *const operation_names[] = {METRICS_OPERATIONS(METRICS_TEXT)};
static const char *const removal_names[] = {METRICS_REMOVALS(METRICS_TEXT)};
static const char *const disconnect_names[] = {METRICS_DISCONNECTS(METRICS_TEXT)};
static const char *const refusal_names[] = {METRICS_REFUSALS(METRICS_TEXT)};
#undef METRICS_TEXT

static const double bounds[METRICS_N_BUCKETS - 1] = {
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
        0.05,   0.1,     0.25,   0.5,   1.0,    2.5,   5.0,  10.0,
};

/* A label set as it stands between the braces; empty for none. */
struct labels {
        char text[96];
};

static void print_uint64_t(FILE *out, const char *name, const struct labels *labels,
                           const uint64_t *value)
{
        fprintf(out, "kvtier_%s%s%s%s %" PRIu64 "\n", name, *labels->text ? "{" : "", labels->text,
                *labels->text ? "}" : "", *value);
}

static void print_double(FILE *out, const char *name, const struct labels *labels,
                         const double *value)
{
        fprintf(out, "kvtier_%s%s%s%s %.9g\n", name, *labels->text ? "{" : "", labels->text,
                *labels->text ? "}" : "", *value);
}

static void print_histogram(FILE *out, const char *name, const struct labels *labels,
                            const struct metrics_histogram *value)
{
        const char *comma = *labels->text ? "," : "";
        uint64_t count = 0;

        for (size_t i = 0; i < METRICS_N_BUCKETS; i++) {
                count += value->buckets[i];
                if (i < METRICS_N_BUCKETS - 1)
                        fprintf(out, "kvtier_%s_bucket{%s%sle=\"%g\"} %" PRIu64 "\n", name,
                                labels->text, comma, bounds[i], count);
                else
                        fprintf(out, "kvtier_%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name,
                                labels->text, comma, count);
        }
        fprintf(out, "kvtier_%s_sum%s%s%s %.9g\n", name, *labels->text ? "{" : "", labels->text,
                *labels->text ? "}" : "", value->sum);
        fprintf(out, "kvtier_%s_count%s%s%s %" PRIu64 "\n", name, *labels->text ? "{" : "",
                labels->text, *labels->text ? "}" : "", count);
}

#define print_value(out, name, labels, value)                                                      \
        _Generic((value),                                                                          \
                const uint64_t *: print_uint64_t,                                                  \
                const double *: print_double,                                                      \
                const struct metrics_histogram *: print_histogram)(out, name, labels, value)

/* Number and label set of the series of each shape. */
#define METRICS_SERIES_NONE             1u
#define METRICS_SERIES_TIER             METRICS_N_TIERS
#define METRICS_SERIES_OPERATION_STATUS (METRICS_N_OPERATIONS * (unsigned)KVT_WIRE_STATUS_COUNT)
#define METRICS_SERIES_TIER_REMOVAL     (METRICS_N_TIERS * (unsigned)METRICS_N_REMOVALS)
#define METRICS_SERIES_DISCONNECT       METRICS_N_DISCONNECTS
#define METRICS_SERIES_REFUSAL          METRICS_N_REFUSALS
#define METRICS_SERIES_RDMA_END         RDMA_N_ENDS

static struct labels labels_NONE(unsigned i)
{
        return (struct labels){""};
}

static struct labels labels_TIER(unsigned i)
{
        struct labels labels;

        snprintf(labels.text, sizeof(labels.text), "tier=\"%s\"", tier_names[i]);
        return labels;
}

static struct labels labels_OPERATION_STATUS(unsigned i)
{
        struct labels labels;
        const char *status = status_name(i % KVT_WIRE_STATUS_COUNT);
        char lower[32];
        size_t n;

        for (n = 0; status[n] && n < sizeof(lower) - 1; n++)
                lower[n] =
                        (char)(status[n] >= 'A' && status[n] <= 'Z' ? status[n] + 32 : status[n]);
        lower[n] = 0;
        snprintf(labels.text, sizeof(labels.text), "operation=\"%s\",status=\"%s\"",
                 operation_names[i / KVT_WIRE_STATUS_COUNT], lower);
        return labels;
}

static struct labels labels_TIER_REMOVAL(unsigned i)
{
        struct labels labels;

        snprintf(labels.text, sizeof(labels.text), "tier=\"%s\",reason=\"%s\"",
                 tier_names[i / METRICS_N_REMOVALS], removal_names[i % METRICS_N_REMOVALS]);
        return labels;
}

static struct labels labels_DISCONNECT(unsigned i)
{
        struct labels labels;

        snprintf(labels.text, sizeof(labels.text), "reason=\"%s\"", disconnect_names[i]);
        return labels;
}

static struct labels labels_REFUSAL(unsigned i)
{
        struct labels labels;

        snprintf(labels.text, sizeof(labels.text), "reason=\"%s\"", refusal_names[i]);
        return labels;
}

static struct labels labels_RDMA_END(unsigned i)
{
        struct labels labels;

        snprintf(labels.text, sizeof(labels.text), "reason=\"%s\"",
                 rdma_end_name((enum rdma_end)i));
        return labels;
}

#define METRICS_WORD_COUNTER         "counter"
#define METRICS_WORD_GAUGE           "gauge"
#define METRICS_WORD_SECONDS_COUNTER "counter"
#define METRICS_WORD_SECONDS_GAUGE   "gauge"
#define METRICS_WORD_HISTOGRAM       "histogram"

static void render(const struct metrics *metrics, FILE *out)
{
        struct labels labels;

        fprintf(out, "# HELP kvtier_build_info Version of the daemon, as a label.\n"
                     "# TYPE kvtier_build_info gauge\n"
                     "kvtier_build_info{version=\"" KVTIER_VERSION "\"} 1\n");

        /* Arrays of any number of dimensions are walked as one row. */
#define METRICS_PRINT(field, kind, shape, help)                                                    \
        fprintf(out, "# HELP kvtier_%s %s\n# TYPE kvtier_%s %s\n", #field, help, #field,           \
                METRICS_WORD_##kind);                                                              \
        for (unsigned i = 0; i < METRICS_SERIES_##shape; i++) {                                    \
                const METRICS_TYPE_##kind *row =                                                   \
                        (const METRICS_TYPE_##kind *)(const void *)&metrics->field;                \
                labels = labels_##shape(i);                                                        \
                print_value(out, #field, &labels, row + i);                                        \
        }
        METRICS_LIST(METRICS_PRINT)
#undef METRICS_PRINT
}

const char *metrics_tier_name(enum metrics_tier tier)
{
        return tier_names[tier];
}

void metrics_observe(struct metrics_histogram *histogram, double seconds)
{
        size_t i = 0;

        while (i < METRICS_N_BUCKETS - 1 && seconds > bounds[i])
                i++;
        histogram->buckets[i]++;
        histogram->sum += seconds;
}

int metrics_render(struct metrics *metrics, void (*refresh)(void *user, struct metrics *metrics),
                   void *user, char **ret_text, size_t *ret_length)
{
        char *text = NULL;
        size_t length;
        FILE *out;

        if (refresh)
                refresh(user, metrics);
        out = open_memstream(&text, &length);
        if (!out)
                return err_raise(-ENOMEM);
        render(metrics, out);
        if (fclose(out)) {
                free(text);
                return err_raise(-ENOMEM);
        }
        *ret_text = text;
        *ret_length = length;
        return 0;
}
