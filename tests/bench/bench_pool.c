// SPDX-License-Identifier: Apache-2.0
/*
 * bench_pool rados|s3 put|get COUNT BYTES DEPTH
 *
 * Streams objects into or out of the pool that tests/remote/cluster has started, DEPTH in
 * flight, and prints one JSON row with bytes per second. What get reads, put has written, in
 * parts that lie apart in memory, as those of a bundle do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/remote/cluster.h"

#define DEPTH_MAX   64u
#define DEADLINE_MS 60000u
#define N_PARTS     64u

struct slot {
        struct bench *bench;
        char name[POOL_NAME_MAX];
        uint8_t *bytes; /* twice as long as an object: a part and a gap in turn */
        struct pool_buffer parts[N_PARTS];
        struct pool_put put;
        struct pool_get get;
};

struct bench {
        struct pool *pool;
        bool is_put;
        uint32_t count, n_begun, n_done;
        uint64_t bytes;
        struct slot slots[DEPTH_MAX];
};

static void begin(struct slot *slot);

static void on_done(struct slot *slot, int result)
{
        struct bench *bench = slot->bench;

        if (result) {
                fprintf(stderr, "bench_pool: %s: %s\n", slot->name,
                        bench->pool->ops.last_failure(bench->pool));
                exit(EXIT_FAILURE);
        }
        bench->n_done++;
        begin(slot);
}

static void on_put(struct pool_put *put, int result)
{
        on_done(put->user, result);
}

static void on_get(struct pool_get *get, int result, uint64_t n_bytes)
{
        struct slot *slot = get->user;

        on_done(slot, result ? result : n_bytes == slot->bench->bytes ? 0 : -EIO);
}

static void begin(struct slot *slot)
{
        struct bench *bench = slot->bench;
        int r;

        if (bench->n_begun == bench->count)
                return;
        snprintf(slot->name, sizeof(slot->name), "bundle/bench/%08u", bench->n_begun++);
        slot->put = (struct pool_put){.name = slot->name,
                                      .buffers = slot->parts,
                                      .n_buffers = N_PARTS,
                                      .deadline_ms = DEADLINE_MS,
                                      .on_done = on_put,
                                      .user = slot};
        slot->get = (struct pool_get){.name = slot->name,
                                      .length = bench->bytes,
                                      .bytes = slot->bytes,
                                      .deadline_ms = DEADLINE_MS,
                                      .on_done = on_get,
                                      .user = slot};
        r = bench->is_put ? bench->pool->ops.put(bench->pool, &slot->put)
                          : bench->pool->ops.get(bench->pool, &slot->get);
        if (r < 0)
                exit(EXIT_FAILURE);
}

static struct pool *open_pool(const char *backend, uv_loop_t *loop)
{
        struct pool_rados_options rados;
        struct pool_s3_options s3;
        struct why why = {""};
        struct pool *pool = NULL;
        int r;

        if (!strcmp(backend, "rados")) {
                rados = cluster_rados_options();
                r = pool_rados_open(&pool, loop, &rados, &why);
        } else {
                s3 = cluster_s3_options();
                r = pool_s3_open(&pool, loop, &s3, &why);
        }
        if (r < 0) {
                fprintf(stderr, "bench_pool: %s\n", why.text);
                exit(EXIT_FAILURE);
        }
        return pool;
}

static void on_warm(struct pool_put *put, int result)
{
        *(int *)put->user = result;
}

/* Connects, and makes what is made once. */
static void warm(struct bench *bench, uv_loop_t *loop)
{
        int result = 1;
        struct pool_put put = {.name = "node/bench",
                               .deadline_ms = DEADLINE_MS,
                               .on_done = on_warm,
                               .user = &result};

        if (bench->pool->ops.put(bench->pool, &put) < 0)
                exit(EXIT_FAILURE);
        while (result > 0)
                uv_run(loop, UV_RUN_ONCE);
        if (result)
                fprintf(stderr, "bench_pool: %s\n", bench->pool->ops.last_failure(bench->pool));
        if (result)
                exit(EXIT_FAILURE);
}

static void fill(struct bench *bench, uint32_t depth)
{
        for (uint32_t i = 0; i < depth; i++) {
                struct slot *slot = &bench->slots[i];
                uint32_t *words = malloc(2 * bench->bytes);
                uint64_t part = bench->bytes / N_PARTS;

                if (!words)
                        exit(EXIT_FAILURE);
                for (uint64_t j = 0; j < 2 * bench->bytes / 4; j++)
                        words[j] = (uint32_t)(j * 2654435761u + i);
                slot->bytes = (uint8_t *)words;
                for (uint32_t j = 0; j < N_PARTS; j++)
                        slot->parts[j] = (struct pool_buffer){slot->bytes + 2 * j * part, part};
                slot->parts[N_PARTS - 1].length += bench->bytes % N_PARTS;
                slot->bench = bench;
        }
}

int main(int argc, char **argv)
{
        static struct bench bench;
        uint64_t began, took;
        uint32_t depth;
        uv_loop_t loop;

        if (argc != 6) {
                fprintf(stderr, "usage: bench_pool rados|s3 put|get COUNT BYTES DEPTH\n");
                return 2;
        }
        bench.is_put = !strcmp(argv[2], "put");
        bench.count = (uint32_t)strtoul(argv[3], NULL, 10);
        bench.bytes = strtoull(argv[4], NULL, 10);
        depth = (uint32_t)strtoul(argv[5], NULL, 10);
        if (!depth || depth > DEPTH_MAX || bench.bytes < N_PARTS || uv_loop_init(&loop))
                return 2;
        bench.pool = open_pool(argv[1], &loop);
        fill(&bench, depth);
        warm(&bench, &loop);
        began = uv_hrtime();
        for (uint32_t i = 0; i < depth; i++)
                begin(&bench.slots[i]);
        while (bench.n_done < bench.count)
                uv_run(&loop, UV_RUN_ONCE);
        took = uv_hrtime() - began;
        printf("{\"name\": \"pool_%s_%s\", \"value\": %.4f, \"unit\": \"MB/s\"}\n", argv[1],
               argv[2], (double)bench.count * (double)bench.bytes / (double)took * 1000);
        return 0;
}
