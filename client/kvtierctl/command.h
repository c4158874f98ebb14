// SPDX-License-Identifier: Apache-2.0
/*
 * What every command of kvtierctl shares: the options --socket and --json (before or after
 * the command's name), a connection that is opened at the first question, exit statuses,
 * and the commands themselves, one file a family.
 *
 * A command prints its result to stdout: a table, or with --json what the daemon said.
 * Errors go to stderr, once, and are the exit status.
 */
#pragma once

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "client/kvtierctl/connection.h"

enum exit_status {
        STATUS_OK = 0,
        STATUS_NEGATIVE = 1, /* refused, not found, something is wrong */
        STATUS_USAGE = 2,
        STATUS_UNREACHABLE = 3, /* the daemon does not answer */
};

struct context {
        const char *socket;
        bool json;
        bool is_connected;
        struct connection connection;
};

/*
 * Parses a command's arguments. @argp: its own options, parser (whose input is @input) and
 * texts; NULL for a command without arguments. @doc describes it, @flags are argp_parse()'s.
 * Ends the program with STATUS_USAGE when they are wrong.
 */
void command_parse(struct context *context, const struct argp *argp, const char *doc, int argc,
                   char **argv, void *input, unsigned flags);

/* Prints "kvtierctl: ..." to stderr. */
void command_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Connects, if that has not been done. STATUS_OK or, with a message, STATUS_UNREACHABLE. */
int command_connect(struct context *context);

/*
 * Asks @command, which it frees, and returns STATUS_OK with the answer, to be freed by the
 * caller; else it has printed what is wrong. NULL for @command stands for out of memory.
 */
int command_ask(struct context *context, json_t *command, json_t **ret_answer);

/* Appends every layout to the array @layouts. As command_ask(). */
int layouts_ask(struct context *context, json_t *layouts);

/* Prints a document for --json; @compact: on one line, for commands that print several. */
void command_print_json(const json_t *document, bool compact);

/* Members of a document; 0, false, 0.0 and "" when they are not there. */
uint64_t json_u64(const json_t *object, const char *name);
double json_double(const json_t *object, const char *name);
bool json_bool(const json_t *object, const char *name);
const char *json_text(const json_t *object, const char *name);

/* The commands. Each gets its own name in argv[0] and returns the exit status. */
int status_command(struct context *context, int argc, char **argv);
int layouts_command(struct context *context, int argc, char **argv);
int sessions_command(struct context *context, int argc, char **argv);
int kick_command(struct context *context, int argc, char **argv);
int ls_command(struct context *context, int argc, char **argv);
int show_command(struct context *context, int argc, char **argv);
int evict_command(struct context *context, int argc, char **argv);
int clear_command(struct context *context, int argc, char **argv);
int pin_command(struct context *context, int argc, char **argv);
int unpin_command(struct context *context, int argc, char **argv);
int reclaim_command(struct context *context, int argc, char **argv);
int pool_command(struct context *context, int argc, char **argv);
int top_command(struct context *context, int argc, char **argv);
int verify_command(struct context *context, int argc, char **argv);
int why_command(struct context *context, int argc, char **argv);
int bench_command(struct context *context, int argc, char **argv);
int doctor_command(struct context *context, int argc, char **argv);
int plan_command(struct context *context, int argc, char **argv);
