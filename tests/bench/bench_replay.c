// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon's own eviction order on traces of real prompts: prefix hits in percent, for a
 * host tier that holds 1, 10 and 30 % of the unique blocks.
 *
 *   bench_replay FOLDER     with the mooncake_*_512tok.jsonl.gz traces in it
 *
 * Each request uses the blocks that are there from the front, then stores the rest. `limit`
 * is what a textbook LRU reaches that is touched from the tail.
 */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/index.h"
#include "daemon/placement.h"

enum { BLOCKS_MAX = 2000000, REQUEST_MAX = 4096 };

struct request {
        uint32_t now_s;
        uint32_t first; /* in blocks[] */
        uint32_t n;
};

static uint32_t blocks[BLOCKS_MAX];
static struct request requests[BLOCKS_MAX];
static uint32_t n_blocks, n_requests, n_unique;
static unsigned char seen[BLOCKS_MAX];

static void die(const char *what)
{
        fprintf(stderr, "bench_replay: %s\n", what);
        exit(1);
}

/* ---- traces ---- */

/* {"timestamp": 27482, ..., "hash_ids": [46, 47]}: milliseconds, small numbers. */
static void parse_line(const char *line)
{
        const char *timestamp = strstr(line, "\"timestamp\":");
        const char *ids = strstr(line, "\"hash_ids\":");
        struct request *request = &requests[n_requests];
        char *end;

        if (!timestamp || !ids || !(ids = strchr(ids, '[')))
                die("a line is not of the mooncake format");
        request->now_s = (uint32_t)(strtoul(timestamp + 12, NULL, 10) / 1000);
        request->first = n_blocks;
        for (ids++;; ids = end + strspn(end, ", ")) {
                unsigned long id = strtoul(ids, &end, 10);

                if (end == ids)
                        break;
                if (id >= BLOCKS_MAX || n_blocks == BLOCKS_MAX)
                        die("the trace is too long");
                n_unique += !seen[id];
                seen[id] = 1;
                blocks[n_blocks++] = (uint32_t)id;
        }
        request->n = n_blocks - request->first;
        n_requests++;
}

static void read_trace(const char *folder, const char *file)
{
        char command[PATH_MAX + 64], *line = NULL;
        size_t size = 0;
        FILE *pipe;

        if (strchr(folder, '\''))
                die("a folder with a quote in its name");
        n_blocks = n_requests = n_unique = 0;
        memset(seen, 0, sizeof(seen));
        snprintf(command, sizeof(command), "zcat '%s/%s'", folder, file);
        pipe = popen(command, "re");
        if (!pipe)
                die("no zcat");
        while (getline(&line, &size, pipe) > 0)
                parse_line(line);
        free(line);
        if (pclose(pipe) != 0 || !n_requests)
                die("the trace cannot be read");
}

/* ---- the host tier ---- */

static struct digest digest_of(uint32_t block)
{
        struct digest digest = {{0}};

        memcpy(digest.bytes, &block, sizeof(block));
        digest.bytes[8] = 1;
        return digest;
}

static bool anything(void *user, const struct index_boundary *boundary)
{
        return true;
}

static void evict_one(struct index *index)
{
        struct index_boundary *victim = placement_victim(index, INDEX_HOST, anything, NULL, 1);
        struct index_object *object;

        if (!victim)
                die("nothing to evict");
        object = index_object_at(index, victim->first_object);
        index_set_host(index, object, INDEX_NONE);
        index_remove(index, object);
}

static uint32_t used_blocks(struct index *index, const struct request *request, uint16_t layout)
{
        struct index_boundary *deepest = NULL;
        uint32_t n = 0;

        for (; n < request->n; n++) {
                struct digest digest = digest_of(blocks[request->first + n]);
                struct index_boundary *boundary = index_find_boundary(index, layout, &digest);

                if (!boundary || !(boundary->flags & INDEX_BYTES_HOST))
                        break;
                deepest = boundary;
        }
        if (deepest)
                placement_touch(index, deepest, request->now_s);
        return n;
}

static void store_block(struct index *index, const struct request *request, uint32_t i,
                        uint16_t layout)
{
        struct index_new_object new_object = {
                .layout = layout,
                .digest = digest_of(blocks[request->first + i]),
                .boundary_tokens = (i + 1) * 512,
                .raw_bytes = 1,
        };
        struct index_boundary *boundary = index_find_boundary(index, layout, &new_object.digest);
        struct index_object *object;

        if (i > 0)
                new_object.parent = digest_of(blocks[request->first + i - 1]);
        if (!boundary || !boundary->first_object) {
                if (index_add(index, &new_object, &object))
                        die("index_add");
                index_set_host(index, object, 1);
                boundary = index_boundary_at(index, object->boundary);
        }
        placement_touch(index, boundary, request->now_s);
}

static double replay(double share)
{
        static const struct digest layout_id = {{1}};
        uint64_t capacity = (uint64_t)(share * n_unique), hits = 0;
        struct index_usage usage;
        struct index *index;
        uint16_t layout;

        if (index_new(&index, capacity + REQUEST_MAX, NULL) ||
            index_layout(index, 0, &layout_id, &layout))
                die("no memory");
        for (const struct request *request = requests; request < requests + n_requests; request++) {
                uint32_t n_used = used_blocks(index, request, layout);

                hits += n_used;
                for (uint32_t i = n_used; i < request->n; i++) {
                        index_usage(index, &usage);
                        if (usage.objects_in[INDEX_HOST] >= capacity)
                                evict_one(index);
                        store_block(index, request, i, layout);
                }
        }
        index_free(index);
        return 100.0 * (double)hits / n_blocks;
}

int main(int argc, char **argv)
{
        static const struct {
                const char *name;
                const char *file;
                double limits[3];
        } traces[] = {
                {"conversation", "mooncake_conversation_512tok.jsonl.gz", {5.3, 27.9, 35.8}},
                {"synthetic", "mooncake_synthetic_512tok.jsonl.gz", {3.8, 26.2, 48.8}},
        };
        static const double shares[3] = {0.01, 0.1, 0.3};

        if (argc != 2) {
                fprintf(stderr, "usage: bench_replay FOLDER\n");
                return 2;
        }
        for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
                read_trace(argv[1], traces[i].file);
                for (int j = 0; j < 3; j++) {
                        double hits = replay(shares[j]);

                        printf("{\"name\": \"replay_%s_%.0f\", \"value\": %.1f, \"unit\": \"%%\", "
                               "\"limit\": %.1f, \"ratio\": %.3f, \"runs\": 1}\n",
                               traces[i].name, shares[j] * 100, hits, traces[i].limits[j],
                               hits / traces[i].limits[j]);
                        fflush(stdout);
                }
        }
        return 0;
}
