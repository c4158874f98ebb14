// SPDX-License-Identifier: Apache-2.0
/*
 * The index of the remote pool at a million entries of another node: bytes and microseconds
 * an entry, the time to rebuild it from journals and to open it again, and how long the loop
 * was kept at a time. Over a pool in a folder, whose own time is little.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "storage/remote.h"
#include "tests/support/fake_pool.h"
#include "tests/support/scratch.h"

#define ENTRIES      1000000u
#define PARTS        32u /* of a bundle */
#define OBJECT_BYTES (1u << 20)
#define LOOKUPS      2000u

struct bench {
        uv_loop_t loop;
        uv_prepare_t prepare;
        uint64_t turn_began, longest_ns;
        char folder[64], pool_folder[96], index[96];
        struct pool *pool;
        struct tier *tier;
        uint32_t n_appeared, n_found;
        struct tier_place *places;
        bool is_done;
        uint32_t n_reads;
};

static struct bench *running;

/* Of all ends: it is some hundred MB. */
static void remove_folder(void)
{
        scratch_remove(running->folder);
}

static void print(const char *name, double value, const char *unit, double limit)
{
        printf("{\"name\": \"%s\", \"value\": %.4f, \"unit\": \"%s\", \"limit\": %.4f, "
               "\"ratio\": %.4f, \"runs\": 1}\n",
               name, value, unit, limit, limit ? value / limit : 0.0);
        fflush(stdout);
}

