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
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench_daemon.h"

#define STORED    (384 * MIB) /* of one run: long enough for the first and last wait not to count */
#define SOURCE    (64 * MIB)
#define BATCH_MAX 64u
#define SLOTS_MAX 8u

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

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static struct {
        struct kvt_session *session;
        uint8_t *ours;   /* what an engine's memory would be */
        uint8_t *theirs; /* memory like the daemon's, for plain memcpy */
        uint64_t round;  /* makes the keys of each run new ones */
} bench;

static void open_session(void)
{
        struct kvt_group groups[N_SHAPES];
        struct kvt_layout layout = {.size = sizeof(layout),
                                    .model = "bench",
                                    .engine = "bench_host",
                                    .chunk_tokens = 16,
                                    .groups = groups,
                                    .n_groups = N_SHAPES};

        /* Not states: of these those that were used stay, and a run would push itself out. */
        for (uint32_t i = 0; i < N_SHAPES; i++)
                groups[i] = (struct kvt_group){.name = shapes[i].name,
                                               .kind = KVT_GROUP_ATTENTION,
                                               .page_tokens = 16,
                                               .page_bytes = shapes[i].bytes};
        bench.session = bench_open(&layout);
}

/* ---- one run ---- */

typedef enum kvt_status (*submit_fn)(struct kvt_session *session, const struct kvt_call *call,
                                     struct kvt_object *objects, size_t n, uint64_t *ret_call);

static void submit(submit_fn function, const struct shape *shape, struct slot *slot)
{
        struct kvt_call call = {.size = sizeof(call), .user = slot};

        bench_check("submit", function(bench.session, &call, slot->objects, shape->batch, NULL));
}

static void name_objects(const struct shape *shape, struct slot *slot)
{
        for (uint32_t i = 0; i < shape->batch; i++) {
                uint64_t name[3] = {bench.round, slot->number * shape->batch + i, shape->bytes};

                slot->objects[i] = (struct kvt_object){.bytes = shape->bytes,
                                                       .group = (uint16_t)(shape - shapes)};
                memcpy(slot->objects[i].digest.bytes, name, sizeof(name));
        }
}

static void copy_batch(const struct shape *shape, struct slot *slot, bool is_store)
{
        for (uint32_t i = 0; i < shape->batch; i++) {
                struct kvt_object *object = &slot->objects[i];
                uint64_t at = (slot->number * shape->batch + i) * shape->bytes % SOURCE;

                bench_check("object", object->status);
                bench_check("copy", is_store ? kvt_write(object, 0, bench.ours + at, shape->bytes)
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
                        bench_die("kvt_wait", "nothing completed");
                for (size_t i = 0; i < n; i++) {
                        struct slot *slot = completions[i].user;

                        bench_check("call", completions[i].status);
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
                uint8_t *theirs = bench.theirs + (begin + done) % BENCH_HOST;
                uint8_t *ours = bench.ours + done % SOURCE;

                if (is_store)
                        memcpy(theirs, ours, shape->bytes);
                else
                        memcpy(ours, theirs, shape->bytes);
        }
        begin = (begin + STORED) % BENCH_HOST;
}

static double measure(void (*run)(const struct shape *shape, bool is_store),
                      const struct shape *shape, bool is_store)
{
        double begin = bench_now();

        run(shape, is_store);
        return STORED / (bench_now() - begin) / 1e9;
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
        bench_print_row("host_store", shape->name, stores, store_limits, n_runs);
        bench_print_row("host_load", shape->name, loads, load_limits, n_runs);
}

int main(int argc, char **argv)
{
        uint32_t n_runs = argc > 2 ? (uint32_t)atoi(argv[2]) : 9;

        if (argc < 2 || !n_runs || n_runs > RUNS_MAX) {
                fprintf(stderr, "usage: bench_host KVTIERD [RUNS, at most %u]\n", RUNS_MAX);
                return 2;
        }
        bench_start_daemon(argv[1]);
        open_session();
        bench.ours = bench_memory(SOURCE);
        bench.theirs = bench_shared_memory(BENCH_HOST);
        /* Touches every page of the arenas once. */
        for (uint64_t stored = 0; stored < 2 * BENCH_HOST; stored += STORED) {
                bench.round++;
                run_calls(&shapes[1], true);
        }
        for (size_t i = 0; i < N_SHAPES; i++)
                bench_shape(&shapes[i], n_runs);
        kvt_close(bench.session);
        bench_stop_daemon();
        return 0;
}
