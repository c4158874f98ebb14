// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/bench_daemon.h"

#define PIECE (128 * MIB)

static char folder[64];
static pid_t daemon_pid;

void bench_stop_daemon(void)
{
        char command[96];

        if (daemon_pid > 0) {
                kill(daemon_pid, SIGTERM);
                waitpid(daemon_pid, NULL, 0);
        }
        snprintf(command, sizeof(command), "rm -rf %s", folder);
        if (system(command))
                fprintf(stderr, "bench: %s is left\n", folder);
}

_Noreturn void bench_die(const char *what, const char *why)
{
        fprintf(stderr, "bench: %s: %s\n", what, why);
        bench_stop_daemon();
        exit(1);
}

void bench_check(const char *what, uint32_t status)
{
        if (status != KVT_OK)
                bench_die(what, kvt_status_name((enum kvt_status)status));
}

double bench_now(void)
{
        struct timespec time;

        clock_gettime(CLOCK_MONOTONIC, &time);
        return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void bench_start_daemon(char *program)
{
        bench_start_daemon_of(program, BENCH_HOST, PIECE);
}

void bench_start_daemon_of(char *program, uint64_t host_bytes, uint64_t piece_bytes)
{
        extern char **environ;
        char path[96], socket[96];
        char config_option[] = "--config";
        char *arguments[] = {program, config_option, path, NULL};
        FILE *file;

        strcpy(folder, "/tmp/kvt-bench-XXXXXX");
        if (!mkdtemp(folder))
                bench_die("mkdtemp", "failed");
        snprintf(path, sizeof(path), "%s/kvtierd.conf", folder);
        snprintf(socket, sizeof(socket), "%s/socket", folder);
        file = fopen(path, "we");
        if (!file)
                bench_die(path, "cannot be written");
        fprintf(file,
                "socket:\n  path: %s\nhost:\n  bytes: %lluMiB\n  piece_bytes: %lluMiB\n"
                "metrics:\n  listen: off\nlog:\n  level: error\n",
                socket, (unsigned long long)(host_bytes / MIB),
                (unsigned long long)(piece_bytes / MIB));
        fclose(file);
        if (posix_spawn(&daemon_pid, program, NULL, NULL, arguments, environ))
                bench_die(program, "cannot be started");
}

struct kvt_session *bench_open(const struct kvt_layout *layout)
{
        char socket[96], why[512];
        struct kvt_session *session = NULL;
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = socket,
                                      .layout = layout,
                                      .connect_timeout_ns = 30 * SECONDS};

        snprintf(socket, sizeof(socket), "%s/socket", folder);
        if (kvt_open(&session, &options, why, sizeof(why)) != KVT_OK)
                bench_die("kvt_open", why);
        return session;
}

uint8_t *bench_shared_memory(uint64_t bytes)
{
        int fd = memfd_create("bench", MFD_CLOEXEC);
        void *base;

        if (fd < 0 || ftruncate(fd, (off_t)bytes))
                bench_die("memfd", "failed");
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                bench_die("mmap", "failed");
        close(fd);
        memset(base, 1, bytes);
        return base;
}

uint8_t *bench_memory(uint64_t bytes)
{
        uint8_t *base = aligned_alloc(4096, bytes);

        if (!base)
                bench_die("aligned_alloc", "no memory");
        memset(base, 2, bytes);
        return base;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return x < y ? -1 : x > y;
}

double bench_median(double *values, uint32_t n)
{
        qsort(values, n, sizeof(values[0]), compare);
        return values[n / 2];
}

void bench_print_row(const char *name, const char *shape, double *values, double *limits,
                     uint32_t n)
{
        double value = bench_median(values, n), limit = bench_median(limits, n);

        printf("{\"name\": \"%s_%s\", \"value\": %.2f, \"unit\": \"GB/s\", \"limit\": %.2f, "
               "\"ratio\": %.3f, \"runs\": %u}\n",
               name, shape, value, limit, value / limit, n);
        fflush(stdout);
}
