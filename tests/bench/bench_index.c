// SPDX-License-Identifier: Apache-2.0
/*
 * What the index costs: memory per object (index_bytes; of objects in the pool alone, this
 * node's and others', index_bytes_own and index_bytes_foreign), and CPU per object at a
 * million objects against ten thousand (scale_store, scale_load). Objects come and are asked for as
 * engines do it: chains of 64 boundaries, a batch each, chains in random order, so that
 * nothing but the batch itself is near in memory.
 *
 * scale: `value` and `ratio` are the time per object at a million over that at ten thousand
 * and `limit` is the latter in ns. The CPU's caches hold all of the small index and little of
 * the large one, so this is the worst of it: whatever else the daemon does for an object costs
 * the same at both sizes.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/index.h"
#include "daemon/placement.h"

enum {
        LARGE = 1000000,
        SMALL = 10000,
        CHAIN = 64,
        RUNS = 7,
        BATCHES = 2000, /* of one run */
};

static void die(const char *what)
{
        fprintf(stderr, "bench_index: %s\n", what);
        exit(1);
}

static uint64_t mix(uint64_t value)
{
        value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15u;
        value = (value ^ (value >> 29)) * 0xbf58476d1ce4e5b9u;
        return value ^ (value >> 32);
}

static uint64_t resident_bytes(void)
{
        unsigned long size = 0, resident = 0;
        FILE *file = fopen("/proc/self/statm", "re");

        if (!file || fscanf(file, "%lu %lu", &size, &resident) != 2)
                die("/proc/self/statm");
        fclose(file);
        return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t cpu_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- an index of chains, full all the time ---- */

enum where {
        IN_HOST,
        IN_POOL, /* this node's own */
        ELSEWHERE,
};

struct bench {
        enum where where; /* objects are stored */
        struct presence_table *table;
        struct index *index;
        uint16_t layout;
        uint32_t now_s;
        uint64_t next_chain; /* the chains stored last end here */
        uint64_t random;
};

/* The digests of a chain, after one of zeros, the root's parent. */
static void fill_digests(struct digest digests[CHAIN + 1], uint64_t chain)
{
        memset(&digests[0], 0, sizeof(digests[0]));
        for (uint64_t i = 1; i <= CHAIN; i++) {
                uint64_t words[4];

                for (uint64_t j = 0; j < 4; j++)
                        words[j] = mix(chain * 1024 + i * 4 + j + 1);
                memcpy(digests[i].bytes, words, sizeof(words));
        }
}

static void init(struct bench *bench, uint64_t objects_max)
{
        static const uint8_t boot_id[16] = {1};
        static const struct digest layout_id = {{1}};

        *bench = (struct bench){.random = 1};
        if (presence_table_new(&bench->table, objects_max, boot_id, 1) ||
            index_new(&bench->index, objects_max, bench->table) ||
            index_layout(bench->index, 0, &layout_id, &bench->layout))
                die("no memory");
}

static void deinit(struct bench *bench)
{
        index_free(bench->index);
        presence_table_free(bench->table);
}

static bool anything(void *user, const struct placement_victim *victim)
{
        return true;
}

static void evict_one(struct bench *bench)
{
        struct index_boundary *victim =
                placement_victim(bench->index, INDEX_HOST, anything, NULL, 1).boundary;
        struct index_object *object;

        if (!victim)
                die("nothing to evict");
        object = index_object_at(bench->index, victim->first_object);
        index_set_host(bench->index, object, INDEX_NONE);
        index_remove(bench->index, object);
}

static void put(struct bench *bench, struct index_object *object, uint32_t host)
{
        if (bench->where == IN_HOST)
                index_set_host(bench->index, object, host);
        else
                index_set_remote(bench->index, object, (struct tier_place){.claim = host},
                                 bench->where == IN_POOL);
}

/* As a batch of reserve and commit does it. */
static void store_chain(struct bench *bench, const struct digest digests[CHAIN + 1])
{
        index_prefetch(bench->index, bench->layout, &digests[1], sizeof(digests[0]), CHAIN, true);
        for (uint32_t i = 1; i <= CHAIN; i++) {
                struct index_new_object new_object = {
                        .layout = bench->layout,
                        .digest = digests[i],
                        .parent = digests[i - 1],
                        .boundary_tokens = i,
                        .raw_bytes = 1,
                        .generation = 1,
                };
                struct index_object *object;

                while (index_add(bench->index, &new_object, &object))
                        evict_one(bench);
                put(bench, object, i);
                placement_touch(bench->index, index_boundary_at(bench->index, object->boundary),
                                bench->now_s);
        }
}

static void load_chain(struct bench *bench, const struct digest digests[CHAIN + 1])
{
        index_prefetch(bench->index, bench->layout, &digests[1], sizeof(digests[0]), CHAIN, false);
        for (uint32_t i = 1; i <= CHAIN; i++) {
                struct index_boundary *boundary =
                        index_find_boundary(bench->index, bench->layout, &digests[i]);

                if (!boundary || !index_find_serving(bench->index, boundary, 0, 0))
                        die("a chain is gone");
                placement_touch(bench->index, boundary, bench->now_s);
        }
}

static void fill(struct bench *bench, uint64_t objects)
{
        struct digest digests[CHAIN + 1];

        for (; bench->next_chain < objects / CHAIN; bench->next_chain++) {
                fill_digests(digests, bench->next_chain);
                bench->now_s++;
                store_chain(bench, digests);
        }
}

/* A new order of use, so that neighbours in the eviction order are strangers in memory. */
static void shuffle(struct bench *bench, uint64_t objects)
{
        struct digest digests[CHAIN + 1];

        for (uint64_t i = 0; i < 2 * objects / CHAIN; i++) {
                bench->random = mix(bench->random + i);
                fill_digests(digests, bench->random % (objects / CHAIN));
                bench->now_s++;
                load_chain(bench, digests);
        }
}

enum { GROUP = 16 }; /* batches timed together */

static double store_ns(struct bench *bench)
{
        static struct digest digests[GROUP][CHAIN + 1];
        uint64_t sum = 0;

        for (int i = 0; i < BATCHES / GROUP; i++) {
                uint64_t begin;

                for (int j = 0; j < GROUP; j++)
                        fill_digests(digests[j], bench->next_chain++);
                begin = cpu_ns();
                for (int j = 0; j < GROUP; j++) {
                        bench->now_s++;
                        store_chain(bench, digests[j]);
                }
                sum += cpu_ns() - begin;
        }
        return (double)sum / (BATCHES / GROUP * GROUP * CHAIN);
}

static double load_ns(struct bench *bench, uint64_t objects)
{
        static struct digest digests[GROUP][CHAIN + 1];
        uint64_t sum = 0;

        for (int i = 0; i < BATCHES / GROUP; i++) {
                uint64_t begin;

                for (int j = 0; j < GROUP; j++) {
                        bench->random = mix(bench->random + 1);
                        fill_digests(digests[j], bench->random % (objects / CHAIN));
                }
                begin = cpu_ns();
                for (int j = 0; j < GROUP; j++) {
                        bench->now_s++;
                        load_chain(bench, digests[j]);
                }
                sum += cpu_ns() - begin;
        }
        return (double)sum / (BATCHES / GROUP * GROUP * CHAIN);
}

/* ---- the measures ---- */

static int by_value(const void *a, const void *b)
{
        double left = *(const double *)a, right = *(const double *)b;

        return (left > right) - (left < right);
}

static double median(double *values)
{
        qsort(values, RUNS, sizeof(*values), by_value);
        return values[RUNS / 2];
}

static void print(const char *name, double value, const char *unit, double limit, int runs)
{
        printf("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"%s\", \"limit\": %.2f, "
               "\"ratio\": %.3f, \"runs\": %d}\n",
               name, value, unit, limit, unit[0] == 'x' ? value : value / limit, runs);
        fflush(stdout);
}

static void measure_bytes_of_pool(enum where where, const char *name)
{
        struct bench bench;
        struct index_usage usage;
        uint64_t before;

        init(&bench, LARGE);
        bench.where = where;
        before = resident_bytes();
        fill(&bench, LARGE);
        index_usage(bench.index, &usage);
        print(name, (double)(resident_bytes() - before) / (double)usage.objects, "bytes", 200, 1);
        deinit(&bench);
}

static void measure_bytes(void)
{
        struct bench bench;
        struct index_object *object;
        struct index_usage usage;
        uint32_t after = INDEX_NONE;
        uint64_t before;

        init(&bench, LARGE);
        before = resident_bytes();
        fill(&bench, LARGE);
        /* In both local tiers: then every link and every word is in use. */
        while ((object = index_next_object(bench.index, after))) {
                after = index_object_id(bench.index, object);
                index_set_place(bench.index, object, (struct tier_place){.claim = 1});
        }
        index_usage(bench.index, &usage);
        print("index_bytes", (double)(resident_bytes() - before) / (double)usage.objects, "bytes",
              200, 1);
        deinit(&bench);
}

static void measure_scale(void)
{
        static const uint64_t sizes[2] = {SMALL, LARGE};
        double load[2][RUNS], store[2][RUNS];
        struct bench benches[2];
        double small, large;

        for (int i = 0; i < 2; i++) {
                init(&benches[i], sizes[i]);
                fill(&benches[i], sizes[i]);
                shuffle(&benches[i], sizes[i]);
        }
        /* In turn, so that a noisy neighbour meets both. */
        for (int run = 0; run < RUNS; run++)
                for (int i = 0; i < 2; i++)
                        load[i][run] = load_ns(&benches[i], sizes[i]);
        for (int run = 0; run < RUNS; run++)
                for (int i = 0; i < 2; i++)
                        store[i][run] = store_ns(&benches[i]);
        small = median(store[0]);
        large = median(store[1]);
        fprintf(stderr, "store: %.0f ns at 10 thousand, %.0f ns at a million\n", small, large);
        print("scale_store", large / small, "x", small, RUNS);
        small = median(load[0]);
        large = median(load[1]);
        fprintf(stderr, "load: %.0f ns at 10 thousand, %.0f ns at a million\n", small, large);
        print("scale_load", large / small, "x", small, RUNS);
        for (int i = 0; i < 2; i++)
                deinit(&benches[i]);
}

int main(void)
{
        measure_bytes();
        measure_bytes_of_pool(IN_POOL, "index_bytes_own");
        measure_bytes_of_pool(ELSEWHERE, "index_bytes_foreign");
        measure_scale();
        return 0;
}
