// SPDX-License-Identifier: Apache-2.0
/*
 * What libkvtier and kvtierd add to a memcpy: objects stored into and loaded from the host
 * tier, against plain memcpy of the same bytes between the same kinds of memory.
 *
 *   bench_host KVTIERD [RUNS]
 *
 * Starts the daemon with a host tier of its own below /tmp. One thread, at least 16 MiB in
 * flight; for 64 KiB objects batches of 64. Store: reserve, copy, commit. Load: acquire,
 * copy, release. Both sides' memory was touched before; runs of the daemon and of memcpy
 * take turns. One JSON line a row; the ratio is that of the medians.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/kvtier.h"

#define MIB       (UINT64_C(1) << 20)
#define HOST      (512 * MIB)
#define PIECE     (128 * MIB)
#define STORED    (384 * MIB) /* of one run: long enough for the first and last wait not to count */
#define SOURCE    (64 * MIB)
#define BATCH_MAX 64u
#define SLOTS_MAX 8u
#define RUNS_MAX  64u
#define SECONDS   UINT64_C(1000000000)

enum step {
        IDLE,
        OPENING, /* reserve or acquire */
        CLOSING, /* commit or release */
};

struct slot {
        enum step step;
        uint64_t number; /* of its batch */
        struct kvt_object objects[BATCH_MAX];
};

struct shape {
        const char *name;
        uint64_t bytes;   /* of an object */
        uint32_t batch;   /* objects of a batch */
        uint32_t n_slots; /* batches in flight */
};

static const struct shape shapes[] = {
        {"1m", MIB, 8, 4},
        {"4m", 4 * MIB, 2, 4},
        {"16m", 16 * MIB, 1, 3},
        {"64k", MIB / 16, 64, 8},
};

static struct {
        char folder[64];
        pid_t daemon;
        struct kvt_session *session;
        uint8_t *ours;   /* what an engine's memory would be */
        uint8_t *theirs; /* memory like the daemon's, for plain memcpy */
        uint64_t round;  /* makes the keys of each run new ones */
} bench;

static void stop_daemon(void)
{
        char command[96];

        if (bench.daemon > 0) {
                kill(bench.daemon, SIGTERM);
                waitpid(bench.daemon, NULL, 0);
        }
        snprintf(command, sizeof(command), "rm -rf %s", bench.folder);
        if (system(command))
                fprintf(stderr, "bench_host: %s is left\n", bench.folder);
}

static void die(const char *what, const char *why)
{
        fprintf(stderr, "bench_host: %s: %s\n", what, why);
        stop_daemon();
        exit(1);
}

static void check(const char *what, uint32_t status)
{
        if (status != KVT_OK)
                die(what, kvt_status_name((enum kvt_status)status));
}

static double now(void)
{
        struct timespec time;

        clock_gettime(CLOCK_MONOTONIC, &time);
        return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- the daemon and the session ---- */

static void start_daemon(char *program)
{
        extern char **environ;
        char path[96], socket[96];
        char config_option[] = "--config";
        char *arguments[] = {program, config_option, path, NULL};
        FILE *file;

        strcpy(bench.folder, "/tmp/kvt-bench-XXXXXX");
        if (!mkdtemp(bench.folder))
                die("mkdtemp", "failed");
        snprintf(path, sizeof(path), "%s/kvtierd.conf", bench.folder);
        snprintf(socket, sizeof(socket), "%s/socket", bench.folder);
        file = fopen(path, "we");
        if (!file)
                die(path, "cannot be written");
        fprintf(file,
                "socket:\n  path: %s\nhost:\n  bytes: %lluMiB\n  piece_bytes: %lluMiB\n"
                "metrics:\n  listen: off\nlog:\n  level: error\n",
                socket, (unsigned long long)(HOST / MIB), (unsigned long long)(PIECE / MIB));
        fclose(file);
        if (posix_spawn(&bench.daemon, program, NULL, NULL, arguments, environ))
                die(program, "cannot be started");
}

static void open_session(void)
{
        char socket[96], why[512];
        struct kvt_group group = {.name = "blob", .kind = KVT_GROUP_STATE};
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "bench",
                                    .engine = "bench_host",
                                    .groups = &group,
                                    .n_groups = 1};
        struct kvt_options options = {.size = sizeof(options),
                                      .socket = socket,
                                      .layout = &layout,
                                      .connect_timeout_ns = 30 * SECONDS};

        snprintf(socket, sizeof(socket), "%s/socket", bench.folder);
        if (kvt_open(&bench.session, &options, why, sizeof(why)) != KVT_OK)
                die("kvt_open", why);
}

static uint8_t *shared_memory(uint64_t bytes)
{
        int fd = memfd_create("bench", MFD_CLOEXEC);
        void *base;

        if (fd < 0 || ftruncate(fd, (off_t)bytes))
                die("memfd", "failed");
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                die("mmap", "failed");
        close(fd);
        memset(base, 1, bytes);
        return base;
}

/* ---- one run ---- */

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static void submit(submit_fn function, const struct shape *shape, struct slot *slot)
{
        struct kvt_call call = {.size = sizeof(call), .user = slot};

        check("submit", function(bench.session, &call, slot->objects, shape->batch, NULL));
}

