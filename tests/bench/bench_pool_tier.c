// SPDX-License-Identifier: Apache-2.0
/*
 * bench_pool_tier COUNT BYTES BUNDLE_BYTES DEPTH
 *
 * Streams COUNT objects into the remote tier on the RADOS cluster that tests/remote/cluster has
 * started, and out of it again, a bundle's objects together: bundles, checksums, index and journal
 * with them, DEPTH bundles in flight. Prints JSON rows: bytes a second each way, and how long the
 * loop was kept at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/remote.h"
#include "tests/remote/cluster.h"
#include "tests/support/scratch.h"

#define SLOTS     128u
#define OF_PROMPT 64u /* objects: they may share a bundle */

struct bench;

struct slot {
        struct bench *bench;
        uint32_t number;
        struct tier_segment segment;
        struct checksum_list checksums;
        struct tier_write write;
        struct tier_read read;
        uv_work_t work;
        uv_timer_t again;
};

struct bench {
        uv_loop_t loop;
        uv_prepare_t turn;
        uint64_t turn_ns, idle_ns, longest_ns;
        struct tier *tier;
        struct tier_object *objects;
        struct tier_place *places;
        uint32_t count, n_begun, n_done;
        bool is_put;
        uint32_t of_bundle;     /* objects, which are read together, as a prompt's are */
        uint32_t n_left[SLOTS]; /* of each bundle that is being read */
        uint32_t n_slots;
        struct slot slots[SLOTS];
};

static void die(const char *what, int r)
{
        fprintf(stderr, "bench_pool_tier: %s: %d\n", what, r);
        exit(EXIT_FAILURE);
}

/* Since it was here last, without the time that it waited for something to happen. */
static void on_turn(uv_prepare_t *prepare)
{
        struct bench *bench = prepare->data;
        uint64_t now_ns = uv_hrtime(), idle_ns = uv_metrics_idle_time(&bench->loop);
        uint64_t took = bench->turn_ns ? now_ns - bench->turn_ns - (idle_ns - bench->idle_ns) : 0;

        bench->turn_ns = now_ns;
        bench->idle_ns = idle_ns;
        if (took > bench->longest_ns)
                bench->longest_ns = took;
}

static void next(struct slot *slot);
static void read_next(struct slot *slot);

static void on_written(struct tier_write *write, int result, struct tier_place place)
{
        struct slot *slot = (void *)((char *)write - offsetof(struct slot, write));

        if (result)
                die("write", result);
        slot->bench->places[slot->number] = place;
        slot->bench->n_done++;
        next(slot);
}

static void on_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct slot *slot = (void *)((char *)read - offsetof(struct slot, read));

        (void)checksums;
        if (result)
                die("read", result);
        slot->bench->n_done++;
        read_next(slot);
}

static void submit_write(struct slot *slot);

static void on_again(uv_timer_t *timer)
{
        submit_write(timer->data);
}

static void submit_write(struct slot *slot)
{
        int r;

        slot->write = (struct tier_write){
                .object = &slot->bench->objects[slot->number],
                .checksums = &slot->checksums,
                .segments = &slot->segment,
                .n_segments = 1,
                .on_done = on_written,
        };
        r = slot->bench->tier->ops.write(slot->bench->tier, &slot->write);
        if (r == TIER_E_PAUSED)
                uv_timer_start(&slot->again, on_again, 1, 0);
        else if (r)
                die("submit write", r);
}

static void compute(uv_work_t *work)
{
        struct slot *slot = work->data;
        struct checksum_segment whole = {slot->segment.bytes, slot->segment.length};

        checksum_compute(&slot->checksums, &slot->bench->objects[slot->number].key,
                         slot->segment.length, &whole, 1);
}

static void on_computed(uv_work_t *work, int status)
{
        if (status)
                die("hash", status);
        submit_write(work->data);
}

static void next(struct slot *slot)
{
        struct bench *bench = slot->bench;
        const struct tier_object *object;
        int r;

        if (bench->n_begun == bench->count)
                return;
        slot->number = bench->n_begun++;
        object = &bench->objects[slot->number];
        if (bench->is_put) {
                uv_queue_work(&bench->loop, &slot->work, compute, on_computed);
                return;
        }
        bench->n_left[(slot - bench->slots) / bench->of_bundle]++;
        slot->read = (struct tier_read){
                .place = bench->places[slot->number],
                .key = &object->key,
                .generation = object->generation,
                .raw_bytes = object->raw_bytes,
                .segments = &slot->segment,
                .n_segments = 1,
                .on_done = on_read,
        };
        r = bench->tier->ops.read(bench->tier, &slot->read);
        if (r)
                die("submit read", r);
}

static void read_next(struct slot *slot)
{
        struct bench *bench = slot->bench;
        size_t i = (size_t)(slot - bench->slots) / bench->of_bundle;

        if (--bench->n_left[i])
                return;
        for (uint32_t j = 0; j < bench->of_bundle; j++)
                next(&bench->slots[i * bench->of_bundle + j]);
}

static void print(const char *name, double value, const char *unit)
{
        printf("{\"name\": \"%s\", \"value\": %.4f, \"unit\": \"%s\"}\n", name, value, unit);
}

