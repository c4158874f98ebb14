// SPDX-License-Identifier: Apache-2.0
/*
 * match_512: kvt_match() of 512 digests among a million boundaries, against 512 prefetched
 * probes of a bare table of 32-byte entries of the same size in the same run.
 *
 * match_joint: the same of layouts with several groups of 8 shards, with every usable
 * boundary listed and its bytes summed up:
 *   match_joint          5 groups, everything in host memory
 *   match_joint_below    5 groups, nothing in host memory
 *   match_joint_mixed    5 groups, any cell in host memory or not
 *   match_joint_hybrid   3 groups, a window, states; any cell in host memory or not
 *   match_joint_80       10 groups, two banks; any cell in host memory or not
 *   match_joint_missing  5 groups, nothing there at all, and the nearest state asked for
 *
 *   bench_match [RUNS]
 *
 * The table is the daemon's own, filled by the daemon's code and handed over by a scripted
 * handshake. Digests are random. Before each measurement a buffer larger than the caches is
 * read, so that both tables are equally cold. Value and limit are medians in microseconds.
 */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "proto/presence_table.h"
#include "proto/layout.h"
#include "tests/unit/client/fake_daemon.h"

#define BOUNDARIES 1000000u
#define QUERY      512u
#define AHEAD      32u
#define COLD_BYTES (UINT64_C(64) << 20)
#define RUNS_MAX   10001u

/* What a probe costs at the least: the fingerprint is the digest's own first bytes. */
struct bare_entry {
        uint64_t fingerprint;
        uint64_t present;
        uint64_t resident;
        uint64_t rest;
};

/* Which cells of a boundary are there, which of these in host memory. */
enum contents {
        RESIDENT,
        BELOW,
        MIXED,
        MISSING,
};

struct scenario {
        const char *name;
        uint32_t n_groups;
        uint32_t n_shards;
        enum contents contents;
        bool is_hybrid; /* the last group but one is a window, the last one states */
        bool is_joint;  /* lists what is usable */
};

static const struct scenario scenarios[] = {
        {.name = "match_512", .n_groups = 1, .n_shards = 1, .contents = RESIDENT},
        {.name = "match_joint", .n_groups = 5, .n_shards = 8, .is_joint = true},
        {.name = "match_joint_below",
         .n_groups = 5,
         .n_shards = 8,
         .contents = BELOW,
         .is_joint = true},
        {.name = "match_joint_mixed",
         .n_groups = 5,
         .n_shards = 8,
         .contents = MIXED,
         .is_joint = true},
        {.name = "match_joint_hybrid",
         .n_groups = 5,
         .n_shards = 8,
         .contents = MIXED,
         .is_hybrid = true,
         .is_joint = true},
        {.name = "match_joint_80",
         .n_groups = 10,
         .n_shards = 8,
         .contents = MIXED,
         .is_joint = true},
        {.name = "match_joint_missing",
         .n_groups = 5,
         .n_shards = 8,
         .contents = MISSING,
         .is_hybrid = true,
         .is_joint = true},
};

static struct fake fake;
static const struct scenario *scenario;
static struct kvt_group groups[LAYOUT_GROUPS_MAX];
static struct kvt_boundary usable[QUERY];
static struct presence_table *table;
static struct bare_entry *bare;
static uint64_t n_bare;
static struct kvt_digest *all;
static uint64_t random_state = 0x9e3779b97f4a7c15u;

static void die(const char *what)
{
        fprintf(stderr, "bench_match: %s\n", what);
        exit(1);
}

static uint64_t next_random(void)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state;
}

