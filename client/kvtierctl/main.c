// SPDX-License-Identifier: Apache-2.0
/* kvtierctl: finds the command and runs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "client/kvtierctl/command.h"

static const struct {
        const char *name;
        int (*run)(struct context *context, int argc, char **argv);
} commands[] = {
        {"status", status_command}, {"sessions", sessions_command}, {"layouts", layouts_command},
        {"ls", ls_command},         {"show", show_command},         {"top", top_command},
        {"verify", verify_command}, {"evict", evict_command},       {"clear", clear_command},
        {"pin", pin_command},       {"unpin", unpin_command},       {"reclaim", reclaim_command},
        {"kick", kick_command},     {"why", why_command},           {"bench", bench_command},
        {"pool", pool_command},     {"doctor", doctor_command},     {"plan", plan_command},
};

struct rest {
        int argc;
        char **argv;
};

/* Everything from the command's name on is the command's. */
static error_t take_command(int key, char *value, struct argp_state *state)
{
        struct rest *rest = state->input;

        (void)value;
        switch (key) {
        case ARGP_KEY_ARG:
                rest->argv = state->argv + state->next - 1;
                rest->argc = state->argc - state->next + 1;
                state->next = state->argc;
                return 0;
        case ARGP_KEY_NO_ARGS:
                argp_error(state, "no command");
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static const struct argp main_argp = {
        .parser = take_command,
        .args_doc = "COMMAND [ARGUMENT...]",
};

static const char main_doc[] =
        "Looks into a running kvtierd, and tells it what to drop.\v"
        "Commands:\n"
        "  status             tiers, objects, hits, misses, evictions\n"
        "  sessions           the engines that are attached or in quarantine\n"
        "  layouts            what kinds of bytes are stored\n"
        "  ls                 stored objects\n"
        "  show KEY           everything that is known of one boundary\n"
        "  top                rates and fill levels, live\n"
        "  verify             reads and checks every object on NVMe\n"
        "  evict LAYOUT       drops a layout, or a boundary, from host memory (or --tier=...)\n"
        "  clear LAYOUT       drops a layout, or a boundary, from every tier\n"
        "  reclaim KEY        drops what is no longer wanted: --below, --prefix\n"
        "  pin KEY            keeps a boundary and all above it\n"
        "  unpin KEY          ends that\n"
        "  kick SESSION       ends a session\n"
        "  why                why a prompt is not a hit\n"
        "  pool               the remote pool and who shares it\n"
        "  pool gc            removes what dead nodes have left there\n"
        "  bench              measures store, load and match\n"
        "  doctor             what is configured badly, and the remedy\n"
        "  plan CONFIG.json   a serving design for a model, without a daemon\n"
        "\n"
        "kvtierctl COMMAND --help tells more.\n"
        "Exit status: 0 done, 1 refused or something is wrong, 2 wrong usage, 3 kvtierd does "
        "not answer.";

static int run(struct context *context, const struct rest *rest)
{
        char name[64];

        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
                if (strcmp(commands[i].name, rest->argv[0]))
                        continue;
                snprintf(name, sizeof(name), "kvtierctl %s", rest->argv[0]);
                rest->argv[0] = name;
                return commands[i].run(context, rest->argc, rest->argv);
        }
        command_error("\"%s\" is not a command; see kvtierctl --help", rest->argv[0]);
        return STATUS_USAGE;
}

int main(int argc, char **argv)
{
        struct context context = {.socket = KVT_DEFAULT_SOCKET, .connection.fd = -1};
        struct rest rest = {0};
        int status;

        argp_program_version = "kvtierctl " KVTIER_VERSION;
        argp_err_exit_status = STATUS_USAGE;
        command_parse(&context, &main_argp, main_doc, argc, argv, &rest, ARGP_IN_ORDER);
        status = run(&context, &rest);
        connection_close(&context.connection);
        if (fflush(stdout) || ferror(stdout)) {
                command_error("cannot write: %s", strerror(errno));
                return STATUS_NEGATIVE;
        }
        return status;
}