static void run(struct bench *bench, bool is_put)
{
        uint64_t began = uv_hrtime(), bytes = bench->slots[0].segment.length;
        const char *way = is_put ? "put" : "get";
        char name[64];

        bench->is_put = is_put;
        bench->n_begun = bench->n_done = 0;
        bench->turn_ns = bench->longest_ns = 0;
        for (uint32_t i = 0; i < bench->n_slots; i++)
                next(&bench->slots[i]);
        while (bench->n_done < bench->count)
                uv_run(&bench->loop, UV_RUN_ONCE);
        snprintf(name, sizeof(name), "pool_tier_%s", way);
        print(name, (double)bench->count * (double)bytes / (double)(uv_hrtime() - began) * 1000,
              "MB/s");
        snprintf(name, sizeof(name), "pool_tier_%s_turn", way);
        print(name, (double)bench->longest_ns / 1e6, "ms");
}

static void make_slots(struct bench *bench, uint64_t bytes)
{
        for (uint32_t i = 0; i < bench->n_slots; i++) {
                struct slot *slot = &bench->slots[i];
                uint32_t *words = aligned_alloc(4096, bytes);

                if (!words)
                        die("memory", -ENOMEM);
                for (uint64_t j = 0; j < bytes / 4; j++)
                        words[j] = (uint32_t)(j * 2654435761u + i);
                slot->bench = bench;
                slot->segment =
                        (struct tier_segment){words, bytes, .arena_id = TIER_MEMORY_UNREGISTERED};
                slot->work.data = slot->again.data = slot;
                uv_timer_init(&bench->loop, &slot->again);
        }
}

static void make_objects(struct bench *bench, uint64_t bytes)
{
        bench->objects = calloc(bench->count, sizeof(*bench->objects));
        bench->places = calloc(bench->count, sizeof(*bench->places));
        if (!bench->objects || !bench->places)
                die("memory", -ENOMEM);
        for (uint32_t i = 0; i < bench->count; i++) {
                struct tier_object *object = &bench->objects[i];

                memcpy(object->key.boundary.bytes, &(uint32_t){i + 1}, sizeof(uint32_t));
                if (i % OF_PROMPT)
                        object->parent = bench->objects[i - 1].key.boundary;
                object->boundary_tokens = (i % OF_PROMPT + 1) * 256;
                object->generation = 1;
                object->raw_bytes = bytes;
        }
}

static void on_object(void *user, const struct tier_object *object, struct tier_place place)
{
        (void)user;
        (void)object;
        (void)place;
        die("unexpected object", 0);
}

static void on_end(void *user, int result)
{
        if (result)
                die("recover", result);
        *(bool *)user = true;
}

static void on_closed(void *user)
{
        *(bool *)user = true;
}

static void open_tier(struct bench *bench, const char *index, uint32_t bundle_bytes, uint32_t depth)
{
        struct pool_rados_options rados = cluster_rados_options();
        struct remote_options options = {.index_path = index,
                                         .bytes = UINT64_C(4) << 30,
                                         .bundle_bytes = bundle_bytes,
                                         .linger_ms = 20,
                                         .queue_depth = depth};
        struct why why = {""};
        bool is_recovered = false;

        rados.prefix = cluster_new_prefix();
        if (pool_rados_open(&options.pool, &bench->loop, &rados, &why) ||
            remote_open(&bench->tier, &bench->loop, &options, &why))
                die(why.text, -1);
        bench->tier->ops.recover(bench->tier, on_object, on_end, &is_recovered);
        while (!is_recovered)
                uv_run(&bench->loop, UV_RUN_ONCE);
}

static char folder[64];

static void remove_folder(void)
{
        scratch_remove(folder);
}

int main(int argc, char **argv)
{
        static struct bench bench;
        bool is_closed = false;
        char index[96];
        uint64_t bytes;

        if (argc != 5) {
                fprintf(stderr, "usage: bench_pool_tier COUNT BYTES BUNDLE_BYTES DEPTH\n");
                return 2;
        }
        bench.count = (uint32_t)strtoul(argv[1], NULL, 10);
        bytes = strtoull(argv[2], NULL, 10);
        if (!bench.count || !bytes || bytes % 4096 || uv_loop_init(&bench.loop) ||
            uv_loop_configure(&bench.loop, UV_METRICS_IDLE_TIME))
                return 2;
        /* Twice the depth: the next bundles are gathered while those before are on their way. */
        bench.of_bundle = (uint32_t)(strtoull(argv[3], NULL, 10) / bytes);
        bench.n_slots = 2 * bench.of_bundle * (uint32_t)strtoul(argv[4], NULL, 10);
        if (!bench.of_bundle || !bench.n_slots || bench.n_slots > SLOTS)
                return 2;
        scratch_make(folder, sizeof(folder));
        atexit(remove_folder);
        snprintf(index, sizeof(index), "%s/index", folder);
        uv_prepare_init(&bench.loop, &bench.turn);
        bench.turn.data = &bench;
        open_tier(&bench, index, (uint32_t)strtoul(argv[3], NULL, 10),
                  (uint32_t)strtoul(argv[4], NULL, 10));
        make_slots(&bench, bytes);
        make_objects(&bench, bytes);
        uv_prepare_start(&bench.turn, on_turn);
        run(&bench, true);
        run(&bench, false);
        bench.tier->ops.close(bench.tier, on_closed, &is_closed);
        while (!is_closed)
                uv_run(&bench.loop, UV_RUN_ONCE);
        return 0;
}
