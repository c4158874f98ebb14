// SPDX-License-Identifier: Apache-2.0
/*
 * kvtierctl doctor: asks for the status and the layouts, looks at the daemon's process, prints
 * findings.
 */
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/stat.h>

#include "client/kvtierctl/command.h"
#include "client/kvtierctl/findings.h"
#include "client/kvtierctl/plan_knowledge.h"
#include "client/kvtierctl/sparse_model.h"
#include "client/kvtierctl/symptoms.h"

enum {
        OPTION_KNOWLEDGE = 256,
};

static const struct argp_option options[] = {
        {"knowledge", OPTION_KNOWLEDGE, "FOLDER", 0, "Other tables than the installed ones", 0},
        {0},
};

static error_t parse(int key, char *value, struct argp_state *state)
{
        const char **knowledge = state->input;

        if (key != OPTION_KNOWLEDGE)
                return ARGP_ERR_UNKNOWN;
        *knowledge = value;
        return 0;
}

/* The soft limit of the daemon in bytes; UINT64_MAX for unlimited or unknown. */
static uint64_t memlock_limit(pid_t pid)
{
        char path[64], line[256];
        uint64_t limit = UINT64_MAX;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/limits", (int)pid);
        file = pid > 0 ? fopen(path, "re") : NULL;
        if (!file)
                return UINT64_MAX;
        while (fgets(line, sizeof(line), file))
                if (sscanf(line, "Max locked memory %" SCNu64, &limit) == 1)
                        break;
        fclose(file);
        return limit;
}

/* Then no limit counts: a container's daemon has CAP_IPC_LOCK in place of a limit. */
static bool may_lock_all(pid_t pid)
{
        unsigned long long effective = 0;
        char path[64], line[256];
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
        file = fopen(path, "re");
        if (!file)
                return false;
        while (fgets(line, sizeof(line), file))
                if (sscanf(line, "CapEff: %llx", &effective) == 1)
                        break;
        fclose(file);
        return effective >> CAP_IPC_LOCK & 1;
}

static bool runs_as_root(pid_t pid)
{
        char path[64];
        struct stat status;

        snprintf(path, sizeof(path), "/proc/%d", (int)pid);
        return pid > 0 && stat(path, &status) == 0 && status.st_uid == 0;
}

static int print_findings(const json_t *list)
{
        const json_t *finding;
        size_t i;

        json_array_foreach(list, i, finding)
                printf("%s\n  remedy: %s\n\n", json_text(finding, "finding"),
                       json_text(finding, "remedy"));
        if (!json_array_size(list)) {
                printf("nothing found (looked at:");
                for (i = 0; findings_check_name(i); i++)
                        printf("%s %s", i ? "," : "", findings_check_name(i));
                for (i = 0; symptoms_check_name(i); i++)
                        printf(", %s", symptoms_check_name(i));
                printf(")\n");
        }
        return json_array_size(list) ? STATUS_NEGATIVE : STATUS_OK;
}

/* Without the tables the rest is looked at all the same. */
static void find_symptoms(json_t *list, json_t *layouts, const char *folder)
{
        json_auto_t *knowledge = NULL;
        struct why why;

        if (plan_knowledge_load(folder, &knowledge, &why))
                command_error("indexer keys are not looked for: %s", why.text);
        else
                sparse_model_mark(layouts, knowledge);
        symptoms_append(list, layouts);
}

int doctor_command(struct context *context, int argc, char **argv)
{
        static const struct argp argp = {.options = options, .parser = parse};
        json_auto_t *status = NULL, *list = NULL, *document = NULL, *layouts = json_array();
        const char *folder = NULL;
        struct findings_process process;
        pid_t pid;
        int r;

        command_parse(context, &argp, "What is wrong or configured badly, and the remedy.", argc,
                      argv, &folder, 0);
        r = command_ask(context, json_pack("{s:s}", "command", "status"), &status);
        if (!r)
                r = layouts_ask(context, layouts);
        if (r)
                return r;
        pid = context->connection.daemon_pid;
        process.memlock_bytes = may_lock_all(pid) ? UINT64_MAX : memlock_limit(pid);
        process.is_root = runs_as_root(pid);
        list = findings_list(status, &process);
        find_symptoms(list, layouts, folder);
        if (!context->json)
                return print_findings(list);
        document = json_pack("{s:b, s:O}", "ok", 1, "findings", list);
        command_print_json(document, false);
        return json_array_size(list) ? STATUS_NEGATIVE : STATUS_OK;
}
