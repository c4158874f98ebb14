// SPDX-License-Identifier: Apache-2.0
/*
 * Bench of the NVMe tier alone: nvme_write and nvme_read at 1.5 and 6 MiB.
 *
 *   bench_nvme [FOLDER [SPACE_MIB [RUNS [CODEC]]]]
 *
 * Space is filled once before anything is measured, memory is a registered memfd, DEPTH
 * objects are in flight, checksums are computed by workers before a write and verified by
 * the tier after a read. With a codec (a word of nvme.codec) the bytes are such that bf16's
 * planes save 1.45 of them, and GB/s are those of raw bytes. One JSON line a row: name, value
 * (median), unit, runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "storage/nvme.h"
#include "tests/support/scratch.h"

#define DEPTH       16u
#define OBJECT_MAX  (6u << 20)
#define OBJECTS_MAX 8192u
#define RUNS_MAX    32u
#define ARENA_ID    1u

enum job {
        JOB_WRITE,
        JOB_READ,
        JOB_FORGET,
};

struct object {
        struct tier_object object;
        struct tier_place place;
};

struct bench;

struct slot {
        struct bench *bench;
        struct object *object;
        struct tier_segment segment;
        struct checksum_list checksums;
        struct tier_write write;
        struct tier_read read;
        struct tier_forget forget;
        uv_work_t work;
};

struct bench {
        uv_loop_t loop;
        struct tier *tier;
        uint8_t *arena;
        struct object *objects;
        uint64_t object_bytes;
        enum job job;
        struct encoding encoding;
        uint32_t n_objects, n_next, n_in_flight;
        bool is_full; /* filling: the tier has no more room */
        struct slot slots[DEPTH];
};

static void die(const char *what, int r)
{
        fprintf(stderr, "bench_nvme: %s: %d\n", what, r);
        exit(1);
}

static void next(struct slot *slot);

static void on_written(struct tier_write *write, int result, struct tier_place place)
{
        struct slot *slot = (void *)((char *)write - offsetof(struct slot, write));

        if (result)
                die("write", result);
        slot->object->place = place;
        slot->bench->n_in_flight--;
        next(slot);
}

static void on_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct slot *slot = (void *)((char *)read - offsetof(struct slot, read));

        if (result)
                die("read", result);
        slot->bench->n_in_flight--;
        next(slot);
}

static void on_freed(struct tier_forget *forget, int result)
{
        struct slot *slot = (void *)((char *)forget - offsetof(struct slot, forget));

        if (result)
                die("forget", result);
        slot->bench->n_in_flight--;
        next(slot);
}

static void compute(uv_work_t *work)
{
        struct slot *slot = work->data;
        struct checksum_segment whole = {slot->segment.bytes, slot->segment.length};

        checksum_compute(&slot->checksums, &slot->object->object.key, slot->segment.length, &whole,
                         1);
}

static void on_computed(uv_work_t *work, int status)
{
        struct slot *slot = work->data;
        struct bench *bench = slot->bench;
        int r;

        slot->write = (struct tier_write){
                .object = &slot->object->object,
                .checksums = &slot->checksums,
                .segments = &slot->segment,
                .n_segments = 1,
                .encoding = bench->encoding,
                .on_done = on_written,
        };
        r = bench->tier->ops.write(bench->tier, &slot->write);
        if (r == TIER_E_FULL) {
                slot->object->place.claim = 0;
                bench->is_full = true;
                bench->n_in_flight--;
        } else if (r) {
                die("submit write", r);
        }
}

static void submit_read(struct slot *slot)
{
        struct bench *bench = slot->bench;
        int r;

        slot->read = (struct tier_read){
                .place = slot->object->place,
                .key = &slot->object->object.key,
                .generation = slot->object->object.generation,
                .raw_bytes = slot->object->object.raw_bytes,
                .segments = &slot->segment,
                .n_segments = 1,
                .on_done = on_read,
        };
        r = bench->tier->ops.read(bench->tier, &slot->read);
        if (r)
                die("submit read", r);
}

