// SPDX-License-Identifier: Apache-2.0
/*
 * Hit rates of eviction and of checkpoint placement on traces of real prompts, beside what could
 * be reached with knowledge of the future.
 *
 *   replay [OPTION...] FOLDER [CELL...]    traces of the public workloads in FOLDER
 *   replay [OPTION...] FILE [CELL...]      that file in place of the trace that a cell names
 *   replay --list
 *
 * Prints a table, or one JSON line for each cell and policy. The hit rate is of tokens: those
 * that need not be computed, of all tokens of the prompts, the first ones included.
 */
#include <argp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cell.h"
#include "trace_file.h"

enum { CHUNK_TOKENS = 512 };

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

/* Bounds first: each policy is compared with the last one that binds it too. */
static const struct replay_policy *const policies[] = {
        &replay_min, &replay_oracle, &replay_dense, &replay_p0,  &replay_p1,
        &replay_p2,  &replay_p3,     &replay_p7,    &replay_a2q,
        &replay_daemon, &replay_daemon_each,
};

struct arguments {
        bool as_json, lists;
        const char *place; /* folder or file */
        char **names;
        int n_names;
};

static void die(const char *what)
{
        fprintf(stderr, "replay: %s\n", what);
        exit(1);
}

/* ---- results ---- */

static double percent_of(double part, double whole)
{
        return whole > 0 ? 100 * part / whole : 0;
}

static void print_json(const char *cell, const char *policy, const struct replay_sizes *sizes,
                       const struct replay_result *result, double limit)
{
        double rate = percent_of((double)result->hit_tokens, (double)result->input_tokens);

        printf("{\"name\": \"replay.%s.%s\", \"value\": %.2f, \"unit\": \"%%\", "
               "\"limit\": %.2f, \"ratio\": %.4f, \"runs\": 1, "
               "\"capacity_gb\": %.3f, \"written_gb\": %.1f, \"states_percent\": %.1f}\n",
               cell, policy, rate, limit, limit > 0 ? rate / limit : 0,
               (double)sizes->capacity_bytes / 1e9, (double)result->bytes_written / 1e9,
               100 * result->state_share);
}

static void print_row(const char *policy, const struct replay_result *result)
{
        printf("    %-11s %5.2f %11.0f %9.1f\n", policy,
               percent_of((double)result->hit_tokens, (double)result->input_tokens),
               (double)result->bytes_written / 1e9, 100 * result->state_share);
}

static void print_head(const char *cell, const struct replay_sizes *sizes)
{
        printf("%s, %.1f GB\n    policy      hit %%  written GB  states %%\n", cell,
               (double)sizes->capacity_bytes / 1e9);
}

/* ---- cells ---- */

/* Placements differ only where there are states. */
static bool applies(const struct replay_policy *policy, const struct replay_sizes *sizes)
{
        return sizes->state_bytes || policy == &replay_min || policy == &replay_dense ||
               policy == &replay_daemon;
}

static void run_cell(const struct arguments *arguments, const char *name, const struct cell *cell,
                     const struct trace *trace)
{
        struct replay_sizes sizes;
        double limit = 100, min = 100, rate;

        if (cell_sizes(cell, trace, &sizes) < 0)
                die("no memory");
        if (!arguments->as_json)
                print_head(name, &sizes);
        for (size_t i = 0; i < N_ELEMENTS(policies); i++) {
                const struct replay_policy *policy = policies[i];
                struct replay_result result;

                if (!applies(policy, &sizes))
                        continue;
                if (replay_run(policy, &sizes, trace, &result) < 0)
                        die("no memory");
                rate = percent_of((double)result.hit_tokens, (double)result.input_tokens);
                if (policy == &replay_min)
                        min = limit = rate;
                if (policy == &replay_oracle)
                        limit = rate;
                if (arguments->as_json)
                        print_json(name, policy->name, &sizes, &result,
                                   policy == &replay_dense ? min : limit);
                else
                        print_row(policy->name, &result);
                fflush(stdout);
        }
}

/* ---- traces ---- */

static bool is_folder(const char *path)
{
        struct stat st;

        return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void read_trace(const struct arguments *arguments, const struct cell_source *source,
                       struct trace *trace)
{
        char path[PATH_MAX];
        struct why why;
        int n;

        if (is_folder(arguments->place))
                n = snprintf(path, sizeof(path), "%s/%s", arguments->place, source->file);
        else
                n = snprintf(path, sizeof(path), "%s", arguments->place);
        if (n < 0 || (size_t)n >= sizeof(path))
                die("the path is too long");
        trace_deinit(trace);
        trace_init(trace, CHUNK_TOKENS);
        if (trace_file_read(trace, path, &why) < 0)
                die(why.text);
        if (source->squeeze > 1 && trace_squeeze(trace, source->squeeze) < 0)
                die("no memory");
}

static void run_named(const struct arguments *arguments, const char *name,
                      const struct cell_source **source, struct trace *trace)
{
        struct cell cell;
        struct why why;

        if (cell_parse(&cell, name, &why) < 0)
                die(why.text);
        if (*source != cell.source)
                read_trace(arguments, cell.source, trace);
        *source = cell.source;
        run_cell(arguments, name, &cell, trace);
}

/* ---- arguments ---- */

static int on_argument(int key, char *argument, struct argp_state *state)
{
        struct arguments *arguments = state->input;

        switch (key) {
        case 'j':
                arguments->as_json = true;
                return 0;
        case 'l':
                arguments->lists = true;
                return 0;
        case ARGP_KEY_ARGS:
                arguments->place = state->argv[state->next];
                arguments->names = state->argv + state->next + 1;
                arguments->n_names = state->argc - state->next - 1;
                return 0;
        case ARGP_KEY_END:
                if (!arguments->place && !arguments->lists)
                        argp_usage(state);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

int main(int argc, char **argv)
{
        static const struct argp_option options[] = {
                {"json", 'j', NULL, 0, "One JSON line for each cell and policy", 0},
                {"list", 'l', NULL, 0, "The cells that are run when none is named", 0},
                {0},
        };
        static const struct argp argp = {
                .options = options,
                .parser = on_argument,
                .args_doc = "FOLDER|FILE [TRACE.MODEL.PERCENT...]",
                .doc = "Replays traces of prompts through policies of eviction and placement.",
        };
        struct arguments arguments = {0};
        const struct cell_source *source = NULL;
        struct trace trace = {0};

        if (argp_parse(&argp, argc, argv, 0, NULL, &arguments) != 0)
                return 2;
        for (int i = 0; i < arguments.n_names; i++)
                run_named(&arguments, arguments.names[i], &source, &trace);
        for (size_t i = 0; !arguments.n_names && cell_names[i]; i++) {
                if (arguments.lists)
                        puts(cell_names[i]);
                else
                        run_named(&arguments, cell_names[i], &source, &trace);
        }
        trace_deinit(&trace);
        return 0;
}