static void name_objects(const struct shape *shape, struct slot *slot)
{
        for (uint32_t i = 0; i < shape->batch; i++) {
                uint64_t name[3] = {bench.round, slot->number * shape->batch + i, shape->bytes};

                slot->objects[i] = (struct kvt_object){.bytes = shape->bytes};
                memcpy(slot->objects[i].digest.bytes, name, sizeof(name));
        }
}

static void copy_batch(const struct shape *shape, struct slot *slot, bool is_store)
{
        for (uint32_t i = 0; i < shape->batch; i++) {
                struct kvt_object *object = &slot->objects[i];
                uint64_t at = (slot->number * shape->batch + i) * shape->bytes % SOURCE;

                check("object", object->status);
                check("copy", is_store ? kvt_write(object, 0, bench.ours + at, shape->bytes)
                                       : kvt_read(object, 0, bench.ours + at, shape->bytes));
        }
}

/* All batches of a run through the pipeline. */
static void run_calls(const struct shape *shape, bool is_store)
{
        uint64_t n_batches = STORED / shape->bytes / shape->batch, n_started = 0, n_done = 0;
        static struct slot slots[SLOTS_MAX];
        struct kvt_completion completions[SLOTS_MAX];

        memset(slots, 0, sizeof(slots));
        while (n_done < n_batches) {
                size_t n;

                for (uint32_t i = 0; i < shape->n_slots && n_started < n_batches; i++) {
                        if (slots[i].step != IDLE)
                                continue;
                        slots[i].step = OPENING;
                        slots[i].number = n_started++;
                        name_objects(shape, &slots[i]);
                        submit(is_store ? kvt_reserve : kvt_acquire, shape, &slots[i]);
                }
                n = kvt_wait(bench.session, completions, SLOTS_MAX, 10 * SECONDS);
                if (!n)
                        die("kvt_wait", "nothing completed");
                for (size_t i = 0; i < n; i++) {
                        struct slot *slot = completions[i].user;

                        check("call", completions[i].status);
                        if (slot->step == OPENING) {
                                copy_batch(shape, slot, is_store);
                                slot->step = CLOSING;
                                submit(is_store ? kvt_commit : kvt_release, shape, slot);
                        } else {
                                slot->step = IDLE;
                                n_done++;
                        }
                }
        }
}

static void run_memcpy(const struct shape *shape, bool is_store)
{
        static uint64_t begin;

        for (uint64_t done = 0; done < STORED; done += shape->bytes) {
                uint8_t *theirs = bench.theirs + (begin + done) % HOST;
                uint8_t *ours = bench.ours + done % SOURCE;

                if (is_store)
                        memcpy(theirs, ours, shape->bytes);
                else
                        memcpy(ours, theirs, shape->bytes);
        }
        begin = (begin + STORED) % HOST;
}

static double measure(void (*run)(const struct shape *shape, bool is_store),
                      const struct shape *shape, bool is_store)
{
        double begin = now();

        run(shape, is_store);
        return STORED / (now() - begin) / 1e9;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t n)
{
        qsort(values, n, sizeof(values[0]), compare);
        return values[n / 2];
}

static void print_row(const char *name, const struct shape *shape, double *values, double *limits,
                      uint32_t n)
{
        double value = median(values, n), limit = median(limits, n);

        printf("{\"name\": \"%s_%s\", \"value\": %.2f, \"unit\": \"GB/s\", \"limit\": %.2f, "
               "\"ratio\": %.3f, \"runs\": %u}\n",
               name, shape->name, value, limit, value / limit, n);
        fflush(stdout);
}

static void bench_shape(const struct shape *shape, uint32_t n_runs)
{
        double stores[RUNS_MAX], store_limits[RUNS_MAX], loads[RUNS_MAX], load_limits[RUNS_MAX];

        for (uint32_t i = 0; i < n_runs; i++) {
                bench.round++;
                store_limits[i] = measure(run_memcpy, shape, true);
                stores[i] = measure(run_calls, shape, true);
                load_limits[i] = measure(run_memcpy, shape, false);
                loads[i] = measure(run_calls, shape, false);
        }
        print_row("host_store", shape, stores, store_limits, n_runs);
        print_row("host_load", shape, loads, load_limits, n_runs);
}

int main(int argc, char **argv)
{
        uint32_t n_runs = argc > 2 ? (uint32_t)atoi(argv[2]) : 9;

        if (argc < 2 || !n_runs || n_runs > RUNS_MAX) {
                fprintf(stderr, "usage: bench_host KVTIERD [RUNS, at most %u]\n", RUNS_MAX);
                return 2;
        }
        start_daemon(argv[1]);
        open_session();
        bench.ours = malloc(SOURCE);
        if (!bench.ours)
                die("malloc", "no memory");
        memset(bench.ours, 2, SOURCE);
        bench.theirs = shared_memory(HOST);
        /* Touches every page of the arenas once. */
        for (uint64_t stored = 0; stored < 2 * HOST; stored += STORED) {
                bench.round++;
                run_calls(&shapes[1], true);
        }
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
                bench_shape(&shapes[i], n_runs);
        kvt_close(bench.session);
        stop_daemon();
        return 0;
}