static double now_us(void)
{
        struct timespec time;

        clock_gettime(CLOCK_MONOTONIC, &time);
        return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* The daemon's table in place of the fake's small one. */
static void use_large_table(void)
{
        uint32_t n_cells = scenario->n_groups * scenario->n_shards;
        uint32_t n_banks = (n_cells - 1) / PRESENCE_CELLS_PER_BANK + 1;

        if (presence_table_new(&table, BOUNDARIES * n_banks, fake.boot_id, 100000000))
                die("no table");
        presence_table_set_state(table, PRESENCE_SERVING);
        presence_table_beat(table, UINT64_MAX);
        close(fake.table_fd);
        munmap(fake.table, fake.table_bytes);
        fake.table_fd = presence_table_fd(table);
        fake.table_bytes = presence_table_size(table);
        fake.table = (void *)(uintptr_t)presence_table_view(table)->header;
}

static struct bare_entry *bare_home(const struct kvt_digest *digest)
{
        uint64_t fingerprint;

        memcpy(&fingerprint, digest->bytes, sizeof(fingerprint));
        return &bare[((fingerprint >> 32) * n_bare) >> 32];
}

/* Memory of the same kind as the table's: a mapped memfd. */
static void make_bare(void)
{
        uint64_t bytes = presence_table_size(table);
        int fd = memfd_create("bare", MFD_CLOEXEC);

        if (fd < 0 || ftruncate(fd, (off_t)bytes))
                die("memfd");
        bare = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (bare == MAP_FAILED)
                die("mmap");
        close(fd);
        n_bare = bytes / sizeof(*bare);
}

/* Group g has the bits of its shards at 8 g; bit 0 alone without shards. */
static uint64_t cells_of(uint32_t bank)
{
        uint32_t n_cells = scenario->n_groups * scenario->n_shards - bank * PRESENCE_CELLS_PER_BANK;

        return n_cells >= PRESENCE_CELLS_PER_BANK ? UINT64_MAX : (UINT64_C(1) << n_cells) - 1;
}

static bool put(const struct kvt_digest *digest, uint32_t bank, uint64_t seed)
{
        uint64_t present = cells_of(bank), resident = present;
        uint64_t fingerprint = presence_fingerprint(seed, (const void *)digest);

        if (scenario->contents == BELOW)
                resident = 0;
        if (scenario->contents == MIXED)
                resident &= next_random();
        /* States only now and then. */
        if (scenario->is_hybrid && next_random() % 16)
                present &= ~(UINT64_C(0xff) << (scenario->n_groups - 1) * scenario->n_shards);
        if (scenario->contents == MISSING)
                present &= UINT64_C(1) << 63; /* a stranger's cell: the entry is there */
        return !presence_table_set(table, fingerprint, present ? present : UINT64_C(1) << 63,
                                   resident & present, 0);
}

static void fill(struct kvt_session *session)
{
        uint64_t hash_key = presence_table_view(table)->header->hash_key;
        uint32_t n_cells = scenario->n_groups * scenario->n_shards;
        struct kvt_session_info info = {.size = sizeof(info)};

        if (kvt_session_info(session, &info))
                die("no layout id");
        for (uint32_t i = 0; i < BOUNDARIES; i++) {
                uint64_t words[4] = {next_random(), next_random(), next_random(), next_random()};
                bool has_place = true;

                memcpy(&all[i], words, sizeof(words));
                for (uint32_t bank = 0; has_place && bank * PRESENCE_CELLS_PER_BANK < n_cells;
                     bank++)
                        has_place = put(&all[i], bank,
                                        presence_seed(hash_key, DOMAIN_DEFAULT,
                                                      (const void *)info.layout_id, bank));
                /* A few find no place; they are not asked for. */
                if (!has_place) {
                        i--;
                        continue;
                }
                memcpy(&bare_home(&all[i])->fingerprint, &all[i], sizeof(uint64_t));
                bare_home(&all[i])->present = 1;
        }
}

/* The compiler must not find out that nobody wants the value. */
static void use(uint64_t value)
{
        __asm__ volatile("" : : "r"(value));
}

static void make_cold(void)
{
        static uint8_t *buffer;
        uint64_t sum = 0;

        if (!buffer) {
                buffer = malloc(COLD_BYTES);
                if (!buffer)
                        die("no memory");
                memset(buffer, 1, COLD_BYTES);
        }
        for (uint64_t i = 0; i < COLD_BYTES; i += 64)
                sum += buffer[i];
        use(sum);
}

static uint64_t probe_bare(const struct kvt_digest *digests)
{
        uint64_t found = 0;

        for (uint32_t i = 0; i < AHEAD; i++)
                __builtin_prefetch(bare_home(&digests[i]));
        for (uint32_t i = 0; i < QUERY; i++) {
                const struct bare_entry *entry = bare_home(&digests[i]);
                uint64_t fingerprint;

                if (i + AHEAD < QUERY)
                        __builtin_prefetch(bare_home(&digests[i + AHEAD]));
                memcpy(&fingerprint, digests[i].bytes, sizeof(fingerprint));
                found += entry->fingerprint == fingerprint && entry->present & 1;
        }
        return found;
}

static double measure_match(struct kvt_session *session, const struct kvt_digest *digests)
{
        struct kvt_match_query query = {
                .size = sizeof(query),
                .digests = digests,
                .n_digests = QUERY,
                .usable = scenario->is_joint ? usable : NULL,
                .n_usable = scenario->is_joint ? QUERY : 0,
                .flags = scenario->is_hybrid ? KVT_MATCH_STATE | KVT_MATCH_CHECKPOINT : 0,
        };
        struct kvt_match match = {.size = sizeof(match)};
        double begin = now_us(), end;

        kvt_match(session, &query, &match);
        end = now_us();
        if (match.kv_boundaries != (scenario->contents == MISSING ? 0 : QUERY))
                die("a boundary was not found");
        return end - begin;
}

static double measure_bare(const struct kvt_digest *digests)
{
        double begin = now_us();

        use(probe_bare(digests));
        return now_us() - begin;
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

static void draw(struct kvt_digest *digests)
{
        for (uint32_t i = 0; i < QUERY; i++)
                digests[i] = all[next_random() % BOUNDARIES];
}

/*
 * Random boundaries, and caches that hold neither table. A scheduler asks all the time, so
 * the code of both is warm: both are asked for other boundaries first.
 */
static void prepare(struct kvt_session *session, struct kvt_digest *digests)
{
        draw(digests);
        make_cold();
        measure_match(session, digests);
        measure_bare(digests);
        draw(digests);
}

static uint32_t n_runs = 301;

static void set_layout(void)
{
        for (uint32_t i = 0; i < scenario->n_groups; i++)
                groups[i] = (struct kvt_group){
                        .name = "kv",
                        .kind = KVT_GROUP_ATTENTION,
                        .shards = scenario->n_shards,
                        .page_tokens = FAKE_CHUNK,
                        .page_bytes = 1000 + i,
                };
        if (scenario->is_hybrid) {
                struct kvt_group *last = &groups[scenario->n_groups - 1];

                last->kind = KVT_GROUP_STATE;
                last->page_tokens = 0;
                last[-1].kind = KVT_GROUP_WINDOW;
                last[-1].window_tokens = 8 * FAKE_CHUNK;
        }
        fake.layout.groups = groups;
        fake.layout.n_groups = scenario->n_groups;
}

static void measure(struct kvt_session *session)
{
        static double matches[RUNS_MAX], limits[RUNS_MAX];
        static struct kvt_digest digests[QUERY];
        double value, limit;

        for (uint32_t i = 0; i < n_runs; i++) {
                prepare(session, digests);
                matches[i] = measure_match(session, digests);
                prepare(session, digests);
                limits[i] = measure_bare(digests);
        }
        value = median(matches, n_runs);
        limit = median(limits, n_runs);
        printf("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"us\", \"limit\": %.2f, "
               "\"ratio\": %.3f, \"runs\": %u}\n",
               scenario->name, value, limit, value / limit, n_runs);
        fflush(stdout);
}

/* The fake's handshake speaks through Check, so each row is a test. */
START_TEST(row)
{
        struct kvt_session *session;

        scenario = &scenarios[_i];
        all = malloc(BOUNDARIES * sizeof(*all));
        if (!all)
                die("no memory");
        fake_start(&fake, false);
        set_layout();
        use_large_table();
        session = fake_open(&fake);
        make_bare();
        fill(session);
        measure(session);
        fake_hang_up(&fake);
        kvt_close(session);
        unlink(fake.path);
        rmdir(fake.folder);
        munmap(bare, presence_table_size(table));
        presence_table_free(table);
        free(all);
}
END_TEST

int main(int argc, char **argv)
{
        Suite *suite = suite_create("bench_match");
        TCase *tests = tcase_create("bench_match");
        SRunner *runner = srunner_create(suite);
        int failed;

        if (argc > 1)
                n_runs = (uint32_t)atoi(argv[1]);
        if (!n_runs || n_runs > RUNS_MAX)
                die("usage: bench_match [RUNS]");
        tcase_add_loop_test(tests, row, 0, sizeof(scenarios) / sizeof(scenarios[0]));
        suite_add_tcase(suite, tests);
        srunner_set_fork_status(runner, CK_NOFORK);
        srunner_run_all(runner, CK_SILENT);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
