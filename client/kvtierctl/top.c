// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl top: rates and fill levels on one screen. A rate is the difference of two
 * counters over the time between the two answers.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/table.h"

#define BAR_WIDTH 20

struct top {
        double interval;
        bool once;
        bool is_screen;
};

struct sample {
        json_t *status;
        double seconds; /* monotonic */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
        (void)number;
        interrupted = 1;
}

static error_t parse_top(int key, char *value, struct argp_state *state)
{
        struct top *top = state->input;
        char *end;

        switch (key) {
        case 'i':
                top->interval = strtod(value, &end);
                if (*end || end == value || !(top->interval >= 0.1 && top->interval <= 3600))
                        argp_error(state, "-i %s: from 0.1 to 3600 seconds", value);
                return 0;
        case '1':
                top->once = true;
                return 0;
        case ARGP_KEY_ARG:
                argp_error(state, "unexpected argument: %s", value);
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static int take_sample(struct context *context, struct sample *ret_sample)
{
        struct timespec now;
        int r = command_ask(context, json_pack("{s:s}", "command", "status"), &ret_sample->status);

        clock_gettime(CLOCK_MONOTONIC, &now);
        ret_sample->seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
        return r;
}

/* ---- the screen ---- */

/* Of a member of two documents; the daemon may have restarted in between. */
static double rate(const json_t *before, const json_t *now, const char *name, double seconds)
{
        double difference = json_double(now, name) - json_double(before, name);

        return difference > 0 && seconds > 0 ? difference / seconds : 0;
}

static void draw_bar(char bar[BAR_WIDTH + 1], uint64_t part, uint64_t whole)
{
        size_t filled = whole ? (size_t)((double)BAR_WIDTH * (double)part / (double)whole) : 0;

        memset(bar, '.', BAR_WIDTH);
        memset(bar, '#', filled < BAR_WIDTH ? filled : BAR_WIDTH);
        bar[BAR_WIDTH] = '\0';
}

static void print_head(const json_t *before, const json_t *now, double seconds)
{
        double hits = rate(before, now, "hits", seconds);
        double misses = rate(before, now, "misses", seconds);

        printf("kvtierd %s, %s, up %s\n", json_text(now, "version"), json_text(now, "phase"),
               text_seconds(json_double(now, "uptime_seconds")));
        printf("sessions %s (%s in quarantine), %s leases, %s objects\n\n",
               text_count(json_u64(now, "sessions")), text_count(json_u64(now, "quarantined")),
               text_count(json_u64(now, "leases")), text_count(json_u64(now, "objects")));
        printf("store    %s/s\n", text_bytes((uint64_t)rate(before, now, "stored_bytes", seconds)));
        printf("load     %s/s\n", text_bytes((uint64_t)rate(before, now, "loaded_bytes", seconds)));
        printf("lookups  %.0f hits/s, %.0f misses/s (%s)\n\n", hits, misses,
               text_percent(hits, hits + misses));
}

static void add_tier(struct table *table, const json_t *before, const json_t *now, double seconds)
{
        char bar[BAR_WIDTH + 1];

        draw_bar(bar, json_u64(now, "used_bytes"), json_u64(now, "capacity_bytes"));
        table_add(table, "%s", json_text(now, "name"));
        table_add(table, "%s", bar);
        table_add(table, "%s", text_bytes(json_u64(now, "used_bytes")));
        table_add(table, "%s", text_bytes(json_u64(now, "capacity_bytes")));
        table_add(table, "%s", text_count(json_u64(now, "objects")));
        table_add(table, "%.0f", rate(before, now, "hits", seconds));
        table_add(table, "%.0f", rate(before, now, "evicted", seconds));
        table_add(table, "%s/s", text_bytes((uint64_t)rate(before, now, "read_bytes", seconds)));
        table_add(table, "%s/s", text_bytes((uint64_t)rate(before, now, "written_bytes", seconds)));
        table_add(table, "%s", json_bool(now, "degraded") ? "degraded" : "ok");
}

static void print_screen(const struct top *top, const json_t *before, const json_t *now,
                         double seconds)
{
        const json_t *tiers = json_object_get(now, "tiers"), *tier;
        struct table table;
        size_t i;

        if (top->is_screen)
                fputs("\033[H\033[J", stdout);
        print_head(before, now, seconds);
        table_init(&table, "TIER FILL #USED #CAPACITY #OBJECTS #HITS/s #EVICTED/s #READ #WRITTEN "
                           "STATE");
        json_array_foreach(tiers, i, tier) add_tier(
                &table, json_array_get(json_object_get(before, "tiers"), i), tier, seconds);
        table_print(&table, stdout);
        table_deinit(&table);
        if (top->is_screen)
                fputs("\nq quits\n", stdout);
        fflush(stdout);
}

static void print_rates(const json_t *before, const json_t *now, double seconds)
{
        static const char *const names[] = {"hits", "misses", "stored_bytes", "loaded_bytes"};
        json_auto_t *document = json_object();
        json_t *rates = json_object();

        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                json_object_set_new(rates, names[i],
                                    json_real(rate(before, now, names[i], seconds)));
        json_object_set_new(document, "seconds", json_real(seconds));
        json_object_set_new(document, "per_second", rates);
        json_object_set_new(document, "status", json_deep_copy(now));
        command_print_json(document, true);
}

/* ---- the terminal ---- */

static struct termios terminal_before;

static bool take_terminal(void)
{
        struct sigaction action = {.sa_handler = on_signal};
        struct termios terminal;

        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &terminal_before))
                return false;
        terminal = terminal_before;
        terminal.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        return !tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
}

/* True when the user wants to leave. */
static bool wait_for_key(double seconds, bool has_terminal)
{
        struct pollfd input = {.fd = has_terminal ? STDIN_FILENO : -1, .events = POLLIN};
        char key = 0;

        if (poll(&input, 1, (int)(seconds * 1000)) < 0)
                return interrupted;
        if (input.revents && read(STDIN_FILENO, &key, 1) <= 0)
                return true;
        return interrupted || key == 'q' || key == 'Q';
}

static int watch(struct context *context, const struct top *top, bool has_terminal)
{
        struct sample before = {0}, now = {0};
        int r = take_sample(context, &before);

        while (r == STATUS_OK && !wait_for_key(top->interval, has_terminal)) {
                r = take_sample(context, &now);
                if (r)
                        break;
                if (context->json)
                        print_rates(before.status, now.status, now.seconds - before.seconds);
                else
                        print_screen(top, before.status, now.status, now.seconds - before.seconds);
                json_decref(before.status);
                before = now;
                now.status = NULL;
                if (top->once)
                        break;
        }
        json_decref(before.status);
        json_decref(now.status);
        return r;
}

int top_command(struct context *context, int argc, char **argv)
{
        static const struct argp_option options[] = {
                {"interval", 'i', "SECONDS", 0, "Time between two screens (default 2)", 0},
                {"once", '1', NULL, 0, "One screen, then end", 0},
                {0},
        };
        static const struct argp argp = {.options = options, .parser = parse_top};
        struct top top = {.interval = 2};
        bool has_terminal;
        int r;

        command_parse(context, &argp, "Rates and fill levels, live, until q is pressed.", argc,
                      argv, &top, 0);
        top.is_screen = !top.once && !context->json && isatty(STDOUT_FILENO);
        r = command_connect(context);
        if (r)
                return r;
        has_terminal = !top.once && take_terminal();
        r = watch(context, &top, has_terminal);
        if (has_terminal)
                tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
        return r;
}