static uint64_t resident_bytes(void)
{
        unsigned long size, resident = 0;
        FILE *file = fopen("/proc/self/statm", "r");

        if (file) {
                if (fscanf(file, "%lu %lu", &size, &resident) != 2)
                        resident = 0;
                fclose(file);
        }
        return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t folder_bytes(const char *path)
{
        char command[160];
        unsigned long bytes = 0;
        FILE *pipe;

        snprintf(command, sizeof(command), "du -sb %s", path);
        pipe = popen(command, "r");
        if (pipe) {
                if (fscanf(pipe, "%lu", &bytes) != 1)
                        bytes = 0;
                pclose(pipe);
        }
        return bytes;
}

/* ---- the other node's journal ---- */

static void fill_part(struct bundle_part *part, uint32_t n)
{
        memset(part, 0, sizeof(*part));
        part->object.key.group = 1;
        memcpy(part->object.key.boundary.bytes, &n, sizeof(n));
        memcpy(part->object.parent.bytes, &n, sizeof(n));
        part->object.generation = 1;
        part->object.raw_bytes = OBJECT_BYTES;
        part->object.boundary_tokens = 256;
        part->stored_bytes = OBJECT_BYTES;
        part->offset = 65536 + (uint64_t)(n % PARTS) * OBJECT_BYTES;
        part->checksums.raw_bytes = OBJECT_BYTES;
        part->checksums.piece_bytes = CHECKSUM_PIECE_BYTES;
        part->checksums.n_pieces = checksum_n_pieces(OBJECT_BYTES);
        part->checksums.pieces[0] = n;
        part->checksums.total = checksum_total(&part->checksums, &part->object.key);
}

static uint64_t put_segment(struct bench *bench, struct journal_segment *segment,
                            const uint8_t node[16], uint64_t number)
{
        char name[POOL_NAME_MAX], path[320];
        uint64_t bytes = segment->length;
        FILE *file;

        journal_segment_seal(segment, node, number);
        journal_name(name, node, number);
        for (char *c = name; *c; c++)
                *c = *c == '/' ? '+' : *c; /* as the pool names its files */
        snprintf(path, sizeof(path), "%s/%s", bench->pool_folder, name);
        file = fopen(path, "w");
        if (!file || fwrite(segment->bytes, 1, bytes, file) != bytes || fclose(file)) {
                perror(path);
                exit(1);
        }
        journal_segment_deinit(segment);
        journal_segment_init(segment);
        return bytes;
}

static uint64_t write_journal(struct bench *bench)
{
        struct journal_record record = {.kind = JOURNAL_STORED, .bundle = {.node = {1}}};
        struct journal_segment segment;
        uint64_t number = 1, bytes = 0;

        journal_segment_init(&segment);
        for (uint32_t i = 0; i < ENTRIES; i++) {
                int r;

                record.bundle.number = 1 + i / PARTS;
                record.part = i % PARTS;
                fill_part(&record.stored, i);
                r = journal_segment_add(&segment, &record);
                if (r == JOURNAL_E_FULL) {
                        bytes += put_segment(bench, &segment, record.bundle.node, number++);
                        r = journal_segment_add(&segment, &record);
                }
                if (r) {
                        fprintf(stderr, "a record was refused: %d\n", r);
                        exit(1);
                }
        }
        bytes += put_segment(bench, &segment, record.bundle.node, number);
        journal_segment_deinit(&segment);
        return bytes;
}

/* ---- this node ---- */

static uint64_t clock_ns(clockid_t clock)
{
        struct timespec now;

        clock_gettime(clock, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Of the loop thread alone, so that a busy machine does not count. */
static uint64_t thread_ns(void)
{
        return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static void on_turn(uv_prepare_t *prepare)
{
        struct bench *bench = prepare->data;
        uint64_t now = thread_ns();

        if (bench->turn_began && now - bench->turn_began > bench->longest_ns)
                bench->longest_ns = now - bench->turn_began;
        bench->turn_began = now;
}

static void on_appeared(void *user, const struct tier_object *object, struct tier_place place)
{
        struct bench *bench = user;
        uint32_t n;

        memcpy(&n, object->key.boundary.bytes, sizeof(n));
        bench->places[n] = place;
        bench->n_appeared++;
}

static void on_object(void *user, const struct tier_object *object, struct tier_place place)
{
        struct bench *bench = user;
        uint32_t n;

        memcpy(&n, object->key.boundary.bytes, sizeof(n));
        bench->places[n] = place;
        bench->n_found++;
}

static void on_recovered(void *user, int result)
{
        ((struct bench *)user)->is_done = true;
        if (result)
                exit(1);
}

static void open_tier(struct bench *bench)
{
        struct remote_options options = {
                .index_path = bench->index,
                .bytes = 1u << 30,
        };
        struct why why = {""};

        if (fake_pool_open(&options.pool, &bench->loop, bench->pool_folder) ||
            remote_open(&bench->tier, &bench->loop, &options, &why)) {
                fprintf(stderr, "%s\n", why.text);
                exit(1);
        }
        bench->pool = options.pool;
        bench->tier->on_appeared = on_appeared;
        bench->tier->on_shared_user = bench;
        bench->is_done = false;
        bench->tier->ops.recover(bench->tier, on_object, on_recovered, bench);
        while (!bench->is_done)
                uv_run(&bench->loop, UV_RUN_ONCE);
}

static void on_closed(void *user)
{
        ((struct bench *)user)->is_done = true;
}

static void close_tier(struct bench *bench)
{
        bench->is_done = false;
        bench->tier->ops.close(bench->tier, on_closed, bench);
        while (!bench->is_done)
                uv_run(&bench->loop, UV_RUN_ONCE);
}

static struct remote_usage usage_of(struct bench *bench)
{
        struct remote_usage usage;

        remote_usage(bench->tier, &usage);
        return usage;
}

static void measure_rebuild(struct bench *bench)
{
        uint64_t before, begun, cpu, loop;
        struct tier_usage usage;

        before = resident_bytes();
        begun = uv_hrtime();
        cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        loop = thread_ns();
        open_tier(bench);
        bench->longest_ns = 0;
        while (!usage_of(bench).caught_up)
                uv_run(&bench->loop, UV_RUN_ONCE);
        print("remote_index_rebuild", (double)(uv_hrtime() - begun) / 1e9, "s", 0);
        print("remote_index_us", (double)(uv_hrtime() - begun) / 1e3 / ENTRIES, "us", 0);
        print("remote_index_cpu",
              (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e3 / ENTRIES, "us", 0);
        print("remote_index_loop_cpu", (double)(thread_ns() - loop) / 1e3 / ENTRIES, "us", 0);
        print("remote_index_longest_turn", (double)bench->longest_ns / 1e6, "ms", 0);
        do {
                uv_run(&bench->loop, UV_RUN_ONCE);
                bench->tier->ops.usage(bench->tier, &usage);
        } while (usage.queued_changes);
        fprintf(stderr, "%u appeared, %llu in the index\n", bench->n_appeared,
                (unsigned long long)usage_of(bench).entries);
        fprintf(stderr, "%.0f bytes of memory an entry, RocksDB's caches and buffers included\n",
                (double)(resident_bytes() - before) / ENTRIES);
}

static void measure_open(struct bench *bench)
{
        uint64_t before = resident_bytes(), begun = uv_hrtime();
        uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);

        bench->n_found = 0;
        bench->turn_began = bench->longest_ns = 0;
        open_tier(bench);
        print("remote_index_open_cpu",
              (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e3 / ENTRIES, "us", 0);
        print("remote_index_open", (double)(uv_hrtime() - begun) / 1e9, "s", 0);
        print("remote_index_open_longest_turn", (double)bench->longest_ns / 1e6, "ms", 0);
        print("remote_index_disk", (double)folder_bytes(bench->index) / ENTRIES, "bytes", 0);
        print("remote_index_memory", (double)(resident_bytes() - before) / bench->n_found, "bytes",
              0);
}

/* ---- one look-up: a read whose bundle is not there ---- */

static void on_read(struct tier_read *read, int result, const struct checksum_list *checksums)
{
        struct bench *bench = read->tier_private[7];

        (void)checksums;
        if (result != TIER_E_MISS)
                exit(1);
        bench->n_reads++;
}

static void measure_lookups(struct bench *bench)
{
        static struct tier_read reads[LOOKUPS];
        static struct object_key keys[LOOKUPS];
        struct tier_segment segment = {malloc(OBJECT_BYTES), OBJECT_BYTES,
                                       TIER_MEMORY_UNREGISTERED};
        uint64_t begun;

        for (uint32_t i = 0; i < LOOKUPS; i++) {
                struct bundle_part part;
                uint32_t n = (uint32_t)(i * 2654435761ull % ENTRIES);

                fill_part(&part, n);
                keys[i] = part.object.key;
                reads[i] = (struct tier_read){
                        .place = bench->places[n],
                        .key = &keys[i],
                        .raw_bytes = OBJECT_BYTES,
                        .segments = &segment,
                        .n_segments = 1,
                        .on_done = on_read,
                };
                reads[i].tier_private[7] = bench;
        }
        begun = uv_hrtime();
        for (uint32_t i = 0; i < LOOKUPS; i++)
                if (bench->tier->ops.read(bench->tier, &reads[i]))
                        exit(1);
        while (bench->n_reads < LOOKUPS)
                uv_run(&bench->loop, UV_RUN_ONCE);
        print("remote_index_read", (double)(uv_hrtime() - begun) / 1e3 / LOOKUPS, "us", 0);
        free(segment.bytes);
}

int main(void)
{
        static struct bench bench;

        scratch_make(bench.folder, sizeof(bench.folder));
        running = &bench;
        atexit(remove_folder);
        snprintf(bench.pool_folder, sizeof(bench.pool_folder), "%s/pool", bench.folder);
        snprintf(bench.index, sizeof(bench.index), "%s/index", bench.folder);
        if (mkdir(bench.pool_folder, 0700))
                return 1;
        bench.places = calloc(ENTRIES, sizeof(*bench.places));
        if (!bench.places)
                return 1;
        memset(bench.places, 0, ENTRIES * sizeof(*bench.places));
        uv_loop_init(&bench.loop);
        uv_prepare_init(&bench.loop, &bench.prepare);
        bench.prepare.data = &bench;
        uv_prepare_start(&bench.prepare, on_turn);
        uv_unref((uv_handle_t *)&bench.prepare);
        print("remote_index_journal", (double)write_journal(&bench) / ENTRIES, "bytes", 0);
        measure_rebuild(&bench);
        close_tier(&bench);
        measure_open(&bench);
        measure_lookups(&bench);
        close_tier(&bench);
        return 0;
}