/* Takes the next object; the slot rests when there is none. */
static void next(struct slot *slot)
{
        struct bench *bench = slot->bench;

        if (bench->n_next == bench->n_objects || bench->is_full)
                return;
        slot->object = &bench->objects[bench->n_next++];
        bench->n_in_flight++;
        switch (bench->job) {
        case JOB_WRITE:
                slot->work.data = slot;
                uv_queue_work(&bench->loop, &slot->work, compute, on_computed);
                break;
        case JOB_READ:
                submit_read(slot);
                break;
        case JOB_FORGET:
                slot->forget.on_freed = on_freed;
                bench->tier->ops.forget(bench->tier, slot->object->place, &slot->object->object.key,
                                        false, &slot->forget);
                break;
        }
}

/* Does @job to the first @n objects; the seconds it took. */
static double run(struct bench *bench, enum job job, uint32_t n)
{
        uint64_t start = uv_hrtime();

        bench->job = job;
        bench->n_objects = n;
        bench->n_next = 0;
        for (uint32_t i = 0; i < DEPTH; i++)
                next(&bench->slots[i]);
        while (bench->n_in_flight)
                uv_run(&bench->loop, UV_RUN_ONCE);
        return (double)(uv_hrtime() - start) / 1e9;
}

static void name_objects(struct bench *bench, uint64_t bytes, uint32_t round)
{
        bench->object_bytes = bytes;
        for (uint32_t i = 0; i < OBJECTS_MAX; i++) {
                struct object *object = &bench->objects[i];

                memset(object, 0, sizeof(*object));
                memcpy(object->object.key.boundary.bytes, &i, sizeof(i));
                memcpy(object->object.key.boundary.bytes + 8, &round, sizeof(round));
                object->object.generation = 1;
                object->object.raw_bytes = bytes;
        }
        for (uint32_t i = 0; i < DEPTH; i++)
                bench->slots[i].segment.length = bytes;
}

/* Every unit of space is written once; the number of objects that fit. */
static uint32_t fill(struct bench *bench, uint64_t bytes)
{
        uint32_t n = 0;

        name_objects(bench, bytes, 0);
        run(bench, JOB_WRITE, OBJECTS_MAX);
        while (n < OBJECTS_MAX && bench->objects[n].place.claim)
                n++;
        bench->is_full = false;
        run(bench, JOB_FORGET, n);
        return n;
}

static int by_value(const void *left, const void *right)
{
        double a = *(const double *)left, b = *(const double *)right;

        return a < b ? -1 : a > b;
}

static void print_row(const char *name, double *values, uint32_t runs)
{
        qsort(values, runs, sizeof(*values), by_value);
        printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"GB/s\", \"runs\": %u}\n", name,
               values[runs / 2], runs);
        fflush(stdout);
}

static void measure(struct bench *bench, uint64_t bytes, const char *label, uint32_t runs)
{
        double writes[RUNS_MAX], reads[RUNS_MAX];
        uint32_t n = fill(bench, bytes);
        double gigabytes;
        char name[64];

        n = n * 9 / 10;
        gigabytes = (double)n * (double)bytes / 1e9;
        for (uint32_t i = 0; i < runs; i++) {
                name_objects(bench, bytes, i + 1);
                writes[i] = gigabytes / run(bench, JOB_WRITE, n);
                reads[i] = gigabytes / run(bench, JOB_READ, n);
                run(bench, JOB_FORGET, n);
        }
        snprintf(name, sizeof(name), "nvme_write_%s", label);
        print_row(name, writes, runs);
        snprintf(name, sizeof(name), "nvme_read_%s", label);
        print_row(name, reads, runs);
}

static void *map_memfd(size_t bytes, unsigned flags)
{
        int fd = memfd_create("bench", MFD_CLOEXEC | flags);
        void *base = MAP_FAILED;

        if (fd >= 0 && !ftruncate(fd, (off_t)bytes))
                base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (fd >= 0)
                close(fd);
        return base;
}

/*
 * With huge pages when there are any, as the host tier has them: a device request holds at
 * most so many runs of memory, so 4 KiB pages make large reads into many small requests.
 */
static void make_arena(struct bench *bench)
{
        size_t bytes = (size_t)DEPTH * OBJECT_MAX;

        bench->arena = map_memfd(bytes, MFD_HUGETLB);
        if (bench->arena == MAP_FAILED)
                bench->arena = map_memfd(bytes, 0);
        if (bench->arena == MAP_FAILED)
                die("memfd", -errno);
        for (size_t i = 0; i < bytes; i += 8) {
                uint64_t word = i * 0x9e3779b97f4a7c15ull;

                word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
                word ^= word >> 27;
                if (bench->encoding.kind)
                        word &= 0x07ff07ff07ff07ffull;
                memcpy(bench->arena + i, &word, 8);
        }
        for (uint32_t i = 0; i < DEPTH; i++) {
                bench->slots[i].bench = bench;
                bench->slots[i].segment.bytes = bench->arena + (size_t)i * OBJECT_MAX;
                bench->slots[i].segment.arena_id = ARENA_ID;
        }
        if (bench->tier->ops.add_memory(bench->tier, ARENA_ID, bench->arena, bytes))
                die("add_memory", -1);
}

static void on_notice(void *user, const char *text)
{
        fprintf(stderr, "bench_nvme: %s\n", text);
}

static void on_object(void *user, const struct tier_object *object, struct tier_place place)
{
        die("unexpected object", 0);
}

static void on_end(void *user, int result)
{
        *(bool *)user = true;
}

static void on_closed(void *user)
{
}

static void open_tier(struct bench *bench, const char *folder, uint64_t bytes)
{
        char data[128], catalog[128];
        const char *paths[] = {data};
        struct nvme_options options = {
                .paths = paths,
                .n_paths = 1,
                .bytes = bytes,
                .catalog_path = catalog,
                .on_notice = on_notice,
        };
        struct why why = {""};
        bool recovered = false;

        snprintf(data, sizeof(data), "%s/data", folder);
        snprintf(catalog, sizeof(catalog), "%s/catalog", folder);
        uv_loop_init(&bench->loop);
        if (nvme_open(&bench->tier, &bench->loop, &options, &why))
                die(why.text, -1);
        bench->tier->ops.recover(bench->tier, on_object, on_end, &recovered);
        while (!recovered)
                uv_run(&bench->loop, UV_RUN_ONCE);
}

int main(int argc, char **argv)
{
        uint64_t space_mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 1024;
        uint32_t runs = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 5;
        struct bench *bench = calloc(1, sizeof(*bench));
        char folder[80];
        int codec;

        if (!bench || !(bench->objects = calloc(OBJECTS_MAX, sizeof(*bench->objects))))
                die("memory", -ENOMEM);
        codec = encoding_kind_of(argc > 4 ? argv[4] : "off");
        if (!runs || runs > RUNS_MAX || space_mib < 256 || codec < 0)
                die("usage: bench_nvme [FOLDER [SPACE_MIB [RUNS [CODEC]]]]", 0);
        bench->encoding = encoding_of((enum encoding_kind)codec, 2);
        scratch_make_in(argc > 1 ? argv[1] : "/var/tmp", folder, sizeof(folder));
        open_tier(bench, folder, space_mib << 20);
        make_arena(bench);
        measure(bench, 3u << 19, "1.5m", runs);
        measure(bench, 6u << 20, "6m", runs);
        bench->tier->ops.close(bench->tier, on_closed, NULL);
        uv_run(&bench->loop, UV_RUN_DEFAULT);
        uv_loop_close(&bench->loop);
        scratch_remove(folder);
        free(bench->objects);
        free(bench);
        return 0;
}
